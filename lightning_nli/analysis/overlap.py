"""How much of a hypothesis stands in its premise: each measure by name, over all rows at once."""

from __future__ import annotations

import numpy as np
import polars as pl

from lightning_nli.analysis.words import check_words, word_lists
from lightning_nli.data.text import normalize_expr
from lightning_nli.types import UserError

MEASURES: dict[str, str] = {
    "jaccard": "Jaccard index: distinct words in both texts by distinct words in either",
    "new_word_rate": "new-word rate: distinct words of the hypothesis not in the premise, by its distinct words",
    "lcs": "longest common subsequence by the length of the longer text",
    "vianli_overlap": "ViANLI's formula (1) as printed: distinct words in both by the sum of the premise's words, "
    "the hypothesis' words and the distinct words in either; never above 1/3",
}
"""Measure -> what it is. All are shares between 0 and 1."""

LCS_UNITS = ("characters", "words")

_CHUNK_ROWS = 50_000
_SCHEMA = dict.fromkeys(MEASURES, pl.Float64())


def add_overlap(frame: pl.DataFrame, words: str = "syllables", *, lcs_units: str = "characters") -> pl.DataFrame:
    """Add the columns of `MEASURES`: what premise and hypothesis have in common.

    With pyvi's words, as sets, and characters for the subsequence the figures are those of ViLegalNLI's Table 12. The
    subsequence is taken in the normalized texts with case and spaces as they are. Rows are worked off in chunks, so
    memory does not grow with the words of all texts.

    Args:
        frame: Rows with `premise` and `hypothesis`.
        words: What counts as a word (`words.WORDS`).
        lcs_units: `characters`, or `words` for the subsequence of words.

    Returns:
        `frame` with four more Float64 columns; a measure is null where a text without words leaves it undefined.

    Raises:
        UserError: `words` or `lcs_units` is unknown.
    """
    check_words(words)
    if lcs_units not in LCS_UNITS:
        raise UserError(f"unknown unit '{lcs_units}' of the common subsequence; choose one of {', '.join(LCS_UNITS)}")
    chunks = [
        _overlap_of(chunk, words, lcs_units)
        for chunk in frame.select("premise", "hypothesis").iter_slices(_CHUNK_ROWS)
        if chunk.height
    ]
    return frame.with_columns(pl.concat([pl.DataFrame(schema=_SCHEMA), *chunks]))


def _overlap_of(rows: pl.DataFrame, words: str, lcs_units: str) -> pl.DataFrame:
    lists = pl.DataFrame([word_lists(rows[name], words) for name in ("premise", "hypothesis")])
    premise, hypothesis = pl.col("premise"), pl.col("hypothesis")
    distinct = lists.select(
        shared=premise.list.set_intersection(hypothesis).list.len(),
        either=premise.list.set_union(hypothesis).list.len(),
        asked=hypothesis.list.n_unique(),
        all=premise.list.len() + hypothesis.list.len(),
    ).cast(pl.Float64)
    shared, either, asked = pl.col("shared"), pl.col("either"), pl.col("asked")
    return distinct.select(
        jaccard=_share(shared, either),
        new_word_rate=_share(asked - shared, asked),
        lcs=_common_subsequence(rows, lists, lcs_units),
        vianli_overlap=_share(shared, pl.col("all") + either),
    )


def _share(part: pl.Expr, whole: pl.Expr) -> pl.Expr:
    return pl.when(whole > 0).then(part / whole)


def _common_subsequence(rows: pl.DataFrame, lists: pl.DataFrame, units: str) -> pl.Series:
    from rapidfuzz import process
    from rapidfuzz.distance import LCSseq

    texts = rows.select(normalize_expr(pl.col("premise", "hypothesis"))) if units == "characters" else lists
    first, second = (texts[name].to_list() for name in ("premise", "hypothesis"))
    shares = process.cpdist(first, second, scorer=LCSseq.normalized_similarity, dtype=np.float64)
    is_defined = pl.Series([bool(one or other) for one, other in zip(first, second, strict=True)], dtype=pl.Boolean)
    return pl.select(pl.when(is_defined).then(pl.Series(shares, dtype=pl.Float64))).to_series()
