"""Progress for people and logs, and stopping without losing work."""

from __future__ import annotations

import logging
import signal
import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Callback
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from lightning_nli.batch import PackedBatch

log = logging.getLogger(__name__)

_LOG_INTERVAL_S = 15.0


class Throughput:
    """Counts what went through the model: examples, real tokens, and the tokens that padding would have added."""

    def __init__(self) -> None:
        self.examples = self.tokens = self.padded_tokens = 0
        self.started = time.perf_counter()

    def add(self, batch: PackedBatch, processes: int) -> None:
        if batch.is_ghost:
            return
        self.examples += batch.num_segments * processes
        self.tokens += batch.num_tokens * processes
        self.padded_tokens += batch.num_segments * batch.max_seqlen * processes

    @property
    def seconds(self) -> float:
        return max(1e-9, time.perf_counter() - self.started)

    def describe(self) -> str:
        saved = 1 - self.tokens / max(1, self.padded_tokens)
        return (
            f"{self.examples / self.seconds:.1f} examples/s, {self.tokens / self.seconds:,.0f} tokens/s, "
            f"{saved:.0%} padding saved"
        )


class TrainingProgress(Callback):
    """One live line on a terminal; a log line now and then elsewhere; nothing with `quiet`."""

    def __init__(self, *, quiet: bool = False) -> None:
        self.quiet = quiet
        self.throughput = Throughput()
        self.training_s = 0.0
        self._bar: Progress | None = None
        self._task: Any = None
        self._last_log = 0.0

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.throughput = Throughput()
        self._last_log = time.perf_counter()
        if self.quiet or not trainer.is_global_zero or not sys.stderr.isatty():
            return
        columns = (
            TextColumn("[bold]{task.description}"),
            BarColumn(),
            TextColumn("{task.completed:.0f}/{task.total:.0f} steps"),
            TextColumn("{task.fields[speed]}"),
            TimeElapsedColumn(),
            TextColumn("ETA"),
            TimeRemainingColumn(),
        )
        self._bar = Progress(*columns, console=Console(stderr=True), refresh_per_second=2)
        self._task = self._bar.add_task("train", total=_total_steps(trainer), completed=trainer.global_step, speed="")
        self._bar.start()

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: PackedBatch, batch_idx: int
    ) -> None:
        self.throughput.add(batch, trainer.world_size)
        if self.quiet or not trainer.is_global_zero:
            return
        epoch = f"epoch {trainer.current_epoch + 1}/{trainer.max_epochs}"
        if self._bar is not None:
            self._bar.update(
                self._task, completed=trainer.global_step, description=epoch, speed=self.throughput.describe()
            )
        elif time.perf_counter() - self._last_log > _LOG_INTERVAL_S:
            self._last_log = time.perf_counter()
            log.info("%s", self._line(trainer, epoch))

    def _line(self, trainer: pl.Trainer, epoch: str) -> str:
        done, total = trainer.global_step, _total_steps(trainer)
        left_s = self.throughput.seconds * (total - done) / max(1, done)
        loss = trainer.callback_metrics.get("train/loss")
        shown = "" if loss is None else f", loss {float(loss):.3f}"
        minutes, seconds = divmod(round(left_s), 60)
        return f"{epoch}, step {done}/{total}{shown}, {self.throughput.describe()}, ETA {minutes}:{seconds:02d}"

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if trainer.sanity_checking or self.quiet or not trainer.is_global_zero:
            return
        scores = {name: value for name, value in trainer.callback_metrics.items() if name.startswith("id_val/")}
        text = ", ".join(f"{name} {float(value):.4f}" for name, value in scores.items())
        log.info("epoch %d/%d: %s", trainer.current_epoch + 1, trainer.max_epochs, text)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.training_s = self.throughput.seconds
        self._close()

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        self._close()

    def _close(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


def _total_steps(trainer: pl.Trainer) -> int:
    return int(trainer.estimated_stepping_batches)


class Stopped(Exception):  # noqa: N818 - it is no error: the run is saved and is to be started again
    """Raised on every rank at the same optimizer step after a signal or the time limit; the run has been saved."""


class StopOnSignal(Callback):
    """TERM, USR1, USR2 and the time limit: finish the optimizer step, let all ranks agree, save, leave with code 75."""

    signals = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)

    def __init__(self, save: Callable[[pl.Trainer], None], *, max_time_s: float | None = None) -> None:
        self.save, self.max_time_s = save, max_time_s
        self.started = time.monotonic()
        self.reason: str | None = None
        self._first_step = self._last_step = -1

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        for number in self.signals:
            signal.signal(number, self._note)
        self._first_step = self._last_step = trainer.global_step

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.reason = signal.Signals(number).name

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if trainer.global_step == self._last_step or batch_idx + 1 == trainer.num_training_batches:
            return  # inside an optimizer step, or before the epoch's own end, which saves
        self._last_step = trainer.global_step
        if self._must_stop(trainer):
            self.save(trainer)
            self._stop(trainer)

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if trainer.global_step > self._first_step and self._must_stop(trainer):
            self._stop(trainer)  # the end of the last epoch has saved

    def _must_stop(self, trainer: pl.Trainer) -> bool:
        if self.max_time_s is not None and time.monotonic() - self.started > self.max_time_s:
            self.reason = self.reason or "time limit"
        return self._agree(trainer)

    def _stop(self, trainer: pl.Trainer) -> None:
        raise Stopped(f"{self.reason or 'another process was told to stop'} at step {trainer.global_step}")

    def _agree(self, trainer: pl.Trainer) -> bool:
        if trainer.world_size == 1:
            return self.reason is not None
        flag = torch.tensor(float(self.reason is not None), device=trainer.strategy.root_device)
        return float(trainer.strategy.reduce(flag, reduce_op="sum")) > 0


def parse_max_time(text: str | None) -> float | None:
    """Seconds of DD:HH:MM:SS, HH:MM:SS, MM:SS or plain seconds.

    Raises:
        UserError: anything else.
    """
    from lightning_nli.types import UserError

    if text is None:
        return None
    parts = text.split(":")
    if len(parts) > 4 or not all(part.isdigit() for part in parts):
        raise UserError(f"--max-time takes DD:HH:MM:SS, got '{text}'")
    weights = (1, 60, 3_600, 86_400)
    return float(sum(int(part) * weight for part, weight in zip(reversed(parts), weights, strict=False)))
