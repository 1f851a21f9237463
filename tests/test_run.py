"""`lnli` as a user runs it: fit, test, predict, export, stop and go on; one process, a tiny encoder, sample data."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest
import torch

from lightning_nli.cli.main import main
from lightning_nli.data.readers import read_source
from lightning_nli.metrics import score
from lightning_nli.models.dropout import FastDropout
from lightning_nli.models.module import NLIModule
from lightning_nli.training.checkpoint import CheckpointIndex, read_weights
from lightning_nli.types import BINARY

SMALL = "--data sample:400 --model tiny --lr 1e-3 --batch-size 16 --precision fp32 --accelerator cpu --quiet".split()


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("run") / "finished"
    assert main(["fit", *SMALL, "--epochs", "2", "--run-dir", str(folder)]) == 0
    return folder


@pytest.fixture(scope="module")
def pairs(tmp_path_factory) -> Path:
    """The sample's test pairs as JSON lines, with a column of the user's own and untidy text."""
    path = tmp_path_factory.mktemp("pairs") / "pairs.jsonl"
    rows = read_source("sample:400#test").frame.select("premise", "hypothesis").to_dicts()
    for index, row in enumerate(rows):
        row["note"] = f"raw\u2028{index}"
        row["number"], row["list"] = index, [index, None]
        row["hypothesis"] += "\u00ad"
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path


def read_lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_bytes().split(b"\n") if line]


def test_the_run_folder_holds_all_of_it(finished):
    names = {path.name for path in finished.iterdir()}
    assert {
        "config.yaml",
        "environment.json",
        "metrics.csv",
        "result.json",
        "checkpoints",
        "predictions",
        "tb",
    } <= names
    assert any((finished / "tb").iterdir())
    result = json.loads((finished / "result.json").read_text())
    assert result["schema"] == 1
    assert result["status"] == "finished"
    assert result["label_names"] == ["non_entailment", "entailment"]
    assert result["selection"]["split"] == "id_val"
    assert result["selection"]["metric"] == "id_val/macro_f1"
    entry = result["scores"]["test"]
    assert {
        "num_examples",
        "accuracy",
        "macro_precision",
        "macro_recall",
        "macro_f1",
        "loss",
        "per_class",
        "confusion",
        "labels_present",
        "group_accuracy",
        "premise",
        "hard",
    } <= set(entry)
    assert {"discrimination", "random_swap", "rank", "num_rows", "gain"} <= set(entry["premise"])
    assert {"num_examples", "recall", "balanced", "baseline"} <= set(entry["hard"])
    assert entry["group_accuracy"] is None  # missing is null
    assert result["cost"]["wall_s"] > 0
    assert result["cost"]["peak_rss_gib"] > 0


def test_predictions_are_the_source_of_the_scores(finished):
    table = pl.read_parquet(finished / "predictions" / "test.parquet")
    entry = json.loads((finished / "result.json").read_text())["scores"]["test"]
    again = score(table, BINARY).as_dict()
    assert again["accuracy"] == entry["accuracy"]
    assert again["macro_f1"] == entry["macro_f1"]
    assert again["loss"] == pytest.approx(entry["loss"])
    corpus = read_source("sample:400#test").frame
    assert table["example_id"].to_list() == corpus["example_id"].to_list()


def test_a_finished_run_is_never_overwritten(finished, capsys):
    before = (finished / "result.json").read_bytes()
    assert main(["fit", *SMALL, "--epochs", "2", "--run-dir", str(finished)]) == 2
    assert "finished run" in capsys.readouterr().err
    assert (finished / "result.json").read_bytes() == before


def test_lnli_test_repeats_the_scores(finished, capsys):
    assert main(["test", str(finished), "--json", "--quiet"]) == 0
    scores = json.loads(capsys.readouterr().out)
    assert scores == json.loads((finished / "result.json").read_text())["scores"]


def test_m09_pack_size_changes_no_figure(finished, capsys):
    found = []
    for tokens in ("256", "1000", "16384"):
        assert main(["test", str(finished), "--json", "--checkpoint", "last", "--eval-max-tokens", tokens]) == 0
        found.append(json.loads(capsys.readouterr().out)["test"])
    for other in found[1:]:
        assert other["confusion"] == found[0]["confusion"]
        assert other["loss"] == pytest.approx(found[0]["loss"], abs=1e-5)


def test_predict_keeps_order_and_raw_text(finished, pairs, tmp_path):
    out = tmp_path / "labels.jsonl"
    assert main(["predict", str(finished), str(pairs), str(out), "--chunk-rows", "7", "--quiet"]) == 0
    rows, raw = read_lines(out), read_lines(pairs)
    assert [{name: row[name] for name in raw[0]} for row in rows] == raw
    table = pl.read_parquet(finished / "predictions" / "test.parquet")
    assert [row["predicted"] for row in rows] == table["predicted"].to_list()
    own = table["prob_entailment"].to_list()
    assert [row["prob_entailment"] for row in rows] == pytest.approx(own, abs=1e-5)
    assert main(["predict", str(finished), str(pairs), str(out), "--quiet"]) == 2  # never overwritten unasked


def test_s05_predict_on_two_processes_writes_the_same_file(finished, pairs, tmp_path):
    one, two = tmp_path / "one.jsonl", tmp_path / "two.jsonl"
    assert main(["predict", str(finished), str(pairs), str(one), "--chunk-rows", "5", "--quiet"]) == 0
    assert main(["predict", str(finished), str(pairs), str(two), "--chunk-rows", "5", "--devices", "2", "--quiet"]) == 0
    first, second = read_lines(one), read_lines(two)
    assert [row["note"] for row in first] == [row["note"] for row in second]
    for mine, theirs in zip(first, second, strict=True):
        assert mine["predicted"] == theirs["predicted"]
        assert mine["prob_entailment"] == pytest.approx(theirs["prob_entailment"], abs=1e-6)


def test_predict_names_the_row_with_an_empty_text_and_writes_nothing(finished, tmp_path, capsys):
    source, out = tmp_path / "in.csv", tmp_path / "out.csv"
    source.write_text("premise,hypothesis\nA b,C\nA b,\n", encoding="utf-8")
    assert main(["predict", str(finished), str(source), str(out), "--quiet"]) == 2
    assert "row 2" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [source]
    assert main(["predict", str(finished), str(source), str(out), "--quiet", "--on-bad-row", "null"]) == 0
    lines = out.read_text().splitlines()
    assert len(lines) == 3
    assert lines[2].startswith("A b,,,")


def test_export_answers_as_we_do_through_the_hugging_face_pipeline(finished, pairs, tmp_path):
    from transformers import pipeline

    target = tmp_path / "model"
    assert main(["export", str(finished), str(target)]) == 0
    classify = pipeline("text-classification", str(target), device="cpu", top_k=None)
    raw = read_lines(pairs)
    inputs = [{"text": row["premise"], "text_pair": row["hypothesis"]} for row in raw]
    answers = [classify(one, truncation=True) for one in inputs]
    table = pl.read_parquet(finished / "predictions" / "test.parquet")
    assert [max(answer, key=lambda a: a["score"])["label"] for answer in answers] == table["predicted"].to_list()
    scores = [next(a["score"] for a in answer if a["label"] == "entailment") for answer in answers]
    assert scores == pytest.approx(table["prob_entailment"].to_list(), abs=1e-5)
    assert main(["export", str(finished), str(target)]) == 2  # never into a folder that holds something


def test_k11_scores_are_those_of_the_best_checkpoint_not_the_last(tmp_path):
    """A learning rate that ruins the model in the second epoch: the first one is best, and is what test scores."""
    folder = tmp_path / "run"
    settings = [*SMALL, "--epochs", "2", "--lr", "3e-3", "--schedule", "constant", "--monitor", "id_val/loss"]
    settings.remove("1e-3")
    settings.remove("--lr")
    assert main(["fit", *settings, "--run-dir", str(folder)]) == 0
    index = CheckpointIndex.read(folder / "checkpoints")
    scores = {entry.name: entry.score for entry in index.saved}
    best = min(scores, key=lambda name: scores[name])
    result = json.loads((folder / "result.json").read_text())
    assert result["selection"]["checkpoint"] == index.best == best
    assert result["scores"]["id_val"]["loss"] == pytest.approx(scores[best], rel=1e-4)


def test_k07_our_checkpoints_load_with_weights_only(finished):
    index = CheckpointIndex.read(finished / "checkpoints")
    for entry in index.saved:
        checkpoint = torch.load(finished / "checkpoints" / entry.name, weights_only=True)
        assert checkpoint["lightning_nli"]["config_hash"]


def test_k10_a_run_stopped_at_every_step_sees_each_row_once_and_ends_with_the_weights_of_one_never_stopped(
    tmp_path, monkeypatch
):
    """Mid-epoch: order, schedule, optimizer and dropout go on where they stopped; bit-equal in one process."""
    rows, training_step = [], NLIModule.training_step

    def noted(module, batch, batch_idx):
        rows.append(batch.example_ids.tolist())
        return training_step(module, batch, batch_idx)

    monkeypatch.setattr(NLIModule, "training_step", noted)
    base = "--data sample:120 --model tiny --lr 1e-3 --batch-size 16 --precision fp32 --accelerator cpu --quiet".split()
    base += ["--epochs", "2", "--accumulate", "2"]
    whole, pieces = tmp_path / "whole", tmp_path / "pieces"
    assert main(["fit", *base, "--run-dir", str(whole)]) == 0
    rows_of_whole, rows[:] = list(rows), []
    codes = []
    for _ in range(30):
        codes.append(main(["fit", *base, "--run-dir", str(pieces), "--resume", "auto", "--max-time", "0"]))
        if codes[-1] == 0:
            break
    assert codes[:3] == [75, 75, 75]
    assert codes[-1] == 0
    assert rows == rows_of_whole
    half = len(rows) // 2
    first_epoch, second_epoch = (sorted(row for pack in packs for row in pack) for packs in (rows[:half], rows[half:]))
    assert first_epoch == second_epoch and len(first_epoch) == len(set(first_epoch))
    last = [CheckpointIndex.read(folder / "checkpoints").last for folder in (whole, pieces)]
    assert last[0].step == last[1].step
    first, second = (
        read_weights(folder / "checkpoints" / entry.name) for folder, entry in zip((whole, pieces), last, strict=True)
    )
    assert first.keys() == second.keys()
    for name, value in first.items():
        assert torch.equal(value, second[name]), name
    scores = [json.loads((folder / "result.json").read_text())["scores"] for folder in (whole, pieces)]
    assert scores[0]["test"]["loss"] == scores[1]["test"]["loss"]


@pytest.mark.parametrize(("flags", "p"), [([], 0.1), (["--dropout", "0.3"], 0.3), (["--dropout", "0"], 0.0)])
def test_a_run_trains_with_dropout_and_is_scored_without(tmp_path, monkeypatch, flags, p):
    seen, steps = {"training_step": [], "validation_step": []}, {}

    def noted(name):
        def step(module, batch, batch_idx):
            layers = [layer for layer in module.modules() if isinstance(layer, FastDropout | torch.nn.Dropout)]
            seen[name] += [(layer.training, layer.p) for layer in layers]
            return steps[name](module, batch, batch_idx)

        return step

    for name in seen:
        steps[name] = getattr(NLIModule, name)
        monkeypatch.setattr(NLIModule, name, noted(name))
    base = "--data sample:120 --model tiny --epochs 2 --precision fp32 --accelerator cpu --test-split none --quiet"
    assert main(["fit", *base.split(), *flags, "--run-dir", str(tmp_path / "run")]) == 0
    assert set(seen["training_step"]) == {(True, p)}  # in the second epoch, after a validation, too
    assert set(seen["validation_step"]) == {(False, p)}


def test_an_unfinished_run_is_refused_without_resume(tmp_path, capsys):
    folder = tmp_path / "run"
    base = [*SMALL, "--epochs", "1", "--run-dir", str(folder)]
    assert main(["fit", *base, "--max-time", "0"]) == 75
    assert "--resume auto" in capsys.readouterr().err
    assert main(["fit", *base]) == 2
    assert "unfinished" in capsys.readouterr().err
    assert main(["fit", *base, "--resume", "auto", "--seed", "5"]) == 2
    assert "seed: 1 -> 5" in capsys.readouterr().err


def test_hypothesis_only_run_gives_premise_gain_to_its_twin(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    base = [*SMALL, "--epochs", "1"]
    assert main(["fit", *base]) == 0
    (run,) = Path("runs").iterdir()
    assert json.loads((run / "result.json").read_text())["scores"]["test"]["premise"]["gain"] is None
    assert main(["fit", *base, "--segments", "hypothesis"]) == 0
    (blind,) = set(Path("runs").iterdir()) - {run}
    entry = json.loads((blind / "result.json").read_text())["scores"]["test"]
    assert entry["premise"]["discrimination"] == 0.0  # what never sees the premise cannot tell premises apart
    assert entry["premise"]["rank"] == 0.5
    assert main(["test", str(run), "--quiet"]) == 0
    updated = json.loads((run / "result.json").read_text())["scores"]["test"]
    assert updated["premise"]["gain"] == pytest.approx(updated["accuracy"] - entry["accuracy"])


def test_swapped_premises_are_added_to_training_only(tmp_path):
    folder = tmp_path / "run"
    assert main(["fit", *SMALL, "--epochs", "1", "--augment", "premise_swap=1+1", "--run-dir", str(folder)]) == 0
    result = json.loads((folder / "result.json").read_text())
    rows = read_source("sample:400").frame
    published = rows.filter(pl.col("split") == "train")
    entailed = published.filter(pl.col("label") == "entailment").height
    assert published.height < result["data"]["train_rows"] <= published.height + 2 * entailed
    assert result["scores"]["test"]["num_examples"] == rows.filter(pl.col("split") == "test").height
    assert result["scores"]["test"]["premise"]["trained_on_swaps"] is True


@pytest.mark.parametrize("method", ["majority", "hyponly-v1", "overlap-v1"])
def test_baselines_are_runs_too(tmp_path, method):
    folder = tmp_path / method
    assert main(["fit", "--data", "sample:400", "--method", method, "--quiet", "--run-dir", str(folder)]) == 0
    entry = json.loads((folder / "result.json").read_text())["scores"]["test"]
    assert entry["num_examples"] > 30
    if method != "overlap-v1":
        assert entry["premise"]["discrimination"] == 0.0


def test_own_csv_file_draws_its_validation_rows(tmp_path):
    rows = read_source("sample:300").frame.select("premise", "hypothesis", "label")
    source, folder = tmp_path / "mine.csv", tmp_path / "run"
    rows.write_csv(source)
    settings = [*SMALL, "--epochs", "1", "--run-dir", str(folder), "--test-data", f"again={source}"]
    settings[settings.index("sample:400")] = str(source)
    assert main(["fit", *settings]) == 0
    result = json.loads((folder / "result.json").read_text())
    val, again = result["scores"]["id_val"]["num_examples"], result["scores"]["again"]["num_examples"]
    assert again == rows.height
    assert result["data"]["train_rows"] + val == rows.height
    assert 0.08 < val / rows.height < 0.13


def test_dry_run_trains_nothing(tmp_path, capsys):
    folder = tmp_path / "run"
    assert main(["fit", *SMALL, "--run-dir", str(folder), "--dry-run"]) == 0
    assert "optimizer steps" in capsys.readouterr().out
    assert not folder.exists()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["--train-split", "dev", "--val-split", "dev"], "the same rows would train and choose"),
        (["--max-length", "600"], "reads at most 512 tokens"),
        (["--attention", "flash"], "needs a GPU"),
        (["--precision", "fp16"], "needs a GPU"),
        (["--augment", "premise_swap"], "premise_swap=H+R"),
        (["--segments", "hypothesis,condition"], "condition"),
        (["--devices", "3", "--accelerator", "gpu"], "GPUs"),
    ],
)
def test_settings_that_cannot_be_served_are_refused_in_one_line(tmp_path, capsys, settings, message):
    base = [*SMALL, "--run-dir", str(tmp_path / "run")]
    if "--precision" in settings:
        del base[base.index("--precision") : base.index("--precision") + 2]
    if "--accelerator" in settings:
        del base[base.index("--accelerator") : base.index("--accelerator") + 2]
    assert main(["fit", *base, *settings]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.strip().splitlines()) == 1


def test_d08_rows_without_a_gold_label_are_never_scored(tmp_path, capsys):
    rows = read_source("sample:200").frame.select("premise", "hypothesis", "label", "split").to_dicts()
    rows[0]["label"], rows[1]["label"], rows[2]["label"] = "-", -1, None
    source, folder = tmp_path / "mine.jsonl", tmp_path / "run"
    source.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    settings = [*SMALL, "--epochs", "1", "--run-dir", str(folder)]
    settings[settings.index("sample:400")] = str(source)
    assert main(["fit", *settings]) == 2
    assert "row 3" in capsys.readouterr().err
    assert main(["fit", *settings, "--on-bad-row", "drop"]) == 0
    result = json.loads((folder / "result.json").read_text())
    assert result["data"]["bad_rows"] == 3
    assert len((folder / "bad_rows.csv").read_text().splitlines()) == 4
    scored = sum(result["scores"][name]["num_examples"] for name in ("id_val", "test"))
    assert result["data"]["train_rows"] + scored == len(rows) - 3
