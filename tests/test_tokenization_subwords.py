"""Sub-word tokenizers built on the spot: our ids are the library's own; cached arrays are the fresh ones, whole."""

from __future__ import annotations

import os
import unicodedata
from dataclasses import replace

import numpy as np
import pytest
from test_tokenization import FRAME, LONG, PAIR, make_frame, rows_of
from tiny_models import TEXTS
from tokenizers import BertWordPieceTokenizer, Regex, Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import BertTokenizerFast, PreTrainedTokenizerFast

from lightning_nli.data import tokenization
from lightning_nli.data.tokenization import EncoderSpec, tokenize_split
from lightning_nli.types import BINARY

SPECIAL = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]


def word_pieces() -> BertTokenizerFast:
    """BERT's word pieces: single letters, continued letters and a few starts of words."""
    letters = sorted({letter for letter in LONG if not letter.isspace()})
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *(f"##{letter}" for letter in letters)]
    pieces += [piece for piece in ("Ng", "##ười", "ngày", "thu", "##ế") if piece not in pieces]
    backend = BertWordPieceTokenizer({p: i for i, p in enumerate(pieces)}, lowercase=False, strip_accents=False)
    return BertTokenizerFast(tokenizer_object=backend._tokenizer, do_lower_case=False)


def unigram() -> PreTrainedTokenizerFast:
    """XLM-R's layout over a unigram model: <s> A </s> </s> B </s>."""
    letters = sorted({letter for letter in LONG if not letter.isspace()})
    pieces = [(piece, 0.0) for piece in SPECIAL] + [("\u2581", -3.0), *((letter, -6.0) for letter in letters)]
    pieces += [("\u2581ngày", -2.0), ("\u2581thu", -2.5), ("ười", -2.5), ("\u2581l", -4.0)]
    backend = Tokenizer(models.Unigram(pieces, unk_id=3))
    backend.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(r"\s+"), " ")])
    backend.pre_tokenizer = pre_tokenizers.Metaspace(replacement="\u2581", prepend_scheme="always")
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    names = dict(zip(("bos_token", "pad_token", "eos_token", "unk_token", "mask_token"), SPECIAL, strict=True))
    return PreTrainedTokenizerFast(tokenizer_object=backend, cls_token="<s>", sep_token="</s>", **names)


TOKENIZERS = {"word pieces": word_pieces(), "unigram": unigram()}


def types_of(split) -> list[list[int]]:
    return [split.token_types[a:b].tolist() for a, b in zip(split.offsets, split.offsets[1:], strict=False)]


@pytest.mark.parametrize("max_length", [7, 30, 61, 100, 1024])
@pytest.mark.parametrize("name", TOKENIZERS)
def test_subword_pairs_equal_the_librarys(name, max_length):
    tokenizer = TOKENIZERS[name]
    split = tokenize_split(FRAME, EncoderSpec(tokenizer, PAIR, max_length, num_token_types=2), BINARY)
    texts = [FRAME[column].to_list() for column in PAIR]
    expected = tokenizer(*texts, truncation="longest_first", max_length=max_length)
    assert rows_of(split) == expected["input_ids"]
    assert types_of(split) == (expected.get("token_type_ids") or [[0] * len(row) for row in rows_of(split)])
    words = sum(len(text.split()) for text in texts[0])
    assert len(tokenizer(texts[0], add_special_tokens=False)["input_ids"][1]) > words  # words do break into pieces
    assert (split.num_truncated > 0) == (max_length < 1024)


@pytest.mark.parametrize("name", TOKENIZERS)
def test_one_subword_text_is_cut_as_the_library_cuts_it(name):
    tokenizer = TOKENIZERS[name]
    for max_length in (9, 1024):
        split = tokenize_split(FRAME, EncoderSpec(tokenizer, ("premise",), max_length), BINARY)
        expected = tokenizer(FRAME["premise"].to_list(), truncation=True, max_length=max_length)
        assert rows_of(split) == expected["input_ids"]


@pytest.mark.parametrize("truncation", ["longest_first", "premise_first"])
@pytest.mark.parametrize("name", TOKENIZERS)
def test_three_texts_stand_in_order_and_none_is_emptied(name, truncation):
    tokenizer = TOKENIZERS[name]
    segments = ("hypothesis", "condition", "premise")
    frame = make_frame([(LONG, TEXTS[0], TEXTS[1])])
    split = tokenize_split(frame, EncoderSpec(tokenizer, segments, 160, truncation=truncation), BINARY)
    (row,) = rows_of(split)
    first, middle, last = tokenizer("a")["input_ids"][0], tokenizer("a", "a")["input_ids"], tokenizer.sep_token_id
    separators = middle.count(last) - 1  # between two texts: one [SEP], or </s> </s>
    parts, part = [], []
    for token in row[1:]:
        if token == last:
            parts, part = ([*parts, part], []) if part else (parts, part)
        else:
            part.append(token)
    assert row[0] == first
    assert row.count(last) == 2 * separators + 1
    whole = [tokenizer(frame[column][0], add_special_tokens=False)["input_ids"] for column in segments]
    assert len(parts) == 3
    assert all(kept == text[: len(kept)] for kept, text in zip(parts, whole, strict=True))  # heads are kept
    assert len(row) == 160
    if truncation == "premise_first":
        assert parts[:2] == whole[:2]
    else:
        assert max(map(len, parts)) - len(parts[2]) <= 1  # the longest text gave first


def test_d13_normalization_decides_the_ids_and_the_entry(tmp_path):
    """On a decomposed text the two settings give other ids, so an entry of one may not answer for the other."""
    frame = make_frame([(unicodedata.normalize("NFD", LONG), TEXTS[0], None)])
    spec = EncoderSpec(TOKENIZERS["word pieces"], PAIR, 1024)
    found = {}
    for normalize in (True, False):
        one = replace(spec, normalize=normalize)
        found[normalize] = rows_of(tokenize_split(frame, one, BINARY, cache=tmp_path))
        assert found[normalize] == rows_of(tokenize_split(frame, one, BINARY))
    assert found[True] != found[False]


def test_d13_truncation_and_token_types_have_entries_of_their_own(tmp_path, monkeypatch):
    monkeypatch.setattr(tokenization, "ROWS_IN_MEMORY", 0)  # what a large split is
    spec = EncoderSpec(TOKENIZERS["word pieces"], PAIR, 60)
    for one in (spec, replace(spec, truncation="premise_first"), replace(spec, num_token_types=2)):
        fresh = tokenize_split(FRAME, one, BINARY)
        for _ in range(2):  # written, then read
            cached = tokenize_split(FRAME, one, BINARY, cache=tmp_path)
            for name in ("token_ids", "token_types", "offsets", "labels"):
                np.testing.assert_array_equal(getattr(cached, name), getattr(fresh, name), strict=True)
            assert (cached.num_truncated, cached.num_cut_tokens) == (fresh.num_truncated, fresh.num_cut_tokens)
    assert len(list((tmp_path / "tokens").iterdir())) == 3


def test_labels_are_not_part_of_the_entry(tmp_path, monkeypatch):
    monkeypatch.setattr(tokenization, "ROWS_IN_MEMORY", 0)
    spec = EncoderSpec(TOKENIZERS["word pieces"], PAIR, 60)
    tokenize_split(FRAME, spec, BINARY, cache=tmp_path)
    other = FRAME.with_columns(label=FRAME["label"].reverse())
    assert tokenize_split(other, spec, BINARY, cache=tmp_path).labels.tolist() == [0, 1, 0, 1]
    assert len(list((tmp_path / "tokens").iterdir())) == 1


@pytest.mark.parametrize("rows_in_memory", [0, 1000])
def test_a_group_can_share_the_cache(tmp_path, monkeypatch, rows_in_memory):
    """Entries follow the umask, as the encoders beside them do."""
    monkeypatch.setattr(tokenization, "ROWS_IN_MEMORY", rows_in_memory)
    before = os.umask(0o022)
    try:
        tokenize_split(FRAME, EncoderSpec(TOKENIZERS["unigram"], PAIR, 60), BINARY, cache=tmp_path)
    finally:
        os.umask(before)
    (entry,) = (file.parent for file in tmp_path.rglob("meta.json"))
    assert entry.stat().st_mode & 0o777 == 0o755
    assert {path.stat().st_mode & 0o777 for path in entry.iterdir()} == {0o644}
