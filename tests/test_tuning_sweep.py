"""The sweep's folder, the process of a trial and what is reported of it, without Ray."""

from __future__ import annotations

import io
import json
import os
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest
import pytorch_lightning as lightning
import torch
from torch.utils.data import DataLoader, TensorDataset

from lightning_nli.config import ExperimentConfig
from lightning_nli.tuning.disk import check_disk, prune_checkpoints
from lightning_nli.tuning.document import importance
from lightning_nli.tuning.process import (
    RunProcess,
    Task,
    TrialFailed,
    TrialInterrupted,
    is_locked,
    trial_environment,
    write_task,
)
from lightning_nli.tuning.report import best_line, write_results
from lightning_nli.tuning.sweep import (
    Report,
    Status,
    SweepSpec,
    Trial,
    create_sweep,
    merge_reports,
    open_sweep,
    pareto_front,
    ranked,
    read_reports,
)
from lightning_nli.tuning.worker import EpochReporter, commit_report
from lightning_nli.types import UserError

METRIC, OTHER = "id_val/macro_f1", "id_val/premise.discrimination"
SCRIPTED = [sys.executable, str(Path(__file__).with_name("scripted_trial.py"))]


def reports(*scores, other=()):
    rows = zip(scores, [*other, *[None] * len(scores)], strict=False)
    return tuple(Report(float(n), 10 * n, 2.0, {METRIC: a, OTHER: b}) for n, (a, b) in enumerate(rows, 1))


def trial(name, *scores, status=Status.FINISHED, other=(), **settings):
    return Trial(name, settings or {"seed": int(name)}, status, None, reports(*scores, other=other))


def new_sweep(folder, **changes):
    values = {"base": plain(ExperimentConfig()), "space": {"seed": {"choice": [1, 2, 3]}}, "metrics": [METRIC]}
    return create_sweep(folder, SweepSpec(**{**values, "num_samples": 3, **changes}))


def plain(config):
    from dataclasses import asdict

    return asdict(config)


def keep(sweep, one):
    """Write a trial with its reports, as its process would have."""
    sweep.write(one)
    lines = [
        json.dumps({"epoch": r.epoch, "step": r.step, "seconds": r.seconds, "scores": r.scores}) for r in one.reports
    ]
    (sweep.ledger(one.name) / "reports.jsonl").write_text("".join(line + "\n" for line in lines))


def test_u02_the_best_report_counts_and_not_the_last():
    a, b = trial("1", 0.60, 0.80, 0.55), trial("2", 0.50, 0.60, 0.70)
    assert [one.name for one in ranked([b, a], METRIC)] == ["1", "2"]
    assert a.best(METRIC) == a.reports[1] and a.best(METRIC).epoch == 2
    lower = Trial(
        "3", {}, Status.FINISHED, None, (Report(1, 1, 1, {"id_val/loss": 0.5}), Report(2, 2, 1, {"id_val/loss": 0.4}))
    )
    assert lower.best("id_val/loss").epoch == 2


def test_u03_a_score_that_is_no_number_is_never_the_best():
    nan = float("nan")
    assert trial("1", nan, None).best(METRIC) is None
    assert trial("1", nan, 0.2, None).best(METRIC).epoch == 2
    failed = trial("3", 0.9, status=Status.FAILED)
    assert [one.name for one in ranked([trial("1", nan), trial("2", 0.4), failed], METRIC)] == ["2"]


def test_the_front_holds_whom_no_other_beats_under_both():
    points = {"1": (0.9, 0.1), "2": (0.8, 0.3), "3": (0.8, 0.2), "4": (0.5, 0.9), "5": (0.4, 0.9), "6": (0.9, None)}
    trials = [trial(name, a, other=(b,)) for name, (a, b) in points.items()]
    assert {one.name for one in pareto_front(trials, [METRIC, OTHER])} == {"1", "2", "4"}


def test_inner_folds_count_by_their_mean_and_only_where_all_of_them_are():
    merged = merge_reports([reports(0.2, 0.4), reports(0.4, 0.8), reports(0.6)])
    assert len(merged) == 1 and merged[0].scores[METRIC] == pytest.approx(0.4) and merged[0].seconds == 6.0
    assert merge_reports([reports(0.2), reports(None)])[0].scores[METRIC] is None


def test_a_sweep_is_read_back_equal_and_a_line_cut_off_does_not_count(tmp_path):
    sweep = new_sweep(tmp_path / "s")
    added = sweep.add({"seed": 2})
    keep(sweep, replace(added, status=Status.STOPPED, reports=reports(0.5)))
    with (sweep.ledger("001") / "reports.jsonl").open("a") as file:
        file.write('{"epoch": 2.0, "st')
    again = open_sweep(tmp_path / "s")
    assert again == sweep and again.trial("001") == replace(added, status=Status.STOPPED, reports=reports(0.5))
    with pytest.raises(UserError, match="holds a sweep; --resume"):
        create_sweep(tmp_path / "s", sweep.spec)
    with pytest.raises(UserError, match="holds no sweep"):
        open_sweep(tmp_path)


def test_a_changed_search_is_told_by_name(tmp_path):
    spec = new_sweep(tmp_path / "s").spec
    changed = replace(spec, space={"seed": {"choice": [1, 2]}}, scheduler="none", num_samples=9)
    assert [text.split(":")[0] for text in spec.differences(changed)] == ["scheduler", "space.seed.choice"]


def run_process(tmp_path, scenario, epochs=3, seed=1):
    (tmp_path / "scenario.json").write_text(json.dumps(scenario))
    run, ledger = tmp_path / "run", tmp_path / "ledger"
    write_task(ledger, ExperimentConfig(run_dir=str(run), seed=seed), Task(metrics=[METRIC]))
    command = [*SCRIPTED, str(tmp_path / "scenario.json")]
    return RunProcess(ledger, run, epochs=epochs, threads=1, cwd=tmp_path, stop=tmp_path / "stop", command=command)


def test_reports_come_one_by_one_and_a_new_process_goes_on_behind_them(tmp_path):
    first = run_process(tmp_path, {"1": [0.1, 0.2, 0.3]})
    assert first.report(0).scores == {METRIC: 0.1}
    time.sleep(0.3)
    assert len(read_reports(first.ledger)) == 1  # it waits until the report was seen
    assert first.report(1).epoch == 2.0
    first.stop()
    second = run_process(tmp_path, {"1": [0.1, 0.2, 0.3]})
    assert [second.report(number).scores[METRIC] for number in range(3)] == [0.1, 0.2, 0.3]
    assert (tmp_path / "run" / "result.json").exists() and len(read_reports(second.ledger)) == 3


def test_a_process_that_ends_early_says_why(tmp_path):
    process = run_process(tmp_path, {"1": [0.1, "crash", 0.3]})
    process.report(0)
    with pytest.raises(TrialFailed, match="exit code 2: scripted crash"):
        process.report(1)
    assert process.report(1).scores[METRIC] == 0.9  # the next attempt
    killed = (
        run_process(tmp_path / "b", {"1": [0.1, 0.2], "_seconds": 20}) if (tmp_path / "b").mkdir() is None else None
    )
    killed._start()
    os.kill(killed._process.pid, signal.SIGKILL)
    with pytest.raises(TrialFailed, match="killed by SIGKILL"):
        killed.report(0)


def test_the_stop_file_ends_a_process_in_the_middle_of_an_epoch(tmp_path):
    process = run_process(tmp_path, {"1": [0.1], "_seconds": 60}, epochs=1)
    (tmp_path / "stop").touch()
    started = time.monotonic()
    with pytest.raises(TrialInterrupted):
        process.report(0)
    assert time.monotonic() - started < 10


def test_u09_a_trial_is_no_task_of_the_job_around_it():
    outer = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "2", "SLURM_PROCID": "1", "LOCAL_RANK": "1", "RANK": "1", "HOME": "h"}
    inner = trial_environment(3, outer)
    assert inner["HOME"] == "h" and inner["OMP_NUM_THREADS"] == "3"
    assert not [name for name in inner if name.startswith("SLURM") or name.endswith("RANK")]


class Constant(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def training_step(self, batch, batch_idx):
        return self.layer(batch[0]).sum()

    def validation_step(self, batch, batch_idx):
        self.log(METRIC, 0.5)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.0)


def test_u04_reports_are_epoch_true_and_never_of_the_sanity_check(tmp_path):
    """3 epochs with 2 validations each and a sanity check: 6 reports, the first after half an epoch."""
    loader = DataLoader(TensorDataset(torch.ones(4, 1)), batch_size=1)
    control = io.StringIO("".join(f"{number}\n" for number in (2, 4, 6)))
    trainer = lightning.Trainer(
        max_epochs=3,
        val_check_interval=0.5,
        num_sanity_val_steps=2,
        callbacks=[EpochReporter(tmp_path, Task(metrics=[METRIC]), control)],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        accelerator="cpu",
    )
    trainer.fit(Constant(), loader, loader)
    found = read_reports(tmp_path)
    assert [report.epoch for report in found] == [0.5, 1.0, 1.5, 2.0, 2.5, 3.0]
    assert [report.step for report in found] == [2, 4, 6, 8, 10, 12]
    assert control.read() == ""


def test_a_report_is_appended_behind_a_cut_off_line(tmp_path):
    (tmp_path / "reports.jsonl").write_text('{"epoch": 1.0, "step": 1, "seconds": 1, "scores": {}}\n{"ep')
    (tmp_path / "pending.json").write_text('{"epoch": 2.0, "step": 2, "seconds": 1, "scores": {}}')
    commit_report(tmp_path)
    commit_report(tmp_path)
    assert [report.step for report in read_reports(tmp_path)] == [1, 2]


def fill_checkpoints(run):
    folder = run / "checkpoints"
    folder.mkdir(parents=True)
    names = [f"step-{step:08d}-val.ckpt" for step in (10, 20)]
    for name in names:
        (folder / name).write_bytes(bytes(1000))
    saved = [{"name": name, "step": step, "epoch": 0, "score": 0.5} for step, name in zip((10, 20), names, strict=True)]
    (folder / "index.json").write_text(json.dumps({"monitor": METRIC, "saved": saved, "best": names[0]}))


def test_u05_only_the_best_trials_chosen_checkpoint_stays(tmp_path):
    sweep = new_sweep(tmp_path / "s", keep=1)
    statuses = [Status.FINISHED, Status.STOPPED, Status.FINISHED, Status.RUNNING, Status.FAILED]
    for score, status in zip((0.3, 0.9, 0.5, 0.1, 0.95), statuses, strict=True):
        added = sweep.add({"seed": 1})
        keep(sweep, replace(added, status=status, reports=reports(score)))
        fill_checkpoints(sweep.runs(added.name)[0])
    prune_checkpoints(sweep)
    left = sorted(str(path.relative_to(sweep.folder / "trials")) for path in sweep.folder.rglob("*.ckpt"))
    going_on = [f"{name}/checkpoints/step-{step:08d}-val.ckpt" for name in ("004", "005") for step in (10, 20)]
    assert left == ["002/checkpoints/step-00000010-val.ckpt", *going_on]


def test_u05_the_disk_is_asked_before_the_start(tmp_path):
    sweep = new_sweep(tmp_path / "s")
    assert "disk: a checkpoint takes 0.00 GiB" in check_disk(sweep, 1000, concurrent=2)
    with pytest.raises(UserError, match="lower --max-concurrent or --keep-checkpoints-num"):
        check_disk(sweep, 10**15, concurrent=2)


def test_a_lock_is_seen_and_freed(tmp_path):
    import fcntl

    assert not is_locked(tmp_path)
    with (tmp_path / "lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert is_locked(tmp_path)
    assert not is_locked(tmp_path)


def test_what_goes_with_the_score_is_found():
    rates = [1e-5, 1e-4, 1e-3, 3e-3, 1e-2, 3e-2]
    trials = [trial(str(n), 0.1 * n, lr=rate, kind="ab"[n % 2]) for n, rate in enumerate(rates)]
    shares = importance(trials, METRIC, ["lr", "kind"])
    assert shares["lr"] == pytest.approx(1.0) and 0 <= shares["kind"] < 0.5


def test_the_results_are_files_that_need_nothing_else(tmp_path):
    space = {"seed": {"choice": [1, 2]}, "model": {"choice": ["cbow", "<script>alert(1)</script>"]}}
    sweep = new_sweep(tmp_path / "s", space=space, metrics=[METRIC, OTHER])
    rows = [("cbow", (0.6, 0.8, 0.5), Status.FINISHED), ("<script>alert(1)</script>", (0.5,), Status.STOPPED)]
    for number, (model, scores, status) in enumerate(rows, 1):
        keep(
            sweep,
            replace(
                sweep.add({"seed": number, "model": model}), status=status, reports=reports(*scores, other=(0.1,) * 3)
            ),
        )
    keep(sweep, replace(sweep.add({"seed": 3, "model": "cbow"}), status=Status.FAILED, error="NaN <b>"))
    text = write_results(sweep)
    assert "3 trials, 1 stopped early, 1 failed" in text and "003 failed: NaN <b>" in text and "best.yaml" in text
    page = (sweep.folder / "report" / "report.html").read_text(encoding="utf-8")
    assert "<script" not in page and "&lt;script&gt;" in page and "NaN &lt;b&gt;" in page
    assert page.count("data:image/svg+xml;base64,") == 3 and "http://" not in page.replace("http://www.w3.org", "")
    table = pl.read_parquet(sweep.folder / "trials.parquet")
    assert table.filter(trial="001").select("best", "best_epoch", "last", "epochs").row(0) == (0.8, 2.0, 0.5, 3.0)
    assert table["status"].to_list() == ["finished", "stopped", "failed"] and table["setting.seed"].to_list() == [
        1,
        2,
        3,
    ]
    assert "trial 001, id_val/macro_f1 0.8000 after epoch 2" in best_line(sweep)
    assert [path.name for path in (sweep.folder / "pareto").iterdir()] == ["001.yaml"]


def test_u03_no_trial_with_a_score_is_an_error(tmp_path):
    sweep = new_sweep(tmp_path / "s")
    keep(sweep, replace(sweep.add({"seed": 1}), status=Status.FAILED, error="id_val/macro_f1 is nan"))
    with pytest.raises(UserError, match=r"no valid trial: none of 1 has a score .*is nan"):
        write_results(sweep)
    assert (sweep.folder / "report" / "report.html").exists()
