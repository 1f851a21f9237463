"""Checkpoints: saved whole or not at all, best and newest kept, read back as plain fp32 weights."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import math
import os
import shutil
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Checkpoint
from torch import Tensor

from lightning_nli.config import CheckpointConfig
from lightning_nli.types import UserError

log = logging.getLogger(__name__)

INDEX_NAME = "index.json"
_DEEPSPEED_TAG = "checkpoint"


@dataclass(frozen=True)
class SavedCheckpoint:
    """One checkpoint in the folder.

    Attributes:
        name: File (one process, DDP) or folder (DeepSpeed).
        step: Optimizer steps taken.
        epoch: Epochs begun, counted from 0.
        score: The monitored score, null without validation.
    """

    name: str
    step: int
    epoch: int
    score: float | None = None


@dataclass
class CheckpointIndex:
    """What the checkpoint folder holds; kept as `index.json` beside the checkpoints, replaced by rename."""

    monitor: str | None = None
    saved: list[SavedCheckpoint] = field(default_factory=list)
    best: str | None = None

    @classmethod
    def read(cls, folder: Path) -> CheckpointIndex:
        """The folder's index; empty where there is none.

        Raises:
            UserError: the index is damaged.
        """
        path = folder / INDEX_NAME
        if not path.exists():
            return cls()
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
            saved = [SavedCheckpoint(**entry) for entry in values["saved"]]
            return cls(monitor=values["monitor"], saved=saved, best=values["best"])
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(f"{path} is damaged ({error}); start the run anew in another --run-dir") from None

    def write(self, folder: Path) -> None:
        partial = folder / f".{INDEX_NAME}.{os.getpid()}"
        partial.write_text(json.dumps(asdict(self), indent=1), encoding="utf-8")
        partial.replace(folder / INDEX_NAME)

    @property
    def last(self) -> SavedCheckpoint | None:
        return max(self.saved, key=lambda entry: entry.step, default=None)

    def add(self, entry: SavedCheckpoint, *, lower_is_better: bool) -> None:
        """Register a checkpoint; a score that is no number is never the best."""
        self.saved = [*(known for known in self.saved if known.name != entry.name), entry]
        if entry.score is None or not math.isfinite(entry.score):
            return
        best = next((known.score for known in self.saved if known.name == self.best), None)
        sign = -1 if lower_is_better else 1
        if best is None or sign * entry.score > sign * best:
            self.best = entry.name

    def prune(self, keep: int) -> list[str]:
        """Forget all but the newest `keep` and the best one; returns the names that may be deleted."""
        newest = sorted(self.saved, key=lambda entry: -entry.step)[:keep]
        kept = {entry.name for entry in newest} | {self.best}
        gone = [entry.name for entry in self.saved if entry.name not in kept]
        self.saved = [entry for entry in self.saved if entry.name in kept]
        return gone

    def chosen(self) -> SavedCheckpoint:
        """The checkpoint that scores count for: the best one, or the last where nothing chose.

        Raises:
            UserError: there is none.
        """
        entry = next((entry for entry in self.saved if entry.name == self.best), self.last)
        if entry is None:
            raise UserError("the run has no checkpoint yet")
        return entry


class RunCheckpoints(Checkpoint):
    """Saves at the end of every epoch (and every so many steps), under a temporary name that is renamed when whole."""

    def __init__(self, folder: Path, config: CheckpointConfig, *, has_val: bool) -> None:
        self.folder, self.config = folder, config
        self.monitor = config.monitor if has_val else None
        self._last_saved_step = -1

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

    def save(self, trainer: pl.Trainer, score: float | None = None) -> None:
        """Save on all ranks. A crash at any point leaves the earlier checkpoints and the index as they were."""
        is_folder = "DeepSpeed" in type(trainer.strategy).__name__
        suffix = "" if is_folder else ".ckpt"
        name = f"step-{trainer.global_step:08d}{'-val' if score is not None else ''}{suffix}"
        partial = self.folder / f".partial-{name}"
        if trainer.is_global_zero:
            self.folder.mkdir(parents=True, exist_ok=True)
            _delete(partial)
        trainer.strategy.barrier("checkpoint-start")
        trainer.save_checkpoint(partial)
        trainer.strategy.barrier("checkpoint-written")
        if trainer.is_global_zero:
            _delete(self.folder / name)
            partial.rename(self.folder / name)
            index = CheckpointIndex.read(self.folder)
            index.monitor = self.monitor
            finite = None if score is None or not math.isfinite(score) else score
            if score is not None and finite is None:
                log.warning(
                    "%s is %s after step %d: not a candidate for the best", self.monitor, score, trainer.global_step
                )
            entry = SavedCheckpoint(name, trainer.global_step, trainer.current_epoch, finite)
            index.add(entry, lower_is_better=self.config.monitor.endswith("loss"))
            gone = index.prune(self.config.keep)
            index.write(self.folder)
            for old in gone:
                _delete(self.folder / old)
        trainer.strategy.barrier("checkpoint-done")
        self._last_saved_step = trainer.global_step


def _delete(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def read_weights(path: Path, *, prefix: str = "encoder.model.") -> dict[str, Tensor]:
    """fp32 weights of a checkpoint file, or of a DeepSpeed folder (its shards are put together).

    Raises:
        UserError: the path is missing, empty, half-written or no checkpoint.
    """
    if not path.exists():
        raise UserError(f"checkpoint {path} does not exist")
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
    os.environ.setdefault("DS_ACCELERATOR", "cuda" if torch.cuda.is_available() else "cpu")
    import pickle

    from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint

    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            state: dict[str, Tensor] = get_fp32_state_dict_from_zero_checkpoint(str(path), tag=_DEEPSPEED_TAG)
    except (RuntimeError, ValueError, AssertionError, EOFError, KeyError, OSError, pickle.UnpicklingError) as error:
        raise UserError(f"{path} is not a whole DeepSpeed checkpoint: {error}") from None
    return state
