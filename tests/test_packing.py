"""The pack plan: complete, deterministic, balanced, the same number of steps for every rank and epoch."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from lightning_nli.data.packing import (
    MicroStep,
    PackPlan,
    collate_pack,
    count_micro_steps,
    plan_evaluation,
    plan_packs,
    plan_steps,
    shuffled,
)
from lightning_nli.data.tokenization import TokenizedSplit
from lightning_nli.types import IGNORE_INDEX

LENGTHS = np.array([(7 * i) % 60 + 4 for i in range(101)])
PLANS = [
    PackPlan(batch_size=8, max_tokens=None),
    PackPlan(batch_size=4, max_tokens=None, world_size=2, accumulate=3),
    PackPlan(batch_size=None, max_tokens=128),
    PackPlan(batch_size=None, max_tokens=100, world_size=3, accumulate=2),
]


def make_split(lengths: list[int] | np.ndarray) -> TokenizedSplit:
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    ids = np.arange(offsets[-1], dtype=np.int32) % 50 + 3
    return TokenizedSplit(ids, None, offsets, np.arange(len(lengths)) % 2, np.diff(offsets))


@pytest.mark.parametrize("plan", PLANS)
def test_every_example_stands_once_in_every_epoch(plan):
    num = count_micro_steps(LENGTHS, plan, epochs=3)
    assert num % plan.accumulate == 0
    for epoch in range(3):
        steps = plan_steps(LENGTHS, plan, epoch=epoch, num_micro_steps=num)
        assert len(steps) == num
        assert all(len(ranks) == plan.world_size for ranks in steps)
        rows = sorted(row for ranks in steps for step in ranks for row in step.rows)
        assert rows == list(range(len(LENGTHS)))


@pytest.mark.parametrize("plan", PLANS)
def test_step_totals_count_the_scored_segments_of_the_optimizer_step(plan):
    num = count_micro_steps(LENGTHS, plan, epochs=2)
    steps = plan_steps(LENGTHS, plan, epoch=1, num_micro_steps=num)
    for start in range(0, num, plan.accumulate):
        window = [step for ranks in steps[start : start + plan.accumulate] for step in ranks]
        total = sum(len(step.rows) for step in window)
        assert total > 0  # no optimizer step on empty gradients
        assert {step.step_num_segments for step in window} == {total}


def test_epochs_differ_and_repeat_exactly():
    plan = PLANS[1]
    first = plan_steps(LENGTHS, plan, epoch=0, num_micro_steps=15)
    assert first == plan_steps(LENGTHS, plan, epoch=0, num_micro_steps=15)
    assert first != plan_steps(LENGTHS, plan, epoch=1, num_micro_steps=15)
    assert first != plan_steps(LENGTHS, replace(plan, seed=2), epoch=0, num_micro_steps=15)


def test_shuffle_is_pinned():
    """Philox raw bits: the same order on any machine and numpy version."""
    assert shuffled(8, seed=1, epoch=0) == [3, 5, 2, 7, 0, 6, 1, 4]


def test_batch_membership_is_that_of_a_padded_run_whatever_the_ranks():
    """A global micro-batch holds the same examples for 1 rank x 8 and 2 ranks x 4."""
    one = plan_steps(LENGTHS, PackPlan(batch_size=8, max_tokens=None), epoch=0, num_micro_steps=13)
    two = plan_steps(LENGTHS, PackPlan(batch_size=4, max_tokens=None, world_size=2), epoch=0, num_micro_steps=13)
    assert [sorted(ranks[0].rows) for ranks in one] == [
        sorted(row for step in ranks for row in step.rows) for ranks in two
    ]


def test_ranks_get_near_equal_tokens():
    plan = PackPlan(batch_size=8, max_tokens=None, world_size=2)
    steps = plan_steps(LENGTHS, plan, epoch=0, num_micro_steps=count_micro_steps(LENGTHS, plan, epochs=1))
    for ranks in steps[:-1]:
        tokens = [sum(int(LENGTHS[row]) for row in step.rows) for step in ranks]
        assert len(ranks[0].rows) == len(ranks[1].rows) == 8
        assert abs(tokens[0] - tokens[1]) <= LENGTHS.max()


def test_packs_respect_the_budget_and_are_full():
    packs = plan_packs(list(LENGTHS), max_tokens=128)
    tokens = [sum(LENGTHS[row] for row in pack) for pack in packs]
    assert max(tokens) <= 128
    assert len(packs) <= 1.1 * np.ceil(LENGTHS.sum() / 128)


def test_p04_an_example_longer_than_a_pack_is_refused():
    with pytest.raises(ValueError, match="300 tokens"):
        plan_packs([100, 300, 56], max_tokens=256)


def test_p04_in_scoring_it_stands_alone_and_the_longest_is_that_of_each_batch():
    split = make_split([100, 300, 56])
    steps = [ranks[0] for ranks in plan_evaluation(split.lengths, max_tokens=256, world_size=1)]
    assert [sorted(step.rows) for step in steps] == [[1], [0, 2]]
    assert [collate_pack(split, step).max_seqlen for step in steps] == [300, 100]


def test_s04_uneven_bins_give_both_ranks_the_same_number_of_steps():
    lengths = np.array([200, 200, 200, 30, 30])
    plan = PackPlan(batch_size=None, max_tokens=256, world_size=2)
    num = count_micro_steps(lengths, plan, epochs=1)
    steps = plan_steps(lengths, plan, epoch=0, num_micro_steps=num)
    assert num == 2
    assert sorted(row for ranks in steps for step in ranks for row in step.rows) == [0, 1, 2, 3, 4]
    assert sum(not step.rows for ranks in steps for step in ranks) == 1  # one ghost keeps the ranks in step


def test_evaluation_plan_covers_every_row_once_and_gives_ranks_equal_counts():
    steps = plan_evaluation(LENGTHS, max_tokens=200, world_size=2)
    assert sorted(row for ranks in steps for step in ranks for row in step.rows) == list(range(len(LENGTHS)))
    assert all(len(ranks) == 2 for ranks in steps)


def test_collate_lays_segments_end_to_end():
    split = make_split([3, 5, 2])
    batch = collate_pack(split, MicroStep((2, 0), 7), first_position=2)
    assert batch.cu_seqlens.tolist() == [0, 2, 5]
    assert batch.position_ids.tolist() == [2, 3, 2, 3, 4]
    assert batch.input_ids.tolist() == [*split.token_ids[8:10], *split.token_ids[0:3]]
    assert (batch.max_seqlen, batch.step_num_segments) == (3, 7)
    assert batch.labels.tolist() == [0, 0]
    assert batch.example_ids.tolist() == [2, 0]
    assert batch.cu_seqlens.dtype == torch.int32


def test_a_ghost_is_not_scored():
    batch = collate_pack(make_split([3, 5, 2]), MicroStep((), 4))
    assert batch.is_ghost
    assert batch.labels.tolist() == [IGNORE_INDEX]
    assert batch.example_ids.tolist() == [-1]


def test_p03_an_example_without_tokens_is_refused():
    with pytest.raises(AssertionError, match="without tokens"):
        collate_pack(make_split([7, 0, 10, 1]), MicroStep((0, 1), 2))


def test_p03_one_token_segments_keep_their_place():
    batch = collate_pack(make_split([7, 10, 1]), MicroStep((0, 1, 2), 3))
    assert batch.cu_seqlens.diff().tolist() == [7, 10, 1]
    assert batch.num_segments == 3
