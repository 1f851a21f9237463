"""Options that name a suite, its models and its board; what `lnli cross-domain` and `lnli submit` share."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from lightning_nli.types import UserError

if TYPE_CHECKING:
    from lightning_nli.crossdomain.suite import Suite


def add_suite_options(parser: argparse.ArgumentParser) -> None:
    """Declare `--suite` and `--selection`."""
    parser.add_argument("--suite", type=Path, required=True, metavar="FILE", help="suite file")
    parser.add_argument(
        "--selection",
        metavar="HOW",
        help="what chooses checkpoints, instead of the suite's own: id_val, last, leave_one_out, or oracle (the tested "
        "rows: shown apart, never ranked); its board is another one",
    )


def add_board_options(parser: argparse.ArgumentParser) -> None:
    """Declare `--suite`, `--selection`, `--models` and `--board`."""
    add_suite_options(parser)
    parser.add_argument("--models", required=True, metavar="A,B,...", help="models to run")
    parser.add_argument("--board", type=Path, metavar="FOLDER", help="default: boards/SUITE-VERSION")


def asked_suite(args: argparse.Namespace) -> Suite:
    """The suite of `--suite`, under `--selection` where it is given.

    Raises:
        UserError: the suite or the selection cannot be used.
    """
    from lightning_nli.crossdomain.suite import check_selection, load_suite

    suite = load_suite(args.suite)
    if args.selection is None:
        return suite
    suite = replace(suite, selection=args.selection)
    check_selection(suite, f"--selection {args.selection}")
    return suite


def asked_models(args: argparse.Namespace) -> list[str]:
    """Names in `--models A,B`.

    Raises:
        UserError: there is none, or one twice.
    """
    names = [name.strip() for name in args.models.split(",") if name.strip()]
    if not names or len(set(names)) != len(names):
        raise UserError(f"--models '{args.models}': name each model once, separated by commas")
    return names


def asked_board(args: argparse.Namespace, suite: Suite) -> Path:
    """Where a suite's board lives: `--board`, else a folder of its own under `boards`."""
    if args.board is not None:
        return Path(args.board)
    selection = "" if suite.selection == "id_val" else f"-{suite.selection}"
    return Path("boards") / f"{suite.name}-{suite.version}{selection}"
