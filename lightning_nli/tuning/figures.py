"""Figures of a sweep: scores along the budget, settings side by side, what goes with the score, two scores at once."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from lightning_nli.analysis.document import Figure
from lightning_nli.tuning.sweep import Status, Trial

_SETTINGS = {"font.size": 9.0, "svg.fonttype": "path", "svg.hashsalt": "lightning-nli", "text.parse_math": False}
_LOG_SPREAD = 10.0  # a setting whose values differ by more is drawn on a logarithmic axis
_MAX_LABEL = 24
_MAX_TICKS = 5  # so many different values stand on an axis one by one, in even steps


@contextmanager
def _canvas(width: float, height: float) -> Iterator[Any]:
    import matplotlib
    from matplotlib.figure import Figure as Canvas

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_SETTINGS)
        yield Canvas(figsize=(width, height), layout="constrained", facecolor="white")


def _pictures(canvas: Any, name: str, caption: str) -> Figure:
    pictures = {}
    for kind in ("png", "svg"):
        buffer = io.BytesIO()
        metadata = {"Date": None, "Creator": None} if kind == "svg" else {"Software": None}
        canvas.savefig(buffer, format=kind, dpi=150, metadata=metadata)
        pictures[kind] = buffer.getvalue()
    return Figure(name, caption, pictures["svg"], pictures["png"])


def _color(share: float) -> Any:
    import matplotlib

    return matplotlib.colormaps["cividis"](0.05 + 0.85 * share)


def _scores(trials: Sequence[Trial], metric: str) -> list[float]:
    return [float((trial.best(metric) or trial.reports[-1]).scores[metric] or 0.0) for trial in trials]


def budget_figure(trials: Sequence[Trial], metric: str) -> Figure:
    """The score of every trial after each of its epochs; where a line ends early, the scheduler stopped it."""
    shown = [trial for trial in trials if trial.best(metric) is not None]
    with _canvas(7.2, 4.2) as canvas:
        axes = canvas.subplots()
        finals = _scores(shown, metric)
        low, high = min(finals), max(finals)
        for trial, final in zip(shown, finals, strict=True):
            epochs = [report.epoch for report in trial.reports]
            values = [report.scores.get(metric) for report in trial.reports]
            color = _color((final - low) / (high - low) if high > low else 1.0)
            axes.plot(epochs, values, color=color, linewidth=1.3, marker="o", markersize=3)
            if trial.status is Status.STOPPED:
                axes.plot(epochs[-1:], values[-1:], marker="X", markersize=8, color=color, markeredgecolor="black")
            axes.annotate(trial.name, (epochs[-1], values[-1]), xytext=(5, -3), textcoords="offset points", fontsize=7)
        axes.set(xlabel="epochs trained", ylabel=metric)
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.grid(color="0.9")
        caption = f"{metric} after every epoch, a line a trial (light: high at its best). A cross: stopped early."
        return _pictures(canvas, "budget", caption)


def parallel_figure(trials: Sequence[Trial], metric: str, names: Sequence[str]) -> Figure:
    """A vertical axis a setting, the score last; a line a trial."""
    axes_values = {name: [trial.settings[name] for trial in trials] for name in names}
    axes_values[metric] = _scores(trials, metric)
    placed = {name: _placed(values) for name, values in axes_values.items()}
    with _canvas(1.6 * len(placed) + 1.4, 4.2) as canvas:
        axes = canvas.subplots()
        score_places = placed[metric][0]
        for number in reversed(range(len(trials))):
            heights = [places[number] for places, _ in placed.values()]
            axes.plot(range(len(placed)), heights, color=_color(score_places[number]), linewidth=1.4)
        for place, (_, ticks) in enumerate(placed.values()):
            axes.axvline(place, color="0.3", linewidth=0.8)
            for height, label in ticks:
                axes.annotate(
                    label[:_MAX_LABEL],
                    (place, height),
                    xytext=(3, 0),
                    textcoords="offset points",
                    fontsize=7.5,
                    verticalalignment="center",
                    bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5, "alpha": 0.8},
                )
        axes.set_xticks(range(len(placed)), [name.rsplit(".", 1)[-1] for name in placed], fontsize=8)
        axes.set_yticks([])
        axes.set_xlim(-0.15, len(placed) - 0.45)
        for side in ("left", "right", "top", "bottom"):
            axes.spines[side].set_visible(False)
        caption = "Settings of every scored trial from left to right, its best score on the last axis (light: high)."
        return _pictures(canvas, "parallel", caption)


def _placed(values: Sequence[Any]) -> tuple[list[float], list[tuple[float, str]]]:
    """Heights (0 to 1) of an axis' values, and its labels."""
    import math

    is_number = all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in values)
    if not is_number or len(set(values)) <= _MAX_TICKS:
        words = [f"{value:.4g}" for value in sorted(set(values))] if is_number else sorted({str(v) for v in values})
        heights = {word: place / max(1, len(words) - 1) for place, word in enumerate(words)}
        shown = [f"{value:.4g}" if is_number else str(value) for value in values]
        return [heights[word] for word in shown], [(height, word) for word, height in heights.items()]
    low, high = min(values), max(values)
    is_log = low > 0 and high / low > _LOG_SPREAD
    scale = math.log if is_log else float
    spread = scale(high) - scale(low)
    if spread == 0:
        return [0.5] * len(values), [(0.5, f"{low:.4g}")]
    middle = math.sqrt(low * high) if is_log else (low + high) / 2
    ticks = [(0.0, f"{low:.4g}"), (0.5, f"{middle:.4g}"), (1.0, f"{high:.4g}")]
    return [(scale(value) - scale(low)) / spread for value in values], ticks


def importance_figure(shares: Mapping[str, float], num_trials: int) -> Figure:
    """Bars of `importance`, longest first."""
    ordered = sorted(shares.items(), key=lambda item: item[1])
    with _canvas(7.2, 0.9 + 0.4 * len(ordered)) as canvas:
        axes = canvas.subplots()
        axes.barh([name for name, _ in ordered], [100 * share for _, share in ordered], color=_color(0.3), height=0.6)
        axes.axvline(100 / num_trials, color="black", linestyle=":", linewidth=1)
        axes.set(xlabel="percent of the variance of score ranks that goes with the setting alone", xlim=(0, 100))
        axes.grid(axis="x", color="0.9")
        axes.set_axisbelow(True)
        caption = f"What goes with the score, one setting at a time, over {num_trials} trials. Dotted: about chance."
        return _pictures(canvas, "importance", caption)


def front_figure(trials: Sequence[Trial], front: Sequence[Trial], metrics: Sequence[str]) -> Figure:
    """Both scores of every trial at its best report; those that no other beats under both are joined."""
    with _canvas(5.8, 4.4) as canvas:
        axes = canvas.subplots()
        points = {trial.name: _point(trial, metrics) for trial in trials}
        known = {name: point for name, point in points.items() if None not in point}
        axes.scatter(*zip(*known.values(), strict=True), color="0.6", s=24)
        joined = sorted(points[trial.name] for trial in front)
        axes.plot(*zip(*joined, strict=True), color="black", marker="o", markersize=6, linewidth=1, linestyle="--")
        for name, point in known.items():
            axes.annotate(name, point, xytext=(5, 4), textcoords="offset points", fontsize=7.5)
        axes.set(xlabel=metrics[0], ylabel=metrics[1])
        axes.grid(color="0.9")
        caption = "Two scores at every trial's best report under the first. Black: no other is better under both."
        return _pictures(canvas, "front", caption)


def _point(trial: Trial, metrics: Sequence[str]) -> tuple[Any, ...]:
    best = trial.best(metrics[0])
    return tuple(best.scores.get(metric) if best else None for metric in metrics)
