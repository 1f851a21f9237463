"""`lnli submit`: any long command as a SLURM job."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import TYPE_CHECKING

from lightning_nli.cli.board_options import add_board_options
from lightning_nli.cli.cross_domain_run import submit_board
from lightning_nli.cli.job_options import add_job_options, job_spec, send_jobs
from lightning_nli.types import UserError

if TYPE_CHECKING:
    from lightning_nli.launch.slurm import JobSpec

SIMPLE = ("test", "predict", "analyze", "explain")
"""Commands of one process that save nothing in between."""
COMMANDS = ("fit", "tune", "cross-domain", *SIMPLE)

_EPILOG = """\
What follows -- is the command as it would be typed after `lnli fit`, `lnli tune`, `lnli cross-domain run` or one of the
others. Devices and nodes are filled in, and --resume, so that the first launch and every requeue are one command. A job
that is stopped (time limit, pre-emption) saves, leaves with code 75 and is queued again. `lnli stage` on the login node
fills the cache that compute nodes without internet read (--cache, a folder that every node sees).

examples:
  lnli submit fit --nodes 2 --gpus-per-node 8 --time 12:00:00 --partition gpu -- --config run.yaml --strategy deepspeed
  lnli submit fit --tasks-per-node 2 --time 30 --dry-run -- --data my.csv --strategy ddp
  lnli submit cross-domain --array 8 --gpus-per-node 1 --time 04:00:00 -- --suite S.yaml --models A,B --board boards/S
  lnli submit tune --nodes 2 --gpus-per-node 4 --cpus-per-task 32 --time 1-00:00:00 -- --config B.yaml \\
      --space S.yaml --tune-dir runs/tune/b --gpus-per-trial 1
  lnli submit predict --gpus-per-node 1 --time 120 -- runs/mine pairs.jsonl labels.jsonl
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
    common = job_spec(args, f"lnli-{args.command}", nodes=args.nodes, tasks_per_node=args.tasks_per_node)
    if args.command == "cross-domain":
        submit_board(common, _board_arguments(rest), runners=args.array or 1, dry_run=args.dry_run)
        return 0
    if args.array:
        raise UserError(f"--array is for cross-domain: `lnli {args.command}` is one job")
    make = {"fit": _fit_job, "tune": _tune_job}.get(args.command, _simple_job)
    send_jobs([make(common, args, rest)], dry_run=args.dry_run)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "lnli submit",
        usage="lnli submit COMMAND [OPTIONS] -- ARGS",
        description="Write a batch script for SLURM and submit it.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("command", choices=COMMANDS, help="what the job runs")
    parser.add_argument("--nodes", type=int, default=1, help="machines (default 1)")
    parser.add_argument("--tasks-per-node", type=int, help="CPU processes a machine (default: as many as GPUs, else 1)")
    parser.add_argument("--array", type=int, metavar="N", help="cross-domain: N runners side by side")
    add_job_options(parser, "the job (--time is needed)")
    parser.add_argument("--dry-run", action="store_true", help="print the script, submit nothing")
    return parser


def _fit_job(common: JobSpec, args: argparse.Namespace, rest: list[str]) -> JobSpec:
    return replace(common, command=("lnli", "fit", *_fit_arguments(rest, common.nodes, common.tasks_per_node)))


def _tune_job(common: JobSpec, args: argparse.Namespace, rest: list[str]) -> JobSpec:
    """One task a node, which starts Ray there; the GPUs of a node are Ray's to share out.

    Raises:
        UserError: several tasks a node, or no folder that a requeued job would find again.
    """
    if args.tasks_per_node not in (None, 1):
        raise UserError(f"--tasks-per-node {args.tasks_per_node}: a sweep has one task a node; leave it out")
    if not any(word.partition("=")[0] == "--tune-dir" for word in rest):
        raise UserError("a sweep in a job needs its folder after the --: --tune-dir DIR, or a requeue would begin anew")
    resume = [] if "--resume" in rest else ["--resume"]
    gpus = (f"--gres=gpu:{common.gpus_per_node}",) if common.gpus_per_node else ()
    return replace(
        common,
        command=("python", "-m", "lightning_nli.launch.ray_node", "lnli", "tune", *resume, *rest),
        gpus_per_node=0,
        tasks_per_node=1,
        options=(*gpus, *common.options),
    )


def _simple_job(common: JobSpec, args: argparse.Namespace, rest: list[str]) -> JobSpec:
    if args.nodes > 1 or common.tasks_per_node > 1:
        raise UserError(
            f"`lnli {args.command}` is one process: leave --nodes and --tasks-per-node out, one GPU at most"
        )
    return replace(common, command=("lnli", args.command, *rest))


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


def _board_arguments(rest: list[str]) -> argparse.Namespace:
    """What `lnli cross-domain run` would be told."""
    parser = argparse.ArgumentParser("lnli submit cross-domain -- ", add_help=False)
    add_board_options(parser)
    parser.add_argument("--retry-failed", action="store_true")
    return parser.parse_args([word for word in rest if word != "run"])
