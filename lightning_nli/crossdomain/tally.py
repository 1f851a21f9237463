"""The answers of one model on a board, as sums over laws: what every figure and interval is computed from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from lightning_nli.config_setfit import ENCODER_METHODS
from lightning_nli.crossdomain.folds import Fold
from lightning_nli.crossdomain.pool import Pool
from lightning_nli.statistics import FloatArray, Statistic, mean_of
from lightning_nli.types import LabelScheme

OUT, LAW, PREMISE, FROM = "out", "law", "premise", "from"
"""Regimes: the domain held out; the law new, its domain seen; the law seen; trained on one domain alone."""

RIGHT, ROWS = "right", "rows"


@dataclass(frozen=True)
class Figure:
    """A figure ready for the jackknife.

    Attributes:
        sums: (G, K), seed after seed side by side.
        statistic: Mean over seeds of the figure.
        sizes: (G,) rows of each law.
        by_seed: The figure under each seed.
        is_mean: Whether it is a mean over domains (degrees of freedom by laws, not by effective laws).
    """

    sums: FloatArray
    statistic: Statistic
    sizes: FloatArray
    by_seed: tuple[float, ...]
    is_mean: bool


@dataclass(frozen=True)
class Tally:
    """One model.

    Attributes:
        model: Its name.
        seeds: Seeds it must have.
        missing: Cells without a finished record, and why.
        cells: (fold, seed) that are finished.
        by_law: Sums by `regime`, `domain`, `seed`, `law_id`; a row counts in each of its domains.
        weighted: `seed`, `law_id`, `right`, `rows` over held-out rows, weighted by 1 / number of their folds.
        confidence: Of every held-out row the probability of the answer given, whether it is right, its fold's domain,
            and whether that is its only domain.
        cost_s: Seconds of its cells.
        settings: Config of its first cell.
    """

    model: str
    seeds: tuple[int, ...]
    missing: tuple[str, ...]
    cells: frozenset[tuple[str, int]]
    by_law: pl.DataFrame
    weighted: pl.DataFrame
    confidence: pl.DataFrame
    cost_s: float
    settings: Mapping[str, Any]

    def has(self, folds: Sequence[str]) -> bool:
        """Whether every seed of these folds is finished."""
        return all((fold, seed) in self.cells for fold in folds for seed in self.seeds)

    def figure(
        self, statistic: Statistic, columns: Sequence[str], domains: Sequence[str], *, regime: str = OUT
    ) -> Figure:
        """A figure of one domain, or its mean over several.

        Args:
            statistic: Of the sums of `columns`.
            columns: Columns of `by_law` it needs.
            domains: One or several.
            regime: Whose answers.
        """
        rows = self.by_law.filter((pl.col("regime") == regime) & pl.col("domain").is_in(list(domains)))
        laws = rows["law_id"].unique().sort()
        blocks = []
        for seed in self.seeds:
            parts = [
                _sums(rows.filter((pl.col("seed") == seed) & (pl.col("domain") == d)), laws, columns) for d in domains
            ]
            blocks.append(np.concatenate(parts, axis=1))
        sizes = rows.filter(pl.col("seed") == self.seeds[0]).group_by("law_id").agg(pl.col(ROWS).sum())
        return _figure(blocks, mean_of(statistic, len(domains)), _sums(sizes, laws, [ROWS])[:, 0], len(domains) > 1)

    def single_accuracy(self, domain: str) -> float | None:
        """Over the rows whose only domain it is, all seeds."""
        rows = self.confidence.filter((pl.col("domain") == domain) & pl.col("is_single"))
        return float(rows[RIGHT].mean()) if rows.height else None  # type: ignore[arg-type]

    def pooled(self, statistic: Statistic) -> Figure:
        """A ratio over all held-out rows, each weighted by 1 / number of its folds."""
        laws = self.weighted["law_id"].unique().sort()
        blocks = [_sums(self.weighted.filter(pl.col("seed") == seed), laws, [RIGHT, ROWS]) for seed in self.seeds]
        return _figure(blocks, statistic, blocks[0][:, 1], False)


def _figure(blocks: list[FloatArray], statistic: Statistic, sizes: FloatArray, is_mean: bool) -> Figure:
    by_seed = tuple(float(statistic(block.sum(axis=0))) for block in blocks)
    return Figure(np.concatenate(blocks, axis=1), mean_of(statistic, len(blocks)), sizes, by_seed, is_mean)


def _sums(rows: pl.DataFrame, laws: pl.Series, columns: Sequence[str]) -> FloatArray:
    """(G, K), zeros for a law without rows."""
    order = pl.DataFrame({"law_id": laws})
    joined = order.join(rows.select("law_id", *columns), on="law_id", how="left", maintain_order="left")
    return joined.drop("law_id").fill_null(0).cast(pl.Float64).to_numpy()


def confusion_columns(scheme: LabelScheme) -> list[str]:
    """Columns of the confusion counts, rows gold."""
    size = len(scheme.labels)
    return [f"confusion_{gold}_{answer}" for gold in range(size) for answer in range(size)]


def tally(
    pool: Pool,
    model: str,
    records: Sequence[Mapping[str, Any]],
    folds: Mapping[str, Fold],
    seeds: Sequence[int],
) -> Tally:
    """Read the predictions of one model's records.

    Args:
        pool: Rows of the board.
        model: Name.
        records: The model's, finished or failed, with the folders of their cells.
        folds: Every fold of the suite, by name; those of the first one's kind are what the board is about.
        seeds: Of the suite; a model that trains no encoder has the first alone.
    """
    finished = {(r["fold"], r["seed"]): r for r in records if r["status"] == "finished"}
    failed = {(r["fold"], r["seed"]): r["error"] for r in records if r["status"] == "failed"}
    is_trained = any(r["result"]["config"]["method"] in ENCODER_METHODS for r in finished.values())
    wanted = tuple(seeds) if is_trained else tuple(seeds[:1])
    missing = tuple(
        f"{fold}, seed {seed}: {'failed: ' + failed[fold, seed] if (fold, seed) in failed else 'not run'}"
        for fold in folds
        for seed in wanted
        if (fold, seed) not in finished
    )
    frames = [
        _answers(
            pl.read_parquet(Path(record["home"]) / "predictions" / f"{name}.parquet"),
            pool.scheme,
            *cell,
        )
        for cell, record in finished.items()
        for name in folds[cell[0]].tests
    ]
    main = main_regime(folds)
    answers = pl.concat(frames).join(_rows(pool, folds), on="example_id", how="left")
    by_domain = _by_domain(answers)
    sums = [pl.col(RIGHT, ROWS, "hard", "hard_rows", "random", "random_rows", *confusion_columns(pool.scheme)).sum()]
    weighted = answers.filter(pl.col("regime") == main).with_columns(pl.col(RIGHT, ROWS) * pl.col("weight"))
    asked = by_domain.filter(pl.col("regime") == main)
    return Tally(
        model,
        wanted,
        missing,
        frozenset(finished),
        by_domain.group_by("regime", "domain", "seed", "law_id").agg(sums),
        weighted.group_by("seed", "law_id").agg(pl.col(RIGHT, ROWS).sum()),
        asked.select("confidence", RIGHT, "domain", "is_single"),
        sum(record["wall_s"] for record in finished.values()),
        next(iter(finished.values()))["result"]["config"],
    )


def _by_domain(answers: pl.DataFrame) -> pl.DataFrame:
    """Answers with a `domain`: the held-out one (or group) of their fold, else one row for each of their domains."""
    marked = answers.with_columns(is_single=pl.col("domains").list.len() == 1)
    is_out = pl.col("regime") == OUT
    held = marked.filter(is_out).with_columns(domain=pl.col("fold").str.strip_prefix(f"{OUT}:"))
    others = marked.filter(~is_out).explode("domains").rename({"domains": "domain"})
    return pl.concat([held.select(pl.exclude("domains", "fold")), others.select(pl.exclude("fold"))], how="diagonal")


def main_regime(folds: Mapping[str, Fold]) -> str:
    """What a suite's own folds are called by: the first one's; folds of reference come after."""
    return next(iter(folds)).partition(":")[0]


def _rows(pool: Pool, folds: Mapping[str, Fold]) -> pl.DataFrame:
    """Law, domains, and weight (1 / number of the suite's own folds that test the row) of every row of the pool."""
    main = main_regime(folds)
    tested = [id_ for name, fold in folds.items() if name.partition(":")[0] == main for id_ in fold.test]
    counts = pl.DataFrame({"example_id": tested}, schema={"example_id": pl.String}).group_by("example_id").len("count")
    rows = pool.frame.select("example_id", "law_id", pl.col("domains").cast(pl.List(pl.String)))
    return rows.join(counts, on="example_id", how="left").select(
        pl.exclude("count"), weight=(1 / pl.col("count")).fill_null(0.0)
    )


def _answers(table: pl.DataFrame, scheme: LabelScheme, fold: str, seed: int) -> pl.DataFrame:
    entailed = scheme.entailed.value
    gold, answer = pl.col("label").cast(pl.String), pl.col("predicted")
    says_so = (gold == entailed) & (answer == entailed)
    columns: dict[str, pl.Expr] = {
        RIGHT: (gold == answer).cast(pl.Float64),
        ROWS: pl.lit(1.0),
        "confidence": pl.max_horizontal(f"prob_{name}" for name in scheme.names).cast(pl.Float64),
    }
    for kind in ("hard", "random"):
        swapped = pl.col(f"{kind}_swap_predicted")
        columns[kind] = (swapped.is_not_null() & says_so & (swapped != entailed)).fill_null(False).cast(pl.Float64)
        columns[f"{kind}_rows"] = swapped.is_not_null().cast(pl.Float64)
    for name in confusion_columns(scheme):
        row, column = (scheme.names[int(number)] for number in name.split("_")[1:])
        columns[name] = ((gold == row) & (answer == column)).cast(pl.Float64)
    return table.select(
        "example_id", regime=pl.lit(fold.partition(":")[0]), fold=pl.lit(fold), seed=pl.lit(seed, pl.Int64), **columns
    )
