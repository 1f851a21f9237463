"""Checkpoints: the index never forgets the best, damaged files are refused by name; vocabulary rows come back."""

from __future__ import annotations

import json
import math
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from test_module import make_split
from tiny_models import NO_DROPOUT, bert_config, bert_tokenizer, roberta_model, roberta_tokenizer
from transformers import BertForSequenceClassification

from lightning_nli.config import parse_config
from lightning_nli.data.packing import MicroStep, collate_pack
from lightning_nli.models.attention import AttentionBackend
from lightning_nli.models.encoder import PackedEncoder
from lightning_nli.models.vocabulary import kept_tokens, restore_vocabulary, trim_vocabulary
from lightning_nli.training.callbacks import parse_max_time
from lightning_nli.training.checkpoint import CheckpointIndex, SavedCheckpoint, read_weights
from lightning_nli.training.run_folder import check_run_folder, claim_run_folder
from lightning_nli.types import UserError


def index_of(scores: list[float | None], *, lower_is_better: bool = False) -> CheckpointIndex:
    index = CheckpointIndex(monitor="m")
    for step, score in enumerate(scores):
        index.add(SavedCheckpoint(f"s{step}", step, step, score), lower_is_better=lower_is_better)
    return index


def test_the_best_is_the_best_and_the_last_is_the_last():
    assert index_of([0.5, 0.8, 0.3]).best == "s1"
    assert index_of([0.5, 0.8, 0.3], lower_is_better=True).best == "s2"
    assert index_of([0.5, 0.8, 0.3]).chosen().name == "s1"
    assert index_of([None, None]).chosen().name == "s1"  # nothing chose: the last one counts


def test_a_score_that_is_no_number_is_never_best():
    assert index_of([math.nan, 0.5, 0.3]).best == "s1"
    assert index_of([math.nan, math.inf]).best is None


def test_k05_pruning_keeps_the_best_and_the_newest():
    index = index_of([0.9, 0.1, 0.2, 0.3])
    assert index.prune(keep=1) == ["s1", "s2"]
    assert [entry.name for entry in index.saved] == ["s0", "s3"]


def test_the_index_reads_back_and_a_damaged_one_is_refused(tmp_path):
    index = index_of([0.5, 0.8])
    index.write(tmp_path)
    assert CheckpointIndex.read(tmp_path) == index
    assert [path.name for path in tmp_path.iterdir()] == ["index.json"]
    (tmp_path / "index.json").write_text('{"saved": [')
    with pytest.raises(UserError, match=r"index\.json is damaged"):
        CheckpointIndex.read(tmp_path)


def write_checkpoint(path: Path, **tensors: torch.Tensor) -> Path:
    torch.save({"state_dict": {f"encoder.model.{name}": value for name, value in tensors.items()}}, path)
    return path


def test_weights_read_back_under_the_models_own_names(tmp_path):
    path = write_checkpoint(tmp_path / "c.ckpt", a=torch.ones(2))
    assert torch.equal(read_weights(path)["a"], torch.ones(2))


def test_s11_what_is_no_whole_checkpoint_is_refused_by_name(tmp_path):
    whole = write_checkpoint(tmp_path / "whole.ckpt", a=torch.ones(1000))
    cut = tmp_path / "cut.ckpt"
    cut.write_bytes(whole.read_bytes()[:900])
    text = tmp_path / "text.ckpt"
    text.write_text("no checkpoint")
    empty_tensor = write_checkpoint(tmp_path / "empty.ckpt", a=torch.ones(0))
    foreign = tmp_path / "foreign.ckpt"
    torch.save({"state_dict": {"other.weight": torch.ones(1)}}, foreign)
    (tmp_path / "folder").mkdir()
    for path in (tmp_path / "absent.ckpt", cut, text, empty_tensor, foreign, tmp_path / "folder"):
        with pytest.raises(UserError, match=path.name):
            read_weights(path)
    with pytest.raises(UserError, match="tensor 'a' is empty"):  # a shard of ZeRO stage 3 read as weights
        read_weights(empty_tensor)


class _Hostile:
    """A pickle that would run code when it is loaded."""

    def __reduce__(self) -> tuple:
        return (Path.touch, (Path("hostile-was-here"),))


def test_a_pickle_that_would_run_code_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.save({"state_dict": _Hostile()}, "bad.ckpt")
    Path("plain.ckpt").write_bytes(pickle.dumps(_Hostile()))
    for name in ("bad.ckpt", "plain.ckpt"):
        with pytest.raises(UserError, match=name):
            read_weights(Path(name))
    assert not Path("hostile-was-here").exists()


def test_k03_a_half_written_deepspeed_folder_is_refused_by_name(tmp_path):
    shards = tmp_path / "step-1" / "checkpoint"
    shards.mkdir(parents=True)
    with pytest.raises(UserError, match=r"step-1 is not a whole DeepSpeed checkpoint: .*model_states"):
        read_weights(tmp_path / "step-1")
    (shards / "mp_rank_00_model_states.pt").write_bytes(b"")
    with pytest.raises(UserError, match=r"step-1 is not a whole DeepSpeed checkpoint: .*optim_states"):
        read_weights(tmp_path / "step-1")


def make_bert():
    tokenizer = bert_tokenizer()
    torch.manual_seed(0)
    return BertForSequenceClassification(bert_config(tokenizer, type_vocab_size=1, **NO_DROPOUT)), tokenizer


def step(model, batch, optimizer) -> None:
    encoder = PackedEncoder(model, AttentionBackend.BUCKETED)
    torch.nn.functional.cross_entropy(encoder(batch), batch.labels).backward()
    optimizer.step()
    optimizer.zero_grad()


def test_trimming_changes_no_logit_and_restores_every_row():
    split = make_split()
    everything = MicroStep(tuple(range(len(split))), len(split))
    model, tokenizer = make_bert()
    pretrained = model.get_input_embeddings().weight.detach().clone()
    whole, _ = make_bert()
    batch = collate_pack(split, everything)
    before = PackedEncoder(model.eval(), AttentionBackend.BUCKETED)(batch)
    kept = kept_tokens([split.token_ids], tokenizer)
    assert len(kept) < len(tokenizer)
    remap = trim_vocabulary(model, kept)
    trimmed = collate_pack(split, everything, remap=remap)
    assert torch.equal(PackedEncoder(model, AttentionBackend.BUCKETED)(trimmed), before)

    for one, its_batch in ((model, trimmed), (whole.eval(), batch)):
        optimizer = torch.optim.AdamW(one.parameters(), lr=1e-3, weight_decay=0.0)
        for _ in range(3):
            step(one, its_batch, optimizer)
    full = restore_vocabulary(pretrained, model.get_input_embeddings().weight.detach(), torch.from_numpy(kept))
    untouched = np.setdiff1d(np.arange(len(pretrained)), kept)
    assert len(untouched)
    assert torch.equal(full[untouched], pretrained[untouched])
    assert not torch.equal(full[kept], pretrained[kept])
    torch.testing.assert_close(full, whole.get_input_embeddings().weight.detach(), rtol=1e-4, atol=1e-6)


def test_trimming_moves_the_padding_row_along():
    tokenizer = roberta_tokenizer()
    model = roberta_model(tokenizer)
    kept = np.array([0, 1, 2, 3, 4, 9, 12])
    remap = trim_vocabulary(model, kept)
    assert model.get_input_embeddings().padding_idx == remap[1] == 1
    assert remap[9] == 5
    assert remap[8] == -1
    with pytest.raises(AssertionError, match="trimmed vocabulary lacks"):
        collate_pack(make_split(), MicroStep((0,), 1), remap=remap)


def test_a_run_folder_is_claimed_once(tmp_path):
    folder = tmp_path / "run"
    config = parse_config(["--run-dir", str(folder)])
    claim_run_folder(folder, config)
    environment = json.loads((folder / "environment.json").read_text())
    assert environment["packages"]["torch"]
    with pytest.raises(UserError, match="unfinished"):
        check_run_folder(folder, config)
    again = parse_config(["--run-dir", str(folder), "--resume", "auto", "--num-workers", "2"])
    check_run_folder(folder, again)
    with pytest.raises(UserError, match=r"optim\.lr: 2e-05 -> 0\.1"):
        check_run_folder(folder, parse_config(["--run-dir", str(folder), "--resume", "auto", "--lr", "0.1"]))
    (folder / "result.json").write_text("{}")
    with pytest.raises(UserError, match="finished run"):
        check_run_folder(folder, again)


def test_a_folder_of_somebody_elses_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(UserError, match="holds no run of ours"):
        claim_run_folder(tmp_path, parse_config(["--run-dir", str(tmp_path)]))
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize(
    ("text", "seconds"), [(None, None), ("90", 90), ("1:30", 90), ("1:00:00", 3600), ("01:00:00:00", 86400)]
)
def test_time_limits(text, seconds):
    assert parse_max_time(text) == seconds


def test_a_time_limit_that_is_none_is_refused():
    with pytest.raises(UserError, match="--max-time"):
        parse_max_time("two hours")
