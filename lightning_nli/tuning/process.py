"""Starts, feeds and ends the process of one run of a trial. Imports neither Ray nor torch."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

from lightning_nli.config import ExperimentConfig, save_config
from lightning_nli.tuning.sweep import Report, read_reports, write_json

TASK_FILE, LOCK_FILE = "task.json", "lock"
POLL_S = 0.1
STOP_PATIENCE_S = 60.0

_OF_THE_OUTER_JOB = ("SLURM_", "PMI_", "PMIX_", "OMPI_", "TORCHELASTIC_")
_OF_OTHER_RANKS = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "NODE_RANK", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT")
_TOLD_CHARACTERS = 600


@dataclass(frozen=True, kw_only=True)
class Task:
    """What one process trains.

    Attributes:
        metrics: Scores of `id_val` to report.
        rows: Table of an inner fold (`prepare_folds`); None: the rows of the settings' own sources.
        scheme: Label scheme of `rows`.
        peak_lr: With PBT, the rate to go on with.
        weight_decay: With PBT, the decay to go on with.
        after: Reports made before another trial's weights were taken over.
    """

    metrics: list[str]
    rows: str | None = None
    scheme: str | None = None
    peak_lr: float | None = None
    weight_decay: float | None = None
    after: int = 0


def write_task(ledger: Path, config: ExperimentConfig, task: Task) -> None:
    """Leave settings and task where the process finds them."""
    ledger.mkdir(parents=True, exist_ok=True)
    save_config(config, ledger / "config.yaml")
    write_json(ledger / TASK_FILE, asdict(task))


def is_locked(ledger: Path) -> bool:
    """Whether a process works on the task."""
    if not (ledger / LOCK_FILE).exists():
        return False
    with (ledger / LOCK_FILE).open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


class TrialFailed(Exception):  # noqa: N818 - shown to the user as it is
    """A trial ended without what it was started for; the message says why."""


class TrialEnded(Exception):  # noqa: N818 - it is no error
    """The run stopped itself before its last epoch (patience) and is whole."""


class TrialInterrupted(Exception):  # noqa: N818 - it is no error
    """The sweep is being stopped; the trial has saved."""


def trial_environment(threads: int, base: Mapping[str, str] | None = None) -> dict[str, str]:
    """Environment of a trial's process: no task of the batch job around it, its own share of the cores."""
    outer = os.environ if base is None else base
    kept = {
        name: value
        for name, value in outer.items()
        if not name.startswith(_OF_THE_OUTER_JOB) and name not in _OF_OTHER_RANKS
    }
    return kept | {"OMP_NUM_THREADS": str(threads), "HF_HUB_DISABLE_PROGRESS_BARS": "1"}


class RunProcess:
    """One run of a trial.

    Args:
        ledger: Its task and its reports.
        run: Its run folder.
        epochs: Of the whole run.
        threads: CPU threads of a process.
        cwd: Folder in which relative sources are looked up.
        stop: File whose presence ends everything.
        command: What is started, by default our own worker.
    """

    def __init__(
        self,
        ledger: Path,
        run: Path,
        *,
        epochs: int,
        threads: int,
        cwd: Path,
        stop: Path,
        command: list[str] | None = None,
    ) -> None:
        self.ledger, self.run, self.epochs, self.threads, self.cwd = ledger, run, epochs, threads, cwd
        self.stop_file = stop
        self.command = command or [sys.executable, "-m", "lightning_nli", "tune", "work"]
        self._process: subprocess.Popen[str] | None = None
        self._seen = 0

    def report(self, number: int) -> Report:
        """Report `number` (from 0): read if it is there, else trained. The last one waits for the run to be whole.

        Raises:
            TrialEnded: there is none: the run stopped itself earlier.
            TrialFailed: the process ended without it.
            TrialInterrupted: the sweep is being stopped.
        """
        reports = read_reports(self.ledger)
        while len(reports) <= number:
            ended = self._process is not None and self._process.poll() is not None
            is_whole = (self.run / "result.json").exists()
            reports = read_reports(self.ledger)  # last: what an ended process left is all there
            if len(reports) > number:
                break
            if is_whole:
                raise TrialEnded(f"after epoch {reports[-1].epoch:g}")
            if ended:
                raise TrialFailed(self._last_words())
            self._go_on(number)
            time.sleep(POLL_S)
        if reports[number].epoch >= self.epochs:
            self._finish(number + 1)
        return reports[number]

    def _finish(self, number: int) -> None:
        while not (self.run / "result.json").exists():
            self._go_on(number)
            time.sleep(POLL_S)
            if self._process is not None and self._process.poll() is not None:
                if (self.run / "result.json").exists():
                    break
                raise TrialFailed(self._last_words())
        if self._process is not None:
            self._process.wait()
            self._process = None

    def _go_on(self, seen: int) -> None:
        """Make sure that the process runs and knows how many reports were seen."""
        if self.stop_file.exists():
            self.stop()
            raise TrialInterrupted("the sweep is being stopped")
        if self._process is None:
            self._start()
        if seen > self._seen:
            self._seen = seen
            try:
                self._stdin.write(f"{seen}\n")
                self._stdin.flush()
            except BrokenPipeError:  # it has ended; whoever polls it sees why
                pass

    @property
    def _stdin(self) -> IO[str]:
        assert self._process is not None and self._process.stdin is not None
        return self._process.stdin

    def _start(self) -> None:
        with (self.ledger / "worker.log").open("a", encoding="utf-8") as log:
            self._process = subprocess.Popen(
                [*self.command, str(self.ledger)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.cwd,
                env=trial_environment(self.threads),
                text=True,
                start_new_session=True,
            )
        self._seen = 0

    def stop(self) -> None:
        """Let the process save and leave; end it by force if it does not."""
        process, self._process = self._process, None
        if process is None:
            return
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        try:
            process.communicate(timeout=STOP_PATIENCE_S)  # closes its standard input
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def _last_words(self) -> str:
        """Why the process ended, from its log."""
        assert self._process is not None
        code = self._process.returncode
        self._process = None
        if code < 0:
            return f"its process was killed by {signal.Signals(-code).name} (log: {self.ledger / 'worker.log'})"
        text = (self.ledger / "worker.log").read_text(encoding="utf-8", errors="replace")
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        told = next((line for line in reversed(lines) if line.startswith("lnli: ")), lines[-1] if lines else "")
        return f"exit code {code}: {told.removeprefix('lnli: ')[:_TOLD_CHARACTERS]}"
