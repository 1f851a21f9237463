"""One process = 2 DDP processes = 2 DeepSpeed processes: the same loss a step, the same scores, the same weights."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from lightning_nli.data.sample import sample_corpus

WORKER = Path(__file__).parent / "distributed_worker.py"
TIMEOUT_S = 240
COMMON = "--model tiny --epochs 2 --lr 1e-3 --precision fp32 --accelerator cpu --max-length 64 --dropout 0".split()
DATA = ["--data", "sample:240"]
# Packs of 200 tokens hold 2 to 6 examples, and accumulation makes uneven windows with ghosts at the end.
UNEVEN = ["--max-tokens", "200", "--clip", "0"]  # no clipping: it would hide a factor
STRATEGIES = ("ddp", "deepspeed_stage_1", "deepspeed_stage_2", "deepspeed_stage_3")
# Group risks: one domain with over 100 training rows, and the rest, make two groups; label x right or wrong makes four.
OBJECTIVES = {
    "vrex": (["--data", "domains.csv", "--objective", "vrex=100", "--clip", "0"], 32),
    "group-dro": ([*DATA, "--objective", "group_dro:bias=50", "--clip", "0"], 16),
    # A row and its swaps stay on one rank, and the two ranks need not have equally many rows.
    "ranking": (
        "--data sample:120 --augment premise_swap=1+1,balance=weight --objective ranking=300 --clip 0".split(),
        16,
    ),
}
GROUPED = [("vrex", "ddp"), ("group-dro", "deepspeed_stage_2"), ("ranking", "deepspeed_stage_2")]

BY_EXAMPLES = ["--batch-size", "4", "--accumulate", "2"]
ON_ONE = [
    {"name": "sgd-one", "optimizer": "sgd", "settings": [*DATA, *UNEVEN, "--accumulate", "4"]},
    {"name": "adam-one", "optimizer": "adamw", "settings": [*DATA, "--batch-size", "8", "--accumulate", "2"]},
    {"name": "sgd-acc2", "optimizer": "sgd", "settings": [*DATA, "--batch-size", "8", "--accumulate", "2"]},
    {"name": "sgd-acc4", "optimizer": "sgd", "settings": [*DATA, "--batch-size", "4", "--accumulate", "4"]},
    *(
        {"name": f"{name}-one", "optimizer": "sgd", "settings": [*settings, "--batch-size", str(width)]}
        for name, (settings, width) in OBJECTIVES.items()
    ),
]
ON_TWO = [
    {
        "name": f"{name}-{strategy}",
        "optimizer": optimizer,
        "settings": [*DATA, *settings, "--devices", "2", "--strategy", strategy],
    }
    for strategy in STRATEGIES
    for name, optimizer, settings in (
        ("sgd", "sgd", [*UNEVEN, "--accumulate", "2"]),
        ("adam", "adamw", BY_EXAMPLES),
    )
] + [
    {
        "name": f"{name}-{strategy}",
        "optimizer": "sgd",
        "settings": [*settings, "--batch-size", str(width // 2), "--devices", "2", "--strategy", strategy],
    }
    for name, strategy in GROUPED
    for settings, width in (OBJECTIVES[name],)
]


def write_domains(path: Path) -> None:
    """160 rows of which 130 are of one domain."""
    rows = sample_corpus(160, seed=0).select("premise", "hypothesis", "label", "law_id")
    domain = pl.when(pl.int_range(pl.len()) < 130).then(pl.lit("education")).otherwise(pl.lit("other"))
    rows.with_columns(domain=domain).write_csv(path)


def start(jobs: list[dict[str, Any]], folder: Path, world_size: int) -> list[subprocess.Popen[str]]:
    file = folder / f"jobs-{world_size}.json"
    file.write_text(json.dumps([job | {"settings": [*COMMON, *job["settings"]]} for job in jobs]))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(world_size), "NODE_RANK": "0"}
    ranks = [shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(world_size)]
    command = [sys.executable, str(WORKER), str(file), str(folder)]
    return [
        subprocess.Popen(
            command,
            text=True,
            stderr=subprocess.PIPE,
            env=os.environ | (rank if world_size > 1 else {}),
            cwd=folder,
        )
        for rank in ranks
    ]


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> dict[str, dict[str, Any]]:
    """All trainings, in one process and in two: starting processes is what takes the time."""
    folder = tmp_path_factory.mktemp("strategies")
    write_domains(folder / "domains.csv")
    for world_size, jobs in ((1, ON_ONE), (2, ON_TWO)):
        processes = start(jobs, folder, world_size)
        try:
            errors = [process.communicate(timeout=TIMEOUT_S)[1] for process in processes]
        finally:
            for process in processes:
                process.kill()
        assert [process.returncode for process in processes] == [0] * world_size, "\n".join(errors)[-5000:]
    found = {}
    for job in [*ON_ONE, *ON_TWO]:
        ranks = [json.loads(path.read_text()) for path in sorted(folder.glob(f"{job['name']}.rank*.json"))]
        found[job["name"]] = json.loads((folder / f"{job['name']}.json").read_text()) | {"ranks": ranks}
    return found


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
def test_plain_sgd_with_accumulation_and_uneven_packs_is_the_same_in_every_strategy(runs, strategy):
    """Adam would hide a gradient that is off by a factor; SGD does not."""
    one = runs["sgd-one"]
    assert one["losses"][0] != pytest.approx(one["losses"][-1], rel=1e-3)  # it does learn
    assert_same_training(one, runs[f"sgd-{strategy}"], rtol=2e-5)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_adamw_by_examples_is_the_same_in_every_strategy(runs, strategy):
    assert_same_training(runs["adam-one"], runs[f"adam-{strategy}"], rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "strategy"), GROUPED)
def test_losses_over_several_rows_are_those_of_the_whole_step_in_every_strategy(runs, name, strategy):
    assert_same_training(runs[f"{name}-one"], runs[f"{name}-{strategy}"], rtol=5e-5)


@pytest.mark.slow
def test_accumulation_alone_changes_nothing(runs):
    """One process, 2 x 8 examples a step = 4 x 4 examples a step: the same gradient."""
    assert_same_training(runs["sgd-acc2"], runs["sgd-acc4"], rtol=2e-5)


@pytest.mark.slow
def test_s02_s03_ranks_share_the_rows_and_epochs_differ(runs):
    first, second = runs["sgd-ddp"]["ranks"]
    for epoch in range(2):
        mine, theirs = first["rows"][epoch], second["rows"][epoch]
        assert not set(mine) & set(theirs)
        assert sorted(mine + theirs) == list(range(len(mine) + len(theirs)))
        assert len(mine + theirs) > 100
    assert first["rows"][0] != first["rows"][1]
    assert runs["sgd-deepspeed_stage_2"]["ranks"] == runs["sgd-ddp"]["ranks"]  # order depends on the settings alone


@pytest.mark.slow
def test_s04_ranks_take_the_same_number_of_steps(runs):
    run = runs["sgd-ddp"]
    assert {rank["steps"] for rank in run["ranks"]} == {len(run["losses"])}
    assert len(run["losses"]) == 2 * run["micro_steps"] // 2
