"""A job for SLURM: description -> sbatch text (pure) -> submitted."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from lightning_nli.types import UserError

SIGNAL_LEAD_S = 120
_TIME = re.compile(r"(\d+-)?\d{1,2}(:\d{2}){0,2}|\d+")
_SUBMIT_TIMEOUT_S = 60


@dataclass(frozen=True, kw_only=True)
class JobSpec:
    """What a batch script says.

    Attributes:
        name: Of the job and of its log files.
        command: Words that `srun` starts once a task, `lnli fit ...`.
        nodes: Machines.
        gpus_per_node: GPUs a machine; 0 for none.
        tasks_per_node: Processes a machine: one a GPU, or CPU processes.
        cpus_per_task: Cores a process.
        time: Limit as SLURM writes it, `1-12:00:00`.
        partition: Partition; None for the cluster's own.
        account: Account to charge; None for the user's own.
        memory: Memory a machine, `64G`; None for the cluster's own.
        array: Array of tasks, `0-26%8`; None for one job.
        after: Id of a job that must have ended first, well or not; None for none.
        requeue: Whether a job that saved and left with code 75 is queued again, and pre-emption may queue it again.
        prelude: Lines before the command, to reach the program: a venv, conda, modules.
        container: Image in which the command runs (Apptainer); None for none.
        cache: Folder of models and tokens that every node sees; None for the user's own.
        logs: Folder of log files.
        options: Further `#SBATCH` options as they are.
    """

    name: str
    command: tuple[str, ...]
    nodes: int = 1
    gpus_per_node: int = 0
    tasks_per_node: int = 1
    cpus_per_task: int = 1
    time: str
    partition: str | None = None
    account: str | None = None
    memory: str | None = None
    array: str | None = None
    after: str | None = None
    requeue: bool = True
    prelude: tuple[str, ...] = ()
    container: str | None = None
    cache: str | None = None
    logs: str = "logs"
    options: tuple[str, ...] = ()


def check_job(spec: JobSpec) -> None:
    """Refuse what SLURM would take and a run would not.

    Raises:
        UserError: names the option and the mend.
    """
    for name in ("nodes", "tasks_per_node", "cpus_per_task"):
        if getattr(spec, name) < 1:
            raise UserError(f"--{name.replace('_', '-')} must be at least 1, got {getattr(spec, name)}")
    if spec.gpus_per_node < 0:
        raise UserError(f"--gpus-per-node must not be below 0, got {spec.gpus_per_node}")
    if spec.gpus_per_node and spec.gpus_per_node != spec.tasks_per_node:
        raise UserError(
            f"{spec.gpus_per_node} GPUs and {spec.tasks_per_node} processes a node: a process drives one GPU, so they "
            "must be as many"
        )
    if not _TIME.fullmatch(spec.time):
        raise UserError(f"--time '{spec.time}': write minutes, HH:MM:SS or D-HH:MM:SS")
    if spec.array is not None and not re.fullmatch(r"\d+(-\d+)?(,\d+(-\d+)?)*(%\d+)?", spec.array):
        raise UserError(f"--array '{spec.array}': write it as 0-26 or 0-26%8")
    for text in (spec.name, *spec.options):
        if "\n" in text:
            raise UserError("an option of a job may not hold a line break")


def render_sbatch(spec: JobSpec) -> str:
    """The batch script, plain enough to be copied and changed by hand.

    `--signal` goes to the processes, not to the batch shell (no `B:`), so that `lnli` itself sees it, saves and leaves
    with code 75; the script then asks for the job to be queued again, and the same command goes on where it stopped.
    """
    pattern = "%x-%A_%a.out" if spec.array else "%x-%j.out"
    options = [
        f"--job-name={spec.name}",
        f"--nodes={spec.nodes}",
        f"--ntasks-per-node={spec.tasks_per_node}",
        f"--cpus-per-task={spec.cpus_per_task}",
        *([f"--gres=gpu:{spec.gpus_per_node}"] if spec.gpus_per_node else []),
        *([f"--mem={spec.memory}"] if spec.memory else []),
        f"--time={spec.time}",
        *([f"--partition={spec.partition}"] if spec.partition else []),
        *([f"--account={spec.account}"] if spec.account else []),
        *([f"--array={spec.array}"] if spec.array else []),
        *([f"--dependency=afterany:{spec.after}"] if spec.after else []),
        f"--signal=USR2@{SIGNAL_LEAD_S}",
        "--requeue" if spec.requeue else "--no-requeue",
        "--open-mode=append",
        f"--output={spec.logs}/{pattern}",
        *spec.options,
    ]
    lines = ["#!/usr/bin/env bash", *(f"#SBATCH {option}" for option in options), "set -euo pipefail", ""]
    lines += ["export HF_HUB_OFFLINE=1  # compute nodes have no internet: `lnli stage` fills the cache beforehand"]
    if spec.cache:
        lines.append(f"export LNLI_CACHE={shlex.quote(spec.cache)}")
    lines += [f"export OMP_NUM_THREADS={spec.cpus_per_task}", "export PYTHONUTF8=1", *spec.prelude, ""]
    words = spec.command
    if spec.container:
        words = ("apptainer", "exec", *(("--nv",) if spec.gpus_per_node else ()), spec.container, *words)
    lines += ["code=0", f"srun --kill-on-bad-exit=1 {_join(words)} || code=$?"]
    if spec.requeue:
        job = '"${SLURM_ARRAY_JOB_ID}_${SLURM_ARRAY_TASK_ID}"' if spec.array else '"$SLURM_JOB_ID"'
        lines += [
            'if [ "$code" -eq 75 ]; then  # saved, to be run again',
            f"  scontrol requeue {job}",
            "fi",
        ]
    return "\n".join([*lines, 'exit "$code"', ""])


def submit(script: Path) -> str:
    """Hand a script to SLURM; returns the job's id.

    Raises:
        UserError: there is no SLURM, or it refuses the job (its own words).
    """
    if shutil.which("sbatch") is None:
        raise UserError("no sbatch here: run this on a login node of the cluster, or look at the script with --dry-run")
    try:
        done = subprocess.run(
            ["sbatch", "--parsable", str(script)],
            capture_output=True,
            text=True,
            timeout=_SUBMIT_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise UserError(f"sbatch gave no answer in {_SUBMIT_TIMEOUT_S} s; is the cluster up? (sinfo)") from None
    if done.returncode:
        raise UserError(f"SLURM refuses the job: {done.stderr.strip()}")
    return done.stdout.strip().partition(";")[0]


@dataclass(frozen=True)
class SubmittedJob:
    """A job in SLURM's hands.

    Attributes:
        job: Its id.
        script: What was submitted.
        log: Pattern of its log files.
    """

    job: str
    script: Path
    log: str


def submit_all(specs: Sequence[JobSpec]) -> list[SubmittedJob]:
    """Write and submit the scripts of jobs, each but the first one once the first has ended; all of them or none.

    Raises:
        UserError: a job makes no sense, there is no SLURM, or it refuses a job.
    """
    for spec in specs:
        check_job(spec)
    submitted: list[SubmittedJob] = []
    for spec in specs:
        folder = Path(spec.logs) / "scripts"
        folder.mkdir(parents=True, exist_ok=True)
        script = folder / f"{spec.name}-{os.getpid()}.sbatch"
        waiting = replace(spec, after=submitted[0].job) if submitted else spec
        script.write_text(render_sbatch(waiting), encoding="utf-8")
        try:
            job = submit(script)
        except UserError:
            for one in submitted:
                cancel(one.job)
            raise
        submitted.append(SubmittedJob(job, script, f"{spec.logs}/{spec.name}-{job}{'_*' if spec.array else ''}.out"))
    return submitted


def cancel(job: str) -> None:
    """Take a job back that was only just submitted."""
    subprocess.run(["scancel", job], capture_output=True, timeout=_SUBMIT_TIMEOUT_S, check=False)


def _join(words: Sequence[str]) -> str:
    """Words quoted where a shell would change them, variables of SLURM left alone."""
    return " ".join(word if re.fullmatch(r'"\$\w+"', word) else shlex.quote(word) for word in words)
