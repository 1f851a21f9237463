"""What `lnli cross-domain plan, run, work` do: cells counted, run here, in several processes, on Ray or by SLURM."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning_nli.cli.board_options import asked_board, asked_models, asked_suite
from lightning_nli.cli.job_options import given_job_options, job_spec, send_jobs
from lightning_nli.cli.logs import silence_libraries
from lightning_nli.types import UserError

if TYPE_CHECKING:
    from lightning_nli.crossdomain.cost import ModelCost
    from lightning_nli.crossdomain.folds import Fold
    from lightning_nli.crossdomain.pool import Pool
    from lightning_nli.crossdomain.runner import Board
    from lightning_nli.crossdomain.suite import Cell, Suite
    from lightning_nli.launch.slurm import JobSpec

EXIT_FAILED_CELLS = 3
_FAILED_SHOWN = 10


@dataclass(frozen=True)
class _Asked:
    """What the options come to, before any folder is made."""

    suite: Suite
    pool: Pool
    folds: dict[str, Fold]
    models: list[str]
    cells: list[Cell]
    board: Path


def _asked(args: argparse.Namespace) -> _Asked:
    from lightning_nli.crossdomain.suite import build_folds, load_pool, plan_cells

    models, suite = asked_models(args), asked_suite(args)
    pool = load_pool(suite)
    folds = {fold.name: fold for fold in build_folds(suite, pool)}
    cells = plan_cells(suite, pool, list(folds.values()), models)
    return _Asked(suite, pool, folds, models, cells, asked_board(args, suite))


def plan(args: argparse.Namespace) -> int:
    """Print what is left to run and what it would cost, as far as finished cells tell."""
    asked = _asked(args)
    costs, source = _costs(asked, args.like)
    if getattr(args, "json", False):
        models = [asdict(cost) for cost in costs]
        found = {"suite": asked.suite.name, "selection": asked.suite.selection, "cells": len(asked.cells)}
        sys.stdout.write(json.dumps(found | {"measured_on": source, "models": models}, indent=1) + "\n")
        return 0
    _print_costs(asked, costs, source)
    return 0


def _costs(asked: _Asked, like: Path | None) -> tuple[list[ModelCost], str | None]:
    """Costs, and the board whose finished cells they are measured on; none where no model has one."""
    from lightning_nli.crossdomain.cost import measured_speeds, plan_costs
    from lightning_nli.crossdomain.records import open_board, read_records

    own: list[dict[str, Any]] = []
    if (asked.board / "suite.json").exists():
        open_board(asked.board, asked.suite.key(asked.pool), asdict(asked.suite))  # refuses that of another suite
        own = read_records(asked.board)
    speeds = measured_speeds(own if like is None else read_records(like))
    finished = [record["cell_id"] for record in own if record["status"] == "finished"]
    costs = plan_costs(
        asked.pool, asked.folds, asked.cells, selection=asked.suite.selection, finished=finished, speeds=speeds
    )
    return costs, str(like or asked.board) if any(cost.speed for cost in costs) else None


def _print_costs(asked: _Asked, costs: Sequence[ModelCost], source: str | None) -> None:
    from rich.console import Console
    from rich.table import Table

    from lightning_nli.crossdomain.board_text import duration
    from lightning_nli.crossdomain.cost import UNKNOWN

    title = f"{asked.suite.name}: {len(asked.cells)} cells, selection {asked.suite.selection}"
    table = Table("model", "cells", "finished", "rows to train\n(x epochs)", "rows to score", title=title)
    for cost in costs:
        counts = (cost.cells, cost.finished, cost.training_rows, cost.scored_rows)
        table.add_row(cost.model, *map(str, counts))
    console = Console(highlight=False, soft_wrap=True, markup=False)
    console.print(table)
    for cost in costs:
        if cost.finished == cost.cells:
            time = "nothing is left"
        elif cost.speed is None or cost.seconds is None:
            time = UNKNOWN
        else:
            count = cost.speed.cells
            time = f"about {duration(cost.seconds)} of one runner"
            time += f" (from {count} finished cell{'s' if count > 1 else ''} of {source})"
        console.print(f"{cost.model}: {time}")


def run(args: argparse.Namespace) -> int:
    """Run what has no record, where `--launcher` says.

    Raises:
        UserError: options contradict each other, or a runner cannot start.
    """
    _check_run(args)
    if args.launcher == "slurm":
        submit_board(job_spec(args, "lnli-cross-domain"), args, runners=args.parallel, dry_run=args.dry_run)
        return 0
    if args.dry_run:
        return plan(args)
    from lightning_nli.crossdomain.records import missing_cells
    from lightning_nli.crossdomain.runner import make_board

    models, suite = asked_models(args), asked_suite(args)
    board = make_board(asked_board(args, suite), suite)
    cells = board.cells(models)
    ids = [cell.cell_id for cell in cells]
    missing = missing_cells(board.folder, ids, retry_failed=args.retry_failed)
    _say(f"{board.folder}: {len(missing)} of {len(cells)} cells to run", quiet=args.quiet)
    if missing and (code := _stoppable(lambda: _launch(args, board, models, cells))):
        return code
    return _outcome(board, ids)


def _check_run(args: argparse.Namespace) -> None:
    if args.parallel < 1:
        raise UserError(f"--parallel must be at least 1, got {args.parallel}")
    if args.ray_address and args.launcher != "ray":
        raise UserError(f"--ray-address is for --launcher ray, not for {args.launcher}")
    if args.like and not args.dry_run:
        raise UserError("--like is for a plan: add --dry-run")
    given = given_job_options(args)
    if given and args.launcher != "slurm":
        raise UserError(f"{', '.join(given)} describe a SLURM job; add --launcher slurm, or leave them out")


def submit_board(common: JobSpec, args: argparse.Namespace, *, runners: int, dry_run: bool) -> None:
    """Submit an array of runners on a board and its leaderboard, or print their scripts.

    Args:
        common: Resources of a runner.
        args: Suite, models, board, `--retry-failed`.
        runners: How many.
        dry_run: Print the scripts, make no folder and submit nothing.

    Raises:
        UserError: suite, models, board or job cannot be used.
    """
    from lightning_nli.crossdomain.records import add_cell, missing_cells, open_board
    from lightning_nli.launch.board import board_jobs

    asked = _asked(args)  # a mistake is told here, not after an hour in the queue
    jobs = board_jobs(common, asked.board, asked.models, runners=runners, retry_failed=args.retry_failed)
    if dry_run:
        send_jobs(jobs, dry_run=True)
        return
    open_board(asked.board, asked.suite.key(asked.pool), asdict(asked.suite))
    for cell in asked.cells:
        add_cell(asked.board, cell)
    ids = [cell.cell_id for cell in asked.cells]
    missing = missing_cells(asked.board, ids, retry_failed=args.retry_failed)
    _say(f"{asked.board}: {len(missing)} of {len(ids)} cells to run", quiet=False)
    if missing:
        send_jobs(jobs, dry_run=False)
        _say(
            f"when they have ended: {asked.board / 'board.html'}; until then: lnli leaderboard {asked.board}",
            quiet=False,
        )


def _launch(args: argparse.Namespace, board: Board, models: Sequence[str], cells: Sequence[Cell]) -> None:
    from lightning_nli.cli.board_progress import board_progress
    from lightning_nli.crossdomain.launch import run_local, run_on_ray
    from lightning_nli.crossdomain.runner import run_cells

    again: dict[str, Any] = {"retry_failed": args.retry_failed}
    with board_progress(board.folder, cells, quiet=args.quiet):
        if args.launcher == "ray":
            run_on_ray(board.folder, models, parallel=args.parallel, address=args.ray_address, **again)
        elif args.parallel > 1:
            run_local(board.folder, models, parallel=args.parallel, **again)
        else:
            silence_libraries()
            run_cells(board, cells, **again)


def _outcome(board: Board, ids: Sequence[str]) -> int:
    from lightning_nli.crossdomain.records import read_records

    wanted = set(ids)
    failed = [
        record for record in read_records(board.folder) if record["status"] == "failed" and record["cell_id"] in wanted
    ]
    for record in failed[:_FAILED_SHOWN]:
        sys.stderr.write(f"failed: {record['model']}, {record['fold']}, seed {record['seed']}: {record['error']}\n")
    _say(f"{len(ids) - len(failed)} of {len(ids)} cells are finished; lnli leaderboard {board.folder}", quiet=False)
    return EXIT_FAILED_CELLS if failed else 0


def work(args: argparse.Namespace) -> int:
    """One runner: take cells of a board until none is missing."""
    from lightning_nli.crossdomain.runner import reopen_board, run_cells

    failed = 0

    def take_cells() -> None:
        nonlocal failed
        board = reopen_board(args.board)
        silence_libraries()
        failed = run_cells(board, board.cells(asked_models(args)), retry_failed=args.retry_failed)

    return _stoppable(take_cells) or (EXIT_FAILED_CELLS if failed else 0)


def _stoppable(function: Any) -> int:
    """Run it; 75 if a signal or the time limit ended it early, else 0."""
    from lightning_nli.cli.main import EXIT_SAVED
    from lightning_nli.training.signals import Stopped, listening

    try:
        with listening():
            function()
    except Stopped as stopped:
        sys.stderr.write(f"lnli: stopped ({stopped}); finished cells are kept: the same command goes on\n")
        return EXIT_SAVED
    return 0


def _say(line: str, *, quiet: bool) -> None:
    if not quiet:
        sys.stdout.write(line + "\n")
