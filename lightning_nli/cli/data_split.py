"""`lnli data split`: a train, dev and test split of one's own; and how examples are written to a file."""

from __future__ import annotations

import argparse
import json
import shutil
import uuid
from pathlib import Path

import polars as pl
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from lightning_nli.data.readers import fingerprint, read_source
from lightning_nli.data.schema import EXAMPLE_SCHEMA, Corpus
from lightning_nli.data.splits import find_leaks
from lightning_nli.data.stratified import Share, stratified_split
from lightning_nli.types import Split, UserError

OUT_SUFFIXES = (".jsonl", ".csv", ".parquet")
UNITS = ("premise_id", "group_id", "law_id")
MAX_OFF_POINTS = 1.0


def add_split_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `lnli data split`."""
    parser.add_argument("source", metavar="SOURCE", help="what to split; a published split in it is put aside")
    parser.add_argument("out", metavar="FOLDER", type=Path, help="folder to write: train, dev, test and split.json")
    parser.add_argument("--parts", default="8:1:1", metavar="A:B:C", help="train : dev : test (default 8:1:1; 9:0:1)")
    parser.add_argument("--unit", choices=UNITS, help="what never straddles (default: the corpus' own unit)")
    parser.add_argument("--seed", type=int, default=1, help="another seed draws another split (default 1)")
    parser.add_argument("--to", choices=[suffix[1:] for suffix in OUT_SUFFIXES], default="jsonl", help="file format")


def split_source(args: argparse.Namespace) -> int:
    """Split a source and write its parts; nothing is written unless all of it can be.

    Raises:
        UserError: the source, the parts, the unit or the folder cannot be used.
    """
    fractions = _fractions(args.parts)
    if args.out.exists():
        raise UserError(f"{args.out} is there already; a split is never overwritten, name another folder")
    if not args.out.resolve().parent.is_dir():
        raise UserError(f"{args.out.resolve().parent} is no folder; make it first")
    corpus = read_source(args.source, on_bad_row=args.on_bad_row)
    unit = args.unit or corpus.split_unit
    frame, shares = stratified_split(corpus.frame, unit=unit, fractions=fractions, seed=args.seed)
    parts = {part: frame.filter(pl.col("split") == part.value) for part in fractions}
    _refuse_leaks(parts, unit)
    _write_folder(args, corpus, parts, unit)
    _print_shares(Console(highlight=False, soft_wrap=True), shares, parts, unit)
    return 0


def _fractions(text: str) -> dict[Split, float]:
    numbers = text.split(":")
    if len(numbers) != 3 or not all(number.isdecimal() for number in numbers) or int(numbers[0]) < 1:
        raise UserError(f"--parts {text}: write three whole numbers, train : dev : test, as 8:1:1")
    if sum(int(number) > 0 for number in numbers) < 2:
        raise UserError(f"--parts {text}: at least two parts must be above 0")
    total = sum(map(int, numbers))
    return {part: int(number) / total for part, number in zip(Split, numbers, strict=True) if int(number)}


def _refuse_leaks(parts: dict[Split, pl.DataFrame], unit: str) -> None:
    """Our own split shares no pair between parts, and no premise where premises are the unit."""
    names = list(parts)
    for index, first in enumerate(names):
        for second in names[index + 1 :]:
            leaks = find_leaks(parts[first], parts[second])
            if leaks.pairs.height or (unit == "premise_id" and leaks.premises.height):
                raise AssertionError(f"{first} and {second} share rows: {leaks}")


def _write_folder(args: argparse.Namespace, corpus: Corpus, parts: dict[Split, pl.DataFrame], unit: str) -> None:
    partial = args.out.with_name(f".{args.out.name}.{uuid.uuid4().hex[:8]}")
    partial.mkdir()
    try:
        for part, rows in parts.items():
            file = partial / f"{part.value}.{args.to}"
            if write_examples(rows, file, f".{args.to}") != rows.height:
                raise RuntimeError(f"{file} does not hold the {rows.height} rows of its part")
        record = {
            "source": corpus.source,
            "fingerprint": fingerprint(corpus.frame),
            "unit": unit,
            "seed": args.seed,
            "parts": args.parts,
            "rows": {part.value: rows.height for part, rows in parts.items()},
            "bad_rows": len(corpus.bad_rows),
        }
        (partial / "split.json").write_text(json.dumps(record, indent=1, ensure_ascii=False), encoding="utf-8")
        partial.rename(args.out)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _print_shares(console: Console, shares: list[Share], parts: dict[Split, pl.DataFrame], unit: str) -> None:
    table = Table(title="rows, and how many points the share is off", title_justify="left")
    table.add_column("", overflow="fold")
    for part in parts:
        table.add_column(part.value, justify="right")
    by_feature: dict[str, list[Share]] = {}
    for share in shares:
        by_feature.setdefault(share.feature, []).append(share)
    for feature, found in sorted(by_feature.items(), key=lambda item: (item[0] != "rows", item[0])):
        table.add_row(escape(feature), *(f"{share.rows} {share.off_points:+.2f}" for share in found))
    console.print(table)
    for share in shares:
        rows_off = abs(share.off_points) / 100 * parts[share.split].height
        if abs(share.off_points) > MAX_OFF_POINTS and rows_off > share.largest_unit:
            console.print(
                f"[yellow]warning[/] {escape(share.feature)} in {share.split.value} is {share.off_points:+.1f} points "
                f"off: units of '{unit}' are too large or too few to share it out"
            )
        if share.rows == 0:
            console.print(f"[yellow]warning[/] {share.split.value} has no row of {escape(share.feature)}")


def write_examples(frame: pl.DataFrame, path: Path, suffix: str) -> int:
    """Write `frame` in the format of `suffix` and return how many rows the file holds, counted in the file."""
    if suffix == ".parquet":
        frame.write_parquet(path)
        return int(pl.scan_parquet(path, glob=False).select(pl.len()).collect().item())
    if suffix == ".jsonl":
        frame.write_ndjson(path)
        with path.open("rb") as stream:
            return sum(1 for _ in stream)
    lists = [name for name, dtype in EXAMPLE_SCHEMA.items() if dtype.is_nested()]
    texts = [
        pl.Series(name, [json.dumps(value, ensure_ascii=False) for value in frame[name].to_list()], dtype=pl.String)
        for name in lists
    ]
    frame.with_columns(texts).write_csv(path)
    return int(pl.read_csv(path.read_bytes(), infer_schema=False).height)
