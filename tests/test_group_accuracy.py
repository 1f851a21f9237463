"""Group accuracy inside the epoch: exact over batches and processes, and equal to that of the final scores."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from torch import distributed as dist

from lightning_nli.epoch_metrics import GroupAccuracy
from lightning_nli.metrics import group_indices, score
from lightning_nli.types import IGNORE_INDEX, WILLS

NUM_ROWS = 61


def answered() -> tuple[torch.Tensor, torch.Tensor, pl.DataFrame]:
    """Logits, gold indices, and the predictions table: groups of 1 to 6 rows in mixed order, some rows in none."""
    random = np.random.default_rng(3)
    labels = torch.from_numpy(random.integers(0, 3, NUM_ROWS))
    groups = [f"g{int(number) // 4}" if number % 7 else None for number in random.permutation(NUM_ROWS)]
    logits = torch.nn.functional.one_hot(labels, 3).float()
    wrong = torch.from_numpy(random.random(NUM_ROWS) < 0.15)
    logits[wrong] = logits[wrong].roll(1, dims=1)
    table = pl.DataFrame(
        {
            "label": [WILLS.names[index] for index in labels],
            "predicted": [WILLS.names[index] for index in logits.argmax(1)],
            "group_id": groups,
        }
    )
    return logits, labels, table


def count(rows: list[int], metric: GroupAccuracy, batch_size: int) -> None:
    logits, labels, _ = answered()
    for start in range(0, len(rows), batch_size):
        place = torch.tensor(rows[start : start + batch_size])
        metric.update(logits[place], labels[place], place)


@pytest.mark.parametrize("batch_size", [1, 5, NUM_ROWS])
def test_it_equals_the_final_scores_whatever_the_batches(batch_size):
    _, _, table = answered()
    metric = GroupAccuracy(group_indices(table))
    count(list(range(NUM_ROWS)), metric, batch_size)
    expected = score(table, WILLS)
    assert metric.compute() == {"group_accuracy": expected.group_accuracy, "num_groups": expected.num_groups}
    assert 0.3 < expected.group_accuracy < 0.8 and expected.num_groups == table["group_id"].n_unique() - 1
    metric.reset()
    assert metric.compute() == {}


def test_ghosts_unlabelled_rows_and_unseen_groups_are_not_counted():
    metric = GroupAccuracy(np.array([0, 0, 1, 1, 2, -1]))
    right, wrong = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]])
    metric.update(wrong, torch.tensor([0]), torch.tensor([-1]))  # a ghost that lies about row -1
    metric.update(wrong, torch.tensor([IGNORE_INDEX]), torch.tensor([4]))
    metric.update(wrong, torch.tensor([0]), torch.tensor([5]))  # of no group
    assert metric.compute() == {}
    metric.update(torch.cat([right, right, right, wrong]), torch.zeros(4, dtype=torch.long), torch.arange(4))
    assert metric.compute() == {"group_accuracy": 0.5, "num_groups": 2}


def test_one_row_in_another_batch_fails_its_group():
    metric = GroupAccuracy(np.array([0, 0]))
    metric.update(torch.tensor([[1.0, 0.0]]), torch.tensor([0]), torch.tensor([0]))
    assert metric.compute() == {"group_accuracy": 1.0, "num_groups": 1}
    metric.update(torch.tensor([[1.0, 0.0]]), torch.tensor([1]), torch.tensor([1]))
    assert metric.compute() == {"group_accuracy": 0.0, "num_groups": 1}


def count_share(rank: int, world_size: int, folder: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/store{world_size}", rank=rank, world_size=world_size)
    metric = GroupAccuracy(group_indices(answered()[2]))
    count([row for row in range(NUM_ROWS) if (row * row) % 3 % world_size == rank], metric, 4)  # groups straddle ranks
    Path(folder, f"{rank}.json").write_text(json.dumps(metric.compute()))
    dist.destroy_process_group()


def test_groups_that_straddle_processes_are_judged_once(tmp_path):
    expected = score(answered()[2], WILLS)
    torch.multiprocessing.spawn(count_share, args=(2, str(tmp_path)), nprocs=2)
    for rank in range(2):
        found = json.loads((tmp_path / f"{rank}.json").read_text())
        assert found == {"group_accuracy": expected.group_accuracy, "num_groups": expected.num_groups}
