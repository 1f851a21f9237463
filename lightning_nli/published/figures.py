"""The figures of the papers' tables, one a row, read from the CSV files beside this module."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import polars as pl

from lightning_nli.types import UserError

PAPERS = ("vilegalnli", "vianli", "wills")

UNITS = ("percent", "points", "count", "words", "kappa", "pmi")

_FILE_SCHEMA: dict[str, pl.DataType | type[pl.DataType]] = {
    "table": pl.Int64,
    "system": pl.String,
    "hub_id": pl.String,
    "setting": pl.String,
    "test_set": pl.String,
    "metric": pl.String,
    "value": pl.Float64,
    "unit": pl.Enum(UNITS),
}


@dataclass(frozen=True)
class PublishedTable:
    """A table of a paper.

    Attributes:
        paper: `vilegalnli`, `vianli` or `wills`.
        number: Its number in the paper.
        title: What it shows, in our words.
        systems: What a row's `system` is: model, corpus, label ...
        settings: What a row's `setting` is; empty where rows have none.
        notes: What does not add up in it, or what its figures must be read with.
    """

    paper: str
    number: int
    title: str
    systems: str
    settings: str
    notes: tuple[str, ...]

    @property
    def source(self) -> str:
        return f"{paper_name(self.paper)}, Table {self.number}"


def paper_name(paper: str) -> str:
    """How a paper is cited."""
    return str(_catalogue()[paper]["name"])


def published_tables(paper: str | None = None) -> list[PublishedTable]:
    """The tables held here, in the order of papers and numbers.

    Raises:
        UserError: there is no such paper.
    """
    return [
        PublishedTable(
            paper=name,
            number=number,
            title=entry["title"],
            systems=entry["systems"],
            settings=entry.get("settings", ""),
            notes=tuple(entry.get("notes", ())),
        )
        for name in _chosen(paper)
        for number, entry in _catalogue()[name]["tables"].items()
    ]


def published_figures(paper: str | None = None) -> pl.DataFrame:
    """The published figures, as printed.

    Args:
        paper: `vilegalnli`, `vianli` or `wills`; None: all three.

    Returns:
        One row a figure: `paper`, `table`, `system` (model, corpus, label ...), `hub_id` (null where it is no model, or
        the paper does not say which), `setting`, `test_set`, `metric`, `value` (null where the table has a dash),
        `unit` (shares and scores are in percent), `source`.

    Raises:
        UserError: there is no such paper.
    """
    return pl.concat(_figures_of(name) for name in _chosen(paper))


@cache
def _figures_of(paper: str) -> pl.DataFrame:
    content = files("lightning_nli.published").joinpath(f"{paper}.csv").read_bytes()
    source = pl.format("{}, Table {}", pl.lit(paper_name(paper)), "table")
    return (
        pl.read_csv(content, schema=_FILE_SCHEMA).with_columns(source=source).select(pl.lit(paper).alias("paper"), "*")
    )


@cache
def _catalogue() -> dict[str, dict[str, Any]]:
    import yaml

    catalogue: dict[str, dict[str, Any]] = yaml.safe_load(
        files("lightning_nli.published").joinpath("tables.yaml").read_text(encoding="utf-8")
    )
    return catalogue


def _chosen(paper: str | None) -> tuple[str, ...]:
    if paper is not None and paper not in PAPERS:
        raise UserError(f"no published figures of '{paper}'; papers are {', '.join(PAPERS)}")
    return PAPERS if paper is None else (paper,)
