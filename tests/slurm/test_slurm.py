"""Against a real SLURM: `make test-slurm`. Skipped with the reason where SLURM cannot run."""

from __future__ import annotations

import json
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest

sys.path.insert(0, str(Path(__file__).parent))
from cluster import Cluster, running_cluster, why_not

pytestmark = [pytest.mark.slurm, pytest.mark.skipif(why_not() is not None, reason=why_not() or "")]

LNLI = str(Path(sys.executable).with_name("lnli"))
FIT = "--data sample:400 --model tiny --epochs 6 --batch-size 4 --lr 1e-3 --precision fp32 --quiet".split()
FIT += ["--accelerator", "cpu"]
TWO_NODES = "submit fit --nodes 2 --tasks-per-node 1 --cpus-per-task 1 --time 20".split()


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    folder = Path(tempfile.mkdtemp(prefix="slurm-", dir="/tmp"))
    try:
        with running_cluster(folder) as running:
            yield running
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def submit(cluster: Cluster, folder: Path, *words: str) -> str:
    done = cluster.run(LNLI, *words, cwd=folder, limit_s=120)
    assert done.returncode == 0, done.stderr
    return re.findall(r"^job (\d+):", done.stdout, flags=re.MULTILINE)[0]


def logs(folder: Path) -> str:
    return "".join(path.read_text() for path in sorted(folder.glob("logs/*.out")))


def wait_for_checkpoint(run: Path) -> None:
    end = time.monotonic() + 120
    while not list(run.glob("checkpoints/step-*")):  # the first is saved after an epoch
        assert time.monotonic() < end, "no checkpoint yet"
        time.sleep(0.3)


def assert_same_answers(run: Path, undisturbed: Path) -> None:
    before, after = answers(undisturbed), answers(run)
    assert after["predicted"].equals(before["predicted"])
    assert (after["prob_entailment"] - before["prob_entailment"]).abs().max() < 1e-5


def answers(run: Path) -> pl.DataFrame:
    return pl.read_parquet(run / "predictions" / "test.parquet").select("example_id", "predicted", "prob_entailment")


@pytest.fixture(scope="module")
def undisturbed(cluster, tmp_path_factory) -> Path:
    """A 2-node DeepSpeed run under srun."""
    folder = tmp_path_factory.mktemp("plain")
    words = [*TWO_NODES, "--", *FIT, "--strategy", "deepspeed", "--run-dir", str(folder / "run")]
    state = cluster.wait(submit(cluster, folder, *words), "COMPLETED", "FAILED", limit_s=150)
    assert state["JobState"] == "COMPLETED", logs(folder)[-3000:]
    return folder / "run"


def test_two_nodes_train_together_under_deepspeed(undisturbed):
    result = json.loads((undisturbed / "result.json").read_text())
    assert result["status"] == "finished" and result["config"]["engine"]["num_nodes"] == 2
    assert (undisturbed / "checkpoints" / result["selection"]["checkpoint"]).is_dir()


def test_a_pre_empted_job_is_queued_again_and_ends_as_one_never_stopped(cluster, undisturbed, tmp_path):
    run = tmp_path / "run"
    words = [*TWO_NODES, "--", *FIT, "--strategy", "deepspeed", "--run-dir", str(run)]
    job = submit(cluster, tmp_path, *words)
    wait_for_checkpoint(run)
    urgent = cluster.run(
        "sbatch", "--parsable", "-p", "urgent", "-N2", "--exclusive", "--wrap", "sleep 3", cwd=tmp_path
    )
    cluster.wait(urgent.stdout.strip(), "COMPLETED", limit_s=90)
    state = cluster.wait(job, "COMPLETED", "FAILED", limit_s=150)
    assert state["JobState"] == "COMPLETED" and int(state["Restarts"]) >= 1, logs(tmp_path)[-3000:]
    assert_same_answers(run, undisturbed)


def test_a_job_whose_node_dies_is_queued_again_and_ends_as_one_never_stopped(cluster, undisturbed, tmp_path):
    run = tmp_path / "run"
    words = [*TWO_NODES, "--", *FIT, "--strategy", "deepspeed", "--run-dir", str(run)]
    job = submit(cluster, tmp_path, *words)
    wait_for_checkpoint(run)
    cluster.kill_node("node2")
    cluster.wait(job, "PENDING", limit_s=60)  # the controller misses the node after ten seconds
    cluster.start_node("node2")
    state = cluster.wait(job, "COMPLETED", "FAILED", "NODE_FAIL", limit_s=150)
    assert state["JobState"] == "COMPLETED" and int(state["Restarts"]) >= 1, logs(tmp_path)[-3000:]
    assert_same_answers(run, undisturbed)


def test_q02_a_signal_before_the_time_limit_saves_and_queues_again(cluster, tmp_path):
    run = tmp_path / "run"
    longer = [word if word != "6" else "40" for word in FIT]
    job = submit(cluster, tmp_path, *TWO_NODES, "--", *longer, "--strategy", "ddp", "--run-dir", str(run))
    wait_for_checkpoint(run)
    cluster.run("scancel", "--signal=USR2", job)
    end = time.monotonic() + 60
    while cluster.state(job).get("Restarts") != "1":
        assert time.monotonic() < end, "not queued again"
        time.sleep(0.5)
    assert "stopped (SIGUSR2" in logs(tmp_path) and "--resume auto" in logs(tmp_path)
    cluster.run("scancel", job)
    cluster.wait(job, "CANCELLED", limit_s=60)


def test_q03_tasks_that_are_no_processes_of_the_run_are_refused_at_once(cluster, tmp_path):
    command = [LNLI, *"fit --data sample:60 --model tiny --devices 1 --run-dir run".split()]
    done = cluster.run("srun", "-N1", "-n2", "--job-name=mine", *command, cwd=tmp_path)
    told = [line for line in done.stderr.splitlines() if line.startswith("lnli")]
    assert done.returncode == 2 and len(told) == 2, done.stderr
    assert "SLURM_NTASKS=2" in told[0] and "--devices 1" in told[0]


def test_q04_a_shell_inside_an_allocation_runs_one_local_process(cluster, tmp_path):
    fit = f"{LNLI} fit --data sample:60 --method majority --quiet --run-dir"
    for name, shell in {
        "salloc": ["salloc", "-N1", "-n2", "bash", "-c"],
        "srun": ["srun", "-N1", "-n1", "--cpus-per-task=2", "--pty", "bash", "-c"],
    }.items():
        done = cluster.run(*shell, f"{fit} {name}", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        result = json.loads((tmp_path / name / "result.json").read_text())
        assert result["status"] == "finished" and result["config"]["engine"]["num_nodes"] == 1


def test_q05_vietnamese_is_read_and_written_under_an_ascii_locale(cluster, undisturbed, tmp_path):
    rows = tmp_path / "rows.jsonl"
    row = {"premise": "Điều kiện.", "hypothesis": "Hoà giải.", "label": "entailment"}
    rows.write_text(json.dumps(row, ensure_ascii=False), "utf-8")
    old = ["env", "LC_ALL=POSIX", "LANG=C", "PYTHONUTF8=0", "PYTHONCOERCECLOCALE=0"]
    commands = [["data", "check", "rows.jsonl"], ["predict", str(undisturbed), "rows.jsonl", "out.jsonl"]]
    for words in commands:
        done = cluster.run("srun", "-N1", "-n1", *old, LNLI, *words, cwd=tmp_path, limit_s=90)
        assert done.returncode == 0, done.stderr
    assert "Hoà giải." in (tmp_path / "out.jsonl").read_text("utf-8")


def test_wrong_resources_are_refused_in_slurms_words(cluster, tmp_path):
    words = "submit fit --partition nowhere --time 5 -- --data sample:60 --model tiny".split()
    done = cluster.run(LNLI, *words, cwd=tmp_path)
    assert done.returncode == 2 and "SLURM refuses the job" in done.stderr and "partition" in done.stderr


def test_an_array_of_runners_and_the_board_that_waits_for_them(cluster, tmp_path):
    suite = tmp_path / "s.yaml"
    suite.write_text("{name: t, version: 1, data: 'sample:600', domains: [culture_society], references: false}")
    words = "submit cross-domain --array 2 --cpus-per-task 1 --time 10 --".split()
    done = cluster.run(
        LNLI,
        *words,
        "--suite",
        str(suite),
        "--models",
        "hyponly-v1,majority",
        "--board",
        "b",
        cwd=tmp_path,
        limit_s=120,
    )
    assert done.returncode == 0, done.stderr
    _, board_job = re.findall(r"^job (\d+):", done.stdout, flags=re.MULTILINE)
    state = cluster.wait(board_job, "COMPLETED", "FAILED", limit_s=120)
    assert state["JobState"] == "COMPLETED", logs(tmp_path)[-3000:]
    assert (
        len(list(tmp_path.glob("b/cells/*/record.json"))) == 2
        and (tmp_path / "b" / "board.html").stat().st_size > 10_000
    )
