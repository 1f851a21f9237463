"""`lnli explain`."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from lightning_nli.cli.logs import set_up_logging, silence_libraries

if TYPE_CHECKING:
    import polars as pl

    from lightning_nli.config import ExperimentConfig
    from lightning_nli.explain.report import Report
    from lightning_nli.types import LabelScheme

_DEFAULT_OUT = Path("explanation")

_EPILOG = """\
examples:
  lnli explain runs/RUN                                        the first rows of the run's test set
  lnli explain runs/RUN --data my.csv --ids 17 42 --num-samples 5000 --out why
  lnli explain runs/RUN --data sample#test --limit 50 --label entailment --json > why.json

OUT gets explanations.html (one file, opens anywhere) and explanations.json (every word's weight). Words are left out
inside the texts only; one that --max-length cuts off is no word of the explanation. Weights are of the model's
probability; the same seed gives the same weights for a row, whatever other rows are asked for.
"""


def main(argv: list[str]) -> int:
    """Parse, explain, write, print."""
    given = _build_parser().parse_args(argv)
    set_up_logging(quiet=given.quiet or given.json)
    from lightning_nli.explain.report import HTML_NAME, check_target, write_report

    out: Path | None = given.out or (None if given.json else _DEFAULT_OUT)
    if out is not None:
        check_target(out, force=given.force)
    report = _explain(given)
    if out is not None:
        write_report(report, out)
    if given.json:
        sys.stdout.write(json.dumps(report.as_dict(), ensure_ascii=False, indent=1, allow_nan=False) + "\n")
    else:
        from lightning_nli.cli.explain_table import print_report

        print_report(report)
        sys.stdout.write(f"page: {out / HTML_NAME if out else ''}\n")
    return 0


def _build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="lnli explain",
        description="Which words of which text a run's answers rest on, by LIME.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("run", type=Path, help="run folder")
    parser.add_argument("--data", metavar="SOURCE", help="rows to explain (default: a set that the run scored)")
    parser.add_argument("--set", default="test", metavar="NAME", help="scored set, without --data (default test)")
    parser.add_argument("--ids", nargs="+", metavar="ID", help="rows to explain (default: the first --limit rows)")
    parser.add_argument("--limit", type=_positive, default=10, metavar="N", help="rows without --ids (default 10)")
    parser.add_argument(
        "--label",
        action="append",
        default=[],
        metavar="NAME",
        help="explain this label; repeat for several (default: the predicted one)",
    )
    parser.add_argument(
        "--num-samples",
        type=_positive,
        default=1_000,
        metavar="N",
        help="perturbations of a row (default 1000; 5000 for long texts)",
    )
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="of the perturbations (default 1)")
    parser.add_argument("--top", type=_positive, default=10, metavar="N", help="words shown of a row (default 10)")
    parser.add_argument("--checkpoint", default="best", metavar="best|last|PATH", help="which weights (default best)")
    parser.add_argument(
        "--eval-max-tokens", type=_positive, metavar="N", help="tokens of a forward pass, other than the run's own"
    )
    parser.add_argument("--out", type=Path, metavar="FOLDER", help=f"where both files go (default {_DEFAULT_OUT})")
    parser.add_argument("--force", action="store_true", help="replace an earlier report in that folder")
    parser.add_argument("--json", action="store_true", help="print all figures as JSON; files only with --out")
    parser.add_argument("--quiet", action="store_true", help="only warnings and the result")
    return parser


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is not a whole number above 0")
    return int(text)


def _explain(given: argparse.Namespace) -> Report:
    from lightning_nli.explain.explainer import explain_rows
    from lightning_nli.explain.lime_text import LimeSettings, check_labels, require_lime
    from lightning_nli.explain.models import RunModel
    from lightning_nli.explain.report import Report
    from lightning_nli.training.trained import open_run
    from lightning_nli.types import UserError

    if not 0 <= given.seed < 2**32:
        raise UserError(f"--seed must lie between 0 and {2**32 - 1}, got {given.seed}")
    require_lime()
    opened = open_run(given.run, checkpoint=given.checkpoint, max_tokens=given.eval_max_tokens)
    silence_libraries()
    check_labels(given.label, opened.scheme)
    rows, source = _read_rows(given, opened.config, opened.scheme)
    settings = LimeSettings(given.num_samples, given.seed, tuple(dict.fromkeys(given.label)))
    explanations = explain_rows(RunModel(opened.scorer), rows, settings)
    return Report.of(str(given.run), source, explanations, given.top)


def _read_rows(given: argparse.Namespace, config: ExperimentConfig, scheme: LabelScheme) -> tuple[pl.DataFrame, str]:
    """The rows asked for, and where they are from."""
    from dataclasses import replace

    from lightning_nli.explain.explainer import choose_rows
    from lightning_nli.training.corpora import load_run_data, read_corpora
    from lightning_nli.types import UserError

    if given.data:
        (corpus,) = read_corpora(replace(config, label_scheme=scheme.name), [given.data])
        return choose_rows(corpus.frame, given.ids, given.limit, given.data), given.data
    scored = load_run_data(config).scored
    if given.set not in scored:
        raise UserError(
            f"--set {given.set}: {given.run} scored {', '.join(scored) or 'nothing'}; or give --data SOURCE"
        )
    source = f"{', '.join(config.sources)} ({given.set})"
    return choose_rows(scored[given.set], given.ids, given.limit, source), source
