"""A report on disk: HTML, Markdown, CSV of every table, SVG and PNG of every figure, JSON; all or nothing."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from lightning_nli.analysis.document import Bullets, Cell, Document, Figure, Heading, Number, Paragraph, Section, Table
from lightning_nli.analysis.html_page import FEW_MARK, html_page
from lightning_nli.types import UserError

DATA_FILE = "analysis.json"

_MARKDOWN_SIGNS = re.compile(r"([\\`*_{}\[\]<>#|~])")


def write_report(document: Document, folder: Path, *, force: bool = False) -> None:
    """Write the report's folder; it appears by rename when all of it is there.

    `report.html`, `report.md`, `analysis.json`, `tables/*.csv`, `figures/*.svg` and `*.png`, `subsets/*.txt`.

    Args:
        document: The report.
        folder: Where to.
        force: Replace an earlier report there.

    Raises:
        UserError: as `check_target`, or the folder cannot be written.
    """
    check_target(folder, force=force)
    partial = folder.with_name(f".{folder.name}.{os.getpid()}.partial")
    old = folder.with_name(f".{folder.name}.{os.getpid()}.old")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        partial.mkdir()
        _fill(document, partial)
        if folder.exists():
            folder.rename(old)
        partial.rename(folder)
    except OSError as error:
        if old.exists() and not folder.exists():
            old.rename(folder)
        raise UserError(f"--out {folder} cannot be written: {error}") from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)


def check_target(folder: Path, *, force: bool) -> None:
    """Whether a report may be written to `folder`: nothing is there, or with `force` an earlier report.

    Raises:
        UserError: something is there that must not be replaced.
    """
    if folder.is_symlink() or folder.is_file():
        raise UserError(f"--out {folder} is a file or link, a report is a folder; give another --out")
    if not folder.exists() or not any(folder.iterdir()):
        return
    if not (folder / DATA_FILE).is_file():
        raise UserError(f"--out {folder} is not empty and holds no report of ours; give another --out")
    if not force:
        raise UserError(f"--out {folder} holds a report already; --force replaces it")


def _fill(document: Document, folder: Path) -> None:
    tables, figures = document.blocks(Table), document.blocks(Figure)
    (folder / "report.html").write_text(html_page(document), encoding="utf-8")
    (folder / "report.md").write_text(markdown_page(document), encoding="utf-8")
    data = json.dumps(document.data, ensure_ascii=False, indent=1, allow_nan=False)
    (folder / DATA_FILE).write_text(data + "\n", encoding="utf-8")
    for name in ("tables", "figures", "subsets"):
        (folder / name).mkdir()
    for table in (*tables, *document.attached):
        write_csv(table, folder / "tables" / f"{table.name}.csv")
    for figure in figures:
        (folder / "figures" / f"{figure.name}.svg").write_bytes(figure.svg)
        (folder / "figures" / f"{figure.name}.png").write_bytes(figure.png)
    for name, ids in document.subsets.items():
        (folder / "subsets" / f"{name}.txt").write_text("".join(f"{one}\n" for one in ids), encoding="utf-8")


def write_csv(table: Table, path: Path) -> None:
    """Write a table unrounded; a column with intervals becomes three, and one says which rows rest on few data."""
    places = range(len(table.columns))
    ranged = [any(isinstance(row[at], Number) and row[at].low is not None for row in table.rows) for at in places]  # type: ignore[union-attr]
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        heads: list[str] = []
        for name, has_interval in zip(table.columns, ranged, strict=True):
            heads += [name, f"{name}, low", f"{name}, high"] if has_interval else [name]
        writer.writerow([*heads, *(["few rows"] if table.marked else [])])
        for place, row in enumerate(table.rows):
            values: list[str | int | float | None] = []
            for cell, has_interval in zip(row, ranged, strict=True):
                values += _raw(cell)[: 3 if has_interval else 1]
            writer.writerow([*values, *([int(place in table.marked)] if table.marked else [])])


def _raw(cell: Cell) -> list[str | int | float | None]:
    return [cell.value, cell.low, cell.high] if isinstance(cell, Number) else [cell, None, None]


def markdown_page(document: Document) -> str:
    """The report as Markdown; figures are links to the PNG files beside it."""
    parts = [f"# {_plain(document.title)}", ""]
    for section in document.sections:
        parts += _markdown_section(section)
    parts += [f"{FEW_MARK} few rows: read with care. Intervals are 95%.", ""]
    return "\n".join(parts)


def _markdown_section(section: Section) -> Iterator[str]:
    yield f"## {_plain(section.title)}\n"
    for block in section.blocks:
        if isinstance(block, Heading):
            yield f"### {_plain(block.text)}\n"
        elif isinstance(block, Paragraph):
            yield f"**{_plain(block.text)}**\n" if block.is_lead else f"{_plain(block.text)}\n"
        elif isinstance(block, Bullets):
            yield "\n".join(f"- {_plain(item)}" for item in block.items) + "\n"
        elif isinstance(block, Table):
            yield "\n".join(_markdown_table(block)) + "\n"
        else:
            yield f"![{_plain(block.caption)}](figures/{block.name}.png)\n\n{_plain(block.caption)}\n"


def _markdown_table(table: Table) -> Iterator[str]:
    yield f"{_plain(table.caption)}\n"
    yield f"| {' | '.join(map(_plain, table.columns))} |"
    sides = [
        "---" if any(isinstance(row[at], str) for row in table.rows) else "---:" for at in range(len(table.columns))
    ]
    yield f"| {' | '.join(sides)} |"
    for place, row in enumerate(table.rows):
        cells = [_shown(cell) for cell in row]
        if place in table.marked:
            cells[0] += f" {FEW_MARK}"
        yield f"| {' | '.join(cells)} |"


def _shown(cell: Cell) -> str:
    if isinstance(cell, Number):
        return _plain(cell.text)
    return "-" if cell is None else _plain(str(cell))


def _plain(text: str) -> str:
    """Text of any origin on one line of Markdown, none of its signs read as markup."""
    return _MARKDOWN_SIGNS.sub(r"\\\1", " ".join(text.split()))
