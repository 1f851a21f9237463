"""What came out of a sweep: table, `trials.parquet`, `best.yaml`, and a report that needs nothing but a browser."""

from __future__ import annotations

import io
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from lightning_nli.config import save_config
from lightning_nli.tuning.space import with_settings
from lightning_nli.tuning.sweep import Report, Status, Sweep, Trial, pareto_front, ranked, write_json
from lightning_nli.types import UserError

_NOT_OF_A_RECIPE = frozenset(
    ("data", "test_data", "train_split", "val_split", "test_split", "subset", "seed", "split_seed", "run_dir", "resume")
)


def show_value(value: Any) -> str:
    """A setting's value as people write it."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def show_settings(settings: Mapping[str, Any]) -> str:
    """`lr 3.2e-05, batch_size 16`."""
    return ", ".join(f"{name.rsplit('.', 1)[-1]} {show_value(value)}" for name, value in settings.items())


def best_line(sweep: Sweep) -> str:
    """The best trial so far, in a line."""
    metric = sweep.spec.metrics[0]
    order = ranked(sweep.trials(), metric)
    best = order[0].best(metric) if order else None
    if best is None:
        return "no trial has a score yet"
    score = f"{metric} {best.scores[metric]:.4f} after epoch {best.epoch:g}"
    return f"best so far: trial {order[0].name}, {score} ({show_settings(order[0].settings)})"


def saved_seconds(sweep: Sweep, trials: Sequence[Trial]) -> float:
    """Estimate of what stopped trials would still have taken: their epochs left, each as long as theirs on average."""
    return sum(
        trial.seconds / len(trial.reports) * (sweep.config(trial).optim.epochs - trial.reports[-1].epoch)
        for trial in trials
        if trial.status is Status.STOPPED and trial.reports
    )


def trial_rows(sweep: Sweep, trials: Sequence[Trial]) -> list[dict[str, Any]]:
    """One plain row a trial: best and last score, budget, time, settings."""
    metric = sweep.spec.metrics[0]
    return [_row(trial, metric, sweep) for trial in trials]


def _row(trial: Trial, metric: str, sweep: Sweep) -> dict[str, Any]:
    best: Report | None = trial.best(metric)
    last = trial.reports[-1] if trial.reports else None
    scores = {name: best.scores.get(name) if best else None for name in sweep.spec.metrics}
    return {
        "trial": trial.name,
        "status": trial.status.value,
        "best": best.scores[metric] if best else None,
        "best_epoch": best.epoch if best else None,
        "last": last.scores.get(metric) if last else None,
        "epochs": last.epoch if last else 0.0,
        "seconds": round(trial.seconds, 2),
        "error": trial.error,
        **{f"at_best.{name}": value for name, value in scores.items()},
        **{f"setting.{name}": value for name, value in trial.settings.items()},
    }


def write_table(sweep: Sweep, path: Path) -> None:
    """`trials.parquet`; a setting of mixed types becomes text."""
    import polars as pl

    rows = trial_rows(sweep, sweep.trials())
    names = dict.fromkeys(name for row in rows for name in row)
    columns = {}
    for name in names:
        values = [row.get(name) for row in rows]
        kinds = {type(value) for value in values if value is not None}
        if kinds == {int, float}:
            values = [None if value is None else float(value) for value in values]
        elif len(kinds) > 1:
            values = [None if value is None else str(value) for value in values]
        columns[name] = values
    pl.DataFrame(columns, strict=False).write_parquet(path)


def write_results(sweep: Sweep) -> str:
    """Write everything and return the table for the terminal.

    Raises:
        UserError: no trial has a score.
    """
    from lightning_nli.analysis.report import write_report
    from lightning_nli.tuning.document import sweep_document

    trials = sweep.trials()
    write_table(sweep, sweep.folder / "trials.parquet")
    write_report(sweep_document(sweep, trials), sweep.folder / "report", force=True)
    order = ranked(trials, sweep.spec.metrics[0])
    if not order:
        shown = "; ".join(f"{trial.name}: {trial.error}" for trial in trials[:3] if trial.error)
        raise UserError(f"no valid trial: none of {len(trials)} has a score ({shown})")
    lines = [_terminal_table(sweep, trials), *write_best(sweep, order[0])]
    if len(sweep.spec.metrics) > 1:
        front = pareto_front(trials, sweep.spec.metrics)
        lines.append(f"no other trial beats these under both: {', '.join(trial.name for trial in front)} (pareto/)")
        _write_front(sweep, front)
    return "\n".join([*lines, f"report: {sweep.folder / 'report' / 'report.html'}", ""])


def _terminal_table(sweep: Sweep, trials: Sequence[Trial]) -> str:
    from rich.console import Console
    from rich.table import Table

    metric = sweep.spec.metrics[0]
    place = {trial.name: number for number, trial in enumerate(ranked(trials, metric), 1)}
    names = [name.rsplit(".", 1)[-1] for name in sweep.spec.space]
    others = [f"{name} there" for name in sweep.spec.metrics[1:]]
    table = Table("", "trial", "status", f"best {metric}", "epoch", *others, "last", "s", *names)
    rows = {row["trial"]: row for row in trial_rows(sweep, trials)}
    for name in sorted(rows, key=lambda key: (place.get(key, len(rows) + 1), key)):
        row = rows[name]
        scores = [row["best"], *(row[f"at_best.{other}"] for other in sweep.spec.metrics[1:])]
        shown = ["-" if value is None else f"{value:.4f}" for value in (*scores, row["last"])]
        settings = [show_value(row[f"setting.{key}"]) for key in sweep.spec.space]
        epoch = "-" if row["best_epoch"] is None else f"{row['best_epoch']:g}"
        middle = [shown[0], epoch, *shown[1:-1], shown[-1], f"{row['seconds']:.0f}"]
        table.add_row(str(place.get(name, "")), name, row["status"], *middle, *settings)
    text = io.StringIO()
    Console(file=text, width=160, highlight=False).print(table)
    stopped = sum(trial.status is Status.STOPPED for trial in trials)
    failed = [f"{trial.name} failed: {trial.error}" for trial in trials if trial.status is Status.FAILED]
    saved = saved_seconds(sweep, trials)
    trained = sum(trial.seconds for trial in trials)
    summary = f"{len(trials)} trials, {stopped} stopped early, {len(failed)} failed; {trained:.0f} s of training"
    summary += f", {saved:.0f} s saved against no scheduler (estimate)" if stopped else ""
    return "\n".join([text.getvalue().rstrip(), summary, *failed])


def write_best(sweep: Sweep, best: Trial) -> list[str]:
    """Settings of the best trial in the form that can be used again, and a line that says how."""
    if sweep.spec.scheduler == "pbt" and best.lineage:
        target = sweep.folder / "best-schedule.json"
        write_json(target, {"trial": best.name, "taken_over": list(best.lineage), "settings_now": best.settings})
        run = sweep.runs(best.name)[0]
        return [
            f"best: trial {best.name}, whose settings changed while it trained ({target}); no single file of settings "
            f"gives it again. Its model: lnli export {run} OUT"
        ]
    if sweep.spec.suite:
        target = sweep.folder / "best-recipe.yaml"
        write_recipe(sweep, best, target)
        return [f"best: trial {best.name}; recipe for the suite's models: {target}"]
    target = sweep.folder / "best.yaml"
    write_settings(sweep, best, target)
    return [f"best: trial {best.name}; lnli fit --config {target}"]


def write_settings(sweep: Sweep, trial: Trial, path: Path) -> None:
    """Everything that `lnli fit --config` needs to give the trial's score again."""
    metric = sweep.spec.metrics[0]
    best = trial.best(metric)
    save_config(replace(with_settings(sweep.spec.config, trial.settings), run_dir=None, resume="never"), path)
    score = "" if best is None else f"{metric} {best.scores[metric]!r} after epoch {best.epoch:g}"
    stopped = ", then stopped by the scheduler: a run to the end can only find a better epoch"
    head = f"# Trial {trial.name} of a sweep: {score}{stopped if trial.status is Status.STOPPED else ''}.\n"
    head += f"# Relative sources are looked up from {Path(sweep.spec.cwd).name}/, where the sweep was started.\n"
    path.write_text(head + path.read_text(encoding="utf-8"), encoding="utf-8")


def write_recipe(sweep: Sweep, trial: Trial, path: Path) -> None:
    """Settings of a model as a suite's `models:` take them."""
    import yaml

    values = asdict(with_settings(sweep.spec.config, trial.settings))
    kept = {name: value for name, value in values.items() if name not in _NOT_OF_A_RECIPE}
    del kept["val_fraction"], kept["on_bad_row"]
    head = f"# Chosen without {sweep.spec.held_out}; put it under `models:` of the suite.\n"
    path.write_text(head + yaml.safe_dump({"tuned": kept}, sort_keys=False, allow_unicode=True), encoding="utf-8")


def _write_front(sweep: Sweep, front: Sequence[Trial]) -> None:
    folder = sweep.folder / "pareto"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for trial in front:
        if not sweep.spec.suite and not trial.lineage:
            write_settings(sweep, trial, folder / f"{trial.name}.yaml")
