"""`lnli cross-domain`: held-out domains, as one command that may be stopped and started again at any time."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from lightning_nli.cli.board_options import add_board_options, add_suite_options, asked_suite
from lightning_nli.cli.job_options import add_job_options
from lightning_nli.cli.logs import set_up_logging
from lightning_nli.types import DOMAINS

_EPILOG = """\
A suite (benchmarks/suites/*.yaml) says what is held out, what trains and under which recipe. A model is a name of the
suite's own list, a baseline (majority, hyponly-v1, overlap-v1), or an encoder as in `lnli fit --model`. A cell is one
training: a model, a fold, a seed. What has its record is not run again; several runners may work on one board.

examples:
  lnli cross-domain check --suite benchmarks/suites/sample-lodo.yaml
  lnli cross-domain plan --suite benchmarks/suites/vilegalnli-devtest-lodo.yaml --models e5-small,hyponly-v1
  lnli cross-domain run --suite benchmarks/suites/sample-lodo.yaml --models hyponly-v1,overlap-v1 --board boards/sample
  lnli cross-domain run --suite S.yaml --models e5-small --board boards/S --launcher ray --parallel 4
  lnli cross-domain run --suite S.yaml --models e5-small --launcher slurm --parallel 8 --gpus-per-node 1 --time 04:00:00
  lnli leaderboard boards/sample --html board.html

Exit codes: 0 done, 2 usage or bad input, 3 done, but cells failed (their records say why; --retry-failed), 75 told to
stop: what is finished is kept, a cell that was running starts anew, the same command goes on.
"""


def main(argv: list[str]) -> int:
    """Run `lnli cross-domain ARGV` and return its exit code.

    Raises:
        UserError: suite, models or board cannot be used.
    """
    args = _parser().parse_args(argv)
    set_up_logging(quiet=getattr(args, "quiet", False) or getattr(args, "json", False))
    if args.command == "check":
        return _check(args)
    from lightning_nli.cli.cross_domain_run import plan, run, work

    return {"plan": plan, "run": run, "work": work}[args.command](args)


def _parser() -> argparse.ArgumentParser:
    style = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        "lnli cross-domain", description="Train and test across fields of law.", epilog=_EPILOG, formatter_class=style
    )
    commands = parser.add_subparsers(dest="command", required=True)
    made = {
        name: commands.add_parser(name, help=text, description=text, epilog=_EPILOG, formatter_class=style)
        for name, text in {
            "check": "print what each fold tests and what it removed, and that nothing is shared (else exit code 2)",
            "plan": "print the cells that a run would train, and what that would cost",
            "run": "run every cell that has no record yet",
        }.items()
    }
    add_suite_options(made["check"])
    for name in ("plan", "run"):
        add_board_options(made[name])
        made[name].add_argument(
            "--like", type=Path, metavar="BOARD", help="plan: a board whose finished cells tell what models cost"
        )
    for name in ("check", "plan"):
        made[name].add_argument("--json", action="store_true", help="one JSON object instead of tables")
    _add_run_options(made["run"])
    work = commands.add_parser("work", help="one runner of a board that exists (launchers start these)")
    work.add_argument("board", type=Path)
    work.add_argument("--models", required=True)
    work.add_argument("--retry-failed", action="store_true")
    return parser


def _add_run_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--launcher", choices=("local", "ray", "slurm"), default="local", help="where runners start")
    parser.add_argument("--parallel", type=int, default=1, metavar="N", help="runners; cores are shared out")
    parser.add_argument("--ray-address", metavar="HOST:PORT", help="a Ray cluster; default: one on this machine")
    parser.add_argument("--retry-failed", action="store_true", help="run failed cells again")
    parser.add_argument(
        "--dry-run", action="store_true", help="the same as plan; with --launcher slurm, print the batch scripts"
    )
    parser.add_argument("--quiet", action="store_true", help="only warnings and the outcome")
    add_job_options(parser, "with --launcher slurm: a runner's job (--time is needed)")


def _check(args: argparse.Namespace) -> int:
    from lightning_nli.crossdomain.check import fold_problems, lacking_labels
    from lightning_nli.crossdomain.suite import build_folds, check_judge, load_pool
    from lightning_nli.training.result import Judge

    suite = asked_suite(args)
    pool = load_pool(suite)
    folds = build_folds(suite, pool)
    problems = [problem for fold in folds for problem in fold_problems(pool, fold)]
    report: dict[str, Any] = {
        "suite": suite.name,
        "version": suite.version,
        "fingerprint": pool.fingerprint,
        "verified": suite.fingerprint is not None,
        **check_judge(suite, Judge.of(pool.frame, pool.scheme)),
        "selection": suite.selection,
        "rows": pool.frame.height,
        "duplicates": pool.num_duplicates,
        "domains": [
            {"domain": s.domain, "rows": s.rows, "single": s.single_rows, "laws": s.laws, "core": s.is_core}
            for s in pool.domains
        ],
        "folds": [fold.as_dict() for fold in folds],
        "problems": problems,
        "warnings": [line for fold in folds for line in lacking_labels(pool, fold)],
    }
    if args.json:
        sys.stdout.write(json.dumps(report, ensure_ascii=False, indent=1) + "\n")
    else:
        _print_check(report)
    return 2 if problems else 0


def _print_check(report: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False, soft_wrap=True)
    verified = "as the suite says" if report["verified"] else "unverified"
    console.print(
        f"{report['suite']} version {report['version']}: {report['rows']} rows, {report['fingerprint']} ({verified})"
    )
    console.print(f"{report['duplicates']} duplicates were left out")
    console.print(f"swapped premises {report['swap_ids']}, hard rows {report['hard_ids']}")
    domains = Table("domain", "field of law", "rows", "only it", "laws", "core")
    for size in report["domains"]:
        name = size["domain"]
        row = (str(size["rows"]), str(size["single"]), str(size["laws"]), "yes" if size["core"] else "")
        domains.add_row(name, DOMAINS[name], *row)
    console.print(domains)
    if report["selection"] == "oracle":
        console.print("[bold red]selection oracle[/]: the tested rows choose the checkpoints, not id_val")
    folds = Table("fold", "train", "id_val", "test", "removed from training")
    for fold in report["folds"]:
        removed = ", ".join(f"{count} {reason}" for reason, count in fold["removed"].items() if count)
        choosing = "\n".join([str(fold["id_val"]), *fold["chosen_by"]])
        folds.add_row(fold["fold"], str(fold["train"]), choosing, str(fold["test"]), removed)
    console.print(folds)
    for warning in report["warnings"]:
        console.print(f"[yellow]a label is missing[/] {warning}")
    for problem in report["problems"]:
        console.print(f"[red]shared[/] {problem}", markup=True)
    if not report["problems"]:
        console.print(f"nothing is shared between training and test in {len(report['folds'])} folds")
