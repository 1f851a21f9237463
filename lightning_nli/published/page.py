"""The published tables in Markdown, with what was measured here beside them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import polars as pl

from lightning_nli.published.figures import PAPERS, PublishedTable, paper_name, published_figures, published_tables
from lightning_nli.types import UserError

_MEASURED_SCHEMA = {
    "paper": pl.String,
    "table": pl.Int64,
    "system": pl.String,
    "setting": pl.String,
    "test_set": pl.String,
    "metric": pl.String,
    "value": pl.Float64,
    "unit": pl.String,
    "command": pl.String,
}
_FORMATS = {"percent": ".2f", "points": ".2f", "count": ",.0f", "words": ".1f", "kappa": ".2f", "pmi": ".2f"}
_MEASURED_FORMATS = {"percent": ".1f", "points": ".1f", "share": ".3f", "count": ",.0f"}
_METRICS = {
    "macro_f1": "macro-F1",
    "lcs": "LCS",
    "pmi": "PMI",
    "fleiss_kappa": "Fleiss' kappa",
    "adj": "adjective",
    "adv": "adverb",
    "pron": "pronoun",
    "num_examples": "rows",
}
_HEAD = """\
# Published figures

The tables of the three papers as printed, from the data in `lightning_nli/published/`; what was measured here stands in
columns that begin with *here* or in a table of its own, with the commands below. Scores and shares are in percent; a
dash is a figure that does not exist. This page is printed by `python -m lightning_nli.published docs/measured.csv`, and
a test holds that it is up to date: new figures go into `docs/measured.csv`.
"""

Key = tuple[str | None, ...]


def read_measured(path: Path | None) -> pl.DataFrame:
    """Our own figures: `paper, table, system, setting, test_set, metric, value, unit, command`, one a row.

    A figure stands beside the published row with the same `system` and `setting`, else in a table of its own. `unit` is
    `percent`, `points`, `share` (0 to 1) or `count`.

    Raises:
        UserError: the file is not there, has other columns, names no table held here, or gives a figure twice.
    """
    if path is None:
        return pl.DataFrame(schema=_MEASURED_SCHEMA)
    if not path.is_file():
        raise UserError(f"no file '{path}' with measured figures")
    try:
        table = pl.read_csv(path, schema_overrides=_MEASURED_SCHEMA)
    except pl.exceptions.PolarsError as error:
        raise UserError(f"{path} cannot be read: {str(error).splitlines()[0]}") from None
    if table.columns != list(_MEASURED_SCHEMA):
        raise UserError(f"{path} must have the columns {','.join(_MEASURED_SCHEMA)}; it has {','.join(table.columns)}")
    known = {(entry.paper, entry.number) for entry in published_tables()}
    for paper, number, unit in table.select("paper", "table", "unit").unique().iter_rows():
        if (paper, number) not in known:
            raise UserError(f"{path}: there is no table {number} of '{paper}' in lightning_nli/published")
        if unit not in _MEASURED_FORMATS:
            raise UserError(f"{path}: unit '{unit}' is none of {', '.join(_MEASURED_FORMATS)}")
    repeated = table.filter(table.select(list(_MEASURED_SCHEMA)[:6]).is_duplicated())
    if repeated.height:
        raise UserError(f"{path} gives a figure twice: {repeated.row(0)[:6]}")
    return table


def published_page(measured: Path | None = None) -> str:
    """Markdown of all tables.

    Args:
        measured: CSV of our own figures (`read_measured`).

    Raises:
        UserError: the file of our own figures is at fault.
    """
    figures, ours = published_figures(), read_measured(measured)
    parts = [_HEAD]
    for paper in PAPERS:
        parts.append(f"## {paper_name(paper)}\n")
        for table in published_tables(paper):
            here = (pl.col("paper") == table.paper) & (pl.col("table") == table.number)
            parts.append(_section(table, figures.filter(here), ours.filter(here)))
    return "\n".join(parts)


def _section(table: PublishedTable, figures: pl.DataFrame, ours: pl.DataFrame) -> str:
    """Heading, the published rows with ours beside, our other rows, notes, commands."""
    keys = ["system", "setting"]
    beside = ours.join(figures, on=keys, how="semi", nulls_equal=True, maintain_order="left")
    alone = ours.join(figures, on=keys, how="anti", nulls_equal=True, maintain_order="left")
    lines = [f"### Table {table.number}: {table.title}", "", *_grid(table, figures, beside), ""]
    if alone.height:
        lines += ["Other systems, measured here:", "", *_grid(table, figures.clear(), alone), ""]
    lines += [f"- {note}" for note in table.notes]
    commands: dict[str, list[str]] = {}
    for system, setting, command in ours.select(*keys, "command").unique(maintain_order=True).iter_rows():
        commands.setdefault(command, []).append(f"{system}, {setting}" if setting else system)
    lines += [f"- {'; '.join(runs)}: `{command}`" for command, runs in commands.items()]
    return "\n".join(lines).rstrip("\n") + "\n"


def _grid(table: PublishedTable, figures: pl.DataFrame, ours: pl.DataFrame) -> Iterator[str]:
    """Header, rule and rows: one row a system and setting, one column a test set and metric."""
    origin = "here: " if figures.height else ""
    cells = {(_row(entry), _column(entry, "")): _text(entry, _FORMATS) for entry in _rows(figures)}
    cells |= {(_row(entry), _column(entry, origin)): _text(entry, _MEASURED_FORMATS) for entry in _rows(ours)}
    rows, columns = _distinct(row for row, _ in cells), _distinct(column for _, column in cells)
    has_settings = any(setting for _, setting in rows)
    names = [table.systems, *([table.settings or "setting"] if has_settings else [])]
    one_metric = len({metric for _, _, metric in columns}) == 1
    yield _line([*names, *(_heading(column, one_metric) for column in columns)])
    yield _line([*("---" for _ in names), *("---:" for _ in columns)])
    for row in rows:
        yield _line([*(name or "-" for name in row[: len(names)]), *(cells.get((row, key), "-") for key in columns)])


def _rows(frame: pl.DataFrame) -> Iterator[dict[str, Any]]:
    return frame.iter_rows(named=True)


def _row(entry: dict[str, Any]) -> Key:
    return (entry["system"], entry["setting"])


def _column(entry: dict[str, Any], origin: str) -> Key:
    return (origin, entry["test_set"], entry["metric"])


def _text(entry: dict[str, Any], formats: dict[str, str]) -> str:
    return "-" if entry["value"] is None else format(entry["value"], formats[entry["unit"]])


def _heading(column: Key, one_metric: bool) -> str:
    origin, test_set, metric = column
    assert origin is not None and metric is not None
    name = _METRICS.get(metric, metric.replace("_", " "))
    return origin + (test_set if one_metric and test_set else " ".join(filter(None, (test_set, name))))


def _distinct(keys: Iterable[Key]) -> list[Key]:
    return list(dict.fromkeys(keys))


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"
