"""What is in a corpus and what its texts give away: tables, lengths, overlap, agreement, artifacts, blind models."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import polars as pl

from lightning_nli.analysis.agreement import Agreement, analyze_agreement
from lightning_nli.analysis.artifacts import PUBLISHED_TOKENS, check_tokens, check_triggers, count_tokens, score_tokens
from lightning_nli.analysis.blind import BlindScores, blind_scores
from lightning_nli.analysis.lengths import describe, length_histogram, measure_lengths, share_histogram
from lightning_nli.analysis.overlap import MEASURES, add_overlap
from lightning_nli.analysis.pos import pos_shares
from lightning_nli.analysis.words import check_words
from lightning_nli.data.schema import Corpus
from lightning_nli.types import BINARY, UserError

log = logging.getLogger(__name__)

SIGNIFICANT = 0.05
"""Highest adjusted p value of a token in `CorpusAnalysis.tokens`."""

_LISTS = {"domain": "domains", "rule": "rule"}  # name in a table -> list column of the schema


@dataclass(frozen=True)
class CorpusAnalysis:
    """Figures of one corpus; shares are 0 to 1, null is "not known here".

    Attributes:
        source: As the user wrote it.
        labels: In class order.
        num_rows: Rows analyzed.
        num_bad_rows: Rows that reading left out.
        notes: What reading found odd, and what could not be computed here.
        splits: `split`, `label`, `rows`, `premises`, `laws` (distinct ones; 0 where the corpus names none).
        domains: `count_rows` by split, domain and label.
        rules: `count_rows` by split, label and rule: ViLegalNLI's Figure 6.
        cells: `count_rows` by split, domain, label and rule.
        lengths: `lengths.describe` of every segment and unit.
        length_histogram: `lengths.length_histogram`.
        overlap: `lengths.describe` of every measure of `overlap.MEASURES`, for each kind of `words`: Table 12.
        overlap_histogram: `lengths.share_histogram` of them, for each kind of `words`.
        agreement: Of raters; null where no row is rated.
        num_tokens: Tokens above the floor, that were scored.
        tokens: `artifacts.score_tokens`, the strongest of each label that are significant.
        triggers: `artifacts.check_triggers`: Table 9.
        published_tokens: `artifacts.check_tokens` of Table 13's tokens; null where the labels are not binary.
        blind: Models that read one text only; null where the corpus is too small for them (`notes` says why).
        pos: `pos.pos_shares`, if asked for: Table 12.
        seconds: How long each part took.
    """

    source: str
    labels: tuple[str, ...]
    num_rows: int
    num_bad_rows: int
    notes: tuple[str, ...]
    splits: pl.DataFrame
    domains: pl.DataFrame
    rules: pl.DataFrame
    cells: pl.DataFrame
    lengths: pl.DataFrame
    length_histogram: pl.DataFrame
    overlap: pl.DataFrame
    overlap_histogram: pl.DataFrame
    agreement: Agreement | None
    num_tokens: int
    tokens: pl.DataFrame
    triggers: pl.DataFrame
    published_tokens: pl.DataFrame | None
    blind: BlindScores | None
    pos: pl.DataFrame | None
    seconds: dict[str, float]

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers, texts, lists and dicts for JSON; a table is a list of its rows."""
        plain: dict[str, Any] = _plain(self)
        return plain | {"verdict": None if self.blind is None else self.blind.verdict}


def analyze_corpus(
    corpus: Corpus,
    *,
    words: str = "syllables",
    tokenizer: Any = None,
    ratings: pl.DataFrame | None = None,
    pos: str | None = None,
    max_n: int = 3,
    min_rows: int = 10,
    top: int = 50,
) -> CorpusAnalysis:
    """Analyze a labelled corpus. Everything but tables of counts is worked off in chunks of rows.

    Args:
        corpus: As `read_source` gives it.
        words: `syllables`; or a segmenter (`pyvi`, `underthesea`) for lengths and overlap in its words as well.
        tokenizer: A Hugging Face tokenizer for lengths in tokens; None: left out.
        ratings: Rows for the agreement (`agreement.read_ratings` keeps those that have lost a text); None: the corpus'.
        pos: Tagger for parts of speech (slow); None: left out.
        max_n: Longest token of the artifacts, in syllables.
        min_rows: Tokens in fewer hypotheses are not scored.
        top: Tokens kept a label.

    Raises:
        UserError: the corpus is empty or unlabelled, or an option cannot be used.
    """
    check_words(words)
    frame = corpus.frame
    if frame.is_empty() or frame["label"].null_count():
        raise UserError(f"source '{corpus.source}': {frame['label'].null_count()} of {frame.height} rows lack a label")
    notes = list(corpus.notes)
    parts: dict[str, Callable[[], dict[str, Any]]] = {
        "tables": lambda: _count_tables(frame),
        "lengths": lambda: _length_tables(frame, words, tokenizer),
        "overlap": lambda: _overlap_tables(frame, words),
        "agreement": lambda: {"agreement": analyze_agreement(frame if ratings is None else ratings)},
        "artifacts": lambda: _artifacts(corpus, max_n, min_rows, top),
        "blind": lambda: {"blind": _blind_scores(corpus, notes)},
        "pos": lambda: {"pos": None if pos is None else pos_shares(frame, pos)},
    }
    found: dict[str, Any] = {}
    seconds: dict[str, float] = {}
    for part, compute in parts.items():
        start = time.perf_counter()
        found |= compute()
        seconds[part] = time.perf_counter() - start
        log.info("%s: %.1f s", part, seconds[part])
    return CorpusAnalysis(
        source=corpus.source,
        labels=tuple(corpus.scheme.names),
        num_rows=frame.height,
        num_bad_rows=len(corpus.bad_rows),
        notes=tuple(notes),
        seconds=seconds,
        **found,
    )


def count_rows(frame: pl.DataFrame, by: Sequence[str]) -> pl.DataFrame:
    """Count rows by split, label, domain and rule, in both ways that a row of several domains (or rules) can count.

    Args:
        frame: Examples.
        by: Of `split`, `label`, `domain`, `rule`.

    Returns:
        Columns of `by` (null: the row has none), `rows` (a row counts in each of its domains and rules, so the sum over
        them exceeds the rows) and `weighted_rows` (a row of k domains counts 1/k in each: the sum is the rows).
    """
    lists = [name for name in by if name in _LISTS]
    distinct = {name: pl.col(_LISTS[name]).list.unique(maintain_order=True) for name in lists}
    table = frame.select(
        pl.when(distinct[name].list.len() > 0).then(distinct[name]).alias(name) if name in lists else name
        for name in by
    )
    weight = pl.lit(1.0)
    for name in lists:
        weight = weight / pl.col(name).list.len().fill_null(1)
    table = table.with_columns(weight=weight)
    for name in lists:
        table = table.explode(name)
    counts = table.group_by(by).agg(rows=pl.len().cast(pl.Int64), weighted_rows=pl.col("weight").sum())
    return counts.sort(by, nulls_last=True).with_columns(pl.col(pl.Enum).cast(pl.String))


def _count_splits(frame: pl.DataFrame) -> pl.DataFrame:
    counts = frame.group_by("split", "label").agg(
        rows=pl.len().cast(pl.Int64),
        premises=pl.col("premise_id").drop_nulls().n_unique().cast(pl.Int64),
        laws=pl.col("law_id").drop_nulls().n_unique().cast(pl.Int64),
    )
    return counts.sort("split", "label", nulls_last=True).with_columns(pl.col("split", "label").cast(pl.String))


def _count_tables(frame: pl.DataFrame) -> dict[str, Any]:
    return {
        "splits": _count_splits(frame),
        "domains": count_rows(frame, ("split", "domain", "label")),
        "rules": count_rows(frame, ("split", "label", "rule")),
        "cells": count_rows(frame, ("split", "domain", "label", "rule")),
    }


def _length_tables(frame: pl.DataFrame, words: str, tokenizer: Any) -> dict[str, Any]:
    measured = measure_lengths(frame, words=None if words == "syllables" else words, tokenizer=tokenizer)
    return {"lengths": describe(measured, frame), "length_histogram": length_histogram(measured, frame["label"])}


def _artifacts(corpus: Corpus, max_n: int, min_rows: int, top: int) -> dict[str, Any]:
    frame, scheme = corpus.frame, corpus.scheme
    scored = score_tokens(count_tokens(frame, scheme, max_n=max_n, min_rows=min_rows))
    strong = scored.filter((pl.col("z") > 0) & (pl.col("p_adjusted") < SIGNIFICANT))
    return {
        "num_tokens": scored["token"].n_unique(),
        "tokens": strong.group_by("label", maintain_order=True).head(top).select(scored.columns),
        "triggers": check_triggers(frame, scheme),
        "published_tokens": check_tokens(frame, scheme, PUBLISHED_TOKENS) if scheme == BINARY else None,
    }


def _overlap_tables(frame: pl.DataFrame, words: str) -> dict[str, Any]:
    kinds = dict.fromkeys(("syllables", words))
    texts = frame.select("premise", "hypothesis")
    shares = {kind: add_overlap(texts, kind).select(*MEASURES) for kind in kinds}
    return {
        "overlap": pl.concat(
            describe(table, frame).select(pl.lit(kind).alias("words"), pl.all()) for kind, table in shares.items()
        ),
        "overlap_histogram": pl.concat(
            share_histogram(table, frame["label"]).select(pl.lit(kind).alias("words"), pl.all())
            for kind, table in shares.items()
        ),
    }


def _blind_scores(corpus: Corpus, notes: list[str]) -> BlindScores | None:
    try:
        return blind_scores(corpus)
    except UserError as error:
        notes.append(f"no models that read one text only: {error}")
        return None


def _plain(value: Any) -> Any:
    if isinstance(value, pl.DataFrame):
        return value.with_columns(pl.col(pl.Enum).cast(pl.String)).to_dicts()
    if is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value
