"""A run's scores as one table: whether the model reads the premise comes first."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

_FIGURES = (
    ("premise discrimination", ("premise", "discrimination"), 100),
    ("  with a random swap", ("premise", "random_swap"), 100),
    ("  rank (blind 0.5)", ("premise", "rank"), 1),
    ("  with another law's premise", ("held_out_swaps", "other_law", "discrimination"), 100),
    ("premise gain", ("premise", "gain"), 100),
    ("accuracy", ("accuracy",), 100),
    ("macro-F1", ("macro_f1",), 100),
    ("at the calibrated threshold", ("calibrated", "threshold"), 1),
    ("  premise discrimination", ("calibrated", "premise", "discrimination"), 100),
    ("  accuracy", ("calibrated", "accuracy"), 100),
    ("hypothesis-only accuracy", ("hypothesis_only", "accuracy"), 100),
    ("hard rows, balanced", ("hard", "balanced"), 100),
)
_WHERE_KNOWN = ("calibrated", "held_out_swaps")  # not of every run
_FIGURES_OF_GROUPS = (  # of corpora whose rows stand in groups
    ("group accuracy", ("group_accuracy",), 100),
    ("  of new hypotheses", ("unseen", "hypothesis", "group_accuracy"), 100),
    ("accuracy, new hypotheses", ("unseen", "hypothesis", "accuracy"), 100),
    ("  and new premises", ("unseen", "hypothesis,premise", "accuracy"), 100),
    ("    commonest label", ("unseen", "hypothesis,premise", "majority"), 100),
    ("premise alone, linear", ("linear", "premise", "accuracy"), 100),
    ("premise + condition, linear", ("linear", "condition,premise", "accuracy"), 100),
)


def _cell(scores: dict[str, Any], path: tuple[str, ...], scale: int) -> str:
    value: Any = scores
    for name in path:
        value = None if value is None else value.get(name)
    if value is None:
        return "-"
    return f"{value * scale:.1f}" if scale == 100 else f"{value:.3f}"


def print_scores(scores: dict[str, Any], *, title: str, console: Console | None = None) -> None:
    """Print one column a scored set; percent, except the rank; `-` where a figure does not exist."""
    console = console or Console()
    if not scores:
        console.print(f"{title}: no set was scored")
        return
    table = Table(title=title, title_justify="left")
    table.add_column("")
    for name in scores:
        table.add_column(name, justify="right")
    has_groups = any(entry.get("group_accuracy") is not None for entry in scores.values())
    for heading, path, scale in (*_FIGURES, *(_FIGURES_OF_GROUPS if has_groups else ())):
        if path[0] not in _WHERE_KNOWN or any(entry.get(path[0]) for entry in scores.values()):
            table.add_row(heading, *(_cell(entry, path, scale) for entry in scores.values()))
    table.add_row("rows", *(str(entry["num_examples"]) for entry in scores.values()))
    console.print(table)


def explain_scores(scores: dict[str, Any]) -> str:
    """What the first figure means, and the threshold where one was chosen."""
    text = (
        "premise discrimination: share of entailed rows answered entailed with their own premise and not entailed\n"
        "with one of the same law that covers the hypothesis' words; a model that never reads the premise has 0."
    )
    if any(entry.get("calibrated") for entry in scores.values()):
        text += (
            "\ncalibrated: entailed above the probability that did best on id_val, over two parts of plain rows and\n"
            "one of swapped ones (docs/READING.md); the other figures take the more probable label."
        )
    return text
