"""Slices as figures and tables: the two ways to cut a value side by side, the two labels of a rule together."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from lightning_nli.analysis.document import Block, Cell, Figure, Heading, Paragraph, Table, file_name, percent
from lightning_nli.analysis.figures import Bar, Panel, bar_figure
from lightning_nli.analysis.rules import rule_name
from lightning_nli.analysis.runs import RunsAnalysis, SlicePart
from lightning_nli.analysis.slices import FEW_ROWS, PAPER, QUANTILES, BinScore, Slice
from lightning_nli.statistics import MIN_LAWS, Estimate
from lightning_nli.types import DOMAINS

UNIT_WORDS = {"law_id": "laws", "group_id": "groups", "premise_id": "premises"}

_CUT_TITLES = {PAPER: "fixed bins", QUANTILES: "bins of equal size"}


def slice_page(analysis: RunsAnalysis) -> Iterator[Block]:
    """Every slice: a figure, then its tables."""
    yield Paragraph(
        f"Intervals are taken over {units_of(analysis)}. Bins of fewer than {FEW_ROWS} rows or {MIN_LAWS} "
        f"{UNIT_WORDS[analysis.unit]} are hatched in figures and marked in tables. Upper ends belong to their bin. "
        "Where a bin holds one gold label, its accuracy is that label's recall and there is no macro-F1. Words of the "
        f"overlap measures: {analysis.words}. Fixed bins are those of ViANLI's section 7 for ViANLI, of ViLegalNLI's "
        "for all other corpora."
    )
    for group in _grouped(analysis.slices):
        yield Heading(_group_title(group))
        yield _slice_figure(group, analysis)
        yield from (_slice_table(part, analysis) for part in group)


def _grouped(slices: Sequence[SlicePart]) -> list[list[SlicePart]]:
    """Slices of one figure together: the two ways to cut a value, the two labels of a rule."""
    groups: dict[str, list[SlicePart]] = {}
    for part in slices:
        groups.setdefault(_figure_name(part.slice), []).append(part)
    return list(groups.values())


def _group_title(group: Sequence[SlicePart]) -> str:
    title = "; ".join(dict.fromkeys(part.slice.title for part in group))
    return title[0].upper() + title[1:]


def _figure_name(one: Slice) -> str:
    """`law-age` of `law-age-quantiles`, `num-rules` of `num-rules-non-entailment`."""
    return re.sub(r"-(paper|quantiles)$|(?<=rule)-.*|(?<=rules)-.*", "", one.name)


def _slice_figure(group: Sequence[SlicePart], analysis: RunsAnalysis) -> Figure:
    first = group[0].slice
    panels = []
    for part in group:
        bins = [name for name in part.slice.bins if any(name in _by_bin(scores) for scores in part.scores.values())]
        counts = {name: _by_bin(scores)[name].num_rows for scores in part.scores.values() for name in _by_bin(scores)}
        series = {
            run: tuple(
                bar_of(known[name].accuracy, known[name].num_rows) if name in known else Bar(None) for name in bins
            )
            for run, scores in part.scores.items()
            for known in [_by_bin(scores)]
        }
        shown = tuple(f"{_bin_name(part.slice, name)}\nn={counts[name]}" for name in bins)
        panels.append(Panel(_CUT_TITLES.get(part.slice.cut, part.slice.title), shown, series))
    source = next((part.slice.source for part in group if part.slice.source), "")
    name = "-".join(filter(None, (file_name(source.lower()), _figure_name(first))))
    corresponds = f" Corresponds to the figure of {source}, which prints no numbers." if source else ""
    return bar_figure(name, f"Accuracy by {first.title}.{corresponds}", panels, axis="accuracy (percent)")


def _slice_table(part: SlicePart, analysis: RunsAnalysis) -> Table:
    one = part.slice
    runs = list(part.scores)
    by_run = {run: _by_bin(scores) for run, scores in part.scores.items()}
    bins = [name for name in one.bins if any(name in known for known in by_run.values())]
    rows, few = [], set()
    for place, name in enumerate(bins):
        scores = [by_run[run].get(name) for run in runs]
        first = next(score for score in scores if score is not None)
        if first.is_few:
            few.add(place)
        cells: list[Cell] = [_bin_name(one, name), first.num_rows, first.accuracy.num_laws]
        cells += [percent(score.accuracy if score else None) for score in scores]
        if not one.one_label:
            cells += [percent(score.macro_f1 if score else None) for score in scores]
        rows.append(tuple(cells))
    heads = ["bin", "rows", UNIT_WORDS[analysis.unit], *(f"accuracy, {run}" for run in runs)]
    heads += [] if one.one_label else [f"macro-F1, {run}" for run in runs]
    cut = f", {_CUT_TITLES[one.cut]}" if one.cut in _CUT_TITLES else ""
    without = f" {one.num_without} rows have no value." if one.num_without else ""
    return Table(
        f"slice-{one.name}", f"By {one.title}{cut}, in percent.{without}", tuple(heads), tuple(rows), frozenset(few)
    )


def units_of(analysis: RunsAnalysis) -> str:
    """`166 laws`: what intervals are taken over."""
    return f"{analysis.num_units} {UNIT_WORDS[analysis.unit]}"


def domain_name(slug: str) -> str:
    """`Banking monetary (Tiền tệ - Ngân hàng)`."""
    return f"{slug.replace('_', ' ')} ({DOMAINS[slug]})" if slug in DOMAINS else slug


def rests_on_few(num_rows: int, estimate: Estimate) -> bool:
    """Whether a figure is to be marked."""
    return num_rows < FEW_ROWS or estimate.num_laws < MIN_LAWS


def bar_of(estimate: Estimate, num_rows: int) -> Bar:
    """A figure as a bar."""
    return Bar(estimate.value, estimate.low, estimate.high, rests_on_few(num_rows, estimate))


def _bin_name(one: Slice, name: str) -> str:
    if one.name == "domain":
        return domain_name(name)
    if one.name.startswith("rule-"):
        return rule_name(one.name.removeprefix("rule-").replace("-", "_"), name)
    return name


def _by_bin(scores: Sequence[BinScore]) -> dict[str, BinScore]:
    return {score.bin: score for score in scores}
