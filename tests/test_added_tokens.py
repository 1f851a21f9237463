"""T09: tokens added to a tokenizer get rows of the embedding table, and keep them through every way a run is opened."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path

import polars as pl
import pytest
import torch
from tiny_models import TEXTS, roberta_tokenizer, save_roberta_encoder
from tokenizers import models
from transformers import AutoConfig, AutoModel, AutoTokenizer, pipeline

from lightning_nli.cli.main import main
from lightning_nli.models.encoder import load_encoder
from lightning_nli.models.vocabulary import grow_vocabulary, restore_vocabulary, vocabulary_size
from lightning_nli.types import BINARY, UserError

ADDED = ["[COND]", "[LAW]"]
NUM_ROWS = {"whole": 100, "trimmed": 400}
TRIM = {"whole": "off", "trimmed": "auto"}
FIT = "--lr 1e-2 --batch-size 4 --epochs 1 --precision fp32 --accelerator cpu --quiet --val-split none".split()


def save_model(folder: Path, num_rows: int) -> Path:
    """A RoBERTa with `num_rows` tokens, whose tokenizer has two more."""
    tokenizer = roberta_tokenizer()
    vocabulary = tokenizer.get_vocab()
    vocabulary |= {f"unused{index}": index for index in range(len(vocabulary), num_rows)}
    tokenizer.backend_tokenizer.model = models.WordLevel(vocabulary, unk_token="<unk>")
    tokenizer.add_special_tokens({"additional_special_tokens": ADDED})
    return save_roberta_encoder(folder, tokenizer, num_rows)


@pytest.fixture(scope="module")
def rows(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("rows") / "rows.jsonl"
    lines = [
        {"premise": f"[LAW] {TEXTS[i % 4]}", "hypothesis": f"[COND] {TEXTS[i % 3]}", "label": label}
        for i, label in enumerate(["entailment", "non_entailment"] * 4)
    ]
    path.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines), encoding="utf-8")
    return path


def settings(model: Path, rows: Path) -> list[str]:
    kind = model.parent.name.rstrip("0123456789")
    data = ["--data", str(rows), "--test-data", f"again={rows}", "--max-length", "64"]
    return [*data, "--model", str(model), "--trim-vocab", TRIM[kind]]


@pytest.fixture(scope="module", params=NUM_ROWS)
def run(request, rows, tmp_path_factory):
    """Two optimizer steps; `trimmed`: on a vocabulary of which the texts use less than half."""
    folder = tmp_path_factory.mktemp(request.param)
    model = save_model(folder / "model", NUM_ROWS[request.param])
    assert main(["fit", *FIT, *settings(model, rows), "--run-dir", str(folder / "run")]) == 0
    assert (folder / "run" / "encoder" / "kept_tokens.npy").exists() == (request.param == "trimmed")
    return folder / "run"


def answers(run: Path) -> list[float]:
    return pl.read_parquet(run / "predictions" / "again.parquet")["prob_entailment"].to_list()


def num_rows_of(run: Path) -> int:
    return NUM_ROWS["trimmed" if (run / "encoder" / "kept_tokens.npy").exists() else "whole"] + 2


def test_t09_the_table_grows_before_the_first_step_and_says_so(tmp_path, caplog):
    logging.getLogger("lightning_nli").propagate = True
    folder = save_model(tmp_path, 100)
    with caplog.at_level(logging.INFO, logger="lightning_nli"):
        loaded = load_encoder(folder, BINARY)
    assert "embedding table: 100 rows, grown to 102 for tokens added to the tokenizer" in caplog.text
    old, new = AutoModel.from_pretrained(folder).get_input_embeddings(), loaded.model.get_input_embeddings()
    assert torch.equal(new.weight[:100], old.weight)
    torch.testing.assert_close(new.weight[100:], old.weight.mean(0).expand(2, -1))
    assert new.padding_idx == old.padding_idx == 1
    assert vocabulary_size(loaded.tokenizer) == loaded.model.config.vocab_size == 102
    assert grow_vocabulary(loaded.model, 102) == 0
    assert grow_vocabulary(loaded.model, 50) == 0  # a table wider than its tokenizer is left alone


def test_t09_the_added_rows_are_trained_and_predict_the_same_after_reload(run, rows, tmp_path):
    assert AutoConfig.from_pretrained(run / "encoder").vocab_size == num_rows_of(run)
    assert main(["predict", str(run), str(rows), str(tmp_path / "out.jsonl"), "--quiet"]) == 0
    table = pl.read_ndjson(tmp_path / "out.jsonl")
    assert table["prob_entailment"].to_list() == pytest.approx(answers(run), abs=1e-6)
    assert table["prob_entailment"].std() > 1e-3


def test_the_exported_folder_answers_the_same(run, rows, tmp_path):
    assert main(["export", str(run), str(tmp_path / "model")]) == 0
    assert AutoTokenizer.from_pretrained(tmp_path / "model").convert_tokens_to_ids("[LAW]") == num_rows_of(run) - 1
    table = AutoModel.from_pretrained(tmp_path / "model").get_input_embeddings().weight
    assert len(table) == num_rows_of(run)
    assert not torch.allclose(table[-1], table[-2])  # they were equal, the mean, before they were trained
    classify = pipeline("text-classification", str(tmp_path / "model"), device="cpu", top_k=None)
    inputs = [{"text": row["premise"], "text_pair": row["hypothesis"]} for row in pl.read_ndjson(rows).to_dicts()]
    found = [classify(pair, truncation=True) for pair in inputs]
    scores = [next(one["score"] for one in answer if one["label"] == "entailment") for answer in found]
    assert scores == pytest.approx(answers(run), abs=1e-5)


def test_a_stopped_run_goes_on_to_the_same_answers(run, rows, tmp_path):
    pieces = [
        "fit",
        *FIT,
        *settings(run.parent / "model", rows),
        "--run-dir",
        str(tmp_path / "run"),
        "--resume",
        "auto",
        "--max-time",
        "0",
    ]
    codes = [main(pieces)]
    while codes[-1] == 75 and len(codes) < 5:
        codes.append(main(pieces))
    assert codes in ([75, 0], [75, 75, 0])
    assert answers(tmp_path / "run") == answers(run)


def test_t09_a_tokenizer_that_is_not_the_runs_is_refused_with_both_numbers(run, rows, tmp_path, capsys):
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    tokenizer = AutoTokenizer.from_pretrained(copy / "encoder")
    tokenizer.add_tokens(["[STATE]"])
    tokenizer.save_pretrained(copy / "encoder")
    assert main(["predict", str(copy), str(rows), str(tmp_path / "o.jsonl"), "--quiet"]) == 2
    error = capsys.readouterr().err
    assert f"the tokenizer has {num_rows_of(run) + 1} tokens, the embedding table {num_rows_of(run)} rows" in error


def test_a_table_that_is_not_the_runs_is_refused_with_both_numbers(run, rows, tmp_path, capsys):
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    config = json.loads((copy / "encoder" / "config.json").read_text())
    (copy / "encoder" / "config.json").write_text(json.dumps(config | {"vocab_size": config["vocab_size"] - 2}))
    assert main(["predict", str(copy), str(rows), str(tmp_path / "o.jsonl"), "--quiet"]) == 2
    error = capsys.readouterr().err
    whole, less = num_rows_of(run), num_rows_of(run) - 2
    assert str(less) in error
    assert f"{whole} embedding rows" in error or f"its table has {less} rows" in error


def test_a_row_that_is_neither_pretrained_nor_trained_is_refused():
    with pytest.raises(UserError, match="its table has 6 rows, the pretrained one 4"):
        restore_vocabulary(torch.zeros(4, 2), torch.ones(2, 2), torch.tensor([0, 4]), 6)
    full = restore_vocabulary(torch.zeros(4, 2), torch.ones(3, 2), torch.tensor([0, 4, 5]), 6)
    assert full[:, 0].tolist() == [1, 0, 0, 0, 1, 1]
