"""The board for a terminal, as Markdown, CSV and JSON: columns in the order of `COLUMNS`, then worst domain,
calibration error, cost. A blank cell has a note that says why; percent (differences: points) with 95% intervals.
"""

from __future__ import annotations

import csv
import html
import io
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from lightning_nli.crossdomain import board_text as text
from lightning_nli.crossdomain.leaderboard import BoardRow, DomainFigure, Leaderboard
from lightning_nli.crossdomain.wording import BOARD_COLUMNS, CALIBRATION, COST, RANK, WORST
from lightning_nli.statistics import Estimate

if TYPE_CHECKING:
    from rich.table import Table

BOARD_SCHEMA = 1
_MARKDOWN = re.compile(r"([\\`*_\[\]|#~])")
_DETAILS = (WORST, CALIBRATION, COST)
_ENDLESS = 10_000
_LABEL_WIDTH, _CELL_WIDTH, _RULES = 27, 22, 3
"""Characters in a line: a heading with its rules, the longest figure with its interval and more, rules of a column."""

Cell = tuple[str, str]
"""Figure and the smaller text below it."""


def board_table(board: Leaderboard, width: int | None = None) -> Table:
    """The board for a terminal: a row a model; where that is too wide, a row a figure and a few models side by side.

    The interval stands below its figure, notes below the table. No figure is ever cut.

    Args:
        board: All models.
        width: Characters in a line; None: as many as the terminal has.
    """
    from rich.console import Console
    from rich.measure import Measurement
    from rich.table import Table
    from rich.text import Text

    console = Console(width=width)
    notes = text.Footnotes()
    models = [(row.model, text.description(row)) for row in board.rows]
    cells = [list(_cells(board, row, notes)) for row in board.rows]
    table = _by_model(models, cells)
    endless = console.options.update(width=_ENDLESS)
    if Measurement.get(console, endless, table).minimum > console.width:
        at_once = max(1, (console.width - _LABEL_WIDTH) // (_CELL_WIDTH + _RULES))
        table = Table.grid()
        for start in range(0, len(models), at_once):
            table.add_row(_by_figure(models[start : start + at_once], cells[start : start + at_once]))
    title = Text(text.title(board))
    if board.is_oracle:
        title.append(f"\n{text.ORACLE_WARNING}", style="bold red")
    table.title, table.title_justify = title, "left"
    table.caption, table.caption_justify = Text("\n".join(_notes(board, notes))), "left"
    return table


def _headings() -> list[str]:
    return [RANK, *(column.heading for column in BOARD_COLUMNS.values()), *_DETAILS]


def _by_model(models: Sequence[Cell], cells: Sequence[Sequence[Cell]]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(show_lines=True)
    table.add_column("Model", overflow="fold", width=_CELL_WIDTH)
    for heading in _headings():
        first, _, last = heading.rpartition(" ")
        table.add_column(f"{first}\n{last}" if first else last, justify="right", no_wrap=True)
    for model, row in zip(models, cells, strict=True):
        table.add_row(Text(_joined(model)), *(Text(_joined(cell)) for cell in row))
    return table


def _by_figure(models: Sequence[Cell], cells: Sequence[Sequence[Cell]]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(show_lines=True, show_header=False)
    table.add_column(no_wrap=True)
    for _ in models:
        table.add_column(justify="right", overflow="fold", width=_CELL_WIDTH)
    table.add_row("Model", *(Text(_joined(model), style="bold") for model in models))
    for place, heading in enumerate(_headings()):
        table.add_row(heading, *(Text(_joined(row[place])) for row in cells))
    return table


def board_markdown(board: Leaderboard) -> str:
    """The board as a Markdown table with notes; text from data is escaped."""
    notes = text.Footnotes()
    headings = ["Model", *_headings()]
    lines = [_line(headings), _line(["---", *("---:" for _ in headings[1:])])]
    for row in board.rows:
        cells = [" ".join(part for part in cell if part) for cell in _cells(board, row, notes)]
        lines.append(_line([f"{row.model} ({text.description(row)})", *cells]))
    parts = [f"**{_escaped(text.title(board))}**", "\n".join(lines)]
    if board.is_oracle:
        parts.insert(1, f"> **{_escaped(text.ORACLE_WARNING)}**")
    parts.append("\n".join(f"- {_escaped(note)}" for note in _notes(board, notes)))
    return "\n\n".join(parts) + "\n"


def board_csv(board: Leaderboard) -> str:
    """One row a model, numbers only in percent or points; a blank cell is empty, and `notes` says why."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    head = ["model", "kind", "rank_best", "rank_worst"]
    for column in BOARD_COLUMNS.values():
        name = column.key
        head += [f"{name}_{column.unit}", f"{name}_low", f"{name}_high", f"{name}_laws"]
    head += [f"worst_domain{part}" for part in ("", "_accuracy_percent", "_rows", "_laws")]
    writer.writerow([*head, "calibration_error_points", "cost_s", "cells_missing", "notes"])
    for row in board.rows:
        writer.writerow(_csv_row(board, row))
    return out.getvalue()


def board_json(board: Leaderboard) -> dict[str, Any]:
    """Everything on the board for `json.dumps`: shares and differences from 0 to 1, missing is null.

    `blank` says for every column without a figure why; `missing` lists cells without a record by reason.
    """
    return {
        "schema": BOARD_SCHEMA,
        "suite": dict(board.key),
        "suite_entries": dict(board.suite),
        "warning": text.ORACLE_WARNING if board.is_oracle else None,
        "missing_baselines": text.missing_baselines(board) or None,
        "core_domains": list(board.core),
        "columns": list(BOARD_COLUMNS),
        "models": [_json_row(board, row) for row in board.rows],
        "comparisons": [
            {"first": first, "second": second, "difference": _finite(difference), "p_value": _finite(p_value)}
            for (first, second), (difference, p_value) in board.comparisons.items()
        ],
    }


def _cells(board: Leaderboard, row: BoardRow, notes: text.Footnotes) -> Iterator[Cell]:
    """Rank, figures and details; a blank cell is a dash with the number of its note."""

    def blank(name: str) -> Cell:
        return f"{text.DASH} ({notes.mark(text.why_blank(board, row, name))})", ""

    rank = text.rank(row)
    yield (rank, "") if rank else blank(RANK)
    for name, column in BOARD_COLUMNS.items():
        yield text.figure(row.figures.get(name), column) or blank(name)
    yield _worst(row.worst) if row.worst else blank(WORST)
    yield blank(CALIBRATION) if row.calibration_error is None else (text.number(row.calibration_error), "")
    yield text.duration(row.cost_s), ""


def _worst(worst: DomainFigure) -> Cell:
    value, size = text.worst_domain(worst)
    return value, size.replace(", ", "\n", 1)


def _notes(board: Leaderboard, blanks: text.Footnotes) -> Iterator[str]:
    if board.is_oracle:
        yield text.ORACLE_WARNING
    yield f"Percent; premise gain and effects in points; 95% intervals by law. Means are over {_core(board)}."
    yield text.COUNTING
    if lacking := text.missing_baselines(board):
        yield lacking
    if seeds := text.seeds_note(board):
        yield seeds
    for place, note in enumerate(blanks.texts, 1):
        yield f"({place}) {note}"
    for row in board.rows:
        if missing := text.missing_note(row):
            yield f"{row.model}: {missing}"


def _core(board: Leaderboard) -> str:
    count = len(board.core)
    return f"{count} core domain{'' if count == 1 else 's'}"


def _joined(cell: Cell) -> str:
    return "\n".join(part for part in cell if part)


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(_escaped(cell) for cell in cells)} |"


def _escaped(content: str) -> str:
    """Plain text for Markdown: no markup, no HTML, no line break."""
    return _MARKDOWN.sub(r"\\\1", html.escape(" ".join(content.split()), quote=False))


def _csv_row(board: Leaderboard, row: BoardRow) -> list[Any]:
    cells: list[Any] = [row.model, text.kind(row), *(row.rank or ("", ""))]
    notes: dict[str, list[str]] = {}
    for name in BOARD_COLUMNS:
        estimate = row.figures.get(name)
        if estimate is None or estimate.value is None:
            cells += ["", "", "", ""]
            notes.setdefault(text.why_blank(board, row, name), []).append(name)
            continue
        cells += [_percent(estimate.value), _percent(estimate.low), _percent(estimate.high), estimate.num_laws]
        if estimate.note:
            notes.setdefault(estimate.note, []).append(name)
    if board.is_oracle:
        notes[text.ORACLE_WARNING] = [RANK.lower()]
    worst = row.worst
    accuracy = worst.accuracy.value if worst and worst.accuracy else None
    cells += [worst.domain, _percent(accuracy), worst.rows, worst.laws] if worst else ["", "", "", ""]
    said = "; ".join(f"{', '.join(names)}: {note}" for note, names in notes.items())
    return [*cells, _percent(row.calibration_error), round(row.cost_s, 2), len(row.missing), said]


def _percent(value: float | None) -> float | str:
    return "" if value is None or not math.isfinite(value) else round(value * 100, 4) + 0.0


def _json_row(board: Leaderboard, row: BoardRow) -> dict[str, Any]:
    blank = [name for name in BOARD_COLUMNS if text.figure(row.figures.get(name)) is None]
    return {
        "model": row.model,
        "kind": text.kind(row),
        "rank": list(row.rank) if row.rank else None,
        "figures": {name: _json_estimate(row.figures.get(name)) for name in BOARD_COLUMNS},
        "blank": {name: text.why_blank(board, row, name) for name in blank},
        "worst": row.worst.domain if row.worst else None,
        "calibration_error": _finite(row.calibration_error),
        "cost_s": _finite(row.cost_s),
        "domains": {name: _json_domain(one) for name, one in row.domains.items()},
        "missing": [{"reason": group.reason, "cells": group.cells} for group in text.missing_cells(row)],
        "settings": _plain(row.settings),
        "command": text.rerun_command(board, row),
    }


def _json_domain(one: DomainFigure) -> dict[str, Any]:
    return {
        "rows": one.rows,
        "laws": one.laws,
        "core": one.is_core,
        "accuracy": _json_estimate(one.accuracy),
        "macro_f1": _json_estimate(one.macro_f1),
        "single_accuracy": _finite(one.single_accuracy),
    }


def _json_estimate(estimate: Estimate | None) -> dict[str, Any] | None:
    if estimate is None:
        return None
    return {name: _finite(value) if isinstance(value, float) else value for name, value in asdict(estimate).items()}


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _plain(value: Any) -> Any:
    """Settings as JSON has them: paths and enums by their text, tuples as lists, no number that is not finite."""
    if isinstance(value, Mapping):
        return {str(name): _plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, float):
        return _finite(value)
    return value if value is None or isinstance(value, bool | int) else str(value)
