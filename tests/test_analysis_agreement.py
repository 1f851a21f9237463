"""Agreement of raters: hand-computed kappas, cases M06 to M08, and ViLegalNLI's Table 7."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from sklearn.metrics import cohen_kappa_score

from lightning_nli.analysis.agreement import (
    ONE_CATEGORY,
    add_majority,
    agreement_table,
    analyze_agreement,
    cohen_kappa,
    fleiss_kappa,
    read_ratings,
)
from lightning_nli.data.schema import EXAMPLE_SCHEMA
from lightning_nli.types import UserError

YES, NO = "entailment", "non_entailment"
RATERS = ("a", "b", "c")


def rated(rows: list[str], labels: str | None = None, laws: list[str] | None = None) -> pl.DataFrame:
    """Rows of ratings by `RATERS`: E, N, C, and `.` for one that was not given; labels likewise."""
    names = {"E": YES, "0": NO, "N": "neutral", "C": "contradiction", ".": None}
    data = {
        "ratings": [[{"rater": r, "label": names[x]} for r, x in zip(RATERS, row, strict=False)] for row in rows],
        "label": [names[x] for x in labels or "E" * len(rows)],
        "law_id": laws or [None] * len(rows),
    }
    return pl.DataFrame(data, schema={name: EXAMPLE_SCHEMA[name] for name in data})


def case_ratings(shared: Path, name: str) -> pl.DataFrame:
    lines = (shared / "cases" / "inputs" / "metrics" / name).read_text(encoding="utf-8").splitlines()
    given = [json.loads(line)["ratings"] for line in lines]
    rows = [[{"rater": rater, "label": label} for rater, label in row.items()] for row in given]
    data = {"ratings": rows, "label": [None] * len(rows)}
    return pl.DataFrame(data, schema={name: EXAMPLE_SCHEMA[name] for name in data})


def test_fleiss_by_hand():
    # agreeing pairs: 1, 1, 1/3, 1, 0; shares of the labels 6/15, 5/15, 4/15
    found = fleiss_kappa(rated(["EEE", "NNN", "EEN", "CCC", "ENC"]))
    chance = (6**2 + 5**2 + 4**2) / 15**2
    assert found.observed == pytest.approx(2 / 3) and found.expected == pytest.approx(chance)
    assert found.estimate.value == pytest.approx((2 / 3 - chance) / (1 - chance))
    assert (found.num_items, found.num_missing, found.raters) == (5, 0, RATERS)


def test_m07_ratings_are_not_taken_for_counts(shared: Path):
    assert fleiss_kappa(case_ratings(shared, "ratings_ok.jsonl")).estimate.value == pytest.approx(0.4932, abs=5e-5)


def test_m06_one_label_throughout_is_undefined(shared: Path):
    found = fleiss_kappa(case_ratings(shared, "ratings_unanimous_one_label.jsonl"))
    assert found.estimate.value is None and found.estimate.note == ONE_CATEGORY
    assert found.observed == 1.0 and found.expected == 1.0
    pair = cohen_kappa(rated(["EE.", "EE."]), "a", "b")
    assert pair.estimate.value is None and pair.estimate.note == ONE_CATEGORY and pair.observed == 1.0


def test_m08_without_a_majority_there_is_no_label(shared: Path):
    frame = case_ratings(shared, "ratings_ties.jsonl")
    found = add_majority(frame)["majority"].to_list()
    assert found == [None, YES, "neutral"]
    turned = frame.with_columns(pl.col("ratings").list.reverse())
    assert add_majority(turned)["majority"].to_list() == found
    assert analyze_agreement(frame).num_undecided == 1


def test_missing_ratings_count_for_nothing():
    found = fleiss_kappa(rated(["EEN", "EN.", "C..", "..."]))
    # pairs: 1/3 of three, 0 of two; a single rating is no pair but has a share in chance; none at all has neither
    shares = np.array([2 / 3 + 1 / 2, 1 / 3 + 1 / 2, 1.0]) / 3
    assert found.observed == pytest.approx((1 / 3 + 0) / 2)
    assert found.expected == pytest.approx((shares**2).sum())
    assert (found.num_items, found.num_missing) == (2, 3)
    pair = cohen_kappa(rated(["EEN", "EN.", "NN.", "C.."]), "a", "b")
    assert (pair.num_items, pair.num_missing) == (3, 1)


def test_cohen_is_sklearns():
    rng = np.random.default_rng(0)
    rows = ["".join(rng.choice(list("EENC"), 3)) for _ in range(60)]
    one, other = [row[0] for row in rows], [row[2] for row in rows]
    found = cohen_kappa(rated(rows), "a", "c").estimate
    assert found.value == pytest.approx(cohen_kappa_score(one, other))
    assert found.low < found.value < found.high


def test_the_interval_leaves_out_one_law_at_a_time():
    rng = np.random.default_rng(1)
    rows = ["".join(rng.choice(list("EEN"), 3)) for _ in range(40)]
    laws = [f"law {place % 6}" for place in range(40)]
    frame = rated(rows, laws=laws)
    found = fleiss_kappa(frame).estimate
    without = [fleiss_kappa(frame.filter(pl.col("law_id") != law)).estimate.value for law in set(laws)]
    error = np.sqrt(5 / 6 * ((without - np.mean(without)) ** 2).sum())
    assert found.standard_error == pytest.approx(error) and found.num_laws == 6 and found.note == ""
    few = fleiss_kappa(frame.filter(pl.col("law_id").is_in(["law 0", "law 1"]))).estimate
    assert few.value is not None and few.low is None and few.note == "2 laws"


def test_the_table_counts_raters_who_gave_the_label():
    table = agreement_table(rated(["EEE", "EE.", "0E.", "00.", "..."], labels="EE00E"))
    rows = {(row["label"], row["num_agreeing"]): row for row in table.iter_rows(named=True)}
    assert [rows[None, k]["rows"] for k in (3, 2, 1, 0)] == [1, 2, 1, 0]  # the unrated row is left out
    assert rows[YES, 2]["share"] == 0.5 and rows[YES, 2]["share_or_more"] == 1.0
    assert rows[NO, 3]["rows"] == 0 and rows[NO, 1]["share_or_more"] == 1.0
    counted = add_majority(rated(["EE."], labels="0"))
    assert counted.select("num_ratings", "num_agreeing", "majority").row(0) == (2, 0, YES)


def test_no_ratings_at_all_and_a_rater_who_counts_twice():
    assert analyze_agreement(rated(["...", "..."])) is None
    twice = rated(["EEE"]).with_columns(pl.col("ratings").list.concat(pl.col("ratings")))
    with pytest.raises(UserError, match="row 1 has two ratings of 'a'"):
        fleiss_kappa(twice)


def test_published_ratings_give_table_7_and_the_kappa_we_know(shared: Path):
    source = f"vilegalnli:{shared / 'data' / 'vilegalnli'}"
    test = agreement_table(read_ratings(str(shared / "data" / "vilegalnli" / "Test.xlsx")))  # told by its columns
    shares = {
        label: [
            round(100 * value, 2)
            for k in (3, 2)
            for value in test.filter(pl.col("label").eq_missing(pl.lit(label)), pl.col("num_agreeing") == k)[
                "share_or_more"
            ]
        ]
        for label in (NO, YES, None)
    }
    assert shares == {NO: [93.28, 98.81], YES: [62.44, 84.75], None: [79.34, 92.45]}  # Table 7
    assert test.filter(pl.col("label").is_null())["rows"].sum() == 4293
    both = read_ratings(source)
    assert both.height == 4656 + 4293 and both["split"].to_list()[::8948] == ["dev", "test"]
    dev = agreement_table(both.filter(pl.col("split") == "dev")).filter(pl.col("label").is_null())["share_or_more"]
    assert [round(100 * value, 2) for value in dev[:2]] == [78.95, 91.80]
    found = analyze_agreement(both)
    assert found.raters == ("deepseek", "gpt", "llama")
    assert found.fleiss.estimate.value == pytest.approx(0.713, abs=5e-4)
    assert (found.fleiss.num_missing, found.num_unrated, found.num_undecided) == (50, 0, 8)
    assert [round(pair.estimate.value, 3) for pair in found.cohen] == [0.697, 0.754, 0.688]


def test_ratings_of_other_sources_and_faulty_ones(tmp_path: Path):
    rows = [
        {"premise": "p", "hypothesis": "h", "label": YES, "ratings": [{"rater": "a", "label": YES}]},
        {"premise": "p", "hypothesis": None, "label": YES},
    ]
    plain = tmp_path / "plain.jsonl"
    plain.write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    assert read_ratings(str(plain))["ratings"].list.len().to_list() == [1]
    legal = tmp_path / "test.csv"
    legal.write_text("Premise,Hypothesis,Label,GPT Label,Deepseek Label,Llama Label\np,,1.0,1,-1,7\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"test\.csv, column 'Llama Label': unknown label '7'"):
        read_ratings(f"vilegalnli:{legal}")
    legal.write_text("Premise,Hypothesis,Label,GPT Label,Deepseek Label,Llama Label\np,,1.0,1,-1,0\n", encoding="utf-8")
    (found,) = read_ratings(f"vilegalnli:{legal}").to_dicts()
    assert [rating["label"] for rating in found["ratings"]] == [YES, None, NO]
    assert (found["label"], found["split"], found["law_id"]) == (YES, "test", None)
    legal.write_text("Premise,Hypothesis,Label\np,h,1\n", encoding="utf-8")
    assert read_ratings(f"vilegalnli:{legal}")["ratings"].to_list() == [[]]
    assert read_ratings("sample:20")["ratings"].list.len().sum() == 0
