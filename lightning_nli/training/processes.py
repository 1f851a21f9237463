"""The processes of a run on one machine live and die together, and the error shown is that of the first to fail.

Lightning starts the other processes of a machine by running the same command again, looks after them every 5 seconds,
and then kills everything, whatever they ended with. Here a process that failed is noticed within a second, one that
left as the others do is not a failure, and nobody waits for one that is gone.
"""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.callbacks import Callback
from pytorch_lightning.strategies.launchers.subprocess_script import _SubprocessScriptLauncher

from lightning_nli.training.signals import Stopped
from lightning_nli.types import UserError

log = logging.getLogger(__name__)

_PARENT_VARIABLE = "LNLI_PARENT_PROCESS"
_ORDERLY_CODES = (0, 2, 75)  # finished, a mistake of the user's that all see, saved
_POLL_S = 0.5
_GRACE_S = 5.0  # for an error of another process to show, before our own counts
_LAST_RESORT_S = 30.0
_SET_DEATH_SIGNAL = 1  # of prctl(2)


class RankLauncher(_SubprocessScriptLauncher):
    """Starts the other processes of this machine, tied to this one, and watches them."""

    def launch(self, function: Callable[..., Any], *args: Any, trainer: pl.Trainer | None = None, **kwargs: Any) -> Any:
        self.cluster_environment.validate_settings(num_devices=self.num_processes, num_nodes=self.num_nodes)
        if not self.cluster_environment.creates_processes_externally:
            os.environ[_PARENT_VARIABLE] = str(os.getpid())
            self._call_children_scripts()
            threading.Thread(target=self._watch, daemon=True, name="rank-watch").start()
        return function(*args, **kwargs)

    def failed(self) -> tuple[int, int] | None:
        """(local rank, exit code) of a process that ended otherwise than it should; None without one."""
        return next((end for end in self._ended() if end[1] not in _ORDERLY_CODES), None)

    def _ended(self) -> list[tuple[int, int]]:
        codes = [(local_rank, process.poll()) for local_rank, process in enumerate(self.procs, 1)]
        return [(local_rank, code) for local_rank, code in codes if code is not None]

    def stop_all(self) -> None:
        """Kill the processes that this one started."""
        for process in self.procs:
            if process.poll() is None:
                process.kill()

    def _watch(self) -> None:
        """If another process is gone and this one still waits for it, stop all."""
        while not any(code for _, code in self._ended()):
            if len(self._ended()) == len(self.procs):
                return
            time.sleep(_POLL_S)
        failed = self.failed()
        # By then this process has failed as well and said so, or has left as the other one did, or never will.
        time.sleep(_LAST_RESORT_S if failed is None else 2 * _GRACE_S)
        local_rank, code = failed or self._ended()[0]
        log.error("%s", describe_end(local_rank, code))
        self.stop_all()
        sys.stderr.flush()
        os._exit(1)


def describe_end(local_rank: int, code: int) -> str:
    """How a process ended, for the user."""
    how = (
        f"was killed by signal {-code} (out of memory?)"
        if code < 0
        else f"failed with code {code}, see its error above"
    )
    return f"process {local_rank} of this machine {how}; all processes stop"


def is_started_by_launcher() -> bool:
    """Whether this process is one that a `RankLauncher` started."""
    parent = os.environ.get(_PARENT_VARIABLE)
    return parent not in (None, str(os.getpid())) and os.environ.get("LOCAL_RANK", "0") != "0"


def tie_to_parent() -> None:
    """In a process that a `RankLauncher` started: die when the process that started it dies (Linux)."""
    if is_started_by_launcher() and sys.platform.startswith("linux"):
        ctypes.CDLL(None, use_errno=True).prctl(_SET_DEATH_SIGNAL, signal.SIGKILL)
        if str(os.getppid()) != os.environ[_PARENT_VARIABLE]:
            os._exit(1)


class FirstErrorFirst(Callback):
    """Shows the error of the process that failed first, and lets the others go without theirs."""

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        if trainer.world_size == 1 or isinstance(exception, Stopped | UserError | SystemExit | KeyboardInterrupt):
            return
        launcher = trainer.strategy.launcher
        if isinstance(launcher, RankLauncher) and launcher.procs:
            failed = _wait_for(launcher.failed)
            launcher.stop_all()
            _arm_last_resort()
            if failed is not None:
                log.error("%s", describe_end(*failed))
                raise SystemExit(1)
            return
        lines = "".join(traceback.format_exception(exception))
        log.error("process %d of %d failed:\n%s", trainer.global_rank, trainer.world_size, lines)
        sys.stderr.flush()
        if is_started_by_launcher():
            os._exit(1)  # no teardown, which might wait for the others


def _wait_for(look: Callable[[], tuple[int, int] | None]) -> tuple[int, int] | None:
    end = time.monotonic() + _GRACE_S
    while (found := look()) is None and time.monotonic() < end:
        time.sleep(_POLL_S / 5)
    return found


def _arm_last_resort() -> None:
    timer = threading.Timer(_LAST_RESORT_S, os._exit, (1,))
    timer.daemon = True
    timer.start()
