"""`python -m lightning_nli.published [MEASURED.csv]`: the published tables as Markdown on standard output."""

from __future__ import annotations

import sys
from pathlib import Path

from lightning_nli.published.page import published_page
from lightning_nli.types import UserError


def main(arguments: list[str]) -> int:
    """Write the page; code 2 and a line on standard error where the file of measured figures is at fault."""
    try:
        sys.stdout.write(published_page(Path(arguments[0]) if arguments else None))
    except UserError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
