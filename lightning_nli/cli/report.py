"""A run's scores as one table: whether the model reads the premise comes first."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

_COLUMNS = (
    ("premise\ndiscrimination", ("premise", "discrimination"), 100),
    ("random\nswap", ("premise", "random_swap"), 100),
    ("rank", ("premise", "rank"), 1),
    ("premise\ngain", ("premise", "gain"), 100),
    ("accuracy", ("accuracy",), 100),
    ("macro-F1", ("macro_f1",), 100),
    ("hypothesis-only\naccuracy", ("hypothesis_only", "accuracy"), 100),
    ("hard rows\nbalanced", ("hard", "balanced"), 100),
)


def _cell(scores: dict[str, Any], path: tuple[str, ...], scale: int) -> str:
    value: Any = scores
    for name in path:
        value = None if value is None else value.get(name)
    if value is None:
        return "-"
    return f"{value * scale:.1f}" if scale == 100 else f"{value:.3f}"


def print_scores(scores: dict[str, Any], *, title: str, console: Console | None = None) -> None:
    """Print one line a scored set; percent, except the rank; `-` where a figure does not exist."""
    console = console or Console()
    if not console.is_terminal:
        console = Console(file=console.file, width=160)
    table = Table(title=title, title_justify="left")
    table.add_column("set")
    table.add_column("rows", justify="right")
    for heading, _, _ in _COLUMNS:
        table.add_column(heading, justify="right")
    for name, entry in scores.items():
        table.add_row(name, str(entry["num_examples"]), *(_cell(entry, path, scale) for _, path, scale in _COLUMNS))
    console.print(table)


def explain_scores() -> str:
    """What the first columns mean, in two lines."""
    return (
        "premise discrimination: share of entailed rows answered entailed with their own premise and not entailed\n"
        "with one of the same law that covers the hypothesis' words; a model that never reads the premise has 0."
    )
