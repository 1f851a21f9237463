"""`lnli export`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from lightning_nli.cli.logs import set_up_logging, silence_libraries

_EPILOG = """\
examples:
  lnli export runs/RUN model/

  from transformers import pipeline
  classify = pipeline("text-classification", "model/")
  classify({"text": premise, "text_pair": hypothesis}, truncation=True)
"""


def main(argv: list[str]) -> int:
    """Parse, export, print the folder."""
    parser = argparse.ArgumentParser(
        prog="lnli export", epilog=_EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path, help="run folder")
    parser.add_argument("output", type=Path, help="new folder")
    parser.add_argument("--checkpoint", default="best", metavar="best|last|PATH", help="which weights (default best)")
    given = parser.parse_args(argv)
    set_up_logging()
    from lightning_nli.training.export import export_run

    silence_libraries()
    sys.stdout.write(f"exported to {export_run(given.run, given.output, checkpoint=given.checkpoint)}\n")
    return 0
