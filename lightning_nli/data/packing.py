"""Lengths -> pack plan -> `PackedBatch`. Every rank computes the same plan and takes its own column."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from lightning_nli.batch import PackedBatch
from lightning_nli.data.bundles import Bundle, deal_bundles, fill_in_order, flatten, split_widest
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
        bundles: Rows that share a pack, every row of the split in one of them; None: each row may go alone. An
            optimizer step then holds at most `batch_size` rows x accumulation x ranks, and they are dealt out as evenly
            as whole bundles allow.
    """

    batch_size: int | None
    max_tokens: int | None
    world_size: int = 1
    accumulate: int = 1
    seed: int = 1
    groups: RowGroups | None = None
    bundles: tuple[Bundle, ...] | None = None


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
    if plan.batch_size is not None and plan.bundles is not None:
        return max(len(_bundled_steps(plan, epoch)) for epoch in range(epochs)) * plan.accumulate
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
    if plan.batch_size is not None and plan.bundles is not None:
        return _plan_by_bundles(lengths, plan, epoch, num_micro_steps)
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


def _bundled_steps(plan: PackPlan, epoch: int) -> list[list[Bundle]]:
    """Bundles of each optimizer step: a function of the global batch, whatever its ranks and micro-steps."""
    assert plan.batch_size is not None and plan.bundles is not None
    order = [plan.bundles[index] for index in shuffled(len(plan.bundles), seed=plan.seed, epoch=epoch)]
    width = plan.batch_size * plan.world_size * plan.accumulate
    return [[order[place] for place in step] for step in fill_in_order([len(one) for one in order], capacity=width)]


def _plan_by_bundles(lengths: Lengths, plan: PackPlan, epoch: int, num_micro_steps: int) -> list[list[MicroStep]]:
    slots = plan.accumulate * plan.world_size
    planned = split_widest(_bundled_steps(plan, epoch), num_micro_steps // plan.accumulate)
    return [
        micro_step
        for step in planned
        for micro_step in _micro_steps([hand for hand in deal_bundles(step, lengths, slots) if hand], lengths, plan)
    ]


def _token_packs(lengths: Lengths, plan: PackPlan, epoch: int) -> list[list[Bundle]]:
    assert plan.max_tokens is not None
    if plan.bundles is None:
        packs = _best_fit_packs(lengths, plan, epoch)
    else:
        bundles = [plan.bundles[index] for index in shuffled(len(plan.bundles), seed=plan.seed, epoch=epoch)]
        tokens = [sum(int(lengths[row]) for row in bundle) for bundle in bundles]
        packs = [[bundles[at] for at in pack] for pack in fill_in_order(tokens, capacity=plan.max_tokens)]
    return [packs[index] for index in shuffled(len(packs), seed=plan.seed, epoch=epoch)]


def _best_fit_packs(lengths: Lengths, plan: PackPlan, epoch: int) -> list[list[Bundle]]:
    assert plan.max_tokens is not None
    order = shuffled(len(lengths), seed=plan.seed, epoch=epoch)
    packs: list[list[Bundle]] = []
    for start in range(0, len(order), _WINDOW_EXAMPLES):
        window = order[start : start + _WINDOW_EXAMPLES]
        planned = plan_packs([int(lengths[row]) for row in window], max_tokens=plan.max_tokens)
        packs += [[(window[position],) for position in pack] for pack in planned]
    return packs


def _plan_by_tokens(lengths: Lengths, plan: PackPlan, epoch: int, num_micro_steps: int) -> list[list[MicroStep]]:
    num_steps = num_micro_steps // plan.accumulate
    packs = split_widest(_token_packs(lengths, plan, epoch), num_steps)  # where others packed less tightly
    steps: list[list[MicroStep]] = []
    for index in range(num_steps):
        window = packs[index * len(packs) // num_steps : (index + 1) * len(packs) // num_steps]
        steps += _micro_steps([flatten(pack) for pack in window], lengths, plan)
    return steps


def _micro_steps(window: Sequence[Sequence[int]], lengths: Lengths, plan: PackPlan) -> list[list[MicroStep]]:
    """Micro-steps of one optimizer step: packs in the order of their tokens, so that ranks have near-equal ones."""
    slots = plan.accumulate * plan.world_size
    assert len(window) <= slots
    total = sum(map(len, window))
    ordered = sorted(window, key=lambda pack: (-sum(int(lengths[row]) for row in pack), list(pack)))
    hands = [tuple(sorted(pack, key=lambda row: (-lengths[row], row))) for pack in ordered]
    hands += [()] * (slots - len(hands))
    return [
        [MicroStep(rows, total) for rows in hands[at : at + plan.world_size]] for at in range(0, slots, plan.world_size)
    ]


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
