"""`lnli data`: look at a corpus before training on it, and write it in one plain form."""

from __future__ import annotations

import argparse
import json
import os
from itertools import combinations
from pathlib import Path
from typing import Any

import polars as pl
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from lightning_nli.cli.data_model import describe_for_model, model_lines
from lightning_nli.cli.data_shared import Part, in_split_order, shared_lines, shared_texts
from lightning_nli.cli.data_split import OUT_SUFFIXES, add_split_arguments, split_source, write_examples
from lightning_nli.cli.options import add_on_bad_row
from lightning_nli.data.readers import READERS, fingerprint, read_source
from lightning_nli.data.schema import Corpus
from lightning_nli.data.sources import SOURCE_HELP
from lightning_nli.data.splits import find_duplicates, find_leaks
from lightning_nli.types import DOMAINS, SEGMENT_NAMES, Split, UserError

MAX_SHOWN = 20

_EPILOG = """\
{sources}
examples:
  lnli data check sample:200
  lnli data check vilegalnli:data/vilegalnli --on-bad-row drop
  lnli data check train.jsonl test.jsonl --strict
  lnli data check pairs.jsonl --model xlmr-large
  lnli data convert vilegalnli:data/vilegalnli#dev dev.jsonl
  lnli data convert pairs.tsv pairs.parquet --force
  lnli data split pairs.jsonl data/mine
  lnli data split vilegalnli:data/vilegalnli data/by-law --unit law_id --parts 8:1:1 --on-bad-row drop
"""


def main(argv: list[str]) -> int:
    """Run `lnli data ARGV` and return its exit code.

    Raises:
        UserError: a source or output cannot be used.
    """
    args = _build_parser().parse_args(argv)
    commands = {"check": _check, "convert": _convert, "split": split_source}
    return commands[args.command](args)


def _build_parser() -> argparse.ArgumentParser:
    style = argparse.RawDescriptionHelpFormatter
    epilog = _EPILOG.format(sources=SOURCE_HELP.format(readers=" ".join(sorted(set(READERS) - {"sample"}))))
    parser = argparse.ArgumentParser(
        "lnli data", description="Check and convert corpora.", epilog=epilog, formatter_class=style
    )
    commands = parser.add_subparsers(dest="command", required=True)
    check = commands.add_parser(
        "check",
        help="rows, labels, domains, lengths, bad rows, duplicates and leaks of sources",
        description="Describe sources and find what is wrong with them. Exit code 2: unusable rows, or with --strict "
        "also duplicates, or pairs and premises that several splits share.",
        epilog=epilog,
        formatter_class=style,
    )
    check.add_argument(
        "sources", nargs="+", metavar="SOURCE", help="what to read; leaks are sought between all of them"
    )
    check.add_argument("--json", action="store_true", help="one JSON object instead of tables")
    check.add_argument("--strict", action="store_true", help="duplicates and leaks are errors too")
    check.add_argument("--model", metavar="NAME", help="also tokens a pair and word segmentation for this encoder")
    add_on_bad_row(check)
    convert = commands.add_parser(
        "convert",
        help="write a source as JSON lines, CSV or Parquet",
        description="Write a source, normalized, under our own column names; it reads again as a plain file.",
        epilog=epilog,
        formatter_class=style,
    )
    convert.add_argument("source", metavar="SOURCE", help="what to read")
    convert.add_argument("out", metavar="OUT", type=Path, help=f"file to write ({' '.join(OUT_SUFFIXES)})")
    convert.add_argument(
        "--to", choices=[suffix[1:] for suffix in OUT_SUFFIXES], help="format, if OUT's name does not say"
    )
    convert.add_argument("--force", action="store_true", help="overwrite OUT")
    add_on_bad_row(convert)
    split = commands.add_parser(
        "split",
        help="write a train, dev and test split of one's own",
        description="Draw a split by whole units: labels and domains have the same shares in every part. The same rows "
        "and seed give the same split on any machine.",
        epilog=epilog,
        formatter_class=style,
    )
    add_split_arguments(split)
    add_on_bad_row(split)
    return parser


def _check(args: argparse.Namespace) -> int:
    corpora = [read_source(source, on_bad_row="drop") for source in args.sources]
    reports = [_describe(corpus) for corpus in corpora]
    parts = [part for corpus in corpora for part in _parts(corpus)]
    leaks = _leaks(parts)
    num_bad = sum(len(corpus.bad_rows) for corpus in corpora)
    num_duplicates = sum(part["rows"] for report in reports for part in report["duplicates"])
    failed = (num_bad and args.on_bad_row == "error") or (args.strict and (num_duplicates or leaks))
    model = describe_for_model(args.model, corpora) if args.model else None
    if args.json:
        report = {"ok": not failed, "sources": reports, "leaks": leaks, "shared": shared_texts(parts)}
        report |= {"model": model} if model else {}
        _console().print_json(json.dumps(report, ensure_ascii=False))
    else:
        _print_reports(reports, leaks)
        for line in shared_lines(shared_texts(parts)):
            _console().print(escape(line))
        for line in model_lines(model) if model else ():
            _console().print(escape(line))
    return 2 if failed else 0


def _parts(corpus: Corpus) -> list[Part]:
    """Source and split, the split's name, rows: one for each split of the corpus."""
    parts = []
    for split in [*(split.value for split in Split), None]:
        rows = corpus.frame.filter(pl.col("split").cast(pl.String).eq_missing(pl.lit(split, pl.String)))
        if rows.height:
            name = f"{corpus.source}#{split}" if split and "#" not in corpus.source else corpus.source
            parts.append((name, split, rows))
    return parts


def _describe(corpus: Corpus) -> dict[str, Any]:
    frame = corpus.frame
    return {
        "source": corpus.source,
        "rows": frame.height,
        "fingerprint": fingerprint(frame),
        "scheme": corpus.scheme.name,
        "splits": _counts(frame["split"].cast(pl.String).fill_null("none")),
        "labels": {name: int((frame["label"] == name).sum()) for name in corpus.scheme.names},
        "domains": _domains(frame),
        "lengths": {name: _lengths(frame[name]) for name in SEGMENT_NAMES if frame[name].count()},
        "premises": frame["premise_id"].n_unique(),
        "laws": frame["law_id"].drop_nulls().n_unique(),
        "groups": frame["group_id"].drop_nulls().n_unique(),
        "bad_rows": [
            {"file": bad.file, "row": bad.row, "column": bad.column, "reason": bad.reason} for bad in corpus.bad_rows
        ],
        "duplicates": [_duplicates(name, rows) for name, _, rows in _parts(corpus)],
        "extra_columns": corpus.extra_columns,
        "notes": list(corpus.notes),
    }


def _counts(values: pl.Series) -> dict[str, int]:
    counts = values.value_counts().sort("count", values.name, descending=[True, False])
    return dict(counts.iter_rows())


def _domains(frame: pl.DataFrame) -> list[dict[str, Any]]:
    """Rows and laws of each field of law; a row counts in each of its fields."""
    domains = pl.col("domains").cast(pl.List(pl.String))
    filled = pl.when(domains.list.len() > 0).then(domains).otherwise(pl.lit(["none"]))
    by_domain = frame.select("law_id", domain=filled).explode("domain")
    counts = by_domain.group_by("domain").agg(rows=pl.len(), laws=pl.col("law_id").drop_nulls().n_unique())
    return counts.sort("rows", "domain", descending=[True, False]).to_dicts()


def _lengths(texts: pl.Series) -> dict[str, float | None]:
    """Syllables, that is words between white space: null for no rows, never 0."""
    length = texts.drop_nulls().str.count_matches(r"\S+").cast(pl.Float64).alias("length").to_frame()
    column = pl.col("length")
    return length.select(
        mean=column.mean().round(1),
        median=column.median(),
        p95=column.quantile(0.95, interpolation="nearest"),
        max=column.max(),
    ).row(0, named=True)


def _duplicates(name: str, rows: pl.DataFrame) -> dict[str, Any]:
    found = find_duplicates(rows)
    shown = found.rows.head(MAX_SHOWN).select("first_id", "example_id").rows()
    return {
        "part": name,
        "rows": found.height,
        "with_other_label": found.num_contradictory,
        "but_for_case_and_punctuation": found.num_loose - found.height,
        "ids": [list(pair) for pair in shown],
    }


def _leaks(parts: list[Part]) -> list[dict[str, Any]]:
    """Between each two parts; the one that comes first as train, dev, test counts as the training side."""
    leaks = []
    for (train_name, _, train), (test_name, _, test) in combinations(in_split_order(parts), 2):
        found = find_leaks(train, test)
        if found:
            leaks.append(
                {
                    "train": train_name,
                    "test": test_name,
                    "pairs": found.pairs.height,
                    "premise_rows": found.premises.height,
                    "shared_premises": found.num_premises,
                    "pair_ids": [list(ids) for ids in found.pairs.head(MAX_SHOWN).iter_rows()],
                    "premise_ids": [list(ids) for ids in found.premises.head(MAX_SHOWN).iter_rows()],
                }
            )
    return leaks


def _console() -> Console:
    return Console(highlight=False, soft_wrap=True)


def _print_reports(reports: list[dict[str, Any]], leaks: list[dict[str, Any]]) -> None:
    console = _console()
    for report in reports:
        _print_report(console, report)
    for leak in leaks:
        console.print(
            f"[yellow]leak[/] {escape(leak['train'])} -> {escape(leak['test'])}: {leak['pairs']} pairs stand in both; "
            f"{leak['premise_rows']} further rows share a premise under another hypothesis "
            f"({leak['shared_premises']} distinct premises)"
        )
        _print_ids(console, "same pair", leak["pair_ids"])
        _print_ids(console, "same premise", leak["premise_ids"])
    if not leaks:
        console.print("no leaks between splits")


def _print_report(console: Console, report: dict[str, Any]) -> None:
    head = Table(title=escape(report["source"]), title_justify="left", show_header=False)
    for name in ("rows", "premises", "laws", "groups", "scheme", "fingerprint"):
        head.add_row(name, str(report[name]))
    head.add_row("splits", ", ".join(f"{name} {count}" for name, count in report["splits"].items()))
    head.add_row("labels", ", ".join(f"{name} {count}" for name, count in report["labels"].items()))
    for name, lengths in report["lengths"].items():
        head.add_row(f"{name}, syllables", ", ".join(f"{what} {number:g}" for what, number in lengths.items()))
    console.print(head)
    _print_domains(console, report["domains"])
    for bad in report["bad_rows"][:MAX_SHOWN]:
        place = f"{bad['file']}, row {bad['row']}, column '{bad['column']}'"
        console.print(f"[red]bad row[/] {escape(place)}: {escape(bad['reason'])}")
    if len(report["bad_rows"]) > MAX_SHOWN:
        console.print(f"[red]bad row[/] and {len(report['bad_rows']) - MAX_SHOWN} more")
    for part in report["duplicates"]:
        _print_duplicates(console, part)
    for name, count in report["extra_columns"].items():
        console.print(f"extra column {escape(name)}: {count} values, not read")
    for note in report["notes"]:
        console.print(f"note: {escape(note)}")


def _print_domains(console: Console, domains: list[dict[str, Any]]) -> None:
    if {domain["domain"] for domain in domains} <= {"none"}:
        return
    table = Table("domain", "field of law", "rows", "laws")
    for domain in domains:
        table.add_row(
            domain["domain"], DOMAINS.get(domain["domain"], "no field given"), str(domain["rows"]), str(domain["laws"])
        )
    console.print(table)


def _print_duplicates(console: Console, part: dict[str, Any]) -> None:
    if part["rows"] or part["but_for_case_and_punctuation"]:
        console.print(
            f"[yellow]duplicates[/] {escape(part['part'])}: {part['rows']} rows repeat an earlier pair, "
            f"{part['with_other_label']} of them under another label; "
            f"{part['but_for_case_and_punctuation']} more but for case, spaces and punctuation"
        )
        _print_ids(console, "same pair", part["ids"][:5])


def _print_ids(console: Console, what: str, ids: list[list[str]]) -> None:
    if ids:
        console.print(f"  {what}: " + escape(", ".join(f"{first} = {second}" for first, second in ids)))


def _convert(args: argparse.Namespace) -> int:
    out: Path = args.out
    suffix = f".{args.to}" if args.to else out.suffix.lower()
    if suffix not in OUT_SUFFIXES:
        raise UserError(f"{out}: no format by the name '{suffix}'; end it in {' '.join(OUT_SUFFIXES)} or give --to")
    if out.exists() and not args.force:
        raise UserError(f"{out} is there already; --force overwrites it")
    if not out.parent.is_dir():
        raise UserError(f"{out.parent} is no folder; make it first")
    corpus = read_source(args.source, on_bad_row=args.on_bad_row)
    partial = out.with_name(f".{out.name}.{os.getpid()}.partial")
    try:
        num_written = write_examples(corpus.frame, partial, suffix)
        if num_written != corpus.frame.height:
            raise RuntimeError(f"{corpus.frame.height} rows read, {num_written} written to {partial}")
        os.replace(partial, out)
    finally:
        partial.unlink(missing_ok=True)
    dropped = f" ({len(corpus.bad_rows)} unusable rows left out)" if corpus.bad_rows else ""
    _console().print(f"{num_written} rows -> {escape(str(out))}{dropped}")
    return 0
