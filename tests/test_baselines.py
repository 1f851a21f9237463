from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression

from lightning_nli import baselines
from lightning_nli.baselines import hard_rows, hard_scores, hypothesis_only, majority, overlap, overlap_features
from lightning_nli.data.readers import read_source
from lightning_nli.data.sample import sample_corpus
from lightning_nli.data.schema import EXAMPLE_SCHEMA
from lightning_nli.metrics import score
from lightning_nli.types import BINARY, THREE_WAY, UserError

YES, NO = "entailment", "non_entailment"


def examples(rows: list[tuple[str, str]], **columns: object) -> pl.DataFrame:
    """(hypothesis, label) rows of the schema, ids `00`, `01`, ..., with further columns of one value or one a row."""
    frame = pl.DataFrame(
        [
            {"example_id": f"{i:02}", "premise": f"p{i}", "premise_id": f"p{i}", "hypothesis": text, "label": label}
            for i, (text, label) in enumerate(rows)
        ],
        schema=EXAMPLE_SCHEMA,
    )
    return frame.with_columns(**columns)


TRAIN = examples([("Phải nộp thuế", YES), ("Phải nộp phí", YES), ("Không nộp thuế", NO), ("Không nộp phí ", NO)] * 3)
ASKED = examples([("phải  đóng", YES), ("KHÔNG đóng", NO), ("gì?", NO)])


def test_majority_answers_with_the_shares_of_the_training_labels():
    answers = majority(TRAIN.head(7), ASKED, BINARY)
    assert answers["predicted"].to_list() == [YES] * 3
    assert answers[f"prob_{YES}"].to_list() == pytest.approx([4 / 7] * 3)
    assert majority(TRAIN, ASKED, BINARY)["predicted"][0] == NO  # equal shares: the earlier label
    assert score(answers, BINARY).accuracy == pytest.approx(1 / 3)
    assert majority(TRAIN, ASKED.clear(), BINARY).is_empty()


def test_hypothesis_only_learns_the_words_that_give_a_label_away():
    answers = hypothesis_only(TRAIN, ASKED, BINARY)
    assert answers.columns == ["example_id", "label", "group_id", f"prob_{NO}", f"prob_{YES}", "predicted"]
    assert answers["predicted"].to_list()[:2] == [YES, NO]
    assert answers[f"prob_{YES}"][2] == pytest.approx(0.5, abs=0.01)  # no word it knows
    assert answers.schema[f"prob_{YES}"] == pl.Float32
    other_premises = ASKED.with_columns(premise=pl.lit("phải"))
    assert hypothesis_only(TRAIN, other_premises, BINARY).equals(answers)


def test_hypothesis_only_is_the_model_of_the_contract():
    train, frame = sample_corpus(600, seed=0).head(400), sample_corpus(600, seed=0).tail(200)
    words = TfidfVectorizer(token_pattern=r"(?u)\b\w+\b", ngram_range=(1, 2), min_df=2, sublinear_tf=True)
    model = LogisticRegression(C=4, solver="lbfgs", max_iter=1000)
    model.fit(words.fit_transform(train["hypothesis"]), train["label"].cast(pl.String).to_list())
    expected = model.predict_proba(words.transform(frame["hypothesis"]))
    assert model.classes_.tolist() == [YES, NO]  # another order than the scheme's
    answers = hypothesis_only(train, frame, BINARY).select(f"prob_{YES}", f"prob_{NO}").to_numpy()
    np.testing.assert_allclose(answers, expected, atol=1e-4)  # two orders of the labels, one optimum


def test_probabilities_are_laid_out_by_class_name():
    train = examples([("đúng rồi", "entailment"), ("sai rồi", "contradiction")] * 3)
    answers = hypothesis_only(train, examples([("đúng", "neutral"), ("sai", "neutral")]), THREE_WAY)
    assert answers["predicted"].to_list() == ["entailment", "contradiction"]
    assert answers["prob_neutral"].to_list() == [0.0, 0.0]  # a label that training never saw
    assert answers.select(pl.sum_horizontal(pl.col("^prob_.*$"))).to_series().to_list() == pytest.approx([1, 1])


def test_small_and_one_label_training_sets():
    tiny = examples([("phải", YES), ("không", NO)])  # no word in two hypotheses
    assert hypothesis_only(tiny, ASKED, BINARY)["predicted"].to_list()[:2] == [YES, NO]
    one_label = TRAIN.filter(pl.col("label") == NO)
    for model in (hypothesis_only, overlap):
        assert model(one_label, ASKED, BINARY).equals(majority(one_label, ASKED, BINARY))
        assert model(TRAIN, ASKED.clear(), BINARY).is_empty()
    with pytest.raises(UserError, match="needs training rows"):
        hypothesis_only(TRAIN.clear(), ASKED, BINARY)
    with pytest.raises(UserError, match="no training hypothesis holds a word"):
        hypothesis_only(examples([("...", YES), ("?", NO)]), ASKED, BINARY)


def test_overlap_features_by_hand():
    pairs = [("Nộp 10 đồng trước ngày 5", "Nộp 10 đồng, 12 đồng"), ("a", "?")]
    frame = examples([(hypothesis, YES) for _, hypothesis in pairs]).with_columns(
        premise=pl.Series([premise for premise, _ in pairs])
    )
    # 6 words {nộp 10 đồng trước ngày 5} and 5 {nộp 10 đồng 12}: 3 shared, 7 in all
    assert overlap_features(frame).tolist() == [[3 / 7, 3 / 4, 1 / 5, 5 / 6, 1], [0, 0, 0, 0, 0]]


def test_overlap_reads_the_premise():
    texts = [f"a{i} b{i} c{i} x" for i in range(40)]
    frame = examples([(text, YES if i % 2 else NO) for i, text in enumerate(texts)]).with_columns(
        premise=pl.Series([text if i % 2 else "khác hẳn" for i, text in enumerate(texts)])
    )
    train, asked = frame.head(30), frame.tail(10)
    assert score(overlap(train, asked, BINARY), BINARY).accuracy == 1.0
    assert score(hypothesis_only(train, asked, BINARY), BINARY).accuracy == 0.5


def hard_frame() -> pl.DataFrame:
    """Ten laws of two rows; "luôn" gives entailment away and "cấm" the opposite, save in rows 04 and 07."""
    rows = [("luôn được", YES), ("cấm làm", NO)] * 10
    rows[4], rows[7] = ("luôn được", NO), ("cấm làm", YES)
    return examples(rows, law_id=pl.format("L{}", pl.int_range(pl.len()) // 2))


def test_hard_rows_are_those_that_other_laws_mislead_about():
    frame = hard_frame()
    assert hard_rows(frame, BINARY) == ["04", "07"]
    assert hard_rows(frame, BINARY, folds=3) == ["04", "07"]
    assert hard_rows(frame.sample(fraction=1, shuffle=True, seed=3), BINARY) == ["04", "07"]
    by_premise = frame.with_columns(law_id=pl.lit(None, pl.String))
    assert hard_rows(by_premise, BINARY) == ["04", "07"]


def test_hard_rows_need_two_laws():
    assert hard_rows(hard_frame().with_columns(law_id=pl.lit("L")), BINARY) == []
    assert hard_rows(hard_frame().clear(), BINARY) == []
    with pytest.raises(ValueError, match="at least 2 folds"):
        hard_rows(hard_frame(), BINARY, folds=1)


def test_folds_keep_laws_whole_and_even():
    frame = pl.concat([hard_frame()] * 4).with_columns(law_id=pl.format("L{}", pl.int_range(pl.len()) % 23))
    fold = baselines._folds_by_law(frame, 10)
    assert frame.with_columns(fold=fold).group_by("law_id").agg(pl.col("fold").n_unique())[
        "fold"
    ].unique().to_list() == [1]
    sizes = np.bincount(fold)
    assert len(sizes) == 10
    assert sizes.max() - sizes.min() <= 4  # laws have 3 or 4 rows


def test_hard_scores_by_hand():
    def answered(labels: list[str]) -> pl.DataFrame:
        gold = ["entailment", "entailment", "neutral", "neutral", "entailment"]
        return pl.DataFrame({"example_id": list("abcde"), "label": gold, "predicted": labels})

    own = answered(["entailment", "neutral", "neutral", "contradiction", "neutral"])
    blind = answered(["neutral"] * 5)
    assert hard_scores(own, ["a", "b", "c"], blind, THREE_WAY) == {
        "num_examples": 3,
        "recall": {"entailment": 0.5, "neutral": 1.0, "contradiction": None},
        "balanced": 0.75,
        "baseline": 0.5,
    }
    assert hard_scores(own, [], None, THREE_WAY) == {
        "num_examples": 0,
        "recall": {"entailment": None, "neutral": None, "contradiction": None},
        "balanced": None,
        "baseline": None,
    }
    # a label that is only predicted has no recall
    assert hard_scores(own, ["d"], None, THREE_WAY)["recall"] == {
        "entailment": None,
        "neutral": 0,
        "contradiction": None,
    }
    with pytest.raises(ValueError, match=r"without one: \['z'\]"):
        hard_scores(own, ["a", "z"], None, THREE_WAY)


def test_importing_the_baselines_is_cheap():
    code = "import sys, lightning_nli.baselines; print({'torch', 'sklearn', 'scipy'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "set()\n"


def test_baselines_on_the_published_splits(shared: Path):
    corpus = read_source(f"vilegalnli:{shared / 'data' / 'vilegalnli'}", on_bad_row="drop")
    dev, test = (corpus.frame.filter(pl.col("split") == name) for name in ("dev", "test"))
    blind = hypothesis_only(dev, test, corpus.scheme)
    assert 0.88 < score(blind, corpus.scheme).accuracy < 0.92
    most = score(majority(dev, test, corpus.scheme), corpus.scheme)
    assert most.accuracy == pytest.approx(2347 / 4288)
    assert most.labels_present == [NO, YES]


@pytest.mark.slow
def test_hard_rows_of_the_published_test_set(shared: Path):
    frame = read_source(f"vilegalnli:{shared / 'data' / 'vilegalnli'}#test", on_bad_row="drop").frame
    ids = hard_rows(frame, BINARY)
    assert 420 < len(ids) < 460
    assert hard_rows(frame.reverse(), BINARY) == ids
