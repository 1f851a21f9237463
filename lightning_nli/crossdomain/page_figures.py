"""The page's pictures: figures by domain as a heatmap, law effect against domain effect, transfer between domains."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from lightning_nli.crossdomain import board_text as text
from lightning_nli.crossdomain.leaderboard import BoardRow, DomainFigure, Leaderboard
from lightning_nli.crossdomain.tally import OUT
from lightning_nli.crossdomain.transfer import TransferMatrix
from lightning_nli.crossdomain.wording import BOARD_COLUMNS, english_name, vietnamese_name
from lightning_nli.statistics import Estimate

_SHADES = 10
_SCROLL = '<div class="scroll" tabindex="0" role="region" aria-label="{label}">{content}</div>\n'


@dataclass(frozen=True)
class _Shading:
    """Class `s0` (`low` or less) to `s9` (`high` or more) of a cell; the figure stands in the cell too."""

    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> _Shading:
        return cls(min(values, default=0.0), max(values, default=1.0))

    def shade(self, value: float) -> str:
        if self.high <= self.low:
            return f"s{_SHADES // 2}"
        step = int(_SHADES * (value - self.low) / (self.high - self.low))
        return f"s{min(max(step, 0), _SHADES - 1)}"

    def legend(self) -> str:
        shades = "".join(f'<span class="s{shade}"></span>' for shade in range(_SHADES))
        return (
            f'<p class="legend">{text.number(self.low)} <span class="ramp" aria-hidden="true">{shades}</span> '
            f"{text.number(self.high)}</p>"
        )


@dataclass(frozen=True)
class _View:
    """One figure that the heatmap can show.

    Attributes:
        key: Id of its switch.
        name: As shown.
        caption: What its cells hold.
        value: Of a model in a domain; null where it has none.
    """

    key: str
    name: str
    caption: str
    value: Callable[[DomainFigure], Estimate | float | None]


_INTERVAL = "below it the 95% interval, or the number of laws where they are too few for one"
_VIEWS = (
    _View("acc", "accuracy", f"Accuracy when the domain is held out; {_INTERVAL}.", lambda one: one.accuracy),
    _View("f1", "macro-F1", f"Macro-F1 when the domain is held out; {_INTERVAL}.", lambda one: one.macro_f1),
    _View(
        "single",
        "accuracy, single-domain rows",
        "Accuracy on the rows whose only domain is the one held out; blank where they are too few.",
        lambda one: one.single_accuracy,
    ),
)


def heatmaps(board: Leaderboard) -> str:
    """Models x domains, once for each view, with a switch between them; empty if no domain is held out."""
    domains = list({name: one for row in board.rows for name, one in row.domains.items()}.values())
    if not domains:
        return ""
    switch = "".join(
        f'<label><input type="radio" name="view" id="v-{view.key}"{" checked" if view is _VIEWS[0] else ""}> '
        f"{view.name}</label>\n"
        for view in _VIEWS
    )
    head = '<tr><th scope="col">Model</th>' + "".join(_domain_heading(one) for one in domains) + "</tr>"
    return (
        "<p>A row of several domains counts in each of them. Domains that are not core are shown and enter no "
        "mean; shades run from the lowest to the highest figure of a core domain.</p>"
        f'<fieldset class="switch"><legend>Figure in the cells</legend>{switch}</fieldset>\n'
        + "".join(_heatmap(board, view, domains, head) for view in _VIEWS)
    )


def _heatmap(board: Leaderboard, view: _View, domains: Sequence[DomainFigure], head: str) -> str:
    found = [(one.is_core, _value(view.value(one))) for row in board.rows for one in row.domains.values()]
    core = [value for is_core, value in found if is_core and value is not None]
    shading = _Shading.of(core or [value for _, value in found if value is not None])
    lines = []
    for place, row in enumerate(board.rows):
        cells = "".join(_domain_cell(row, view, shading, one.domain) for one in domains)
        lines.append(f'<tr data-m="{place}"><th scope="row">{escape(row.model)}</th>{cells}</tr>\n')
    table = (
        f'<table class="heat"><caption>{view.caption}</caption><thead>{head}</thead>'
        f"<tbody>{''.join(lines)}</tbody></table>"
    )
    label = f"Domains: {view.name}"
    return f'<div id="view-{view.key}">{shading.legend()}{_SCROLL.format(label=label, content=table)}</div>'


def _domain_heading(one: DomainFigure) -> str:
    vietnamese = vietnamese_name(one.domain)
    other = f' <i lang="vi">{escape(vietnamese)}</i>' if vietnamese else ""
    core = "" if one.is_core else "<br>not core"
    return (
        f'<th scope="col"{"" if one.is_core else " class=aside"}><span class="name">{escape(english_name(one.domain))}'
        f"{other}</span><small>{one.rows:,} rows<br>{one.laws} laws{core}</small></th>"
    )


def _domain_cell(row: BoardRow, view: _View, shading: _Shading, domain: str) -> str:
    one = row.domains.get(domain)
    found = view.value(one) if one else None
    value = _value(found)
    if value is None:
        return f"<td>–<small>{_why_no_cell(row, domain)}</small></td>"
    small = ""
    if isinstance(found, Estimate):
        small = f"<small>{escape(text.interval(found).strip('[]').replace(', ', '–'))}</small>"
    return f'<td class="{shading.shade(value)}">{text.number(value)}{small}</td>'


def _why_no_cell(row: BoardRow, domain: str) -> str:
    """In two words; the model's own entry says all."""
    lines = [line for line in row.missing if line.startswith(f"{OUT}:{domain}, seed ")]
    if not lines:
        return "few rows"
    return "failed" if any(": failed" in line for line in lines) else "not run"


def _value(found: Estimate | float | None) -> float | None:
    return found.value if isinstance(found, Estimate) else found


_SIDE, _MARGIN = 560, 56
_PLOT = _SIDE - 2 * _MARGIN
_WIDEST = 0.3
_OFFSETS = [
    (right * reach, down * reach)
    for reach in (12, 18, 26, 36)
    for right, down in ((1, -1), (-1, -1), (1, 1), (-1, 1), (0, -1.3), (0, 1.3), (-1.3, 0), (1.3, 0))
]
"""Where a number may stand about its mark: off the whiskers first."""
_SHAPES = {
    text.ENCODER: '<circle class="dot" r="5"/>',
    text.ON_HYPOTHESES: '<path class="dot open" d="M0-6 6 0 0 6-6 0z"/>',
    text.NO_ENCODER: '<path class="dot open" d="M-5-5H5V5H-5z"/>',
}


@dataclass(frozen=True)
class _Scale:
    """Shares from `low` to `high` along both axes of the plot."""

    low: float
    high: float

    def x(self, value: float) -> float:
        return _MARGIN + _PLOT * (value - self.low) / (self.high - self.low)

    def y(self, value: float) -> float:
        return _SIDE - self.x(value)

    def ticks(self) -> list[float]:
        """Five or so round values."""
        rough = (self.high - self.low) / 5
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough)
        return [step * place for place in range(math.ceil(self.low / step), math.floor(self.high / step) + 1)]


def effects_plot(board: Leaderboard) -> str:
    """Each model at (law effect, domain effect) with both intervals, numbered as in the list below the plot."""
    points = [(place, row) for place, row in enumerate(board.rows) if _effects(row) is not None]
    if not points:
        return "<p>No model has both effects; the notes below the board say why.</p>"
    scale = _scale([row for _, row in points])
    labels = _label_places([_spot(scale, row) for _, row in points])
    marks = "".join(_whiskers(scale, place, row) for place, row in points)
    marks += "".join(_mark(scale, place, row, label) for (place, row), label in zip(points, labels, strict=True))
    items = "".join(_legend_item(place, row) for place, row in points)
    kinds = [name for name in text.KINDS if any(text.kind(row) == name for _, row in points)]
    shapes = "".join(
        f'<span><svg class="key" viewBox="-8 -8 16 16" aria-hidden="true">{_SHAPES[name]}</svg> {name}</span> '
        for name in kinds
    )
    return (
        "<p>Right of 0: a new law costs accuracy. Above 0: a new domain costs accuracy beyond that. On the dashed line "
        "both cost as much. Models are numbered in the order of the board.</p>"
        f'<div class="plot"><figure><svg viewBox="0 40 {_SIDE} {_SIDE - 40}" role="img" '
        'aria-labelledby="plot-t plot-d">'
        '<title id="plot-t">Law effect against domain effect, in points</title>'
        '<desc id="plot-d">One mark a model with 95% intervals; the list beside gives the same figures.</desc>'
        f"{''.join(_frame(scale))}{marks}</svg><figcaption>{shapes}</figcaption></figure><ul>{items}</ul></div>\n"
    )


def _effects(row: BoardRow) -> tuple[Estimate, Estimate] | None:
    law, domain = row.figures.get("law_effect"), row.figures.get("domain_effect")
    if law is None or domain is None or law.value is None or domain.value is None:
        return None
    return law, domain


def _spot(scale: _Scale, row: BoardRow) -> tuple[float, float]:
    effects = _effects(row)
    assert effects is not None and effects[0].value is not None and effects[1].value is not None
    return scale.x(effects[0].value), scale.y(effects[1].value)


def _scale(rows: Sequence[BoardRow]) -> _Scale:
    """0, all figures, and their intervals as far as they leave the figures readable."""
    estimates = [one for row in rows for one in _effects(row) or ()]
    values = [one.value for one in estimates if one.value is not None] + [0.0]
    ends = [end for one in estimates for end in text.bounds(one, BOARD_COLUMNS["law_effect"]) or ()]
    room = max(_WIDEST, max(values) - min(values))
    low = max(min([*ends, *values]), min(values) - room)
    high = min(max([*ends, *values]), max(values) + room)
    pad = 0.06 * max(high - low, 0.005)
    return _Scale(low - pad, high + pad)


def _frame(scale: _Scale) -> Iterator[str]:
    end = _SIDE - _MARGIN
    yield f'<clipPath id="in"><path d="M{_MARGIN} {_MARGIN}H{end}V{end}H{_MARGIN}z"/></clipPath>'
    yield f'<path class="frame" d="M{_MARGIN} {_MARGIN}H{end}V{end}H{_MARGIN}z"/>'
    for tick in scale.ticks():
        at, up = scale.x(tick), scale.y(tick)
        style, label = ("zero", "0") if tick == 0 else ("grid", text.number(tick, BOARD_COLUMNS["law_effect"]))
        yield f'<path class="{style}" d="M{at:.1f} {_MARGIN}V{end}M{_MARGIN} {up:.1f}H{end}"/>'
        yield f'<text x="{at:.1f}" y="{end + 18}" text-anchor="middle">{label}</text>'
        yield f'<text x="{_MARGIN - 8}" y="{up + 4:.1f}" text-anchor="end">{label}</text>'
    yield f'<path class="same" d="M{_MARGIN} {end}L{end} {_MARGIN}"/>'
    yield f'<text class="axis" x="{_SIDE / 2}" y="{_SIDE - 12}" text-anchor="middle">Law effect, points</text>'
    yield (
        f'<text class="axis" transform="translate(14 {_SIDE / 2}) rotate(-90)" text-anchor="middle">'
        "Domain effect, points</text>"
    )


def _whiskers(scale: _Scale, place: int, row: BoardRow) -> str:
    effects = _effects(row)
    assert effects is not None
    x, y = _spot(scale, row)
    law, domain = (text.bounds(one, BOARD_COLUMNS["law_effect"]) for one in effects)
    path = f"M{scale.x(law[0]):.1f} {y:.1f}H{scale.x(law[1]):.1f}" if law else ""
    path += f"M{x:.1f} {scale.y(domain[0]):.1f}V{scale.y(domain[1]):.1f}" if domain else ""
    return f'<path data-m="{place}" class="whisk" clip-path="url(#in)" d="{path}"/>'


def _mark(scale: _Scale, place: int, row: BoardRow, label: tuple[float, float]) -> str:
    x, y = _spot(scale, row)
    return (
        f'<g data-m="{place}" class="mark"><title>{escape(row.model)}</title>'
        f'<g transform="translate({x:.1f} {y:.1f})">{_SHAPES[text.kind(row)]}</g>'
        f'<text x="{label[0]:.1f}" y="{label[1] + 4:.1f}" text-anchor="middle">{place + 1}</text></g>'
    )


def _label_places(spots: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """A place for every number, clear of the marks and of the numbers placed before, where there is one."""
    taken = list(spots)
    places = []
    for x, y in spots:
        around = [(x + right, y + down) for right, down in _OFFSETS]
        place = max(around, key=lambda spot: min(1.0, _clearance(spot, taken)))
        taken.append(place)
        places.append(place)
    return places


def _clearance(spot: tuple[float, float], taken: Sequence[tuple[float, float]]) -> float:
    """1 where a number at the spot touches nothing."""
    return min(max(abs(spot[0] - x) / 15, abs(spot[1] - y) / 12) for x, y in taken)


def _legend_item(place: int, row: BoardRow) -> str:
    effects = _effects(row)
    assert effects is not None
    shown = [" ".join(text.figure(one, BOARD_COLUMNS["law_effect"]) or ()) for one in effects]
    return (
        f'<li data-m="{place}"><b>{place + 1}</b> {escape(row.model)}<small>law {escape(shown[0])}; '
        f"domain {escape(shown[1])}</small></li>"
    )


def transfer_tables(transfers: Sequence[TransferMatrix]) -> str:
    """Trained on (rows) x tested on (columns), a table a model; empty without matrices."""
    if not transfers:
        return ""
    values = [value for one in transfers for value in one.accuracy.values() if value is not None]
    shading = _Shading.of(values)
    tables = "".join(_transfer_table(one, shading) for one in transfers)
    return (
        "<p>Accuracy in percent, averaged over seeds; equally many training rows from each domain.</p>"
        f"{shading.legend()}{tables}"
    )


def _transfer_table(one: TransferMatrix, shading: _Shading) -> str:
    head = "".join(f'<th scope="col"><span class="name">{_both_names(domain)}</span></th>' for domain in one.domains)
    lines = []
    for source in one.domains:
        cells = "".join(_transfer_cell(one.accuracy, source, target, shading) for target in one.domains)
        lines.append(f'<tr><th scope="row">{_both_names(source)}</th>{cells}</tr>\n')
    caption = f"{escape(one.model)}: trained on the domain of the row, tested on that of the column"
    table = (
        f'<table class="heat"><caption>{caption}</caption><thead><tr><th scope="col">Trained on</th>{head}</tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table>"
    )
    return _SCROLL.format(label=f"Transfer: {escape(one.model)}", content=table)


def _transfer_cell(
    accuracy: Mapping[tuple[str, str], float | None], source: str, target: str, shading: _Shading
) -> str:
    value = accuracy.get((source, target))
    if value is None:
        return f"<td>–<small>{'itself' if source == target else 'not run'}</small></td>"
    return f'<td class="{shading.shade(value)}">{text.number(value)}</td>'


def _both_names(domain: str) -> str:
    vietnamese = vietnamese_name(domain)
    return escape(english_name(domain)) + (f' <i lang="vi">{escape(vietnamese)}</i>' if vietnamese else "")
