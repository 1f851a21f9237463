"""Records -> the board: figures by domain and over domains, intervals by law; a missing cell blanks its averages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from pathlib import Path
from typing import Any, Literal

import numpy as np
import polars as pl

from lightning_nli.config import BLIND_SETTINGS
from lightning_nli.config_setfit import ENCODER_METHODS
from lightning_nli.crossdomain.folds import Fold
from lightning_nli.crossdomain.pool import DomainSize, Pool
from lightning_nli.crossdomain.records import read_board_suite, read_boards
from lightning_nli.crossdomain.selection import ORACLE
from lightning_nli.crossdomain.tally import (
    FROM,
    LAW,
    OUT,
    PREMISE,
    RIGHT,
    ROWS,
    Figure,
    Tally,
    confusion_columns,
    main_regime,
    tally,
)
from lightning_nli.statistics import (
    Estimate,
    SeedSpread,
    Statistic,
    difference_of,
    expected_calibration_error,
    holm,
    jackknife,
    macro_f1,
    pooled_seed_spread,
    rank_intervals,
    ratio,
)
from lightning_nli.types import DOMAINS

MIN_SINGLE_ROWS = 50
ACCURACY = (RIGHT, ROWS)


@dataclass(frozen=True)
class DomainFigure:
    """One model in one held-out domain; nulls where a cell is missing.

    Attributes:
        domain: Slug.
        rows: Rows that carry it.
        laws: Laws of them.
        is_core: Whether it enters means.
        accuracy: With its interval by law.
        macro_f1: With its interval by law.
        single_accuracy: On rows whose only domain it is; null under 50 of them.
    """

    domain: str
    rows: int
    laws: int
    is_core: bool
    accuracy: Estimate | None
    macro_f1: Estimate | None
    single_accuracy: float | None


@dataclass(frozen=True)
class BoardRow:
    """One model, its figures in the order of the columns; a figure that a missing cell leaves open is null.

    Attributes:
        model: Name.
        figures: Column -> estimate; columns are `COLUMNS`.
        worst: Core domain of the lowest accuracy (shown with its rows and laws, never ranked).
        calibration_error: Expected calibration error over held-out rows.
        cost_s: Seconds of all its cells.
        domains: By slug.
        missing: Cells without a finished record, and why.
        rank: Best and worst rank by macro-F1; null where macro-F1 is.
        settings: Config of its first cell.
    """

    model: str
    figures: Mapping[str, Estimate | None]
    worst: DomainFigure | None
    calibration_error: float | None
    cost_s: float
    domains: Mapping[str, DomainFigure]
    missing: tuple[str, ...]
    rank: tuple[int, int] | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)


COLUMNS = (
    "discrimination",
    "random_swap",
    "premise_gain",
    "accuracy",
    "macro_f1",
    "pooled",
    "law_effect",
    "domain_effect",
)
"""In the order in which they are shown: whether the premise is read comes first."""


@dataclass(frozen=True)
class Leaderboard:
    """All models of one suite.

    Attributes:
        key: Suite, version, data.
        suite: The suite's entries.
        rows: Models, best macro-F1 first, those without one last; by name where an oracle chose.
        core: Core domains among the held-out ones: only they enter means.
        comparisons: (first, second) -> difference of macro-F1, p value after Holm.
    """

    key: Mapping[str, Any]
    suite: Mapping[str, Any]
    rows: list[BoardRow]
    core: list[str]
    comparisons: Mapping[tuple[str, str], tuple[float, float]]

    @property
    def is_oracle(self) -> bool:
        """Whether tested rows chose the checkpoints: then nobody is ranked, and no difference is marked."""
        return self.suite.get("selection") == ORACLE


def build_leaderboard(
    folder: Path, pool: Pool, folds: Mapping[str, Fold], seeds: Sequence[int], *, parts: Sequence[Path] = ()
) -> Leaderboard:
    """Read a board's records and compute everything that is on it.

    Args:
        folder: Of the board.
        pool: Its rows.
        folds: All folds of the suite, by name.
        seeds: Of the suite.
        parts: Further boards of the same suite, whose cells count too.

    Raises:
        UserError: a record is damaged, or of another suite.
    """
    records = read_boards([folder, *parts])
    scope = _scope(pool, folds)
    names = dict.fromkeys(record["model"] for record in records if record["status"] == "finished")
    tallies = [tally(pool, name, [r for r in records if r["model"] == name], folds, seeds) for name in names]
    maker = _Maker(pool, scope, tallies)
    rows = [maker.row(one) for one in tallies]
    stored = read_board_suite(folder)
    board = Leaderboard(stored.key, stored.suite, sorted(rows, key=lambda row: row.model), scope.core, {})
    if board.is_oracle:
        return board
    comparisons = maker.compare()
    ranks = rank_intervals([row.model for row in rows if row.figures["macro_f1"]], comparisons)
    rows = [replace(row, rank=ranks.get(row.model)) for row in rows]
    return replace(board, rows=sorted(rows, key=_order), comparisons=comparisons)


@dataclass(frozen=True)
class _Scope:
    """What a board is about.

    Attributes:
        regime: Prefix of the suite's own folds.
        parts: Held-out domain or group, or domain that folds of another kind test -> its size.
        cells: Part -> folds that its figures need.
        references: Folds by premise and by law beside them.
    """

    regime: str
    parts: dict[str, DomainSize]
    cells: dict[str, list[str]]
    references: list[str]

    @property
    def core(self) -> list[str]:
        return [name for name, size in self.parts.items() if size.is_core]

    def needed(self, parts: Sequence[str]) -> list[str]:
        return list(dict.fromkeys(fold for part in parts for fold in self.cells[part]))


def _scope(pool: Pool, folds: Mapping[str, Fold]) -> _Scope:
    regime = main_regime(folds)
    own = [name for name in folds if name.partition(":")[0] == regime]
    tested = {name: pool.compared_rows(folds[name].test) for name in own}
    cells: dict[str, list[str]] = {}
    parts: dict[str, DomainSize] = {}
    if regime == OUT:
        for name in own:
            part = name.removeprefix(f"{OUT}:")
            cells[part], parts[part] = [name], _size(part, tested[name])
    elif regime != FROM:  # pairwise: nothing is averaged, the transfer matrix says it all
        rows = pl.concat(tested.values())
        for size in pool.domains:
            part_rows = rows.filter(pl.col("names").list.contains(size.domain))
            if part_rows.height:
                cells[size.domain], parts[size.domain] = own, _size(size.domain, part_rows)
    return _Scope(regime, parts, cells, [name for name in folds if name not in own])


def _size(name: str, rows: pl.DataFrame) -> DomainSize:
    single = int((rows["names"].list.len() == 1).sum())
    return DomainSize(name, rows.height, single, rows["law_id"].n_unique())


def _order(row: BoardRow) -> tuple[bool, float, str]:
    figure = row.figures["macro_f1"]
    return figure is None, -(figure.value or 0.0) if figure else 0.0, row.model


class _Maker:
    """Figures of every model, so that the variance between seeds can be pooled over models figure by figure."""

    def __init__(self, pool: Pool, scope: _Scope, tallies: Sequence[Tally]) -> None:
        self.scope, self.core = scope, scope.core
        self.tallies = list(tallies)
        self.confusion = confusion_columns(pool.scheme)
        twins = {_twin_key(one.settings): one for one in tallies if one.settings.get("segments") == "hypothesis"}
        self.twins = {one.model: twins.get(_twin_key(one.settings)) for one in tallies}
        self.made = {one.model: self._figures(one) for one in tallies}
        names = dict.fromkeys(name for figures in self.made.values() for name in figures)
        self.spreads = {name: self._spread(name) for name in names}

    def _figure(self, one: Tally, statistic: Statistic, columns: Sequence[str], domains: Sequence[str]) -> Figure:
        return one.figure(statistic, columns, domains, regime=self.scope.regime)

    def _figures(self, one: Tally) -> dict[str, Figure]:
        made: dict[str, Figure] = {}
        for part, cells in self.scope.cells.items():
            if one.has(cells):
                made[f"accuracy:{part}"] = self._figure(one, ratio, ACCURACY, [part])
                made[f"macro_f1:{part}"] = self._figure(one, macro_f1, self.confusion, [part])
        if self.core and one.has(self.scope.needed(self.core)):
            made["accuracy"] = self._figure(one, ratio, ACCURACY, self.core)
            made["macro_f1"] = self._figure(one, macro_f1, self.confusion, self.core)
            made["discrimination"] = self._figure(one, ratio, ("hard", "hard_rows"), self.core)
            made["random_swap"] = self._figure(one, ratio, ("random", "random_rows"), self.core)
            made |= self._effects(one, made["accuracy"])
        if self._is_whole(one):
            made["pooled"] = one.pooled(ratio)
        return made

    def _is_whole(self, one: Tally) -> bool:
        return bool(self.scope.cells) and one.has(self.scope.needed(list(self.scope.cells)))

    def _effects(self, one: Tally, held_out: Figure) -> dict[str, Figure]:
        made: dict[str, Figure] = {}
        twin = self.twins.get(one.model)
        if twin is not None and twin is not one and twin.has(self.scope.needed(self.core)):
            made["premise_gain"] = _minus(held_out, self._figure(twin, ratio, ACCURACY, self.core))
        is_by_domain = all(part in DOMAINS for part in self.core)  # references are told apart by domain, not by group
        if self.scope.references and is_by_domain and one.has(self.scope.references):
            seen = one.figure(ratio, ACCURACY, self.core, regime=PREMISE)
            new = one.figure(ratio, ACCURACY, self.core, regime=LAW)
            made["law_effect"] = _minus(seen, new)
            made["domain_effect"] = _minus(new, held_out)
        return made

    def _spread(self, name: str) -> SeedSpread | None:
        by_seed = [figures[name].by_seed for figures in self.made.values() if name in figures]
        several = [seeds for seeds in by_seed if len(seeds) > 1]
        return pooled_seed_spread(several) if several else None

    def estimate(self, model: str, name: str) -> Estimate | None:
        figure = self.made[model].get(name)
        if figure is None:
            return None
        spread = self.spreads[name] if len(figure.by_seed) > 1 else None
        freedom: Literal["laws", "effective"] = "laws" if figure.is_mean else "effective"
        made = jackknife(figure.sums, figure.statistic, sizes=figure.sizes, freedom=freedom, seeds=spread)
        return made if self._is_drawn(model) or made.low is None else replace(made, note="")

    def row(self, one: Tally) -> BoardRow:
        domains = {domain: self._domain(one, domain) for domain in self.scope.parts}
        found = [figure for figure in domains.values() if figure.is_core]
        complete = all(figure.accuracy is not None and figure.accuracy.value is not None for figure in found)
        worst = min(found, key=_accuracy_of) if found and complete else None
        confidence, right = one.confidence["confidence"].to_numpy(), one.confidence[RIGHT].to_numpy()
        return BoardRow(
            model=one.model,
            figures={name: self.estimate(one.model, name) for name in COLUMNS},
            worst=worst,
            calibration_error=expected_calibration_error(confidence, right) if self._is_whole(one) else None,
            cost_s=one.cost_s,
            domains=domains,
            missing=one.missing,
            settings=one.settings,
        )

    def _domain(self, one: Tally, domain: str) -> DomainFigure:
        size = self.scope.parts[domain]
        shows_single = size.single_rows >= MIN_SINGLE_ROWS and one.has(self.scope.cells[domain])
        return DomainFigure(
            domain=domain,
            rows=size.rows,
            laws=size.laws,
            is_core=domain in self.core,
            accuracy=self.estimate(one.model, f"accuracy:{domain}"),
            macro_f1=self.estimate(one.model, f"macro_f1:{domain}"),
            single_accuracy=one.single_accuracy(domain) if shows_single else None,
        )

    def compare(self) -> dict[tuple[str, str], tuple[float, float]]:
        """Every pair of models on the headline figure, paired by row; none where training variance is unknown."""
        pairs: dict[tuple[str, str], tuple[float, float]] = {}
        known = [one.model for one in self.tallies if "macro_f1" in self.made[one.model]]
        for first, second in combinations(known, 2):
            seeds = self._pair_spread(first, second)
            if seeds is None and (self._is_drawn(first) or self._is_drawn(second)):
                continue
            figure = _minus(self.made[first]["macro_f1"], self.made[second]["macro_f1"])
            made = jackknife(figure.sums, figure.statistic, sizes=figure.sizes, freedom="laws", seeds=seeds)
            if made.value is not None and made.p_value is not None:
                pairs[first, second] = (made.value, made.p_value)
        adjusted = holm([p_value for _, p_value in pairs.values()])
        return {pair: (value, p) for (pair, (value, _)), p in zip(pairs.items(), adjusted, strict=True)}

    def _is_drawn(self, model: str) -> bool:
        """Whether another seed would train another model."""
        return next(one for one in self.tallies if one.model == model).settings.get("method") in ENCODER_METHODS

    def _pair_spread(self, first: str, second: str) -> SeedSpread | None:
        """Two models' seeds vary apart: the variances of their means add up; None where one of them is not known."""
        spread = self.spreads["macro_f1"]
        counts = [len(self.made[model]["macro_f1"].by_seed) for model in (first, second) if self._is_drawn(model)]
        if spread is None or not counts or min(counts) < 2:
            return None
        return SeedSpread(spread.variance * sum(1 / count for count in counts), spread.degrees_of_freedom, 1)


def _accuracy_of(figure: DomainFigure) -> tuple[float, str]:
    assert figure.accuracy is not None and figure.accuracy.value is not None
    return figure.accuracy.value, figure.domain


def _minus(first: Figure, second: Figure) -> Figure:
    """First minus second, paired by law; the two may have different numbers of seeds."""
    if len(first.sums) != len(second.sums):
        raise ValueError("figures over different laws cannot be paired")
    difference = difference_of(first.statistic, second.statistic, width=first.sums.shape[1])
    same_seeds = len(first.by_seed) == len(second.by_seed)
    by_seed = tuple(a - b for a, b in zip(first.by_seed, second.by_seed, strict=True)) if same_seeds else ()
    sums = np.concatenate([first.sums, second.sums], axis=1)
    return Figure(sums, difference, first.sizes, by_seed, first.is_mean)


def _twin_key(settings: Mapping[str, Any]) -> str:
    """What a model shares with its twin on hypotheses alone (`config.hypothesis_only_twin`), whatever the seed."""
    shared = {name: value for name, value in settings.items() if name not in ("seed", "run_dir", "resume")}
    return repr(sorted((shared | BLIND_SETTINGS).items()))
