"""Scores by length of the input: full classes, classes sampled down to the smallest, and the labels' shares made equal.

Classes that differ in length differ in their labels too, and a class of 20 rows moves by 5 points with one answer: so
each class is scored in full, over many draws of as many rows as the smallest class has, and as if its labels had the
shares of the whole set.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from lightning_nli.metrics import Labels, Scores, label_indices, score, scores_from_confusion
from lightning_nli.types import UserError

LENGTH = "num_tokens"
"""Column of a predictions table: tokens of the row before truncation, in the model's own tokens."""

FIGURES = ("accuracy", "macro_precision", "macro_recall", "macro_f1")
NUM_DRAWS = 1000

Counts = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Spread:
    """A figure over draws.

    Attributes:
        mean: Mean.
        sd: Standard deviation.
        low: 2.5% quantile.
        high: 97.5% quantile.
    """

    mean: float
    sd: float
    low: float
    high: float


@dataclass(frozen=True)
class LengthClass:
    """One class of lengths.

    Attributes:
        low: Lengths are above this one; None: there is no lower class.
        high: Lengths are at most this one; None: there is no higher class.
        scores: Of all its rows.
        num_drawn: Rows of a draw: those of the smallest class that has rows.
        drawn: Figure -> its spread over the draws; empty for a class without rows.
        standardized: Figure -> its value with the labels' shares of the whole set; null where a label has no row here.
    """

    low: int | None
    high: int | None
    scores: Scores
    num_drawn: int
    drawn: dict[str, Spread]
    standardized: dict[str, float | None]

    @property
    def name(self) -> str:
        """As the published table has it: `192 < tokens <= 384`."""
        below = "" if self.low is None else f"{self.low} < "
        return f"{below}tokens" + ("" if self.high is None else f" <= {self.high}")

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers, lists and dicts, with the name."""
        return {"name": self.name} | asdict(self)


def parse_edges(text: str) -> list[int]:
    """`256,512` as the upper edges of all classes but the last.

    Raises:
        UserError: it is not a list of rising whole numbers above 0.
    """
    try:
        edges = [int(part) for part in text.split(",")]
    except ValueError:
        edges = []
    if not edges or edges[0] <= 0 or any(a >= b for a, b in pairwise(edges)):
        raise UserError(f"--length-classes takes rising numbers of tokens, as 256,512; got '{text}'")
    return edges


def score_length_classes(
    predictions: pl.DataFrame, labels: Labels, edges: Sequence[int], *, num_draws: int = NUM_DRAWS, seed: int = 1
) -> list[LengthClass]:
    """Score a predictions table by length.

    Args:
        predictions: As `metrics.score` takes it, with `LENGTH`.
        labels: Label set.
        edges: Upper edges of all classes but the last, rising.
        num_draws: Draws without replacement from each class.
        seed: Of the draws.

    Returns:
        Every class, shortest first.

    Raises:
        UserError: there is no length column, or a row lacks its length.
    """
    if LENGTH not in predictions.columns or predictions[LENGTH].null_count():
        raise UserError(
            f"length classes need the column '{LENGTH}' (tokens before truncation) in every row; `lnli test RUN` "
            "writes it for runs of earlier versions"
        )
    size = len(labels.names)
    cells = label_indices(predictions, "label", labels) * size + label_indices(predictions, "predicted", labels)
    place = np.searchsorted(np.asarray(edges), predictions[LENGTH].to_numpy(), side="left")
    members = [np.flatnonzero(place == number) for number in range(len(edges) + 1)]
    num_drawn = min((len(rows) for rows in members if len(rows)), default=0)
    shares = _confusion(cells, size).sum(axis=1) / max(1, len(cells))
    bounds = [None, *edges, None]
    return [
        LengthClass(
            low=bounds[number],
            high=bounds[number + 1],
            scores=score(predictions[rows], labels),
            num_drawn=num_drawn,
            drawn=_draw(cells[rows], labels, num_drawn, num_draws, np.random.Philox([seed, number])),
            standardized=_standardized(_confusion(cells[rows], size), shares),
        )
        for number, rows in enumerate(members)
    ]


def _confusion(cells: Counts, size: int) -> Counts:
    return np.bincount(cells, minlength=size * size).reshape(size, size).astype(np.int64)


def _draw(cells: Counts, labels: Labels, num_drawn: int, num_draws: int, random: np.random.Philox) -> dict[str, Spread]:
    if not len(cells):
        return {}
    size = len(labels.names)
    found: dict[str, list[float]] = {name: [] for name in FIGURES}
    for _ in range(num_draws):
        drawn = cells[np.argsort(random.random_raw(len(cells)), kind="stable")[:num_drawn]]
        scores = scores_from_confusion(_confusion(drawn, size), labels, None)
        for name in FIGURES:
            found[name].append(getattr(scores, name))
    return {name: _spread(np.array(values)) for name, values in found.items()}


def _spread(values: npt.NDArray[np.float64]) -> Spread:
    low, high = np.quantile(values, [0.025, 0.975])
    sd = float(values.std(ddof=1)) if len(values) > 1 else 0.0
    return Spread(float(values.mean()), sd, float(low), float(high))


def _standardized(confusion: Counts, shares: npt.NDArray[np.float64]) -> dict[str, float | None]:
    """Accuracy and macro-F1 of the class if each label had its share of the whole set (direct standardization).

    Every row of the confusion matrix is scaled to that share: recalls stay, precisions follow.
    """
    support = confusion.sum(axis=1)
    wanted = shares > 0
    if (support[wanted] == 0).any():
        return {"accuracy": None, "macro_f1": None}
    scaled = confusion / np.maximum(support, 1)[:, None] * shares[:, None]
    right, answered = scaled.diagonal(), scaled.sum(axis=0)
    present = (shares + answered) > 0
    f1 = 2 * right[present] / (shares + answered)[present]
    return {"accuracy": math.fsum(right), "macro_f1": math.fsum(f1) / len(f1)}
