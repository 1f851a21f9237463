"""Ids and fingerprints of examples: the same texts get the same ones on any machine and library version."""

from __future__ import annotations

import hashlib
from enum import Enum

import polars as pl

from lightning_nli.data.text import comparison_expr, normalize_expr

FIELD_SEPARATOR = "\x1f"
ROW_SEPARATOR = "\x1e"


class IdMeaning(Enum):
    """What the ids of a source stand for."""

    EXAMPLE = "example"  # repeated all the same: the repeated id is a group
    PREMISE = "premise"
    GROUP = "group"


def digest(text: str) -> str:
    """Sixteen hexadecimal digits of blake2b."""
    return hashlib.blake2b(text.encode("utf-8"), digest_size=8).hexdigest()


def digest_column(column: pl.Series) -> pl.Series:
    """`digest` of each text; null stays null. Each distinct text is hashed once."""
    texts = column.drop_nulls().unique()
    table = pl.DataFrame({"text": texts, "digest": pl.Series([digest(text) for text in texts], dtype=pl.String)})
    return pl.DataFrame({"text": column}).join(table, on="text", how="left", maintain_order="left")["digest"]


def pair_expr() -> pl.Expr:
    """Premise, hypothesis and condition, normalized, as one text."""
    return _joined([normalize_expr(pl.col(name)) for name in ("premise", "hypothesis", "condition")])


def pair_comparison_expr() -> pl.Expr:
    """Premise, hypothesis and condition as duplicates and leaks are compared, as one text."""
    return _joined([comparison_expr(pl.col(name)) for name in ("premise", "hypothesis", "condition")])


def assign_ids(frame: pl.DataFrame, given: pl.Series, part: pl.Series, meaning: IdMeaning) -> pl.DataFrame:
    """Replace `example_id`, `premise_id` and `group_id` of `frame` so that every example has a unique id.

    A given id stands if no other row has it. Otherwise, or where none is given, the id is the hash of the normalized
    texts plus an occurrence number, and an id that repeats within one part names a group. An id that repeats only
    across parts (files numbered from 0 each) says nothing and is left behind.

    Args:
        frame: `premise`, `hypothesis`, `condition`, and what the source gives of `premise_id` and `group_id`.
        given: The source's own ids, null where it has none.
        part: What file or split a row comes from.
        meaning: What the ids stand for.
    """
    own = given.str.strip_chars()
    own = own.set(own == "", None)
    table = frame.with_columns(
        own.alias("__given__"),
        part.alias("__part__"),
        digest_column(frame.select(pair_expr()).to_series()).alias("__hash__"),
    )
    occurrence = pl.int_range(1, pl.len() + 1).over("__hash__").cast(pl.String)
    hashed = pl.col("__hash__") + "-" + occurrence
    id_ = pl.col("__given__")
    groups = (
        id_
        if meaning is IdMeaning.GROUP
        else pl.when(id_.is_not_null() & (pl.len().over("__part__", id_) > 1)).then(id_)
    )
    premise_hash = digest_column(frame.select(comparison_expr(pl.col("premise").fill_null(""))).to_series())
    is_unique = id_.is_not_null() & id_.is_unique()
    table = table.with_columns(
        example_id=pl.when(is_unique & (meaning is IdMeaning.EXAMPLE)).then(id_).otherwise(hashed),
        premise_id=pl.coalesce(
            pl.col("premise_id"), id_ if meaning is IdMeaning.PREMISE else pl.lit(None, pl.String), premise_hash
        ),
        group_id=pl.coalesce(pl.col("group_id"), pl.lit(None, pl.String) if meaning is IdMeaning.PREMISE else groups),
    )
    return table.drop("__given__", "__part__", "__hash__")


def fingerprint(frame: pl.DataFrame) -> str:
    """Hash of ids, normalized texts and labels in row order: two frames with one fingerprint give the same scores."""
    columns = [pl.col("example_id"), pair_expr(), pl.col("label").cast(pl.String)]
    rows = frame.select(_joined(columns)).to_series()
    return digest(ROW_SEPARATOR.join(rows))


def _joined(columns: list[pl.Expr]) -> pl.Expr:
    return pl.concat_str([column.fill_null("\0") for column in columns], separator=FIELD_SEPARATOR)
