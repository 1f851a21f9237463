"""Runners of a board, killed and told to stop, here and on Ray: the same records whoever ran a cell. Jobs, plans."""

from __future__ import annotations

import io
import json
import multiprocessing
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from lightning_nli.cli.board_progress import BoardView, board_progress
from lightning_nli.cli.main import EXIT_SAVED, main
from lightning_nli.crossdomain.cost import Speed, measured_speeds, plan_costs
from lightning_nli.crossdomain.records import STALE_S, add_cell, held_cells, lease, read_json, read_records
from lightning_nli.crossdomain.runner import Board, make_board, run_cells
from lightning_nli.crossdomain.suite import check_suite

SUITE = {
    "name": "t",
    "version": 1,
    "data": "sample:600",
    "domains": ["administrative_organization", "culture_society"],
    "reference_folds": 2,
    "models": {"swapped": {"model": "tiny", "augment": "premise_swap=1+2", "epochs": 3}},
}
MODELS = ["hyponly-v1", "overlap-v1", "majority"]
NUM_KILLS = 20
LOADED = ["lightning_nli.training.run", "lightning_nli.crossdomain.runner", "lightning_nli.cli.cross_domain_run"]
LOADED += ["sklearn.linear_model", "sklearn.feature_extraction.text", "scipy.sparse", "scipy.stats", "yaml", "pytest"]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> Board:
    """Every cell of the linear models, run in this process."""
    made = make_board(tmp_path_factory.mktemp("undisturbed") / "b", check_suite(SUITE, "test"))
    assert run_cells(made, made.cells(MODELS)) == 0
    return made


def outcomes(folder: Path, models: list[str]) -> dict[str, Any]:
    """Records by cell, and the predictions' bytes, without what a clock or the memory decides."""
    found = {}
    for record in read_records(folder):
        if record["model"] in models:
            del record["wall_s"], record["result"]["cost"]
            files = sorted((folder / "cells" / record["cell_id"] / "predictions").iterdir())
            found[record["cell_id"]] = (record, {file.name: file.read_bytes() for file in files})
    return found


@pytest.fixture(scope="module")
def starter() -> Iterator[Any]:
    """Starts runners whose libraries are loaded already: `lnli cross-domain work` in a process of its own."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(LOADED)

    started: list[ForkServerProcess] = []

    def start(folder: Path) -> ForkServerProcess:
        words = ["cross-domain", "work", str(folder), "--models", ",".join(MODELS)]
        started.append(context.Process(target=_leave_with_code, args=(words,)))
        started[-1].start()
        return started[-1]

    yield start
    for runner in started:
        runner.kill()


def _leave_with_code(words: list[str]) -> None:
    sys.exit(main(words))


def wait_for_cell(folder: Path, runner: ForkServerProcess) -> None:
    while not any(held.runner.endswith(f":{runner.pid}") for held in held_cells(folder)):
        assert runner.is_alive(), f"a runner left with {runner.exitcode} before it had a cell"
        time.sleep(0.01)


@pytest.mark.slow
def test_a_runner_killed_at_random_ends_with_exactly_the_records_of_one_undisturbed(undisturbed, starter, tmp_path):
    made = make_board(tmp_path / "killed", undisturbed.suite)
    cell_s = sorted(record["wall_s"] for record in read_records(undisturbed.folder))[len(MODELS)]
    draw = random.Random(5)
    for _ in range(NUM_KILLS):
        runner = starter(made.folder)
        wait_for_cell(made.folder, runner)
        time.sleep(draw.uniform(0, cell_s))
        runner.kill()
        runner.join()
        assert runner.exitcode == -9  # it was in the middle of something
        for file in made.folder.glob("cells/*/lease.json"):  # a minute passes
            os.utime(file, (time.time() - STALE_S - 1,) * 2)
    left = len(undisturbed.cells(MODELS)) - len(read_records(made.folder))
    last = starter(made.folder)
    last.join()
    assert last.exitcode == 0 and left > 0
    assert outcomes(made.folder, MODELS) == outcomes(undisturbed.folder, MODELS)
    assert not list(made.folder.glob("cells/*/run-*")) and not list(made.folder.glob("cells/*/lease.json"))


@pytest.mark.slow
def test_a_runner_told_to_stop_gives_its_cell_back_and_leaves_with_75(undisturbed, starter, tmp_path):
    made = make_board(tmp_path / "stopped", undisturbed.suite)
    runner = starter(made.folder)
    wait_for_cell(made.folder, runner)
    runner.terminate()
    runner.join()
    assert runner.exitcode == EXIT_SAVED
    assert not held_cells(made.folder) and not list(made.folder.glob("cells/*/run-*"))
    assert {record["status"] for record in read_records(made.folder)} <= {"finished"}  # stopped is not failed
    assert len(read_records(made.folder)) < len(made.cells(MODELS))


@pytest.mark.slow
def test_local_runners_and_ray_give_the_records_of_one_process(undisturbed, tmp_path):
    file = tmp_path / "s.yaml"
    file.write_text(json.dumps(SUITE), encoding="utf-8")
    models = ["hyponly-v1", "majority"]
    run = ["cross-domain", "run", "--suite", str(file), "--models", ",".join(models)]
    wanted = outcomes(undisturbed.folder, models)
    assert len(wanted) == 2 * len(undisturbed.folds)
    for launcher in ("local", "ray"):
        board = tmp_path / launcher
        words = [*run, "--launcher", launcher, "--parallel", "2", "--board", str(board)]
        command = [sys.executable, "-m", "lightning_nli", *words]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-2000:]
        assert outcomes(board, models) == wanted, launcher


# SLURM, as far as scripts and a `sbatch` that takes note of them go


SLURM = ["--launcher", "slurm", "--parallel", "3", "--time", "60", "--partition", "gpu", "--gpus-per-node", "1"]


@pytest.fixture
def asked(tmp_path, monkeypatch) -> list[str]:
    monkeypatch.chdir(tmp_path)
    small = SUITE | {"domains": ["culture_society"], "references": False}
    (tmp_path / "s.yaml").write_text(json.dumps(small), encoding="utf-8")
    return ["--suite", "s.yaml", "--models", "hyponly-v1,majority", "--board", "b"]


def test_slurm_scripts_are_those_of_submit_and_a_dry_run_makes_nothing(asked, tmp_path, capsys):
    run = ["cross-domain", "run", *asked, "--retry-failed"]
    assert main([*run, *SLURM, "--dry-run"]) == 0
    scripts = capsys.readouterr().out
    submit = ["submit", "cross-domain", "--array", "3", *SLURM[4:], "--dry-run", "--", *asked, "--retry-failed"]
    assert main(submit) == 0 and capsys.readouterr().out == scripts
    assert "#SBATCH --array=0-2" in scripts and "#SBATCH --partition=gpu" in scripts
    assert "srun --kill-on-bad-exit=1 lnli cross-domain work b --models hyponly-v1,majority --retry-failed" in scripts
    assert scripts.count("--gres=gpu:1") == 1 and "lnli leaderboard b --html b/board.html --force" in scripts
    assert not (tmp_path / "b").exists() and not (tmp_path / "logs").exists()


def test_slurm_jobs_are_submitted_once_and_followed_by_their_ids(asked, tmp_path, monkeypatch, capsys):
    sbatch = tmp_path / "bin" / "sbatch"
    sbatch.parent.mkdir()
    sbatch.write_text(f'#!/bin/sh\necho "$2" >> {tmp_path}/asked\nwc -l < {tmp_path}/asked\n', encoding="utf-8")
    sbatch.chmod(0o755)
    monkeypatch.setenv("PATH", f"{sbatch.parent}:{os.environ['PATH']}")
    run = ["cross-domain", "run", *asked]
    assert main([*run, *SLURM]) == 0
    said = capsys.readouterr().out
    assert "b: 2 of 2 cells to run" in said and "job 1: " in said and "job 2: " in said and "squeue -j 1" in said
    assert "logs/lnli-cross-domain-1_*.out" in said and "b/board.html" in said
    first, second = (Path(line).read_text() for line in (tmp_path / "asked").read_text().splitlines())
    assert "--dependency" not in first and "#SBATCH --dependency=afterany:1" in second
    assert len(list(tmp_path.glob("b/cells/*/cell.json"))) == 2 and not read_records(tmp_path / "b")
    assert main(run) == 0  # what the jobs would do
    capsys.readouterr()
    assert main([*run, *SLURM]) == 0 and "0 of 2 cells to run" in capsys.readouterr().out
    assert len((tmp_path / "asked").read_text().splitlines()) == 2


def test_options_of_another_launcher_are_refused_by_name(asked, tmp_path, capsys):
    run = ["cross-domain", "run", *asked]
    for words, message in {
        ("--partition", "gpu"): "--partition describe a SLURM job",
        ("--ray-address", "x:1"): "--ray-address is for --launcher ray",
        ("--launcher", "slurm", "--dry-run"): "needs its limit: --time",
        ("--parallel", "0"): "--parallel must be at least 1",
        ("--like", "x"): "--like is for a plan",
        ("--launcher", "slurm", "--time", "soon", "--dry-run"): "--time 'soon'",
        ("--launcher", "slurm", "--time", "9", "--gpus-per-node", "2"): "runs in one process",
    }.items():
        assert main([*run, *words]) == 2
        assert message in capsys.readouterr().err
    assert not (tmp_path / "b").exists()


# Progress and plans


def test_the_live_view_has_a_line_a_runner_and_the_cells_done(undisturbed, tmp_path):
    made = make_board(tmp_path / "b", undisturbed.suite)
    cells = made.cells(["hyponly-v1"])
    assert run_cells(made, cells[:2]) == 0
    for cell in cells:
        add_cell(made.folder, cell)
    shown = io.StringIO()
    console = Console(file=shown, force_terminal=True, width=120, color_system=None)
    view = BoardView(made.folder, cells)
    with lease(made.folder, cells[3].cell_id):
        console.print(view)
        with board_progress(made.folder, cells, quiet=False, console=console):
            pass
    assert f"{os.uname().nodename}:{os.getpid()}" in shown.getvalue() and cells[3].fold in shown.getvalue()
    assert f"2/{len(cells)}" in shown.getvalue() and "hyponly-v1" in shown.getvalue()
    idle = io.StringIO()
    console = Console(file=idle, force_terminal=True, width=120, color_system=None)
    console.print(view)
    assert str(os.getpid()) not in idle.getvalue()
    with board_progress(made.folder, cells, quiet=True, console=console):
        pass
    assert idle.getvalue().count("2/") == 1  # quiet shows nothing


def test_costs_are_those_of_finished_cells_or_unknown(undisturbed):
    cells = undisturbed.cells(["hyponly-v1", "swapped"])
    folds = undisturbed.folds

    def record(model: str, wall_s: float, training_s: float | None, rate: float | None) -> dict[str, Any]:
        cost = {"training_s": training_s, "train_examples_per_s": rate}
        return {"status": "finished", "model": model, "wall_s": wall_s, "result": {"cost": cost}}

    speeds = measured_speeds([record("swapped", 30, 10, 20.0), record("swapped", 50, 30, 40.0), {"status": "failed"}])
    assert speeds == {"swapped": Speed(cells=2, examples_per_s=(200 + 1200) / 40, other_s=20.0)}
    done = [cell.cell_id for cell in cells if cell.model == "swapped"][:2]
    linear, swapped = plan_costs(undisturbed.pool, folds, cells, selection="id_val", finished=done, speeds=speeds)
    assert linear.seconds is None and linear.finished == 0 and linear.cells == len(folds)
    assert linear.training_rows == sum(len(fold.train) for fold in folds.values())
    assert linear.scored_rows == sum(len(fold.test) + len(fold.id_val) for fold in folds.values())
    left = [folds[cell.fold] for cell in cells if cell.model == "swapped" and cell.cell_id not in done]
    labels = dict(undisturbed.pool.frame.select("example_id", "label").iter_rows())
    entailed = sum(labels[id_] == "entailment" for fold in left for id_ in fold.train)
    assert swapped.training_rows == 3 * (sum(len(fold.train) for fold in left) + 3 * entailed)
    assert swapped.finished == 2
    assert swapped.seconds == pytest.approx(20 * len(left) + swapped.training_rows / 35)


def test_the_plan_command_reads_the_board_or_one_like_it(undisturbed, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s.yaml").write_text(json.dumps(SUITE), encoding="utf-8")
    plan = ["cross-domain", "plan", "--suite", "s.yaml", "--models", "hyponly-v1,swapped"]
    assert main(plan) == 0
    assert (
        "unknown until a first cell" in " ".join(capsys.readouterr().out.split()) and not (tmp_path / "boards").exists()
    )
    assert main([*plan, "--json", "--like", str(undisturbed.folder)]) == 0
    linear, swapped = json.loads(capsys.readouterr().out)["models"]
    walls = [r["wall_s"] for r in read_records(undisturbed.folder) if r["model"] == "hyponly-v1"]
    assert linear["finished"] == 0 and linear["seconds"] == pytest.approx(sum(walls)) and swapped["seconds"] is None
    assert main([*plan, "--json", "--board", str(undisturbed.folder)]) == 0
    linear, _ = json.loads(capsys.readouterr().out)["models"]
    assert linear["finished"] == linear["cells"] == len(walls) and linear["seconds"] == 0
    assert main(["cross-domain", "run", *plan[2:], "--dry-run", "--like", str(undisturbed.folder)]) == 0
    assert f"of one runner (from {len(walls)} finished cells of {undisturbed.folder})" in capsys.readouterr().out
    assert read_json(undisturbed.folder / "suite.json")["key"]["suite"] == "t"
