"""Options that several subcommands take."""

from __future__ import annotations

import argparse


def add_on_bad_row(parser: argparse.ArgumentParser) -> None:
    """Declare `--on-bad-row`."""
    parser.add_argument(
        "--on-bad-row",
        choices=["error", "drop"],
        default="error",
        help="unusable rows: fail (default) or leave them out",
    )
