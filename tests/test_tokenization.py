"""Our ids are the library's own; truncation and cache change nothing but what they must."""

from __future__ import annotations

import multiprocessing
import unicodedata
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from tiny_models import TEXTS, bert_config, bert_tokenizer, roberta_model, roberta_tokenizer
from transformers import BertForSequenceClassification

from lightning_nli.data import tokenization
from lightning_nli.data.packing import MicroStep, collate_pack
from lightning_nli.data.schema import EXAMPLE_SCHEMA
from lightning_nli.data.segments import Template, truncate_segments
from lightning_nli.data.tokenization import EncoderSpec, tokenize_split
from lightning_nli.models.attention import AttentionBackend
from lightning_nli.models.encoder import PackedEncoder, first_position
from lightning_nli.types import BINARY, UserError

LONG = " ".join(TEXTS)


def make_frame(rows: list[tuple[str, str, str | None]]) -> pl.DataFrame:
    texts = pl.DataFrame(rows, schema=["premise", "hypothesis", "condition"], orient="row")
    missing = {name: pl.lit(None, dtype) for name, dtype in EXAMPLE_SCHEMA.items() if name not in texts.columns}
    labels = pl.Series("label", ["entailment", "non_entailment"] * len(rows))[: len(rows)].cast(EXAMPLE_SCHEMA["label"])
    return texts.with_columns(**missing).with_columns(labels, example_id=pl.arange(0, pl.len()).cast(pl.String))


FRAME = make_frame([(TEXTS[0], TEXTS[1], None), (LONG, TEXTS[2], None), (TEXTS[3], LONG, None), (LONG, LONG, None)])
PAIR = ("premise", "hypothesis")


def rows_of(split) -> list[list[int]]:
    return [split.token_ids[a:b].tolist() for a, b in zip(split.offsets, split.offsets[1:], strict=False)]


@pytest.mark.parametrize("make_tokenizer", [bert_tokenizer, roberta_tokenizer])
@pytest.mark.parametrize("max_length", [8, 15, 20, 33, 64, 512])
def test_ids_and_types_equal_the_librarys_pair_encoding(make_tokenizer, max_length):
    tokenizer = make_tokenizer()
    split = tokenize_split(FRAME, EncoderSpec(tokenizer, PAIR, max_length, num_token_types=2), BINARY)
    expected = tokenizer(
        FRAME["premise"].to_list(), FRAME["hypothesis"].to_list(), truncation="longest_first", max_length=max_length
    )
    assert rows_of(split) == expected["input_ids"]
    types = [split.token_types[a:b].tolist() for a, b in zip(split.offsets, split.offsets[1:], strict=False)]
    assert types == (expected.get("token_type_ids") or [[0] * len(row) for row in rows_of(split)])


def test_truncation_is_counted():
    whole = tokenize_split(FRAME, EncoderSpec(bert_tokenizer(), PAIR, 512), BINARY)
    cut = tokenize_split(FRAME, EncoderSpec(bert_tokenizer(), PAIR, 20), BINARY)
    assert (whole.num_truncated, whole.num_cut_tokens) == (0, 0)
    assert cut.num_truncated == sum(whole.lengths > 20) > 0
    assert cut.num_cut_tokens == whole.lengths.sum() - cut.lengths.sum()


def test_premise_first_keeps_the_hypothesis_whole():
    spec = EncoderSpec(bert_tokenizer(), PAIR, 24, truncation="premise_first")
    split = tokenize_split(FRAME, spec, BINARY)
    hypothesis = bert_tokenizer()(TEXTS[2], add_special_tokens=False)["input_ids"]
    assert rows_of(split)[1][-len(hypothesis) - 1 : -1] == hypothesis
    assert split.lengths.max() <= 24


@pytest.mark.parametrize(
    ("lengths", "budget"), [([5, 50], 20), ([50, 5], 20), ([40, 40], 21), ([3, 3, 90], 9), ([1, 1], 9)]
)
def test_no_text_is_emptied_and_the_budget_is_used(lengths, budget):
    for first in (None, 0, 1):
        kept = truncate_segments(lengths, budget, first=first)
        assert min(kept) >= 1
        assert all(k <= n for k, n in zip(kept, lengths, strict=True))
        assert sum(kept) == min(budget, sum(lengths))


def test_a_max_length_without_room_is_refused():
    with pytest.raises(UserError, match="max-length leaves 1 tokens for 2 texts"):
        tokenize_split(FRAME, EncoderSpec(bert_tokenizer(), PAIR, 4), BINARY)


def test_one_segment_is_the_librarys_single_encoding():
    split = tokenize_split(FRAME, EncoderSpec(roberta_tokenizer(), ("hypothesis",), 512), BINARY)
    assert rows_of(split) == roberta_tokenizer()(FRAME["hypothesis"].to_list())["input_ids"]


def test_t10_three_segments_never_ask_for_a_token_type_the_encoder_lacks():
    frame = make_frame([(LONG, TEXTS[0], TEXTS[1]), (TEXTS[2], TEXTS[3], TEXTS[0])])
    segments = ("hypothesis", "condition", "premise")
    tokenizer = roberta_tokenizer()
    one = tokenize_split(frame, EncoderSpec(tokenizer, segments, 60, num_token_types=1), BINARY)
    assert one.token_types is None
    model = roberta_model(tokenizer)
    batch = collate_pack(one, MicroStep((0, 1), 2), first_position=first_position(model))
    assert PackedEncoder(model, AttentionBackend.BUCKETED)(batch).shape == (2, 2)

    tokenizer = bert_tokenizer()
    two = tokenize_split(frame, EncoderSpec(tokenizer, segments, 60, num_token_types=2), BINARY)
    assert sorted(set(two.token_types.tolist())) == [0, 1]  # 0, 1, 1: the third text shares the second's type
    template = Template.of_tokenizer(tokenizer, 3)
    assert template.text_types == (0, 1, 1)
    bert = BertForSequenceClassification(bert_config(tokenizer, type_vocab_size=2)).eval()
    batch = collate_pack(two, MicroStep((0, 1), 2))
    assert PackedEncoder(bert, AttentionBackend.BUCKETED)(batch).shape == (2, 2)


def test_a_missing_text_is_refused():
    with pytest.raises(UserError, match="4 rows have no 'condition'"):
        tokenize_split(FRAME, EncoderSpec(bert_tokenizer(), ("hypothesis", "condition"), 64), BINARY)


def test_decomposed_and_composed_text_have_the_same_ids():
    decomposed = make_frame([(unicodedata.normalize("NFD", TEXTS[1]), TEXTS[0], None)])
    composed = make_frame([(TEXTS[1], TEXTS[0], None)])
    assert decomposed["premise"][0] != composed["premise"][0]
    spec = EncoderSpec(bert_tokenizer(), PAIR, 64)
    assert rows_of(tokenize_split(decomposed, spec, BINARY)) == rows_of(tokenize_split(composed, spec, BINARY))


def test_d13_the_cache_answers_for_equal_inputs_only(tmp_path, monkeypatch):
    monkeypatch.setattr(tokenization, "ROWS_IN_MEMORY", 0)  # what a large split is
    base = EncoderSpec(bert_tokenizer(), PAIR, 64)
    grown = bert_tokenizer()
    grown.add_tokens(["nghỉ hằng năm"])
    variants = {
        "base": (FRAME, base),
        "tokenizer": (FRAME, replace(base, tokenizer=roberta_tokenizer())),
        "added token": (FRAME, replace(base, tokenizer=grown)),
        "max_length": (FRAME, replace(base, max_length=20)),
        "normalize": (FRAME, replace(base, normalize=False)),
        "segments": (FRAME, replace(base, segments=("hypothesis",))),
        "text": (FRAME.reverse(), base),
    }
    for name, (frame, spec) in variants.items():
        cached = tokenize_split(frame, spec, BINARY, cache=tmp_path)
        assert rows_of(cached) == rows_of(tokenize_split(frame, spec, BINARY)), name
        assert isinstance(cached.token_ids, np.memmap)
    assert len(list((tmp_path / "tokens").iterdir())) == len(variants)

    def refuse(*_: object) -> None:
        raise AssertionError("encoded again")

    monkeypatch.setattr(tokenization, "_encode_frame", refuse)
    for frame, spec in variants.values():
        tokenize_split(frame, spec, BINARY, cache=tmp_path)


def _tokenize_in_child(cache: Path) -> list[list[int]]:
    tokenization.ROWS_IN_MEMORY = 0
    return rows_of(tokenize_split(FRAME, EncoderSpec(bert_tokenizer(), PAIR, 64), BINARY, cache=cache))


@pytest.mark.slow
def test_processes_may_ask_for_the_same_entry_at_once(tmp_path):
    with multiprocessing.get_context("spawn").Pool(3) as pool:
        found = pool.map(_tokenize_in_child, [tmp_path] * 6)
    assert all(rows == _tokenize_in_child(tmp_path) for rows in found)
    (entry,) = (tmp_path / "tokens").iterdir()
    assert (entry / "meta.json").exists()


def test_labels_become_class_indices_and_missing_ones_are_ignored():
    frame = FRAME.with_columns(label=pl.when(pl.col("example_id") == "1").then(None).otherwise(pl.col("label")))
    split = tokenize_split(frame, EncoderSpec(bert_tokenizer(), PAIR, 64), BINARY)
    assert split.labels.tolist() == [1, -100, 1, 0]
    assert torch.from_numpy(split.labels).dtype == torch.int64
