"""Sweeps of real runs: inside a SLURM job, given again by `lnli fit`, and blind to what is held out."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from dataclasses import replace

import polars as pl
import pytest

from lightning_nli.cli.main import main
from lightning_nli.config import ExperimentConfig, load_config
from lightning_nli.data.sample import sample_corpus
from lightning_nli.training.result import read_result
from lightning_nli.tuning.inner import cut_inner_folds, outer_fold
from lightning_nli.tuning.plan import Request, plan_sweep
from lightning_nli.tuning.process import Task, write_task
from lightning_nli.tuning.sweep import Status, open_sweep, ranked, read_reports
from lightning_nli.tuning.worker import run_task
from lightning_nli.types import UserError

METRIC, OTHER = "id_val/macro_f1", "id_val/premise.discrimination"
SLURM = {"SLURM_JOB_ID": "7", "SLURM_JOB_NAME": "lnli", "SLURM_NTASKS": "2", "SLURM_PROCID": "0"}
SLURM |= {"SLURM_LOCALID": "0", "SLURM_NODEID": "0"}
BASE = """\
data: sample:120
model: cbow
text: {max_length: 48}
optim: {lr: 3.0e-3, epochs: 2}
engine: {precision: fp32}
"""


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """A finished sweep, run as a task of a SLURM job."""
    home = tmp_path_factory.mktemp("swept")
    (home / "base.yaml").write_text(BASE)
    (home / "space.yaml").write_text("lr: {choice: [1.0e-3, 3.0e-3]}\n")
    words = ["tune", "--config", "base.yaml", "--space", "space.yaml", "--search", "grid", "--scheduler", "none"]
    words += ["--metric", "macro_f1,premise.discrimination", "--tune-dir", "sweep"]
    words += ["--cpus-per-trial", "1", "--max-concurrent", "2"]
    done = subprocess.run(
        [sys.executable, "-m", "lightning_nli", *words],
        cwd=home,
        env=os.environ | SLURM,
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    return open_sweep(home / "sweep"), done


def test_u09_trials_inside_a_slurm_job_are_runs_of_one_process(swept):
    sweep, done = swept
    trials = sweep.trials()
    assert [trial.status for trial in trials] == [Status.FINISHED] * 2
    for trial in trials:
        assert [report.epoch for report in trial.reports] == [1, 2]
        assert "cpu x 1" in (sweep.ledger(trial.name) / "worker.log").read_text()
    assert done.stderr.count("id_val/macro_f1 0.") == 4 and "report.html" in done.stdout


def test_u02_the_score_shown_is_that_of_the_checkpoint_kept(swept):
    sweep, _ = swept
    for trial in sweep.trials():
        result = read_result(sweep.runs(trial.name)[0])
        best = trial.best(METRIC)
        assert result["selection"]["value"] == best.scores[METRIC] and result["selection"]["epoch"] == best.epoch - 1
        assert result["scores"]["id_val"]["macro_f1"] == pytest.approx(best.scores[METRIC], abs=1e-6)
        found = result["scores"]["id_val"]["premise"]["discrimination"]
        assert found == pytest.approx(best.scores[OTHER], abs=1e-6)
        assert list(result["scores"]) == ["id_val"]  # no trial scores the test rows


def test_best_yaml_gives_the_trials_score_again(swept, tmp_path, monkeypatch):
    sweep, _ = swept
    best = ranked(sweep.trials(), METRIC)[0]
    config = load_config(sweep.folder / "best.yaml")
    assert config.engine.threads == 1 and config.optim.lr == best.settings["optim.lr"]
    monkeypatch.chdir(tmp_path)
    assert main(["fit", "--config", str(sweep.folder / "best.yaml"), "--run-dir", "again", "--quiet"]) == 0
    again = read_result(tmp_path / "again")
    first = read_result(sweep.runs(best.name)[0])
    assert again["selection"]["value"] == best.best(METRIC).scores[METRIC]
    assert again["scores"]["id_val"] == first["scores"]["id_val"]
    assert "test" in again["scores"]


def test_a_kept_trial_is_an_ordinary_run_that_labels_pairs(swept, tmp_path):
    sweep, _ = swept
    best = ranked(sweep.trials(), METRIC)[0]
    assert len(list(sweep.folder.rglob("*.ckpt"))) == 1
    pairs = tmp_path / "pairs.jsonl"
    pairs.write_text(json.dumps({"premise": "Thuế suất là 5%.", "hypothesis": "Thuế suất là 10%."}) + "\n")
    assert main(["predict", str(sweep.runs(best.name)[0]), str(pairs), str(tmp_path / "labels.jsonl")]) == 0
    assert len((tmp_path / "labels.jsonl").read_text().splitlines()) == 1


def suite_file(home, frame):
    home.mkdir()
    frame.write_parquet(home / "rows.parquet")
    text = {"name": "t", "version": 1, "data": f"plain:{home / 'rows.parquet'}", "references": False}
    (home / "suite.yaml").write_text(json.dumps(text | {"scheme": "leave-one-domain-out", "domains": ["tax_fees"]}))
    return home / "suite.yaml"


def test_no_row_of_the_held_out_domain_reaches_a_trial(tmp_path):
    """Every label and hypothesis that the suite tests is replaced: trials read the same rows and score the same."""
    from lightning_nli.crossdomain.suite import load_pool, load_suite

    frame = sample_corpus(600).select("example_id", "premise", "hypothesis", "label", "law_id", "domains")
    held_out = pl.col("domains").cast(pl.List(pl.String)).list.contains("tax_fees")
    turned = pl.when(pl.col("label") == "entailment").then(pl.lit("non_entailment")).otherwise(pl.lit("entailment"))
    frame = frame.with_columns(pl.col("label").cast(pl.String))
    poison = frame.with_columns(
        hypothesis=pl.when(held_out).then(pl.format("poison {}", pl.col("example_id"))).otherwise("hypothesis"),
        label=pl.when(held_out).then(turned).otherwise("label"),
    )
    suites = [suite_file(tmp_path / name, rows) for name, rows in {"clean": frame, "poisoned": poison}.items()]
    (clean, scheme), (poisoned, _) = (cut_inner_folds(load_suite(suite), "tax_fees", 2) for suite in suites)
    tested = set(outer_fold(load_suite(suites[0]), load_pool(load_suite(suites[0])), "tax_fees").test)
    assert len(tested) >= 20
    for one, other in zip(clean, poisoned, strict=True):
        assert one.equals(other) and not tested & set(one["example_id"])
        assert not one.filter(pl.col("domains").cast(pl.List(pl.String)).list.contains("tax_fees")).height
        laws = one.group_by("role").agg(pl.col("law_id").unique())["law_id"].to_list()
        assert not set(laws[0]) & set(laws[1])
    scores = []
    for name, tables in {"clean": clean, "poisoned": poisoned}.items():
        rows = tmp_path / f"{name}.parquet"
        tables[0].write_parquet(rows)
        config = ExperimentConfig(model="cbow", run_dir=str(tmp_path / f"run-{name}"), resume="auto", subset=None)
        config = replace(
            config, optim=replace(config.optim, epochs=1, lr=1e-3), text=replace(config.text, max_length=48)
        )
        config = replace(config, engine=replace(config.engine, precision="fp32", threads=1))
        write_task(tmp_path / name, config, Task(metrics=[METRIC], rows=str(rows), scheme=scheme))
        run_task(tmp_path / name, control=io.StringIO("1\n"))
        scores.append([report.scores for report in read_reports(tmp_path / name)])
    assert scores[0] == scores[1] and len(scores[0]) == 1


def test_what_a_suite_decides_is_refused_in_the_base(tmp_path):
    suite = tmp_path / "suite.yaml"
    suite.write_text("{name: t, version: 1, data: 'sample:300', references: false}")
    (tmp_path / "base.yaml").write_text("data: sample:100\n")
    (tmp_path / "space.yaml").write_text("lr: {choice: [1.0e-3, 3.0e-3]}\n")
    request = Request(config=tmp_path / "base.yaml", space=tmp_path / "space.yaml", suite=suite, held_out="tax_fees")
    with pytest.raises(UserError, match="--config sets data, which the suite"):
        plan_sweep(request)
    (tmp_path / "base.yaml").write_text("model: cbow\n")
    spec = plan_sweep(request)
    assert spec.members == ["inner-1", "inner-2", "inner-3"] and spec.held_out == "tax_fees"
