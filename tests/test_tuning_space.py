"""Search spaces and plans: what is drawn is fixed by the seed, and whatever cannot be is refused before it starts."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from lightning_nli.cli.main import main
from lightning_nli.config import ExperimentConfig, load_config
from lightning_nli.tuning.plan import Request, parse_metrics, plan_sweep
from lightning_nli.tuning.space import KINDS, Domain, SearchSpace, check_space, load_space, settings_key, with_settings
from lightning_nli.types import UserError

ROOT = Path(__file__).resolve().parents[1]
SPACES = sorted((ROOT / "experiments" / "tune").glob("*.yaml"))


@pytest.fixture
def files(tmp_path):
    base, space = tmp_path / "base.yaml", tmp_path / "space.yaml"
    base.write_text("data: sample:100\noptim: {epochs: 3}\n")
    space.write_text("optim: {lr: {loguniform: [1e-5, 1.0e-3]}}\nbatch-size: {choice: [8, 16]}\n")
    return Request(config=base, space=space)


def test_names_may_be_bare_dotted_or_grouped_and_numbers_written_as_people_do(files):
    space = load_space(files.space, ExperimentConfig())
    assert space.domains == {
        "optim.lr": Domain("loguniform", (1e-5, 1e-3)),
        "packing.batch_size": Domain("choice", (8, 16)),
    }


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"lrr": {"choice": [1]}}, "unknown setting 'lrr'; did you mean 'optim.lr'"),
        ({"lr": {"choice": ["fast"]}}, "optim.lr: choice: value 'fast' does not fit.*expected a number"),
        ({"epochs": {"uniform": [1, 3]}}, "optim.epochs: uniform: value 1.0 does not fit.*whole number"),
        ({"lr": {"loguniforn": [1, 2]}}, "optim.lr: write {KIND"),
        ({"lr": {"loguniform": [0, 1]}}, "low end above 0"),
        ({"lr": {"uniform": [2, 1]}}, "low < high"),
        ({"lr": {"uniform": [1]}}, "two numbers"),
        ({"epochs": {"randint": [1.5, 3]}}, "two whole numbers"),
        ({"batch_size": {"choice": [8, 8]}}, "twice"),
        ({"batch_size": {"choice": [0]}}, "must be above 0"),
        ({"lr": {"choice": [1e-5]}, "optim": {"lr": {"choice": [1e-4]}}}, "optim.lr is given twice"),
        ({"data": {"choice": ["a", "b"]}}, "data cannot be searched"),
        ({"run_dir": {"choice": ["a"]}}, "run_dir cannot be searched"),
        ({}, "a search space holds lines"),
    ],
)
def test_what_cannot_be_searched_is_named(values, message):
    with pytest.raises(UserError, match=f"S.yaml: .*{message}|S.yaml: {message}"):
        check_space(values, ExperimentConfig(), "S.yaml")


def test_draws_are_fixed_by_the_seed_and_stay_when_more_are_drawn(files):
    space = load_space(files.space, ExperimentConfig())
    eight = space.draw(8, seed=3)
    assert space.draw(4, seed=3) == eight[:4] and space.draw(4, seed=4) != eight[:4]
    assert eight[0] == {"optim.lr": eight[0]["optim.lr"], "packing.batch_size": eight[0]["packing.batch_size"]}


@pytest.mark.parametrize("kind", KINDS)
def test_draws_fill_their_range_evenly(kind):
    values = {"choice": ("a", "b", "c"), "randint": (2, 4), "lograndint": (1, 8)}.get(kind, (1e-4, 1e-2))
    drawn = [
        settings["x"]
        for settings in SearchSpace({"x": Domain(kind, values), "y": Domain("uniform", (0.0, 1.0))}).draw(900, 1)
    ]
    if kind == "choice":
        assert all(240 < drawn.count(value) < 360 for value in values)
        return
    assert all(values[0] <= value <= values[1] for value in drawn)
    middle = math.sqrt(values[0] * (values[1] + (kind == "lograndint"))) if "log" in kind else sum(values) / 2
    below = sum(value < middle + (0.5 if kind == "randint" else 0) for value in drawn)
    assert 0.4 < below / 900 < (0.75 if kind == "randint" else 0.6)


def test_a_small_space_gives_each_setting_once():
    space = SearchSpace({"seed": Domain("choice", (1, 2, 3))})
    drawn = [settings_key(settings) for settings in space.draw(10, seed=1)]
    assert len(drawn) == len(set(drawn)) == 3


def test_a_grid_is_every_combination_and_needs_choices(files):
    space = check_space(
        {"lr": {"choice": [1e-5, 1e-4]}, "batch_size": {"choice": [8, 16, 32]}}, ExperimentConfig(), "S"
    )
    assert len({settings_key(one) for one in space.grid()}) == 6
    with pytest.raises(UserError, match=r"--search grid: optim\.lr is loguniform"):
        plan_sweep(replace(files, search="grid"))


def test_values_are_checked_together_before_anything_starts(files):
    files.config.write_text("objective: vrex\n")
    files.space.write_text("accumulate: {choice: [1, 2]}\n")
    with pytest.raises(UserError, match="--objective vrex with --accumulate 2"):
        plan_sweep(files)


def test_the_plan_pins_what_a_score_depends_on(files):
    spec = plan_sweep(replace(files, metric="premise.discrimination", threads=2))
    assert spec.config.engine.threads == 2 and spec.config.checkpoints.monitor == "id_val/premise.discrimination"
    assert spec.max_epochs == 3 and spec.num_samples == 12
    files.space.write_text("epochs: {randint: [1, 5]}\n")
    assert plan_sweep(files).max_epochs == 5
    settings = {"optim.lr": 3e-5, "packing.batch_size": 8}
    assert with_settings(spec.config, settings).optim.lr == 3e-5


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"metric": "test/accuracy"}, "--metric 'test/accuracy' is no score of id_val"),
        ({"metric": "macro_f1,loss,accuracy"}, "one score, or two"),
        ({"num_samples": 0}, "--num-samples must be at least 1"),
        ({"grace_epochs": 4}, "--grace-epochs must lie between 1 and the 3 epochs"),
        ({"reduction_factor": 1.0}, "--reduction-factor"),
        ({"keep": -1}, "--keep-checkpoints-num"),
        ({"scheduler": "pbt"}, "take packing.batch_size out of the space"),
        ({"held_out": "tax_fees"}, "--suite and --held-out go together"),
        ({"space": Path("nowhere.yaml")}, "no search space nowhere.yaml"),
        ({"config": Path("nowhere.yaml")}, "config file nowhere.yaml does not exist"),
    ],
)
def test_requests_that_make_no_sense_are_refused_by_name(files, changes, message):
    with pytest.raises(UserError, match=message):
        plan_sweep(replace(files, **changes))


@pytest.mark.parametrize(
    ("settings", "message"),
    [("method: majority\n", "no epochs to report"), ("val_split: none\n", "leaves no rows to choose by")],
)
def test_bases_without_epochs_or_validation_are_refused(files, settings, message):
    files.config.write_text(settings)
    with pytest.raises(UserError, match=message):
        plan_sweep(files)


def test_metrics_may_leave_out_the_set():
    assert parse_metrics("macro_f1, premise.rank") == ["id_val/macro_f1", "id_val/premise.rank"]
    assert parse_metrics("id_val/per_class.entailment.f1") == ["id_val/per_class.entailment.f1"]


@pytest.mark.parametrize("path", SPACES, ids=lambda path: path.stem)
def test_every_space_kept_fits_a_recipe_kept(path):
    assert load_space(path, load_config(ROOT / "experiments" / "vilegalnli" / "xlmr-base.yaml")).domains


def test_a_dry_run_shows_the_trials_and_writes_nothing(files, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = ["tune", "--config", str(files.config), "--space", str(files.space), "--num-samples", "3", "--dry-run"]
    before = sorted(tmp_path.rglob("*"))
    assert main(words) == 0
    text = capsys.readouterr().out
    assert "3 trials, random search, scheduler asha, 3 epochs" in text and "003  lr " in text
    assert sorted(tmp_path.rglob("*")) == before


def test_help_has_examples_and_resume_says_what_it_needs(capsys):
    with pytest.raises(SystemExit) as left:
        main(["tune", "--help"])
    assert left.value.code == 0 and capsys.readouterr().out.count("  lnli tune --") >= 4
    assert main(["tune", "--resume"]) == 2 and "--tune-dir" in capsys.readouterr().err
    assert main(["tune"]) == 2 and "--config BASE.yaml" in capsys.readouterr().err
