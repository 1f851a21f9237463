"""`lnli leaderboard`: the records of a board as a table, a file or a web page."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning_nli.cli.logs import set_up_logging
from lightning_nli.types import UserError

if TYPE_CHECKING:
    from lightning_nli.crossdomain.leaderboard import Leaderboard
    from lightning_nli.crossdomain.runner import Board

_EPILOG = """\
Columns, in this order: premise discrimination, random swap, premise gain, accuracy, macro-F1 (means over core domains,
with intervals by law), pooled accuracy, law effect, domain effect, worst domain, calibration error, cost. A missing
cell blanks what it would enter. Published figures stand apart and are never ranked with ours.

examples:
  lnli leaderboard boards/sample-lodo-1
  lnli leaderboard boards/sample-lodo-1 --html board.html
  lnli leaderboard boards/sample-lodo-1 --format markdown > board.md
  lnli leaderboard boards/here boards/there --format jsonl > records.jsonl
"""


def main(argv: list[str]) -> int:
    """Run `lnli leaderboard ARGV` and return its exit code.

    Raises:
        UserError: the folder holds no board, or a file is there already.
    """
    parser = argparse.ArgumentParser(
        "lnli leaderboard",
        description="Show what a board's models reach on held-out domains.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "board", type=Path, nargs="+", help="folder of `lnli cross-domain run`; several are parts of one board"
    )
    parser.add_argument(
        "--format",
        choices=("terminal", "markdown", "csv", "json", "jsonl"),
        default="terminal",
        help="of the standard output; jsonl: the records themselves, one a line",
    )
    parser.add_argument("--html", type=Path, metavar="FILE", help="also write one self-contained web page")
    parser.add_argument("--force", action="store_true", help="overwrite FILE")
    parser.add_argument("--no-published", action="store_true", help="leave the papers' figures out of the page")
    args = parser.parse_args(argv)
    set_up_logging(quiet=True)
    if args.html and args.html.exists() and not args.force:
        raise UserError(f"{args.html} is there already; --force overwrites it")
    from lightning_nli.crossdomain.leaderboard import build_leaderboard
    from lightning_nli.crossdomain.records import read_boards
    from lightning_nli.crossdomain.runner import reopen_board

    first, *parts = args.board
    board = reopen_board(first)
    made = build_leaderboard(board.folder, board.pool, board.folds, board.suite.seeds, parts=parts)
    if not made.rows:
        raise UserError(f"{', '.join(map(str, args.board))} has no finished cell yet")
    records = read_boards(args.board)
    _print(made, records, args.format)
    if args.html:
        _write_page(args, board, made, records)
    return 0


def _print(made: Leaderboard, records: Sequence[Mapping[str, Any]], form: str) -> None:
    from lightning_nli.crossdomain import render

    if form == "terminal":
        from rich.console import Console

        Console(highlight=False).print(render.board_table(made))
    elif form == "json":
        sys.stdout.write(json.dumps(render.board_json(made), ensure_ascii=False, indent=1, allow_nan=False) + "\n")
    elif form == "jsonl":
        for record in records:
            own = {name: value for name, value in record.items() if name != "home"}
            sys.stdout.write(json.dumps(own, allow_nan=False) + "\n")
    else:
        sys.stdout.write(render.board_markdown(made) if form == "markdown" else render.board_csv(made))


def _write_page(
    args: argparse.Namespace, board: Board, made: Leaderboard, records: Sequence[Mapping[str, Any]]
) -> None:
    from lightning_nli.crossdomain.page import board_page
    from lightning_nli.crossdomain.transfer import transfer_matrices
    from lightning_nli.published import published_figures

    is_theirs = any(source.startswith("vilegalnli") for source in board.suite.data)
    published = published_figures("vilegalnli") if is_theirs and not args.no_published else None
    transfers = transfer_matrices(records, board.suite.seeds)
    page = board_page(made, published=published, transfers=transfers)
    partial = args.html.with_name(f".{args.html.name}.{os.getpid()}")
    partial.write_text(page, encoding="utf-8")
    partial.replace(args.html)
