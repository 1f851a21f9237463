"""Sweeps under Ray, with trials that follow a script: who wins, who is stopped, what is kept, what goes on."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from lightning_nli.cli.main import main
from lightning_nli.tuning.plan import Request, plan_sweep
from lightning_nli.tuning.report import write_results
from lightning_nli.tuning.search import Resources, check_resources, ray_session, run_search
from lightning_nli.tuning.sweep import Status, create_sweep, open_sweep, ranked
from lightning_nli.types import UserError

SCRIPTED = [sys.executable, str(Path(__file__).with_name("scripted_trial.py"))]
METRIC = "id_val/macro_f1"
ONE = Resources(cpus=1, max_concurrent=1)


@pytest.fixture(scope="module", autouse=True)
def ray():
    with ray_session(Resources()) as ray:
        yield ray


def scripted_sweep(tmp_path, scenario, *, space="seed: {choice: [1, 2, 3]}", epochs=3, **changes):
    tmp_path.mkdir(exist_ok=True)
    files = {"base.yaml": f"optim: {{epochs: {epochs}}}\n", "space.yaml": space, "script.json": json.dumps(scenario)}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    search = changes.pop("search", "grid")
    request = Request(config=tmp_path / "base.yaml", space=tmp_path / "space.yaml", search=search, **changes)
    spec = replace(plan_sweep(request), worker=[*SCRIPTED, str(tmp_path / "script.json")])
    return create_sweep(tmp_path / "sweep", spec)


def by_seed(sweep):
    return {trial.settings["seed"]: trial for trial in sweep.trials()}


def test_u02_u04_asha_counts_epochs_the_best_report_wins_and_its_checkpoint_stays(tmp_path):
    scenario = {"1": [0.60, 0.80, 0.55], "2": [0.50, 0.60, 0.70], "3": [0.10, 0.20, 0.30]}
    sweep = scripted_sweep(tmp_path, scenario, reduction_factor=2)
    assert run_search(sweep, ONE) is None
    found = by_seed(sweep)
    assert found[1].status is Status.FINISHED and [report.epoch for report in found[1].reports] == [1, 2, 3]
    assert found[3].status is Status.STOPPED and [report.epoch for report in found[3].reports] == [1]
    assert all(trial.reports[0].epoch == 1 for trial in found.values())  # nobody is stopped before a whole epoch
    assert ranked(sweep.trials(), METRIC)[0] == found[1]
    assert [path.name for path in sweep.folder.rglob("*.ckpt")] == ["step-00000020-val.ckpt"]  # of its report 2
    assert "best: trial 001" in write_results(sweep)


def test_u03_a_trial_whose_score_is_no_number_fails_and_the_sweep_goes_on(tmp_path):
    scenario = {"1": [float("nan")] * 2, "2": [0.40, 0.45], "3": [0.30, 0.35]}
    sweep = scripted_sweep(tmp_path, scenario, epochs=2)
    assert run_search(sweep, ONE) is None
    found = by_seed(sweep)
    assert found[1].status is Status.FAILED and "id_val/macro_f1 is nan after epoch 1" in found[1].error
    assert ranked(sweep.trials(), METRIC)[0] == found[2]
    assert "001 failed: id_val/macro_f1 is nan" in write_results(sweep)


def test_u03_where_every_score_is_no_number_there_is_no_valid_trial(tmp_path, capsys):
    sweep = scripted_sweep(tmp_path, {"1": [float("nan")]}, space="seed: {choice: [1]}", epochs=1)
    assert main(["tune", "--resume", "--tune-dir", str(sweep.folder)]) == 2
    assert "no valid trial" in capsys.readouterr().err


def test_u06_what_no_machine_can_give_is_refused_at_once(tmp_path, capsys, ray):
    sweep = scripted_sweep(tmp_path, {"1": [0.1]}, space="seed: {choice: [1]}", epochs=1)
    started = time.monotonic()
    assert main(["tune", "--resume", "--tune-dir", str(sweep.folder), "--gpus-per-trial", "1"]) == 2
    cores = int(ray.cluster_resources()["CPU"])
    assert "1 GPUs" in (told := capsys.readouterr().err) and f"found {cores} CPUs and 0 GPUs" in told
    assert time.monotonic() - started < 20
    with pytest.raises(UserError, match=f"asks for {cores + 1} CPUs"):
        check_resources(ray, Resources(cpus=cores + 1))


def test_u07_what_is_sent_to_a_trial_is_small_whatever_the_driver_holds():
    from ray import cloudpickle

    from lightning_nli.tuning.trial import TrialRun

    held = np.zeros(300 * 1024**2, np.uint8)
    assert len(cloudpickle.dumps(TrialRun)) < 10_000 < held.nbytes


def test_u08_a_moved_sweep_goes_on_and_finished_trials_stay_as_they_are(tmp_path, monkeypatch, capsys):
    scenario = {"1": [0.1, 0.2], "2": [0.3, "crash"]}
    sweep = scripted_sweep(tmp_path, scenario, space="seed: {choice: [1, 2]}", epochs=2, scheduler="none")
    run_search(sweep, ONE)
    found = by_seed(sweep)
    assert [found[1].status, found[2].status] == [Status.FINISHED, Status.FAILED]
    assert found[2].error == "exit code 2: scripted crash"
    before = (sweep.folder / "trials" / "001" / "result.json").stat()
    shutil.move(sweep.folder, tmp_path / "elsewhere")
    monkeypatch.chdir(tmp_path)
    assert main(["tune", "--resume", "--tune-dir", "elsewhere"]) == 0
    moved = by_seed(open_sweep(Path("elsewhere")))
    assert [trial.status for trial in moved.values()] == [Status.FINISHED, Status.FINISHED]
    assert [report.scores[METRIC] for report in moved[2].reports] == [0.3, 0.9]  # from its checkpoint: no second 0.3
    assert (tmp_path / "elsewhere" / "trials" / "001" / "result.json").stat().st_mtime_ns == before.st_mtime_ns
    assert "2 trials, 0 stopped early, 0 failed" in capsys.readouterr().out
    (tmp_path / "space.yaml").write_text("seed: {choice: [1, 3]}")
    words = ["--config", "base.yaml", "--space", "space.yaml", "--search", "grid", "--scheduler", "none"]
    assert main(["tune", "--resume", "--tune-dir", "elsewhere", *words]) == 2
    assert "space.seed.choice: [1, 2] -> [1, 3]" in capsys.readouterr().err


def test_an_interrupted_sweep_stops_cleanly_and_goes_on(tmp_path, capsys):
    scenario = {"1": [0.1, 0.2, 0.3], "2": [0.4, 0.5, 0.6], "_seconds": 0.5}
    sweep = scripted_sweep(tmp_path, scenario, space="seed: {choice: [1, 2]}", scheduler="none")

    def press_ctrl_c():
        while not list(sweep.folder.rglob("reports.jsonl")):
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=press_ctrl_c).start()
    before = signal.getsignal(signal.SIGINT)
    words = ["tune", "--resume", "--tune-dir", str(sweep.folder), "--cpus-per-trial", "1"]
    assert main(words) == 75
    told = capsys.readouterr().err
    assert "lnli: stopped (SIGINT); best so far: trial 001" in told and "--resume --tune-dir" in told
    assert signal.getsignal(signal.SIGINT) is before
    assert not [trial for trial in sweep.trials() if trial.status.has_ended]
    assert main(words) == 0
    assert [trial.status for trial in sweep.trials()] == [Status.FINISHED] * 2
    assert [[r.epoch for r in trial.reports] for trial in sweep.trials()] == [[1, 2, 3]] * 2


def test_optuna_knows_all_trials_after_an_interruption_and_none_is_lost(tmp_path):
    space = "lr: {loguniform: [1.0e-4, 1.0e-2]}"
    sweep = scripted_sweep(tmp_path, {}, space=space, search="optuna", scheduler="none", num_samples=4, epochs=2)
    ended = []

    def tell(line):
        ended.append(line)
        if sum("finished" in one for one in ended) == 2:
            os.kill(os.getpid(), signal.SIGTERM)

    assert run_search(sweep, ONE, tell=tell) == "SIGTERM"
    first = {trial.name: trial.settings for trial in sweep.trials()}
    assert run_search(sweep, ONE) is None
    trials = sweep.trials()
    assert [trial.name for trial in trials] == ["001", "002", "003", "004"]
    assert all(trial.status is Status.FINISHED for trial in trials)
    assert {name: sweep.trial(name).settings for name in first} == first


def test_population_based_training_takes_over_weights_and_says_from_whom(tmp_path):
    space = "lr: {loguniform: [1.0e-4, 1.0e-1]}"
    sweep = scripted_sweep(tmp_path, {}, space=space, search="random", scheduler="pbt", num_samples=4, epochs=4)
    assert run_search(sweep, ONE) is None
    trials = sweep.trials()
    assert all(trial.status is Status.FINISHED and trial.reports[-1].epoch == 4 for trial in trials)
    heirs = [trial for trial in trials if trial.lineage]
    assert heirs
    for heir in heirs:
        taken = heir.lineage[-1]
        donor = sweep.trial(taken["from"])
        score = next(r.scores[METRIC] for r in donor.reports if r.epoch == taken["epoch"])
        after = heir.reports[taken["after"]]
        assert after.epoch == taken["epoch"] + 1
        assert after.scores[METRIC] == pytest.approx(score + taken["settings"]["optim.lr"])
    text = write_results(sweep)
    best = ranked(trials, METRIC)[0]
    assert ("best-schedule.json" in text) == bool(best.lineage) != (sweep.folder / "best.yaml").exists()


def test_a_trial_that_ray_opens_twice_keeps_the_settings_of_the_one_that_steps(tmp_path):
    """Ray may start a second process for a trial, late and with settings from before it took over another's."""
    from ray.tune.trainable.trainable import TRIAL_INFO

    from lightning_nli.tuning.search import draw_trials
    from lightning_nli.tuning.trial import CPUS_KEY, GPUS_KEY, SWEEP_KEY, TrialRun

    sweep = scripted_sweep(tmp_path, {"2": [0.5]}, space="seed: {choice: [1, 2]}", epochs=1)
    draw_trials(sweep)
    told = SimpleNamespace(trial_name="001", trial_id="1", trial_resources=None, experiment_name="x")
    opened = [
        TrialRun({SWEEP_KEY: str(sweep.folder), CPUS_KEY: 1, GPUS_KEY: 0, "seed": seed, TRIAL_INFO: told})
        for seed in (2, 1)
    ]
    assert not (sweep.ledger("001") / "config.yaml").exists()
    assert opened[0].step()["score"] == 0.5
    assert "seed: 2" in (sweep.ledger("001") / "config.yaml").read_text()
    for trial in opened:
        trial.cleanup()


def test_a_population_goes_on_without_a_trial_that_fails(tmp_path):
    space = "lr: {loguniform: [1.0e-4, 1.0e-1]}"
    changes = {"search": "random", "scheduler": "pbt", "num_samples": 4, "epochs": 3}
    sweep = scripted_sweep(tmp_path, {"_crash_above_lr": 0.03}, space=space, **changes)
    assert run_search(sweep, ONE) is None
    found = {trial.name: trial.status for trial in sweep.trials()}
    assert found["001"] is Status.FAILED and Status.FINISHED in found.values()
    assert all(status.has_ended for status in found.values())


def test_hyperband_pauses_trials_and_they_go_on(tmp_path):
    scenario = {"1": [0.6, 0.7, 0.8], "2": [0.5, 0.6, 0.7], "3": [0.1, 0.2, 0.3]}
    sweep = scripted_sweep(tmp_path, scenario, scheduler="hyperband")
    assert run_search(sweep, ONE) is None
    assert all(trial.status.has_ended for trial in sweep.trials())
    best = by_seed(sweep)[1]
    assert best.status is Status.FINISHED and [report.epoch for report in best.reports] == [1, 2, 3]


def test_u05_many_trials_leave_the_configured_number_of_checkpoints_and_bytes(tmp_path):
    """20 trials with checkpoints of 1 MB, 2 to stay."""
    scenario = {str(seed): [0.01 * seed] for seed in range(1, 21)} | {"_bytes": 1_000_000}
    space = f"seed: {{choice: {list(range(1, 21))}}}"
    sweep = scripted_sweep(tmp_path, scenario, space=space, epochs=1, keep=2, scheduler="none")
    most = 0
    done = threading.Event()

    def watch():
        nonlocal most
        while not done.wait(0.05):
            most = max(most, sum(path.stat().st_size for path in sweep.folder.rglob("*.ckpt") if path.exists()))

    watcher = threading.Thread(target=watch)
    watcher.start()
    run_search(sweep, Resources(cpus=1, max_concurrent=2))
    done.set()
    watcher.join()
    kept = sorted(path.parts[-3] for path in sweep.folder.rglob("*.ckpt"))
    assert kept == ["019", "020"]
    assert sum(path.stat().st_size for path in sweep.folder.rglob("*") if path.is_file()) < 2_000_000 + 500_000
    assert most < 6_500_000  # 2 that stay, 2 running trials of at most 2 files
    assert not (sweep.folder / ".ray").exists()
