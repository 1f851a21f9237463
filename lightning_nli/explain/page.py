"""Explanations as one HTML page: no script, no request to anywhere, light and dark. All text from data is escaped."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lightning_nli.analysis.html_page import escape
from lightning_nli.explain.lime_text import Explanation, LabelExplanation
from lightning_nli.explain.report import Report, ranking
from lightning_nli.explain.summary import Summary, has_content
from lightning_nli.explain.words import WordedExample

_HUES = 4
_FAINT = 0.1  # words below this part of the heaviest stay uncolored

_STYLE = """\
:root { color-scheme: light dark; --ink: #1b1b1b; --soft: #5a5a5a; --line: #cfcfcf; --back: #ffffff; --for: 37 111 196;
  --against: 214 112 18; --seg0: #2f6f4f; --seg1: #7a3f8f; --seg2: #8a6d1d; --seg3: #3f5f8f; }
@media (prefers-color-scheme: dark) { :root { --ink: #e8e8e5; --soft: #aaaaa5; --line: #45453f; --back: #191a1b;
  --for: 70 130 210; --against: 200 110 30; --seg0: #7fc8a0; --seg1: #cf9be0; --seg2: #dcc06a; --seg3: #9cbcf0; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 2rem 1.25rem 4rem; max-width: 64rem; color: var(--ink); background: var(--back);
  font: 16px/1.55 system-ui, "Segoe UI", "Noto Sans", "DejaVu Sans", sans-serif; }
h1 { font-size: 1.5rem; line-height: 1.25; margin: 0 0 .5rem; overflow-wrap: anywhere; }
h2 { font-size: 1.2rem; margin: 2.5rem 0 .5rem; border-top: 1px solid var(--line); padding-top: 1.25rem; }
h3 { font-size: 1rem; margin: 1.5rem 0 .5rem; }
p { max-width: 48rem; margin: .5rem 0; } .soft, caption { color: var(--soft); font-size: .9rem; }
.segment { border-left: 5px solid var(--tone); padding: .15rem 0 .15rem .8rem; margin: .7rem 0; overflow-wrap: anywhere;
  white-space: pre-wrap; }
.segment b { color: var(--tone); display: block; font-size: .8rem; letter-spacing: .03em; }
.tone0 { --tone: var(--seg0); } .tone1 { --tone: var(--seg1); } .tone2 { --tone: var(--seg2); }
.tone3 { --tone: var(--seg3); } td.tone0, td.tone1, td.tone2, td.tone3 { color: var(--tone); }
mark { color: inherit; border-radius: 3px; padding: 0 .1em; }
mark.for { background: rgb(var(--for) / calc(var(--w) * .6)); border-bottom: 2px solid rgb(var(--for)); }
mark.against { background: rgb(var(--against) / calc(var(--w) * .6)); border-bottom: 2px dashed rgb(var(--against)); }
.unread { color: var(--soft); text-decoration: line-through; }
.wide { overflow-x: auto; margin: .75rem 0 1.25rem; }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; }
caption { text-align: left; padding-bottom: .3rem; }
th, td { padding: .2rem .9rem .2rem 0; text-align: left; border-bottom: 1px solid var(--line); vertical-align: top; }
thead th { border-bottom: 2px solid var(--ink); } .number { text-align: right; white-space: nowrap; }
.bar { display: block; height: .8rem; min-width: 1px; border-radius: 2px; width: calc(var(--w) * 10rem); }
.bar.for { background: rgb(var(--for)); }
.bar.against { background: repeating-linear-gradient(45deg, rgb(var(--against)) 0 4px,
  rgb(var(--against) / .55) 4px 7px); }
"""

_LEGEND = (
    '<p class="soft"><mark class="for" style="--w:.7">word</mark> speaks for the label, '
    '<mark class="against" style="--w:.7">word</mark> against it, the stronger the more; '
    '<span class="unread">word</span> is cut off and not read. A weight is what the word adds to the label\'s '
    "probability by a line fitted to the model's answers with words left out; all occurrences in a text count as one "
    "word. The fit (R\u00b2) says how much of the answers that line explains: near 0, do not trust the weights.</p>"
)


def explanation_page(report: Report) -> str:
    """The whole page."""
    first = report.explanations[0]
    count = len(report.explanations)
    examples = f"{count} example{'s' if count > 1 else ''}"
    title = f"LIME: {report.run}"
    body = "\n".join(
        [*_summaries(report), *(part for one in report.explanations for part in _example(one, report.top))]
    )
    return f"""\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{escape(title)}</title>
<style>
{_STYLE}</style>
</head>
<body>
<h1>{escape(title)}</h1>
<p class="soft">{examples} of {escape(report.source)}; {first.num_samples} perturbations each, seed {first.seed}.</p>
{_LEGEND}
<main>
{body}
</main>
</body>
</html>
"""


def _summaries(report: Report) -> Iterator[str]:
    if len(report.explanations) < 2:
        return
    yield "<section><h2>Over all examples</h2>"
    for summary in report.summaries:
        name = "every explained label" if summary.label is None else summary.label
        yield f"<h3>{escape(name)}: {summary.num_explanations} explanations, mean fit {summary.mean_fit:.2f}</h3>"
        yield from _shares(summary)
        yield from _used_words(summary, report.explanations[0].example.names)
    yield "</section>"


def _shares(summary: Summary) -> Iterator[str]:
    rows = [
        (f'<td class="tone{place % _HUES}">{escape(share.segment)}</td>', share.weight, share.words)
        for place, share in enumerate(summary.segments)
    ]
    rows.append(("<td>words without content</td>", summary.empty_weight, summary.empty_words))
    yield '<div class="wide"><table><caption>Where the weight lies: mean share of all weight, beside the share of the '
    yield "distinct words</caption>"
    yield '<thead><tr><th>text</th><th class="number">weight</th><th class="number">words</th></tr></thead><tbody>'
    for cell, weight, words in rows:
        shown = "-" if weight is None else f"{100 * weight:.1f}%"
        yield f'<tr>{cell}<td class="number">{shown}</td><td class="number">{100 * words:.1f}%</td></tr>'
    yield "</tbody></table></div>"


def _used_words(summary: Summary, names: Sequence[str]) -> Iterator[str]:
    yield '<div class="wide"><table><caption>Most used words: share of all weight over the explanations</caption>'
    heads = ("share", "in", "among the heaviest", "mean weight")
    cells = "".join(f'<th class="number">{head}</th>' for head in heads)
    yield f"<thead><tr><th>word</th><th>text</th>{cells}<th>content</th></tr></thead><tbody>"
    for word in summary.words:
        figures = (f"{100 * word.share:.1f}%", str(word.num_examples), str(word.num_top), f"{word.mean_weight:+.4f}")
        numbers = "".join(f'<td class="number">{figure}</td>' for figure in figures)
        tone = names.index(word.segment) % _HUES
        yield (
            f'<tr><td>{escape(word.word)}</td><td class="tone{tone}">{escape(word.segment)}</td>{numbers}'
            f"<td>{'yes' if word.has_content else 'none'}</td></tr>"
        )
    yield "</tbody></table></div>"


def _example(one: Explanation, top: int) -> Iterator[str]:
    verdict = "" if one.gold is None else ", right" if one.gold == one.predicted else ", wrong"
    gold = "no label in the data" if one.gold is None else f"label in the data {one.gold}"
    probabilities = ", ".join(f"{name} {value:.3f}" for name, value in one.probabilities.items())
    yield f"<article><h2>{escape(one.example_id)}</h2>"
    yield f"<p>Answer <strong>{escape(one.predicted)}</strong> ({escape(gold)}{verdict}). {escape(probabilities)}.</p>"
    if one.example.num_unread:
        yield f'<p class="soft">{one.example.num_unread} words at the cut are not read by the model.</p>'
    for label in one.labels:
        yield f"<h3>{escape(label.label)}: probability {label.probability:.3f}, fit {label.fit:.2f}</h3>"
        yield from _segments(one.example, label)
        yield from _top_words(one.example, label, top)
    yield "</article>"


def _segments(example: WordedExample, label: LabelExplanation) -> Iterator[str]:
    largest = float(abs(label.weights).max()) or 1.0
    for place, name in enumerate(example.names):
        parts = [
            _word(example.show(text), None if word is None else word.feature, word is not None, label, largest)
            for text, word in example.pieces(place)
        ]
        yield f'<div class="segment tone{place % _HUES}"><b>{escape(name)}</b>{"".join(parts)}</div>'


def _word(text: str, feature: int | None, is_word: bool, label: LabelExplanation, largest: float) -> str:
    if feature is None:
        return f'<span class="unread">{escape(text)}</span>' if is_word else escape(text)
    weight = float(label.weights[feature])
    strength = abs(weight) / largest
    if strength < _FAINT:
        return escape(text)
    kind = "for" if weight > 0 else "against"
    return f'<mark class="{kind}" style="--w:{strength:.2f}" title="{weight:+.4f}">{escape(text)}</mark>'


def _top_words(example: WordedExample, label: LabelExplanation, top: int) -> Iterator[str]:
    order = ranking(label)[:top]
    largest = abs(float(label.weights[order[0]])) or 1.0
    yield f'<div class="wide"><table><caption>The {len(order)} heaviest words</caption>'
    yield '<thead><tr><th>word</th><th>text</th><th class="number">weight</th><th></th><th>content</th></tr></thead>'
    yield "<tbody>"
    for place in order:
        feature, weight = example.features[place], float(label.weights[place])
        times = f" \u00d7 {feature.occurrences}" if feature.occurrences > 1 else ""
        tone = example.names.index(feature.segment) % _HUES
        kind = "for" if weight > 0 else "against"
        yield (
            f'<tr><td>{escape(feature.text)}{times}</td><td class="tone{tone}">{escape(feature.segment)}</td>'
            f'<td class="number">{weight:+.4f}</td>'
            f'<td><span class="bar {kind}" style="--w:{abs(weight) / largest:.2f}"></span></td>'
            f"<td>{'yes' if has_content(feature.text) else 'none'}</td></tr>"
        )
    yield "</tbody></table></div>"
