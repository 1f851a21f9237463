"""`lnli leaderboard`: the records of a board as a table, a file or a web page."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

from lightning_nli.cli.logs import set_up_logging
from lightning_nli.types import UserError

_EPILOG = """\
Columns, in this order: premise discrimination, random swap, premise gain, accuracy, macro-F1 (means over core domains,
with intervals by law), pooled accuracy, law effect, domain effect, worst domain, calibration error, cost. A missing
cell blanks what it would enter. Published figures stand apart and are never ranked with ours.

examples:
  lnli leaderboard boards/sample-lodo-1
  lnli leaderboard boards/sample-lodo-1 --html board.html
  lnli leaderboard boards/sample-lodo-1 --format markdown > board.md
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
    parser.add_argument("board", type=Path, help="folder of `lnli cross-domain run`")
    parser.add_argument(
        "--format", choices=("terminal", "markdown", "csv", "json"), default="terminal", help="of the standard output"
    )
    parser.add_argument("--html", type=Path, metavar="FILE", help="also write one self-contained web page")
    parser.add_argument("--force", action="store_true", help="overwrite FILE")
    parser.add_argument("--no-published", action="store_true", help="leave the papers' figures out of the page")
    args = parser.parse_args(argv)
    set_up_logging(quiet=True)
    if args.html and args.html.exists() and not args.force:
        raise UserError(f"{args.html} is there already; --force overwrites it")
    from lightning_nli.crossdomain import render
    from lightning_nli.crossdomain.leaderboard import build_leaderboard
    from lightning_nli.crossdomain.runner import reopen_board

    board = reopen_board(args.board)
    made = build_leaderboard(board.folder, board.pool, board.folds, board.suite.seeds)
    if not made.rows:
        raise UserError(f"{args.board} has no finished cell yet")
    if args.format == "terminal":
        from rich.console import Console

        Console(highlight=False).print(render.board_table(made))
    elif args.format == "json":
        sys.stdout.write(json.dumps(render.board_json(made), ensure_ascii=False, indent=1, allow_nan=False) + "\n")
    else:
        sys.stdout.write(render.board_markdown(made) if args.format == "markdown" else render.board_csv(made))
    if args.html:
        from lightning_nli.crossdomain.page import board_page
        from lightning_nli.crossdomain.records import read_records
        from lightning_nli.crossdomain.transfer import transfer_matrices
        from lightning_nli.published import published_figures

        is_theirs = any(source.startswith("vilegalnli") for source in board.suite.data)
        published = published_figures("vilegalnli") if is_theirs and not args.no_published else None
        transfers = transfer_matrices(read_records(board.folder), board.suite.seeds)
        page = board_page(made, published=published, transfers=transfers)
        partial = args.html.with_name(f".{args.html.name}.{os.getpid()}")
        partial.write_text(page, encoding="utf-8")
        partial.replace(args.html)
    return 0
