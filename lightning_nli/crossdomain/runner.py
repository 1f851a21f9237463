"""Runs the cells of a board: which are missing, one after another, each in a folder of its own until it is whole."""

from __future__ import annotations

import logging
import os
import shutil
import socket
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import polars as pl

from lightning_nli.crossdomain.folds import Fold
from lightning_nli.crossdomain.pool import Pool
from lightning_nli.crossdomain.records import (
    RECORD_SCHEMA,
    add_cell,
    is_done,
    lease,
    missing_cells,
    open_board,
    publish,
    read_board_suite,
    write_folds,
)
from lightning_nli.crossdomain.selection import choosing_ids
from lightning_nli.crossdomain.suite import Cell, Suite, build_folds, check_judge, check_suite, load_pool, plan_cells
from lightning_nli.data.identity import fingerprint
from lightning_nli.metrics import score
from lightning_nli.training.augment import augmented
from lightning_nli.training.corpora import VAL_NAME, RunData, segments_of
from lightning_nli.training.result import Judge
from lightning_nli.training.signals import REQUEST, Stopped
from lightning_nli.types import UserError

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Board:
    """A suite with its data, cut into folds, and the folder its records go to.

    Attributes:
        folder: Of the board.
        suite: What is run.
        pool: Its rows.
        folds: By name, in the suite's order.
    """

    folder: Path
    suite: Suite
    pool: Pool
    folds: dict[str, Fold]

    @cached_property
    def judge(self) -> Judge:
        """Swaps and hard rows, the same for every cell.

        Raises:
            UserError: they are not those that the suite names.
        """
        judge = Judge.of(self.pool.frame, self.pool.scheme)
        check_judge(self.suite, judge)
        return judge

    def cells(self, models: Sequence[str]) -> list[Cell]:
        return plan_cells(self.suite, self.pool, list(self.folds.values()), models)


def make_board(folder: Path, suite: Suite) -> Board:
    """Read the suite's data and open (or make) its folder.

    Raises:
        UserError: data, folds or folder do not fit the suite.
    """
    pool = load_pool(suite)
    folds = build_folds(suite, pool)
    open_board(folder, suite.key(pool), asdict(suite))
    return Board(folder, suite, pool, {fold.name: fold for fold in folds})


def reopen_board(folder: Path) -> Board:
    """The board of a folder, its data read again from the suite's sources.

    Raises:
        UserError: the folder holds no board, or the data changed.
    """
    stored = read_board_suite(folder)
    suite = check_suite(stored.suite, str(folder / "suite.json"))
    return make_board(folder, suite)


def run_cells(
    board: Board,
    cells: Sequence[Cell],
    *,
    retry_failed: bool = False,
    on_cell: Callable[[Cell, str], None] | None = None,
    poll_s: float = 5.0,
) -> int:
    """Run the cells that have no record; returns how many of them failed.

    Several runners may work on one board: a cell is run by one of them, and a runner ends when every cell has its
    record, whoever ran it. One that is told to stop gives the cell in its hands back; it is run anew from its start.

    Args:
        board: The board.
        cells: What to run, in order.
        retry_failed: Run failed cells again.
        on_cell: Told of a cell and `started`, `finished` or `failed`.
        poll_s: Seconds between looks at cells that another runner holds.

    Raises:
        UserError: swapped premises or hard rows are not those that the suite names.
        Stopped: a signal or the time limit ended a cell early (where signals are listened to).
    """
    write_folds(board.folder, [fold.as_dict() for fold in board.folds.values()])
    for cell in cells:
        add_cell(board.folder, cell)
    tell = on_cell or (lambda cell, status: None)
    by_id = {cell.cell_id: cell for cell in cells}
    tried: set[str] = set()
    failed = 0
    while True:
        missing = [i for i in missing_cells(board.folder, list(by_id), retry_failed=retry_failed) if i not in tried]
        if not missing:
            return failed
        ran = False
        for cell_id in missing:
            with lease(board.folder, cell_id) as is_ours:
                if not is_ours or is_done(board.folder, cell_id, retry_failed=retry_failed):
                    continue
                ran = True
                tried.add(cell_id)
                tell(by_id[cell_id], "started")
                status = run_cell(board, by_id[cell_id])
                failed += status == "failed"
                tell(by_id[cell_id], status)
        if not ran:
            time.sleep(poll_s)


def run_cell(board: Board, cell: Cell) -> str:
    """Run one cell and publish its record, `finished` or `failed`; what a killed runner left of it is thrown away.

    Raises:
        UserError: swapped premises or hard rows are not those that the suite names; it has no record.
        Stopped: a signal or the time limit ended it early; it has no record.
    """
    judge = board.judge
    home = board.folder / "cells" / cell.cell_id
    scratch = home / f"run-{socket.gethostname()}-{os.getpid()}"
    for stale in [*home.glob("run-*"), *home.glob(".predictions")]:
        shutil.rmtree(stale)
    started = time.perf_counter()
    REQUEST.started = time.monotonic()  # time limits are a cell's, not the runner's
    head = {
        "schema": RECORD_SCHEMA,
        "cell_id": cell.cell_id,
        "suite": board.suite.key(board.pool),
        "model": cell.model,
        "fold": cell.fold,
        "seed": cell.seed,
        "objective": cell.config.objective,
        "selection_method": board.suite.selection,
        "selection_domains": _choosing_domains(board, cell),
        "held_out": list(board.folds[cell.fold].held_out),
    }
    try:
        result = _train(board, cell, scratch, judge)
    except Stopped:
        raise
    except Exception as error:  # a failed cell is a record too; the others go on
        if REQUEST.reason is not None:  # a library answered the signal's exception with one of its own
            raise Stopped(REQUEST.reason) from error
        log.exception("cell %s (%s, %s, seed %d) failed", cell.cell_id, cell.model, cell.fold, cell.seed)
        reason = str(error) if isinstance(error, UserError) else "".join(traceback.format_exception_only(error)).strip()
        publish(board.folder, cell.cell_id, head | {"status": "failed", "error": reason}, None)
        return "failed"
    finally:
        kept = scratch / "predictions"
        if kept.exists():
            kept.rename(home / ".predictions")
        shutil.rmtree(scratch, ignore_errors=True)
    record = head | {"status": "finished", "wall_s": round(time.perf_counter() - started, 2), "result": result}
    record["domains"] = _domain_scores(board, cell, home / ".predictions")
    publish(board.folder, cell.cell_id, record, home / ".predictions")
    return "finished"


def _train(board: Board, cell: Cell, scratch: Path, judge: Judge) -> dict[str, Any]:
    from lightning_nli.training.run import train_on

    config = replace(cell.config, run_dir=str(scratch), resume="never")
    result = train_on(config, fold_data(board, cell), scratch, quiet=True, judge=judge)
    return {name: value for name, value in result.items() if name != "config"} | {"config": asdict(cell.config)}


def fold_data(board: Board, cell: Cell) -> RunData:
    """The rows of one cell: nothing of the tested rows is in what trains or, unless an oracle is asked for, chooses."""
    fold = board.folds[cell.fold]
    config, scheme = cell.config, board.pool.scheme
    published = rows_of(board.pool, fold.train)
    choosing = choosing_ids(fold, board.suite.selection)
    scored = {VAL_NAME: rows_of(board.pool, choosing)} if choosing else {}
    tests = {name: rows_of(board.pool, ids) for name, ids in fold.tests.items()}
    train = augmented(config, published, [*scored.values(), *tests.values()], scheme)
    rows = pl.concat([train, *scored.values(), *tests.values()])
    return RunData(
        train=train,
        scored=scored | tests,
        published_train=published,
        scheme=scheme,
        segments=segments_of(rows, config.segments),
        bad_rows=(),
        sources=board.suite.data,
        fingerprint=fingerprint(rows),
        duplicates={},
    )


def rows_of(pool: Pool, ids: Sequence[str]) -> pl.DataFrame:
    """Rows of the pool by id, in the order of the ids."""
    order = pl.DataFrame({"example_id": list(ids)}, schema={"example_id": pl.String})
    return order.join(pool.frame, on="example_id", how="left", maintain_order="left").select(pool.frame.columns)


def _choosing_domains(board: Board, cell: Cell) -> list[str]:
    """Domains of the rows that choose the checkpoint; none for a model that has no checkpoints to choose from."""
    if cell.config.method != "finetune":
        return []
    rows = board.pool.compared_rows(choosing_ids(board.folds[cell.fold], board.suite.selection))
    return sorted(rows["names"].explode().drop_nulls().unique())


def _domain_scores(board: Board, cell: Cell, predictions: Path) -> dict[str, Any]:
    """Scores of each domain among the tested rows: all its rows, and those whose only domain it is."""
    fold = board.folds[cell.fold]
    found: dict[str, Any] = {}
    domains = board.pool.frame.select("example_id", "domains")
    for name in fold.tests:
        table = pl.read_parquet(predictions / f"{name}.parquet").join(domains, on="example_id", how="left")
        for domain, rows in _by_domain(table):
            if fold.held_out and domain not in fold.held_out:
                continue
            single = rows.filter(pl.col("domains").list.len() == 1)
            found[domain] = _short_scores(rows, board) | {"single": _short_scores(single, board)}
    return found


def _by_domain(table: pl.DataFrame) -> Iterator[tuple[str, pl.DataFrame]]:
    for domain in table["domains"].explode().drop_nulls().cast(pl.String).unique().sort():
        yield domain, table.filter(pl.col("domains").list.contains(domain))


def _short_scores(rows: pl.DataFrame, board: Board) -> dict[str, Any]:
    if rows.is_empty():
        return {"num_examples": 0, "accuracy": None, "macro_f1": None}
    scores = score(rows, board.pool.scheme)
    return {"num_examples": scores.num_examples, "accuracy": scores.accuracy, "macro_f1": scores.macro_f1}
