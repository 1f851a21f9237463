"""Several runners on one board, here or on a Ray cluster; each takes cells until none is missing."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

from lightning_nli.training.signals import Stopped
from lightning_nli.types import UserError

_MAX_ERROR_CHARACTERS = 2000
_STOPPED = 75
_GOOD_ENDS = (0, 3, _STOPPED)
_OBJECT_STORE_BYTES = 80 * 1024**2  # runners share files, not objects; the least that Ray takes


def worker_command(board: Path, models: Sequence[str], *, retry_failed: bool = False) -> list[str]:
    """The command line of one runner."""
    command = [
        sys.executable,
        "-m",
        "lightning_nli",
        "cross-domain",
        "work",
        str(board.resolve()),
        "--models",
        ",".join(models),
    ]
    return [*command, "--retry-failed"] if retry_failed else command


def run_local(board: Path, models: Sequence[str], *, parallel: int, retry_failed: bool = False) -> None:
    """Start `parallel` runners with an even share of the cores and wait for them.

    Args:
        board: Folder.
        models: What to run.
        parallel: Runners.
        retry_failed: Run failed cells again.

    Raises:
        UserError: a runner ended with an error.
        Stopped: a runner was told to stop.
    """
    threads = str(max(1, _num_cores() // parallel))
    environment = os.environ | {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", threads)}
    command = worker_command(board, models, retry_failed=retry_failed)
    with contextlib.ExitStack() as stack:
        # Files, not pipes: nobody reads while the runners run, and a full pipe would stop one.
        logs = [stack.enter_context(tempfile.TemporaryFile("w+", encoding="utf-8")) for _ in range(parallel)]
        runners = [subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=log) for log in logs]
        try:
            codes = [runner.wait() for runner in runners]
        finally:
            for runner in runners:
                runner.terminate()  # one that runs gives its cell back and leaves
        _check_ends(list(zip(codes, map(_read_back, logs), strict=True)))


def _read_back(log: IO[str]) -> str:
    log.seek(0)
    return log.read()


def _num_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _check_ends(ends: Sequence[tuple[int, str]]) -> None:
    """Refuse what a runner's exit code (0: all done, 3: some cells failed, 75: stopped) and errors say."""
    broken = [(code, error) for code, error in ends if code not in _GOOD_ENDS]
    if broken:
        code, error = broken[0]
        said = error[-_MAX_ERROR_CHARACTERS:].strip() or "killed, perhaps for want of memory"
        raise UserError(f"a runner ended early with code {code}: {said}; the same command runs what is missing")
    if any(code == _STOPPED for code, _ in ends):
        raise Stopped("a runner was told to stop")


def run_on_ray(
    board: Path, models: Sequence[str], *, parallel: int, address: str | None, retry_failed: bool = False
) -> None:
    """Start `parallel` runners as Ray tasks; the board's folder must be one that every node sees.

    Args:
        board: Folder.
        models: What to run.
        parallel: Runners; the cluster's cores and GPUs are shared out among them.
        address: Of a Ray cluster; None starts one on this machine and ends it.
        retry_failed: Run failed cells again.

    Raises:
        UserError: no cluster answers, or a runner ended with an error.
        Stopped: a runner was told to stop.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray

    options: dict[str, Any] = {"log_to_driver": False}
    if address is None:
        options |= {"num_cpus": max(parallel, _num_cores()), "include_dashboard": False}
        options |= {"object_store_memory": _OBJECT_STORE_BYTES}
    started = not ray.is_initialized()
    if started:
        try:
            ray.init(address=address or "local", **options)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise UserError(f"--ray-address {address}: {error}") from None
    try:
        there = ray.cluster_resources()
        cpus, gpus = max(1, int(there.get("CPU", 1)) // parallel), int(there.get("GPU", 0)) / parallel
        task = ray.remote(num_cpus=cpus, num_gpus=int(gpus) if gpus >= 1 else gpus, max_retries=0)(_ray_runner)
        command = worker_command(board, models, retry_failed=retry_failed)
        _check_ends(ray.get([task.remote(command, cpus) for _ in range(parallel)]))
    finally:
        if started:
            ray.shutdown()


def _ray_runner(command: list[str], threads: int) -> tuple[int, str]:
    environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    return done.returncode, done.stderr
