"""Rows that stay together: whole bundles in one pack, every row once, the same steps for any number of ranks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from lightning_nli.data.bundles import deal_bundles, fill_in_order
from lightning_nli.data.packing import PackPlan, count_micro_steps, plan_steps

LENGTHS = np.array([(7 * i) % 60 + 4 for i in range(101)])
# Twenty rows with two each that were made from them, and 41 single ones, in no order of rows.
BUNDLES = (
    *((row, row + 1, 100 - row) for row in range(0, 40, 2)),
    *((row,) for row in range(40, 101) if row % 2 or row < 62),
)
PLANS = [
    PackPlan(8, None, bundles=BUNDLES),
    PackPlan(4, None, world_size=2, accumulate=3, bundles=BUNDLES),
    PackPlan(None, 200, bundles=BUNDLES),
    PackPlan(None, 190, world_size=3, accumulate=2, bundles=BUNDLES),
]


def test_the_bundles_of_these_tests_hold_every_row_once():
    assert sorted(row for bundle in BUNDLES for row in bundle) == list(range(101))
    assert sum(len(bundle) == 3 for bundle in BUNDLES) == 20


@pytest.mark.parametrize("plan", PLANS)
def test_rows_of_a_bundle_share_a_pack_and_every_row_stands_once_in_an_epoch(plan):
    num = count_micro_steps(LENGTHS, plan, epochs=3)
    assert num % plan.accumulate == 0
    orders = []
    for epoch in range(3):
        steps = plan_steps(LENGTHS, plan, epoch=epoch, num_micro_steps=num)
        packs = [set(step.rows) for ranks in steps for step in ranks]
        assert len(packs) == num * plan.world_size
        assert sorted(row for pack in packs for row in pack) == list(range(101))
        for bundle in BUNDLES:
            assert sum(set(bundle) <= pack for pack in packs) == 1
        if plan.max_tokens is not None:
            assert max(sum(int(LENGTHS[row]) for row in pack) for pack in packs) <= plan.max_tokens
        orders.append(steps)
    assert orders[0] != orders[1]
    assert orders[0] == plan_steps(LENGTHS, plan, epoch=0, num_micro_steps=num)
    assert orders[0] != plan_steps(LENGTHS, replace(plan, seed=2), epoch=0, num_micro_steps=num)


@pytest.mark.parametrize("plan", PLANS)
def test_step_totals_count_the_segments_of_the_optimizer_step(plan):
    num = count_micro_steps(LENGTHS, plan, epochs=2)
    steps = plan_steps(LENGTHS, plan, epoch=1, num_micro_steps=num)
    for start in range(0, num, plan.accumulate):
        window = [step for ranks in steps[start : start + plan.accumulate] for step in ranks]
        sizes = [len(step.rows) for step in window]
        assert {step.step_num_segments for step in window} == {sum(sizes)} != {0}
        if plan.batch_size is not None:
            assert sum(sizes) <= plan.batch_size * len(window)
            assert max(sizes) - min(sizes) <= 3  # as even as bundles of three allow


def test_steps_are_full_and_the_same_for_any_number_of_ranks():
    found = []
    for batch_size, world_size, accumulate in ((12, 1, 1), (6, 2, 1), (3, 2, 2)):
        plan = PackPlan(batch_size, None, world_size=world_size, accumulate=accumulate, bundles=BUNDLES)
        num = count_micro_steps(LENGTHS, plan, epochs=2)
        assert num == accumulate * 9  # 101 rows: single ones fill every gap
        steps = plan_steps(LENGTHS, plan, epoch=1, num_micro_steps=num)
        windows = [steps[start : start + accumulate] for start in range(0, num, accumulate)]
        found.append([sorted(row for ranks in one for step in ranks for row in step.rows) for one in windows])
    assert found[0] == found[1] == found[2]
    assert [len(rows) for rows in found[0]] == [12] * 8 + [5]


def test_groups_are_filled_in_order_by_hand():
    """Capacity 5: 3 and 2; then 3 leaves 2, for which the next 3 waits and 1 and 1 go ahead of it."""
    assert fill_in_order([3, 2, 3, 3, 1, 1, 2], capacity=5) == [[0, 1], [2, 4, 5], [3, 6]]
    assert fill_in_order([3, *[4] * 70, 2], capacity=5)[0] == [0]  # what stands too far behind stays there
    assert fill_in_order([], capacity=5) == []
    with pytest.raises(ValueError, match="need 6"):
        fill_in_order([1, 6], capacity=5)


def test_hands_are_dealt_by_hand():
    """Rows 3 and 3, then the pair to the first, the single ones to the hand with fewer rows, then fewer tokens."""
    lengths = np.array([9, 9, 9, 5, 5, 5, 4, 4, 30, 2])
    dealt = deal_bundles([(9,), (6, 7), (0, 1, 2), (8,), (3, 4, 5)], lengths, 2)
    assert dealt == [[0, 1, 2, 8, 9], [3, 4, 5, 6, 7]]


def test_an_epoch_of_fewer_steps_is_cut_between_bundles():
    lengths = np.array([10] * 9)
    plan = PackPlan(None, 60, bundles=((0, 1, 2), (3, 4, 5), (6, 7, 8)))
    assert count_micro_steps(lengths, plan, epochs=1) == 2
    steps = plan_steps(lengths, plan, epoch=0, num_micro_steps=3)
    assert sorted(tuple(sorted(ranks[0].rows)) for ranks in steps) == [(0, 1, 2), (3, 4, 5), (6, 7, 8)]
