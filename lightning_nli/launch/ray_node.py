"""Ray over the nodes of a SLURM job: `srun`, one task a node, `python -m lightning_nli.launch.ray_node lnli tune ...`.

The first task starts the head and, once it answers, the command with `--ray-address`; the others join and stay until
the head is gone. SLURM's signal before the time limit goes to every process of the step: Ray's ignore it, or the
cluster would fall apart before the command has stopped its trials. The command's exit code is that of the step, and
nothing of Ray outlives the tasks: `ray stop`, which would end another job's Ray on the same node as well, is not used.
Whoever reaches a Ray cluster can run anything on it, so the job draws a secret, in a file of the working folder that
only the user can read, and Ray refuses who does not know it.
"""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from lightning_nli.types import UserError

_FIRST_PORT, _NUM_PORTS = 20_000, 20_000
_START_PATIENCE_S = 120.0
_STOP_PATIENCE_S = 30.0
_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT)


def head_node() -> str:
    """The job's first node.

    Raises:
        UserError: there is no job around this process.
    """
    nodes = os.environ.get("SLURM_JOB_NODELIST")
    if nodes is None or "SLURM_PROCID" not in os.environ:
        raise UserError("not a task of a SLURM job; on one machine `lnli tune` starts Ray by itself")
    listed = subprocess.run(["scontrol", "show", "hostnames", nodes], capture_output=True, text=True, check=True)
    return listed.stdout.split()[0]


def head_port(job_id: str) -> int:
    """A port of the job's own, so that two jobs on one node do not meet."""
    return _FIRST_PORT + int(job_id) % _NUM_PORTS


def ray_command(host: str, port: int, *, is_head: bool) -> list[str]:
    """Words that run one node of Ray in the foreground."""
    words = [sys.executable, "-c", "from ray.scripts.scripts import main; main()", "start", "--block"]
    words += ["--disable-usage-stats"]
    if is_head:
        return [*words, "--head", f"--port={port}", f"--node-ip-address={host}", "--include-dashboard=false"]
    return [*words, f"--address={host}:{port}"]


def run_node(command: Sequence[str]) -> int:
    """This task's part: the head and the command, or one more node; returns the exit code.

    Raises:
        UserError: not inside a job, or the head does not answer.
    """
    host, port = head_node(), head_port(os.environ["SLURM_JOB_ID"])
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)  # Ray's processes inherit it
    address = socket.gethostbyname(host)
    secret = Path(f".ray-{os.environ['SLURM_JOB_ID']}.token").resolve()
    os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(secret)}
    if os.environ["SLURM_PROCID"] != "0":
        _wait_for(address, port)
        subprocess.run(ray_command(address, port, is_head=False), stdout=subprocess.DEVNULL, check=False)
        return 0
    secret.unlink(missing_ok=True)
    with os.fdopen(os.open(secret, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(secrets.token_hex(32))
    ray = subprocess.Popen(ray_command(address, port, is_head=True), stdout=subprocess.DEVNULL, start_new_session=True)
    try:
        _wait_for(address, port)
        return _run_command([*command, "--ray-address", f"{address}:{port}"])
    finally:
        ray.terminate()
        try:
            ray.wait(_STOP_PATIENCE_S)
        except subprocess.TimeoutExpired:
            os.killpg(ray.pid, signal.SIGKILL)
        secret.unlink(missing_ok=True)


def _run_command(command: list[str]) -> int:
    process: subprocess.Popen[bytes] | None = None

    def hand_on(number: int, frame: FrameType | None) -> None:
        if process is not None and process.poll() is None:
            process.send_signal(number)

    for number in _SIGNALS:
        signal.signal(number, hand_on)  # before the command starts: it inherits what is ignored, not what is handled
    process = subprocess.Popen(command, start_new_session=True)
    return process.wait()


def _wait_for(host: str, port: int) -> None:
    end = time.monotonic() + _START_PATIENCE_S
    while time.monotonic() < end:
        try:
            socket.create_connection((host, port), timeout=2).close()
            return
        except OSError:
            time.sleep(0.5)
    raise UserError(f"Ray's head at {host}:{port} gave no answer in {_START_PATIENCE_S:.0f} s")


def main() -> int:
    """Run the command line behind the module's name."""
    try:
        return run_node(sys.argv[1:])
    except UserError as error:
        sys.stderr.write(f"lnli: {error}\n")
        return 2


if __name__ == "__main__":
    sys.exit(main())
