"""Recipes that make a model read the law: threshold, mined mistakes, further swaps, the page; from flags to figures."""

from __future__ import annotations

import csv
import importlib.util
import json
import sys
from dataclasses import asdict, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import polars as pl
import pytest

from lightning_nli.cli.main import main
from lightning_nli.config import ExperimentConfig, load_config, parse_config
from lightning_nli.training.augment import mistakes_of
from lightning_nli.training.corpora import load_run_data
from lightning_nli.training.threshold import Threshold, calibrated_scores, choose_threshold, parse_threshold
from lightning_nli.types import BINARY, THREE_WAY, UserError

ROOT = Path(__file__).resolve().parents[1]
YES, NO = "entailment", "non_entailment"


# Threshold


def answers(rows: list[tuple[str, float, float | None, float | None]]) -> pl.DataFrame:
    """(gold, probability of entailment, under the hard swap, under the random one)."""
    names = ["label", f"prob_{YES}", f"hard_swap_prob_{YES}", f"random_swap_prob_{YES}"]
    types = dict(zip(names, (pl.String, pl.Float64, pl.Float64, pl.Float64), strict=True))
    table = pl.DataFrame(rows, schema=types, orient="row")
    predicted = pl.when(pl.col(f"prob_{YES}") > 0.5).then(pl.lit(YES)).otherwise(pl.lit(NO))
    ids = pl.int_range(pl.len()).cast(pl.String)
    return table.with_columns((1 - pl.col(f"prob_{YES}")).alias(f"prob_{NO}"), predicted=predicted, example_id=ids)


TABLE = answers(
    [
        (YES, 0.9, 0.7, 0.95),
        (YES, 0.8, 0.75, 0.3),
        (YES, 0.6, None, None),
        (YES, 0.4, 0.2, 0.1),
        (NO, 0.55, None, None),
        (NO, 0.1, None, None),
    ]
)


@pytest.mark.parametrize(
    ("mix", "value"),
    [
        (0.0, 0.575),  # 5 of 6 plain rows are right between 0.55 and 0.6 only
        # Between 0.75 and 0.8: 4 of 6 plain rows, 3 of 3 swaps; between 0.55 and 0.6: 5 of 6 and 1 of 3.
        (1 / 3, 0.775),  # 2/3 x 4/6 + 1/3 = 0.78 against 2/3 x 5/6 + 1/9 = 0.67
        (0.15, 0.575),  # 0.72 against 0.76
        (1.0, 0.775),  # every threshold above 0.75 is right: the nearest to 0.5
    ],
)
def test_a_threshold_is_the_best_for_its_mix_by_hand(mix, value):
    found = choose_threshold(TABLE, BINARY, mix)
    assert (found.value, found.mix, found.chosen_on) == (pytest.approx(value), mix, "id_val")


def test_one_half_stays_where_nothing_is_better():
    assert choose_threshold(answers([(YES, 0.9, 0.1, None), (NO, 0.2, None, None)]), BINARY).value == 0.5


def test_no_threshold_where_none_can_be_chosen():
    assert choose_threshold(TABLE, THREE_WAY) is None
    assert choose_threshold(TABLE.with_columns(pl.lit(None, pl.Float64).alias(f"hard_swap_prob_{YES}")), BINARY) is None
    assert choose_threshold(TABLE.drop(f"hard_swap_prob_{YES}"), BINARY) is None


def test_scores_at_a_threshold_by_hand():
    found = calibrated_scores(TABLE, BINARY, Threshold(0.72, 0.25, "id_val"))
    assert found == {
        "threshold": 0.72,
        "mix": 0.25,
        "chosen_on": "id_val",
        "accuracy": 4 / 6,  # 0.9 and 0.8 are entailed, 0.6 and 0.4 are missed, both others are right
        "macro_f1": pytest.approx((2 * 2 / (2 + 4) + 2 * 2 / (4 + 2)) / 2),
        "premise": {"discrimination": 1 / 3, "random_swap": 1 / 3},  # hard: the first row; random: the second
    }
    at_half = calibrated_scores(TABLE, BINARY, Threshold(0.5))
    assert (at_half["accuracy"], at_half["premise"]["discrimination"]) == (4 / 6, 0.0)
    more = TABLE.with_columns(pl.lit(0.0).alias(f"other_law_swap_prob_{YES}"))
    assert calibrated_scores(more, BINARY, Threshold(0.5))["premise"]["other_law"] == 3 / 4


@pytest.mark.parametrize(("text", "expected"), [("0.7", Threshold(0.7)), ("1", Threshold(1.0)), ("mix=0.25", 0.25)])
def test_a_threshold_is_a_probability_or_a_mix(text, expected):
    assert parse_threshold(text) == expected


@pytest.mark.parametrize("text", ["", "x", "1.1", "-0.1", "nan", "mix=", "mix=2", "max=0.5", "=0.5", "a=b=0.5"])
def test_another_threshold_is_refused(text):
    with pytest.raises(UserError, match="a probability between 0 and 1, or mix=SHARE"):
        parse_threshold(text)


# A run, from flags to figures


FLAGS = "--data sample:120 --model tiny --max-length 64 --epochs 1 --lr 1e-3 --precision fp32 --accelerator cpu".split()
RECIPE = ["--augment", "premise_swap=1+1,balance=weight", "--objective", "ranking", "--batch-size", "16"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("reading") / "run"
    assert main(["fit", *FLAGS, *RECIPE, "--run-dir", str(folder)]) == 0
    return folder


def read(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "result.json").read_text(encoding="utf-8"))


def test_a_run_has_scores_at_the_threshold_of_its_validation_rows(trained):
    scores = read(trained)["scores"]
    assert set(scores) == {"id_val", "test"}
    tables = {name: pl.read_parquet(trained / "predictions" / f"{name}.parquet") for name in scores}
    chosen = choose_threshold(tables["id_val"], BINARY)
    assert chosen is not None
    for name, table in tables.items():
        assert scores[name]["calibrated"] == calibrated_scores(table, BINARY, chosen)
        assert scores[name]["premise"]["trained_on_swaps"]
        assert "held_out_swaps" not in scores[name]


def test_further_swaps_and_thresholds_are_asked_for_after_training(trained, capsys):
    before = read(trained)
    assert main(["test", str(trained), "--swaps", "other-law", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)["test"]
    stored = read(trained)["scores"]["test"]
    assert stored == before["scores"]["test"] | {
        "held_out_swaps": shown["held_out_swaps"],
        "calibrated": stored["calibrated"],
    }
    other = stored["held_out_swaps"]["other_law"]
    assert other["num_rows"] > 5 and 0 <= other["discrimination"] <= 1
    table = pl.read_parquet(trained / "predictions" / "test.parquet")
    assert table[f"other_law_swap_prob_{YES}"].count() == other["num_rows"]
    assert stored["calibrated"]["premise"]["other_law"] is not None

    assert main(["test", str(trained), "--threshold", "0.25", "--json"]) == 0
    given = json.loads(capsys.readouterr().out)["test"]["calibrated"]
    assert (given["threshold"], given["mix"], given["chosen_on"]) == (0.25, None, None)
    assert main(["test", str(trained), "--data", "more=sample:40", "--threshold", "mix=0.1", "--json"]) == 0
    elsewhere = json.loads(capsys.readouterr().out)["more"]["calibrated"]  # by the stored answers to id_val
    val = pl.read_parquet(trained / "predictions" / "id_val.parquet")
    assert elsewhere["threshold"] == choose_threshold(val, BINARY, 0.1).value
    assert read(trained)["scores"]["test"] == stored  # only plain calls are kept
    assert main(["test", str(trained), "--threshold", "2"]) == 2


def test_hard_swaps_may_be_the_mistakes_of_a_run(trained, monkeypatch):
    config = parse_config([*FLAGS, "--augment", f"premise_swap=1+0,run={trained}"])
    data = load_run_data(config)
    added = data.train.tail(data.train.height - data.published_train.height)
    plain = load_run_data(replace(config, augment="premise_swap=8+0"))
    candidates = plain.train.tail(plain.train.height - plain.published_train.height)
    assert 0 < added.height <= (data.published_train["label"] == YES).sum()

    from lightning_nli.training.trained import open_run

    answered = open_run(trained).scorer.predictions(candidates)
    mistakes = answered.with_columns(row=pl.col("example_id").str.replace(r"~swap\d+$", "")).filter(
        pl.col("predicted") == YES
    )
    best = mistakes.group_by("row").agg(pl.col(f"prob_{YES}").max()).height
    assert added.height == best  # one for every row with a mistake among its candidates
    pairs = set(candidates.select("hypothesis", "premise").rows())
    assert set(added.select("hypothesis", "premise").rows()) <= pairs
    import lightning_nli.training.augment as augment

    monkeypatch.setattr(augment, "_answers", lambda *_: pytest.fail("asked the model again"))
    assert load_run_data(config).train.equals(data.train)  # the second time by the cache


def test_a_run_that_cannot_choose_swaps_is_refused(tmp_path):
    with pytest.raises(UserError, match="is not a run folder"):
        load_run_data(parse_config([*FLAGS, "--augment", f"premise_swap=1+0,run={tmp_path}"]))
    folder = tmp_path / "linear"
    assert main(["fit", "--data", "sample:60", "--method", "hyponly-v1", "--run-dir", str(folder)]) == 0
    with pytest.raises(UserError, match="is a run of --method hyponly-v1; give one of an encoder"):
        load_run_data(parse_config([*FLAGS, "--augment", f"premise_swap=1+0,run={folder}"]))
    assert read(folder)["scores"]["id_val"]["calibrated"]["premise"]["discrimination"] == 0.0  # blind at any threshold
    assert callable(mistakes_of(folder))


def test_the_recipe_kept_reads_the_law():
    config = load_config(ROOT / "experiments" / "vilegalnli" / "reads-the-law.yaml")
    assert (config.train_split, config.val_split, config.objective) == ("dev", "drawn", "ranking")
    assert config.augment.startswith("premise_swap=")


# The page


@pytest.fixture(scope="module")
def reading() -> ModuleType:
    spec = importlib.util.spec_from_file_location("reading", ROOT / "benchmarks" / "reading.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["reading"] = module
    spec.loader.exec_module(module)
    return module


def write_run(folder: Path, *, seed: int, discrimination: float | None, accuracy: float, **settings: Any) -> str:
    config = asdict(ExperimentConfig(seed=seed, run_dir=str(folder), **settings))
    premise = {"discrimination": discrimination, "random_swap": 0.5, "rank": 0.75, "gain": None}
    entry = {
        "accuracy": accuracy,
        "macro_f1": accuracy,
        "premise": premise,
        "hard": {"balanced": 0.5},
        "calibrated": None,
    }
    folder.mkdir(parents=True)
    result = {"schema": 1, "scores": {"test": entry}, "seeds": {"seed": seed}, "config": config}
    (folder / "result.json").write_text(json.dumps(result), encoding="utf-8")
    return str(folder)


@pytest.fixture
def page(tmp_path, reading) -> Path:
    (tmp_path / "READING.md").write_text(
        f"# Before\n{reading.BEGIN}\nbefore this\n{reading.END}\nafter\n", encoding="utf-8"
    )
    return tmp_path


def test_the_page_has_a_row_a_recipe(page, reading):
    runs = [write_run(page / f"as-{seed}", seed=seed, discrimination=0.02 * seed, accuracy=0.9) for seed in (1, 2)]
    runs.append(write_run(page / "r", seed=1, discrimination=0.6, accuracy=0.88, augment="premise_swap=1+1"))
    runs.append("blind one=" + write_run(page / "b", seed=1, discrimination=None, accuracy=0.85, segments="hypothesis"))
    reading.main([*runs, "--into", str(page)])
    text = (page / "READING.md").read_text(encoding="utf-8")
    assert text.startswith("# Before") and text.endswith("after\n") and "before this" not in text
    assert "| a | e5-small | 2 | 3.0 ± 1.4 | 50.0 ± 0.0 | 0.750 ± 0.000 | 90.0 ± 0.0 |" in text
    assert "| b | e5-small, premise_swap=1+1 | 1 | 60.0 | 50.0 | 0.750 | 88.0 |" in text
    assert "| c | blind one | 1 | - | 50.0 |" in text  # missing is no number
    assert "premise gain" not in text and "threshold |" not in text  # columns that no run has
    with (page / "reading.csv").open(encoding="utf-8") as file:
        rows = {(row["recipe"], row["figure"]): row for row in csv.DictReader(file)}
    assert float(rows["e5-small", "discrimination"]["mean"]) == pytest.approx(3)
    assert rows["e5-small", "discrimination"]["values"] == "2 4"
    assert rows["blind one", "discrimination"]["mean"] == rows["e5-small", "gain"]["mean"] == ""
    assert (page / "reading.png").read_bytes().startswith(b"\x89PNG")
    reading.main([*runs, "--into", str(page)])
    assert (page / "READING.md").read_text(encoding="utf-8") == text


def test_runs_that_are_no_seeds_of_one_recipe_are_told_apart(page, reading, capsys):
    one = write_run(page / "one", seed=1, discrimination=0.1, accuracy=0.9)
    for other in (
        write_run(page / "same", seed=1, discrimination=0.1, accuracy=0.9),
        write_run(page / "longer", seed=2, discrimination=0.1, accuracy=0.9, val_split="none"),
    ):
        with pytest.raises(SystemExit):
            reading.main([one, other, "--into", str(page)])
        assert "are not seeds of one recipe; tell them apart: NAME=FOLDER" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        reading.main([one, "--set", "id_val", "--into", str(page)])
    assert "has no scores of id_val, only of test" in capsys.readouterr().err


def test_the_page_kept_has_its_markers(reading):
    text = (ROOT / "docs" / "READING.md").read_text(encoding="utf-8")
    assert text.count(reading.BEGIN) == text.count(reading.END) == 1
