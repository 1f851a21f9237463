"""SetFit: pairs counted and bounded before they are drawn, labels pinned by name, one run folder like any other."""

from __future__ import annotations

import json
import logging
import sys
import time

import numpy as np
import polars as pl
import pytest
from tiny_models import stand_in

from lightning_nli.cli.main import main
from lightning_nli.config import config_hash, load_config, parse_config, save_config
from lightning_nli.explain.lime_text import LimeSettings, explain_example
from lightning_nli.explain.models import RunModel
from lightning_nli.training.run import train
from lightning_nli.training.setfit import SetFitScorer
from lightning_nli.training.setfit_pairs import draw_pairs, plan_pairs
from lightning_nli.training.trained import open_run
from lightning_nli.types import THREE_WAY, UserError

ORDER = ("neutral", "entailment", "contradiction")  # neither the scheme's order nor the alphabet's
FLAGS = "--method setfit --lr 1e-3 --batch-size 8 --max-length 24 --accelerator cpu --val-split none --seed 3".split()
WORDS = {"neutral": "trăng sao", "entailment": "đúng vậy", "contradiction": "sai không"}


def write_rows(path, copies: int):
    lines = [
        {"id": f"{copy}-{label}", "premise": f"câu {copy}", "hypothesis": f"{WORDS[label]} {copy}", "label": label}
        for copy in range(copies)
        for label in ORDER
    ]
    path.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return stand_in("all-minilm-l12", tmp_path_factory.mktemp("minilm") / "model")


@pytest.fixture(scope="module")
def nine(tmp_path_factory):
    return write_rows(tmp_path_factory.mktemp("nine") / "nine.jsonl", 3)


@pytest.fixture(scope="module")
def finished(model, nine, tmp_path_factory):
    folder = tmp_path_factory.mktemp("run") / "setfit"
    flags = [
        *FLAGS,
        "--model",
        str(model),
        "--data",
        str(nine),
        "--test-data",
        f"again={nine}",
        "--num-iterations",
        "2",
    ]
    train(parse_config([*flags, "--run-dir", str(folder)]), quiet=True)
    return folder


def pairs_of(labels, num_each):
    plan = plan_pairs(labels, num_iterations=1, max_pairs=10**9, batch_size=4)
    return plan, type(plan)(len(labels), num_each, plan.unique_equal, plan.unique_different, 4)


def test_nine_rows_have_36_pairs_and_360_are_counted(caplog):
    labels = np.array([0, 1, 2] * 3)
    plan = plan_pairs(labels, num_iterations=20, max_pairs=360, batch_size=16)
    assert (plan.num_pairs, plan.unique_equal + plan.unique_different, plan.num_steps) == (360, 36, 23)
    assert plan.has_repeats and "360 pairs drawn from 36 unique" in plan.describe() and "repeat" in plan.describe()
    with pytest.raises(UserError, match=r"draws 360 pairs, above --max-pairs 359; lower --num-iterations"):
        plan_pairs(labels, num_iterations=20, max_pairs=359, batch_size=16)
    assert not plan_pairs(labels, num_iterations=1, max_pairs=18, batch_size=16).has_repeats


@pytest.mark.parametrize("labels", [[0, 1, 2] * 3, [0] * 7 + [2], [1, 0, 1, 1, 0], [0, 0, 1, 2, 2, 2, 2]])
def test_every_pair_comes_once_before_any_comes_twice(labels):
    labels = np.array(labels)
    _, plan = pairs_of(labels, 21)
    pairs, targets = draw_pairs(labels, plan, seed=1)
    assert pairs.shape == (42, 2) and (pairs[:, 0] != pairs[:, 1]).all()
    np.testing.assert_array_equal(targets == 1.0, labels[pairs[:, 0]] == labels[pairs[:, 1]])
    for kind, unique in ((1.0, plan.unique_equal), (0.0, plan.unique_different)):
        seen = [frozenset(pair) for pair in pairs[targets == kind].tolist()]
        counts = [seen.count(pair) for pair in set(seen)]
        assert len(counts) == min(unique, 21) and max(counts) - min(counts) <= 1


def test_a_draw_follows_the_seed_and_is_made_of_the_drawn_pairs_only():
    labels = np.random.default_rng(0).integers(0, 3, 40_000)
    _, plan = pairs_of(labels, 5_000)
    assert plan.unique_equal + plan.unique_different == 40_000 * 39_999 // 2
    started = time.perf_counter()
    pairs, targets = draw_pairs(labels, plan, seed=1)
    assert time.perf_counter() - started < 5  # laid out, the pairs would be 13 GB
    np.testing.assert_array_equal(targets == 1.0, labels[pairs[:, 0]] == labels[pairs[:, 1]])
    assert len({tuple(sorted(pair)) for pair in pairs.tolist()}) == 10_000
    np.testing.assert_array_equal(pairs, draw_pairs(labels, plan, seed=1)[0])
    assert not np.array_equal(pairs, draw_pairs(labels, plan, seed=2)[0])


def test_labels_that_cannot_be_paired_are_refused():
    with pytest.raises(UserError, match="one label"):
        plan_pairs(np.zeros(4, np.int64), num_iterations=1, max_pairs=99, batch_size=4)
    with pytest.raises(UserError, match="a label of its own"):
        plan_pairs(np.arange(3), num_iterations=1, max_pairs=99, batch_size=4)


def test_a_dry_run_says_pairs_and_steps(nine, model, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    flags = ["fit", *FLAGS, "--model", str(model), "--data", str(nine), "--dry-run", "--quiet"]
    assert main([*flags, "--num-iterations", "20"]) == 0
    said = capsys.readouterr().out
    assert "360 pairs drawn from 36 unique ones (9 of one label, 27 of two), 45 steps; some pairs repeat" in said
    assert list(tmp_path.iterdir()) == []
    assert main([*flags, "--num-iterations", "20", "--max-pairs", "100"]) == 2
    assert "above --max-pairs 100" in capsys.readouterr().err


def test_the_run_folder_is_that_of_any_run(finished):
    result = json.loads((finished / "result.json").read_text(encoding="utf-8"))
    assert result["status"] == "finished" and result["label_names"] == THREE_WAY.names
    assert {name: result["setfit"][name] for name in ("pairs", "unique_pairs", "steps", "repeated")} == {
        "pairs": 36,
        "unique_pairs": 36,
        "steps": 5,
        "repeated": True,  # 18 of one label from 9
    }
    assert result["setfit"]["head"] == "OneVsRestClassifier, liblinear"
    assert {"premise", "hard", "macro_f1", "confusion"} <= set(result["scores"]["again"])
    assert (finished / "environment.json").exists() and (finished / "predictions" / "again.parquet").exists()


def test_the_name_of_the_highest_column_is_the_answer_before_and_after_reload(finished, nine, tmp_path):
    import setfit

    table = pl.read_parquet(finished / "predictions" / "again.parquet")
    columns = [f"prob_{name}" for name in THREE_WAY.names]
    highest = [THREE_WAY.names[place] for place in table.select(columns).to_numpy().argmax(1)]
    assert table["predicted"].to_list() == highest
    assert len(set(highest)) > 1  # otherwise any order would do
    opened = open_run(finished)
    assert isinstance(opened.scorer, SetFitScorer) and opened.scheme == THREE_WAY
    rows = pl.read_ndjson(nine).select(pl.col("premise", "hypothesis"), example_id="id", label="label", group_id=None)
    again = opened.scorer.predictions(rows)
    assert again["predicted"].to_list() == highest
    np.testing.assert_allclose(again.select(columns).to_numpy(), table.select(columns).to_numpy(), atol=1e-6)
    assert main(["export", str(finished), str(tmp_path / "model")]) == 0
    exported = setfit.SetFitModel.from_pretrained(str(tmp_path / "model"), device="cpu")
    assert exported.labels == THREE_WAY.names
    assert exported.predict(opened.scorer.texts(rows)) == highest


def test_test_and_predict_give_the_runs_own_answers(finished, nine, tmp_path, capsys):
    before = json.loads((finished / "result.json").read_text(encoding="utf-8"))["scores"]["again"]
    assert main(["test", str(finished), "--json", "--data", f"x={nine}"]) == 0
    assert json.loads(capsys.readouterr().out)["x"]["confusion"] == before["confusion"]
    assert main(["predict", str(finished), str(nine), str(tmp_path / "out.jsonl"), "--quiet"]) == 0
    answers = [json.loads(line)["predicted"] for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert answers == pl.read_parquet(finished / "predictions" / "again.parquet")["predicted"].to_list()
    assert main(["test", str(finished), "--checkpoint", "last"]) == 2
    assert "one stored model" in capsys.readouterr().err


def test_a_run_that_was_stopped_begins_again(finished, model, nine, tmp_path, capsys):
    folder = tmp_path / "stopped"
    flags = ["fit", *FLAGS, "--model", str(model), "--data", str(nine), "--num-iterations", "2", "--quiet"]
    flags += ["--test-data", f"again={nine}", "--run-dir", str(folder)]
    folder.mkdir()
    (folder / "config.yaml").write_bytes((finished / "config.yaml").read_bytes())
    assert main(flags) == 2 and "--resume auto" in capsys.readouterr().err
    assert main([*flags, "--resume", "auto"]) == 0
    tables = [pl.read_parquet(run / "predictions" / "again.parquet") for run in (finished, folder)]
    assert tables[0].equals(tables[1])  # the same seed, the same model
    assert main(flags) == 2 and "holds a finished run" in capsys.readouterr().err


def test_the_encoder_reads_what_our_tokenization_kept(finished):
    scorer = open_run(finished).scorer
    rows = pl.DataFrame({"premise": ["câu " * 60, "một"], "hypothesis": ["đúng vậy", "sai"], "label": [None, None]})
    texts = scorer.texts(rows)
    body = scorer.model.model_body
    lengths = [len(body.tokenizer(text)["input_ids"]) for text in texts]
    assert lengths[0] == 24 > lengths[1]
    assert all(text.count("[SEP]") == 1 and "[CLS]" not in text for text in texts)
    assert texts[0].endswith("đúng vậy")  # the longer text is the one that is cut


def test_a_setfit_run_can_be_explained(finished):
    settings = LimeSettings(num_samples=40, labels=("neutral",))
    texts = {"premise": "câu 1", "hypothesis": "đúng vậy 1"}
    found = explain_example(RunModel(open_run(finished).scorer), "x", texts, settings=settings)
    assert [label.label for label in found.labels] == ["neutral"] and 10 < found.num_distinct <= 2**5
    assert np.abs(found.labels[0].weights).max() > 0


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--method setfit --epochs 5", "leave out: epochs"),
        ("--method setfit --max-tokens 512 --objective reweight", "leave out: objective, max_tokens"),
        ("--method setfit --devices 2 --strategy ddp", "leave out: strategy, devices"),
        ("--method setfit --template markers", "separators"),
        ("--method setfit --num-iterations 0", "above 0"),
        ("--num-iterations 3", "belong to --method setfit"),
        ("--method hyponly-v1 --max-pairs 3", "belong to --method setfit"),
    ],
)
def test_a_setting_that_would_do_nothing_is_refused(flags, message):
    with pytest.raises(UserError, match=message):
        parse_config(flags.split())


def test_settings_of_setfit_move_no_other_runs_hash():
    plain = parse_config([])
    assert config_hash(plain) == config_hash(parse_config(["--method", "finetune"]))
    one, other = (parse_config(["--method", "setfit", "--num-iterations", number]) for number in "12")
    assert config_hash(one) != config_hash(other) != config_hash(plain)


def test_what_cannot_be_trained_is_said(nine, tmp_path, capsys, monkeypatch):
    flags = ["fit", *FLAGS, "--data", str(nine), "--quiet"]
    assert main([*flags, "--model", "cbow", "--run-dir", str(tmp_path / "a")]) == 2
    assert "'cbow' is none" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "setfit", None)
    assert main([*flags, "--model", str(tmp_path), "--run-dir", str(tmp_path / "b")]) == 2
    assert "pip install 'lightning-nli[setfit]'" in capsys.readouterr().err
    logging.getLogger("lightning_nli").propagate = True


def test_its_settings_survive_yaml(tmp_path):
    config = parse_config("--method setfit --num-iterations 7 --max-pairs 99 --lr 1e-3".split())
    save_config(config, tmp_path / "c.yaml")
    assert load_config(tmp_path / "c.yaml") == config != parse_config(["--method", "setfit"])
