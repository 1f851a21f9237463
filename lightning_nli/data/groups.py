"""Groups of training rows, and an order in which every optimizer step holds rows of every group."""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

MIN_GROUP_ROWS = 4
"""Rows of every group in every optimizer step, at least."""


@dataclass(frozen=True, eq=False)
class RowGroups:
    """Which training rows belong to which groups.

    Attributes:
        names: Of the groups, (G,).
        weights: (N, G) float32, share of each row in each group; a row's shares add up to 1, no group is empty.
        equal_shares: How a step's rows beyond the 4 of each group are shared out: by the groups' sizes, or so that
            all groups get the same number of rows.
    """

    names: tuple[str, ...]
    weights: npt.NDArray[np.float32]
    equal_shares: bool = False

    @property
    def sizes(self) -> npt.NDArray[np.float64]:
        """(G,) rows of each group, a row that belongs to several counted by its shares."""
        sizes: npt.NDArray[np.float64] = self.weights.sum(axis=0, dtype=np.float64)
        return sizes


def grouped_order(groups: RowGroups, *, width: int, num_steps: int, seed: int, epoch: int) -> list[int]:
    """Rows of one epoch, optimizer step by optimizer step; depends on the arguments alone (Philox raw bits).

    The epoch's rows are shuffled and dealt to their groups, a row of several groups to one of them, drawn anew each
    epoch with its shares as chances. Each step then takes 4 rows of every group in turn and fills up, row by row, from
    the group that is furthest behind its part of the epoch (its size, or an equal part). A group that comes to its end
    begins again: rows of small groups repeat within an epoch, and those of large ones may wait for a later epoch, while
    the number of steps stays that of a plain shuffle.

    Args:
        groups: Of the N training rows.
        width: Rows per optimizer step.
        num_steps: Optimizer steps of the epoch.
        seed: Of the run.
        epoch: From 0.

    Returns:
        `width * num_steps` rows.

    Raises:
        ValueError: a step cannot hold 4 rows of every group.
    """
    if width < MIN_GROUP_ROWS * len(groups.names):
        raise ValueError(f"{width} rows a step for {len(groups.names)} groups of at least {MIN_GROUP_ROWS} rows")
    members = _members(groups, seed=seed, epoch=epoch)
    parts = [1.0] * len(members) if groups.equal_shares else groups.sizes.tolist()
    drawn = [0] * len(members)
    order: list[int] = []
    for _ in range(num_steps):
        for group in _seats(drawn, parts, width):
            order.append(members[group][drawn[group] % len(members[group])])
            drawn[group] += 1
    return order


def _members(groups: RowGroups, *, seed: int, epoch: int) -> list[list[int]]:
    """The epoch's rows of each group, shuffled; each row in one group, but for a group that would have none."""
    num_rows, num_groups = groups.weights.shape
    raw = np.random.Philox(key=np.array([seed, epoch], np.uint64)).random_raw(2 * num_rows)
    order = np.argsort(raw[:num_rows], kind="stable")
    unit = (raw[num_rows:] >> np.uint64(11)).astype(np.float64) * 2.0**-53  # in [0, 1)
    reached = np.cumsum(groups.weights, axis=1, dtype=np.float64)
    group_of_row = (reached > unit[:, None] * reached[:, -1:]).argmax(axis=1)
    members = [order[group_of_row[order] == group].tolist() for group in range(num_groups)]
    return [rows or order[groups.weights[order, group] > 0].tolist() for group, rows in enumerate(members)]


def _seats(drawn: list[int], parts: list[float], width: int) -> list[int]:
    """Groups of one step's rows: 4 of each in turn, then each time the group furthest behind its part."""
    seats = list(range(len(parts))) * MIN_GROUP_ROWS
    behind = [((drawn[group] + MIN_GROUP_ROWS + 1) / part, group) for group, part in enumerate(parts)]
    heapq.heapify(behind)
    while len(seats) < width:
        reached, group = behind[0]
        seats.append(group)
        heapq.heapreplace(behind, (reached + 1 / parts[group], group))
    return seats
