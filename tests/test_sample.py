"""The embedded corpus: deterministic, balanced, and not to be solved from one side of the pair."""

from __future__ import annotations

import hashlib

import polars as pl
import pytest

from lightning_nli.baselines import hypothesis_only
from lightning_nli.data.sample import sample_corpus
from lightning_nli.data.schema import check_examples
from lightning_nli.data.splits import find_duplicates
from lightning_nli.types import BINARY, DOMAINS


@pytest.fixture(scope="module")
def corpus() -> pl.DataFrame:
    return sample_corpus()


def texts_hash(frame: pl.DataFrame, rows: int) -> str:
    text = "\n".join(
        "|".join(row) for row in frame.head(rows).select("premise", "hypothesis", "label").cast(pl.String).rows()
    )
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def test_it_is_the_same_everywhere(corpus):
    assert sample_corpus().equals(corpus)
    assert texts_hash(corpus, 50) == "d7e27e3918aa7a2b"
    assert not sample_corpus(200, seed=1).equals(sample_corpus(200))


def test_it_keeps_the_schema_and_every_field_of_law(corpus):
    check_examples(corpus, BINARY)
    assert set(corpus["domains"].explode().cast(pl.String).unique()) == set(DOMAINS)
    several = (corpus["domains"].list.len() > 1).mean()
    assert 0.20 < several < 0.32
    for column in ("law_id", "law_name", "law_date", "article", "premise_id", "split"):
        assert corpus[column].null_count() == 0


def test_labels_are_balanced_in_every_split_and_premises_never_straddle(corpus):
    for _, part in corpus.group_by("split"):
        assert 0.45 < (part["label"].cast(pl.String) == "entailment").mean() < 0.55
    assert corpus.group_by("premise_id").agg(pl.col("split").n_unique())["split"].max() == 1
    assert corpus.group_by("premise").agg(pl.col("split").n_unique())["split"].max() == 1


def test_pairs_do_not_repeat_and_rules_are_named(corpus):
    assert find_duplicates(corpus).rows.height == 0
    assert corpus["rule"].list.len().min() >= 1
    by_label = corpus.explode("rule").group_by("label").agg(pl.col("rule").unique().sort())
    rules = dict(zip(by_label["label"].cast(pl.String), by_label["rule"].to_list(), strict=True))
    assert len(rules["entailment"]) >= 5
    assert len(rules["non_entailment"]) >= 5


def test_a_size_is_honoured_and_a_larger_corpus_begins_with_the_smaller(corpus):
    small = sample_corpus(200)
    assert small.height == 200
    assert small.select("premise", "hypothesis").equals(corpus.head(200).select("premise", "hypothesis"))


@pytest.mark.parametrize("seen", ["hypothesis", "premise"])
def test_one_side_alone_does_not_give_the_label_away(corpus, seen):
    """hyponly-v1 stays under 0.65; the same on premises alone under 0.55."""
    frame = corpus.with_columns(hypothesis=pl.col(seen))
    train, test = (frame.filter(pl.col("split") == name) for name in ("train", "test"))
    answers = hypothesis_only(train, test, BINARY)
    accuracy = (answers["predicted"] == answers["label"].cast(pl.String)).mean()
    assert accuracy < (0.65 if seen == "hypothesis" else 0.55)
