"""A sweep on disk, readable without Ray: what is searched, and what every trial reported.

DIR/sweep.json            what is searched, by what rules
DIR/trials/NAME/          the trial's run folder (over inner folds: a run folder each, `inner-1`, ...)
DIR/ledger/NAME/          trial.json (settings, status), reports.jsonl (one line an epoch), worker.log
DIR/best.yaml, trials.parquet, report/
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Any

from lightning_nli.config import ExperimentConfig, flat_settings
from lightning_nli.tuning.space import Domain, SearchSpace, config_from, with_settings
from lightning_nli.types import UserError

SCHEMA = 1
STOP_FILE = "stop"
"""Its presence in the sweep's folder tells every trial, on any machine, to save and leave."""


class Status(StrEnum):
    """How far a trial is."""

    PENDING = "pending"
    RUNNING = "running"
    FINISHED = "finished"
    STOPPED = "stopped"  # by the scheduler
    FAILED = "failed"

    @property
    def has_ended(self) -> bool:
        return self in (Status.FINISHED, Status.STOPPED, Status.FAILED)


@dataclass(frozen=True, kw_only=True)
class SweepSpec:
    """Everything that decides which trials a sweep has and what they compute.

    Attributes:
        base: Settings that every trial starts from, threads and the choosing score filled in.
        space: Distributions as the file had them, `{NAME: {KIND: [...]}}`.
        metrics: One or two scores of `id_val`; the first one steers.
        num_samples: Trials.
        search: `random`, `grid` or `optuna`.
        scheduler: `asha`, `hyperband`, `pbt` or `none`.
        seed: Of the draws.
        grace_epochs: Epochs before a trial may be stopped; with PBT between two looks.
        reduction_factor: A rung lets one in so many go on.
        keep: Trials whose checkpoint stays.
        cwd: Folder in which relative sources are looked up.
        suite: Suite file whose training domains the inner folds are cut from; None for an ordinary run.
        held_out: Domain that is held out of the whole search.
        inner_folds: Folds by law inside the training domains.
        scheme: Label scheme of the inner folds' rows.
        worker: Command that trains one run of a trial, its ledger behind; None for ours.
    """

    base: dict[str, Any]
    space: dict[str, dict[str, list[Any]]]
    metrics: list[str]
    num_samples: int
    search: str = "random"
    scheduler: str = "asha"
    seed: int = 1
    grace_epochs: int = 1
    reduction_factor: float = 3.0
    keep: int = 1
    cwd: str = "."
    suite: str | None = None
    held_out: str | None = None
    inner_folds: int = 0
    scheme: str | None = None
    worker: list[str] | None = None

    @cached_property
    def config(self) -> ExperimentConfig:
        """`base` as settings."""
        return config_from(self.base)

    @property
    def search_space(self) -> SearchSpace:
        return SearchSpace(
            {name: Domain(kind, tuple(v)) for name, held in self.space.items() for kind, v in held.items()}
        )

    @property
    def max_epochs(self) -> int:
        """The largest budget of a trial; every trial's rate falls over its own whole budget, whatever the rungs."""
        domain = self.search_space.domains.get("optim.epochs")
        return int(max(domain.values)) if domain else self.config.optim.epochs

    def differences(self, other: SweepSpec) -> list[str]:
        """What another sweep would search or compute otherwise; the number of trials and kept ones do not count."""
        mine, its = (flat_settings(asdict(spec)) for spec in (self, other))
        free = {"num_samples", "keep", "cwd", "scheme", "worker"}
        return [
            f"{name}: {mine.get(name)} -> {its.get(name)}"
            for name in sorted({*mine, *its})
            if mine.get(name) != its.get(name) and name not in free
        ]

    @property
    def members(self) -> list[str]:
        """Runs of one trial: itself, or one an inner fold."""
        return [f"inner-{number + 1}" for number in range(self.inner_folds)] or [""]


def lower_is_better(metric: str) -> bool:
    """Whether a smaller score is the better one."""
    return metric.endswith("/loss")


@dataclass(frozen=True)
class Report:
    """What a trial said after one epoch.

    Attributes:
        epoch: Epochs trained, counted from 1 at the end of the first.
        step: Optimizer steps taken.
        seconds: Wall time of the epoch, its validation included.
        scores: Metric -> score of `id_val`; over inner folds their mean.
    """

    epoch: float
    step: int
    seconds: float
    scores: dict[str, float | None]


@dataclass(frozen=True)
class Trial:
    """One sample of the space.

    Attributes:
        name: `001`, ...
        settings: Dotted name -> value.
        status: How far it is.
        error: Why it failed.
        reports: One an epoch, as far as it came.
        lineage: With PBT, what it took over from whom.
    """

    name: str
    settings: dict[str, Any]
    status: Status = Status.PENDING
    error: str | None = None
    reports: tuple[Report, ...] = ()
    lineage: tuple[dict[str, Any], ...] = ()

    def best(self, metric: str) -> Report | None:
        """The best report under a metric, the first of equals; a score that is no number is never it."""
        sign = -1.0 if lower_is_better(metric) else 1.0
        scored = [report for report in self.reports if _is_number(report.scores.get(metric))]
        return max(scored, key=lambda report: sign * float(report.scores[metric] or 0.0), default=None)

    @property
    def seconds(self) -> float:
        return sum(report.seconds for report in self.reports)


def _is_number(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


@dataclass(frozen=True)
class Sweep:
    """A sweep's folder.

    Attributes:
        folder: Of the sweep.
        spec: What is searched.
    """

    folder: Path
    spec: SweepSpec = field(repr=False)

    @property
    def names(self) -> list[str]:
        """Trials so far, in the order they were drawn."""
        return sorted(path.parent.name for path in (self.folder / "ledger").glob("*/trial.json"))

    @property
    def is_unfinished(self) -> bool:
        """Whether a trial is missing, or has not ended, or failed."""
        trials = self.trials()
        done = all(trial.status in (Status.FINISHED, Status.STOPPED) for trial in trials)
        return not done or len(trials) < self.spec.num_samples

    def ledger(self, name: str) -> Path:
        return self.folder / "ledger" / name

    def runs(self, name: str) -> list[Path]:
        """The trial's run folders."""
        return [self.folder / "trials" / name / member for member in self.spec.members]

    def member_ledgers(self, name: str) -> list[Path]:
        """Where the trial's runs report to."""
        return [self.ledger(name) / member for member in self.spec.members]

    def trial(self, name: str) -> Trial:
        """The trial as it stands on disk."""
        values = json.loads((self.ledger(name) / "trial.json").read_text(encoding="utf-8"))
        reports = merge_reports([read_reports(ledger) for ledger in self.member_ledgers(name)])
        return Trial(
            name=name,
            settings=values["settings"],
            status=Status(values["status"]),
            error=values.get("error"),
            reports=tuple(reports),
            lineage=tuple(values.get("lineage", ())),
        )

    def trials(self) -> list[Trial]:
        return [self.trial(name) for name in self.names]

    def add(self, settings: Mapping[str, Any]) -> Trial:
        """Register a trial under the next number."""
        trial = Trial(f"{len(self.names) + 1:03d}", dict(settings))
        self.write(trial)
        return trial

    def write(self, trial: Trial) -> None:
        """Keep what the trial is and how far (its reports are in a file of their own)."""
        values = asdict(replace(trial, reports=()))
        del values["reports"]
        self.ledger(trial.name).mkdir(parents=True, exist_ok=True)
        write_json(self.ledger(trial.name) / "trial.json", values)

    def config(self, trial: Trial, member: str = "") -> ExperimentConfig:
        """Settings of one of the trial's runs."""
        run = self.folder.resolve() / "trials" / trial.name / member
        config = with_settings(self.spec.config, trial.settings)
        return replace(config, run_dir=str(run), resume="auto")


def create_sweep(folder: Path, spec: SweepSpec) -> Sweep:
    """Make the folder of a new sweep.

    Raises:
        UserError: something is there already.
    """
    if (folder / "sweep.json").exists():
        raise UserError(f"{folder} holds a sweep; --resume goes on with it, or give another --tune-dir")
    if folder.exists() and (folder.is_file() or any(folder.iterdir())):
        raise UserError(f"{folder} is not empty and holds no sweep; give another --tune-dir")
    (folder / "ledger").mkdir(parents=True)
    sweep = Sweep(folder, spec)
    save_spec(sweep)
    return sweep


def save_spec(sweep: Sweep) -> None:
    """Write `sweep.json`."""
    write_json(sweep.folder / "sweep.json", {"schema": SCHEMA, **asdict(sweep.spec)})


def open_sweep(folder: Path) -> Sweep:
    """The sweep in a folder, wherever it was moved.

    Raises:
        UserError: there is none, or it is of another version.
    """
    path = folder / "sweep.json"
    if not path.is_file():
        raise UserError(f"{folder} holds no sweep (no sweep.json)")
    values = json.loads(path.read_text(encoding="utf-8"))
    if values.pop("schema", None) != SCHEMA:
        raise UserError(f"{path} is of another version; this one reads schema {SCHEMA}")
    return Sweep(folder, SweepSpec(**values))


def read_reports(ledger: Path) -> list[Report]:
    """Reports of one run; a line that was cut off by a crash does not count."""
    path = ledger / "reports.jsonl"
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").split("\n")[:-1]
    return [Report(**json.loads(line)) for line in lines]


def merge_reports(runs: Sequence[Sequence[Report]]) -> list[Report]:
    """Report by report the mean over runs (inner folds), as far as all of them are; null where one of them is null."""
    return [
        Report(
            epoch=together[0].epoch,
            step=together[0].step,
            seconds=sum(report.seconds for report in together),
            scores={name: _mean([report.scores.get(name) for report in together]) for name in together[0].scores},
        )
        for together in zip(*runs, strict=False)
    ]


def _mean(values: Sequence[float | None]) -> float | None:
    numbers = [value for value in values if value is not None]
    return None if len(numbers) < len(values) else math.fsum(numbers) / len(numbers)


def ranked(trials: Sequence[Trial], metric: str) -> list[Trial]:
    """Trials that did not fail, best first by their best report; those without one left out."""
    sign = -1.0 if lower_is_better(metric) else 1.0
    scored = [
        (sign * float(best.scores[metric] or 0.0), trial)
        for trial in trials
        if trial.status is not Status.FAILED and (best := trial.best(metric)) is not None
    ]
    return [trial for _, trial in sorted(scored, key=lambda pair: (-pair[0], pair[1].name))]


def pareto_front(trials: Sequence[Trial], metrics: Sequence[str]) -> list[Trial]:
    """Trials of which no other is at least as good under both metrics and better under one; each at its best report."""
    found = list(_points(ranked(trials, metrics[0]), metrics))
    return [
        trial
        for trial, point in found
        if not any(all(b >= a for a, b in zip(point, other, strict=True)) and other != point for _, other in found)
    ]


def _points(trials: Sequence[Trial], metrics: Sequence[str]) -> Iterator[tuple[Trial, tuple[float, ...]]]:
    for trial in trials:
        best = trial.best(metrics[0])
        values = [best.scores.get(metric) for metric in metrics] if best else []
        if values and all(_is_number(value) for value in values):
            signs = [-1.0 if lower_is_better(metric) else 1.0 for metric in metrics]
            yield trial, tuple(sign * float(value or 0.0) for sign, value in zip(signs, values, strict=True))


def write_json(path: Path, values: Any) -> None:
    """Write by rename."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_text(json.dumps(values, ensure_ascii=False, indent=1), encoding="utf-8")
    partial.replace(path)
