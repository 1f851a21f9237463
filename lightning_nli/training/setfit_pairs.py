"""Pairs of training rows for SetFit's contrastive stage: distinct ones first, bounded, the same for the same seed.

The library lays out all pairs of all rows before it takes some (16 bytes times half the square of the rows), pairs a
row with itself, and draws with a seed of its own; here a pair is a number, and only the drawn ones exist. Method:
Tunstall et al. 2022, Efficient Few-Shot Learning Without Prompts (R pairs of one label and R of two labels a row).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from lightning_nli.data.packing import shuffled
from lightning_nli.types import UserError

Ints = npt.NDArray[np.int64]

_EQUAL, _DIFFERENT = 0, 1


@dataclass(frozen=True)
class PairPlan:
    """How many pairs there are, and how many are drawn.

    Attributes:
        num_rows: Training rows.
        num_each: Drawn pairs of one label; as many of two labels are drawn.
        unique_equal: Pairs of different rows of one label that exist.
        unique_different: Pairs of rows of two labels that exist.
        batch_size: Pairs of one optimizer step.
    """

    num_rows: int
    num_each: int
    unique_equal: int
    unique_different: int
    batch_size: int

    @property
    def num_pairs(self) -> int:
        return 2 * self.num_each

    @property
    def num_steps(self) -> int:
        return -(-self.num_pairs // self.batch_size)

    @property
    def has_repeats(self) -> bool:
        """Whether some pair is drawn more than once."""
        return self.num_each > min(self.unique_equal, self.unique_different)

    def as_dict(self) -> dict[str, Any]:
        """For `result.json`."""
        return {
            "pairs": self.num_pairs,
            "unique_pairs": self.unique_equal + self.unique_different,
            "unique_pairs_of_one_label": self.unique_equal,
            "unique_pairs_of_two_labels": self.unique_different,
            "repeated": self.has_repeats,
            "steps": self.num_steps,
        }

    def describe(self) -> str:
        """One line for the log and the dry run."""
        text = (
            f"{self.num_rows} rows: {self.num_pairs} pairs drawn from {self.unique_equal + self.unique_different} "
            f"unique ones ({self.unique_equal} of one label, {self.unique_different} of two), {self.num_steps} steps"
        )
        return f"{text}; some pairs repeat: lower --num-iterations for distinct ones" if self.has_repeats else text


def plan_pairs(labels: Ints, *, num_iterations: int, max_pairs: int, batch_size: int) -> PairPlan:
    """Count pairs before any is drawn.

    Args:
        labels: (rows,) class indices.
        num_iterations: Pairs of each kind for a row.
        max_pairs: Most pairs in all.
        batch_size: Pairs of one optimizer step.

    Raises:
        UserError: more pairs than `max_pairs`, one label only, or no two rows of one label.
    """
    sizes = np.unique(labels, return_counts=True)[1].astype(np.int64)
    if len(sizes) < 2:
        raise UserError("--method setfit compares rows of different labels; all training rows have one label")
    equal = int((sizes * (sizes - 1) // 2).sum())
    if equal == 0:
        raise UserError("--method setfit pairs rows of one label; every training row has a label of its own")
    different = len(labels) * (len(labels) - 1) // 2 - equal
    plan = PairPlan(len(labels), num_iterations * len(labels), equal, different, batch_size)
    if plan.num_pairs > max_pairs:
        raise UserError(
            f"--num-iterations {num_iterations} over {len(labels)} rows draws {plan.num_pairs} pairs, above "
            f"--max-pairs {max_pairs}; lower --num-iterations, take fewer rows (--subset), or raise --max-pairs"
        )
    return plan


def draw_pairs(labels: Ints, plan: PairPlan, *, seed: int) -> tuple[Ints, npt.NDArray[np.float64]]:
    """The drawn pairs, one of one label and one of two labels by turns.

    Args:
        labels: (rows,) class indices.
        plan: What `plan_pairs` said of them.
        seed: Of the draw (Philox raw bits: the same on any machine and numpy version).

    Returns:
        (pairs, 2) positions of rows, and (pairs,) 1.0 where the labels are equal, else 0.0.
    """
    members = [np.flatnonzero(labels == label) for label in np.unique(labels)]
    equal = _equal_pairs(members, _draw_ranks(plan.unique_equal, plan.num_each, seed, _EQUAL))
    different = _different_pairs(members, _draw_ranks(plan.unique_different, plan.num_each, seed, _DIFFERENT))
    pairs = np.stack([equal, different], axis=1).reshape(-1, 2)
    return pairs, np.tile([1.0, 0.0], plan.num_each)


def _draw_ranks(unique: int, wanted: int, seed: int, stream: int) -> Ints:
    """`wanted` numbers below `unique`, each as often as the others or once more."""
    whole, rest = divmod(wanted, unique)
    rounds = [np.arange(unique, dtype=np.int64) for _ in range(whole)]
    return np.concatenate([*rounds, _distinct(unique, rest, seed, stream)]).astype(np.int64)


def _distinct(unique: int, wanted: int, seed: int, stream: int) -> Ints:
    if unique <= 4 * wanted:
        return np.asarray(shuffled(unique, seed=seed, epoch=stream)[:wanted], np.int64)
    bits = np.random.Philox(key=np.array([seed, stream], np.uint64))
    found: dict[int, None] = {}
    while len(found) < wanted:
        draws = bits.random_raw(wanted - len(found)) % np.uint64(unique)
        found.update(dict.fromkeys(draws.tolist()))
    return np.fromiter(found, np.int64, len(found))


def _equal_pairs(members: list[Ints], ranks: Ints) -> Ints:
    """Rank -> the pair of rows i < j of one label, label by label; rank within a label is j (j - 1) / 2 + i."""
    counts = np.array([len(rows) * (len(rows) - 1) // 2 for rows in members], np.int64)
    ends = np.cumsum(counts)
    label = np.searchsorted(ends, ranks, side="right")
    rank = ranks - (ends - counts)[label]
    later = ((1 + np.sqrt(1 + 8 * rank.astype(np.float64))) / 2).astype(np.int64)
    later -= later * (later - 1) // 2 > rank  # the root may round up, or down
    later += (later + 1) * later // 2 <= rank
    earlier = rank - later * (later - 1) // 2
    return _look_up(members, label, earlier, label, later)


def _different_pairs(members: list[Ints], ranks: Ints) -> Ints:
    """Rank -> the pair of rows of two labels, pair of labels by pair of labels."""
    sizes = np.array([len(rows) for rows in members], np.int64)
    first, second = np.triu_indices(len(members), 1)
    counts = sizes[first] * sizes[second]
    ends = np.cumsum(counts)
    place = np.searchsorted(ends, ranks, side="right")
    one, other = np.divmod(ranks - (ends - counts)[place], sizes[second[place]])
    return _look_up(members, first[place], one, second[place], other)


def _look_up(members: list[Ints], label_a: Ints, place_a: Ints, label_b: Ints, place_b: Ints) -> Ints:
    rows = np.concatenate(members)
    starts = np.cumsum([0, *(len(part) for part in members)])[:-1]
    return np.stack([rows[starts[label_a] + place_a], rows[starts[label_b] + place_b]], axis=1)
