"""Batch scripts: what they say, that those kept in `slurm/` are what we write, and what is refused before the queue."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from lightning_nli.cli.main import main
from lightning_nli.launch.examples import EXAMPLES
from lightning_nli.launch.slurm import JobSpec, check_job, render_sbatch
from lightning_nli.types import UserError

ROOT = Path(__file__).resolve().parents[1]
SPEC = JobSpec(name="job", command=("lnli", "fit", "--data", "my file.csv"), time="30")


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_scripts_kept_are_those_we_write(name):
    assert (ROOT / "slurm" / name).read_text(encoding="utf-8") == render_sbatch(EXAMPLES[name])


def test_no_other_script_is_kept():
    assert {path.name for path in (ROOT / "slurm").glob("*.sbatch")} == set(EXAMPLES)


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_scripts_are_good_bash(name):
    subprocess.run(["bash", "-n", str(ROOT / "slurm" / name)], check=True)


def test_q02_the_signal_reaches_the_processes_and_code_75_queues_the_job_again():
    text = render_sbatch(SPEC)
    assert "#SBATCH --signal=USR2@120" in text and "B:" not in text
    assert "srun --kill-on-bad-exit=1 lnli fit --data 'my file.csv'" in text
    assert text.count("scontrol requeue") == 1 and '"$code" -eq 75' in text
    off = render_sbatch(replace(SPEC, requeue=False))
    assert "scontrol" not in off and "--no-requeue" in off
    assert "${SLURM_ARRAY_JOB_ID}_${SLURM_ARRAY_TASK_ID}" in render_sbatch(replace(SPEC, array="0-3%2"))


@pytest.mark.parametrize("code", [0, 1, 75])
def test_the_script_leaves_with_the_code_and_asks_once(tmp_path, code):
    """The script runs for real, with a `srun` and a `scontrol` that note what they are asked."""
    for name, body in {"srun": f"exit {code}", "scontrol": f'echo "$@" >> {tmp_path}/asked'}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / name).chmod(0o755)
    script = tmp_path / "job.sbatch"
    script.write_text(render_sbatch(SPEC))
    env = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_ID": "42"}
    assert subprocess.run(["bash", str(script)], env=env, check=False).returncode == code
    asked = (tmp_path / "asked").read_text() if (tmp_path / "asked").exists() else ""
    assert asked == ("requeue 42\n" if code == 75 else "")


def test_q03_processes_gpus_and_devices_are_one_number(capsys):
    submit = ["submit", "fit", "--gpus-per-node", "4", "--time", "60", "--dry-run", "--"]
    assert main([*submit, "--data", "sample"]) == 0
    text = capsys.readouterr().out
    for part in ("--ntasks-per-node=4", "--gres=gpu:4", "--devices 4", "--num-nodes 1", "--resume auto", "srun "):
        assert part in text
    assert main([*submit, "--data", "sample", "--devices", "2"]) == 2
    assert "--devices 2 after --, but the job has 4" in capsys.readouterr().err
    with pytest.raises(UserError, match="must be as many"):
        check_job(replace(SPEC, gpus_per_node=4, tasks_per_node=1))


def test_q03_a_run_that_slurm_started_with_other_numbers_is_refused_at_once(tmp_path):
    slurm = {"SLURM_JOB_ID": "7", "SLURM_JOB_NAME": "lnli", "SLURM_NTASKS": "2", "SLURM_PROCID": "0"}
    slurm |= {"SLURM_LOCALID": "0", "SLURM_NODEID": "0"}
    command = [sys.executable, "-m", "lightning_nli", "fit", "--devices", "1", "--run-dir", str(tmp_path / "r")]
    done = subprocess.run(command, env=os.environ | slurm, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 2 and "SLURM_NTASKS=2" in done.stderr and "--devices 1" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


@pytest.mark.slow
def test_q04_an_interactive_shell_inside_an_allocation_runs_as_one_local_process(tmp_path):
    slurm = {"SLURM_JOB_ID": "7", "SLURM_JOB_NAME": "bash", "SLURM_NTASKS": "2", "SLURM_PROCID": "0"}
    command = [sys.executable, "-m", "lightning_nli", "fit", "--data", "sample:60", "--method", "majority", "--quiet"]
    command += ["--run-dir", str(tmp_path / "r")]
    done = subprocess.run(command, env=os.environ | slurm, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"time": "soon"}, "--time 'soon'"),
        ({"nodes": 0}, "--nodes must be at least 1"),
        ({"array": "all"}, "--array 'all'"),
        ({"options": ("--x\n#SBATCH --y",)}, "line break"),
    ],
)
def test_what_cannot_be_is_refused_by_name(changes, message):
    with pytest.raises(UserError, match=message):
        check_job(replace(SPEC, **changes))


def test_a_mistake_in_the_command_is_told_before_the_queue(capsys):
    assert main(["submit", "fit", "--time", "60", "--dry-run", "--", "--learning-rate", "1"]) == 2
    assert "did you mean 'optim.lr'" in capsys.readouterr().err


def test_without_slurm_the_mend_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["submit", "fit", "--time", "60", "--", "--data", "sample"]) == 2
    assert "no sbatch here" in capsys.readouterr().err


def test_a_sweep_starts_ray_on_every_node(capsys):
    words = ["submit", "tune", "--nodes", "2", "--time", "60", "--gpus-per-node", "4", "--cpus-per-task", "32"]
    sweep = ["--config", "b.yaml", "--space", "s.yaml", "--tune-dir", "runs/t"]
    assert main([*words, "--dry-run", "--", *sweep]) == 0
    text = capsys.readouterr().out
    assert "python -m lightning_nli.launch.ray_node lnli tune --resume --config b.yaml" in text
    assert "--gres=gpu:4" in text and "--ntasks-per-node=1" in text and "--nodes=2" in text
    assert main([*words, "--dry-run", "--", *sweep[:4]]) == 2
    assert "--tune-dir DIR" in capsys.readouterr().err
    assert main([*words, "--tasks-per-node", "4", "--dry-run", "--", *sweep]) == 2
    assert "one task a node" in capsys.readouterr().err


def test_other_commands_are_one_process(capsys):
    words = ["submit", "predict", "--time", "60", "--dry-run", "--", "runs/mine", "a b.jsonl", "out.jsonl"]
    assert main(words) == 0
    assert "lnli predict runs/mine 'a b.jsonl' out.jsonl || code=$?" in capsys.readouterr().out
    assert main([*words[:4], "--nodes", "2", *words[4:]]) == 2
    assert "is one process" in capsys.readouterr().err


def test_a_board_is_an_array_and_a_job_that_waits_for_it(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    suite = tmp_path / "s.yaml"
    suite.write_text("{name: t, version: 1, data: 'sample:600', domains: [culture_society], references: false}")
    words = ["submit", "cross-domain", "--array", "3", "--time", "60", "--dry-run", "--"]
    assert main([*words, "--suite", str(suite), "--models", "hyponly-v1", "--board", "b"]) == 0
    text = capsys.readouterr().out
    assert "#SBATCH --array=0-2" in text and "lnli cross-domain work b --models hyponly-v1" in text
    assert "lnli leaderboard b --html b/board.html --force" in text
    assert main([*words[:4], "--nodes", "2", "--time", "60", "--", "--suite", str(suite), "--models", "x"]) == 2
