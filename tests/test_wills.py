"""Three-segment corpora: leaks by text, scores of what training has not seen, linear models of law and condition."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest
from test_baselines import examples

from lightning_nli.baselines import hypothesis_only, linear
from lightning_nli.cli.main import main
from lightning_nli.data.readers import read_source
from lightning_nli.metrics import score
from lightning_nli.training.result import linear_scores, unseen_scores
from lightning_nli.types import BINARY, WILLS, UserError

YES, NO = "entailment", "non_entailment"
SPLITS = ("train", "dev", "test")


@pytest.fixture(scope="module")
def corpus(shared: Path) -> dict[str, pl.DataFrame]:
    frame = read_source(f"wills:{shared}/data/nli4wills").frame
    return {split: frame.filter(pl.col("split") == split) for split in SPLITS}


def test_the_published_splits_and_groups(corpus):
    assert {split: rows.height for split, rows in corpus.items()} == {"train": 504, "dev": 255, "test": 255}
    sizes = {split: rows.group_by("group_id").len()["len"] for split, rows in corpus.items()}
    assert sizes["test"].to_list() == [5] * 51
    assert sizes["train"].filter(sizes["train"] != 5).to_list() == [4]
    assert sizes["dev"].filter(sizes["dev"] != 5).sort().to_list() == [4, 6]
    by_label = corpus["test"].group_by("group_id", "label").len().pivot("label", index="group_id", values="len")
    even = by_label.filter(pl.col("refute") == 1, pl.col("support") == 1, pl.col("unrelated") == 3)
    assert even.height == 35
    for first, second in (("train", "dev"), ("train", "test"), ("dev", "test")):
        assert not set(corpus[first]["group_id"]) & set(corpus[second]["group_id"])


def test_data_check_says_that_the_text_leaks(shared, capsys):
    source = f"wills:{shared}/data/nli4wills"
    assert main(["data", "check", source, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    found = [{key: value for key, value in one.items() if key not in ("train", "test")} for one in report["shared"]]
    assert found == [
        {"corpus": "wills", "shared_hypotheses": statements, "hypothesis_rows": rows, "shared_premises": laws,
         "premise_rows": law_rows, "shared_groups": 0}
        for statements, rows, laws, law_rows in ((4, 40, 47, 129), (1, 15, 43, 121), (1, 15, 31, 102))
    ]  # fmt: skip
    assert main(["data", "check", source]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "1 hypotheses (15 rows), 43 premises (121 rows); 0 groups by id" in text
    assert (
        "the paper takes leakage between its splits for unlikely; by text, statements and laws stand in several" in text
    )


def test_sources_that_share_nothing_are_not_listed(tmp_path, capsys):
    for name, text in (("a", "luật này"), ("b", "luật kia")):
        row = {"premise": text, "hypothesis": f"câu {name}", "label": YES}
        (tmp_path / f"{name}.jsonl").write_text(json.dumps(row))
    assert main(["data", "check", str(tmp_path / "a.jsonl"), str(tmp_path / "b.jsonl"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["shared"] == []


def test_linear_models_that_never_see_the_statement_are_strong(corpus):
    """Published with the corpus: law alone 85.5 / 79.2 / 43, condition + law 90.6 / 86.9 / 60.8."""
    found = linear_scores(corpus["train"], corpus["test"], WILLS)
    law, both = found["premise"], found["condition,premise"]
    assert (law["accuracy"], law["macro_f1"], law["group_accuracy"]) == pytest.approx((0.851, 0.788, 0.412), abs=0.01)
    assert (both["accuracy"], both["macro_f1"], both["group_accuracy"]) == pytest.approx(
        (0.933, 0.911, 0.686), abs=0.01
    )
    statement = score(hypothesis_only(corpus["train"], corpus["test"], WILLS), WILLS)
    assert statement.accuracy == pytest.approx(139 / 255) and statement.group_accuracy == 0  # the majority


def test_scores_of_unseen_test_rows(corpus):
    answers = linear(corpus["train"], corpus["test"], WILLS, segments=("condition", "premise"))
    found = unseen_scores(corpus["train"], corpus["test"], answers, WILLS)
    assert (found["hypothesis"]["num_examples"], found["hypothesis"]["num_groups"]) == (240, 48)
    new = found["hypothesis,premise"]
    assert new["num_examples"] == 125 and new["majority"] == pytest.approx(116 / 125)  # 116 of them unrelated
    assert "group_accuracy" not in new  # parts of groups


def three_texts(rows: list[tuple[str, str, str, str]]) -> pl.DataFrame:
    frame = examples([(hypothesis, label) for hypothesis, _, _, label in rows])
    conditions, premises = ([row[place] for row in rows] for place in (1, 2))
    return frame.with_columns(condition=pl.Series(conditions), premise=pl.Series(premises))


def test_linear_tells_apart_in_which_text_a_word_stands():
    """The label is whether the premise or the condition says 'luật': one bag of words could not know."""
    rows = [("câu", "luật đây", "khác kia", YES), ("câu", "khác đây", "luật kia", NO)] * 4
    train, asked = three_texts(rows), three_texts(rows[:2])
    for read, accuracy in ((("condition", "premise"), 1.0), (("premise",), 1.0), (("hypothesis",), 0.5)):
        assert score(linear(train, asked, BINARY, segments=read), BINARY).accuracy == accuracy
    assert linear(train, asked, BINARY, segments=("hypothesis",)).equals(hypothesis_only(train, asked, BINARY))
    with pytest.raises(UserError, match="2 rows have no 'condition', which the linear model is to read"):
        linear(train, asked.with_columns(condition=pl.lit(None, pl.String)), BINARY, segments=("condition",))
    with pytest.raises(UserError, match="no training premise holds a word"):
        linear(train.with_columns(premise=pl.lit("...")), asked, BINARY, segments=("premise",))


def test_unseen_rows_by_hand():
    train = three_texts([("Câu một.", "c", "Luật A", YES), ("câu hai", "c", "luật B", NO)])
    asked = three_texts(
        [
            ("CÂU  MỘT", "c", "luật mới", YES),  # known under another spelling
            ("câu ba", "c", "luật a", YES),  # new, of the first row's group
            ("câu bốn", "c", "Luật A!", NO),  # new hypothesis, known premise
            ("câu năm", "c", "luật mới", NO),
            ("câu sáu", "c", "luật mới", YES),  # in no group
        ]
    ).with_columns(group_id=pl.Series(["g", "g", "h", "h", None]))
    answers = asked.select("example_id", "label", "group_id", predicted=pl.lit(NO))
    found = unseen_scores(train, asked, answers, BINARY)
    names = ("num_examples", "accuracy", "group_accuracy", "num_groups", "majority")
    short = {what: {name: part.get(name) for name in names} for what, part in found.items()}
    assert short == {
        "hypothesis": {"num_examples": 3, "accuracy": 2 / 3, "group_accuracy": 1.0, "num_groups": 1, "majority": 2 / 3},
        "hypothesis,premise": {
            "num_examples": 2, "accuracy": 0.5, "group_accuracy": None, "num_groups": None, "majority": 0.5
        },
    }  # fmt: skip
    nothing = unseen_scores(asked, asked, answers, BINARY)["hypothesis"]
    assert nothing["num_examples"] == 0 and nothing["accuracy"] is None and nothing["majority"] is None


def test_a_linear_run_reads_the_segments_it_is_told(tmp_path, capsys):
    rows = [
        {"premise": f"luật {'mới' if place % 2 else 'cũ'}", "hypothesis": "câu", "condition": f"khi {place}",
         "label": YES if place % 2 else NO, "group_id": f"g{place // 2}"}
        for place in range(12)
    ]  # fmt: skip
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    source = ["--data", str(tmp_path / "rows.jsonl"), "--val-split", "none"]
    source += ["--test-data", f"again={tmp_path / 'rows.jsonl'}", "--method", "linear-v1", "--quiet"]
    found = {}
    for segments in ("premise", "hypothesis", "condition,premise"):
        run = tmp_path / segments
        assert main(["fit", *source, "--segments", segments, "--run-dir", str(run)]) == 0
        found[segments] = json.loads((run / "result.json").read_text())["scores"]["again"]
    assert {name: (one["accuracy"], one["group_accuracy"]) for name, one in found.items()} == {
        "premise": (1.0, 1.0), "hypothesis": (0.5, 0.0), "condition,premise": (1.0, 1.0)
    }  # fmt: skip
    assert found["premise"]["linear"]["condition,premise"]["accuracy"] == 1.0
    assert found["hypothesis"]["premise"]["discrimination"] in (0, None)
    assert "group accuracy" in capsys.readouterr().out
    assert main(["fit", *source, "--lr", "1e-3", "--run-dir", str(tmp_path / "x")]) == 2
    assert "--method linear-v1 trains no encoder; leave out what you set of: optim" in capsys.readouterr().err
