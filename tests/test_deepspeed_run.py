"""The whole road under DeepSpeed on 2 CPU processes: fit, read the sharded folder back, predict, export."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest
import torch

from lightning_nli.cli.main import main
from lightning_nli.data.readers import read_source
from lightning_nli.training.checkpoint import CheckpointIndex

TIMEOUT_S = 240
SETTINGS = (
    "--data sample:400 --model tiny --epochs 1 --lr 1e-3 --precision fp32 --accelerator cpu "
    "--devices 2 --strategy deepspeed_stage_3 --quiet"
).split()


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("deepspeed") / "run"
    command = [sys.executable, "-m", "lightning_nli", "fit", *SETTINGS, "--run-dir", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


@pytest.fixture
def checkpoint(run) -> Path:
    return run / "checkpoints" / CheckpointIndex.read(run / "checkpoints").chosen().name


@pytest.mark.slow
def test_k03_a_sharded_folder_is_read_wherever_a_file_would_be(run, checkpoint, tmp_path):
    assert checkpoint.is_dir()
    source, out = tmp_path / "pairs.jsonl", tmp_path / "out.jsonl"
    rows = read_source("sample:400#test").frame.select("premise", "hypothesis")
    rows.write_ndjson(source)
    assert main(["predict", str(run), str(source), str(out), "--checkpoint", str(checkpoint), "--quiet"]) == 0
    stored = pl.read_parquet(run / "predictions" / "test.parquet")
    answers = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    assert [answer["predicted"] for answer in answers] == stored["predicted"].to_list()
    assert [answer["prob_entailment"] for answer in answers] == pytest.approx(
        stored["prob_entailment"].to_list(), abs=1e-5
    )


@pytest.mark.slow
def test_k03_a_half_written_folder_is_refused_by_name(run, checkpoint, tmp_path, capsys):
    broken = tmp_path / "broken"
    shutil.copytree(checkpoint, broken)
    for path in (broken / "checkpoint").glob("*optim_states.pt"):
        path.unlink()
    source = tmp_path / "pairs.jsonl"
    source.write_text('{"premise": "a", "hypothesis": "b"}\n', encoding="utf-8")
    assert main(["predict", str(run), str(source), str(tmp_path / "o.jsonl"), "--checkpoint", str(broken)]) == 2
    assert "broken is not a whole DeepSpeed checkpoint" in capsys.readouterr().err


@pytest.mark.slow
def test_export_of_a_sharded_run_answers_as_we_do(run, tmp_path):
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    target = tmp_path / "model"
    assert main(["export", str(run), str(target)]) == 0
    model = AutoModelForSequenceClassification.from_pretrained(target).eval()
    tokenizer = AutoTokenizer.from_pretrained(target)
    rows = read_source("sample:400#test").frame
    inputs = tokenizer(
        rows["premise"].to_list(), rows["hypothesis"].to_list(), truncation=True, padding=True, return_tensors="pt"
    )
    with torch.inference_mode():
        probabilities = model(**inputs).logits.softmax(-1)[:, model.config.label2id["entailment"]]
    stored = pl.read_parquet(run / "predictions" / "test.parquet")["prob_entailment"].to_list()
    assert probabilities.tolist() == pytest.approx(stored, abs=1e-5)
