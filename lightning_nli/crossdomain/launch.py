"""Several runners on one board, here or on a Ray cluster; each takes cells until none is missing."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from lightning_nli.crossdomain.records import missing_cells
from lightning_nli.types import UserError

POLL_S = 1.0
_MAX_ERROR_CHARACTERS = 2000


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


def run_local(
    board: Path,
    models: Sequence[str],
    cell_ids: Sequence[str],
    *,
    parallel: int,
    retry_failed: bool = False,
    on_progress: Callable[[int], None] | None = None,
) -> None:
    """Start `parallel` runners with an even share of the cores and wait for them.

    Args:
        board: Folder.
        models: What to run.
        cell_ids: All cells, for the progress.
        parallel: Runners.
        retry_failed: Run failed cells again.
        on_progress: Told the number of cells that have their record.

    Raises:
        UserError: a runner ended with an error.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    threads = str(max(1, cores // parallel))
    environment = os.environ | {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", threads)}
    command = worker_command(board, models, retry_failed=retry_failed)
    runners = [
        subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        for _ in range(parallel)
    ]
    try:
        while any(runner.poll() is None for runner in runners):
            time.sleep(POLL_S)
            if on_progress:
                on_progress(len(cell_ids) - len(missing_cells(board, cell_ids)))
        errors = [runner.communicate()[1] for runner in runners]
    finally:
        for runner in runners:
            runner.terminate()
    broken = [error for runner, error in zip(runners, errors, strict=True) if runner.returncode not in (0, 3)]
    if broken:
        raise UserError(f"a runner ended early: {broken[0][-_MAX_ERROR_CHARACTERS:].strip()}")


def run_on_ray(
    board: Path, models: Sequence[str], *, parallel: int, address: str | None, retry_failed: bool = False
) -> None:
    """Start `parallel` runners as Ray tasks; the board's folder must be one that every node sees.

    Args:
        board: Folder.
        models: What to run.
        parallel: Runners.
        address: Of a Ray cluster; None starts one on this machine and ends it.
        retry_failed: Run failed cells again.

    Raises:
        UserError: a runner ended with an error.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray

    started = not ray.is_initialized()
    if started:
        ray.init(address=address, include_dashboard=False, log_to_driver=False)
    command = worker_command(board, models, retry_failed=retry_failed)
    cores = int(ray.cluster_resources().get("CPU", 1))
    cpus = max(1, cores // parallel)

    def work() -> tuple[int, str]:
        environment = os.environ | {"OMP_NUM_THREADS": str(cpus)}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        return done.returncode, done.stderr[-_MAX_ERROR_CHARACTERS:]

    try:
        task = ray.remote(num_cpus=cpus, max_retries=0)(work)
        outcomes = ray.get([task.remote() for _ in range(parallel)])
    finally:
        if started:
            ray.shutdown()
    broken = [error for code, error in outcomes if code not in (0, 3)]
    if broken:
        raise UserError(f"a runner ended early: {broken[0].strip()}")
