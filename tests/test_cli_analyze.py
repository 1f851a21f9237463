"""`lnli analyze` and `lnli test --subset` as a user runs them, on runs of the embedded corpus."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path

import polars as pl
import pytest

from lightning_nli.analysis.document import Number
from lightning_nli.cli.main import main

TINY = "--model tiny --lr 1e-3 --epochs 1 --precision fp32 --accelerator cpu --max-length 64 --quiet".split()


def fit(folder: Path, *options: str) -> Path:
    assert main(["fit", "--data", "sample:400", "--run-dir", str(folder), *options]) == 0
    return folder


@pytest.fixture(scope="module")
def blind(tmp_path_factory) -> Path:
    return fit(tmp_path_factory.mktemp("runs") / "blind", "--method", "hyponly-v1", "--quiet")


@pytest.fixture(scope="module")
def overlap(tmp_path_factory) -> Path:
    return fit(tmp_path_factory.mktemp("runs") / "overlap", "--method", "overlap-v1", "--quiet")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> Path:
    return fit(tmp_path_factory.mktemp("runs") / "tiny", *TINY)


@pytest.fixture(scope="module")
def report(tmp_path_factory, blind, overlap) -> Path:
    out = tmp_path_factory.mktemp("reports") / "out"
    assert main(["analyze", "runs", str(blind), str(overlap), "--score", "--out", str(out), "--quiet"]) == 0
    return out


def figures(folder: Path) -> dict:
    return json.loads((folder / "analysis.json").read_text(encoding="utf-8"))


def test_the_report_is_complete(report):
    assert {path.name for path in report.iterdir()} == {
        "report.html", "report.md", "analysis.json", "tables", "figures", "subsets"
    }  # fmt: skip
    drawn = {path.stem for path in (report / "figures").iterdir()}
    assert {"premise-changed", "calibration", "domain", "rule", "jaccard"} <= drawn
    for name in drawn:
        assert (report / "figures" / f"{name}.svg").stat().st_size > 1000
        assert (report / "figures" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    assert {"premise.csv", "errors.csv", "pairs.csv", "hardest.csv"} <= {
        one.name for one in (report / "tables").iterdir()
    }


def test_its_figures_are_those_of_the_runs(report, blind, overlap):
    data = figures(report)
    for part, folder in zip(data["runs"], (blind, overlap), strict=True):
        stored = json.loads((folder / "result.json").read_text())["scores"]["test"]
        first = part["premise"]
        for name in ("discrimination", "random_swap", "rank"):
            assert first[name]["value"] == pytest.approx(stored["premise"][name])
        assert first["accuracy"]["value"] == pytest.approx(stored["accuracy"])
        assert first["macro_f1"]["value"] == pytest.approx(stored["macro_f1"])
        assert part["confusion"] == stored["confusion"]
        assert first["hard"] == stored["hard"]
        total = sum(one["num_rows"] for one in part["calibration"]["bins"])
        assert total == stored["num_examples"] == data["num_rows"]
    assert "blind" in data["verdict"]


def test_the_page_shows_the_figures_of_the_json(report):
    page, data = (report / "report.html").read_text(encoding="utf-8"), figures(report)
    assert page.index(data["verdict"]) < page.index("<table")
    shown = {float(value) for value in re.findall(r'data-value="([^"]+)"', page)}
    estimates = [run["premise"][name] for run in data["runs"] for name in ("discrimination", "rank", "accuracy")]
    estimates += [score["accuracy"] for part in data["slices"] for scores in part["bins"].values() for score in scores]
    estimates += [change["changed"] for run in data["runs"] for change in run["changes"]]
    assert len(estimates) > 100
    for one in estimates:
        assert one["value"] in shown
        text = Number(one["value"], one["low"], one["high"], "", 100, 1).text
        figure, _, interval = text.partition(" ")
        assert f'>{figure} <span class="interval">{interval}<' in page or (one["low"] is None and f">{figure}" in page)


def test_slices_are_counted_as_the_predictions_are(report, overlap):
    data = figures(report)
    table = pl.read_parquet(overlap / "predictions" / "test.parquet")
    right = table["label"].cast(pl.String) == table["predicted"]
    (by_label,) = [part for part in data["slices"] if part["name"] == "label"]
    for score in by_label["bins"]["overlap"]:
        mine = table["label"].cast(pl.String) == score["bin"]
        assert score["num_rows"] == mine.sum()
        assert score["accuracy"]["value"] == pytest.approx((right & mine).sum() / mine.sum())
        assert score["macro_f1"] is None
        assert score["is_few"]  # the set has 62 rows
    lengths = [part for part in data["slices"] if part["name"].startswith("hypothesis-syllables")]
    assert all(sum(score["num_rows"] for score in part["bins"]["blind"]) == table.height for part in lengths)


def test_a_blind_run_does_not_change_and_one_that_looks_does(report):
    blind, overlap = figures(report)["runs"]
    conditions = {"removed", "law_covering", "law_random", "domain", "across"}
    assert {change["condition"] for change in blind["changes"]} == conditions
    assert all(change["changed"]["value"] == 0 for change in blind["changes"])
    assert {change["condition"] for change in overlap["changes"]} == conditions
    assert max(change["changed"]["value"] for change in overlap["changes"]) > 0.2


def test_stored_swaps_are_shown_without_asking_the_model(blind, overlap, capsys):
    assert main(["analyze", "runs", str(overlap), "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    (run,) = data["runs"]
    (hard,) = [one for one in run["changes"] if one["condition"] == "law_covering"]
    assert hard["label"] == "entailment"
    assert hard["num_rows"] == run["premise"]["num_rows"]
    assert data["pairs"] == []


def test_swaps_stored_by_an_earlier_version_are_read_by_their_score(overlap, tmp_path, capsys):
    old = tmp_path / "old"
    (old / "predictions").mkdir(parents=True)
    for name in ("config.yaml", "result.json"):
        (old / name).write_bytes((overlap / name).read_bytes())
    table = pl.read_parquet(overlap / "predictions" / "test.parquet")
    without = table.drop("hard_swap_predicted", "random_swap_predicted")
    without.write_parquet(old / "predictions" / "test.parquet")
    assert main(["analyze", "runs", str(overlap), str(old), "--json"]) == 0
    new, earlier = json.loads(capsys.readouterr().out)["runs"]
    assert new["premise"]["discrimination"] == earlier["premise"]["discrimination"]
    assert new["changes"] == earlier["changes"]


def test_a_trained_encoder_is_asked_again_and_scored_on_a_subset(tiny, report, capsys):
    assert main(["analyze", "runs", str(tiny), "--score", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    (run,) = data["runs"]
    assert {change["condition"] for change in run["changes"]} >= {"removed", "law_covering", "across"}
    (cut,) = [part for part in data["slices"] if part["name"] == "truncation-tiny"]
    assert {score["bin"] for score in cut["bins"]["tiny"]} == {"up to 64 tokens", "truncated at 64 tokens"}
    stored = (tiny / "result.json").read_bytes()
    subset = report / "subsets" / "hard.txt"  # of the same rows
    assert main(["test", str(tiny), "--subset", str(subset), "--json"]) == 0
    scores = json.loads(capsys.readouterr().out)
    hard = json.loads(stored)["scores"]["test"]["hard"]
    assert set(scores) == {"test"}
    assert scores["test"]["num_examples"] == hard["num_examples"] == len(subset.read_text().split())
    assert scores["test"]["hard"]["recall"] == hard["recall"]
    assert (tiny / "result.json").read_bytes() == stored


def test_a_subset_of_foreign_ids_is_refused(tiny, tmp_path, capsys):
    ids = tmp_path / "ids.txt"
    for content, message in (
        ("no-such-row\n", "1 of 1 ids are of no row of id_val, test, as 'no-such-row'"),
        ("\n", "holds no id"),
    ):
        ids.write_text(content)
        assert main(["test", str(tiny), "--subset", str(ids)]) == 2
        assert message in capsys.readouterr().err
    assert main(["test", str(tiny), "--subset", str(tmp_path / "absent.txt")]) == 2
    assert "cannot be read" in capsys.readouterr().err


def test_mistakes_are_named_before_anything_is_done(blind, report, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    other = tmp_path / "other"
    assert main(["fit", "--data", "sample:300", "--method", "majority", "--run-dir", str(other), "--quiet"]) == 0
    capsys.readouterr()
    for arguments, message in (
        (["runs", "absent"], "absent is not a run folder"),
        (["runs", str(blind), "--set", "dev"], "--set dev: the first run scores id_val, test"),
        (["runs", str(blind), str(blind)], "is given twice"),
        (["runs", str(blind), str(other)], "scored"),
        (["runs", str(blind), "--out", str(report)], "--force replaces it"),
        (["data", "absent.csv"], "absent.csv"),
    ):
        assert main(["analyze", *arguments]) == 2
        assert message in capsys.readouterr().err
    assert {path.name for path in tmp_path.iterdir()} == {"other"}


@pytest.fixture(scope="module")
def corpus_report(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("reports") / "corpus"
    assert main(["analyze", "data", "sample:400", "--out", str(out), "--quiet"]) == 0
    return out


def test_a_corpus_report_begins_with_what_hypotheses_give_away(corpus_report):
    page, data = (corpus_report / "report.html").read_text(encoding="utf-8"), figures(corpus_report)
    assert "never reads the premise" in data["verdict"]
    assert page.index(html.escape(data["verdict"])) < page.index("<table")
    drawn = {path.name for path in (corpus_report / "figures").iterdir()}
    assert {"domains.svg", "rules.png", "lengths-syllables.svg", "overlap-syllables.png"} <= drawn
    shown = {float(value) for value in re.findall(r'data-value="([^"]+)"', page)}
    means = [row["mean"] for row in data["overlap"] + data["lengths"]]
    means += [data["blind"][name]["accuracy"] for name in ("majority", "hypothesis_only", "premise_only")]
    assert len(means) > 30
    assert set(means) <= shown


def test_its_tables_count_every_row(corpus_report):
    tables = corpus_report / "tables"
    assert pl.read_csv(tables / "splits.csv")["rows"].sum() == 400
    domains = pl.read_csv(tables / "domains.csv")
    assert domains["weighted rows"].sum() == pytest.approx(400)
    assert domains["rows"].sum() > 400  # some rows have two fields
    assert not [one for one in tables.iterdir() if "table-7" in one.name or "table-12" in one.name]  # another corpus
    cells = pl.read_csv(tables / "rows-by-split-domain-label-rule.csv")
    assert cells["weighted rows"].sum() == pytest.approx(400)
