"""Progress for people and logs, and stopping without losing work."""

from __future__ import annotations

import logging
import sys
import time
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Callback
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from lightning_nli.batch import PackedBatch
from lightning_nli.training.agreement import Agreement
from lightning_nli.training.checkpoint import RunCheckpoints
from lightning_nli.training.signals import REQUEST, Stopped, StopRequest, parse_max_time
from lightning_nli.training.storage import has_finite_weights
from lightning_nli.types import UserError

__all__ = ["NanGuard", "StopOnSignal", "Stopped", "Throughput", "TrainingProgress", "parse_max_time"]

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


_ASK_EVERY_S = 1.0
_MOST_STEPS = 100


class _Pace:
    """How many steps to let pass before the processes ask each other again: a second's worth, the same for all."""

    def __init__(self) -> None:
        self._asked_at, self._passed, self._wait = time.monotonic(), 0, 1

    def is_time(self) -> bool:
        """Count a step; whether to ask after it."""
        self._passed += 1
        return self._passed >= self._wait

    @property
    def seconds(self) -> float:
        """Of one step since the last question, on this process."""
        return (time.monotonic() - self._asked_at) / max(1, self._passed)

    def asked(self, slowest_s: float) -> None:
        """Start anew, with the seconds a step takes the slowest process."""
        self._asked_at, self._passed = time.monotonic(), 0
        self._wait = max(1, min(_MOST_STEPS, int(_ASK_EVERY_S / max(slowest_s, 1e-6))))


class StopOnSignal(Callback):
    """Signals and time limits: finish the step or validation batch, let all agree, save, leave with code 75.

    Also saves when the last save is too long ago, which the processes must agree on as well. Lightning's own handling
    of SIGTERM, which broadcasts at every batch and waits for ever if only one process was told, is switched off.

    Args:
        checkpoints: Saves the run.
        max_time_s: Seconds until the run stops by itself, None for never.
        request: What the signals set.
    """

    def __init__(
        self, checkpoints: RunCheckpoints, *, max_time_s: float | None = None, request: StopRequest = REQUEST
    ) -> None:
        self.checkpoints, self.max_time_s, self.request = checkpoints, max_time_s, request
        self._first_step = self._last_step = -1
        self._pace = self._val_pace = _Pace()
        self._agreement: Agreement | None = None
        self._is_in_validation = False

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        trainer._signal_connector.register_signal_handlers = lambda: None  # type: ignore[method-assign]
        trainer.fit_loop.epoch_loop._broadcast_sigterm_tensor = lambda: None  # type: ignore[method-assign]

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.request.is_training = True
        self._agreement = Agreement(trainer)
        self._pace, self._val_pace = _Pace(), _Pace()
        self._first_step = self._last_step = trainer.global_step

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if trainer.global_step == self._last_step or batch_idx + 1 == trainer.num_training_batches:
            return  # inside an optimizer step, or before the epoch's own end, which saves
        self._last_step = trainer.global_step
        if self._agreement is None or not (self._agreement.world_size == 1 or self._pace.is_time()):
            return
        must_stop, must_save = self._ask(self._agreement, self._pace)
        if must_stop or must_save:
            self.checkpoints.save(trainer)
        if must_stop:
            self._stop(trainer)

    def on_validation_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        if self._agreement is None or trainer.global_step == self._first_step:
            return  # a process that goes on with a validation finishes it, or short time limits would never end it
        if not (self._agreement.world_size == 1 or self._val_pace.is_time()):
            return
        if self._ask(self._agreement, self._val_pace)[0]:
            self._is_in_validation = True
            self.checkpoints.save(trainer)
            self._stop(trainer)

    def on_save_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        if self._is_in_validation:  # the run that goes on validates again from the first batch
            progress = checkpoint["loops"]["fit_loop"]["epoch_loop.val_loop.batch_progress"]
            progress["total"] |= {"ready": 1, "started": 1, "processed": 0, "completed": 0}
            progress["current"] |= dict.fromkeys(progress["current"], 0)
            progress["is_last_batch"] = False

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if self._agreement is None or trainer.global_step == self._first_step:
            return
        if self._ask(self._agreement, self._pace)[0]:
            self._stop(trainer)  # the end of the last epoch has saved

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if self._agreement is not None and self._ask(self._agreement, self._pace)[0]:
            self._stop(trainer)  # what is left is scoring, which the next start does
        self.request.is_training = False

    def _ask(self, agreement: Agreement, pace: _Pace) -> tuple[bool, bool]:
        """Whether to stop, and whether to save, by the flags and clocks of all processes."""
        is_over = self.max_time_s is not None and time.monotonic() - self.request.started > self.max_time_s
        if is_over:
            self.request.reason = self.request.reason or "time limit"
        stop, save, slowest_s = agreement.largest(
            float(self.request.reason is not None), float(self.checkpoints.is_overdue), pace.seconds
        )
        pace.asked(slowest_s)
        return stop > 0, save > 0

    def _stop(self, trainer: pl.Trainer) -> None:
        raise Stopped(f"{self.request.reason or 'another process was told to stop'} at step {trainer.global_step}")


class NanGuard(Callback):
    """A loss that is no number stops the run before it reaches the weights, or costs the step, as `--on-nan` says.

    Args:
        on_nan: `stop` or `skip`.
        most_in_a_row: Steps skipped one after another that stop the run all the same.
    """

    def __init__(self, on_nan: str = "stop", *, most_in_a_row: int = 10) -> None:
        self.on_nan, self.most_in_a_row = on_nan, most_in_a_row
        self.num_skipped = self._in_a_row = 0
        self._loss_sum: torch.Tensor | None = None

    def on_before_backward(self, trainer: pl.Trainer, pl_module: pl.LightningModule, loss: torch.Tensor) -> None:
        value = loss.detach().float()
        self._loss_sum = value if self._loss_sum is None else self._loss_sum + value

    def on_before_optimizer_step(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, optimizer: torch.optim.Optimizer
    ) -> None:
        value, self._loss_sum = self._loss_sum, None
        if value is None:
            return
        total = trainer.strategy.reduce(value, reduce_op="sum")
        if bool(torch.isfinite(total)):
            self._in_a_row = 0
            return
        self.num_skipped, self._in_a_row = self.num_skipped + 1, self._in_a_row + 1
        step = trainer.global_step + 1
        if self.on_nan == "stop" or self._in_a_row >= self.most_in_a_row:
            self._stop(trainer, f"the loss is {float(total)} in step {step}", self._in_a_row)
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = None  # AdamW leaves alone what has no gradient
        log.warning("the loss is %s in step %d: skipped, %d so far", float(total), step, self.num_skipped)
        pl_module.log("train/skipped_steps", float(self.num_skipped), batch_size=1, rank_zero_only=True)

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if trainer.sanity_checking or has_finite_weights(pl_module):
            return
        self._stop(trainer, f"weights are no longer finite numbers after step {trainer.global_step}", 1)

    def _stop(self, trainer: pl.Trainer, what: str, in_a_row: int) -> None:
        if not trainer.is_global_zero:
            raise SystemExit(2)
        times = f", {in_a_row} steps in a row" if in_a_row > 1 else ""
        raise UserError(
            f"{what}{times}; the checkpoints saved before are good. A lower --lr, --clip 1, --precision fp32 or bf16 "
            "may help; --on-nan skip leaves such steps out"
        )
