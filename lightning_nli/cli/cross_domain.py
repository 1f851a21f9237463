"""`lnli cross-domain`: held-out domains, as one command that may be stopped and started again at any time."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning_nli.cli.logs import set_up_logging, silence_libraries
from lightning_nli.types import DOMAINS, UserError

if TYPE_CHECKING:
    from lightning_nli.crossdomain.runner import Board
    from lightning_nli.crossdomain.suite import Suite

EXIT_FAILED_CELLS = 3

_EPILOG = """\
A suite (benchmarks/suites/*.yaml) says what is held out, what trains and under which recipe. A model is a name of the
suite's own list, a baseline (majority, hyponly-v1, overlap-v1), or an encoder as in `lnli fit --model`. A cell is one
training: a model, a fold, a seed. What has its record is not run again; several runners may work on one board.

examples:
  lnli cross-domain check --suite benchmarks/suites/sample-lodo.yaml
  lnli cross-domain plan --suite benchmarks/suites/vilegalnli-devtest-lodo.yaml --models e5-small,hyponly-v1
  lnli cross-domain run --suite benchmarks/suites/sample-lodo.yaml --models hyponly-v1,overlap-v1 --board boards/sample
  lnli cross-domain run --suite S.yaml --models e5-small --board boards/S --launcher ray --parallel 4
  lnli leaderboard boards/sample --html board.html

Exit codes: 0 done, 2 usage or bad input, 3 done, but cells failed (their records say why; --retry-failed).
"""


def main(argv: list[str]) -> int:
    """Run `lnli cross-domain ARGV` and return its exit code.

    Raises:
        UserError: suite, models or board cannot be used.
    """
    args = _parser().parse_args(argv)
    set_up_logging(quiet=getattr(args, "quiet", False) or getattr(args, "json", False))
    commands = {"check": _check, "plan": _plan, "run": _run, "work": _work}
    return commands[args.command](args)


def _parser() -> argparse.ArgumentParser:
    style = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        "lnli cross-domain", description="Train and test across fields of law.", epilog=_EPILOG, formatter_class=style
    )
    commands = parser.add_subparsers(dest="command", required=True)
    for name, text in {
        "check": "print what each fold tests and what it removed, and that nothing is shared (else exit code 2)",
        "plan": "print the cells that a run would train",
        "run": "run every cell that has no record yet",
    }.items():
        one = commands.add_parser(name, help=text, description=text, epilog=_EPILOG, formatter_class=style)
        one.add_argument("--suite", type=Path, required=True, metavar="FILE", help="suite file")
        if name != "check":
            one.add_argument("--models", required=True, metavar="A,B,...", help="models to run")
            one.add_argument("--board", type=Path, metavar="FOLDER", help="default: boards/SUITE-VERSION")
        if name == "run":
            one.add_argument("--launcher", choices=("local", "ray"), default="local", help="where runners start")
            one.add_argument("--parallel", type=int, default=1, metavar="N", help="runners; cores are shared out")
            one.add_argument("--ray-address", metavar="HOST:PORT", help="a Ray cluster; default: one on this machine")
            one.add_argument("--retry-failed", action="store_true", help="run failed cells again")
            one.add_argument("--dry-run", action="store_true", help="the same as plan")
            one.add_argument("--quiet", action="store_true", help="only warnings and the outcome")
        else:
            one.add_argument("--json", action="store_true", help="one JSON object instead of tables")
    work = commands.add_parser("work", help="one runner of a board that exists (launchers start these)")
    work.add_argument("board", type=Path)
    work.add_argument("--models", required=True)
    work.add_argument("--retry-failed", action="store_true")
    return parser


def model_names(text: str) -> list[str]:
    """Names in `--models A,B`.

    Raises:
        UserError: there is none, or one twice.
    """
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names or len(set(names)) != len(names):
        raise UserError(f"--models '{text}': name each model once, separated by commas")
    return names


def board_folder(given: Path | None, suite: Suite) -> Path:
    """Where a suite's board lives."""
    return given or Path("boards") / f"{suite.name}-{suite.version}"


def _board(args: argparse.Namespace) -> Board:
    from lightning_nli.crossdomain.runner import make_board
    from lightning_nli.crossdomain.suite import load_suite

    suite = load_suite(args.suite)
    return make_board(board_folder(args.board, suite), suite)


def _check(args: argparse.Namespace) -> int:
    from lightning_nli.crossdomain.check import fold_problems
    from lightning_nli.crossdomain.suite import build_folds, load_pool, load_suite

    suite = load_suite(args.suite)
    pool = load_pool(suite)
    folds = build_folds(suite, pool)
    problems = [problem for fold in folds for problem in fold_problems(pool, fold)]
    report: dict[str, Any] = {
        "suite": suite.name,
        "version": suite.version,
        "fingerprint": pool.fingerprint,
        "verified": suite.fingerprint is not None,
        "rows": pool.frame.height,
        "duplicates": pool.num_duplicates,
        "domains": [
            {"domain": s.domain, "rows": s.rows, "single": s.single_rows, "laws": s.laws, "core": s.is_core}
            for s in pool.domains
        ],
        "folds": [
            {
                "fold": fold.name,
                "train": len(fold.train),
                "id_val": len(fold.id_val),
                "test": len(fold.test),
                "removed": {reason.value: len(ids) for reason, ids in fold.removed.items()},
            }
            for fold in folds
        ],
        "problems": problems,
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
    domains = Table("domain", "field of law", "rows", "only it", "laws", "core")
    for size in report["domains"]:
        name = size["domain"]
        row = (str(size["rows"]), str(size["single"]), str(size["laws"]), "yes" if size["core"] else "")
        domains.add_row(name, DOMAINS[name], *row)
    console.print(domains)
    folds = Table("fold", "train", "id_val", "test", "removed from training")
    for fold in report["folds"]:
        removed = ", ".join(f"{count} {reason}" for reason, count in fold["removed"].items() if count)
        folds.add_row(fold["fold"], str(fold["train"]), str(fold["id_val"]), str(fold["test"]), removed)
    console.print(folds)
    for problem in report["problems"]:
        console.print(f"[red]shared[/] {problem}", markup=True)
    if not report["problems"]:
        console.print(f"nothing is shared between training and test in {len(report['folds'])} folds")


def _plan(args: argparse.Namespace) -> int:
    from lightning_nli.crossdomain.suite import build_folds, load_pool, load_suite, plan_cells

    suite = load_suite(args.suite)
    pool = load_pool(suite)
    folds = {fold.name: fold for fold in build_folds(suite, pool)}
    cells = plan_cells(suite, pool, list(folds.values()), model_names(args.models))
    rows: list[dict[str, Any]] = [
        {
            "model": model,
            "cells": sum(cell.model == model for cell in cells),
            "training_rows": sum(
                len(folds[cell.fold].train) * cell.config.optim.epochs for cell in cells if cell.model == model
            ),
            "test_rows": sum(len(folds[cell.fold].test) for cell in cells if cell.model == model),
        }
        for model in dict.fromkeys(cell.model for cell in cells)
    ]
    if getattr(args, "json", False):
        sys.stdout.write(json.dumps({"suite": suite.name, "cells": len(cells), "models": rows}, indent=1) + "\n")
        return 0
    from rich.console import Console
    from rich.table import Table

    table = Table("model", "cells", "training rows x epochs", "test rows", title=f"{suite.name}: {len(cells)} cells")
    for row in rows:
        table.add_row(row["model"], str(row["cells"]), str(row["training_rows"]), str(row["test_rows"]))
    Console(highlight=False).print(table)
    return 0


def _run(args: argparse.Namespace) -> int:
    if args.dry_run:
        return _plan(args)
    if args.parallel < 1:
        raise UserError(f"--parallel must be at least 1, got {args.parallel}")
    from lightning_nli.crossdomain.launch import run_local, run_on_ray
    from lightning_nli.crossdomain.records import missing_cells

    models = model_names(args.models)
    board = _board(args)
    cells = board.cells(models)
    ids = [cell.cell_id for cell in cells]
    missing = missing_cells(board.folder, ids, retry_failed=args.retry_failed)
    _say(f"{board.folder}: {len(missing)} of {len(cells)} cells to run", quiet=args.quiet)
    if missing and args.launcher == "ray":
        run_on_ray(
            board.folder, models, parallel=args.parallel, address=args.ray_address, retry_failed=args.retry_failed
        )
    elif missing and args.parallel > 1:
        _with_progress(
            lambda tell: run_local(
                board.folder, models, ids, parallel=args.parallel, retry_failed=args.retry_failed, on_progress=tell
            ),
            len(cells),
            quiet=args.quiet,
        )
    elif missing:
        _run_here(board, cells, retry_failed=args.retry_failed, quiet=args.quiet)
    return _outcome(board, ids)


def _outcome(board: Board, ids: Sequence[str]) -> int:
    from lightning_nli.crossdomain.records import read_records

    wanted = set(ids)
    failed = [
        record for record in read_records(board.folder) if record["status"] == "failed" and record["cell_id"] in wanted
    ]
    for record in failed[:10]:
        sys.stderr.write(f"failed: {record['model']}, {record['fold']}, seed {record['seed']}: {record['error']}\n")
    _say(f"{len(ids) - len(failed)} of {len(ids)} cells are finished; lnli leaderboard {board.folder}", quiet=False)
    return EXIT_FAILED_CELLS if failed else 0


def _run_here(board: Board, cells: Sequence[Any], *, retry_failed: bool, quiet: bool) -> None:
    from lightning_nli.crossdomain.runner import run_cells

    silence_libraries()
    done = 0

    def work(tell: Any) -> None:
        def told(cell: Any, status: str) -> None:
            nonlocal done
            done += status != "started"
            tell(done)

        run_cells(board, cells, retry_failed=retry_failed, on_cell=told)

    _with_progress(work, len(cells), quiet=quiet)


def _with_progress(work: Any, total: int, *, quiet: bool) -> None:
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (TextColumn("cells"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, disable=quiet or not sys.stderr.isatty()) as progress:
        task = progress.add_task("cells", total=total)
        work(lambda done: progress.update(task, completed=done))


def _work(args: argparse.Namespace) -> int:
    from lightning_nli.crossdomain.runner import reopen_board, run_cells

    board = reopen_board(args.board)
    silence_libraries()
    failed = run_cells(board, board.cells(model_names(args.models)), retry_failed=args.retry_failed)
    return EXIT_FAILED_CELLS if failed else 0


def _say(line: str, *, quiet: bool) -> None:
    if not quiet:
        sys.stdout.write(line + "\n")
