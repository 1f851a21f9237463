"""What a run of a board would cost: rows to train and to score, and time as far as finished cells have measured it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from lightning_nli.config_augment import augment_spec
from lightning_nli.crossdomain.folds import Fold
from lightning_nli.crossdomain.pool import Pool
from lightning_nli.crossdomain.selection import choosing_ids
from lightning_nli.crossdomain.suite import Cell

UNKNOWN = "unknown until a first cell is done"


@dataclass(frozen=True)
class Speed:
    """What finished cells of one model have measured.

    Attributes:
        cells: How many.
        examples_per_s: Training examples in a second of training; null for a model without training steps.
        other_s: Mean seconds of a cell beside training: reading, tokenizing, scoring.
    """

    cells: int
    examples_per_s: float | None
    other_s: float

    def seconds(self, training_rows: int) -> float:
        """Of a cell that trains on so many rows, each counted once an epoch."""
        return self.other_s + (training_rows / self.examples_per_s if self.examples_per_s else 0.0)


@dataclass(frozen=True)
class ModelCost:
    """What is left to do for one model.

    Attributes:
        model: Its name.
        cells: Of the suite.
        finished: Cells that have a finished record.
        training_rows: Rows to train in the others, swapped ones included, each counted once an epoch.
        scored_rows: Rows to score in the others: those that choose and those that are tested.
        speed: What finished cells measured; null where there is none.
        seconds: Of one runner for all that is left, at that speed; null without it.
    """

    model: str
    cells: int
    finished: int
    training_rows: int
    scored_rows: int
    speed: Speed | None
    seconds: float | None


def measured_speeds(records: Iterable[Mapping[str, Any]]) -> dict[str, Speed]:
    """Speed by model name, from the finished records of a board."""
    by_model: dict[str, list[Mapping[str, Any]]] = {}
    for record in records:
        if record["status"] == "finished":
            by_model.setdefault(record["model"], []).append(record)
    return {model: _speed(found) for model, found in by_model.items()}


def _speed(records: Sequence[Mapping[str, Any]]) -> Speed:
    costs = [record["result"]["cost"] for record in records]
    training_s = [cost["training_s"] or 0.0 for cost in costs]
    examples = sum(
        (cost["train_examples_per_s"] or 0.0) * cost_s for cost, cost_s in zip(costs, training_s, strict=True)
    )
    other_s = sum(record["wall_s"] for record in records) - sum(training_s)
    rate = examples / sum(training_s) if examples else None
    return Speed(len(records), rate, max(0.0, other_s / len(records)))


def plan_costs(
    pool: Pool,
    folds: Mapping[str, Fold],
    cells: Sequence[Cell],
    *,
    selection: str,
    finished: Iterable[str] = (),
    speeds: Mapping[str, Speed] | None = None,
) -> list[ModelCost]:
    """The cost of what is left of each model, in the order in which the cells name them.

    Args:
        pool: Rows of the folds.
        folds: By name.
        cells: All cells.
        selection: What chooses the checkpoints.
        finished: Ids of cells that are done.
        speeds: By model name.
    """
    done = set(finished)
    entailed = {name: _num_entailed(pool, fold) for name, fold in folds.items()}
    costs = []
    for model in dict.fromkeys(cell.model for cell in cells):
        own = [cell for cell in cells if cell.model == model]
        left = [cell for cell in own if cell.cell_id not in done]
        rows = [_training_rows(cell, folds[cell.fold], entailed[cell.fold]) for cell in left]
        scored = sum(len(folds[c.fold].test) + len(choosing_ids(folds[c.fold], selection)) for c in left)
        speed = (speeds or {}).get(model)
        seconds = sum(map(speed.seconds, rows)) if speed else None
        costs.append(ModelCost(model, len(own), len(own) - len(left), sum(rows), scored, speed, seconds))
    return costs


def _num_entailed(pool: Pool, fold: Fold) -> int:
    return int((pool.part(fold.train).frame["label"].cast(pl.String) == pool.scheme.entailed.value).sum())


def _training_rows(cell: Cell, fold: Fold, num_entailed: int) -> int:
    """About: an entailed row without a swap adds none, a cap takes some away, repeated rows come on top."""
    swaps = augment_spec(cell.config.augment)
    rows = len(fold.train) + (swaps.num_swaps * num_entailed if swaps else 0)
    return rows * cell.config.optim.epochs if cell.config.method == "finetune" else rows
