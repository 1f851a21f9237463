"""Tokens that give a label away: hand-computed PMI and log-odds, scipy's tests, case B03."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from scipy import stats

from lightning_nli.analysis import blind
from lightning_nli.analysis.artifacts import (
    TRIGGERS,
    check_tokens,
    check_triggers,
    count_tokens,
    score_tokens,
)
from lightning_nli.analysis.blind import blind_scores
from lightning_nli.data.sample import sample_corpus
from lightning_nli.data.schema import EXAMPLE_SCHEMA, Corpus
from lightning_nli.types import BINARY, THREE_WAY, WILLS, Label, UserError

YES, NO = "entailment", "non_entailment"


def rows_of(*rows: tuple[str, str]) -> pl.DataFrame:
    data = {"hypothesis": [text for text, _ in rows], "label": [label for _, label in rows]}
    return pl.DataFrame(data, schema={name: EXAMPLE_SCHEMA[name] for name in data})


def one(table: pl.DataFrame, token: str, label: str) -> dict:
    (row,) = table.filter(pl.col("token") == token, pl.col("label") == label).to_dicts()
    return row


ROWS = rows_of(
    ("Phải nộp thuế", YES), ("phải nộp, thuế phải", YES), ("không phải nộp", NO), ("không", NO), ("Không", NO)
)


def test_tokens_are_counted_once_a_hypothesis_with_case_and_not_across_marks():
    counts = count_tokens(ROWS, BINARY, min_rows=1)
    table = {token: (n, yes, no) for token, n, no, yes in counts.table.iter_rows()}
    assert counts.rows == {NO: 3, YES: 2}
    assert table["phải"] == (1, 1, 1) and table["Phải"] == (1, 1, 0)
    assert table["phải nộp"] == (2, 1, 1) and table["không phải nộp"] == (3, 0, 1)
    assert table["nộp thuế"] == (2, 1, 0)  # "nộp, thuế" is no run
    assert "Không phải" not in table  # nor is the end of one hypothesis and the beginning of the next


def test_a_floor_loses_no_token_that_passes_it():
    frame = sample_corpus(300, seed=0)
    every = count_tokens(frame, BINARY, min_rows=1).table
    floored = count_tokens(frame, BINARY, min_rows=7).table
    assert 0 < floored.height < every.height and floored["n"].unique().to_list() == [1, 2, 3]
    assert floored.equals(every.filter(pl.sum_horizontal(YES, NO) >= 7))


def test_pmi_by_hand_in_bits_and_nats():
    found = one(score_tokens(count_tokens(ROWS, BINARY, min_rows=1)), "không", NO)
    assert (found["label_rows"], found["rows"], found["p_label_given_token"]) == (2, 2, 1.0)
    assert found["pmi_nats"] == pytest.approx(math.log((2 / 5) / ((2 / 5) * (3 / 5))))
    assert found["pmi_bits"] == pytest.approx(found["pmi_nats"] / math.log(2))
    never = one(score_tokens(count_tokens(ROWS, BINARY, min_rows=1)), "không", YES)
    assert never["pmi_nats"] is None and never["pmi_bits"] is None and never["p_label_given_token"] == 0.0
    smooth = one(score_tokens(count_tokens(ROWS, BINARY, min_rows=1), smoothing=1.0), "không", YES)
    assert smooth["p_label_given_token"] == pytest.approx(1 / 4)
    assert smooth["pmi_nats"] == pytest.approx(math.log((1 / 4) / (2 / 5)))


@pytest.mark.parametrize(
    ("smoothing", "best", "second"),
    [(0, ("kayak", "neutral", 1.7918, 1, 1), None), (100, ("không", "contradiction", 0.0159, 3, 3), 0.0097)],
)
def test_b03_counts_and_smoothing_keep_one_off_words_in_their_place(shared: Path, smoothing, best, second):
    lines = (shared / "cases" / "inputs" / "build" / "pmi.jsonl").read_text(encoding="utf-8").splitlines()
    frame = rows_of(*((row["hypothesis"], row["label"]) for row in map(json.loads, lines)))
    counts = count_tokens(frame, THREE_WAY, max_n=1, min_rows=1)
    table = score_tokens(counts, smoothing=smoothing, shares="table")
    ranked = table.sort("pmi_nats", "token", descending=[True, False], nulls_last=True)
    top = ranked.row(0, named=True)
    assert (top["token"], top["label"], round(top["pmi_nats"], 4), top["label_rows"], top["rows"]) == best
    assert second is None or round(ranked["pmi_nats"][1], 4) == second
    if smoothing == 0:
        assert one(table, "không", "contradiction")["pmi_nats"] == pytest.approx(0.6286, abs=5e-5)
    json.dumps(table.to_dicts(), allow_nan=False)


def test_log_odds_by_hand_and_one_off_words_do_not_lead():
    rows = [("a", YES)] * 8 + [("a", NO)] * 2 + [("b", NO)] * 9 + [("b", YES), ("c", YES)]
    table = score_tokens(count_tokens(rows_of(*rows), BINARY, max_n=1, min_rows=1), prior=4.2)
    # 21 tokens, 10 of them under entailment; "a" is 10 of 21 and has 2 of the prior's 4.2
    inside, outside = 8 + 2.0, 2 + 2.0
    expected = math.log(inside / (10 + 4.2 - inside)) - math.log(outside / (11 + 4.2 - outside))
    found = one(table, "a", YES)
    assert found["log_odds"] == pytest.approx(expected)
    assert found["z"] == pytest.approx(expected / math.sqrt(1 / inside + 1 / outside))
    of_yes = table.filter(pl.col("label") == YES)
    assert of_yes["token"].to_list() == ["a", "c", "b"]
    assert of_yes.sort("pmi_nats", descending=True)["token"][0] == "c"  # by bare PMI the one-off word would lead


def test_the_significance_is_fishers_and_corrected():
    frame = sample_corpus(400, seed=1)
    counts = count_tokens(frame, BINARY, max_n=2, min_rows=5)
    table = score_tokens(counts)
    total, of_yes = sum(counts.rows.values()), counts.rows[YES]
    for row in table.filter(pl.col("label") == YES).gather_every(40).iter_rows(named=True):
        both, held = row["label_rows"], row["rows"]
        cells = [[both, held - both], [of_yes - both, total - held - of_yes + both]]
        tails = [stats.fisher_exact(cells, alternative=side).pvalue for side in ("less", "greater")]
        assert row["p_value"] == pytest.approx(min(1.0, 2 * min(tails)))
    p_values = table["p_value"].to_numpy()
    order = np.argsort(p_values)
    steps = p_values[order] * len(order) / np.arange(1, len(order) + 1)
    expected = np.minimum.accumulate(steps[::-1])[::-1]
    assert table["p_adjusted"].to_numpy()[order] == pytest.approx(np.minimum(expected, 1.0))
    strict = score_tokens(counts, correction="holm").sort("token", "label")
    assert (strict["p_adjusted"] >= table.sort("token", "label")["p_adjusted"] - 1e-12).all()


def test_a_token_spread_evenly_is_no_artifact():
    rows = [(f"của {word}", label) for word in "abcd" for label in (YES, NO)] * 5
    found = one(score_tokens(count_tokens(rows_of(*rows), BINARY, max_n=1)), "của", YES)
    assert found["pmi_bits"] == pytest.approx(0.0) and found["z"] == pytest.approx(0.0) and found["p_adjusted"] == 1.0


def test_a_single_token_has_no_odds():
    (found,) = score_tokens(count_tokens(rows_of(*[("a", YES)] * 12), BINARY)).filter(pl.col("n") == 1).to_dicts()
    assert (found["pmi_nats"], found["log_odds"], found["z"], found["p_value"]) == (0.0, None, None, 1.0)


def test_pseudo_counts_that_make_no_sense_and_nothing_above_the_floor():
    counts = count_tokens(ROWS, BINARY, min_rows=100)
    assert counts.table.is_empty() and score_tokens(counts).is_empty()
    assert score_tokens(counts).columns == score_tokens(count_tokens(ROWS, BINARY, min_rows=1)).columns
    with pytest.raises(ValueError, match="smoothing=-1"):
        score_tokens(counts, smoothing=-1)
    with pytest.raises(ValueError, match="prior=0"):
        score_tokens(counts, prior=0)
    with pytest.raises(ValueError, match="correction='bonferroni'"):
        score_tokens(counts, correction="bonferroni")


def test_tokens_by_name_stand_as_whole_words():
    frame = rows_of(("Dù vậy, không  cần nộp", NO), ("không, cần", YES), ("dùng", YES), ("Không cần (dù)", NO))
    found = check_tokens(frame, BINARY, {"Dù": Label.NON_ENTAILMENT, "không cần": Label.ENTAILMENT})
    first, second = found.to_dicts()
    assert (first["label_rows"], first["rows"], first["rows_any_case"]) == (1, 1, 2)
    assert first["share_of_label"] == 0.5 and first["pmi_bits"] == 1.0 == first["highest_pmi_bits"]
    assert (second["label_rows"], second["rows"], second["rows_any_case"]) == (0, 1, 2)
    assert second["p_label_given_token"] == 0.0 and second["pmi_nats"] is None
    with pytest.raises(UserError, match=r"labels \['non_entailment'\].*fold"):
        check_tokens(frame, THREE_WAY, {"Dù": Label.NON_ENTAILMENT})


def test_triggers_are_checked_under_any_scheme():
    frame = rows_of(("Khi nộp", "support"), ("Dù nộp", "refute"), ("Mặc dù nộp", "unrelated"))
    found = check_triggers(frame, WILLS)
    assert found["token"].to_list() == list(TRIGGERS)
    khi = one(found, "Khi", YES)
    assert khi["p_label_given_token"] == 1.0 and khi["stands_for"] == "Khi"
    assert one(found, "Mặc dù", NO)["stands_for"] == "Dù" and one(found, "Mặc dù", NO)["label_rows"] == 1


def test_blind_models_and_the_verdict():
    train, test = sample_corpus(600, seed=0).head(400), sample_corpus(600, seed=0).tail(200)
    test = test.with_columns(hypothesis=pl.when(pl.col("label") == NO).then(pl.lit("x y")).otherwise(pl.lit("z y")))
    train = train.with_columns(hypothesis=pl.when(pl.col("label") == NO).then(pl.lit("x")).otherwise(pl.lit("z")))
    split = EXAMPLE_SCHEMA["split"]
    frame = pl.concat([train.with_columns(split=pl.lit("dev", split)), test.with_columns(split=pl.lit("test", split))])
    found = blind_scores(Corpus(frame, BINARY, "mine"))
    assert (found.train, found.test, found.num_train) == ("dev", "test", 400)
    assert found.hypothesis_only.accuracy == 1.0
    most = 100 * (test["label"] == train["label"].mode().sort()[0]).mean()
    assert found.verdict.startswith("A linear model that never reads the premise gets 100.0% of test right")
    assert f"the commonest label alone gets {most:.1f}%" in found.verdict
    assert found.premise_only.accuracy < 0.9
    alone = blind_scores(Corpus(frame.filter(pl.col("split") == "dev"), BINARY, "mine"))
    assert alone.test == "20% of dev" and alone.num_train + alone.majority.num_examples == 400


def test_blind_models_need_something_to_hold_out_and_take_no_more_than_they_need(monkeypatch: pytest.MonkeyPatch):
    frame = sample_corpus(8).with_columns(premise_id=pl.lit("p"), split=pl.lit(None, EXAMPLE_SCHEMA["split"]))
    with pytest.raises(UserError, match="8 rows of one 'premise_id': nothing to hold out"):
        blind_scores(Corpus(frame, BINARY, "mine"))
    monkeypatch.setattr(blind, "MAX_ROWS", 50)
    many = sample_corpus(100).with_columns(split=pl.lit("train", EXAMPLE_SCHEMA["split"]))
    found = blind_scores(Corpus(many, BINARY, "mine"))
    assert found.train == f"{found.num_train} of 80 rows of the rest of train" and 40 < found.num_train <= 50
    assert found.test == "20% of train"
