"""CBoW: words of the run's texts, vectors from a file, the same trainer, checkpoints and commands as any encoder."""

from __future__ import annotations

import json
import logging
from collections import Counter

import numpy as np
import polars as pl
import pytest
import torch
from test_tokenization import make_frame
from transformers import AutoModel, AutoTokenizer

from lightning_nli.cli.main import main
from lightning_nli.data.packing import MicroStep, collate_pack
from lightning_nli.data.readers import read_source
from lightning_nli.data.tokenization import EncoderSpec, tokenize_split
from lightning_nli.models.cbow import register_cbow
from lightning_nli.models.cbow_folder import read_vectors
from lightning_nli.models.encoder import load_encoder
from lightning_nli.models.offline import resolve_model
from lightning_nli.training.checkpoint import CheckpointIndex
from lightning_nli.training.trained import open_run
from lightning_nli.types import BINARY, UserError

TEXTS = ["Người lao_động được nghỉ, trả lương.", "Người lao_động không nghỉ.", "Doanh nghiệp được nghỉ."]
PAIR = ("premise", "hypothesis")
FIT = ["--model", "cbow", "--lr", "1e-3", "--precision", "fp32", "--accelerator", "cpu", "--quiet"]


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("LNLI_CACHE", str(tmp_path / "cache"))


def test_words_are_split_at_spaces_and_punctuation_and_rare_ones_are_unknown():
    tokenizer = AutoTokenizer.from_pretrained(resolve_model("cbow", lambda: TEXTS))
    vocabulary = sorted(tokenizer.get_vocab(), key=tokenizer.get_vocab().get)
    assert vocabulary == ["[PAD]", "[UNK]", ".", "nghỉ", "Người", "lao_động", "được"]
    encoded = tokenizer("Người lao_động,", "nghỉ. Thuế")
    assert tokenizer.convert_ids_to_tokens(encoded["input_ids"]) == [
        *("Người", "lao_động", "[UNK]"),
        *("nghỉ", ".", "[UNK]"),
    ]
    assert encoded["token_type_ids"] == [0, 0, 0, 1, 1, 1]


def write_text(path, vectors: dict[str, list[float]], *, header: bool) -> None:
    lines = [f"{len(vectors)} 2\n"] if header else []
    path.write_text("".join([*lines, *(f"{word} {' '.join(map(str, row))}\n" for word, row in vectors.items())]))


VECTORS = {"Người": [1.0, 2.0], "lương": [3.0, 4.0], "và hoặc": [7.0, 8.0], "elsewhere": [5.0, 6.0]}


@pytest.mark.parametrize("kind", ["word2vec", "headless", "npz"])
def test_vectors_of_a_file_are_placed_and_their_coverage_is_told(tmp_path, caplog, kind):
    path = tmp_path / ("v.npz" if kind == "npz" else "v.txt")
    if kind == "npz":
        np.savez(path, words=np.array(list(VECTORS)), vectors=np.array(list(VECTORS.values())))
    else:
        write_text(path, VECTORS, header=kind == "word2vec")
    logging.getLogger("lightning_nli").propagate = True
    with caplog.at_level(logging.INFO, logger="lightning_nli"):
        folder = resolve_model(f"cbow:{path}", lambda: TEXTS)
    assert "cbow: 6 words, 2 of them have a vector" in caplog.text  # `lương` stands once, but has a vector
    assert "(16.7% of the running words)" in caplog.text  # 3 of 18
    register_cbow()
    table = AutoModel.from_pretrained(folder).get_input_embeddings().weight
    vocabulary = AutoTokenizer.from_pretrained(folder).get_vocab()
    assert table.shape == (8, 2)
    assert table[vocabulary["Người"]].tolist() == VECTORS["Người"]
    assert table[vocabulary["lương"]].tolist() == VECTORS["lương"]
    assert table[0].tolist() == [0, 0]
    assert (table[1:] != 0).all()
    assert resolve_model(f"cbow:{path}", lambda: TEXTS) == folder != resolve_model("cbow", lambda: TEXTS)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("2 2\nNgười 1 2\nlao 1\n", "line 3: a word and 2 numbers are expected"),
        ("Người 1 2\nlao 1 x\n", "line 2: a word and 2 numbers are expected"),
        ("Người 1 nan\n", "line 1: a word and 2 numbers are expected"),
        ("other 1 2\n", "has none of the 1 words"),
    ],
)
def test_a_broken_file_of_vectors_is_refused_by_line(tmp_path, content, message):
    (tmp_path / "v.vec").write_text(content)
    with pytest.raises(UserError, match=message):
        read_vectors(tmp_path / "v.vec", Counter(["Người"]))


def test_files_of_vectors_that_are_none_are_refused(tmp_path):
    with pytest.raises(UserError, match="no such file of word vectors"):
        resolve_model(f"cbow:{tmp_path / 'absent.txt'}", lambda: TEXTS)
    np.savez(tmp_path / "v.npz", words=np.array(["Người"]))
    with pytest.raises(UserError, match="arrays 'words' and 'vectors' are expected"):
        read_vectors(tmp_path / "v.npz", Counter(["Người"]))
    np.savez(tmp_path / "w.npz", words=np.array(["Người"]), vectors=np.zeros((2, 3)))
    with pytest.raises(UserError, match=r"1 words, vectors of shape \(2, 3\)"):
        read_vectors(tmp_path / "w.npz", Counter(["Người"]))


def test_the_logits_are_those_of_the_formula_and_know_premise_from_hypothesis():
    loaded = load_encoder(resolve_model("cbow", lambda: TEXTS), BINARY)
    loaded.encoder.eval()
    frame = make_frame([(TEXTS[0], TEXTS[1], None), (TEXTS[1], TEXTS[0], None)])
    split = tokenize_split(frame, EncoderSpec(loaded.tokenizer, PAIR, 64, num_token_types=2), BINARY)
    logits = loaded.encoder(collate_pack(split, MicroStep((0, 1), 2)))
    model = loaded.model
    with torch.inference_mode():
        p, h = (
            model.cbow.word_embeddings(torch.tensor(loaded.tokenizer(text)["input_ids"])).mean(0) for text in TEXTS[:2]
        )
        features = torch.cat([p, h, p - h, p * h])
        for layer in model.cbow.layers:
            features = torch.tanh(layer(features))
        torch.testing.assert_close(logits[0], model.classifier(features))
    assert len(model.cbow.layers) == 3
    assert (logits[0] - logits[1]).abs().max() > 1e-3


def test_one_text_and_three_texts_are_read_too():
    loaded = load_encoder(resolve_model("cbow", lambda: TEXTS), BINARY)
    frame = make_frame([tuple(TEXTS)])
    for segments, types in ((("hypothesis",), {0}), (("hypothesis", "condition", "premise"), {0, 1})):
        split = tokenize_split(frame, EncoderSpec(loaded.tokenizer, segments, 64, num_token_types=2), BINARY)
        assert set(split.token_types.tolist()) == types
        assert torch.isfinite(loaded.encoder(collate_pack(split, MicroStep((0,), 1)))).all()


@pytest.fixture(scope="module")
def overfit(tmp_path_factory):
    """32 rows learned by heart, and the file they stand in."""
    folder = tmp_path_factory.mktemp("cbow")
    rows = read_source("sample:400").frame.head(32).select("premise", "hypothesis", "label")
    rows.write_ndjson(folder / "rows.jsonl")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LNLI_CACHE", str(folder / "cache"))
        settings = ["--data", str(folder / "rows.jsonl"), "--val-split", "none", "--epochs", "20"]
        tests = ["--test-data", f"again={folder / 'rows.jsonl'}"]
        assert main(["fit", *FIT, *settings, *tests, "--run-dir", str(folder / "run")]) == 0
    return folder


def test_it_learns_32_rows_by_heart(overfit):
    result = json.loads((overfit / "run" / "result.json").read_text())
    assert result["scores"]["again"]["accuracy"] == 1.0
    assert result["scores"]["again"]["loss"] < 0.1
    assert result["encoder"] == {
        "architecture": "cbow",
        "road": "padded",
        "segmenter": "none",
        "segmenter_version": None,
        "chunk_length": None,
    }


def test_it_is_saved_and_reloaded_without_its_cache_and_predicts_the_same(overfit):
    table = pl.read_parquet(overfit / "run" / "predictions" / "again.parquet")
    out = overfit / "out.jsonl"
    assert main(["predict", str(overfit / "run"), str(overfit / "rows.jsonl"), str(out), "--quiet"]) == 0
    answers = pl.read_ndjson(out)
    assert answers["predicted"].to_list() == table["predicted"].to_list()
    assert answers["prob_entailment"].to_list() == pytest.approx(table["prob_entailment"].to_list(), abs=1e-6)
    assert main(["test", str(overfit / "run"), "--quiet"]) == 0
    scorer = open_run(overfit / "run").scorer
    assert CheckpointIndex.read(overfit / "run" / "checkpoints").chosen().name
    assert type(scorer.model).__name__ == "CBowForSequenceClassification"


def test_words_can_be_segmented_before_the_vocabulary_is_made(tmp_path):
    pytest.importorskip("pyvi")
    run = tmp_path / "run"
    fit = ["--data", "sample:60", "--epochs", "1", "--segmenter", "pyvi", "--val-split", "none", "--test-split", "none"]
    assert main(["fit", *FIT, *fit, "--run-dir", str(run)]) == 0
    words = AutoTokenizer.from_pretrained(run / "encoder").get_vocab()
    assert sum("_" in word for word in words) > 20
    assert json.loads((run / "encoder" / "meta.json").read_text())["segmenter"] == "pyvi"
    assert open_run(run).scorer.spec.segmenter == "pyvi"
