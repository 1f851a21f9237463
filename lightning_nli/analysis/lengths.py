"""How long the texts of a corpus are, in syllables, words and tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import polars as pl

from lightning_nli.analysis.words import check_words, word_lists
from lightning_nli.data.text import normalize_expr
from lightning_nli.types import SEGMENT_NAMES

UNITS: dict[str, str] = {
    "syllables": "runs of letters and marks between white space",
    "words": "words of a Vietnamese segmenter, marks included",
    "tokens": "a tokenizer's tokens, without its special ones",
}
"""Unit of length -> what it is."""

QUANTILES = {"min": 0.0, "q25": 0.25, "median": 0.5, "q75": 0.75, "q95": 0.95, "max": 1.0}

_CHUNK_ROWS = 50_000
_MAX_BINS = 30
_STEPS = (1, 2, 5)  # bins are 1, 2, 5, 10, 20, 50, ... wide


def measure_lengths(frame: pl.DataFrame, *, words: str | None = None, tokenizer: Any = None) -> pl.DataFrame:
    """Length of each text, a column `SEGMENT_UNIT` (`premise_syllables`) for each segment that the corpus has.

    Args:
        frame: Rows with `premise`, `hypothesis` and possibly `condition`.
        words: Segmenter of the unit `words` (`pyvi`, `underthesea`); None: left out.
        tokenizer: A Hugging Face tokenizer for the unit `tokens`; None: left out.

    Returns:
        As many rows as `frame`, UInt32; null where a row lacks the text.

    Raises:
        UserError: the segmenter cannot be used.
    """
    if words is not None:
        check_words(words)
    segments = [name for name in SEGMENT_NAMES if name in frame.columns and frame[name].count()]
    chunks = frame.select(segments).iter_slices(_CHUNK_ROWS)
    return pl.concat([_lengths_of(chunk, segments, words, tokenizer) for chunk in chunks] or [pl.DataFrame()])


def _lengths_of(rows: pl.DataFrame, segments: Sequence[str], words: str | None, tokenizer: Any) -> pl.DataFrame:
    columns = []
    for name in segments:
        text = normalize_expr(pl.col(name))
        columns.append(rows.select(text.str.count_matches(r"\S+").alias(f"{name}_syllables")).to_series())
        if words is not None:
            columns.append(word_lists(rows[name], words).list.len().alias(f"{name}_words"))
        if tokenizer is not None:
            columns.append(_token_counts(rows.select(text).to_series(), tokenizer).alias(f"{name}_tokens"))
    return pl.DataFrame(columns).cast(pl.UInt32)


def _token_counts(texts: pl.Series, tokenizer: Any) -> pl.Series:
    distinct = texts.drop_nulls().unique(maintain_order=True)
    if distinct.is_empty():
        return pl.Series([None] * len(texts), dtype=pl.UInt32)
    ids = tokenizer(distinct.to_list(), add_special_tokens=False, verbose=False)["input_ids"]
    counts = pl.DataFrame({"text": distinct, "tokens": pl.Series([len(row) for row in ids], dtype=pl.UInt32)})
    return texts.rename("text").to_frame().join(counts, on="text", how="left", maintain_order="left")["tokens"]


def describe(values: pl.DataFrame, by: pl.DataFrame) -> pl.DataFrame:
    """Mean, spread and quantiles of each column, over all rows and by each column of `by` and all of them together.

    Args:
        values: Numbers.
        by: `split` and `label` of the same rows.

    Returns:
        `measure` (column of `values`), `split`, `label` (null: all; rows without a split stand in "all" only), `rows`
        with a value, `mean`, `sd` and `QUANTILES`; a group without a value is left out.
    """
    table = pl.concat([by.select(pl.col("split", "label").cast(pl.String)), values.cast(pl.Float64)], how="horizontal")
    parts = []
    for measure in values.columns:
        value = pl.col(measure).drop_nulls()
        summary = [
            value.len().cast(pl.Int64).alias("rows"),
            value.mean().alias("mean"),
            value.std().alias("sd"),
            *(value.quantile(share, "linear").alias(name) for name, share in QUANTILES.items()),
        ]
        for keys in ([], ["label"], ["split"], ["split", "label"]):
            known = table.filter(pl.all_horizontal(pl.col(key).is_not_null() for key in keys)) if keys else table
            rows = known.group_by(keys).agg(summary).sort(keys) if keys else known.select(summary)
            absent = [pl.lit(None, pl.String).alias(key) for key in ("split", "label") if key not in keys]
            found = rows.with_columns(absent).filter(pl.col("rows") > 0)
            parts.append(found.select(pl.lit(measure).alias("measure"), "split", "label", *_SUMMARY))
    return pl.concat(parts)


_SUMMARY = ("rows", "mean", "sd", *QUANTILES)


def length_histogram(lengths: pl.DataFrame, labels: pl.Series) -> pl.DataFrame:
    """Texts by length: bins of equal width (1, 2, 5, 10, ...), the last open, lest a few long texts stretch the rest.

    Args:
        lengths: Of `measure_lengths`.
        labels: Label of each row.

    Returns:
        `measure`, `label`, `low` (first length in the bin), `high` (last; null: open), `rows`; empty bins included.
    """
    parts = []
    for measure in lengths.columns:
        width = _bin_width(lengths[measure])
        longest = lengths[measure].quantile(0.99) or 0
        last = int(longest) // width
        bins = pl.DataFrame({"bin": range(last + 1)}, schema={"bin": pl.Int64})
        place = (pl.col(measure).cast(pl.Int64) // width).clip(upper_bound=last)
        parts.append(
            _counts_by_label(lengths.select(bin=place), labels, bins).select(
                pl.lit(measure).alias("measure"),
                "label",
                low=pl.col("bin") * width,
                high=pl.when(pl.col("bin") < last).then((pl.col("bin") + 1) * width - 1),
                rows="rows",
            )
        )
    return pl.concat(parts)


def share_histogram(shares: pl.DataFrame, labels: pl.Series, bins: int = 10) -> pl.DataFrame:
    """Rows by a share between 0 and 1, in bins of equal width; the last holds 1.

    Args:
        shares: A column a measure.
        labels: Label of each row.
        bins: Their number.

    Returns:
        `measure`, `label`, `low` (included), `high` (excluded but for 1), `rows`; empty bins included.
    """
    every = pl.DataFrame({"bin": range(bins)}, schema={"bin": pl.Int64})
    parts = []
    for measure in shares.columns:
        place = (pl.col(measure) * bins).floor().cast(pl.Int64).clip(0, bins - 1)
        parts.append(
            _counts_by_label(shares.select(bin=place), labels, every).select(
                pl.lit(measure).alias("measure"),
                "label",
                low=pl.col("bin") / bins,
                high=(pl.col("bin") + 1) / bins,
                rows="rows",
            )
        )
    return pl.concat(parts)


def _counts_by_label(places: pl.DataFrame, labels: pl.Series, bins: pl.DataFrame) -> pl.DataFrame:
    rows = places.with_columns(labels.cast(pl.String).alias("label")).drop_nulls()
    counts = rows.group_by("label", "bin").agg(rows=pl.len().cast(pl.Int64))
    every = labels.cast(pl.String).alias("label").unique().drop_nulls().sort().to_frame().join(bins, how="cross")
    return every.join(counts, on=["label", "bin"], how="left", maintain_order="left").with_columns(
        pl.col("rows").fill_null(0)
    )


def _bin_width(lengths: pl.Series) -> int:
    """The smallest width of 1, 2, 5, 10, ... that puts 99% of the lengths into `_MAX_BINS` bins."""
    longest = lengths.quantile(0.99) or 0
    power = 1
    while True:
        for step in _STEPS:
            if longest < step * power * _MAX_BINS:
                return step * power
        power *= 10
