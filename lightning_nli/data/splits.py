"""Drawn splits and subsets in hash order, and what published splits repeat or leak. Units (premises) never straddle."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import polars as pl

from lightning_nli.data.identity import pair_comparison_expr, pair_expr
from lightning_nli.data.text import comparison_expr
from lightning_nli.types import UserError


@dataclass(frozen=True)
class Leaks:
    """What a test split shares with a training split, compared without case, spaces and punctuation.

    Attributes:
        pairs: `train_id`, `test_id` of each test row whose whole pair stands in train (with its first copy there).
        premises: The same for each other test row whose premise stands in train, under another hypothesis.
        num_premises: Distinct premises behind `premises` and `pairs`.
    """

    pairs: pl.DataFrame
    premises: pl.DataFrame
    num_premises: int

    def __bool__(self) -> bool:
        return self.pairs.height + self.premises.height > 0


@dataclass(frozen=True)
class Duplicates:
    """Rows that repeat an earlier one.

    Attributes:
        rows: `example_id`, `first_id`, `same_label` of each row after the first with the same normalized texts.
        num_loose: Rows after the first with the same texts but for case, spaces and punctuation; `rows` included.
    """

    rows: pl.DataFrame
    num_loose: int

    def __bool__(self) -> bool:
        return self.num_loose > 0

    @property
    def height(self) -> int:
        """Number of rows after the first with the same normalized texts."""
        return self.rows.height

    @property
    def num_contradictory(self) -> int:
        """Rows whose label differs from that of the first copy."""
        return int(self.rows.filter(~pl.col("same_label")).height)


def stable_unit(key: str, seed: int) -> float:
    """Return a number in [0, 1) that depends on `key` and `seed` alone, on any machine and library version."""
    return int.from_bytes(hashlib.blake2b(f"{seed}:{key}".encode(), digest_size=8).digest(), "big") / 2**64


def draw_split(frame: pl.DataFrame, *, fraction: float, unit: str, seed: int) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Hold out whole units, in the order of `stable_unit`, until `fraction` of the rows is reached.

    Args:
        frame: Examples.
        fraction: Share of rows to hold out, between 0 and 1.
        unit: Column whose values never straddle (`premise_id`, `group_id`).
        seed: Another seed draws other units.

    Returns:
        The rest and the held-out rows, both in the order of `frame`.

    Raises:
        ValueError: the fraction is not between 0 and 1.
        UserError: a row has no unit, or nothing is left to train on.
    """
    if not 0 < fraction < 1:
        raise ValueError(f"a split needs a fraction between 0 and 1, not {fraction}")
    units = _units_in_hash_order(frame, unit, seed)
    target = fraction * frame.height
    held_units = units.filter(pl.col("end") - pl.col("len") < target)[unit]
    is_held = pl.col(unit).is_in(held_units.implode())
    train, held = frame.filter(~is_held), frame.filter(is_held)
    if train.is_empty():
        raise UserError(f"all {frame.height} rows fall into the held-out part: too few values of '{unit}' to split")
    return train, held


def take_subset(frame: pl.DataFrame, rows: int, unit: str, seed: int) -> pl.DataFrame:
    """Take whole units, in the order of `stable_unit`, up to `rows` rows; a smaller subset is part of a larger one.

    Raises:
        UserError: a row has no unit, or not even the first unit fits.
    """
    units = _units_in_hash_order(frame, unit, seed)
    taken = units.filter(pl.col("end") <= rows)[unit]
    if taken.is_empty():
        raise UserError(f"a subset of {rows} rows is too small for one '{unit}'; ask for more rows")
    return frame.filter(pl.col(unit).is_in(taken.implode()))


def find_leaks(train: pl.DataFrame, test: pl.DataFrame) -> Leaks:
    """Find test rows whose pair or premise stands in `train` under any case, spacing, punctuation or Unicode form."""
    keys = {"pair": pair_comparison_expr(), "premise_key": comparison_expr(pl.col("premise"))}
    seen = train.select(pl.col("example_id").alias("train_id"), **keys)
    asked = test.select(pl.col("example_id").alias("test_id"), **keys)
    by_pair = seen.unique("pair", keep="first", maintain_order=True).drop("premise_key")
    by_premise = seen.unique("premise_key", keep="first", maintain_order=True).drop("pair")
    pairs = asked.join(by_pair, on="pair", how="inner", maintain_order="left")
    others = asked.join(by_pair, on="pair", how="anti", maintain_order="left")
    premises = others.join(by_premise, on="premise_key", how="inner", maintain_order="left")
    shared = pl.concat([pairs["premise_key"], premises["premise_key"]])
    ids = ["train_id", "test_id"]
    return Leaks(pairs=pairs.select(ids), premises=premises.select(ids), num_premises=shared.n_unique())


def find_duplicates(frame: pl.DataFrame) -> Duplicates:
    """Find rows with the normalized premise, hypothesis and condition of an earlier row."""
    table = frame.select("example_id", "label", pair=pair_expr(), loose=pair_comparison_expr())
    repeats = table.with_columns(
        first_id=pl.col("example_id").first().over("pair"),
        same_label=pl.col("label").eq_missing(pl.col("label").first().over("pair")),
    ).filter(~pl.col("pair").is_first_distinct())
    return Duplicates(
        rows=repeats.select("example_id", "first_id", "same_label"), num_loose=table.height - table["loose"].n_unique()
    )


def _units_in_hash_order(frame: pl.DataFrame, unit: str, seed: int) -> pl.DataFrame:
    """One row a unit: its rows (`len`), and the rows up to and with it (`end`)."""
    missing = frame[unit].null_count()
    if missing:
        raise UserError(f"{missing} rows have no {unit}, the unit of the split")
    units = frame.group_by(unit).len()
    draws = pl.Series("draw", [stable_unit(str(key), seed) for key in units[unit]], dtype=pl.Float64)
    return units.with_columns(draws).sort("draw", unit).with_columns(end=pl.col("len").cast(pl.Int64).cum_sum())
