"""A report as one HTML page: no requests to anywhere, light and dark, printable. All text from data is escaped."""

from __future__ import annotations

import base64
import html
import re
from collections.abc import Iterator

from lightning_nli.analysis.document import Bullets, Cell, Document, Figure, Heading, Number, Paragraph, Section, Table

FEW_MARK = "\u2020"
"""Dagger behind a row that rests on few data."""

_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")

_STYLE = """\
:root { color-scheme: light dark; --ink: #1b1b1b; --soft: #5c5c5c; --line: #cfcfcf; --back: #ffffff; --band: #f4f4f2;
  --link: #1a4f8b; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e6e3; --soft: #a5a5a0; --line: #45453f; --back: #191a1b;
  --band: #232426; --link: #8fb8ea; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 2rem 1.25rem 4rem; max-width: 66rem; color: var(--ink); background: var(--back);
  font: 16px/1.5 system-ui, "Segoe UI", "Noto Sans", "DejaVu Sans", sans-serif; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0 0 1rem; }
h2 { font-size: 1.25rem; margin: 3rem 0 .75rem; border-top: 1px solid var(--line); padding-top: 1.25rem; }
h3 { font-size: 1.05rem; margin: 2.25rem 0 .25rem; }
p, ul { max-width: 46rem; }
p.lead { font-size: 1.15rem; border-left: 4px solid var(--ink); padding-left: 1rem; }
a { color: var(--link); }
nav { font-size: .9rem; } nav ol { columns: 2; padding-left: 1.4rem; }
.table { overflow-x: auto; margin: 1.25rem 0 1.75rem; }
table { border-collapse: collapse; font-size: .875rem; font-variant-numeric: tabular-nums; }
caption, figcaption { text-align: left; color: var(--soft); font-size: .875rem; max-width: 46rem; padding: 0 0 .5rem; }
th, td { padding: .25rem .7rem .25rem 0; text-align: left; vertical-align: top; border-bottom: 1px solid var(--line); }
thead th { border-bottom: 2px solid var(--ink); vertical-align: bottom; }
th.number, td.number { text-align: right; } td.number, td.short { white-space: nowrap; }
th.long, td.long { min-width: 16rem; max-width: 30rem; }
tbody tr:nth-child(even) { background: var(--band); }
tr.few { font-style: italic; }
.interval { color: var(--soft); display: block; font-size: .92em; }
figure { margin: 1.5rem 0 2rem; } figure img { display: block; max-width: 100%; height: auto; background: #ffffff;
  padding: .5rem; border-radius: 4px; }
figcaption { padding-top: .5rem; }
footer { margin-top: 3rem; color: var(--soft); font-size: .85rem; }
@media print { :root { color-scheme: light; --ink: #000000; --soft: #333333; --line: #999999; --back: #ffffff;
  --band: #ffffff; --link: #000000; } body { max-width: none; padding: 0; font-size: 10pt; } nav { display: none; }
  .table { overflow: visible; } table { font-size: 8pt; } th, td { padding-right: .4rem; } th.long, td.long {
  min-width: 9rem; max-width: none; } thead { display: table-header-group; } tr, figure, figcaption {
  break-inside: avoid; } h2, h3 { break-after: avoid; } }
"""


def html_page(document: Document) -> str:
    """The whole page."""
    title = escape(document.title)
    contents = "\n".join(
        f'<li><a href="#{section.anchor}">{escape(section.title)}</a></li>' for section in document.sections
    )
    body = "\n".join(part for section in document.sections for part in _section(section))
    return f"""\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<title>{title}</title>
<style>
{_STYLE}</style>
</head>
<body>
<h1>{title}</h1>
<nav aria-label="contents"><ol>
{contents}
</ol></nav>
<main>
{body}
</main>
<footer>{FEW_MARK} few rows: read with care. Intervals are 95%. Every table is a CSV file and every figure an SVG and a
PNG file beside this page; analysis.json holds all figures unrounded.</footer>
</body>
</html>
"""


def escape(text: str) -> str:
    """Text of any origin as HTML text or attribute."""
    return html.escape(_CONTROL.sub("\ufffd", text))


def _section(section: Section) -> Iterator[str]:
    yield f'<section id="{section.anchor}">'
    yield f"<h2>{escape(section.title)}</h2>"
    for block in section.blocks:
        if isinstance(block, Heading):
            yield f"<h3>{escape(block.text)}</h3>"
        elif isinstance(block, Paragraph):
            kind = ' class="lead"' if block.is_lead else ""
            yield f"<p{kind}>{escape(block.text)}</p>"
        elif isinstance(block, Bullets):
            yield "<ul>" + "".join(f"<li>{escape(item)}</li>" for item in block.items) + "</ul>"
        elif isinstance(block, Table):
            yield from _table(block)
        else:
            yield from _figure(block)
    yield "</section>"


def _figure(figure: Figure) -> Iterator[str]:
    picture = base64.b64encode(figure.svg).decode("ascii")
    yield f'<figure id="figure-{escape(figure.name)}">'
    yield f'<img alt="{escape(figure.caption)}" src="data:image/svg+xml;base64,{picture}">'
    yield f"<figcaption>{escape(figure.caption)}</figcaption></figure>"


def _table(table: Table) -> Iterator[str]:
    kinds = [_kind([row[place] for row in table.rows]) for place in range(len(table.columns))]
    yield f'<div class="table"><table id="table-{escape(table.name)}">'
    yield f"<caption>{escape(table.caption)}</caption>"
    heads = (f'<th scope="col"{kind}>{escape(name)}</th>' for name, kind in zip(table.columns, kinds, strict=True))
    yield f"<thead><tr>{''.join(heads)}</tr></thead>"
    yield "<tbody>"
    for place, row in enumerate(table.rows):
        few = place in table.marked
        cells = [_cell(cell, kind) for cell, kind in zip(row, kinds, strict=True)]
        if few:
            cells[0] = cells[0].replace("</td>", f" {FEW_MARK}</td>")
        opening = '<tr class="few">' if few else "<tr>"
        yield f"{opening}{''.join(cells)}</tr>"
    yield "</tbody></table></div>"


def _kind(cells: list[Cell]) -> str:
    """Class attribute of a column: numbers to the right, long texts in a wide column."""
    texts = [cell for cell in cells if isinstance(cell, str)]
    if not texts:
        return ' class="number"'
    longest = max(map(len, texts))
    return ' class="long"' if longest > 60 else ' class="short"' if longest <= 18 else ""


def _cell(cell: Cell, kind: str) -> str:
    if not isinstance(cell, Number):
        return f"<td{kind}>{'-' if cell is None else escape(str(cell))}</td>"
    value = "" if cell.value is None else f' data-value="{cell.value!r}"'
    shown, opened, rest = cell.text.partition(" ")
    interval = f' <span class="interval">{escape(rest)}</span>' if opened else ""
    return f"<td{kind}{value}>{escape(shown)}{interval}</td>"
