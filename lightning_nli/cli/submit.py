"""`lnli submit`: any long command as a SLURM job."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from lightning_nli.types import UserError

if TYPE_CHECKING:
    from lightning_nli.launch.slurm import JobSpec

COMMANDS = ("fit", "cross-domain")

_EPILOG = """\
What follows -- is the command as it would be typed after `lnli fit` or `lnli cross-domain run`. Devices and nodes are
filled in, and --resume auto, so that the first launch and every requeue are one command. A job that is stopped (time
limit, pre-emption) saves, leaves with code 75 and is queued again. `lnli stage` on the login node fills the cache that
compute nodes without internet read (--cache, a folder that every node sees).

examples:
  lnli submit fit --nodes 2 --gpus-per-node 8 --time 12:00:00 --partition gpu -- --config run.yaml --strategy deepspeed
  lnli submit fit --tasks-per-node 2 --time 30 --dry-run -- --data my.csv --strategy ddp
  lnli submit cross-domain --array 8 --gpus-per-node 1 --time 04:00:00 -- --suite S.yaml --models A,B --board boards/S
  lnli submit fit --time 60 --conda nli --account law -- --data my.csv
"""


def main(argv: list[str]) -> int:
    """Run `lnli submit ARGV` and return its exit code.

    Raises:
        UserError: options contradict each other, or SLURM refuses the job.
    """
    place = argv.index("--") if "--" in argv else len(argv)
    own, rest = argv[:place], argv[place + 1 :]
    args = _parser().parse_args(own)
    from lightning_nli.launch.slurm import cancel, check_job, render_sbatch, submit

    specs = _jobs(args, rest)
    for spec in specs:
        check_job(spec)
    if args.dry_run:
        sys.stdout.write("\n".join(render_sbatch(spec) for spec in specs))
        return 0
    Path(args.logs).mkdir(parents=True, exist_ok=True)
    scripts = Path(args.logs) / "scripts"
    scripts.mkdir(exist_ok=True)
    first: str | None = None
    for spec in specs:
        script = scripts / f"{spec.name}-{os.getpid()}.sbatch"
        script.write_text(render_sbatch(spec if first is None else replace(spec, after=first)), encoding="utf-8")
        try:
            job = submit(script)
        except UserError:
            if first is not None:
                cancel(first)
            raise
        pattern = f"{spec.name}-{job}_*.out" if spec.array else f"{spec.name}-{job}.out"
        sys.stdout.write(
            f"job {job}: {script}\n  follow: tail -F {args.logs}/{pattern}   squeue -j {job}   scancel {job}\n"
        )
        first = first or job
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "lnli submit",
        usage="lnli submit fit|cross-domain [OPTIONS] -- ARGS",
        description="Write a batch script for SLURM and submit it.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("command", choices=COMMANDS, help="what the job runs")
    parser.add_argument("--time", required=True, help="limit: minutes, HH:MM:SS or D-HH:MM:SS")
    parser.add_argument("--nodes", type=int, default=1, help="machines (default 1)")
    parser.add_argument("--gpus-per-node", type=int, default=0, help="GPUs a machine, one process each (default 0)")
    parser.add_argument("--tasks-per-node", type=int, help="CPU processes a machine (default: as many as GPUs, else 1)")
    parser.add_argument("--cpus-per-task", type=int, default=4, help="cores a process (default 4)")
    parser.add_argument("--mem", help="memory a machine, as 64G")
    parser.add_argument("--partition", help="partition")
    parser.add_argument("--account", help="account to charge")
    parser.add_argument("--name", help="of the job (default: the command)")
    parser.add_argument("--array", type=int, metavar="N", help="cross-domain: N runners side by side")
    parser.add_argument("--venv", metavar="FOLDER", help="virtual environment (default: this one)")
    parser.add_argument("--conda", metavar="NAME", help="conda environment instead")
    parser.add_argument("--container", metavar="IMAGE", help="run inside an Apptainer image")
    parser.add_argument("--cache", default=os.environ.get("LNLI_CACHE"), help="LNLI_CACHE, seen by every node")
    parser.add_argument("--logs", default="logs", help="folder of log files (default logs)")
    parser.add_argument("--no-requeue", action="store_true", help="do not queue again what was stopped")
    parser.add_argument("--sbatch", action="append", default=[], metavar="OPTION", help="a further #SBATCH option")
    parser.add_argument("--dry-run", action="store_true", help="print the script, submit nothing")
    return parser


def _jobs(args: argparse.Namespace, rest: list[str]) -> list[JobSpec]:
    from lightning_nli.launch.slurm import JobSpec

    tasks = args.tasks_per_node or args.gpus_per_node or 1
    common = JobSpec(
        name=args.name or f"lnli-{args.command}",
        command=(),
        nodes=args.nodes,
        gpus_per_node=args.gpus_per_node,
        tasks_per_node=tasks,
        cpus_per_task=args.cpus_per_task,
        time=args.time,
        partition=args.partition,
        account=args.account,
        memory=args.mem,
        requeue=not args.no_requeue,
        prelude=_prelude(args),
        container=args.container,
        cache=args.cache,
        logs=args.logs,
        options=tuple(args.sbatch),
    )
    if args.command == "fit":
        if args.array:
            raise UserError("--array is for cross-domain: a run of `lnli fit` is one job")
        return [replace(common, command=("lnli", "fit", *_fit_arguments(rest, args.nodes, tasks)))]
    if args.nodes != 1 or tasks != 1:
        raise UserError("a cell of a board runs in one process: leave --nodes and --tasks-per-node at 1, use --array N")
    return _board_jobs(common, rest, args.array or 1)


def _fit_arguments(rest: list[str], nodes: int, tasks: int) -> list[str]:
    """The user's arguments with devices, nodes and resume filled in.

    Raises:
        UserError: they say something else than the job.
    """
    from lightning_nli.config import parse_config

    if "--dry-run" in rest:
        raise UserError("--dry-run belongs before the --: it prints the script and submits nothing")
    settings = [word for word in rest if word != "--quiet"]
    config = parse_config(settings)  # a mistake is told here, not after an hour in the queue
    given = {
        word.partition("=")[0].lstrip("-").rsplit(".", 1)[-1].replace("-", "_") for word in rest if word[:2] == "--"
    }
    for name, wanted in (("devices", tasks), ("num_nodes", nodes)):
        have = getattr(config.engine, name)
        if name in given and have != wanted:
            raise UserError(f"--{name.replace('_', '-')} {have} after --, but the job has {wanted}; leave it out")
    filled = [] if "devices" in given else ["--devices", str(tasks)]
    filled += [] if "num_nodes" in given else ["--num-nodes", str(nodes)]
    filled += [] if "resume" in given else ["--resume", "auto"]
    if tasks * nodes > 1 and config.engine.strategy == "auto":
        filled += ["--strategy", "ddp"]
    return [*rest, *filled]


def _board_jobs(common: JobSpec, rest: list[str], runners: int) -> list[JobSpec]:
    """An array of runners on a board, and the leaderboard once they have ended."""
    parser = argparse.ArgumentParser("lnli submit cross-domain -- ", add_help=False)
    parser.add_argument("--suite", type=Path, required=True)
    parser.add_argument("--models", required=True)
    parser.add_argument("--board", type=Path)
    known = parser.parse_args([word for word in rest if word != "run"])
    from lightning_nli.cli.cross_domain import board_folder, model_names
    from lightning_nli.crossdomain.runner import make_board
    from lightning_nli.crossdomain.suite import load_suite

    suite = load_suite(known.suite)
    folder = board_folder(known.board, suite)
    make_board(folder, suite).cells(model_names(known.models))  # a mistake is told here
    work = ("lnli", "cross-domain", "work", str(folder), "--models", known.models)
    page = ("lnli", "leaderboard", str(folder), "--html", str(folder / "board.html"), "--force")
    return [
        replace(common, command=work, array=f"0-{runners - 1}"),
        replace(common, name=f"{common.name}-board", command=page, gpus_per_node=0, requeue=False, time="30"),
    ]


def _prelude(args: argparse.Namespace) -> tuple[str, ...]:
    if args.conda and args.venv:
        raise UserError("--venv and --conda exclude each other")
    if args.conda:
        return ('eval "$(conda shell.bash hook)"', f"conda activate {shlex.quote(args.conda)}")
    if args.container:
        return ()
    return (f"source {shlex.quote(str(Path(args.venv or sys.prefix) / 'bin' / 'activate'))}",)
