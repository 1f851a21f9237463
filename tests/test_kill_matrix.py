"""Six cells of the kill matrix (`make reliability` runs all), and what else may happen to the processes of a run."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent / "reliability"))
import ranks

from lightning_nli.training.index import CheckpointIndex
from lightning_nli.training.manifest import find_damage, read_manifest

pytestmark = pytest.mark.slow

ONE, DDP, STAGE_2, _ = ranks.SETUPS
SIX = [
    (ONE, "TERM", "step"),
    (ONE, "USR2", "validation"),
    (ONE, "KILL", "write"),
    (DDP, "TERM", "validation"),
    (DDP, "KILL", "step"),
    (STAGE_2, "USR2", "write"),
]


@pytest.fixture(scope="module")
def clean():
    """Calls functions in a process without threads: ranks are forked, and the tests before this left threads here."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        yield lambda function, *arguments: pool.apply(function, arguments)


@pytest.fixture(scope="module")
def undisturbed(clean, tmp_path_factory):
    """An undisturbed run of each setup, made when it is first asked for."""
    folder, made = tmp_path_factory.mktemp("undisturbed"), {}

    def get(setup: str) -> Path:
        if setup not in made:
            made[setup] = folder / f"run-{len(made)}"
            outcome = clean(ranks.fit, made[setup], setup)
            assert set(outcome.codes) == {0}, outcome.errors
        return made[setup]

    return get


@pytest.mark.parametrize(("setup", "name", "moment"), SIX)
def test_a_disturbed_run_ends_as_the_undisturbed_one(clean, undisturbed, tmp_path, setup, name, moment):
    cell = clean(ranks.run_cell, tmp_path / "run", undisturbed(setup), setup, name, moment)
    assert cell["is_as_wanted"], cell
    assert cell["last_after_first_s"] < 60
    assert cell["resumed_from_step"] >= 6
    names = {path.name for path in (tmp_path / "run" / "checkpoints").iterdir()}
    saved = {entry.name for entry in CheckpointIndex.read(tmp_path / "run" / "checkpoints").saved}
    assert names == saved | {f"{name}.manifest.json" for name in saved} | {"index.json"}  # k05: no orphans
    assert len(saved) <= 2  # best and last


@pytest.mark.parametrize("setup", [DDP, STAGE_2])
def test_k06_all_processes_take_part_in_a_save_and_leave_one_whole_checkpoint(undisturbed, setup):
    """A save that only the first process made would hang the other one's barrier."""
    folder = undisturbed(setup) / "checkpoints"
    last = CheckpointIndex.read(folder).last
    assert last is not None
    manifest = read_manifest(folder / last.name)
    assert manifest is not None and find_damage(folder / last.name, manifest) is None
    shards = {path.name for path in folder.glob(f"{last.name}/**/*optim_states.pt")}
    assert len(shards) == (2 if setup == STAGE_2 else 0)


def test_a_second_signal_changes_nothing(clean, undisturbed, tmp_path):
    stopped = clean(ranks.fit, tmp_path / "run", ONE, ranks.Disturbance("TERM", "write", 0, again=True))
    assert stopped.codes == (75,)
    assert clean(ranks.fit, tmp_path / "run", ONE).codes == (0,)
    assert ranks.largest_difference(undisturbed(ONE), tmp_path / "run") == 0


def test_k04_a_run_of_two_processes_goes_on_in_one(clean, tmp_path):
    """The same optimizer steps: 2 x 4 examples x 2 micro-steps, then 1 x 4 x 4."""
    folder = tmp_path / "run"
    without = ["--dropout", "0"]  # each process draws its own
    assert clean(ranks.fit, tmp_path / "whole", DDP, None, without).codes == (0, 0)
    assert clean(ranks.fit, folder, DDP, ranks.Disturbance("TERM", "step", 1), without).codes == (75, 75)
    alone = ["--batch-size", "4", "--accumulate", "4"]
    at = ranks.FIT.index("--accumulate")
    settings = [*ranks.FIT[:at], *ranks.FIT[at + 2 :], *without]
    logs = tmp_path / "logs"
    resumed = clean(ranks.run, [*settings, *alone, "--run-dir", str(folder)], 1, logs)
    assert resumed.codes == (0,), resumed.errors
    assert ranks.largest_difference(tmp_path / "whole", folder) < 1e-4
    other = ["--batch-size", "8", "--accumulate", "4", "--run-dir", str(folder)]
    (folder / "result.json").unlink()
    refused = clean(ranks.run, [*settings, *other], 1, logs)
    assert refused.codes == (2,)
    assert "has a global batch of 16, these settings make 32: give --accumulate 2" in refused.errors


def group_is_alive(group: int) -> bool:
    """Whether a process of the group runs; one that is dead and not yet waited for does not."""
    listed = subprocess.run(["ps", "-eo", "pgid=,stat="], capture_output=True, text=True, check=True).stdout
    return any(int(line.split()[0]) == group and "Z" not in line.split()[1] for line in listed.splitlines())


CRASH = """
import os, sys
from lightning_nli.cli.main import main
from lightning_nli.models.module import NLIModule
step = NLIModule.training_step
def training_step(self, batch, batch_idx):
    if self.global_rank == int(os.environ["CRASHING_RANK"]) and batch_idx == 2:
        raise ZeroDivisionError("this rank is broken")
    return step(self, batch, batch_idx)
NLIModule.training_step = training_step
sys.exit(main(sys.argv[1:]))
"""


def test_a_crash_of_one_process_brings_all_down_with_its_error_first(tmp_path):
    script = tmp_path / "crash.py"
    script.write_text(CRASH)
    fit = "fit --data sample:120 --model tiny --lr 1e-3 --precision fp32 --accelerator cpu --devices 2 --quiet".split()
    command = [sys.executable, str(script), *fit, "--run-dir", str(tmp_path / "run")]
    process = subprocess.Popen(
        command,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"CRASHING_RANK": "1"},
        start_new_session=True,
    )
    assert process.stderr is not None
    try:
        crashed_at, lines = None, []
        for line in process.stderr:
            lines.append(line)
            if crashed_at is None and "this rank is broken" in line:
                crashed_at = time.monotonic()
        code = process.wait(timeout=60)
    finally:
        process.kill()
    errors = "".join(lines)
    assert code == 1, errors
    assert crashed_at is not None and time.monotonic() - crashed_at < 60
    first = next(line for line in lines if "Error" in line)
    assert "this rank is broken" in first, errors
    end = time.monotonic() + 30
    while group_is_alive(process.pid):
        assert time.monotonic() < end, "a process is left"
        time.sleep(0.1)
