"""One run of a trial, in a process of its own (`lnli tune work LEDGER`).

Its own process, so that Lightning may start further ones (DDP, DeepSpeed) by repeating the command line, and so that a
crash stays in it. After every epoch, once its checkpoint is there, it writes a report and waits for a line on standard
input that says how many reports were seen; the end of standard input tells it to leave.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, TextIO

import polars as pl
import pytorch_lightning as lightning
from pytorch_lightning.callbacks import Checkpoint

from lightning_nli.config import ExperimentConfig, load_config
from lightning_nli.data.identity import fingerprint
from lightning_nli.training.augment import augmented
from lightning_nli.training.corpora import VAL_NAME, RunData, load_run_data, segments_of
from lightning_nli.training.epoch_scores import RunWatch
from lightning_nli.training.index import CheckpointIndex
from lightning_nli.training.run import build_run, train_on
from lightning_nli.training.signals import Stopped, listening
from lightning_nli.training.strategy import is_first_process
from lightning_nli.tuning.process import LOCK_FILE, TASK_FILE, Task
from lightning_nli.tuning.sweep import Report, read_reports, write_json
from lightning_nli.types import SCHEMES, UserError

_REPORTS, _PENDING = "reports.jsonl", "pending.json"
_LOCK_PATIENCE_S = 300.0
_PARENT_POLL_S = 1.0


def run_task(ledger: Path, *, control: TextIO | None = None) -> None:
    """Train, report, score; goes on where an earlier process of the same task was stopped or killed.

    Args:
        ledger: Folder with settings and task, for reports.
        control: Where the number of reports seen is read from, by default standard input.

    Raises:
        UserError: settings or rows are not as they must be, or another process works on the same run.
        Stopped: it was told to leave; the run is saved.
    """
    config = load_config(ledger / "config.yaml")
    task = Task(**json.loads((ledger / TASK_FILE).read_text(encoding="utf-8")))
    run = Path(str(config.run_dir))
    reporter = EpochReporter(ledger, task, control or sys.stdin)
    with listening():
        if not is_first_process():
            _train(config, task, run, reporter)
            return
        _watch_parent()
        with _only_one(ledger):
            _recover_report(ledger, run, task.after)
            if not (run / "result.json").exists():
                _train(config, task, run, reporter)


def _train(config: ExperimentConfig, task: Task, run: Path, reporter: EpochReporter) -> None:
    data = _rows(config, task)
    train_on(config, data, run, watch=RunWatch(tuple(task.metrics), (reporter,), scored=(VAL_NAME,)))


def _rows(config: ExperimentConfig, task: Task) -> RunData:
    data = load_run_data(config) if task.rows is None else _fold_rows(config, Path(task.rows), str(task.scheme))
    if not data.has_val:
        raise UserError("a sweep needs rows to choose by: --val-split none leaves no id_val")
    return data


def _fold_rows(config: ExperimentConfig, path: Path, scheme_name: str) -> RunData:
    """The rows of an inner fold; what is held out of the whole search is not in the file."""
    frame, scheme = pl.read_parquet(path), SCHEMES[scheme_name]
    published = frame.filter(pl.col("role") == "train").drop("role")
    val = frame.filter(pl.col("role") == VAL_NAME).drop("role")
    train = augmented(config, published, [val], scheme)
    rows = pl.concat([train, val])
    return RunData(
        train=train,
        scored={VAL_NAME: val},
        published_train=published,
        scheme=scheme,
        segments=segments_of(rows, config.segments),
        bad_rows=(),
        sources=[path.stem],
        fingerprint=fingerprint(rows),
        duplicates={},
    )


class EpochReporter(Checkpoint):
    """Reports every epoch once its checkpoint is there (Lightning calls it after `RunCheckpoints`), then waits.

    Validation before training is no epoch and is never reported.

    Args:
        ledger: Where reports go.
        task: What is reported.
        control: Where the number of reports seen is read from.
    """

    def __init__(self, ledger: Path, task: Task, control: TextIO) -> None:
        self.ledger, self.task, self.control = ledger, task, control
        self._started = time.perf_counter()

    def on_train_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        if self.task.peak_lr is not None:
            _set_rates(trainer, self.task)

    def on_train_epoch_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        self._started = time.perf_counter()

    def on_validation_end(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        if trainer.sanity_checking or not trainer.is_global_zero:
            return
        batches = int(trainer.num_training_batches)
        done = trainer.fit_loop.epoch_loop.batch_progress.current.ready
        report = Report(
            epoch=trainer.current_epoch + done / batches,
            step=trainer.global_step,
            seconds=round(time.perf_counter() - self._started, 3),
            scores={name: float(trainer.callback_metrics[name]) for name in self.task.metrics},
        )
        write_json(self.ledger / _PENDING, asdict(report))
        if done < batches:  # in the middle of an epoch, where no checkpoint follows
            commit_report(self.ledger, self.task.after)

    def on_train_epoch_end(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        goes_on = True
        if trainer.is_global_zero:
            commit_report(self.ledger, self.task.after)
            goes_on = self._wait(len(read_reports(self.ledger)))
        if not trainer.strategy.broadcast(goes_on):
            raise Stopped(f"told to leave after epoch {trainer.current_epoch + 1}")

    def _wait(self, reports: int) -> bool:
        """Whether to go on, once so many reports were seen."""
        return any(line.strip().isdigit() and int(line) >= reports for line in iter(self.control.readline, ""))


def commit_report(ledger: Path, after: int = 0) -> None:
    """Append the pending report, if there is one; an epoch that was trained again after a crash is reported once.

    Args:
        ledger: Of the run.
        after: Reports made before another trial's weights were taken over.
    """
    pending = ledger / _PENDING
    if not pending.exists():
        return
    values = json.loads(pending.read_text(encoding="utf-8"))
    known = [(report.step, report.scores) for report in read_reports(ledger)[after:]]
    if (values["step"], values["scores"]) not in known:
        _append(ledger / _REPORTS, json.dumps(values, ensure_ascii=False))
    pending.unlink()


def _append(path: Path, line: str) -> None:
    whole = path.read_text(encoding="utf-8") if path.exists() else ""
    if whole and not whole.endswith("\n"):  # cut off by a crash
        path.write_text(whole[: whole.rfind("\n") + 1], encoding="utf-8")
    with path.open("a", encoding="utf-8") as file:
        file.write(line + "\n")


def _recover_report(ledger: Path, run: Path, after: int) -> None:
    """Of an epoch that ended as its process was killed: it counts if its checkpoint was written, else it is trained."""
    pending, checkpoints = ledger / _PENDING, run / "checkpoints"
    if not pending.exists():
        return
    written = [entry.step for entry in CheckpointIndex.read(checkpoints).saved]
    written += [json.loads(path.read_text(encoding="utf-8"))["step"] for path in checkpoints.glob("*.manifest.json")]
    if max(written, default=-1) >= json.loads(pending.read_text(encoding="utf-8"))["step"]:
        commit_report(ledger, after)
    else:
        pending.unlink()


def _set_rates(trainer: lightning.Trainer, task: Task) -> None:
    """Go on with another peak rate and decay than the checkpoint's; the schedule's shape stays."""
    (optimizer,) = trainer.optimizers
    (schedule,) = (config.scheduler for config in trainer.lr_scheduler_configs)
    factors = [group["lr"] / group["initial_lr"] if group["initial_lr"] else 0.0 for group in optimizer.param_groups]
    for group, factor in zip(optimizer.param_groups, factors, strict=True):
        group["initial_lr"] = task.peak_lr
        group["lr"] = float(task.peak_lr or 0.0) * factor
        if group["weight_decay"] and task.weight_decay is not None:
            group["weight_decay"] = task.weight_decay
    schedule.base_lrs = [float(task.peak_lr or 0.0) for _ in factors]  # type: ignore[union-attr]


@contextmanager
def _only_one(ledger: Path) -> Iterator[None]:
    """Hold the task's lock; the system frees it when the process ends, however it ends."""
    with (ledger / LOCK_FILE).open("a") as file:
        deadline = time.monotonic() + _LOCK_PATIENCE_S
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise UserError(f"another process still works on {ledger}; wait for it, or end it") from None
                time.sleep(0.2)
        yield


def _watch_parent() -> None:
    """Save and leave when the process that started this one is gone: nobody would read the reports."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_PARENT_POLL_S)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()


def check_task(ledger: Path) -> dict[str, Any]:
    """Read the data and build the model once, on this machine's CPU: what cannot run fails before any trial starts.

    Tokens go to the cache, which all trials map into memory.

    Returns:
        `parameters` (trained ones), `train_rows`, `val_rows`.

    Raises:
        UserError: settings or rows are not as they must be.
    """
    config = load_config(ledger / "config.yaml")
    task = Task(**json.loads((ledger / TASK_FILE).read_text(encoding="utf-8")))
    engine = replace(config.engine, accelerator="cpu", strategy="auto", devices=1, num_nodes=1, precision="fp32")
    engine = replace(engine, attention="auto" if config.engine.attention in ("flash", "varlen") else engine.attention)
    data = _rows(config, task)
    with tempfile.TemporaryDirectory() as scratch:
        built = build_run(replace(config, engine=engine), data, Path(scratch), quiet=True)
    return {
        "parameters": sum(parameter.numel() for parameter in built.module.parameters()),
        "train_rows": data.train.height,
        "val_rows": data.scored[VAL_NAME].height,
    }
