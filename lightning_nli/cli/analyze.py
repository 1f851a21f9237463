"""`lnli analyze`: what a corpus gives away, and where models fail, as one report."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning_nli.cli.logs import set_up_logging
from lightning_nli.cli.options import add_on_bad_row

if TYPE_CHECKING:
    from collections.abc import Callable

    from lightning_nli.analysis.document import Document

    Analysis = tuple[dict[str, Any], Callable[[], Document]]  # figures, and the report when it is wanted

_DEFAULT_OUT = Path("report")

_EPILOG = """\
examples:
  lnli analyze data sample --out report-sample
  lnli analyze data vilegalnli:DIR --on-bad-row drop --words pyvi --tokenizer e5-small --out report-data
  lnli analyze runs runs/FULL runs/HYPOTHESIS-ONLY --out report-runs
  lnli analyze runs runs/FULL --score --force             also ask the model without the premise and under other ones
  lnli analyze runs runs/FULL --json > figures.json

OUT gets report.html (one file, opens anywhere), report.md, analysis.json, tables/*.csv, figures/*.svg and *.png, and
subsets/*.txt: ids of rows that `lnli test RUN --subset FILE` scores alone. It appears when all of it is written.
"""


def main(argv: list[str]) -> int:
    """Parse, analyze, write the report, print what to read first."""
    given = _build_parser().parse_args(argv)
    set_up_logging(quiet=given.quiet or given.json)
    from lightning_nli.analysis.report import check_target, write_report

    out: Path | None = given.out or (None if given.json else _DEFAULT_OUT)
    if out is not None:
        check_target(out, force=given.force)
    figures, draw = {"data": _data, "runs": _runs}[given.command](given)
    if out is not None:
        document = draw()
        write_report(document, out, force=given.force)
    if given.json:
        sys.stdout.write(json.dumps(figures, ensure_ascii=False, indent=1, allow_nan=False) + "\n")
    elif out is not None:
        sys.stdout.write("".join(f"{line}\n" for line in document.lead) + f"report: {out / 'report.html'}\n")
    return 0


def _build_parser() -> argparse.ArgumentParser:
    style = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        "lnli analyze", description="Report on a corpus or on runs.", epilog=_EPILOG, formatter_class=style
    )
    commands = parser.add_subparsers(dest="command", required=True)
    data = commands.add_parser(
        "data",
        help="a corpus: tables, lengths, overlap, agreement, what hypotheses give away",
        description="Report on a corpus: what it holds and what it gives away.",
        epilog=_EPILOG,
        formatter_class=style,
    )
    data.add_argument("source", metavar="SOURCE", help="what to read, READER:PATH[#SPLIT] or sample[:N]")
    add_on_bad_row(data)
    data.add_argument("--tokenizer", metavar="MODEL", help="also lengths in the tokens of this encoder (as --model)")
    data.add_argument("--pos", choices=("pyvi", "underthesea"), help="also parts of speech, by this tagger (slow)")
    _add_common(data)
    runs = commands.add_parser(
        "runs",
        help="runs that scored the same rows: premise page, slices, errors, calibration, hard rows",
        description="Report on finished runs that scored the same rows; the rows are read again from their sources.",
        epilog=_EPILOG,
        formatter_class=style,
    )
    runs.add_argument("runs", nargs="+", metavar="RUN", type=Path, help="run folder")
    runs.add_argument("--set", default="test", metavar="NAME", help="scored set to look at (default test)")
    runs.add_argument(
        "--score",
        action="store_true",
        help="ask each model again with the premise removed and swapped (takes up to five times as long as scoring)",
    )
    _add_common(runs)
    return parser


def _add_common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--words",
        choices=("syllables", "pyvi", "underthesea"),
        default="syllables",
        help="what overlap counts as a word; pyvi's words are those of ViLegalNLI's Table 12 (default syllables)",
    )
    parser.add_argument("--out", type=Path, metavar="FOLDER", help=f"where the report goes (default {_DEFAULT_OUT})")
    parser.add_argument("--force", action="store_true", help="replace an earlier report in that folder")
    parser.add_argument(
        "--json", action="store_true", help="print all figures as JSON; a report is written only with --out"
    )
    parser.add_argument("--quiet", action="store_true", help="only warnings and the result")


def _data(given: argparse.Namespace) -> Analysis:
    from lightning_nli.analysis.agreement import read_ratings
    from lightning_nli.analysis.corpus import analyze_corpus
    from lightning_nli.analysis.corpus_pages import corpus_document
    from lightning_nli.data.readers import read_source

    corpus = read_source(given.source, on_bad_row=given.on_bad_row)
    ratings = read_ratings(given.source) if corpus.bad_rows else None  # rows were rated before they lost a text
    tokenizer = None if given.tokenizer is None else _load_tokenizer(given.tokenizer)
    analysis = analyze_corpus(corpus, words=given.words, tokenizer=tokenizer, ratings=ratings, pos=given.pos)
    corpora = corpus.frame["corpus"].unique().sort().to_list()
    return analysis.as_dict(), lambda: corpus_document(analysis, corpora)


def _load_tokenizer(name: str) -> Any:
    """The tokenizer of `--model NAME`."""
    from transformers import AutoTokenizer

    from lightning_nli.models.heads import hub_errors, prepare_transformers
    from lightning_nli.models.offline import is_built_here, resolve_model
    from lightning_nli.types import UserError

    if is_built_here(name):
        raise UserError(f"--tokenizer {name}: it is built from a run's own texts; name a pretrained one")
    prepare_transformers()
    source = resolve_model(name, list)
    with hub_errors(source):
        return AutoTokenizer.from_pretrained(str(source))


def _runs(given: argparse.Namespace) -> Analysis:
    from lightning_nli.analysis.run_pages import runs_document
    from lightning_nli.analysis.runs import analyze_runs

    analysis = analyze_runs(given.runs, set_name=given.set, words=given.words, score_again=given.score)
    return analysis.as_dict(), lambda: runs_document(analysis)
