"""`lnli score`: the figures of any predictions file, under a named convention."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest
from sklearn import metrics as sk

from lightning_nli.cli.score import main
from lightning_nli.metrics import LabelNames, MacroOver, score
from lightning_nli.types import UserError

ONLY_PREDICTED = {  # case M02: one neutral row is taken for a label that gold does not hold
    "gold": ["entailment", "entailment", "neutral", "neutral", "contradiction", "contradiction"],
    "pred": ["entailment", "entailment", "neutral", "other", "contradiction", "contradiction"],
}
BINARY_ROWS = {
    "id": [1, 2, 3, 4, 5],
    "label": ["Entailment", "not-entailment", "entailed", "-", "non entailment"],
    "predicted": ["entailment", "entailment", "non_entailment", "entailment", "non_entailment"],
    "prob_entailment": [0.75, 0.625, 0.25, 0.5, 0.125],
    "prob_not_entailment": [0.25, 0.375, 0.75, 0.5, 0.875],
    "group_id": ["a", "a", "b", "b", "c"],
    "domains": [
        ["Thuế - Phí - Lệ Phí", "tax_fees"], ["tax_fees", "Văn hoá - Xã hội"], ["thuế mới"], ["thuế mới"], []
    ],
}  # fmt: skip


def write(path: Path, columns: dict[str, list[object]]) -> str:
    texts = {
        name: [json.dumps(value, ensure_ascii=False) if isinstance(value, list) else value for value in values]
        for name, values in columns.items()
    }
    if path.suffix == ".parquet":
        pl.DataFrame(columns).write_parquet(path)
    elif path.suffix in (".csv", ".tsv"):
        pl.DataFrame(texts).write_csv(path, separator="\t" if path.suffix == ".tsv" else ",", quote_style="necessary")
    else:
        rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        lines = json.dumps(rows) if path.suffix == ".json" else "\n".join(map(json.dumps, rows))
        path.write_text(lines, encoding="utf-8")
    return str(path)


def scores_of(capsys: pytest.CaptureFixture[str], *argv: str) -> dict:
    assert main([*argv, "--json"]) == 0
    (report,) = json.loads(capsys.readouterr().out)["files"]
    return report


def test_m02_the_convention_stands_beside_the_figure(tmp_path, capsys):
    file = write(tmp_path / "p.jsonl", ONLY_PREDICTED)
    assert main([file]) == 0
    out = capsys.readouterr().out
    (line,) = [line for line in out.splitlines() if "macro-F1" in line]
    assert "labels in gold or predictions" in line and "0.6667" in line and "0.8889" not in out
    assert "4 of 4" in out
    assert main([file, "--macro-over", "gold"]) == 0
    out = capsys.readouterr().out
    (line,) = [line for line in out.splitlines() if "macro-F1" in line]
    assert "labels in gold only" in line and "0.8889" in line
    assert "3 of 4" in out


def test_m02_equals_scikit_learn_and_the_scorer_of_runs(tmp_path, capsys):
    report = scores_of(capsys, write(tmp_path / "p.jsonl", ONLY_PREDICTED))
    gold, predicted = ONLY_PREDICTED["gold"], ONLY_PREDICTED["pred"]
    assert report["macro_f1"] == pytest.approx(sk.f1_score(gold, predicted, average="macro"))
    frame = pl.DataFrame({"label": gold, "predicted": predicted})
    labels = LabelNames(["entailment", "neutral", "contradiction", "other"])
    scores = score(frame, labels, macro_over=MacroOver.GOLD)
    assert scores.macro_f1 == pytest.approx(
        sk.f1_score(gold, predicted, average="macro", labels=["contradiction", "entailment", "neutral"])
    )
    assert scores.labels_present == ["entailment", "neutral", "contradiction"]
    assert scores.accuracy == report["accuracy"] == pytest.approx(5 / 6)


def test_m01_m04_absent_labels_do_not_count_and_accuracy_is_micro(tmp_path, capsys):
    absent = {"gold": list("eenncc"), "prediction": list("eenccc")}
    report = scores_of(capsys, write(tmp_path / "p.tsv", absent), "--labels", "e,n,c,o")
    assert round(report["macro_f1"], 4) == 0.8222
    assert (report["labels_present"], report["label_names"]) == (["e", "n", "c"], ["e", "n", "c", "o"])
    majority = {"gold_label": list("eeeeeeeenc"), "predicted_label": ["e"] * 10}
    report = scores_of(capsys, write(tmp_path / "p.csv", majority), "--labels", "e,n,c")
    assert report["accuracy"] == 0.8
    assert round(report["macro_recall"], 4) == 0.3333


def test_the_published_inputs(shared: Path, capsys):
    folder = shared / "cases" / "inputs" / "metrics"
    figures = {}
    for name in ("absent_class", "pred_only_class", "batches_of_4", "majority_only"):
        figures[name] = scores_of(capsys, str(folder / f"{name}.jsonl"))
    assert [round(report["macro_f1"], 4) for report in figures.values()] == [0.8222, 0.6667, 0.6667, 0.2963]
    assert figures["majority_only"]["accuracy"] == 0.8
    assert all(report["domains"]["thue"]["macro_f1"] == report["macro_f1"] for report in figures.values())


@pytest.mark.parametrize("suffix", [".jsonl", ".json", ".csv", ".tsv", ".parquet"])
def test_every_kind_of_file_gives_the_same_figures(suffix, tmp_path, capsys):
    columns = dict(BINARY_ROWS)
    if suffix == ".tsv":  # tabs and no quoting: lists as one name
        columns["domains"] = ["tax_fees", "Văn hoá - Xã hội", "thuế mới", "thuế mới", ""]
    report = scores_of(capsys, write(tmp_path / f"p{suffix}", columns))
    assert (report["num_examples"], report["rows_without_gold"]) == (4, 1)
    assert report["label_names"] == ["non_entailment", "entailment"]
    assert report["confusion"] == [[1, 1], [1, 1]]
    assert report["accuracy"] == 0.5
    assert report["group_accuracy"] == pytest.approx(1 / 3)
    gold, probability = [1, 0, 1, 0], [0.75, 0.625, 0.25, 0.125]
    assert report["loss"] == pytest.approx(sk.log_loss(gold, probability))
    assert len(report["notes"]) == 1


def test_a_row_counts_in_each_of_its_domains(tmp_path, capsys):
    file = write(tmp_path / "p.parquet", BINARY_ROWS)
    domains = scores_of(capsys, file)["domains"]
    assert {name: scores["num_examples"] for name, scores in domains.items()} == {
        "tax_fees": 2, "culture_society": 1, "none": 1, "thuế mới": 1
    }  # fmt: skip
    assert [domains[name]["accuracy"] for name in ("tax_fees", "culture_society", "thuế mới", "none")] == [0.5, 0, 0, 1]
    assert domains["tax_fees"]["loss"] is not None
    assert main([file]) == 0
    out = capsys.readouterr().out
    assert "a row counts in each of its domains" in out
    assert "Thuế - Phí - Lệ Phí" in out


def test_a_predicted_label_that_is_not_the_most_probable_is_noted(tmp_path, capsys):
    columns = BINARY_ROWS | {
        "prob_entailment": [0.25, 0.6, 0.2, 0.5, 0.1],
        "prob_not_entailment": [0.75, 0.4, 0.8, 0.5, 0.9],
    }
    notes = scores_of(capsys, write(tmp_path / "p.jsonl", columns))["notes"]
    assert "1 rows: the predicted label is not the most probable one" in notes


def test_a_runs_own_predictions_give_its_own_loss(tmp_path, capsys):
    """A run stores the exact loss of each row, which an fp32 probability of 0 could not give."""
    columns = {
        "label": ["entailment", "entailment"],
        "predicted": ["entailment", "non_entailment"],
        "prob_non_entailment": [0.5, 1.0],
        "prob_entailment": [0.5, 0.0],
        "loss": [0.5, 200.0],
    }
    assert scores_of(capsys, write(tmp_path / "p.parquet", columns))["loss"] == 100.25


def test_several_files_stand_side_by_side(tmp_path, capsys):
    one, other = write(tmp_path / "one.jsonl", ONLY_PREDICTED), write(tmp_path / "other.csv", BINARY_ROWS)
    assert main([one, other]) == 0
    out = capsys.readouterr().out
    (line,) = [line for line in out.splitlines() if "│ accuracy" in line]
    assert "0.8333" in line and "0.5000" in line
    assert main([one, other, "--json"]) == 0
    assert [report["file"] for report in json.loads(capsys.readouterr().out)["files"]] == [one, other]


SUPPORT = {"gold": ["support"], "pred": ["support"]}
ANOTHER_SET = "if it is of another label set: --labels"


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"label": ["entailment"]}, "no column for the predicted label, expected 'predicted' or 'prediction'"),
        ({"pred": ["entailment"]}, "no column for the gold label, expected 'gold' or 'gold_label' or 'label'"),
        (
            {"gold": ["neutral", "neutrl"], "pred": ["neutral"] * 2},
            "row 2, column 'gold': unknown label 'neutrl'; did you mean 'neutral'?",
        ),
        (
            {"gold": ["neutral"] * 3, "pred": ["neutral", "yes", "no"]},
            f"row 2, column 'pred': unknown label 'yes' (and 1 more rows); {ANOTHER_SET} neutral,no,yes",
        ),
        (
            {"gold": ["1", "0"], "pred": ["1", "1"]},
            f"row 1, column 'gold': unknown label '1' (and 1 more rows); {ANOTHER_SET} 0,1",
        ),
        ({"gold": ["support", "neutral"], "pred": ["support"] * 2}, "labels neutral, support are of no one set"),
        ({"gold": ["-", None, ""], "pred": ["neutral"] * 3}, "no row has a gold label in its column 'gold'"),
        ({"gold": ["neutral"] * 2, "pred": ["neutral", None]}, "row 2, column 'pred': no prediction for a row with"),
        (SUPPORT | {"prob_support": [1.0]}, "columns ['prob_refute', 'prob_unrelated'] are missing"),
        (SUPPORT | {"prob_support": ["x"], "prob_refute": [0], "prob_unrelated": [0]}, "1 rows have no number in"),
    ],
)
def test_what_cannot_be_scored_is_said_with_its_row(columns, message, tmp_path):
    with pytest.raises(UserError) as caught:
        main([write(tmp_path / "p.jsonl", columns)])
    assert message in str(caught.value)


def test_labels_given_are_checked(tmp_path):
    file = write(tmp_path / "p.jsonl", {"gold": ["yes", "no"], "pred": ["yes", "No"]})
    with pytest.raises(
        UserError, match="row 2, column 'pred': label 'No' is not in --labels yes,no; did you mean 'no'"
    ):
        main([file, "--labels", "yes,no"])
    for labels in ("a", "a,b,a", "a,,b"):
        with pytest.raises(UserError, match=f"--labels {labels}: give two or more different names"):
            main([file, "--labels", labels])


def test_an_unscored_row_may_hold_anything(tmp_path, capsys):
    columns = {"gold": ["neutral", None], "pred": ["neutral", "garbage"]}
    report = scores_of(capsys, write(tmp_path / "p.jsonl", columns))
    assert (report["num_examples"], report["rows_without_gold"]) == (1, 1)


def test_labels_given_by_name_are_taken_exactly(tmp_path, capsys):
    columns = {"gold": ["-1", "1", ""], "pred": ["-1", "-1", "1"], "prob_-1": [0.5, 0.5, 1], "prob_1": [0.5, 0.5, 0]}
    report = scores_of(capsys, write(tmp_path / "p.jsonl", columns), "--labels", "-1, 1")
    assert report["confusion"] == [[1, 0], [1, 0]]
    assert report["loss"] == pytest.approx(0.6931472)


def test_an_absent_file_is_a_users_mistake(tmp_path):
    with pytest.raises(UserError, match="no such file"):
        main([str(tmp_path / "absent.csv")])
