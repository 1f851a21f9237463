"""What the driver of a sweep sees: reports, ends, failures; it keeps the sweep's folder up to date."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ray import tune

from lightning_nli.tuning.disk import DiskWatch, prune_checkpoints
from lightning_nli.tuning.sweep import Status, Sweep
from lightning_nli.tuning.trial import EPOCH, SCORE

if TYPE_CHECKING:
    from lightning_nli.tuning.search import Interruption


class StopWhenTold(tune.Stopper):  # type: ignore[misc]
    """Ends the whole search once it is to be stopped."""

    def __init__(self, interruption: Interruption) -> None:
        self.interruption = interruption

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        return False

    def stop_all(self) -> bool:
        return self.interruption.reason is not None


class SweepCallback(tune.Callback):  # type: ignore[misc]
    """Writes every trial's status, deletes checkpoints that are not to stay, watches the disk."""

    def __init__(self, sweep: Sweep, interruption: Interruption, disk: DiskWatch, tell: Callable[[str], None]) -> None:
        self.sweep, self.interruption, self.disk, self.tell = sweep, interruption, disk, tell
        self._ended = {trial.name for trial in sweep.trials() if trial.status.has_ended}
        self._best = math.nan

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        if str(trial) not in self._ended:
            self._set(str(trial), Status.RUNNING)

    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        if str(trial) not in self._ended:
            metric = self.sweep.spec.metrics[0]
            self.tell(f"trial {trial}: epoch {result[EPOCH]:g}, {metric} {result[SCORE]:.4f}")
        if self.disk.is_full():
            self.interruption.stop(self.disk.describe())

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        name = str(trial)
        if self.interruption.reason is not None or name in self._ended:
            return
        is_whole = all((run / "result.json").exists() for run in self.sweep.runs(name))
        self._end(name, Status.FINISHED if is_whole else Status.STOPPED)

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        name = str(trial)
        if self.interruption.reason is not None:
            return
        told = self.sweep.ledger(name) / "error.txt"
        error = told.read_text(encoding="utf-8") if told.exists() else "its process in Ray ended (killed, or no memory)"
        told.unlink(missing_ok=True)
        self._end(name, Status.FAILED, error)

    def _end(self, name: str, status: Status, error: str | None = None) -> None:
        self._ended.add(name)
        self._set(name, status, error)
        self.tell(f"trial {name}: {status}" + (f" ({error})" if error else ""))
        prune_checkpoints(self.sweep)

    def _set(self, name: str, status: Status, error: str | None = None) -> None:
        self.sweep.write(replace(self.sweep.trial(name), status=status, error=error))
