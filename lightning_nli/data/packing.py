"""Lengths -> pack plan -> `PackedBatch`. Every rank computes the same plan and takes its own column."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from lightning_nli.batch import PackedBatch
from lightning_nli.data.groups import RowGroups, grouped_order
from lightning_nli.data.tokenization import TokenizedSplit
from lightning_nli.types import IGNORE_INDEX

_WINDOW_EXAMPLES = 4_000

Lengths = npt.NDArray[np.int64]


@dataclass(frozen=True)
class PackPlan:
    """How a split becomes micro-steps.

    Attributes:
        batch_size: Examples per rank and micro-step, or None in throughput mode.
        max_tokens: Tokens per pack in throughput mode, or None.
        world_size: Ranks.
        accumulate: Micro-steps per optimizer step.
        seed: Of the shuffle.
        groups: Groups of which every optimizer step must hold rows, or None; needs `batch_size`.
    """

    batch_size: int | None
    max_tokens: int | None
    world_size: int = 1
    accumulate: int = 1
    seed: int = 1
    groups: RowGroups | None = None


@dataclass(frozen=True)
class MicroStep:
    """What one rank does in one micro-step: rows of the split (none: a ghost) and the step's scored examples."""

    rows: tuple[int, ...]
    step_num_segments: int


def shuffled(count: int, *, seed: int, epoch: int) -> list[int]:
    """A permutation that depends on `seed` and `epoch` alone, on any machine and numpy version (Philox raw bits)."""
    if not count:
        return []
    keys = np.random.Philox(key=np.array([seed, epoch], np.uint64)).random_raw(count)
    return [int(index) for index in np.argsort(keys, kind="stable")]


def plan_packs(lengths: Sequence[int], *, max_tokens: int) -> list[list[int]]:
    """Group the positions of one shuffled window into packs of at most `max_tokens` tokens, best fit first.

    Raises:
        ValueError: an example is longer than a pack.
    """
    if max(lengths, default=0) > max_tokens:
        raise ValueError(f"an example has {max(lengths)} tokens, {max_tokens=}; truncate when tokenizing")
    packs: list[list[int]] = []
    free: list[tuple[int, int]] = []  # (tokens left, pack), ascending
    for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        at = bisect_left(free, (lengths[index], -1))
        if at == len(free):
            packs.append([])
            free.append((max_tokens, len(packs) - 1))
        left, pack = free.pop(at)
        packs[pack].append(index)
        insort(free, (left - lengths[index], pack))
    return packs


def count_micro_steps(lengths: Lengths, plan: PackPlan, *, epochs: int) -> int:
    """Micro-steps per rank and epoch: one number for all epochs and ranks, a multiple of `accumulate`."""
    if plan.batch_size is not None:
        groups = -(-len(lengths) // (plan.batch_size * plan.world_size))
    else:
        most = max(len(_token_packs(lengths, plan, epoch)) for epoch in range(epochs))
        groups = -(-most // plan.world_size)
    return -(-groups // plan.accumulate) * plan.accumulate


def plan_steps(lengths: Lengths, plan: PackPlan, *, epoch: int, num_micro_steps: int) -> list[list[MicroStep]]:
    """All micro-steps of one epoch: outer list micro-steps, inner list ranks. Every example stands in it once, but
    with `plan.groups`: then its order is that of `grouped_order`.

    Ranks of a micro-step get near-equal tokens; what does not fill up is a ghost. No optimizer step is all ghosts, so
    none is taken on empty gradients.
    """
    if plan.batch_size is not None:
        return _plan_by_examples(lengths, plan, epoch, num_micro_steps)
    return _plan_by_tokens(lengths, plan, epoch, num_micro_steps)


def _plan_by_examples(lengths: Lengths, plan: PackPlan, epoch: int, num_micro_steps: int) -> list[list[MicroStep]]:
    assert plan.batch_size is not None
    width = plan.batch_size * plan.world_size
    if plan.groups is None:
        order = shuffled(len(lengths), seed=plan.seed, epoch=epoch)
    else:
        num_steps, step_width = num_micro_steps // plan.accumulate, width * plan.accumulate
        order = grouped_order(plan.groups, width=step_width, num_steps=num_steps, seed=plan.seed, epoch=epoch)
    groups = [order[start : start + width] for start in range(0, len(order), width)]
    groups += [[]] * (num_micro_steps - len(groups))
    steps: list[list[MicroStep]] = []
    for start in range(0, num_micro_steps, plan.accumulate):
        window = groups[start : start + plan.accumulate]
        total = sum(map(len, window))
        steps += [[MicroStep(rows, total) for rows in _deal(group, lengths, plan.world_size)] for group in window]
    return steps


def _deal(group: Sequence[int], lengths: Lengths, world_size: int) -> list[tuple[int, ...]]:
    """Deal one global micro-batch to the ranks: equal counts, near-equal tokens, longest first (there and back)."""
    hands: list[list[int]] = [[] for _ in range(world_size)]
    for place, row in enumerate(sorted(group, key=lambda row: (-lengths[row], row))):
        lap, seat = divmod(place, world_size)
        hands[seat if lap % 2 == 0 else world_size - 1 - seat].append(row)
    return [tuple(hand) for hand in hands]


def _token_packs(lengths: Lengths, plan: PackPlan, epoch: int) -> list[list[int]]:
    assert plan.max_tokens is not None
    order = shuffled(len(lengths), seed=plan.seed, epoch=epoch)
    packs: list[list[int]] = []
    for start in range(0, len(order), _WINDOW_EXAMPLES):
        window = order[start : start + _WINDOW_EXAMPLES]
        planned = plan_packs([int(lengths[row]) for row in window], max_tokens=plan.max_tokens)
        packs += [[window[position] for position in pack] for pack in planned]
    return [packs[index] for index in shuffled(len(packs), seed=plan.seed, epoch=epoch)]


def _plan_by_tokens(lengths: Lengths, plan: PackPlan, epoch: int, num_micro_steps: int) -> list[list[MicroStep]]:
    packs = _token_packs(lengths, plan, epoch)
    num_steps = num_micro_steps // plan.accumulate
    while len(packs) < num_steps:  # this epoch packed tighter than the fullest one
        widest = max(range(len(packs)), key=lambda index: (len(packs[index]), -index))
        half = len(packs[widest]) // 2
        assert half, "as many packs as examples, and still fewer than optimizer steps"
        packs[widest : widest + 1] = [packs[widest][:half], packs[widest][half:]]
    slots = plan.accumulate * plan.world_size
    steps: list[list[MicroStep]] = []
    for index in range(num_steps):
        window = packs[index * len(packs) // num_steps : (index + 1) * len(packs) // num_steps]
        assert len(window) <= slots
        window = sorted(window, key=lambda pack: (-sum(int(lengths[row]) for row in pack), pack))
        total = sum(map(len, window))
        window += [[]] * (slots - len(window))
        ordered = [tuple(sorted(pack, key=lambda row: (-lengths[row], row))) for pack in window]
        steps += [
            [MicroStep(rows, total) for rows in ordered[at : at + plan.world_size]]
            for at in range(0, slots, plan.world_size)
        ]
    return steps


def plan_evaluation(lengths: Lengths, *, max_tokens: int, world_size: int) -> list[list[MicroStep]]:
    """Packs of similar lengths, longest first, for scoring: outer list micro-steps, inner list ranks."""
    packs: list[list[int]] = []
    room = 0
    for row in sorted(range(len(lengths)), key=lambda row: (-lengths[row], row)):
        if lengths[row] > room:
            packs.append([])
            room = max_tokens
        packs[-1].append(row)
        room -= int(lengths[row])
    packs += [[]] * (-len(packs) % world_size)
    return [
        [MicroStep(tuple(rows), len(rows)) for rows in packs[start : start + world_size]]
        for start in range(0, len(packs), world_size)
    ]


def collate_pack(
    split: TokenizedSplit,
    step: MicroStep,
    *,
    first_position: int = 0,
    remap: npt.NDArray[np.int64] | None = None,
) -> PackedBatch:
    """Lay the step's examples end to end.

    Args:
        split: Where the examples are.
        step: Its rows; without rows the batch is a ghost: the split's shortest example, not scored.
        first_position: Position of a segment's first token (RoBERTa family: `pad_id + 1`).
        remap: (vocabulary,) new id of every token id, where the vocabulary is trimmed.
    """
    ghost = not step.rows
    rows = [int(np.argmin(split.lengths))] if ghost else list(step.rows)
    lengths = split.lengths[rows]
    assert lengths.min() > 0, "an example without tokens"
    spans = [slice(int(split.offsets[row]), int(split.offsets[row + 1])) for row in rows]
    ids = np.concatenate([split.token_ids[span] for span in spans]).astype(np.int64)
    if remap is not None:
        ids = remap[ids]
        assert ids.min() >= 0, "a token that the trimmed vocabulary lacks"
    types = None if split.token_types is None else np.concatenate([split.token_types[span] for span in spans])
    return PackedBatch(
        input_ids=torch.from_numpy(ids),
        position_ids=torch.from_numpy(np.concatenate([np.arange(n) for n in lengths]) + first_position),
        token_type_ids=None if types is None else torch.from_numpy(types.astype(np.int64)),
        cu_seqlens=torch.from_numpy(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)),
        max_seqlen=int(lengths.max()),
        labels=torch.from_numpy(np.full(1, IGNORE_INDEX) if ghost else split.labels[rows]),
        example_ids=torch.tensor([-1] if ghost else rows),
        step_num_segments=max(1, step.step_num_segments),
    )
