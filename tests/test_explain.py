"""LIME: whole words inside segments, the same weights for the same seed, every label that is asked for."""

from __future__ import annotations

import json
import re
import unicodedata

import numpy as np
import pytest

from lightning_nli.cli.main import main
from lightning_nli.data.text import WordSegmenter, normalize_text
from lightning_nli.explain.explainer import choose_rows, explain_rows
from lightning_nli.explain.lime_text import LimeSettings, explain_example, read_example
from lightning_nli.explain.models import RunModel
from lightning_nli.explain.page import explanation_page
from lightning_nli.explain.report import Report
from lightning_nli.explain.summary import has_content, summarize
from lightning_nli.explain.words import WORD, Perturber, WordedExample
from lightning_nli.training.trained import open_run
from lightning_nli.types import THREE_WAY, UserError

PAIR = {"premise": "Người lao động nghỉ", "hypothesis": "Được nghỉ"}
HOSTILE = "<script>alert('x')</script> & \"quoted\""


class LinearModel:
    """Probabilities that are a line in the presence of words: the right weights are known. Keeps what it saw."""

    scheme = THREE_WAY
    segments = ("premise", "hypothesis")

    def __init__(self, weights=None, *, limit=None, segmenter="none"):
        self.weights = weights or {}  # (segment, word) -> what it adds to neutral and takes from entailment
        self.limit = limit
        self.segmenter = WordSegmenter(segmenter)
        self.rows = []

    def prepare(self, text):
        return self.segmenter(normalize_text(text))

    def joins_words(self, text):
        return self.segmenter.name != "none"

    def _read(self, row):
        return {name: row[name].split()[: self.limit] for name in self.segments}

    def inputs(self, rows):
        cut = any(len(row[name].split()) > len(self._read(row)[name]) for row in rows for name in self.segments)
        return [str(self._read(row)).encode() for row in rows], cut

    def probabilities(self, rows):
        self.rows += rows
        read = [self._read(row) for row in rows]
        neutral = np.array([sum(w for (seg, word), w in self.weights.items() if word in one[seg]) for one in read])
        return np.stack([0.6 - neutral, 0.2 + neutral, np.full(len(rows), 0.2)], axis=1)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run") / "tiny"
    flags = "--data sample:300 --model tiny --lr 1e-3 --epochs 1 --max-length 64 --precision fp32 --accelerator cpu"
    assert main(["fit", *flags.split(), "--eval-max-tokens", "512", "--quiet", "--run-dir", str(folder)]) == 0
    return folder


@pytest.fixture
def pairs(tmp_path):
    """The same pair twice, composed and decomposed, and word-segmented."""
    path = tmp_path / "pair.jsonl"
    rows = [
        PAIR,
        {name: unicodedata.normalize("NFD", text) for name, text in PAIR.items()},
        PAIR | {"premise": "Người lao_động nghỉ"},
    ]
    lines = [json.dumps({"id": number, "label": "entailment", **row}) for number, row in enumerate(rows, 1)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def explain_json(capsys, *flags):
    assert main(["explain", *map(str, flags), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def weights_of(example):
    return {(word["segment"], word["word"]): word["weight"] for word in example["labels"][0]["words"]}


# E01


@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_words_are_whole_syllables_segmented_words_numbers_and_placeholders(form):
    text = "Người được quyền: lao_động, 1.500.000 đồng; khoản 2/2019 [Person-1]'s well-known."
    found = [unicodedata.normalize("NFC", word) for word in WORD.findall(unicodedata.normalize(form, text))]
    expected = "Người được quyền lao_động 1.500.000 đồng khoản 2/2019 [Person-1] s well-known"
    assert found == expected.split()


def test_both_forms_of_a_text_give_the_same_words_and_weights(run, pairs, capsys):
    first, second, third = explain_json(capsys, run, "--data", pairs, "--num-samples", 60)["examples"]
    assert first["labels"] == second["labels"]
    expected = {("premise", word) for word in PAIR["premise"].split()}
    expected |= {("hypothesis", word) for word in PAIR["hypothesis"].split()}
    assert set(weights_of(first)) == expected
    assert ("premise", "lao_động") in weights_of(third) and ("premise", "lao") not in weights_of(third)


def test_words_that_our_segmenter_joins_go_together_and_are_shown_as_in_the_source():
    model = LinearModel({("premise", "lao_động"): 0.1}, segmenter="pyvi")
    found = explain_example(model, "x", PAIR, settings=LimeSettings(num_samples=800, labels=("neutral",)))
    words = [feature.text for feature in found.example.features]
    assert "lao động" in words and "lao" not in words
    heaviest = int(np.abs(found.labels[0].weights).argmax())
    assert words[heaviest] == "lao động" and found.labels[0].weights[heaviest] == pytest.approx(0.1, abs=0.01)


# E02


def test_thousands_of_perturbations_are_scored_in_packs_of_the_runs_own_size(run):
    opened = open_run(run)
    sizes = []
    opened.scorer.encoder.register_forward_pre_hook(lambda _, inputs: sizes.append(len(inputs[0].input_ids)))
    text = " ".join(f"điều {number} nghĩa vụ" for number in range(25))
    texts = {"premise": text, "hypothesis": "Người sử dụng lao động có nghĩa vụ"}
    found = explain_example(RunModel(opened.scorer), "long", texts, settings=LimeSettings(num_samples=5_000))
    assert found.num_samples == 5_000 and found.num_distinct > 4_000
    assert 256 < max(sizes) <= opened.scorer.max_tokens == 512
    assert 0 < found.example.num_unread < len(found.example.words)  # 64 tokens do not hold it all


# E03


def test_a_label_that_is_not_the_top_one_is_explained_and_no_other():
    model = LinearModel({("premise", "lao"): 0.1, ("hypothesis", "nghỉ"): -0.05})
    found = explain_example(model, "x", PAIR, settings=LimeSettings(num_samples=200, labels=("neutral",)))
    assert found.predicted == "entailment" and [label.label for label in found.labels] == ["neutral"]
    default = explain_example(model, "x", PAIR, settings=LimeSettings(num_samples=200))
    assert [label.label for label in default.labels] == ["entailment"]
    both = explain_example(model, "x", PAIR, settings=LimeSettings(200, 1, ("contradiction", "neutral")))
    assert [label.label for label in both.labels] == ["contradiction", "neutral"]
    np.testing.assert_array_equal(both.labels[1].weights, found.labels[0].weights)
    assert both.labels[1].fit == found.labels[0].fit and both.labels[0].fit != both.labels[1].fit
    with pytest.raises(UserError, match=r"--label refute: the model answers entailment, neutral, contradiction"):
        explain_example(model, "x", PAIR, settings=LimeSettings(labels=("refute",)))


def test_a_line_is_found_again_with_the_side_of_each_word():
    true = {("premise", "lao"): 0.12, ("hypothesis", "nghỉ"): -0.06}
    found = explain_example(LinearModel(true), "x", PAIR, settings=LimeSettings(num_samples=2_000, labels=("neutral",)))
    label = found.labels[0]
    keys = [(feature.segment, feature.text) for feature in found.example.features]
    expected = [true.get(key, 0.0) for key in keys]  # nghỉ of the premise is another feature: weight 0
    assert keys.count(("premise", "nghỉ")) == 1
    np.testing.assert_allclose(label.weights, expected, atol=5e-3)
    assert label.fit > 0.99 and label.local_prediction == pytest.approx(0.2 + 0.06, abs=5e-3)
    assert label.share(np.array([key[0] == "premise" for key in keys])) == pytest.approx(2 / 3, abs=0.03)


# E04


def test_every_call_has_both_sides_and_no_word_crosses():
    model = LinearModel()
    texts = {"premise": "A b. C; a", "hypothesis": "d e [SEP] f"}
    explain_example(model, "x", texts, settings=LimeSettings(num_samples=300))
    assert len(model.rows) > 30
    for row in model.rows:
        assert tuple(row) == model.segments
        assert set(WORD.findall(row["premise"])) <= {"A", "b", "C", "a"}
        assert set(WORD.findall(row["hypothesis"])) <= {"d", "e", "[SEP]", "f"}
    assert any(not WORD.findall(row["premise"]) for row in model.rows)
    assert any(row["hypothesis"] == "" for row in model.rows)  # emptied, and answered all the same


def test_a_tiny_run_answers_texts_that_are_empty(run):
    model = RunModel(open_run(run).scorer)
    answers = model.probabilities([{"premise": "", "hypothesis": ""}, {"premise": "", "hypothesis": "Được nghỉ"}])
    assert np.isfinite(answers).all()
    np.testing.assert_allclose(answers.sum(1), 1)


def test_perturbations_are_the_text_with_words_taken_out():
    example = WordedExample.of({"premise": "Một, hai ba; hai.", "hypothesis": "bốn\nnăm"})
    assert [(feature.text, feature.occurrences) for feature in example.features][:3] == [
        ("Một", 1),
        ("hai", 2),
        ("ba", 1),
    ]
    perturber = Perturber(example)
    whole = np.ones(5, bool)
    assert perturber.texts(whole) == {"premise": "Một, hai ba; hai.", "hypothesis": "bốn\nnăm"}
    assert perturber.texts(np.array([1, 0, 1, 0, 1], bool)) == {"premise": "Một, ba; .", "hypothesis": "năm"}
    assert perturber.texts(np.array([0, 0, 0, 1, 0], bool))["hypothesis"] == "bốn"


def test_words_behind_the_cut_are_no_words_of_the_explanation_and_never_move_up():
    model = LinearModel({("premise", "w5"): 0.1}, limit=3)
    texts = {"premise": "w1 w2 w3 w4 w5 w6.", "hypothesis": "một"}
    found = explain_example(model, "x", texts, settings=LimeSettings(num_samples=200, labels=("neutral",)))
    assert [feature.text for feature in found.example.features] == ["w1", "w2", "w3", "một"]
    assert found.example.num_unread == 3
    asked = model.rows[1:]  # the first is the whole example
    assert not any({"w4", "w5", "w6"} & set(row["premise"].replace(".", "").split()) for row in asked)
    assert np.abs(found.labels[0].weights).max() < 1e-9


def test_a_repeated_word_is_read_up_to_the_cut():
    example = read_example(LinearModel(limit=3), {"premise": "a a a a a", "hypothesis": "b"})
    assert [(feature.text, feature.occurrences) for feature in example.features] == [("a", 3), ("b", 1)]


# E06


def test_a_seed_gives_a_row_the_same_weights_in_any_order_and_stands_in_the_output(run, pairs, capsys):
    flags = (run, "--data", pairs, "--num-samples", 40, "--seed", 7)
    one, again = explain_json(capsys, *flags), explain_json(capsys, *flags)
    assert one == again and one["seed"] == 7
    turned = explain_json(capsys, *flags, "--ids", 3, 2, 1)
    by_id = {example["example_id"]: example for example in turned["examples"]}
    assert [by_id[example["example_id"]] for example in one["examples"]] == one["examples"]
    other = explain_json(capsys, run, "--data", pairs, "--num-samples", 40, "--seed", 8)
    assert other["examples"][0]["labels"] != one["examples"][0]["labels"]


# Summary, page, command


def explained(ids=("a", "b")):
    model = LinearModel({("premise", "lao"): 0.12, ("hypothesis", "và"): -0.06})
    texts = {"a": PAIR, "b": {"premise": f"lao {HOSTILE}", "hypothesis": "và x"}}
    settings = LimeSettings(num_samples=1_500, labels=("neutral", "contradiction"))
    return [explain_example(model, name, texts[name], gold="neutral", settings=settings) for name in ids]


def test_a_summary_shares_the_weight_out():
    neutral, contradiction = summarize(explained(), top=1)
    assert (neutral.label, neutral.num_explanations, contradiction.label) == ("neutral", 2, "contradiction")
    assert sum(share.words for share in neutral.segments) == pytest.approx(1)
    assert sum(share.weight for share in neutral.segments) == pytest.approx(1)
    assert neutral.segments[0].weight == pytest.approx((1 + 2 / 3) / 2, abs=0.03)  # 1 in the one, 2 / 3 in the other
    assert neutral.empty_weight == pytest.approx(1 / 6, abs=0.03)  # và and x
    assert (neutral.words[0].word, neutral.words[0].num_examples, neutral.words[0].num_top) == ("lao", 2, 2)
    assert neutral.words[0].mean_weight == pytest.approx(0.12, abs=5e-3)
    assert neutral.words[1].word == "và" and not neutral.words[1].has_content
    assert contradiction.segments[0].weight is None  # nothing weighs: missing, not 0


def test_predicted_labels_are_summed_up_together_and_apart():
    model = LinearModel({("hypothesis", "và"): 0.5})
    settings = LimeSettings(num_samples=300)
    explanations = [
        explain_example(model, str(i), PAIR | {"hypothesis": text}, settings=settings)
        for i, text in enumerate(("và x", "x y"))
    ]
    assert [one.predicted for one in explanations] == ["neutral", "entailment"]
    found = summarize(explanations)
    assert [(one.label, one.num_explanations) for one in found] == [(None, 2), ("neutral", 1), ("entailment", 1)]


def test_words_without_content_are_function_words_and_list_marks():
    assert not any(map(has_content, ("The", "và", "của", "a", "đ", "ÀNH"[:1])))
    assert all(map(has_content, ("không", "phải", "được", "not", "must", "all", "12", "5", "lao động", "[Person-1]")))


def test_the_page_escapes_everything_and_asks_nobody():
    report = Report.of(HOSTILE, HOSTILE, explained(), 5)
    page = explanation_page(report)
    assert "<script" not in page and "&lt;script&gt;" in page
    assert not re.search(r"(src|href|url)\s*[=(]", page)
    assert "default-src 'none'" in page and "prefers-color-scheme: dark" in page
    assert all(f'class="segment tone{place}"' in page for place in (0, 1))
    assert 'mark class="for"' in page and 'mark class="against"' in page
    json.dumps(report.as_dict(), allow_nan=False)


def test_the_command_prints_and_writes_both_files_and_keeps_an_earlier_report(run, pairs, tmp_path, capsys):
    out = tmp_path / "why"
    flags = ["explain", str(run), "--data", str(pairs), "--num-samples", "30", "--out", str(out), "--quiet"]
    assert main(flags) == 0
    printed = capsys.readouterr().out
    assert "lao_động" in printed and "share of weight" in printed and str(out / "explanations.html") in printed
    written = json.loads((out / "explanations.json").read_text(encoding="utf-8"))
    assert written["source"] == str(pairs) and len(written["examples"]) == 3
    assert {path.name for path in out.iterdir()} == {"explanations.json", "explanations.html"}
    assert main(flags) == 2 and "--force" in capsys.readouterr().err
    assert main([*flags, "--force"]) == 0


def test_rows_of_the_runs_own_test_set_are_the_default(run, capsys):
    shown = explain_json(capsys, run, "--limit", 2, "--num-samples", 20)
    assert len(shown["examples"]) == 2 and shown["source"] == "sample:300 (test)"
    assert shown["examples"][0]["gold"] in ("entailment", "non_entailment")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--ids nobody", "has no row 'nobody'"),
        ("--label neutral", "--label neutral: the model answers non_entailment, entailment"),
        ("--data nowhere.csv", "nowhere.csv"),
        ("--set dev", "--set dev"),
        ("--seed -1", "--seed must lie between"),
    ],
)
def test_a_mistake_is_named(run, flags, message, capsys):
    assert main(["explain", str(run), *flags.split()]) == 2
    assert message in capsys.readouterr().err


def test_an_example_without_words_and_a_missing_text_are_refused(run):
    with pytest.raises(UserError, match="'x' has no word"):
        explain_example(LinearModel(), "x", {"premise": "...", "hypothesis": "!"})
    rows = choose_rows(open_run_rows(run), None, 2, "sample").with_columns(premise=None)
    with pytest.raises(UserError, match="2 rows have no 'premise'"):
        explain_rows(LinearModel(), rows, LimeSettings())


def open_run_rows(run):
    from lightning_nli.training.corpora import load_run_data

    return load_run_data(open_run(run).config).scored["test"]
