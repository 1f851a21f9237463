"""Explanations in the terminal."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from lightning_nli.explain.lime_text import Explanation, LabelExplanation
from lightning_nli.explain.report import Report, ranking
from lightning_nli.explain.summary import Summary

_BAR = 12


def print_report(report: Report) -> None:
    """The heaviest words of each row, then the figures over all rows."""
    console = Console()
    for one in report.explanations:
        gold = "" if one.gold is None else f", in the data {one.gold}"
        console.print(Text(f"\n{one.example_id}: {one.predicted}{gold}", style="bold"))
        for label in one.labels:
            console.print(_words(one, label, report.top))
    if len(report.explanations) > 1:
        for summary in report.summaries:
            console.print(_shares(summary))
            console.print(_used(summary, report.top))


def _table(title: str, *columns: str) -> Table:
    table = Table(title=Text(title), title_justify="left")
    for name in columns:
        table.add_column(name, justify="left" if name in ("word", "text", "", "content") else "right")
    return table


def _words(one: Explanation, label: LabelExplanation, top: int) -> Table:
    table = _table(
        f"{label.label}: probability {label.probability:.3f}, fit {label.fit:.2f}", "word", "text", "weight", ""
    )
    order = ranking(label)[:top]
    largest = max(abs(float(label.weights[order[0]])), 1e-12)
    for place in order:
        weight = float(label.weights[place])
        bar = ("+" if weight > 0 else "-") * round(_BAR * abs(weight) / largest)
        feature = one.example.features[place]
        table.add_row(Text(feature.text), feature.segment, f"{weight:+.4f}", bar)
    return table


def _shares(summary: Summary) -> Table:
    label = "every explained label" if summary.label is None else summary.label
    title = f"{label}: {summary.num_explanations} explanations, mean fit {summary.mean_fit:.2f}"
    table = _table(title, "text", "share of weight", "share of words")
    rows = [(share.segment, share.weight, share.words) for share in summary.segments]
    for name, weight, words in [*rows, ("words without content", summary.empty_weight, summary.empty_words)]:
        table.add_row(name, "-" if weight is None else f"{100 * weight:.1f}%", f"{100 * words:.1f}%")
    return table


def _used(summary: Summary, top: int) -> Table:
    table = _table("most used words", "word", "text", "share", "rows", "mean weight", "content")
    for word in summary.words[:top]:
        table.add_row(
            Text(word.word),
            word.segment,
            f"{100 * word.share:.1f}%",
            str(word.num_examples),
            f"{word.mean_weight:+.4f}",
            "yes" if word.has_content else "none",
        )
    return table
