"""Predictions table -> scores. One arithmetic, over a confusion matrix, for the epoch and for the final scores."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt
import polars as pl

from lightning_nli.types import LabelScheme

if TYPE_CHECKING:
    from lightning_nli.epoch_metrics import EpochMetrics

IntArray = npt.NDArray[np.int64]

SMALLEST_PROBABILITY = float(np.finfo(np.float32).tiny)
"""A gold probability stored as 0 in fp32 counts as this one: its loss is 87.3, not infinite."""


class MacroOver(StrEnum):
    """Labels that the macro means are taken over."""

    PRESENT = "present"  # those in gold or predictions, as scikit-learn does it
    GOLD = "gold"  # those in gold: a label that is only predicted costs no F1 of its own


class Labels(Protocol):
    """What scoring needs of a label scheme."""

    @property
    def names(self) -> list[str]: ...


@dataclass(frozen=True)
class LabelNames:
    """Labels of a set that is none of our schemes, in the order of the confusion matrix."""

    names: list[str]


@dataclass(frozen=True)
class ClassScores:
    """Scores of one label; all null where it stands neither in gold nor in predictions."""

    precision: float | None
    recall: float | None
    f1: float | None
    support: int


@dataclass(frozen=True)
class Scores:
    """Scores of one set of examples; null is "not defined here", never 0.

    Attributes:
        num_examples: Scored examples.
        accuracy: Share of right answers (micro; not the mean of the recalls).
        macro_precision: Mean over `labels_present`; so are `macro_recall` and `macro_f1`.
        macro_recall: See `macro_precision`.
        macro_f1: See `macro_precision`.
        loss: Mean cross-entropy in nats; null where no probabilities are known.
        per_class: Label name -> its scores, every label of the scheme in its order.
        confusion: Counts (C, C), rows gold, columns predicted, in scheme order.
        labels_present: Labels that the macro means are taken over: those in gold or predictions (`MacroOver`).
        group_accuracy: Share of groups with every row right; null where no row has a group.
        num_groups: Groups that the rows are of.
    """

    num_examples: int
    accuracy: float | None
    macro_precision: float | None
    macro_recall: float | None
    macro_f1: float | None
    loss: float | None
    per_class: dict[str, ClassScores]
    confusion: list[list[int]]
    labels_present: list[str]
    group_accuracy: float | None = None
    num_groups: int = 0

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers, lists and dicts, as `result.json` holds them."""
        return asdict(self)


def scores_from_confusion(
    confusion: npt.NDArray[Any],
    scheme: Labels,
    loss_sum: float | None,
    macro_over: MacroOver = MacroOver.PRESENT,
) -> Scores:
    """Turn counts into scores.

    Args:
        confusion: Integer counts (C, C), rows gold, columns predicted, in scheme order.
        scheme: Names the C classes.
        loss_sum: Sum of the cross-entropy over the counted examples, in nats; None: not known.
        macro_over: Labels of the macro means.

    Raises:
        ValueError: the matrix has another shape, is not of counts, or the loss is not finite.
    """
    counts = _checked_counts(confusion, scheme)
    num_examples = int(counts.sum())
    if loss_sum is not None and not math.isfinite(loss_sum):
        raise ValueError(f"the loss over {num_examples} examples is {loss_sum}")
    per_class = {name: _class_scores(counts, index) for index, name in enumerate(scheme.names)}
    averaged = {
        name: scores
        for name, scores in per_class.items()
        if scores.f1 is not None and (scores.support or macro_over is MacroOver.PRESENT)
    }
    return Scores(
        num_examples=num_examples,
        accuracy=int(counts.trace()) / num_examples if num_examples else None,
        macro_precision=_mean([scores.precision for scores in averaged.values()]),
        macro_recall=_mean([scores.recall for scores in averaged.values()]),
        macro_f1=_mean([scores.f1 for scores in averaged.values()]),
        loss=loss_sum / num_examples if num_examples and loss_sum is not None else None,
        per_class=per_class,
        confusion=counts.tolist(),
        labels_present=list(averaged),
    )


def score(predictions: pl.DataFrame, scheme: Labels, *, macro_over: MacroOver = MacroOver.PRESENT) -> Scores:
    """Score a predictions table.

    Args:
        predictions: One row an example: `label` (gold) and `predicted`, names of the scheme; `prob_<label>` for each
            label or for none; optionally `loss` (cross-entropy in nats, used instead of the probabilities) and
            `group_id` (rows without one stand in no group).
        scheme: Labels.
        macro_over: Labels of the macro means.

    Raises:
        ValueError: a column or value is missing, foreign to the scheme or not a number.
    """
    gold = label_indices(predictions, "label", scheme)
    predicted = label_indices(predictions, "predicted", scheme)
    size = len(scheme.names)
    confusion = np.bincount(gold * size + predicted, minlength=size * size).reshape(size, size)
    scores = scores_from_confusion(confusion, scheme, _loss_sum(predictions, gold, scheme), macro_over)
    num_groups, num_right = _count_groups(predictions, gold == predicted)
    return replace(scores, group_accuracy=num_right / num_groups if num_groups else None, num_groups=num_groups)


def group_indices(frame: pl.DataFrame) -> IntArray:
    """(rows,) place of each row's group among the groups of `frame`, in their order; -1 for a row without one."""
    places = {group: place for place, group in enumerate(frame["group_id"].drop_nulls().unique(maintain_order=True))}
    return np.array([places.get(group, -1) for group in frame["group_id"]], dtype=np.int64)


def label_indices(frame: pl.DataFrame, column: str, scheme: Labels) -> IntArray:
    """Class indices (N,) of the label names in `column`.

    Raises:
        ValueError: the column is missing, or holds nulls or labels of another scheme.
    """
    if column not in frame.columns:
        raise ValueError(f"column '{column}' is missing from the predictions: {frame.columns}")
    names = frame[column].cast(pl.String)
    foreign = names.filter(~names.is_in(scheme.names).fill_null(False))
    if len(foreign):
        raise ValueError(f"{len(foreign)} rows have a {column} outside {scheme.names}: {foreign.head(5).to_list()}")
    return names.replace_strict(scheme.names, range(len(scheme.names)), return_dtype=pl.Int64).to_numpy()


def build_epoch_metrics(scheme: LabelScheme) -> EpochMetrics:
    """Scores over an epoch, exact over any number of processes, by the arithmetic of `score`. Imports torch."""
    from lightning_nli.epoch_metrics import EpochMetrics

    return EpochMetrics(scheme)


def _checked_counts(confusion: npt.NDArray[Any], scheme: Labels) -> IntArray:
    counts = np.asarray(confusion)
    size = len(scheme.names)
    if counts.shape != (size, size) or not np.issubdtype(counts.dtype, np.integer) or (counts < 0).any():
        raise ValueError(f"a confusion matrix of {size} labels needs ({size}, {size}) counts, got {counts!r}")
    return counts.astype(np.int64)


def _class_scores(counts: IntArray, index: int) -> ClassScores:
    right = int(counts[index, index])
    support, answered = int(counts[index].sum()), int(counts[:, index].sum())
    if support + answered == 0:
        return ClassScores(precision=None, recall=None, f1=None, support=0)
    return ClassScores(
        precision=right / answered if answered else 0.0,  # 0, not null, as scikit-learn's zero_division=0
        recall=right / support if support else 0.0,
        f1=2 * right / (support + answered),
        support=support,
    )


def _mean(values: Sequence[float | None]) -> float | None:
    """Mean; null if there is nothing, or something missing, to average."""
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if known and len(known) == len(values) else None


def _loss_sum(predictions: pl.DataFrame, gold: IntArray, scheme: Labels) -> float | None:
    if "loss" in predictions.columns:
        return math.fsum(_numbers(predictions, ["loss"])[:, 0])
    names = [f"prob_{name}" for name in scheme.names]
    absent = [name for name in names if name not in predictions.columns]
    if len(absent) == len(names):
        return None
    if absent:
        raise ValueError(f"columns {absent} are missing from the predictions")
    probabilities = _numbers(predictions, names)
    if ((probabilities < 0) | (probabilities > 1 + 1e-4)).any():
        raise ValueError(f"probabilities from {probabilities.min()} to {probabilities.max()}, expected 0 to 1")
    chosen = probabilities[np.arange(len(gold)), gold]
    return -math.fsum(np.log(np.clip(chosen, SMALLEST_PROBABILITY, None)))


def _numbers(frame: pl.DataFrame, names: list[str]) -> npt.NDArray[np.float64]:
    """(N, columns) float64.

    Raises:
        ValueError: a value is missing or not finite.
    """
    values = frame.select(pl.col(names).cast(pl.Float64).fill_null(math.nan)).to_numpy()
    if not np.isfinite(values).all():
        raise ValueError(f"{int((~np.isfinite(values)).any(axis=1).sum())} rows have no number in {names}")
    return values


def _count_groups(predictions: pl.DataFrame, is_right: npt.NDArray[np.bool_]) -> tuple[int, int]:
    """Groups, and those with every row right."""
    if "group_id" not in predictions.columns:
        return 0, 0
    rows = predictions.select("group_id", pl.Series("right", is_right, dtype=pl.Boolean)).drop_nulls("group_id")
    groups = rows.group_by("group_id").agg(pl.col("right").all())
    return groups.height, int(groups["right"].sum())
