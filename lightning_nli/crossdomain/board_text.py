"""A board's figures as text, and why one is missing: what terminal, files and page all say in the same words."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterable
from dataclasses import dataclass, field

from lightning_nli.config_setfit import ENCODER_METHODS
from lightning_nli.crossdomain.leaderboard import BoardRow, DomainFigure, Leaderboard
from lightning_nli.crossdomain.selection import ID_VAL
from lightning_nli.crossdomain.tally import OUT
from lightning_nli.crossdomain.wording import BOARD_COLUMNS, CALIBRATION, RANK, WORST, Column, english_name
from lightning_nli.statistics import Estimate

DASH = "-"
"""Stands in a blank cell."""

SHARE = BOARD_COLUMNS["accuracy"]
"""How a figure of one domain is shown."""

NO_SEEDS = "training variance not included"
"""The note of an estimate whose interval covers laws alone."""

COUNTING = "A row of several domains counts once in each; pooled, it has weight 1 / number of the folds that test it."
"""What a table of domains must say."""

_BASELINES = ("majority", "hyponly-v1", "overlap-v1")

ENCODER, ON_HYPOTHESES, NO_ENCODER = "encoder", "encoder on hypotheses only", "no encoder"
KINDS = (ENCODER, ON_HYPOTHESES, NO_ENCODER)
"""Sorts of models."""

ORACLE_WARNING = (
    "Chosen by an oracle: the tested rows of the held-out domains chose every checkpoint. These figures are too good "
    "and are no result for a new domain. No model is ranked, no difference is marked."
)
"""Stands above and below every figure of a suite with `selection: oracle`."""

_FOLDS_NAMED = 4
_REASON_CHARACTERS = 200
_CELL = re.compile(r"(?P<fold>.*?), seed (?P<seed>-?\d+): (?P<reason>.*)", re.DOTALL)
_REFERENCED = ("law_effect", "domain_effect")


@dataclass(frozen=True)
class MissingCells:
    """Cells that are missing for one reason.

    Attributes:
        reason: `not run`, or `failed: ...`.
        cells: Fold -> seeds.
    """

    reason: str
    cells: dict[str, list[int]]

    def text(self, limit: int | None = None) -> str:
        """`not run: out:insurance (seeds 1, 2)`; a limit on folds also shortens reasons."""
        named = [
            f"{fold} (seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))})" if seeds else fold
            for fold, seeds in list(self.cells.items())[:limit]
        ]
        more = len(self.cells) - len(named)
        reason = self.reason
        if limit is not None and len(reason) > _REASON_CHARACTERS:
            reason = f"{reason[:_REASON_CHARACTERS]}..."
        return f"{reason}: {', '.join(named)}{f' and {more} more folds' if more else ''}"


@dataclass
class Footnotes:
    """Numbers for notes; the same text has the same number."""

    texts: list[str] = field(default_factory=list)

    def mark(self, text: str) -> int:
        if text not in self.texts:
            self.texts.append(text)
        return self.texts.index(text) + 1


def missing_cells(row: BoardRow) -> list[MissingCells]:
    """The missing cells of a model by reason, in the order in which reasons come up."""
    return _grouped(row.missing)


def _grouped(lines: Iterable[str]) -> list[MissingCells]:
    groups: dict[str, dict[str, list[int]]] = {}
    for line in lines:
        found = _CELL.fullmatch(line)
        reason = " ".join(found["reason"].split()) if found else "missing"
        seeds = groups.setdefault(reason, {}).setdefault(found["fold"] if found else line, [])
        if found:
            seeds.append(int(found["seed"]))
    return [MissingCells(reason, cells) for reason, cells in groups.items()]


def why_blank(board: Leaderboard, row: BoardRow, name: str) -> str:
    """Why a column has no figure for a model: the cells it lacks, or what else the figure needs.

    Args:
        board: All models.
        row: The model.
        name: A key of `BOARD_COLUMNS`, or the heading of another column.
    """
    if name == CALIBRATION:
        return "no held-out row has been answered"
    if name == RANK and board.is_oracle:
        return "an oracle chose: never ranked"
    name = {WORST: "accuracy", RANK: "macro_f1"}.get(name, name)
    estimate = row.figures.get(name)
    if estimate is not None:
        no_swaps = "no row has a swapped premise" if name in ("discrimination", "random_swap") else "not defined"
        return no_swaps if estimate.note in ("", "not defined") else estimate.note
    lacking = _grouped(line for line in row.missing if _enters(board, line, name))
    if lacking:
        return "; ".join(group.text(_FOLDS_NAMED) for group in lacking)
    if name == "pooled":
        return "no domain is held out"
    if not board.core:
        return "no core domain is held out"
    if name == "premise_gain":
        return _why_no_gain(row)
    return "the suite has no reference folds" if name in _REFERENCED else "not defined"


def _enters(board: Leaderboard, line: str, name: str) -> bool:
    """Whether a figure needs the cell that a line of `BoardRow.missing` is about."""
    fold = line.partition(", seed ")[0]
    regime, _, domain = fold.partition(":")
    if regime != OUT:
        return name in _REFERENCED
    return name == "pooled" or domain in board.core


def _why_no_gain(row: BoardRow) -> str:
    if row.settings.get("segments") == "hypothesis":
        return "this model is the one on hypotheses only"
    if row.settings.get("method") not in ENCODER_METHODS:
        return "no encoder is trained"
    return "the board has no complete run of the same encoder and recipe on hypotheses only"


def number(value: float, column: Column = SHARE) -> str:
    """A share (0 to 1) as percent, a difference of shares as points with its sign, to one decimal."""
    rounded = round(value * 100, 1) + 0.0  # + 0.0: no minus sign on a zero
    return f"{rounded:+.1f}" if column.unit == "points" else f"{rounded:.1f}"


def bounds(estimate: Estimate, column: Column = SHARE) -> tuple[float, float] | None:
    """The interval as far as the figure can reach, or None where there is none; shares, not percent."""
    low, high = estimate.low, estimate.high
    if low is None or high is None or math.isnan(low) or math.isnan(high):
        return None
    least = -1.0 if column.unit == "points" else 0.0
    return min(max(low, least), 1.0), min(max(high, least), 1.0)


def interval(estimate: Estimate, column: Column = SHARE) -> str:
    """`[88.1, 90.7]`, or why there is no interval (`3 laws`)."""
    found = bounds(estimate, column)
    if found is None:
        return estimate.note or "no interval"
    return f"[{number(found[0], column)}, {number(found[1], column)}]"


def figure(estimate: Estimate | None, column: Column = SHARE) -> tuple[str, str] | None:
    """Figure and interval as text; None for a blank cell."""
    if estimate is None or estimate.value is None:
        return None
    return number(estimate.value, column), interval(estimate, column)


def rank(row: BoardRow) -> str | None:
    """`2`, or `2-5` where several ranks are possible."""
    if row.rank is None:
        return None
    best, worst = row.rank
    return str(best) if best == worst else f"{best}-{worst}"


def worst_domain(worst: DomainFigure) -> tuple[str, str]:
    """Figure, and name of the domain with its rows and laws."""
    value = worst.accuracy.value if worst.accuracy else None
    size = f"{english_name(worst.domain)}, {worst.rows:,} rows, {worst.laws} laws"
    return (DASH if value is None else number(value)), size


def duration(seconds: float) -> str:
    """`48 s`, `12.5 min`, `3.4 h`."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min" if seconds < 3600 else f"{seconds / 3600:.1f} h"


def kind(row: BoardRow) -> str:
    """One of `KINDS`."""
    if row.settings.get("method") not in ENCODER_METHODS:
        return NO_ENCODER
    return ON_HYPOTHESES if row.settings.get("segments") == "hypothesis" else ENCODER


def description(row: BoardRow) -> str:
    """Kind, and whether training used swapped premises: a discrimination means more where it did not."""
    swaps = str(row.settings.get("augment", "none"))
    return kind(row) if swaps == "none" else f"{kind(row)}, trained with {swaps}"


def seeds_note(board: Leaderboard) -> str:
    """Which models' intervals leave the training variance out; empty if none does."""
    names = [row.model for row in board.rows if any(one and one.note == NO_SEEDS for one in row.figures.values())]
    if not names:
        return ""
    return (
        f"Training variance not included (one seed): {', '.join(names)}. These intervals cover laws alone and are too "
        "narrow; no difference to these models is marked as significant."
    )


def missing_baselines(board: Leaderboard) -> str:
    """Which baselines a board lacks, and how it gets them; empty if none."""
    methods = {row.settings.get("method") for row in board.rows}
    lacking = [name for name in _BASELINES if name not in methods]
    advice = f" (lnli cross-domain run ... --models {','.join(lacking)})" if lacking else ""
    kinds = set(map(kind, board.rows))
    if ENCODER in kinds and ON_HYPOTHESES not in kinds:
        lacking.append("an encoder on hypotheses only")
    if not lacking:
        return ""
    return f"Baselines not on this board: {', '.join(lacking)}{advice}. Without them accuracy says little."


def missing_note(row: BoardRow) -> str:
    """How many cells a model lacks; empty if none."""
    total = len(row.missing)
    return f"{total} cell{'s' if total > 1 else ''} missing" if total else ""


def rerun_command(board: Leaderboard, row: BoardRow) -> str:
    """The command that runs what is missing of a model, or all of it in a new folder."""
    suite = shlex.quote(f"benchmarks/suites/{board.key['suite']}.yaml")
    command = f"lnli cross-domain run --suite {suite} --models {shlex.quote(row.model)}"
    if "selection" in board.key:
        command += f" --selection {board.key['selection']}"
    failed = any(group.reason.startswith("failed") for group in missing_cells(row))
    return f"{command} --retry-failed" if failed else command


def title(board: Leaderboard) -> str:
    """Suite, version, data, and what chose the checkpoints where it is not `id_val`."""
    named = f"{board.key['suite']}, version {board.key['version']}, data {board.key['data']}"
    selection = board.suite.get("selection", ID_VAL)
    return named if selection == ID_VAL else f"{named}, selection {selection}"
