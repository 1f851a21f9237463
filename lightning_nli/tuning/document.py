"""The report of a sweep as a document: how it went, every trial, what the settings did."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from lightning_nli.analysis.document import Block, Document, Number, Paragraph, Section, Table
from lightning_nli.tuning.figures import budget_figure, front_figure, importance_figure, parallel_figure
from lightning_nli.tuning.report import saved_seconds, show_settings, show_value, trial_rows
from lightning_nli.tuning.sweep import Status, Sweep, Trial, pareto_front, ranked

_MIN_TRIALS = 4
"""Fewer say nothing of which setting matters."""


def sweep_document(sweep: Sweep, trials: Sequence[Trial]) -> Document:
    """The report."""
    metric = sweep.spec.metrics[0]
    order = ranked(trials, metric)
    sections = [Section("Result", tuple(_result(sweep, trials, order)))]
    if order:
        sections.append(Section("Scores and budget", (budget_figure(trials, metric),)))
        sections.append(Section("Settings", tuple(_settings(sweep, order))))
    if len(sweep.spec.metrics) > 1 and (front := pareto_front(trials, sweep.spec.metrics)):
        sections.append(Section("Two scores at once", tuple(_front(sweep, order, front))))
    data = {"spec": _plain(sweep), "trials": [_finite(row) for row in trial_rows(sweep, trials)]}
    return Document(f"Sweep {sweep.folder.name}", tuple(sections), data)


def _plain(sweep: Sweep) -> dict[str, Any]:
    names = ("space", "metrics", "num_samples", "search", "scheduler", "seed", "held_out", "inner_folds")
    return {name: getattr(sweep.spec, name) for name in names}


def _finite(row: dict[str, Any]) -> dict[str, Any]:
    """The row without numbers that JSON does not know."""
    return {name: None if isinstance(value, float) and not np.isfinite(value) else value for name, value in row.items()}


def _result(sweep: Sweep, trials: Sequence[Trial], order: Sequence[Trial]) -> list[Block]:
    metric = sweep.spec.metrics[0]
    count = {status: sum(trial.status is status for trial in trials) for status in Status}
    told = f"{len(trials)} trials: {count[Status.FINISHED]} finished, {count[Status.STOPPED]} stopped early, "
    told += f"{count[Status.FAILED]} failed. Training took {sum(trial.seconds for trial in trials):.0f} s"
    if count[Status.STOPPED]:
        told += f"; to the end the stopped ones would have taken about {saved_seconds(sweep, trials):.0f} s more"
    blocks: list[Block] = [Paragraph("No trial has a score.", is_lead=True)]
    if order:
        best = order[0].best(metric)
        assert best is not None
        lead = f"Best: trial {order[0].name}, {metric} {best.scores[metric]:.4f} after epoch {best.epoch:g}, with "
        blocks = [Paragraph(lead + show_settings(order[0].settings) + ".", is_lead=True)]
    blocks.append(Paragraph(told + "."))
    if sweep.spec.suite:
        blocks.append(
            Paragraph(
                f"Scores are means over {sweep.spec.inner_folds} folds by law inside the training domains; no trial "
                f"read a row of {sweep.spec.held_out}."
            )
        )
    blocks.append(
        Paragraph(
            "Trials are ranked by their best report, on rows that chose; the best of many is flattered by the choice. "
            "Only rows that chose nothing say how good it is."
        )
    )
    return [*blocks, _trial_table(sweep, trials, order)]


def _trial_table(sweep: Sweep, trials: Sequence[Trial], order: Sequence[Trial]) -> Table:
    place = {trial.name: number for number, trial in enumerate(order, 1)}
    rows = []
    listed = sorted(trial_rows(sweep, trials), key=lambda row: (place.get(row["trial"], len(trials) + 1), row["trial"]))
    for row in listed:
        scores = [Number(row[f"at_best.{name}"], digits=4) for name in sweep.spec.metrics]
        settings = [show_value(row[f"setting.{name}"]) for name in sweep.spec.space]
        status = row["status"] + (f": {row['error']}" if row["error"] else "")
        numbers = [Number(row["best_epoch"], digits=0), Number(row["last"], digits=4), Number(row["seconds"], digits=0)]
        rows.append((row["trial"], *scores, *numbers, status, *settings))
    return Table(
        "trials",
        "Every trial, best first. The scores are those of its best report; 'last' is its last report's.",
        ("trial", *sweep.spec.metrics, "best epoch", "last", "seconds", "status", *sweep.spec.space),
        tuple(rows),
    )


def _settings(sweep: Sweep, order: Sequence[Trial]) -> list[Block]:
    metric = sweep.spec.metrics[0]
    blocks: list[Block] = [parallel_figure(order, metric, list(sweep.spec.space))]
    if len(order) < _MIN_TRIALS:
        return [*blocks, Paragraph(f"With fewer than {_MIN_TRIALS} scored trials nothing is said of importance.")]
    shares = importance(order, metric, list(sweep.spec.space))
    return [*blocks, importance_figure(shares, len(order))]


def importance(trials: Sequence[Trial], metric: str, names: Sequence[str]) -> dict[str, float]:
    """Share (0 to 1) of the variance of the trials' score ranks that each setting alone goes with.

    Numbers: squared rank correlation (Spearman). Choices among words: variance between choices over all (eta squared).
    Both see one setting at a time, and with few trials chance alone gives about 1 / trials.
    """
    scores = _ranks([float((trial.best(metric) or trial.reports[-1]).scores[metric] or 0.0) for trial in trials])
    return {name: _share([trial.settings[name] for trial in trials], scores) for name in names}


def _ranks(values: Sequence[float]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Ranks, ties with their mean."""
    array = np.asarray(values, dtype=float)
    below = (array[None, :] < array[:, None]).sum(1)
    same = (array[None, :] == array[:, None]).sum(1)
    ranks: np.ndarray[Any, np.dtype[np.float64]] = below + (same - 1) / 2.0
    return ranks


def _share(values: Sequence[Any], scores: np.ndarray[Any, np.dtype[np.float64]]) -> float:
    total = float(((scores - scores.mean()) ** 2).sum())
    if total == 0 or len({str(value) for value in values}) < 2:
        return 0.0
    if all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in values):
        return float(np.corrcoef(_ranks([float(value) for value in values]), scores)[0, 1] ** 2)
    groups = [scores[[str(value) == known for value in values]] for known in {str(value) for value in values}]
    return float(sum(len(group) * (group.mean() - scores.mean()) ** 2 for group in groups) / total)


def _front(sweep: Sweep, order: Sequence[Trial], front: Sequence[Trial]) -> list[Block]:
    names = ", ".join(trial.name for trial in front)
    return [
        Paragraph(f"No other trial is better under both scores than these: {names}. Their settings are in pareto/."),
        front_figure(order, front, sweep.spec.metrics),
    ]
