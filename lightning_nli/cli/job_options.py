"""Options of a SLURM job, for the commands that submit one."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning_nli.types import UserError

if TYPE_CHECKING:
    from lightning_nli.launch.slurm import JobSpec

_OPTIONS: dict[str, dict[str, Any]] = {
    "--time": {"help": "limit: minutes, HH:MM:SS or D-HH:MM:SS"},
    "--gpus-per-node": {"type": int, "help": "GPUs a machine, one process each (default 0)"},
    "--cpus-per-task": {"type": int, "help": "cores a process (default 4)"},
    "--mem": {"help": "memory a machine, as 64G"},
    "--partition": {"help": "partition"},
    "--account": {"help": "account to charge"},
    "--name": {"help": "of the job (default: the command)"},
    "--venv": {"metavar": "FOLDER", "help": "virtual environment (default: this one)"},
    "--conda": {"metavar": "NAME", "help": "conda environment instead"},
    "--container": {"metavar": "IMAGE", "help": "run inside an Apptainer image"},
    "--cache": {"help": "LNLI_CACHE, seen by every node (default: this one's)"},
    "--logs": {"help": "folder of log files (default logs)"},
    "--no-requeue": {"action": "store_true", "help": "do not queue again what was stopped"},
    "--sbatch": {"action": "append", "metavar": "OPTION", "help": "a further #SBATCH option"},
}
_DEFAULTS: dict[str, Any] = {"gpus_per_node": 0, "cpus_per_task": 4, "logs": "logs", "no_requeue": False, "sbatch": []}


def add_job_options(parser: argparse.ArgumentParser, title: str) -> None:
    """Declare the options under a heading; none of them has a default, so that `given_job_options` can tell."""
    group = parser.add_argument_group(title)
    for name, settings in _OPTIONS.items():
        group.add_argument(name, **settings, default=argparse.SUPPRESS)


def given_job_options(args: argparse.Namespace) -> list[str]:
    """The options that the user gave."""
    return [name for name in _OPTIONS if hasattr(args, _attribute(name))]


def job_spec(args: argparse.Namespace, name: str, *, nodes: int = 1, tasks_per_node: int | None = None) -> JobSpec:
    """The job that the options describe, without its command.

    Args:
        args: With the options of `add_job_options`.
        name: Of the job where the user gave none.
        nodes: Machines.
        tasks_per_node: Processes a machine; None: one a GPU, else one.

    Raises:
        UserError: options are missing or contradict each other.
    """
    from lightning_nli.launch.slurm import JobSpec

    given = _DEFAULTS | {name: getattr(args, name) for name in map(_attribute, given_job_options(args))}
    if "time" not in given:
        raise UserError("a SLURM job needs its limit: --time, as minutes, HH:MM:SS or D-HH:MM:SS")
    return JobSpec(
        name=given.get("name", name),
        command=(),
        nodes=nodes,
        gpus_per_node=given["gpus_per_node"],
        tasks_per_node=tasks_per_node or given["gpus_per_node"] or 1,
        cpus_per_task=given["cpus_per_task"],
        time=given["time"],
        partition=given.get("partition"),
        account=given.get("account"),
        memory=given.get("mem"),
        requeue=not given["no_requeue"],
        prelude=_prelude(given),
        container=given.get("container"),
        cache=given.get("cache", os.environ.get("LNLI_CACHE")),
        logs=given["logs"],
        options=tuple(given["sbatch"]),
    )


def _attribute(option: str) -> str:
    return option[2:].replace("-", "_")


def _prelude(given: dict[str, Any]) -> tuple[str, ...]:
    if given.get("conda") and given.get("venv"):
        raise UserError("--venv and --conda exclude each other")
    if given.get("conda"):
        return ('eval "$(conda shell.bash hook)"', f"conda activate {shlex.quote(given['conda'])}")
    if given.get("container"):
        return ()
    return (f"source {shlex.quote(str(Path(given.get('venv') or sys.prefix) / 'bin' / 'activate'))}",)


def send_jobs(specs: Sequence[JobSpec], *, dry_run: bool) -> None:
    """Print the scripts, or submit them and print their ids and how to follow them.

    Raises:
        UserError: a job makes no sense, there is no SLURM, or it refuses a job.
    """
    from lightning_nli.launch.slurm import check_job, render_sbatch, submit_all

    if dry_run:
        for spec in specs:
            check_job(spec)
        sys.stdout.write("\n".join(render_sbatch(spec) for spec in specs))
        return
    for one in submit_all(specs):
        sys.stdout.write(
            f"job {one.job}: {one.script}\n  follow: tail -F {one.log}   squeue -j {one.job}   scancel {one.job}\n"
        )
