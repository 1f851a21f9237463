"""`lnli consolidate`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from lightning_nli.cli.logs import set_up_logging, silence_libraries

_EPILOG = """\
examples:
  lnli consolidate runs/RUN weights.safetensors                        the best checkpoint of a run
  lnli consolidate runs/RUN weights.pt --checkpoint last
  lnli consolidate runs/RUN/checkpoints/step-00001200 weights.safetensors

A checkpoint of DeepSpeed is a folder with a part for each process. The file has all weights in fp32 under the names
of the Hugging Face model, every vocabulary row included, and is read back and compared before it gets its name.
`lnli export` writes a whole Hugging Face folder instead.
"""


def main(argv: list[str]) -> int:
    """Parse, consolidate, print what was written."""
    parser = argparse.ArgumentParser(
        prog="lnli consolidate", epilog=_EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("source", type=Path, metavar="RUN_OR_CHECKPOINT", help="run folder, or one of its checkpoints")
    parser.add_argument("output", type=Path, help="new file, .safetensors or .pt")
    parser.add_argument("--checkpoint", default="best", choices=("best", "last"), help="of a run folder (default best)")
    given = parser.parse_args(argv)
    set_up_logging()
    from lightning_nli.training.consolidate import consolidate

    silence_libraries()
    done = consolidate(given.source, given.output, choice=given.checkpoint)
    sys.stdout.write(
        f"{done.path}: {done.num_tensors} tensors, {done.num_parameters / 1e6:.1f}M parameters in fp32, from "
        f"{done.checkpoint.name}; read back: every tensor and all probe logits are the same\n"
    )
    return 0
