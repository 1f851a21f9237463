"""Files that are no checkpoint of ours are refused by name, never by a traceback; padding survives trimming."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from test_module import make_split
from tiny_models import NO_DROPOUT, bert_config, bert_tokenizer
from transformers import BertForSequenceClassification

from lightning_nli.data.packing import MicroStep, collate_pack
from lightning_nli.models.attention import AttentionBackend
from lightning_nli.models.encoder import PackedEncoder
from lightning_nli.models.padded import PaddedEncoder
from lightning_nli.models.vocabulary import trim_vocabulary
from lightning_nli.training.checkpoint import CheckpointIndex, read_weights
from lightning_nli.types import UserError

NOT_OURS = {
    "a list": [1, 2],
    "a tensor": torch.ones(3),
    "a bare state dict": {"encoder.model.a": torch.ones(2)},
    "a list of weights": {"state_dict": [torch.ones(2)]},
    "one tensor for weights": {"state_dict": torch.ones(2)},
    "a number for a tensor": {"state_dict": {"encoder.model.a": 3}},
}


@pytest.mark.parametrize("what", NOT_OURS)
def test_a_torch_file_of_something_else_is_refused_by_name(tmp_path, what):
    path = tmp_path / "other.ckpt"
    torch.save(NOT_OURS[what], path)
    with pytest.raises(UserError, match=r"other\.ckpt is damaged or not ours") as caught:
        read_weights(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("left", [0.0, 0.05, 0.5, 0.95, 0.999])
def test_a_file_cut_anywhere_is_refused_by_name(tmp_path, left):
    path = tmp_path / "cut.ckpt"
    torch.save({"state_dict": {"encoder.model.a": torch.ones(5000)}}, path)
    assert read_weights(path)["a"].sum() == 5000
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * left)])
    with pytest.raises(UserError, match=r"cut\.ckpt is damaged or not ours"):
        read_weights(path)


MODEL_STATES, OPTIM_STATES = "mp_rank_00_model_states.pt", "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt"


def write_deepspeed(folder: Path, *, partitions: int = 1) -> Path:
    """What one process of a ZeRO-2 run leaves, as far as its weights go: one tensor of 2,000 ones."""
    shards = folder / "checkpoint"
    shards.mkdir(parents=True)
    shapes = [{"encoder.model.a": torch.Size([2000])}]
    torch.save({"buffer_names": [], "module": {}, "param_shapes": shapes, "shared_params": {}}, shards / MODEL_STATES)
    groups = {"zero_stage": 2, "partition_count": partitions, "single_partition_of_fp32_groups": [torch.ones(2000)]}
    torch.save({"optimizer_state_dict": groups}, shards / OPTIM_STATES)
    return folder


def test_k03_a_whole_deepspeed_folder_is_put_together(tmp_path):
    pytest.importorskip("deepspeed")
    assert torch.equal(read_weights(write_deepspeed(tmp_path / "step-6"))["a"], torch.ones(2000))


def test_k03_a_folder_with_model_states_only_is_refused_by_name(tmp_path):
    folder = write_deepspeed(tmp_path / "step-7")
    (folder / "checkpoint" / OPTIM_STATES).unlink()
    with pytest.raises(UserError, match=r"step-7 is not a whole DeepSpeed checkpoint: .*no \*optim_states\.pt"):
        read_weights(folder)


@pytest.mark.parametrize("damage", ["empty", "cut", "no torch file"])
@pytest.mark.parametrize("shard", [MODEL_STATES, OPTIM_STATES])
def test_k03_a_damaged_shard_is_refused_by_name(tmp_path, shard, damage):
    pytest.importorskip("deepspeed")
    folder = write_deepspeed(tmp_path / "step-8")
    path = folder / "checkpoint" / shard
    whole = path.read_bytes()
    path.write_bytes({"empty": b"", "cut": whole[: len(whole) // 2], "no torch file": b"junk"}[damage])
    with pytest.raises(UserError, match="step-8 is not a whole DeepSpeed checkpoint"):
        read_weights(folder)


def test_k03_a_shard_of_another_process_that_is_missing_is_noticed(tmp_path):
    pytest.importorskip("deepspeed")
    with pytest.raises(UserError, match=r"step-9 is not a whole DeepSpeed checkpoint: Expected 2 .* found 1 files"):
        read_weights(write_deepspeed(tmp_path / "step-9", partitions=2))


@pytest.mark.parametrize(
    "text", ["", "[]", '{"saved": [], "monitor": null}', '{"saved": [{"nom": "a"}], "monitor": null, "best": null}']
)
def test_an_index_of_another_shape_is_refused(tmp_path, text):
    (tmp_path / "index.json").write_text(text)
    with pytest.raises(UserError, match=r"index\.json is damaged"):
        CheckpointIndex.read(tmp_path)


def make_bert(**changes):
    torch.manual_seed(0)
    config = bert_config(bert_tokenizer(), type_vocab_size=1, **NO_DROPOUT)
    for name, value in changes.items():
        setattr(config, name, value)
    return BertForSequenceClassification(config).eval()


def test_padding_that_is_trimmed_away_takes_no_other_row_with_it():
    """A padding index of -1 would mean the last row, which would then never learn."""
    split = make_split()
    kept = np.unique(split.token_ids).astype(np.int64)
    model = make_bert()
    assert model.get_input_embeddings().padding_idx == 0
    assert 0 not in kept
    remap = trim_vocabulary(model, kept)
    assert model.get_input_embeddings().padding_idx is None
    batch = collate_pack(split, MicroStep(tuple(range(len(split))), len(split)), remap=remap)
    PackedEncoder(model, AttentionBackend.BUCKETED)(batch).square().sum().backward()
    assert (model.get_input_embeddings().weight.grad.abs().sum(-1) > 0).all()


def test_the_padded_road_pads_with_a_row_that_the_trimmed_vocabulary_has():
    last = len(bert_tokenizer()) - 1
    split = make_split()
    everything = MicroStep(tuple(range(len(split))), len(split))
    model = make_bert(pad_token_id=last)
    before = PaddedEncoder(model)(collate_pack(split, everything))
    kept = np.unique([*split.token_ids, last]).astype(np.int64)
    assert len(kept) <= last
    remap = trim_vocabulary(model, kept)
    after = PaddedEncoder(model)(collate_pack(split, everything, remap=remap))
    torch.testing.assert_close(after, before, rtol=0, atol=1e-6)
