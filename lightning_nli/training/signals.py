"""Signals that ask a run to stop: they set a flag, which the training looks at where it can stop without a loss."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType

from lightning_nli.types import UserError

STOP_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
_SLURM_MARGIN_S = 60.0  # after sbatch's own signal (120 s before the end), for jobs that were submitted without one


class Stopped(Exception):  # noqa: N818 - it is no error: the run is saved and is to be started again
    """Raised on every process at the same point after a signal or the time limit; the run can be started again."""


@dataclass
class StopRequest:
    """Whether this process was told to stop.

    Attributes:
        reason: Name of the first signal, None without one.
        is_training: Steps are being taken: finish one, then save. Otherwise there is nothing to save.
        started: When the run began, of `time.monotonic`.
    """

    reason: str | None = None
    is_training: bool = False
    started: float = field(default_factory=time.monotonic)

    def note(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal. Those after the first change nothing.

        Raises:
            Stopped: nothing is being trained, so that nothing is lost by leaving at once.
        """
        is_first = self.reason is None
        self.reason = self.reason or signal.Signals(number).name
        if is_first and not self.is_training:
            raise Stopped(f"{self.reason} outside of training")


REQUEST = StopRequest()
"""Of this process: signals are."""


@contextmanager
def listening() -> Iterator[None]:
    """Note TERM, USR1 and USR2 instead of dying of them; what handled them before does so again afterwards."""
    REQUEST.__dict__.update(StopRequest().__dict__)
    is_main = threading.current_thread() is threading.main_thread()  # the only one that may ask for signals
    before = {number: signal.signal(number, REQUEST.note) for number in STOP_SIGNALS if is_main}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        REQUEST.__dict__.update(StopRequest().__dict__)


def deafen() -> None:
    """Ignore the stop signals to the end of this process, which has saved and is leaving.

    The first process to leave makes `srun` end the others by SIGTERM; they must still leave with their own code, or the
    job would not be queued again.
    """
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def parse_max_time(text: str | None) -> float | None:
    """Seconds of DD:HH:MM:SS, HH:MM:SS, MM:SS or plain seconds.

    Raises:
        UserError: anything else.
    """
    if text is None:
        return None
    parts = text.split(":")
    if len(parts) > 4 or not all(part.isdigit() for part in parts):
        raise UserError(f"--max-time takes DD:HH:MM:SS, got '{text}'")
    weights = (1, 60, 3_600, 86_400)
    return float(sum(int(part) * weight for part, weight in zip(reversed(parts), weights, strict=False)))


def slurm_time_left_s() -> float | None:
    """Seconds until a minute before SLURM ends the job; None outside of a job, or where that is (nearly) over."""
    end = os.environ.get("SLURM_JOB_END_TIME", "")
    left = float(end) - time.time() - _SLURM_MARGIN_S if end.isdigit() else 0.0
    return left if left > _SLURM_MARGIN_S else None


def time_limit_s(max_time: str | None) -> float | None:
    """The shorter of `--max-time` and what SLURM leaves the job, in seconds from now; None without either.

    Raises:
        UserError: as `parse_max_time`.
    """
    limits = [limit for limit in (parse_max_time(max_time), slurm_time_left_s()) if limit is not None]
    return min(limits, default=None)
