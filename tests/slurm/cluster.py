"""A real SLURM cluster of two virtual nodes on this machine's loopback: started in a folder, stopped by its own pids.

Each slurmd runs in a UTS and mount namespace of its own, so that `hostname` and host names resolve as on two machines.
Needs root, `slurmctld slurmd munged` and `unshare`; `why_not()` says what is missing.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

NODES = ("node1", "node2")
PROGRAMS = ("slurmctld", "slurmd", "munged", "sbatch", "srun", "squeue", "scancel", "scontrol", "unshare")
START_LIMIT_S = 30


def why_not() -> str | None:
    """Why no cluster can run here; None if it can."""
    if os.geteuid() != 0:
        return "starting SLURM's daemons needs root"
    absent = [name for name in PROGRAMS if shutil.which(name, path=_path()) is None]
    return f"not installed: {' '.join(absent)}" if absent else None


def _path() -> str:
    return f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def _configuration(folder: Path, cpus: int) -> str:
    ports = _free_ports(1 + len(NODES))
    host = socket.gethostname().partition(".")[0]
    hosts = [f"127.0.0.1 localhost {host}", *(f"127.0.0.1 {node}" for node in NODES)]
    (folder / "hosts").write_text("\n".join([*hosts, ""]))
    lines = [
        "ClusterName=test",
        f"SlurmctldHost={host}(127.0.0.1)",
        f"SlurmctldPort={ports[0]}",
        "SlurmUser=root",
        "SlurmdUser=root",
        "AuthType=auth/munge",
        f"AuthInfo=socket={folder}/munge/munge.sock,cred_expire=5",
        "CredType=cred/munge",
        f"StateSaveLocation={folder}/state",
        f"SlurmdSpoolDir={folder}/spool/%n",
        f"SlurmctldPidFile={folder}/run/slurmctld.pid",
        f"SlurmdPidFile={folder}/run/slurmd-%n.pid",
        f"SlurmctldLogFile={folder}/log/slurmctld.log",
        f"SlurmdLogFile={folder}/log/slurmd-%n.log",
        "ProctrackType=proctrack/linuxproc",
        "TaskPlugin=task/none",
        "JobAcctGatherType=jobacct_gather/none",
        "AccountingStorageType=accounting_storage/none",
        "SelectType=select/cons_tres",
        "SelectTypeParameters=CR_Core",
        "MpiDefault=none",
        "SwitchType=switch/none",
        "SlurmdParameters=config_overrides",
        "SlurmctldParameters=preempt_send_user_signal",
        "CommunicationParameters=NoCtldInAddrAny,NoInAddrAny",
        "SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0,sched_min_interval=0",
        "PreemptType=preempt/partition_prio",
        "PreemptMode=REQUEUE",
        "JobRequeue=1",
        "KillWait=5",
        "ReturnToService=2",
        "SlurmdTimeout=10",
        "MailProg=/bin/true",
    ]
    for node, port in zip(NODES, ports[1:], strict=True):
        lines.append(f"NodeName={node} NodeHostname={node} NodeAddr=127.0.0.1 Port={port} CPUs={cpus} State=UNKNOWN")
    lines.append("PartitionName=main Nodes=ALL Default=YES PriorityTier=1 GraceTime=20 MaxTime=INFINITE State=UP")
    lines.append("PartitionName=urgent Nodes=ALL PriorityTier=10 PreemptMode=OFF MaxTime=INFINITE State=UP")
    return "\n".join([*lines, ""])


class Cluster:
    """Commands against a running cluster, each with a limit: a job that can never run would pend for ever."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.daemons: dict[str, subprocess.Popen[bytes]] = {}
        environment = {key: value for key, value in os.environ.items() if not key.startswith("SLURM_")}
        self.env = environment | {"SLURM_CONF": str(folder / "slurm.conf"), "PATH": _path()}

    def run(self, *command: str, cwd: Path | None = None, limit_s: float = 60) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, env=self.env, cwd=cwd, capture_output=True, text=True, timeout=limit_s, check=False
        )

    def state(self, job: str) -> dict[str, str]:
        """`JobState`, `Restarts`, `ExitCode`, ... of a job."""
        done = self.run("scontrol", "show", "job", job)
        return dict(word.split("=", 1) for word in done.stdout.split() if "=" in word)

    def start(self, name: str, *command: str) -> None:
        """Start a daemon; its first words go to `log/start.log`."""
        with (self.folder / "log" / "start.log").open("ab") as log:
            self.daemons[name] = subprocess.Popen(
                command, env=self.env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

    def start_node(self, node: str) -> None:
        """Start a node's slurmd under its own host name."""
        inside = 'hostname "$1" && mount --bind "$2/hosts" /etc/hosts && exec slurmd -D -f "$2/slurm.conf" -N "$1"'
        self.start(node, "unshare", "--uts", "--mount", "sh", "-c", inside, "-", node, str(self.folder))

    def kill_node(self, node: str) -> None:
        """As if its power went: SIGKILL to slurmd and to all that runs on the node."""
        here = os.stat(f"/proc/{self.daemons[node].pid}/ns/uts").st_ino
        for path in Path("/proc").glob("[0-9]*/ns/uts"):
            with suppress(OSError):
                if path.stat().st_ino == here:
                    os.kill(int(path.parts[2]), signal.SIGKILL)
        self.daemons[node].wait()

    def wait(self, job: str, *states: str, limit_s: float) -> dict[str, str]:
        """Until the job is in one of the states; AssertionError with the state it has when the limit is over."""
        end = time.monotonic() + limit_s
        while (found := self.state(job)).get("JobState") not in states:
            assert time.monotonic() < end, f"job {job} is {found.get('JobState')}, not {states}, after {limit_s} s"
            time.sleep(0.5)
        return found


@contextmanager
def running_cluster(folder: Path, *, cpus: int = 4) -> Iterator[Cluster]:
    """Start munge, the controller and two nodes below `folder` (a short path: it holds sockets), then stop them."""
    for name in ("munge", "state", "run", "log", *(f"spool/{node}" for node in NODES)):
        (folder / name).mkdir(parents=True, mode=0o755)
    (folder / "slurm.conf").write_text(_configuration(folder, cpus))
    key = folder / "munge" / "munge.key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o400)
    cluster = Cluster(folder)
    munge = folder / "munge"
    try:
        cluster.start(
            "munge",
            *("munged", "--foreground", "--force", f"--key-file={key}", f"--socket={munge}/munge.sock"),
            *(f"--pid-file={folder}/run/munged.pid", f"--log-file={folder}/log/munged.log"),
            f"--seed-file={munge}/seed",
        )
        _until(lambda: (munge / "munge.sock").exists(), "munge's socket")
        cluster.start("controller", "slurmctld", "-D", "-f", str(folder / "slurm.conf"))
        for node in NODES:
            cluster.start_node(node)
        _until(lambda: cluster.run("sinfo", "-h", "-o", "%T %D").stdout.split() == ["idle", "2"], "two idle nodes")
        yield cluster
    finally:
        cluster.run("scancel", "-u", "root")
        time.sleep(1)
        for process in reversed(cluster.daemons.values()):
            process.terminate()
        for process in cluster.daemons.values():
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def _until(holds: object, what: str) -> None:
    assert callable(holds)
    end = time.monotonic() + START_LIMIT_S
    while not holds():
        assert time.monotonic() < end, f"no {what} after {START_LIMIT_S} s"
        time.sleep(0.1)
