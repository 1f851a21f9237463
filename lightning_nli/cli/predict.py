"""`lnli predict`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from lightning_nli.cli.logs import set_up_logging, silence_libraries

_EPILOG = """\
examples:
  lnli predict runs/RUN pairs.jsonl labels.jsonl
  lnli predict runs/RUN pairs.csv labels.csv --devices 2
  cat pairs.jsonl | lnli predict runs/RUN - - > labels.jsonl

Input: .jsonl .csv .tsv .parquet .xlsx with columns premise and hypothesis (and condition, where the model reads one).
Output: every input column as it was, then `predicted` and one `prob_LABEL` a label, in input order.
"""


def main(argv: list[str]) -> int:
    """Parse, label, say how many."""
    parser = argparse.ArgumentParser(
        prog="lnli predict", epilog=_EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path, help="run folder")
    parser.add_argument("input", help="file of pairs, or - for JSON lines on standard input")
    parser.add_argument("output", help=".jsonl, .csv or .tsv file, or - for JSON lines on standard output")
    parser.add_argument("--checkpoint", default="best", metavar="best|last|PATH", help="which weights (default best)")
    parser.add_argument("--precision", choices=("fp32", "bf16"), help="other than the run's own")
    parser.add_argument("--devices", type=int, default=1, metavar="N", help="processes (default 1)")
    parser.add_argument("--chunk-rows", type=int, default=2_000, metavar="N", help="rows in flight (default 2000)")
    parser.add_argument(
        "--on-bad-row", choices=("error", "null"), default="error", help="a row with an empty text (default error)"
    )
    parser.add_argument("--force", action="store_true", help="replace an existing output file")
    parser.add_argument("--quiet", action="store_true", help="no progress")
    given = parser.parse_args(argv)
    for name in ("devices", "chunk_rows"):
        if getattr(given, name) < 1:
            parser.error(f"--{name.replace('_', '-')} must be at least 1")
    set_up_logging(quiet=given.quiet)
    from lightning_nli.training.predict import PredictRequest, predict_file

    silence_libraries()
    request = PredictRequest(
        run=given.run,
        source=None if given.input == "-" else Path(given.input),
        target=None if given.output == "-" else Path(given.output),
        checkpoint=given.checkpoint,
        precision=given.precision,
        devices=given.devices,
        chunk_rows=given.chunk_rows,
        keep_unusable=given.on_bad_row == "null",
        overwrite=given.force,
    )
    if given.quiet:
        rows = predict_file(request)
    else:
        from rich.console import Console
        from rich.progress import Progress, TextColumn, TimeElapsedColumn

        columns = (TextColumn("labelled {task.completed:,.0f} rows"), TimeElapsedColumn())
        with Progress(*columns, console=Console(stderr=True)) as bar:
            task = bar.add_task("predict", total=None)
            rows = predict_file(request, lambda done: bar.update(task, completed=done))
    sys.stderr.write(f"{rows} rows labelled\n")
    return 0
