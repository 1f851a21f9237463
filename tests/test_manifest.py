"""What stands beside a checkpoint, and the pickles that are looked at before they are loaded."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import re
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from lightning_nli.training.checkpoint import read_weights
from lightning_nli.training.index import CheckpointIndex, SavedCheckpoint
from lightning_nli.training.manifest import (
    Manifest,
    RunIdentity,
    find_damage,
    manifest_path,
    measure_files,
    read_manifest,
    write_manifest,
)
from lightning_nli.training.resume import check_identity, find_checkpoint
from lightning_nli.training.safe_load import Refused, check_safe, load_checked
from lightning_nli.types import UserError

IDENTITY = RunIdentity("run", "data", "tokenizer", "plan", global_batch=32, accumulate=2, world_size=2, sharded=False)


def save(folder: Path, step: int, identity: RunIdentity | None = IDENTITY, score: float | None = None) -> Path:
    """A checkpoint of one tensor with its manifest, registered in the folder's index."""
    folder.mkdir(exist_ok=True)
    path = folder / f"step-{step:08d}.ckpt"
    torch.save({"state_dict": {"encoder.model.a": torch.full((500,), float(step))}}, path)
    entry = SavedCheckpoint(path.name, step, 0, score)
    write_manifest(Manifest(path.name, step, 0, score, 0, identity, measure_files(path)), path)
    index = CheckpointIndex.read(folder)
    index.add(entry, lower_is_better=False)
    index.write(folder)
    return path


def test_a_manifest_reads_back_and_its_checkpoint_is_whole(tmp_path):
    path = save(tmp_path, 3)
    manifest = read_manifest(path)
    assert manifest is not None and manifest.identity == IDENTITY
    assert manifest.num_bytes == path.stat().st_size
    assert find_damage(path, manifest) is None


def flip_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


@pytest.mark.parametrize(
    ("damage", "message"),
    [(flip_bit, "checksum"), (cut, r"\d+ bytes, \d+ were written"), (Path.unlink, "is missing")],
)
def test_a_damaged_checkpoint_is_put_aside_and_the_one_before_it_used(tmp_path, caplog, damage, message):
    before, newest = save(tmp_path, 3, score=0.4), save(tmp_path, 6, score=0.5)
    damage(newest)
    caplog.set_level("INFO")
    assert find_checkpoint(tmp_path, IDENTITY, is_first=True) == before
    assert re.search(f"step-00000006.ckpt is damaged: .*{message}.* one before it is used", caplog.text)
    index = CheckpointIndex.read(tmp_path)
    assert [entry.name for entry in index.saved] == [before.name] and index.best == before.name
    assert find_checkpoint(tmp_path, IDENTITY, is_first=False) == before  # the other processes follow the first
    if newest.exists():
        pytest.fail("a damaged checkpoint must not keep its name")


@pytest.mark.parametrize(
    ("damage", "message"),
    [(flip_bit, "checksum"), (cut, "were written"), (Path.unlink, "is missing")],
)
def test_the_only_checkpoint_damaged_is_an_error_of_one_line(tmp_path, damage, message):
    damage(save(tmp_path, 3))
    with pytest.raises(UserError, match=f"step-00000003.ckpt: .*{message}") as caught:
        find_checkpoint(tmp_path, IDENTITY, is_first=True)
    assert "\n" not in str(caught.value)


def test_a_bit_flipped_checkpoint_is_not_scored(tmp_path):
    path = save(tmp_path, 3)
    assert read_weights(path)["a"][0] == 3
    flip_bit(path)
    with pytest.raises(UserError, match=r"step-00000003\.ckpt is damaged or not ours: .*checksum"):
        read_weights(path)


def test_a_damaged_manifest_is_a_damaged_checkpoint(tmp_path):
    before, newest = save(tmp_path, 3), save(tmp_path, 6)
    manifest_path(newest).write_text("{")
    assert find_checkpoint(tmp_path, IDENTITY, is_first=True) == before


def test_a_whole_checkpoint_that_a_crash_kept_out_of_the_index_is_used(tmp_path):
    save(tmp_path, 3)
    index = CheckpointIndex.read(tmp_path)
    newest = save(tmp_path, 6, score=0.9)
    index.write(tmp_path)  # as before the second one
    assert find_checkpoint(tmp_path, IDENTITY, is_first=True) == newest
    assert CheckpointIndex.read(tmp_path).best == newest.name


def test_without_a_checkpoint_a_run_starts(tmp_path):
    assert find_checkpoint(tmp_path, IDENTITY, is_first=True) is None
    assert find_checkpoint(tmp_path / "absent", IDENTITY, is_first=True) is None


SHARDED = replace(IDENTITY, sharded=True)
OTHERS = {
    "other settings": (IDENTITY, replace(IDENTITY, run="x"), "is of a run with other settings"),
    "changed data": (IDENTITY, replace(IDENTITY, data="x"), "before the data changed"),
    "changed tokenizer": (IDENTITY, replace(IDENTITY, tokenizer="x"), "another tokenizer"),
    "changed order": (IDENTITY, replace(IDENTITY, plan="x"), "another order"),
    "global batch": (IDENTITY, replace(IDENTITY, global_batch=16, world_size=1), "give --accumulate 4"),
    "k04 shards": (SHARDED, replace(SHARDED, world_size=1), "shards of 2 DeepSpeed processes, this run has 1"),
}


@pytest.mark.parametrize("what", OTHERS)
def test_a_foreign_checkpoint_is_refused_in_one_line_of_its_own(tmp_path, what):
    stored, now, message = OTHERS[what]
    save(tmp_path, 3, stored)
    with pytest.raises(UserError, match=message) as caught:
        find_checkpoint(tmp_path, now, is_first=True)
    assert "\n" not in str(caught.value)
    messages = [other for name, (_, _, other) in OTHERS.items() if name != what]
    assert not any(other in str(caught.value) for other in messages)


def test_k04_other_processes_may_go_on_if_the_steps_stay_the_same(tmp_path):
    check_identity(IDENTITY, replace(IDENTITY, world_size=1, accumulate=4), tmp_path)


def test_a_newer_manifest_is_not_guessed_at(tmp_path):
    path = save(tmp_path, 3)
    values = json.loads(manifest_path(path).read_text())
    manifest_path(path).write_text(json.dumps(values | {"schema": 99}))
    with pytest.raises(UserError, match="schema 99"):
        read_manifest(path)


class Hostile:
    """A pickle that would run code when it is loaded."""

    def __reduce__(self) -> tuple:
        return (Path.touch, (Path("hostile-was-here"),))


class Disguised:
    """One that would run code through a callable of torch's own."""

    def __reduce__(self) -> tuple:
        return (torch.load, ("other.pt",))


@pytest.mark.parametrize("content", [Hostile(), {"module": {"a": Disguised()}}])
def test_a_hostile_shard_is_refused_before_it_is_loaded(tmp_path, monkeypatch, content):
    monkeypatch.chdir(tmp_path)
    torch.save(content, "shard.pt")
    with pytest.raises(Refused, match=r"shard\.pt is refused: its pickle would call \w"):
        load_checked("shard.pt")
    assert not Path("hostile-was-here").exists()


def test_newer_pickles_that_hide_what_they_call_are_refused(tmp_path):
    """Protocol 4 names a callable by two texts on the stack, which may come from anywhere in the stream."""
    torch.save({"a": Hostile()}, tmp_path / "shard.pt", pickle_protocol=4)
    with pytest.raises(Refused, match="instruction"):
        check_safe(tmp_path / "shard.pt")


def test_program_code_in_the_archive_is_refused(tmp_path):
    """torch.load would hand a TorchScript archive to torch.jit.load."""
    script = torch.jit.script(torch.nn.Linear(1, 1))
    torch.jit.save(script, str(tmp_path / "shard.pt"))
    with pytest.raises(Refused, match="program code"):
        check_safe(tmp_path / "shard.pt")


def test_a_second_pickle_under_the_same_name_does_not_hide_the_first(tmp_path, monkeypatch):
    """What is looked at is what torch's own reader finds, whatever else the archive holds under that name."""
    monkeypatch.chdir(tmp_path)
    torch.save({"a": torch.ones(1)}, "shard.pt")
    with zipfile.ZipFile("shard.pt") as archive:
        records = {name: archive.read(name) for name in archive.namelist()}
    name = next(name for name in records if name.endswith("data.pkl"))
    for order in ((records[name], pickle.dumps(Hostile(), 2)), (pickle.dumps(Hostile(), 2), records[name])):
        with zipfile.ZipFile("twice.pt", "w") as archive, pytest.warns(UserWarning, match="Duplicate"):
            for data in order:
                archive.writestr(name, data)
            for other, data in records.items():
                if other != name:
                    archive.writestr(other, data)
        with contextlib.suppress(UserError, RuntimeError):
            load_checked("twice.pt")
        assert not Path("hostile-was-here").exists()


def test_what_deepspeed_and_torch_write_passes(tmp_path):
    zero = pytest.importorskip("deepspeed.runtime.zero.config")
    scaler = pytest.importorskip("deepspeed.runtime.fp16.loss_scaler").LossScaler(1.0)
    fragment = pytest.importorskip("deepspeed.utils.tensor_fragment").fragment_address(numel=1, start=0)
    values = {
        "tensors": {kind: torch.ones(2, dtype=kind) for kind in (torch.float32, torch.bfloat16, torch.int64)},
        "stage": zero.ZeroStageEnum.gradients,
        "scaler": scaler,
        "fragment": fragment,
        "plain": [None, True, 3, 2**40, -1.5, "Điều", (1, 2), torch.Size([2]), torch.device("cpu")],
    }
    torch.save(values, tmp_path / "shard.pt")
    loaded = load_checked(tmp_path / "shard.pt")
    assert loaded["plain"] == values["plain"]
    assert loaded["stage"] == values["stage"] and loaded["fragment"] == fragment
