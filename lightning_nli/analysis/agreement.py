"""Agreement between raters: Fleiss' and pairwise Cohen's kappa with intervals by law, and with the released label.

Ratings come as `EXAMPLE_SCHEMA` holds them, rater and label, never as counts: items x raters and items x labels look
alike. A rating that was not given is left out, it agrees and disagrees with nobody.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl

from lightning_nli.data.readers import READERS, read_source
from lightning_nli.data.schema import EXAMPLE_SCHEMA, LABEL_DTYPE
from lightning_nli.data.source_specs import NO_GOLD_LABEL, SourceSpec, looks_like_contract_nli, sniff
from lightning_nli.data.sources import find_files, parse_source
from lightning_nli.data.tables import iter_rows, match_columns, read_table, require_columns
from lightning_nli.data.values import parse_column
from lightning_nli.statistics import Estimate, FloatArray, Statistic, jackknife
from lightning_nli.types import UserError

ONE_CATEGORY = "undefined (one category only)"

_LAST_DIGIT = 1e-12  # chance agreement of one category is 1 but for rounding
_UNITS = ("law_id", "group_id", "premise_id")
_LONG_SCHEMA: dict[str, pl.DataType] = {
    "item": pl.UInt32(),
    "unit": pl.String(),
    "rater": pl.String(),
    "rating": LABEL_DTYPE,
}


@dataclass(frozen=True)
class Kappa:
    """Agreement beyond chance.

    Attributes:
        raters: Whose.
        estimate: Kappa; its 95% interval is a delete-one-law jackknife (units: `law_id`, where rows lack it `group_id`,
            `premise_id`, else rows; fewer than 5 give no interval). Null, with the reason as its note, where chance
            agreement is 1: all ratings are one label.
        observed: Share of agreeing pairs of ratings; null: no item has two ratings.
        expected: The same by chance.
        num_items: Items with two ratings or more.
        num_missing: Ratings that were not given, of items with another one.
    """

    raters: tuple[str, ...]
    estimate: Estimate
    observed: float | None
    expected: float | None
    num_items: int
    num_missing: int


@dataclass(frozen=True)
class Agreement:
    """How far the raters of a corpus agree with each other and with its labels.

    Attributes:
        raters: Their names, sorted.
        fleiss: Of all raters.
        cohen: Of each two raters.
        with_label: `agreement_table`.
        num_unrated: Rows without a rating.
        num_undecided: Rated rows without a majority.
    """

    raters: tuple[str, ...]
    fleiss: Kappa
    cohen: tuple[Kappa, ...]
    with_label: pl.DataFrame
    num_unrated: int
    num_undecided: int


def analyze_agreement(frame: pl.DataFrame) -> Agreement | None:
    """All of the below; None if no row has a rating.

    Args:
        frame: Rows with `label` and `ratings`.

    Raises:
        UserError: a rater has two ratings of one row.
    """
    raters = tuple(_long(frame)["rater"].unique().sort())
    if not raters:
        return None
    majority = add_majority(frame)
    rated = pl.col("num_ratings") > 0
    return Agreement(
        raters=raters,
        fleiss=fleiss_kappa(frame),
        cohen=tuple(cohen_kappa(frame, *pair) for pair in combinations(raters, 2)),
        with_label=_agreement_table(majority, len(raters)),
        num_unrated=majority.filter(~rated).height,
        num_undecided=majority.filter(rated & pl.col("majority").is_null()).height,
    )


def fleiss_kappa(frame: pl.DataFrame) -> Kappa:
    """Fleiss' kappa (1971) in the form for items with different numbers of ratings.

    Observed agreement is the mean, over items with two ratings or more, of the share of agreeing pairs of an item's
    ratings, sum_j n_ij (n_ij - 1) / (n_i (n_i - 1)). Agreement by chance is sum_j p_j^2, p_j the mean of n_ij / n_i
    over items with a rating. With equal numbers of ratings this is Fleiss' own formula.

    All ratings one label: chance alone agrees always, kappa is 0/0 and null, never 0 or 1; `observed` is 1.

    Args:
        frame: Rows with `ratings`.

    Raises:
        UserError: a rater has two ratings of one row.
    """
    long = _long(frame)
    raters = tuple(long["rater"].unique().sort())
    counts, units = _counts(long)
    size = counts.sum(axis=1)
    is_pair = size > 1
    pairs = np.where(is_pair, size * (size - 1), 1.0)
    agreeing = (counts * (counts - 1)).sum(axis=1) / pairs
    items = np.column_stack([np.where(is_pair, agreeing, 0.0), is_pair, np.ones(len(size)), counts / size[:, None]])
    missing = int(len(raters) * len(size) - size.sum())
    return _kappa(raters, items, units, _fleiss, num_items=int(is_pair.sum()), num_missing=missing)


def cohen_kappa(frame: pl.DataFrame, first: str, second: str) -> Kappa:
    """Cohen's kappa (1960) of two raters over the rows that both rated; both always the same one label: null.

    Args:
        frame: Rows with `ratings`.
        first: A rater.
        second: Another.

    Raises:
        UserError: a rater has two ratings of one row.
    """
    long = _long(frame)
    one, other = (
        long.filter(pl.col("rater") == rater).select("item", "unit", code=pl.col("rating").to_physical())
        for rater in (first, second)
    )
    both = one.join(other, on=["item", "unit"], how="inner", maintain_order="left")
    size = len(LABEL_DTYPE.categories)
    cells = both["code"].to_numpy().astype(np.int64) * size + both["code_right"].to_numpy()
    items = np.zeros((both.height, size * size))
    items[np.arange(both.height), cells] = 1.0
    missing = one.height + other.height - 2 * both.height
    return _kappa((first, second), items, both["unit"], _cohen, num_items=both.height, num_missing=missing)


def agreement_table(frame: pl.DataFrame) -> pl.DataFrame:
    """How many raters gave a row its label, as ViLegalNLI's Table 7 has it.

    Args:
        frame: Rows with `label` and `ratings`.

    Returns:
        `label` (null: all rows), `num_agreeing` (from the number of raters down to 0), `rows`, `share` (of the rows of
        the label), `share_or_more` (where at least so many agree). Rows without a rating are left out; in the others a
        rating that was not given does not agree.
    """
    return _agreement_table(add_majority(frame), _long(frame)["rater"].n_unique())


def _agreement_table(majority: pl.DataFrame, num_raters: int) -> pl.DataFrame:
    counted = majority.filter(pl.col("num_ratings") > 0).select("label", "num_agreeing")
    parts = []
    for label in [*counted["label"].drop_nulls().unique().sort(), None]:
        rows = counted if label is None else counted.filter(pl.col("label") == label)
        agreeing = np.bincount(rows["num_agreeing"].to_numpy(), minlength=num_raters + 1)[::-1].astype(np.int64)
        parts.append(
            pl.DataFrame(
                {
                    "label": pl.Series([label] * len(agreeing), dtype=LABEL_DTYPE),
                    "num_agreeing": np.arange(len(agreeing))[::-1].astype(np.int64),
                    "rows": agreeing,
                    "share": agreeing / max(rows.height, 1),
                    "share_or_more": agreeing.cumsum() / max(rows.height, 1),
                }
            )
        )
    return pl.concat(parts)


def add_majority(frame: pl.DataFrame) -> pl.DataFrame:
    """Add what the raters say of each row; it does not depend on their order.

    Args:
        frame: Rows with `label` and `ratings`.

    Returns:
        With `num_ratings`, `num_agreeing` (raters who gave the row its label) and `majority`: the label that more than
        half of the ratings give, null where there is none.
    """
    given = pl.col("ratings").list.eval(pl.element().struct.field("label").cast(pl.String)).list.drop_nulls()
    counts = {name: given.list.count_matches(name) for name in LABEL_DTYPE.categories}
    total = given.list.len()
    winners = [pl.when(2 * count > total).then(pl.lit(name, dtype=LABEL_DTYPE)) for name, count in counts.items()]
    agreeing = pl.sum_horizontal((pl.col("label").cast(pl.String) == name) * count for name, count in counts.items())
    return frame.with_columns(
        num_ratings=total.fill_null(0), num_agreeing=agreeing.fill_null(0), majority=pl.coalesce(winners)
    )


def read_ratings(source: str) -> pl.DataFrame:
    """Labels and ratings of a source, those of rows without a text included: they were rated before the text was lost.

    Args:
        source: As `read_source` takes it.

    Returns:
        `label`, `ratings`, `law_id` and `split` of each row with a label, in source order.

    Raises:
        UserError: the source cannot be read.
    """
    request = parse_source(source, READERS)
    spec = READERS["sample"] if request.path is None else _spec_of(request.reader, request.path)
    columns = ("label", "ratings", "law_id", "split")
    if request.path is None or not spec.raters:
        return read_source(source, on_bad_row="drop").frame.select(columns)
    files = [
        (file, split)
        for file, split in find_files(request.path, spec.files)
        if request.split is None or split is request.split
    ]
    if not files:
        raise UserError(f"{request.path} has no split '{request.split}'")
    tables = [
        _rated_rows(read_table(file), spec, str(file)).with_columns(split=pl.lit(split.value if split else None))
        for file, split in files
    ]
    return pl.concat(tables).select(pl.col(name).cast(EXAMPLE_SCHEMA[name]) for name in columns)


def _spec_of(reader: str | None, path: Path) -> SourceSpec:
    """The reader named, or the one that the columns of the (first) file speak for."""
    if reader is not None:
        return READERS[reader]
    file = find_files(path)[0][0]
    if looks_like_contract_nli(file):
        return READERS["contractnli"]
    first_rows = next(iter_rows(file, chunk_rows=1), None)
    return sniff([] if first_rows is None else first_rows.columns)


def _rated_rows(table: pl.DataFrame, spec: SourceSpec, file: str) -> pl.DataFrame:
    wanted = {name: spec.columns[name] for name in ("label", "law_id") if name in spec.columns}
    wanted |= {rater: (column,) for rater, column in spec.raters.items()}
    picked = match_columns(table.columns, wanted)
    require_columns(picked, ("label",), wanted, table.columns, file)

    def parse(text: str) -> str | None:
        key = text.strip().removesuffix(".0")
        if key in NO_GOLD_LABEL:
            return None
        if key.casefold() not in spec.spellings:
            raise ValueError(f"unknown label '{text}'")
        return spec.spellings[key.casefold()].value

    labels = []
    raters = [rater for rater in spec.raters if rater in picked]
    for name in ("label", *raters):
        column = parse_column(table[picked[name]], parse, LABEL_DTYPE)
        if column.reasons.count():
            raise UserError(f"{file}, column '{picked[name]}': {column.reasons.drop_nulls()[0]}")
        labels.append(column.values.alias(name))
    law_id = pl.col(picked["law_id"]).str.strip_chars() if "law_id" in picked else pl.lit(None, pl.String)
    rated = [pl.struct(rater=pl.lit(rater), label=pl.col(rater)) for rater in raters]
    rows = table.select(law_id=law_id).with_columns(labels)
    ratings = pl.concat_list(rated) if rated else pl.lit([], EXAMPLE_SCHEMA["ratings"])
    return rows.select("label", "law_id", ratings=ratings).drop_nulls("label")


def _long(frame: pl.DataFrame) -> pl.DataFrame:
    """One row a rating that was given: `item`, `unit`, `rater`, `rating`."""
    unit = next((name for name in _UNITS if name in frame.columns and not frame[name].null_count()), None)
    item = pl.int_range(pl.len(), dtype=pl.UInt32)
    rows = frame.select(item=item, unit=pl.col(unit) if unit else item.cast(pl.String), rating="ratings")
    long = rows.filter(pl.col("rating").list.len() > 0).explode("rating")
    long = long.select(
        "item",
        "unit",
        rater=pl.col("rating").struct.field("rater"),
        rating=pl.col("rating").struct.field("label"),
    ).drop_nulls("rating")
    repeated = long.filter(pl.struct("item", "rater").is_duplicated())
    if repeated.height:
        item, _, rater, _ = repeated.row(0)
        raise UserError(f"row {item + 1} has two ratings of '{rater}'; a rater counts once")
    return long.cast(_LONG_SCHEMA)  # type: ignore[arg-type]


def _counts(long: pl.DataFrame) -> tuple[FloatArray, pl.Series]:
    """Ratings of each item by label, (items, labels), and the unit of each item."""
    items = long.unique("item", keep="first", maintain_order=True)
    place = long["item"].rank("dense").to_numpy().astype(np.int64) - 1
    size = len(LABEL_DTYPE.categories)
    cells = place * size + long["rating"].to_physical().to_numpy()
    counts = np.bincount(cells, minlength=items.height * size).reshape(items.height, size)
    return counts.astype(np.float64), items["unit"]


def _kappa(
    raters: Sequence[str],
    items: FloatArray,
    units: pl.Series,
    parts: Statistic,
    *,
    num_items: int,
    num_missing: int,
) -> Kappa:
    """The figure over all items: `parts` gives (..., 2) observed and expected agreement from sums over items."""

    def kappa(sums: FloatArray) -> FloatArray:
        values = parts(sums)
        observed, expected = values[..., 0], values[..., 1]
        with np.errstate(divide="ignore", invalid="ignore"):
            is_defined = 1 - expected > _LAST_DIGIT
            return np.where(is_defined, (observed - expected) / (1 - expected), np.nan)

    codes: npt.NDArray[np.int64] = units.rank("dense").to_numpy().astype(np.int64) - 1
    num_units = int(codes.max()) + 1 if len(codes) else 0
    sums = np.zeros((num_units, items.shape[1]))
    np.add.at(sums, codes, items)
    estimate = jackknife(sums, kappa, sizes=np.bincount(codes, minlength=num_units).astype(np.float64))
    observed, expected = parts(sums.sum(axis=0)).tolist() if num_items else (None, None)
    if estimate.value is None:
        note = ONE_CATEGORY if num_items else "no item has two ratings"
    else:
        note = "" if estimate.low is not None else estimate.note
    return Kappa(tuple(raters), replace(estimate, note=note), observed, expected, num_items, num_missing)


def _fleiss(sums: FloatArray) -> FloatArray:
    with np.errstate(divide="ignore", invalid="ignore"):
        observed = sums[..., 0] / sums[..., 1]
        shares = sums[..., 3:] / sums[..., 2:3]
    return np.stack([observed, (shares**2).sum(-1)], axis=-1)


def _cohen(sums: FloatArray) -> FloatArray:
    size = len(LABEL_DTYPE.categories)
    counts = sums.reshape(*sums.shape[:-1], size, size)
    total = counts.sum((-1, -2))
    with np.errstate(divide="ignore", invalid="ignore"):
        observed = np.diagonal(counts, axis1=-2, axis2=-1).sum(-1) / total
        expected = (counts.sum(-1) * counts.sum(-2)).sum(-1) / total**2
    return np.stack([observed, expected], axis=-1)
