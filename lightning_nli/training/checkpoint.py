"""Checkpoints: saved whole or not at all, best and newest kept, read back as plain fp32 weights."""

from __future__ import annotations

import contextlib
import io
import logging
import math
import os
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Checkpoint
from torch import Tensor

from lightning_nli.config import CheckpointConfig
from lightning_nli.training.agreement import Agreement
from lightning_nli.training.index import CheckpointIndex, SavedCheckpoint
from lightning_nli.training.manifest import (
    Manifest,
    RunIdentity,
    check_whole,
    manifest_path,
    measure_files,
    read_manifest,
    sync,
    sync_tree,
    write_manifest,
)
from lightning_nli.training.safe_load import Refused, check_safe
from lightning_nli.training.storage import (
    WRITES,
    delete,
    describe_failure,
    estimate_bytes,
    has_finite_weights,
    lack_of_room,
)
from lightning_nli.types import UserError

__all__ = ["CheckpointIndex", "RunCheckpoints", "SavedCheckpoint", "read_weights"]

log = logging.getLogger(__name__)

PARTIAL = ".partial-"
_DEEPSPEED_TAG = "checkpoint"
_S_PER_MINUTE = 60.0
_EXIT_USAGE = 2


class RunCheckpoints(Checkpoint):
    """Saves at the end of every epoch, every so many steps and minutes, under a temporary name, renamed when whole.

    Args:
        folder: Where to.
        config: When, and what is kept.
        has_val: Whether epochs are scored.
        identity: Whose the checkpoints are; None in a trainer without a run.
    """

    def __init__(
        self, folder: Path, config: CheckpointConfig, *, has_val: bool, identity: RunIdentity | None = None
    ) -> None:
        self.folder, self.config, self.identity = folder, config, identity
        self.monitor = config.monitor if has_val else None
        self.lower_is_better = config.monitor.endswith("loss")
        if config.patience and not has_val:
            raise UserError("--patience waits for better scores, and no epoch is scored: there is no validation split")
        self._last_saved_step = -1
        self._last_saved_at = time.monotonic()
        self._agreement: Agreement | None = None

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._last_saved_step, self._last_saved_at = trainer.global_step, time.monotonic()

    @property
    def is_overdue(self) -> bool:
        """Whether the last save is longer ago than the settings allow; each process has its own clock."""
        minutes = self.config.save_minutes
        return 0 < minutes * _S_PER_MINUTE < time.monotonic() - self._last_saved_at

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        step = trainer.global_step
        is_due = self.config.every and step and step % self.config.every == 0 and step != self._last_saved_step
        if is_due and batch_idx + 1 < trainer.num_training_batches:  # the end of the epoch saves by itself
            self.save(trainer)

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        score = None if self.monitor is None else float(trainer.callback_metrics[self.monitor])
        self.save(trainer, score)
        self._stop_out_of_patience(trainer)

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if trainer.ckpt_path is not None:  # a run that had stopped early is over; only its scores are missing
            self._stop_out_of_patience(trainer)

    def _stop_out_of_patience(self, trainer: pl.Trainer) -> None:
        if self.config.patience and self._agree(trainer).any(self.is_out_of_patience):
            trainer.should_stop = True

    def _agree(self, trainer: pl.Trainer) -> Agreement:
        self._agreement = self._agreement or Agreement(trainer)
        return self._agreement

    @property
    def is_out_of_patience(self) -> bool:
        """Whether the newest checkpoint has gone `--patience` scored epochs without a better score."""
        last = CheckpointIndex.read(self.folder).last if self.config.patience else None
        return last is not None and self.config.patience is not None and last.stale >= self.config.patience

    def save(self, trainer: pl.Trainer, score: float | None = None) -> None:
        """Save on all processes. A crash at any point leaves the earlier checkpoints and the index as they were.

        Raises:
            UserError: the disk is full, or the weights are no numbers; the other processes raise SystemExit.
        """
        suffix = "" if "DeepSpeed" in type(trainer.strategy).__name__ else ".ckpt"
        name = f"step-{trainer.global_step:08d}{'-val' if score is not None else ''}{suffix}"
        partial = self.folder / f"{PARTIAL}{name}"
        self._together(trainer, partial, self._make_room)
        self._together(trainer, partial, self._write)
        self._together(trainer, partial, lambda trainer, partial: self._publish(trainer, partial, name, score))
        self._last_saved_step, self._last_saved_at = trainer.global_step, time.monotonic()

    def _together(self, trainer: pl.Trainer, partial: Path, part: Callable[[pl.Trainer, Path], str | None]) -> None:
        """Do one part of saving on every process, wait for all, and stop all if it failed on one."""
        try:
            failure = part(trainer, partial)
        except OSError as error:
            failure = describe_failure(error, partial)
        if not self._agree(trainer).any(failure is not None):
            return
        if not trainer.is_global_zero:
            if failure is not None:
                log.error("process %d: %s", trainer.global_rank, failure)
            raise SystemExit(_EXIT_USAGE)
        with contextlib.suppress(OSError):
            delete(partial)
        last = CheckpointIndex.read(self.folder).last
        kept = "there is no earlier checkpoint" if last is None else f"{last.name} (step {last.step}) is whole"
        raise UserError(
            f"nothing saved at step {trainer.global_step}: {failure or 'another process failed'}; {kept}. "
            "Mend that and run the same command with --resume auto"
        )

    def _make_room(self, trainer: pl.Trainer, partial: Path) -> str | None:
        WRITES.clear()
        if not has_finite_weights(trainer.lightning_module):
            return "the weights are no longer finite numbers (a lower --lr, or --precision fp32 or bf16, may help)"
        if not trainer.is_global_zero:
            return None
        self.folder.mkdir(parents=True, exist_ok=True)
        remove_leftovers(self.folder)
        last = CheckpointIndex.read(self.folder).last
        manifest = None if last is None else read_manifest(self.folder / last.name)
        needed = estimate_bytes(trainer.lightning_module) if manifest is None else manifest.num_bytes
        return lack_of_room(self.folder, needed)

    def _write(self, trainer: pl.Trainer, partial: Path) -> str | None:
        trainer.save_checkpoint(partial)
        return WRITES.reason

    def _publish(self, trainer: pl.Trainer, partial: Path, name: str, score: float | None) -> str | None:
        if not trainer.is_global_zero:
            return None
        finite = None if score is None or not math.isfinite(score) else score
        if score is not None and finite is None:
            log.warning(
                "%s is %s after step %d: not a candidate for the best", self.monitor, score, trainer.global_step
            )
        index = CheckpointIndex.read(self.folder)
        stale = index.count_stale(score, lower_is_better=self.lower_is_better)
        entry = SavedCheckpoint(name, trainer.global_step, trainer.current_epoch, finite, stale)
        final = self.folder / name
        sync_tree(partial)
        write_manifest(Manifest(**asdict(entry), identity=self.identity, files=measure_files(partial)), final)
        if final.exists():
            delete(final)
        partial.rename(final)
        sync(self.folder)
        index.monitor = self.monitor
        index.add(entry, lower_is_better=self.lower_is_better)
        gone = index.prune(self.config.keep)
        index.write(self.folder)
        sync(self.folder)
        for old in gone:
            delete(self.folder / old)
            delete(manifest_path(self.folder / old))
        return None

    def on_save_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        checkpoint["accumulate"] = trainer.accumulate_grad_batches

    def on_load_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        now = trainer.accumulate_grad_batches
        rescale_progress(checkpoint["loops"]["fit_loop"], checkpoint.get("accumulate", now), now)


def rescale_progress(fit_loop: dict[str, Any], before: int, now: int) -> None:
    """Count micro-steps as a run does that takes `now` of them for an optimizer step, where it took `before`.

    Checkpoints are taken between optimizer steps, so no count has a remainder.

    Args:
        fit_loop: Lightning's state of the loop and of the loader, changed in place.
        before: Micro-steps of an optimizer step when it was saved.
        now: As this run takes.
    """
    if before == now:
        return
    progress = fit_loop["epoch_loop.batch_progress"]
    for counts in (progress["total"], progress["current"]):
        done = counts["processed"]  # "completed" is one behind where the save comes from a hook of the batch's end
        counts |= {name: done // before * now - (done - count) for name, count in counts.items()}
    for loader in fit_loop["state_dict"].get("combined_loader", ()):
        loader["micro_steps_done"] = loader["micro_steps_done"] // before * now


def remove_leftovers(folder: Path) -> None:
    """Delete what a killed process left half-written, and manifests without a checkpoint."""
    for path in [*folder.glob(f"{PARTIAL}*"), *folder.glob(".gone-*")]:
        delete(path)
    for path in folder.glob("step-*.manifest.json"):
        if not path.with_name(path.name.removesuffix(".manifest.json")).exists():
            path.unlink()


def read_weights(path: Path, *, prefix: str = "encoder.model.") -> dict[str, Tensor]:
    """fp32 weights of a checkpoint file, or of a DeepSpeed folder (its shards are put together).

    Raises:
        UserError: the path is missing, empty, half-written or no checkpoint.
    """
    if not path.exists():
        raise UserError(f"checkpoint {path} does not exist")
    check_whole(path)
    state = _read_folder(path) if path.is_dir() else _read_file(path)
    weights = {name[len(prefix) :]: value for name, value in state.items() if name.startswith(prefix)}
    empty = [name for name, value in weights.items() if value.numel() == 0]
    if empty or not weights:
        what = f"tensor '{empty[0]}' is empty" if empty else f"no weights named '{prefix}...'"
        raise UserError(f"checkpoint {path}: {what}; it is not a whole checkpoint of ours")
    return weights


def _read_file(path: Path) -> dict[str, Tensor]:
    import pickle
    import zipfile

    try:
        checkpoint = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except (RuntimeError, pickle.UnpicklingError, EOFError, KeyError, zipfile.BadZipFile, OSError) as error:
        first_line = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise UserError(f"checkpoint {path} is damaged or not ours: {first_line}") from None
    state = checkpoint.get("state_dict") if isinstance(checkpoint, dict) else None
    if not isinstance(state, dict) or not all(isinstance(value, Tensor) for value in state.values()):
        raise UserError(f"checkpoint {path} is damaged or not ours: it holds no 'state_dict' of tensors")
    return state


def _read_folder(path: Path) -> dict[str, Tensor]:
    shards = path / _DEEPSPEED_TAG
    if not any(shards.glob("*model_states.pt")):
        raise UserError(f"{path} is not a whole DeepSpeed checkpoint: {shards} holds no *model_states.pt")
    if not any(shards.glob("*optim_states.pt")):
        raise UserError(f"{path} is not a whole DeepSpeed checkpoint: {shards} holds no *optim_states.pt")
    for shard in sorted(shards.glob("*.pt")):
        try:
            check_safe(shard)
        except Refused:
            raise
        except UserError as error:
            raise UserError(f"{path} is not a whole DeepSpeed checkpoint: {error}") from None
    os.environ.setdefault("DS_ACCELERATOR", "cuda" if torch.cuda.is_available() else "cpu")
    import pickle

    from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint

    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            state: dict[str, Tensor] = get_fp32_state_dict_from_zero_checkpoint(str(path), tag=_DEEPSPEED_TAG)
    except (RuntimeError, ValueError, AssertionError, EOFError, KeyError, OSError, pickle.UnpicklingError) as error:
        raise UserError(f"{path} is not a whole DeepSpeed checkpoint: {error}") from None
    return state
