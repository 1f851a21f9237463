"""What a report is made of: text, tables and figures, with no word yet on how they are shown."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lightning_nli.statistics import Estimate
from lightning_nli.types import UserError


@dataclass(frozen=True)
class Number:
    """A figure in a cell, with its interval where it has one.

    Attributes:
        value: As it stands in the JSON (a share is 0 to 1); None is shown as a dash.
        low: Lower end of the 95% interval.
        high: Upper end.
        note: Why there is no interval ("3 laws"); shown in its place.
        scale: Shown is `value` times this: 100 for percent.
        digits: Decimals shown.
    """

    value: float | None
    low: float | None = None
    high: float | None = None
    note: str = ""
    scale: float = 1.0
    digits: int = 3

    @property
    def text(self) -> str:
        """As a reader sees it: `91.0 [89.1, 92.9]`, `91.0 (3 laws)`, `-`."""
        if self.value is None:
            return f"- ({self.note})" if self.note else "-"
        shown = self._show(self.value)
        if self.low is not None and self.high is not None:
            return f"{shown} [{self._show(self.low)}, {self._show(self.high)}]"
        return f"{shown} ({self.note})" if self.note else shown

    def _show(self, value: float) -> str:
        shown = f"{value * self.scale:.{self.digits}f}"
        return shown.removeprefix("-") if float(shown) == 0 else shown


Cell = str | int | Number | None


def percent(value: float | Estimate | None, digits: int = 1) -> Number:
    """A share (0 to 1) or its estimate, shown in percent."""
    return _number(value, 100.0, digits)


def plain(value: float | Estimate | None, digits: int = 3) -> Number:
    """A figure or its estimate, shown as it is."""
    return _number(value, 1.0, digits)


def _number(value: float | Estimate | None, scale: float, digits: int) -> Number:
    if not isinstance(value, Estimate):
        return Number(value, scale=scale, digits=digits)
    reason = value.note if value.low is None else ""  # what an interval leaves out is said once, below the table
    return Number(value.value, value.low, value.high, reason, scale, digits)


@dataclass(frozen=True)
class Paragraph:
    """A paragraph of plain text.

    Attributes:
        text: What it says.
        is_lead: Shown larger: the sentence to read if only one is read.
    """

    text: str
    is_lead: bool = False


@dataclass(frozen=True)
class Heading:
    """A heading inside a chapter."""

    text: str


@dataclass(frozen=True)
class Bullets:
    """A list of plain texts."""

    items: tuple[str, ...]


@dataclass(frozen=True)
class Table:
    """A table.

    Attributes:
        name: Of its CSV file, without suffix.
        caption: What it shows and how to read it.
        columns: Headings.
        rows: Cells, as many a row as there are headings.
        marked: Rows (by place) that rest on few data; shown in italics with a mark.
    """

    name: str
    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    marked: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        assert all(len(row) == len(self.columns) for row in self.rows), self.name


@dataclass(frozen=True)
class Figure:
    """A drawn figure.

    Attributes:
        name: Of its files, without suffix.
        caption: What it shows; which figure of a paper it corresponds to.
        svg: The picture, text as outlines.
        png: The same as pixels.
    """

    name: str
    caption: str
    svg: bytes
    png: bytes


def file_name(text: str) -> str:
    """Text of any origin as part of a file name."""
    return re.sub(r"[^\w.-]+", "-", text).strip("-.")


Block = Heading | Paragraph | Bullets | Table | Figure


@dataclass(frozen=True)
class Section:
    """A chapter.

    Attributes:
        title: Heading.
        blocks: Contents in order.
    """

    title: str
    blocks: tuple[Block, ...]

    @property
    def anchor(self) -> str:
        return re.sub(r"[^a-z0-9]+", "-", self.title.lower()).strip("-")


@dataclass(frozen=True)
class Document:
    """A report, ready to be written.

    Attributes:
        title: Heading of the whole.
        sections: Chapters; the first is what a hurried reader sees.
        data: What the figures are taken from, for `analysis.json`.
        subsets: Name -> example ids, for `subsets/NAME.txt`.
        attached: Tables too long for the page, as CSV files only.
    """

    title: str
    sections: tuple[Section, ...]
    data: dict[str, Any]
    subsets: Mapping[str, Sequence[str]] = field(default_factory=dict)
    attached: tuple[Table, ...] = ()

    @property
    def lead(self) -> list[str]:
        """The sentences to read if only few are read."""
        return [block.text for block in self.blocks(Paragraph) if block.is_lead]

    def blocks(self, kind: type[Any]) -> list[Any]:
        """All blocks of one kind.

        Raises:
            UserError: two of them would have one file name.
        """
        found = [block for section in self.sections for block in section.blocks if isinstance(block, kind)]
        names = [block.name for block in found if hasattr(block, "name")]
        repeated = {name for name in names if names.count(name) > 1}
        if repeated:
            raise UserError(f"two parts of the report are called {sorted(repeated)}; give the runs other names")
        return found
