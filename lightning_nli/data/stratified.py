"""A split of one's own: whole units, each part with its share of the rows, of every label and of every domain."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from lightning_nli.data.identity import pair_comparison_expr
from lightning_nli.data.schema import SPLIT_DTYPE
from lightning_nli.data.splits import stable_unit
from lightning_nli.data.text import comparison_expr
from lightning_nli.types import Split, UserError

MAX_PASSES = 20
MIN_GAIN = 1e-9  # moves that gain less are rounding


@dataclass(frozen=True)
class Share:
    """Rows of one label or domain (or of all) in one part.

    Attributes:
        feature: `rows`, `label:NAME` or `domain:NAME`.
        split: The part.
        rows: Rows of the feature in the part.
        off_points: The feature's share of the part's rows minus its share of all rows, in percentage points; for
            `rows` the part's share of all rows minus the one asked for.
        largest_unit: Rows of the feature in the unit that has most of them: what moving one unit can change.
    """

    feature: str
    split: Split
    rows: int
    off_points: float
    largest_unit: int


def stratified_split(
    frame: pl.DataFrame, *, unit: str, fractions: Mapping[Split, float], seed: int
) -> tuple[pl.DataFrame, list[Share]]:
    """Set the `split` column so that units never straddle and every part looks like the whole.

    Units are taken in the order of `stable_unit`; each goes where it is missing most, then units move while that
    brings the parts nearer to their shares. Units that hold the same pair under any spelling go together, and those
    that hold the same premise if the unit is the premise. The outcome depends on the rows, the unit, the fractions and
    the seed alone, not on the order of the rows.

    Args:
        frame: Examples.
        unit: Column whose values never straddle (`premise_id`, `group_id`, `law_id`).
        fractions: Share of the rows for each part; they add up to 1.
        seed: Another seed gives another split.

    Returns:
        The frame with `split` set, in its own order, and how near every share came.

    Raises:
        UserError: a row has no unit, or a part stays empty.
    """
    missing = frame[unit].null_count()
    if missing:
        raise UserError(f"{missing} rows have no {unit}, the unit of the split")
    root = _joined_units(frame, unit)
    counts = _feature_counts(frame, unit, root)
    order = sorted(counts, key=lambda key: (stable_unit(key, seed), key))
    place = _assign(order, counts, fractions)
    split = pl.Series("split", [place[root[key]].value for key in frame[unit].cast(pl.String)], dtype=SPLIT_DTYPE)
    result = frame.with_columns(split)
    empty = [part.value for part in fractions if not (result["split"] == part.value).any()]
    if empty:
        raise UserError(
            f"{frame.height} rows in {len(counts)} units of '{unit}' leave nothing for {', '.join(empty)}; "
            "choose a finer unit or fewer parts"
        )
    return result, list(_shares(counts, place, fractions))


def _joined_units(frame: pl.DataFrame, unit: str) -> dict[str, str]:
    """Unit -> the first (by name) of the units that must stay together with it."""
    keys = [pair_comparison_expr()]
    if unit == "premise_id":
        keys.append(comparison_expr(pl.col("premise")))
    parent: dict[str, str] = {key: key for key in sorted(frame[unit].cast(pl.String).unique())}

    def find(key: str) -> str:
        while parent[key] != key:
            parent[key] = parent[parent[key]]
            key = parent[key]
        return key

    for key in keys:
        shared = frame.select(pl.col(unit).cast(pl.String).alias("unit"), key.alias("key")).unique()
        for units in shared.group_by("key").agg(pl.col("unit").sort())["unit"].to_list():
            for other in units[1:]:
                first, second = sorted((find(units[0]), find(other)))
                parent[second] = first
    return {key: find(key) for key in parent}


def _feature_counts(frame: pl.DataFrame, unit: str, root: Mapping[str, str]) -> dict[str, dict[str, int]]:
    """Joined unit -> feature -> rows; a row counts in each of its domains."""
    counts: dict[str, Counter[str]] = {key: Counter() for key in sorted(set(root.values()))}
    columns = frame.select(pl.col(unit, "label").cast(pl.String), pl.col("domains").cast(pl.List(pl.String)))
    for key, label, domains in columns.iter_rows():
        counts[root[key]].update(["rows", f"label:{label}", *(f"domain:{domain}" for domain in domains)])
    return {key: dict(sorted(found.items())) for key, found in counts.items()}


class _Parts:
    """What each part holds of each feature, and what it would gain or lose with one unit more or less."""

    def __init__(self, counts: Mapping[str, Mapping[str, int]], fractions: Mapping[Split, float]) -> None:
        self.counts = counts
        totals: Counter[str] = Counter()
        for found in counts.values():
            totals.update(found)
        self.wanted = {part: {name: share * rows for name, rows in totals.items()} for part, share in fractions.items()}
        self.filled: dict[Split, Counter[str]] = {part: Counter() for part in fractions}

    def change(self, key: str, part: Split, sign: int) -> float:
        """Change of the sum over features of (rows - wanted)^2 / wanted if the unit comes (+1) or goes (-1)."""
        change = 0.0
        for feature, rows in self.counts[key].items():
            wanted = self.wanted[part][feature]
            change += (2 * sign * rows * (self.filled[part][feature] - wanted) + rows * rows) / wanted
        return change

    def put(self, key: str, part: Split, sign: int) -> None:
        for feature, rows in self.counts[key].items():
            self.filled[part][feature] += sign * rows

    def best(self, key: str, but: Split | None = None) -> Split:
        return min((part for part in self.filled if part is not but), key=lambda part: self.change(key, part, 1))

    def move(self, key: str, here: Split) -> Split:
        """Move the unit to another part if that brings the parts nearer to their shares; where it stands then."""
        there = self.best(key, but=here)
        if self.change(key, here, -1) + self.change(key, there, 1) >= -MIN_GAIN:
            return here
        self.put(key, here, -1)
        self.put(key, there, 1)
        return there


def _assign(
    order: Sequence[str], counts: Mapping[str, Mapping[str, int]], fractions: Mapping[Split, float]
) -> dict[str, Split]:
    """Greedy in the order given, then single units move while the parts come nearer to their shares."""
    parts = _Parts(counts, fractions)
    place: dict[str, Split] = {}
    for key in order:
        place[key] = parts.best(key)
        parts.put(key, place[key], 1)
    for _ in range(MAX_PASSES):
        before = dict(place)
        for key in order:
            place[key] = parts.move(key, place[key])
        if place == before:
            break
    return place


def _shares(
    counts: Mapping[str, Mapping[str, int]], place: Mapping[str, Split], fractions: Mapping[Split, float]
) -> Iterator[Share]:
    filled: dict[Split, Counter[str]] = {part: Counter() for part in fractions}
    largest: Counter[str] = Counter()
    for key, found in counts.items():
        filled[place[key]].update(found)
        largest |= Counter(found)
    totals: Counter[str] = Counter()
    for rows in filled.values():
        totals.update(rows)
    for feature in sorted(totals):
        for part, rows in filled.items():
            if feature == "rows":
                off = rows["rows"] / totals["rows"] - fractions[part]
            else:
                off = rows[feature] / rows["rows"] - totals[feature] / totals["rows"]
            yield Share(feature, part, rows[feature], 100 * off, largest[feature])
