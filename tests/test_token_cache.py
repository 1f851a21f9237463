"""Single texts in the token cache: each encoded once, whoever asks, and rows put together from them as without it."""

from __future__ import annotations

import json
import multiprocessing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from test_tokenization import FRAME, PAIR, make_frame
from tiny_models import TEXTS, bert_tokenizer, roberta_tokenizer, stand_in

from lightning_nli.crossdomain.records import read_records
from lightning_nli.crossdomain.runner import Board, fold_data, make_board, run_cells
from lightning_nli.crossdomain.suite import check_suite
from lightning_nli.data import tokenization
from lightning_nli.data.token_cache import text_tokens
from lightning_nli.data.tokenization import EncoderSpec, count_segment_tokens, tokenize_split
from lightning_nli.training.result import swapped_rows
from lightning_nli.types import BINARY

SUITE = {
    "name": "t",
    "version": 1,
    "data": "sample:600",
    "domains": ["administrative_organization", "culture_society"],
    "reference_folds": 2,
    "train_rows": 64,
}


@pytest.fixture
def encoded(monkeypatch) -> list[str]:
    """Every text that a tokenizer is asked for, in order."""
    asked: list[str] = []
    plain = tokenization._encode_texts

    def noting(texts, spec):
        asked.extend(texts)
        return plain(texts, spec)

    monkeypatch.setattr(tokenization, "_encode_texts", noting)
    return asked


@pytest.fixture(scope="module")
def board(tmp_path_factory) -> Board:
    return make_board(tmp_path_factory.mktemp("boards") / "b", check_suite(SUITE, "x"))


def assert_equal(one, other):
    for name in ("token_ids", "token_types", "offsets", "labels", "whole_lengths"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name), strict=True)


def stored_keys(cache: Path) -> list[bytes]:
    return [row.tobytes() for part in cache.glob("texts/*/*/keys.npy") for row in np.load(part)]


def frames_of(board: Board, cell):
    """All rows that a cell tokenizes: those that train, choose and are tested, and these under swapped premises."""
    data = fold_data(board, replace(cell, config=replace(cell.config, augment="premise_swap=1+1")))
    judge = board.judge
    for name, frame in {"train": data.train, **data.scored}.items():
        yield name, frame
        yield (
            f"{name} swapped",
            swapped_rows(frame, judge.swaps.unique("example_id", keep="first", maintain_order=True)),
        )


def test_the_folds_of_a_pool_share_their_tokens_and_have_the_ids_they_would_have_alone(board, encoded, tmp_path):
    spec = EncoderSpec(bert_tokenizer(), PAIR, 24, num_token_types=2)
    cells = board.cells(["hyponly-v1"])
    for cell in cells:
        for _, frame in frames_of(board, cell):
            cached = tokenize_split(frame, spec, BINARY, cache=tmp_path)
            before = len(encoded)
            fresh = tokenize_split(frame, spec, BINARY)
            assert_equal(cached, fresh)
            del encoded[before:]
    texts = {text for name in PAIR for text in board.pool.frame[name]}
    assert len(cells) == 6 and len(encoded) == len(set(encoded)) and set(encoded) <= texts
    assert len(encoded) > 0.9 * len(texts)  # no row of unknown domain
    assert len(stored_keys(tmp_path)) == len(encoded) and not (tmp_path / "tokens").exists()


def test_other_segments_lengths_and_rules_are_made_of_the_same_texts(encoded, tmp_path):
    frame = make_frame([(TEXTS[0], TEXTS[1], TEXTS[2]), (TEXTS[1], TEXTS[3], TEXTS[0]), (" ".join(TEXTS),) * 3])
    base = EncoderSpec(bert_tokenizer(), ("hypothesis", "condition", "premise"), 40)
    specs = [base, replace(base, max_length=16), replace(base, segments=PAIR), replace(base, num_token_types=2)]
    specs += [replace(base, truncation="proportional", ratio=(1, 2, 3), max_length=16)]
    for spec in specs:
        cached = tokenize_split(frame, spec, BINARY, cache=tmp_path)
        known = len(encoded)
        assert_equal(cached, tokenize_split(frame, spec, BINARY))
        del encoded[known:]
    counts = count_segment_tokens(frame, base, cache=tmp_path)
    assert len(encoded) == 5 and counts == count_segment_tokens(frame, base)
    assert len(list(tmp_path.glob("texts/*/"))) == 1


def test_d13_what_moves_an_id_has_texts_of_its_own(tmp_path):
    base = EncoderSpec(bert_tokenizer(), PAIR, 64)
    grown = bert_tokenizer()
    grown.add_tokens(["nghỉ hằng năm"])
    changes = ({}, {"tokenizer": roberta_tokenizer()}, {"tokenizer": grown}, {"normalize": False})
    for change in (*changes, *changes):
        spec = replace(base, **change)
        assert_equal(tokenize_split(FRAME, spec, BINARY, cache=tmp_path), tokenize_split(FRAME, spec, BINARY))
    assert len(list(tmp_path.glob("texts/*/"))) == len(list(tmp_path.glob("texts/*/*/"))) == len(changes)


def test_empty_texts_and_empty_splits(tmp_path):
    spec = EncoderSpec(bert_tokenizer(), PAIR, 64)
    for frame in (FRAME.clear(), make_frame([("", "", None)]), make_frame([("", TEXTS[0], None)])):
        for _ in range(2):
            assert_equal(tokenize_split(frame, spec, BINARY, cache=tmp_path), tokenize_split(frame, spec, BINARY))
    assert text_tokens([], tmp_path / "none", lambda texts: []) == [] and not (tmp_path / "none").exists()


def test_a_killed_writer_leaves_nothing_that_is_read(tmp_path):
    folder = tmp_path / "one"
    (folder / ".abc.12345678").mkdir(parents=True)
    (folder / ".abc.12345678" / "keys.npy").write_bytes(b"half")
    ids = [np.array([1, 2], np.int32), np.array([3], np.int32)]
    for _ in range(2):
        found = text_tokens(["a", "b"], folder, lambda texts: ids)
        assert [one.tolist() for one in found] == [[1, 2], [3]]


def _ask(folder: Path, first: int) -> list[tuple[str, int]]:
    """Ask for 40 texts; returns those that this process had to encode."""
    encoded: list[str] = []

    def encode(texts):
        encoded.extend(texts)
        return [np.array([int(text)], np.int32) for text in texts]

    texts = [str(number) for number in range(first, first + 40)]
    found = text_tokens(texts, folder, encode)
    assert [int(ids[0]) for ids in found] == [int(text) for text in texts]
    return encoded


@pytest.mark.slow
def test_processes_encode_every_text_once_between_them(tmp_path):
    with multiprocessing.get_context("fork").Pool(4) as pool:
        asked = pool.starmap(_ask, [(tmp_path / "one", 10 * (number % 4)) for number in range(16)])
    assert sorted(int(text) for texts in asked for text in texts) == list(range(70))


@pytest.mark.slow
def test_a_cell_gives_the_same_record_whether_other_folds_were_tokenized_before_it(tmp_path, monkeypatch, encoded):
    model = {
        "model": str(stand_in("all-minilm-l12", tmp_path / "model")),
        "max_length": 24,
        "epochs": 1,
        "truncation": "proportional",
        "trim_vocab": "auto",
    }
    suite = check_suite(SUITE | {"references": False, "models": {"m": model}}, "x")
    results = {}
    for name, folds in {"alone": slice(1, 2), "after another": slice(0, 2)}.items():
        monkeypatch.setenv("LNLI_CACHE", str(tmp_path / f"cache of {name}"))
        made = make_board(tmp_path / name, suite)
        del encoded[:]
        assert run_cells(made, made.cells(["m"])[folds]) == 0
        assert len(encoded) == len(set(encoded))
        (record,) = (one for one in read_records(made.folder) if one["fold"] == "out:culture_society")
        predictions = made.folder / "cells" / record["cell_id"] / "predictions"
        del record["wall_s"], record["result"]["cost"]
        results[name] = (json.dumps(record), {file.name: file.read_bytes() for file in predictions.iterdir()})
    assert results["alone"] == results["after another"]
