"""The page's table of models, with intervals drawn, notes on blank cells, and the published figures beside."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

from lightning_nli.crossdomain import board_text as text
from lightning_nli.crossdomain.leaderboard import BoardRow, Leaderboard
from lightning_nli.crossdomain.wording import BOARD_COLUMNS, CALIBRATION, COST, RANK, WORST, Column

if TYPE_CHECKING:
    import polars as pl

_WIDTH = 5 + len(BOARD_COLUMNS)  # model, rank, figures, worst domain, calibration error, cost
_REFERENCE_TABLES = {"vilegalnli": (14, 15), "wills": (2,)}
"""Tables whose rows are whole models on a published test split."""
_FULL_CORPUS, _LLM = 14, "LLM"
_CONTROLS = """\
<form class="controls" hidden><label>Model <input type="search" id="f-name" autocomplete="off"></label>
<label>Kind <select id="f-kind"><option value="">all</option>{kinds}</select></label>
<label><input type="checkbox" id="f-whole"> no missing cells</label>
{published}<button type="button" id="save">Save figures (JSON)</button></form>
<p id="status" role="status" aria-live="polite"></p>
<noscript><p>Sorting and filtering need JavaScript; all figures are shown without it.</p></noscript>
"""
_PUBLISHED_BOX = '<label><input type="checkbox" id="f-pub" checked> published figures</label>\n'


@dataclass(frozen=True)
class _Axis:
    """What a column's bars run from and to."""

    low: float
    high: float

    def text(self, column: Column) -> str:
        """Its ends; empty where there is nothing to draw on it."""
        ends = f"{text.number(self.low, column)} to {text.number(self.high, column)}"
        return ends if self.high > self.low else ""

    def place(self, value: float) -> str:
        """0 to 100 across the bar."""
        share = (value - self.low) / (self.high - self.low) if self.high > self.low else 0.5
        return f"{100 * min(max(share, 0.0), 1.0):.4g}"

    def bar(self, value: float | None, ends: tuple[float, float] | None, *, zero: bool = False) -> str:
        """Interval and figure as a drawing; the text beside says the same."""
        paths = f'<path class="z" d="M{self.place(0)} 0v8"/>' if zero and self.low < 0 < self.high else ""
        if ends is not None:
            paths += f'<path class="l" d="M{self.place(ends[0])} 4H{self.place(ends[1])}"/>'
        if value is not None:
            paths += f'<path class="t" d="M{self.place(value)} 0v8"/>'
        return f'<svg class="iv" viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true">{paths}</svg>'


def board_section(board: Leaderboard, published: pl.DataFrame | None) -> str:
    """Controls, table and notes."""
    references = _published_rows(published) if published is not None else []
    axes = {name: _axis(board, name, column) for name, column in BOARD_COLUMNS.items()}
    notes = text.Footnotes()
    rows = "".join(_row(board, place, row, axes, notes) for place, row in enumerate(board.rows))
    kinds = "".join(f"<option>{name}</option>" for name in text.KINDS if name in map(text.kind, board.rows))
    order = "by name" if board.is_oracle else "by macro-F1, best first"
    caption = (
        f"Models, at first {order}; headings with a button sort. Below each figure its 95% interval, "
        "drawn on the axis that the heading names."
    )
    return (
        oracle_alarm(board)
        + _CONTROLS.format(kinds=kinds, published=_PUBLISHED_BOX if references else "")
        + '<div class="scroll" tabindex="0" role="region" aria-label="Table of models">'
        + f'<table id="table"><caption>{caption}</caption><thead><tr>{"".join(_headings(board, axes))}</tr></thead>'
        + f'<tbody id="ours">{rows}</tbody>{_published_body(references)}</table></div>\n'
        + _notes(board, notes)
        + (_published_note(published) if references and published is not None else "")
    )


def oracle_alarm(board: Leaderboard) -> str:
    """What must be read before a figure that an oracle chose; empty on any other board."""
    return f'<p class="alarm" role="note"><b>{escape(text.ORACLE_WARNING)}</b></p>' if board.is_oracle else ""


def _axis(board: Leaderboard, name: str, column: Column) -> _Axis:
    """From the lowest to the highest end of an interval; a difference's axis holds 0."""
    found = [0.0] if column.unit == "points" else []
    for row in board.rows:
        estimate = row.figures.get(name)
        if estimate is not None and estimate.value is not None:
            found += [estimate.value, *(text.bounds(estimate, column) or ())]
    return _Axis(min(found, default=0.0), max(found, default=1.0))


def _headings(board: Leaderboard, axes: Mapping[str, _Axis]) -> Iterator[str]:
    yield _heading("Model", first="ascending", sort="ascending" if board.is_oracle else "none")
    yield _heading(RANK, f"1 to {max(1, len(board.rows))}", first="ascending")
    for name, column in BOARD_COLUMNS.items():
        sort = "descending" if name == "macro_f1" and not board.is_oracle else "none"
        yield _heading(column.heading, axes[name].text(column), sort=sort)
    yield f'<th scope="col">{WORST}<small>not ranked</small></th>'
    yield _heading(CALIBRATION, "points", first="ascending")
    yield _heading(COST, first="ascending")


def _heading(name: str, axis: str = "", *, first: str = "descending", sort: str = "none") -> str:
    return f'<th scope="col" aria-sort="{sort}"><button type="button" data-first="{first}">{name}</button>' + (
        f"<small>{axis}</small></th>" if axis else "</th>"
    )


def _row(board: Leaderboard, place: int, row: BoardRow, axes: Mapping[str, _Axis], notes: text.Footnotes) -> str:
    details = [text.description(row), text.missing_note(row)]
    small = "".join(f"<small>{escape(part)}</small>" for part in details if part)
    return (
        f'<tr data-m="{place}" data-kind="{text.kind(row)}"{"" if row.missing else " data-whole"}>'
        f'<th scope="row"><a href="#m{place}">{escape(row.model)}</a>{small}</th>'
        f"{''.join(_cells(board, row, axes, notes))}</tr>\n"
    )


def _cells(board: Leaderboard, row: BoardRow, axes: Mapping[str, _Axis], notes: text.Footnotes) -> Iterator[str]:
    def blank(name: str) -> str:
        note = notes.mark(text.why_blank(board, row, name))
        return f'<td>–<sup><a href="#n{note}" role="doc-noteref" aria-label="note {note}">{note}</a></sup></td>'

    if row.rank is None:
        yield blank(RANK)
    else:
        bar = _Axis(1, max(2, len(board.rows))).bar(None, row.rank)
        yield f'<td data-v="{row.rank[0] + row.rank[1] / 10_000}">{text.rank(row)}{bar}</td>'
    for name, column in BOARD_COLUMNS.items():
        estimate = row.figures.get(name)
        shown = text.figure(estimate, column)
        if estimate is None or shown is None:
            yield blank(name)
            continue
        bar = axes[name].bar(estimate.value, text.bounds(estimate, column), zero=column.unit == "points")
        yield f'<td data-v="{estimate.value:.6g}">{shown[0]}<small>{escape(shown[1])}</small>{bar}</td>'
    if row.worst is None:
        yield blank(WORST)
    else:
        value, size = text.worst_domain(row.worst)
        yield f'<td class="worst">{value}<small>{escape(size)}</small></td>'
    error = row.calibration_error
    yield blank(CALIBRATION) if error is None else f'<td data-v="{error:.6g}">{text.number(error)}</td>'
    yield f'<td data-v="{row.cost_s:.6g}">{text.duration(row.cost_s)}</td>'


def _notes(board: Leaderboard, notes: text.Footnotes) -> str:
    said = [text.COUNTING, text.missing_baselines(board), text.seeds_note(board)]
    items = "".join(f'<li id="n{place}">{escape(note)}</li>' for place, note in enumerate(notes.texts, 1))
    return "".join(f"<p>{escape(one)}</p>" for one in said if one) + (
        f'<p>Why a cell is blank:</p><ol class="notes">{items}</ol>' if items else ""
    )


def _published_rows(published: pl.DataFrame) -> list[dict[str, Any]]:
    """`system`, `setting`, `source`, `accuracy`, `macro_f1` (percent) of the models of `_REFERENCE_TABLES`.

    A model whose figures a later table repeats is given once.
    """
    found: dict[tuple[str, str, str], dict[str, Any]] = {}
    for entry in published.iter_rows(named=True):
        is_reference = entry["table"] in _REFERENCE_TABLES.get(entry["paper"], ()) and entry["test_set"] == "test"
        if is_reference and entry["metric"] in ("accuracy", "macro_f1"):
            key = (entry["source"], entry["system"], entry["setting"] or "")
            row = found.setdefault(key, {"source": key[0], "system": key[1], "setting": key[2]})
            row[entry["metric"]] = entry["value"]
    once = {(row["system"], row.get("accuracy"), row.get("macro_f1")): row for row in reversed(found.values())}
    return list(reversed(once.values()))


def _published_body(references: Sequence[Mapping[str, Any]]) -> str:
    """A heading and rows for each source."""
    if not references:
        return ""
    lines = []
    for source in dict.fromkeys(row["source"] for row in references):
        lines.append(
            f'<tr><th scope="rowgroup" colspan="{_WIDTH}"><span>Published in {escape(source)}: other training and test '
            "rows, no domain of ours held out, not ranked with ours</span></th></tr>\n"
        )
        lines += [_published_line(row) for row in references if row["source"] == source]
    return f'<tbody id="published">{"".join(lines)}</tbody>'


def _published_line(row: Mapping[str, Any]) -> str:
    cells = [f"<td>{row[name]:.1f}</td>" if row.get(name) is not None else "<td></td>" for name in BOARD_COLUMNS]
    setting = f", {escape(row['setting'])}" if row["setting"] else ""
    return (
        f'<tr><th scope="row">{escape(row["system"])}<small><b>published</b>{setting}</small></th>'
        f"<td></td>{''.join(cells)}<td></td><td></td><td></td></tr>\n"
    )


def _published_note(published: pl.DataFrame) -> str:
    """What the published accuracies must be read with."""
    trained = [
        (entry["value"], entry["system"])
        for entry in published.iter_rows(named=True)
        if (entry["paper"], entry["table"], entry["test_set"], entry["metric"])
        == ("vilegalnli", _FULL_CORPUS, "test", "accuracy")
        and not (entry["setting"] or "").startswith(_LLM)
    ]
    if not trained:
        return ""
    value, system = max(trained)
    return (
        "<p>How to read the published accuracies: a linear model of the hypothesis alone (<code>hyponly-v1</code>, "
        "trained on the published dev split) reaches about 90% on ViLegalNLI's published test file, more than every "
        f"fine-tuned encoder of its Table {_FULL_CORPUS} (the best, {escape(system)}, has {value:.1f}%). They do not "
        "show that a model reads the law.</p>"
    )
