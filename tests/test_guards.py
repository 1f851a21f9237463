"""A loss that is no number, a disk that is full, a run out of patience: stopped in time, and said in one line."""

from __future__ import annotations

import contextlib
import math
import os
import pickle
import subprocess
from pathlib import Path

import pytest
import pytorch_lightning as pl
import torch
from test_module import make_encoder, make_split, make_trainer

from lightning_nli.config import CheckpointConfig, OptimConfig, parse_config
from lightning_nli.data.datamodule import NLIDataModule
from lightning_nli.data.packing import PackPlan
from lightning_nli.models.module import NLIModule
from lightning_nli.training import checkpoint as checkpoint_module
from lightning_nli.training.callbacks import NanGuard, StopOnSignal
from lightning_nli.training.checkpoint import CheckpointIndex, RunCheckpoints, read_weights
from lightning_nli.training.manifest import find_damage, read_manifest
from lightning_nli.training.signals import REQUEST, Stopped, listening, slurm_time_left_s, time_limit_s
from lightning_nli.training.storage import lack_of_room
from lightning_nli.types import BINARY, UserError


class Broken(NLIModule):
    """Its loss is no number in some optimizer steps, counted from 0."""

    bad_steps: tuple[int, ...] = ()
    value = math.nan

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        return loss * self.value if self.global_step in self.bad_steps else loss


def fit(folder: Path, *callbacks: pl.Callback, bad_steps: tuple[int, ...] = (), epochs: int = 2, **config) -> NLIModule:
    """11 rows in threes: 4 optimizer steps an epoch."""
    module = Broken(make_encoder(), BINARY, OptimConfig(lr=1e-3))
    module.bad_steps = bad_steps
    split = make_split()
    data = NLIDataModule(train=split, val=split, plan=PackPlan(3, None), epochs=epochs)
    checkpoints = RunCheckpoints(folder, CheckpointConfig(**config), has_val=True)
    make_trainer(max_epochs=epochs, callbacks=[*callbacks, checkpoints], enable_checkpointing=True).fit(module, data)
    return module


def test_s10_a_loss_that_is_no_number_stops_the_run_and_names_the_step(tmp_path):
    with pytest.raises(UserError, match=r"the loss is nan in step 6; .*--on-nan skip") as caught:
        fit(tmp_path, NanGuard("stop"), bad_steps=(5,))
    assert "\n" not in str(caught.value)
    last = CheckpointIndex.read(tmp_path).last
    assert last is not None and last.step == 4  # nothing saved after it
    assert all(torch.isfinite(value).all() for value in read_weights(tmp_path / last.name).values())


def test_s10_a_skipped_step_leaves_the_weights_and_is_counted(tmp_path, caplog):
    guard = NanGuard("skip")
    seen: list[torch.Tensor] = []

    class Watch(pl.Callback):
        def on_train_batch_end(self, trainer, pl_module, *args) -> None:
            seen.append(next(pl_module.parameters()).detach().clone())

    module = fit(tmp_path, guard, Watch(), bad_steps=(2, 3))
    assert guard.num_skipped == 2
    assert torch.equal(seen[1], seen[2]) and torch.equal(seen[2], seen[3])
    assert not torch.equal(seen[3], seen[4])  # and it goes on
    assert all(torch.isfinite(parameter).all() for parameter in module.parameters())


def test_skipping_without_end_stops_too(tmp_path):
    with pytest.raises(UserError, match="in step 4, 3 steps in a row"):
        fit(tmp_path, NanGuard("skip", most_in_a_row=3), bad_steps=tuple(range(1, 8)))


def test_weights_that_are_no_numbers_are_never_saved(tmp_path):
    """Without the guard the broken step reaches the weights; the checkpoint before it stays the last."""

    class Spoil(pl.Callback):
        def on_train_batch_end(self, trainer, pl_module, *args) -> None:
            if trainer.global_step == 5:
                next(pl_module.parameters()).data.fill_(math.inf)

    with pytest.raises(
        UserError, match=r"nothing saved at step 5: the weights are no longer finite.*step 4\) is whole"
    ):
        fit(tmp_path, Spoil(), every=5)
    assert CheckpointIndex.read(tmp_path).last.step == 4


def test_a_checkpoint_that_would_not_fit_is_not_begun(tmp_path, monkeypatch):
    assert lack_of_room(tmp_path, 2**60).startswith("a checkpoint takes 1073741824.00 GiB, ")
    monkeypatch.setattr(checkpoint_module, "lack_of_room", lambda folder, num_bytes: lack_of_room(folder, 2**60))
    with pytest.raises(UserError, match=r"nothing saved at step 4: a checkpoint takes .* GiB are free .*--resume auto"):
        fit(tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 4 MB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("a small file system cannot be mounted here (not root)")
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


class FillDisk(pl.Callback):
    """Leaves no byte free after the sixth step."""

    def __init__(self, disk: Path) -> None:
        self.disk = disk

    def on_train_batch_end(self, trainer, pl_module, *args) -> None:
        if trainer.global_step == 6:
            with contextlib.suppress(OSError), (self.disk / "filler").open("wb", buffering=0) as file:
                while True:
                    file.write(bytes(4096))


def test_a_disk_that_fills_up_during_a_save_leaves_the_last_checkpoint_whole(small_disk, monkeypatch):
    monkeypatch.setattr(checkpoint_module, "lack_of_room", lambda folder, num_bytes: None)  # it was there a moment ago
    with pytest.raises(UserError) as caught:
        fit(small_disk, FillDisk(small_disk))
    message = str(caught.value)
    assert "nothing saved at step 8: the disk is full" in message and "(step 4) is whole" in message
    assert "\n" not in message
    last = CheckpointIndex.read(small_disk).last
    assert last is not None and last.step == 4
    manifest = read_manifest(small_disk / last.name)
    assert manifest is not None and find_damage(small_disk / last.name, manifest) is None
    assert read_weights(small_disk / last.name)
    assert not list(small_disk.glob(".partial-*"))


class Scripted(NLIModule):
    """Reports a given score after each epoch instead of its own."""

    scores = (0.3, 0.5, 0.4, math.nan, 0.9, 0.9)

    def on_validation_epoch_end(self) -> None:
        self.log("id_val/macro_f1", self.scores[self.current_epoch], batch_size=1)


def scripted_trainer(folder: Path, *, epochs: int, patience: int | None) -> tuple[pl.Trainer, Scripted, NLIDataModule]:
    split = make_split()
    checkpoints = RunCheckpoints(folder, CheckpointConfig(patience=patience), has_val=True)
    trainer = make_trainer(max_epochs=epochs, callbacks=[checkpoints], enable_checkpointing=True)
    data = NLIDataModule(train=split, val=split, plan=PackPlan(6, None), epochs=epochs)
    return trainer, Scripted(make_encoder(), BINARY, OptimConfig()), data


def test_k09_patience_counts_epochs_without_a_better_score_and_no_number_is_not_better(tmp_path):
    trainer, module, data = scripted_trainer(tmp_path, epochs=6, patience=2)
    trainer.fit(module, data)
    index = CheckpointIndex.read(tmp_path)
    assert trainer.current_epoch == 4  # 0.4 and NaN were not better than 0.5
    assert index.last.stale == 2 and index.chosen().score == 0.5


def test_patience_is_remembered_by_a_run_that_goes_on(tmp_path):
    trainer, module, data = scripted_trainer(tmp_path, epochs=3, patience=None)
    trainer.fit(module, data)
    last = CheckpointIndex.read(tmp_path).last
    assert last.stale == 1
    trainer, module, data = scripted_trainer(tmp_path, epochs=6, patience=2)
    trainer.fit(module, data, ckpt_path=tmp_path / last.name, weights_only=True)
    assert trainer.current_epoch == 4
    last = CheckpointIndex.read(tmp_path).last
    trainer, module, data = scripted_trainer(tmp_path, epochs=6, patience=2)
    trainer.fit(module, data, ckpt_path=tmp_path / last.name, weights_only=True)
    assert trainer.global_step == last.step  # it had stopped for good
    assert CheckpointIndex.read(tmp_path).last == last


def test_patience_without_scores_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"--patience .*no validation split"):
        RunCheckpoints(tmp_path, CheckpointConfig(patience=1), has_val=False)


def test_lightnings_own_signal_handling_is_out_of_the_way(tmp_path):
    """Its SIGTERM handler and its broadcast at every batch: both names must exist to be switched off."""
    checkpoints = RunCheckpoints(tmp_path, CheckpointConfig(), has_val=False)
    trainer = make_trainer()
    assert callable(trainer._signal_connector.register_signal_handlers)
    assert callable(trainer.fit_loop.epoch_loop._broadcast_sigterm_tensor)
    StopOnSignal(checkpoints).setup(trainer, None, "fit")
    assert trainer._signal_connector.register_signal_handlers() is None
    assert trainer.fit_loop.epoch_loop._broadcast_sigterm_tensor() is None


def test_a_signal_outside_of_training_leaves_at_once_and_only_once():
    import signal

    before = signal.getsignal(signal.SIGUSR1)
    with listening():
        with pytest.raises(Stopped, match="SIGUSR1 outside of training"):
            os.kill(os.getpid(), signal.SIGUSR1)
        os.kill(os.getpid(), signal.SIGTERM)  # changes nothing any more
        assert REQUEST.reason == "SIGUSR1"
    assert signal.getsignal(signal.SIGUSR1) is before
    with listening():
        assert REQUEST.reason is None
        REQUEST.is_training = True
        os.kill(os.getpid(), signal.SIGTERM)  # noted, nothing else
        assert REQUEST.reason == "SIGTERM"


def test_slurms_end_of_the_job_is_a_time_limit(monkeypatch):
    import time

    monkeypatch.delenv("SLURM_JOB_END_TIME", raising=False)
    assert slurm_time_left_s() is None and time_limit_s(None) is None and time_limit_s("1:30") == 90
    monkeypatch.setenv("SLURM_JOB_END_TIME", str(int(time.time()) + 1000))
    assert 930 < slurm_time_left_s() <= 940  # a minute before
    assert time_limit_s("1:30") == 90 and time_limit_s("1:00:00") < 1000
    monkeypatch.setenv("SLURM_JOB_END_TIME", str(int(time.time()) + 30))
    assert slurm_time_left_s() is None  # too late to do anything, and no reason to stop at every step


@pytest.mark.parametrize(
    ("flags", "message"),
    [(["--patience", "0"], "--patience must be above 0"), (["--save-minutes", "-1"], "--save-minutes must not be")],
)
def test_settings_that_make_no_sense_are_refused(flags, message):
    with pytest.raises(UserError, match=message):
        parse_config(flags)


def test_a_save_that_is_overdue_is_made_between_epochs(tmp_path):
    checkpoints = RunCheckpoints(tmp_path, CheckpointConfig(save_minutes=1e-9), has_val=False)
    split = make_split()
    data = NLIDataModule(train=split, plan=PackPlan(3, None), epochs=1)
    trainer = make_trainer(max_epochs=1, callbacks=[StopOnSignal(checkpoints), checkpoints], enable_checkpointing=True)
    saved: list[int] = []
    save = checkpoints.save
    checkpoints.save = lambda trainer, score=None: (saved.append(trainer.global_step), save(trainer, score))[1]
    trainer.fit(NLIModule(make_encoder(), BINARY, OptimConfig()), data)
    assert saved == [1, 2, 3, 4]
    never = RunCheckpoints(tmp_path, CheckpointConfig(save_minutes=0), has_val=False)
    assert not never.is_overdue


def test_s06_loader_processes_are_spawned_and_get_arrays_only(tmp_path):
    """A forked worker that touches polars or a fast tokenizer may hang; these are handed neither."""
    seen: list = []

    class Look(pl.Callback):
        def on_train_start(self, trainer, pl_module) -> None:
            seen.append(trainer.datamodule.train_dataloader())

    split = make_split()
    data = NLIDataModule(train=split, plan=PackPlan(6, None), epochs=1)
    make_trainer(max_epochs=1, callbacks=[Look()]).fit(NLIModule(make_encoder(), BINARY, OptimConfig()), data)
    data.num_workers = 2
    loader = data.train_dataloader()
    assert loader.multiprocessing_context.get_start_method() == "spawn"
    handed_over = pickle.dumps(loader.dataset)
    assert b"numpy" in handed_over and b"polars" not in handed_over and b"tokenizers" not in handed_over
    assert seen[0].multiprocessing_context is None  # no process at all without --num-workers
