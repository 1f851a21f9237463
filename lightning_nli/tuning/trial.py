"""A trial as Ray Tune sees it: small enough to be sent anywhere, since all that is large lies in the sweep's folder."""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ray import tune
from ray.tune.result import RESULT_DUPLICATE

from lightning_nli.tuning.process import RunProcess, Task, TrialEnded, TrialFailed, TrialInterrupted, write_task
from lightning_nli.tuning.sweep import (
    STOP_FILE,
    Report,
    Status,
    Sweep,
    SweepSpec,
    lower_is_better,
    merge_reports,
    open_sweep,
    write_json,
)

SCORE, BEST_SCORE, EPOCH = "score", "best_score", "epoch"
"""Names of a report's entries for schedulers and searchers; `score_1` is the second metric."""

SWEEP_KEY, CPUS_KEY, GPUS_KEY = "_sweep", "_cpus", "_gpus"
_KEPT_SNAPSHOTS = 2


class TrialRun(tune.Trainable):  # type: ignore[misc]
    """One trial: starts the process of its run (of each inner fold's run) and hands its reports on, epoch by epoch.

    What was reported before is reported again without training: a sweep that goes on tells schedulers and searchers all
    that happened, whatever they have forgotten.
    """

    @classmethod
    def default_resource_request(cls, config: dict[str, Any]) -> tune.PlacementGroupFactory:
        """All devices of the trial on one machine, in one bundle."""
        bundle = {"CPU": config[CPUS_KEY], **({"GPU": config[GPUS_KEY]} if config[GPUS_KEY] else {})}
        return tune.PlacementGroupFactory([bundle], strategy="STRICT_PACK")

    def setup(self, config: dict[str, Any]) -> None:
        self._open(config)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Take another trial's settings: the process of Ray is used again."""
        self._end()
        self._open(new_config)
        return True

    def _open(self, config: dict[str, Any]) -> None:
        self._sweep: Sweep = open_sweep(Path(config[SWEEP_KEY]))
        spec = self._sweep.spec
        settings = plain_settings(config, spec)
        self._trial = replace(self._sweep.trial(self.trial_name), settings=settings)
        self._epochs = self._sweep.config(self._trial).optim.epochs
        ledgers, runs = self._sweep.member_ledgers(self.trial_name), self._sweep.runs(self.trial_name)
        threads = spec.config.engine.threads or 1
        cwd = Path(spec.cwd) if Path(spec.cwd).is_dir() else Path(os.environ.get("TUNE_ORIG_WORKING_DIR", "."))
        self._processes = [
            RunProcess(
                ledger,
                run,
                epochs=self._epochs,
                threads=threads,
                cwd=cwd,
                stop=self._sweep.folder / STOP_FILE,
                command=spec.worker,
            )
            for ledger, run in zip(ledgers, runs, strict=True)
        ]
        self._number = self._first_number()
        self._last: dict[str, Any] = {}
        self._tasks_are_written = False

    def _first_number(self) -> int:
        """Place of the first report to make: all are made again, but populations compare what trials are now."""
        reports = len(self._trial.reports)
        if self._sweep.spec.scheduler != "pbt" or not reports:
            return 0
        return reports - 1 if self._trial.status.has_ended else reports

    def _write_tasks(self) -> None:
        """Not before the first step: Ray may open a trial in a second process too, late and with old settings."""
        self._tasks_are_written = True
        spec = self._sweep.spec
        for member, process in zip(spec.members, self._processes, strict=True):
            config = self._sweep.config(self._trial, member)
            rates = self._rates() if self._trial.lineage else {}
            rows = str(self._sweep.folder / "folds" / f"{member}.parquet") if member else None
            write_task(process.ledger, config, Task(metrics=spec.metrics, rows=rows, scheme=spec.scheme, **rates))

    def _rates(self) -> dict[str, Any]:
        optim = self._sweep.config(self._trial).optim
        return {"peak_lr": optim.lr, "weight_decay": optim.weight_decay, "after": self._trial.lineage[-1]["after"]}

    def step(self) -> dict[str, Any]:
        """The next report.

        Raises:
            TrialFailed: a run ended early, or its score is no number.
            TrialInterrupted: the sweep is being stopped.
        """
        if not self._tasks_are_written:
            self._write_tasks()
        try:
            (report,) = merge_reports([[process.report(self._number)] for process in self._processes])
            result = self._result(report)
        except TrialEnded:
            return {**self._last, "done": True, RESULT_DUPLICATE: True}
        except TrialFailed as failure:
            (self._sweep.ledger(self.trial_name) / "error.txt").write_text(str(failure), encoding="utf-8")
            raise
        self._number += 1
        self._last = result
        replayed_to_the_end = self._trial.status is Status.STOPPED and self._number >= len(self._trial.reports)
        return result | {"done": report.epoch >= self._epochs or replayed_to_the_end}

    def _result(self, report: Report) -> dict[str, Any]:
        metrics = self._sweep.spec.metrics
        for metric in metrics:
            value = report.scores.get(metric)
            if value is None or not math.isfinite(value):
                raise TrialFailed(f"{metric} is {'missing' if value is None else value} after epoch {report.epoch:g}")
        scores = [float(report.scores[metric] or 0.0) for metric in metrics]
        reports = self._sweep.trial(self.trial_name).reports[: self._number + 1]
        best = min if lower_is_better(metrics[0]) else max
        best_score = best(float(known.scores[metrics[0]] or 0.0) for known in reports)
        named = {SCORE if place == 0 else f"{SCORE}_{place}": value for place, value in enumerate(scores)}
        return {**named, BEST_SCORE: best_score, EPOCH: report.epoch, "seconds": report.seconds}

    def save_checkpoint(self, checkpoint_dir: str) -> dict[str, Any]:
        """What another trial (PBT) or this one, paused, goes on from: links to the run's checkpoints."""
        state = {"name": self.trial_name, "number": self._number, "settings": self._trial.settings}
        if self._sweep.spec.scheduler != "pbt":
            return state
        snapshots = self._sweep.folder / "snapshots"
        target = snapshots / f"{self.trial_name}-{self._number:04d}"
        if not target.exists():
            _link_tree(self._processes[0].run / "checkpoints", target)
        for old in sorted(snapshots.glob(f"{self.trial_name}-*"))[:-_KEPT_SNAPSHOTS]:
            shutil.rmtree(old, ignore_errors=True)
        return state | {"snapshot": target.name}

    def load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Go on where `save_checkpoint` was; with weights of another trial, if it was that one's."""
        if checkpoint["name"] == self.trial_name:
            self._number = checkpoint["number"]
            return
        for process in self._processes:
            process.stop()
        run = self._processes[0].run
        source = self._sweep.folder / "trials" / checkpoint["name"]
        shutil.rmtree(run, ignore_errors=True)
        shutil.copytree(source, run, ignore=shutil.ignore_patterns("checkpoints", "result.json", "predictions", "tb"))
        _link_tree(self._sweep.folder / "snapshots" / checkpoint["snapshot"], run / "checkpoints")
        for manifest in (run / "checkpoints").glob("*.manifest.json"):  # it is no longer of a run with those settings
            write_json(manifest, json.loads(manifest.read_text(encoding="utf-8")) | {"identity": None})
        taken = self._sweep.trial(checkpoint["name"])
        step = {"after": len(self._trial.reports), "from": checkpoint["name"], "settings": self._trial.settings}
        epoch = taken.reports[checkpoint["number"] - 1].epoch if checkpoint["number"] else 0.0
        self._trial = replace(self._trial, lineage=(*self._trial.lineage, step | {"epoch": epoch}))
        self._sweep.write(replace(self._trial, status=Status.RUNNING))
        self._write_tasks()
        shutil.copy(self._processes[0].ledger / "config.yaml", run / "config.yaml")
        self._number = len(self._sweep.trial(self.trial_name).reports)

    def cleanup(self) -> None:
        """Save and leave."""
        self._end()

    def _end(self) -> None:
        for process in self._processes:
            process.stop()


def plain_settings(config: Mapping[str, Any], spec: SweepSpec) -> dict[str, Any]:
    """The searched settings in what Ray hands over, numbers as Python's own."""
    found = {name: config[name] for name in spec.space}
    return {name: value.item() if hasattr(value, "item") else value for name, value in found.items()}


def _link_tree(source: Path, target: Path) -> None:
    """The same files under another folder, weights without a second copy where the file system can share them."""

    def link(one: str, other: str) -> None:
        try:
            if Path(one).suffix == ".json":  # may be written in place
                raise OSError
            os.link(one, other)
        except OSError:
            shutil.copy2(one, other)

    partial = target.with_name(f".{target.name}.{os.getpid()}")
    shutil.copytree(source, partial, copy_function=link)
    partial.rename(target)


__all__ = ["TrialFailed", "TrialInterrupted", "TrialRun"]
