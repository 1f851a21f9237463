"""Rows that stay together: whole bundles are planned into optimizer steps, packs and hands, never parts of one."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

import numpy as np
import numpy.typing as npt

Bundle = tuple[int, ...]
"""Rows that share a micro-step and a rank."""

_LOOK_AHEAD = 64


def fill_in_order(sizes: Sequence[int], *, capacity: int) -> list[list[int]]:
    """Group the positions of one shuffled list: each group takes the next that still fit, of the 64 next in line.

    Best fit would put the large ones together; here a group's mixture is that of the list, and small ones from a little
    further on fill the last gaps.

    Args:
        sizes: Rows or tokens.
        capacity: Largest sum in a group.

    Raises:
        ValueError: one is larger than a group.
    """
    if max(sizes, default=0) > capacity:
        raise ValueError(f"rows that stay together need {max(sizes)}, {capacity=}")
    upcoming = iter(range(len(sizes)))
    waiting = list(islice(upcoming, _LOOK_AHEAD))
    groups: list[list[int]] = []
    while waiting:
        room, at, group = capacity, 0, list[int]()
        while at < len(waiting):
            if sizes[waiting[at]] <= room:
                group.append(waiting.pop(at))
                room -= sizes[group[-1]]
                waiting.extend(islice(upcoming, 1))
            else:
                at += 1
        groups.append(group)
    return groups


def split_widest(packs: Sequence[Sequence[Bundle]], count: int) -> list[list[Bundle]]:
    """As many packs as asked for, the one with most bundles being cut into halves first."""
    found = [list(pack) for pack in packs]
    while len(found) < count:
        widest = max(range(len(found)), key=lambda index: (len(found[index]), -index))
        half = len(found[widest]) // 2
        assert half, "as many packs as bundles, and still fewer than optimizer steps"
        found[widest : widest + 1] = [found[widest][:half], found[widest][half:]]
    return found


def deal_bundles(bundles: Sequence[Bundle], lengths: npt.NDArray[np.int64], num_hands: int) -> list[list[int]]:
    """Rows of each hand: the largest bundle goes first, each to the hand with fewest rows, then with fewest tokens.

    Hands differ by at most the rows of one bundle.
    """
    hands: list[list[int]] = [[] for _ in range(num_hands)]
    loads = [(0, 0)] * num_hands
    tokens = {bundle: sum(int(lengths[row]) for row in bundle) for bundle in bundles}
    for bundle in sorted(bundles, key=lambda bundle: (-len(bundle), -tokens[bundle], bundle)):
        seat = min(range(num_hands), key=lambda seat: (loads[seat], seat))
        hands[seat] += bundle
        loads[seat] = (loads[seat][0] + len(bundle), loads[seat][1] + tokens[bundle])
    return hands


def flatten(bundles: Sequence[Bundle]) -> list[int]:
    """Their rows, in order."""
    return [row for bundle in bundles for row in bundle]
