"""One process = 2 DDP processes = 2 DeepSpeed processes: the same loss a step, the same scores, the same weights."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

WORKER = Path(__file__).parent / "distributed_worker.py"
TIMEOUT_S = 240
COMMON = (
    "--data sample:240 --model tiny --epochs 2 --lr 1e-3 --precision fp32 --accelerator cpu --max-length 64".split()
)
# Packs of 200 tokens hold 2 to 6 examples, and accumulation makes uneven windows with ghosts at the end.
UNEVEN = ["--max-tokens", "200", "--clip", "0"]  # no clipping: it would hide a factor
STRATEGIES = ("ddp", "deepspeed_stage_1", "deepspeed_stage_2", "deepspeed_stage_3")


@pytest.fixture(scope="module")
def run_worker(tmp_path_factory):
    folder = tmp_path_factory.mktemp("strategies")

    @cache
    def run(name: str, optimizer: str, *settings: str) -> dict[str, Any]:
        out = folder / f"{name}.json"
        command = [
            sys.executable,
            str(WORKER),
            str(out),
            optimizer,
            *COMMON,
            *settings,
            "--run-dir",
            str(folder / name),
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
        result = json.loads(out.read_text())
        ranks = sorted(folder.glob(f"{name}.rank*.json"))
        return result | {"ranks": [json.loads(path.read_text()) for path in ranks]}

    return run


def assert_same_training(one: dict[str, Any], other: dict[str, Any], *, rtol: float) -> None:
    assert len(one["losses"]) == len(other["losses"]) > 4
    np.testing.assert_allclose(other["losses"], one["losses"], rtol=rtol)
    assert len(one["scores"]) == len(other["scores"]) == 2
    for mine, theirs in zip(one["scores"], other["scores"], strict=True):
        assert mine["id_val/accuracy"] == theirs["id_val/accuracy"]
        assert mine["id_val/macro_f1"] == pytest.approx(theirs["id_val/macro_f1"])
        assert mine["id_val/loss"] == pytest.approx(theirs["id_val/loss"], rel=rtol)
    for name, weights in one["weights"].items():
        np.testing.assert_allclose(other["weights"][name], weights, rtol=1e-3, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_plain_sgd_with_accumulation_and_uneven_packs_is_the_same_in_every_strategy(run_worker, strategy):
    """Adam would hide a gradient that is off by a factor; SGD does not."""
    one = run_worker("sgd-one", "sgd", *UNEVEN, "--accumulate", "4")
    assert one["losses"][0] != pytest.approx(one["losses"][-1], rel=1e-3)  # it does learn
    two = run_worker(f"sgd-{strategy}", "sgd", *UNEVEN, "--accumulate", "2", "--devices", "2", "--strategy", strategy)
    assert_same_training(one, two, rtol=2e-5)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "deepspeed_stage_2", "deepspeed_stage_3"])
def test_adamw_by_examples_is_the_same_in_every_strategy(run_worker, strategy):
    one = run_worker("adam-one", "adamw", "--batch-size", "8", "--accumulate", "2")
    two = run_worker(
        f"adam-{strategy}", "adamw", "--batch-size", "4", "--accumulate", "2", "--devices", "2", "--strategy", strategy
    )
    assert_same_training(one, two, rtol=1e-4)


@pytest.mark.slow
def test_accumulation_alone_changes_nothing(run_worker):
    """One process, 2 x 8 examples a step = 4 x 4 examples a step: the same gradient."""
    two = run_worker("sgd-acc2", "sgd", "--batch-size", "8", "--accumulate", "2")
    four = run_worker("sgd-acc4", "sgd", "--batch-size", "4", "--accumulate", "4")
    assert_same_training(two, four, rtol=2e-5)


@pytest.mark.slow
def test_s02_s03_ranks_share_the_rows_and_epochs_differ(run_worker):
    run = run_worker("sgd-ddp", "sgd", *UNEVEN, "--accumulate", "2", "--devices", "2", "--strategy", "ddp")
    first, second = run["ranks"]
    for epoch in range(2):
        mine, theirs = first["rows"][epoch], second["rows"][epoch]
        assert not set(mine) & set(theirs)
        assert sorted(mine + theirs) == list(range(len(mine) + len(theirs)))
        assert len(mine + theirs) > 100
    assert first["rows"][0] != first["rows"][1]
    again = run_worker(
        "sgd-deepspeed_stage_2",
        "sgd",
        *UNEVEN,
        "--accumulate",
        "2",
        "--devices",
        "2",
        "--strategy",
        "deepspeed_stage_2",
    )
    assert again["ranks"] == run["ranks"]  # the order depends on the settings alone


@pytest.mark.slow
def test_s04_ranks_take_the_same_number_of_steps(run_worker):
    run = run_worker("sgd-ddp", "sgd", *UNEVEN, "--accumulate", "2", "--devices", "2", "--strategy", "ddp")
    assert {rank["steps"] for rank in run["ranks"]} == {len(run["losses"])}
    assert len(run["losses"]) == 2 * run["micro_steps"] // 2
