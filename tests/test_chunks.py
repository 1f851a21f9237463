"""Chunk and pool: what the chunks are, that they are pooled right, and that a run trains and answers with them."""

from __future__ import annotations

import json
from itertools import pairwise

import numpy as np
import polars as pl
import pytest
import torch
from test_tokenization import make_frame
from tiny_models import TEXTS, bert_config, bert_tokenizer, roberta_model, roberta_tokenizer, stand_in
from transformers import BertForSequenceClassification

from lightning_nli.cli.main import main
from lightning_nli.data.packing import MicroStep, collate_pack
from lightning_nli.data.tokenization import EncoderSpec, tokenize_split
from lightning_nli.models.attention import AttentionBackend
from lightning_nli.models.chunks import ChunkPooling
from lightning_nli.models.encoder import PackedEncoder, first_position
from lightning_nli.models.padded import PaddedEncoder
from lightning_nli.training.trained import open_run
from lightning_nli.types import BINARY

SEGMENTS = ("hypothesis", "condition", "premise")
LAW = " ".join(TEXTS * 3)
FRAME = make_frame([(LAW, TEXTS[0], TEXTS[2]), (TEXTS[1], TEXTS[0], TEXTS[3]), (TEXTS[3], LAW, TEXTS[2])])
LENGTH = 48


def packed_batch(tokenizer, max_length: int = 400, position: int = 0):
    spec = EncoderSpec(tokenizer, SEGMENTS, max_length, num_token_types=2 if position == 0 else 1)
    split = tokenize_split(FRAME, spec, BINARY)
    return spec, collate_pack(split, MicroStep((0, 1, 2), 3), first_position=position)


def pieces(batch) -> list[list[int]]:
    bounds = batch.cu_seqlens.tolist()
    return [batch.input_ids[a:b].tolist() for a, b in pairwise(bounds)]


def test_every_chunk_has_the_other_texts_and_windows_cover_the_longest():
    spec, batch = packed_batch(bert_tokenizer())
    whole, size = pieces(batch), len(bert_tokenizer()(LAW, add_special_tokens=False)["input_ids"])
    assert [len(segment) > LENGTH for segment in whole] == [True, False, True]
    chunks, owner = ChunkPooling(LENGTH, "mean", spec.template.special_ids, 0).split(batch)
    found = pieces(chunks)
    assert owner.tolist() == sorted(owner.tolist()) and set(owner.tolist()) == {0, 1, 2}
    assert found[owner.tolist().index(1)] == whole[1]
    for segment, start in ((0, len(whole[0]) - size - 1), (2, 1)):  # where the longest text starts
        mine = [chunk for chunk, one in zip(found, owner.tolist(), strict=True) if one == segment]
        end = start + size
        prefix, suffix, text = whole[segment][:start], whole[segment][end:], whole[segment][start:end]
        window = LENGTH - len(prefix) - len(suffix)
        assert len(mine) == -(-size // window) > 1
        seen = np.zeros(size, bool)
        for number, chunk in enumerate(mine):
            assert len(chunk) == LENGTH
            assert chunk[: len(prefix)] == prefix and chunk[LENGTH - len(suffix) :] == suffix
            at = (size - window) * number // (len(mine) - 1)
            assert chunk[len(prefix) : LENGTH - len(suffix)] == text[at : at + window]
            seen[at : at + window] = True
        assert seen.all()
    assert chunks.max_seqlen == LENGTH and chunks.cu_seqlens.dtype == torch.int32
    assert chunks.position_ids.tolist() == [place for chunk in found for place in range(len(chunk))]
    types = dict(zip(batch.input_ids.tolist(), batch.token_type_ids.tolist(), strict=True))
    assert set(chunks.token_type_ids.tolist()) == set(types.values()) == {0, 1}


def test_windows_run_over_the_whole_segment_where_the_other_texts_leave_no_room():
    frame = make_frame([(LAW, LAW, TEXTS[2])])
    spec = EncoderSpec(roberta_tokenizer(), SEGMENTS, 400)
    batch = collate_pack(tokenize_split(frame, spec, BINARY), MicroStep((0,), 1), first_position=2)
    (whole,) = pieces(batch)
    chunks, owner = ChunkPooling(LENGTH, "max", spec.template.special_ids, 2).split(batch)
    assert set(owner.tolist()) == {0} and len(owner) == -(-(len(whole) - 2) // (LENGTH - 2))
    assert all(chunk[0] == whole[0] and chunk[-1] == whole[-1] and len(chunk) == LENGTH for chunk in pieces(chunks))
    covered = {token for chunk in pieces(chunks) for token in chunk}
    assert covered == set(whole)
    assert chunks.position_ids.min() == 2


@pytest.mark.parametrize("how", ["mean", "max"])
@pytest.mark.parametrize("road", ["packed", "padded"])
@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_logits_are_those_of_the_chunks_one_by_one(how, road, family):
    tokenizer = bert_tokenizer() if family == "bert" else roberta_tokenizer()
    if family == "bert":
        torch.manual_seed(0)
        model = BertForSequenceClassification(bert_config(tokenizer, type_vocab_size=2, initializer_range=0.3)).eval()
    else:
        model = roberta_model(tokenizer, initializer_range=0.3)
    position = first_position(model)
    make = {"packed": lambda: PackedEncoder(model, AttentionBackend.BUCKETED), "padded": lambda: PaddedEncoder(model)}
    encoder = make[road]()
    spec, batch = packed_batch(tokenizer, position=position)
    encoder.chunks = ChunkPooling(LENGTH, how, spec.template.special_ids, position)
    found = encoder(batch)
    chunks, owner = encoder.chunks.split(batch)
    encoder.chunks = None
    alone = encoder(chunks)
    for segment in range(3):
        mine = alone[owner == segment]
        expected = mine.mean(0) if how == "mean" else mine.max(0).values
        torch.testing.assert_close(found[segment], expected)
    assert found.std() > 0.01
    found.sum().backward()
    assert model.get_input_embeddings().weight.grad.abs().sum() > 0


FIT = "--lr 1e-3 --batch-size 4 --epochs 1 --precision fp32 --accelerator cpu --quiet --val-split none".split()


@pytest.mark.parametrize("trim", ["off", "auto"])
def test_a_run_reads_what_its_encoder_alone_could_not(tmp_path, trim, capsys):
    model = stand_in("bert", tmp_path / "model", max_position_embeddings=64)
    rows = tmp_path / "rows.jsonl"
    labels = ["entailment", "non_entailment"] * 4
    lines = [{"premise": f"{LAW} {number}", "hypothesis": TEXTS[number % 4], "label": label}
             for number, label in enumerate(labels)]  # fmt: skip
    rows.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines), encoding="utf-8")
    source = ["--data", str(rows), "--test-data", f"again={rows}", "--model", str(model), "--max-length", "300"]
    source += ["--trim-vocab", trim]
    assert main(["fit", *FIT, *source, "--run-dir", str(tmp_path / "no")]) == 2
    assert "reads at most 64 tokens" in capsys.readouterr().err
    run = tmp_path / "run"
    assert main(["fit", *FIT, *source, "--chunk-pool", "mean", "--run-dir", str(run)]) == 0
    result = json.loads((run / "result.json").read_text())
    assert result["encoder"]["chunk_length"] == 64
    assert result["data"]["truncation"]["sets"]["again"]["num_truncated"] == 0
    table = pl.read_parquet(run / "predictions" / "again.parquet")
    assert table["num_tokens"].min() > 64
    assert main(["predict", str(run), str(rows), str(tmp_path / "out.jsonl"), "--quiet"]) == 0
    found = pl.read_ndjson(tmp_path / "out.jsonl")["prob_entailment"].to_list()
    assert found == pytest.approx(table["prob_entailment"].to_list(), abs=1e-6)
    assert open_run(run).scorer.encoder.chunks.length == 64
    assert main(["export", str(run), str(tmp_path / "exported")]) == 0
    assert "reads no chunks: of longer inputs it sees 64 tokens" in capsys.readouterr().err


def test_chunks_that_nothing_needs_are_refused(tmp_path, capsys):
    model = stand_in("bert", tmp_path / "model")
    pieces = ["--data", "sample:40", "--model", str(model), "--chunk-pool", "max", "--max-length", "256"]
    assert main(["fit", *FIT, *pieces, "--run-dir", str(tmp_path / "run")]) == 2
    assert "reads 512 tokens, --max-length 256 needs no chunks" in capsys.readouterr().err
