from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from sklearn import metrics as sk
from torch import distributed as dist

from lightning_nli.epoch_metrics import EpochMetrics
from lightning_nli.metrics import build_epoch_metrics, score, scores_from_confusion
from lightning_nli.types import BINARY, IGNORE_INDEX, THREE_WAY, WILLS, Label, LabelScheme

FOUR = LabelScheme("four", (*THREE_WAY.labels, Label.UNRELATED), Label.ENTAILMENT, Label.NEUTRAL)
LETTERS = {"e": "entailment", "n": "neutral", "c": "contradiction", "u": "unrelated"}


def answers(gold: str, predicted: str) -> pl.DataFrame:
    names = ([LETTERS[letter] for letter in letters] for letters in (gold, predicted))
    label, answer = names
    return pl.DataFrame(
        {"example_id": [str(i) for i in range(len(gold))], "label": label, "predicted": answer},
        schema={"example_id": pl.String, "label": pl.String, "predicted": pl.String},
    )


def frame_of(logits: torch.Tensor, labels: torch.Tensor, scheme: LabelScheme) -> pl.DataFrame:
    probabilities = logits.double().softmax(-1).float().numpy()
    return pl.DataFrame(
        {
            "example_id": [str(i) for i in range(len(labels))],
            "label": [scheme.names[i] for i in labels],
            "predicted": [scheme.names[i] for i in logits.argmax(-1)],
        }
    ).with_columns(pl.Series(f"prob_{name}", probabilities[:, i]) for i, name in enumerate(scheme.names))


@pytest.mark.parametrize("scheme", [BINARY, THREE_WAY, WILLS, FOUR], ids=lambda scheme: scheme.name)
@pytest.mark.parametrize("num_gold_labels", [1, 2, 4])
@pytest.mark.parametrize("seed", range(3))
def test_scores_equal_scikit_learn(scheme: LabelScheme, num_gold_labels: int, seed: int):
    random = torch.Generator().manual_seed(seed)
    size = len(scheme.labels)
    labels = torch.randint(min(num_gold_labels, size), (40,), generator=random)
    frame = frame_of(torch.randn(40, size, generator=random), labels, scheme)
    gold, predicted = frame["label"].to_list(), frame["predicted"].to_list()
    ours = score(frame, scheme)
    assert ours.accuracy == pytest.approx(sk.accuracy_score(gold, predicted))
    theirs = sk.precision_recall_fscore_support(gold, predicted, average="macro", zero_division=0)
    assert (ours.macro_precision, ours.macro_recall, ours.macro_f1) == pytest.approx(theirs[:3])
    assert np.array_equal(ours.confusion, sk.confusion_matrix(gold, predicted, labels=scheme.names))
    probabilities = frame.select(f"prob_{name}" for name in scheme.names).to_numpy().astype(np.float64)
    order = np.argsort(scheme.names)  # scikit-learn sorts the labels
    assert ours.loss == pytest.approx(sk.log_loss(gold, probabilities[:, order], labels=sorted(scheme.names)), abs=1e-6)
    each = sk.precision_recall_fscore_support(gold, predicted, labels=scheme.names, zero_division=0)
    for index, name in enumerate(scheme.names):
        if name in {*gold, *predicted}:
            row = ours.per_class[name]
            assert (row.precision, row.recall, row.f1, row.support) == pytest.approx([part[index] for part in each])


def test_m01_a_class_in_neither_gold_nor_predictions_does_not_count():
    scores = score(answers("eenncc", "eencc" + "c"), FOUR)
    assert round(scores.macro_f1, 4) == 0.8222
    assert scores.labels_present == ["entailment", "neutral", "contradiction"]  # 3 of 4
    assert scores.as_dict()["per_class"]["unrelated"] == {"precision": None, "recall": None, "f1": None, "support": 0}


def test_m02_a_class_only_predicted_counts_as_in_scikit_learn():
    frame = answers("eenn" + "cc", "eenu" + "cc")
    scores = score(frame, FOUR)
    assert scores.macro_f1 == pytest.approx(sk.f1_score(frame["label"], frame["predicted"], average="macro"))
    assert round(scores.macro_f1, 4) == 0.6667
    assert scores.as_dict()["per_class"]["unrelated"] == {"precision": 0, "recall": 0, "f1": 0, "support": 0}


@pytest.mark.parametrize("batch_size", [1, 4, 10])
def test_m03_macro_f1_is_taken_once_over_the_epoch(batch_size: int):
    gold, predicted = "eeeennccec", "eeenncccc" + "c"
    assert round(score(answers(gold, predicted), THREE_WAY).macro_f1, 4) == 0.6667
    place = {letter: THREE_WAY.index(LETTERS[letter]) for letter in "enc"}
    logits = torch.nn.functional.one_hot(torch.tensor([place[letter] for letter in predicted]), 3).float()
    labels = torch.tensor([place[letter] for letter in gold])
    metrics = EpochMetrics(THREE_WAY)
    for start in range(0, 10, batch_size):
        metrics.update(logits[start : start + batch_size], labels[start : start + batch_size])
    assert round(metrics.compute()["macro_f1"], 4) == 0.6667


def test_m04_accuracy_is_micro():
    scores = score(answers("eeeeeeeenc", "e" * 10), THREE_WAY)
    assert scores.accuracy == 0.80
    assert round(scores.macro_recall, 4) == 0.3333


@pytest.mark.parametrize("batch_size", [1, 2, 5])
def test_m09_the_batch_size_changes_nothing(batch_size: int):
    random = torch.Generator().manual_seed(0)
    logits, labels = torch.randn(5, 2, generator=random) * 5, torch.tensor([0, 1, 1, 0, 1])
    metrics = build_epoch_metrics(BINARY)
    for start in range(0, 5, batch_size):
        metrics.update(logits[start : start + batch_size], labels[start : start + batch_size])
    expected = score(frame_of(logits, labels, BINARY), BINARY)
    assert metrics.compute() == pytest.approx(
        {"accuracy": expected.accuracy, "macro_f1": expected.macro_f1, "loss": expected.loss}, abs=1e-6
    )


def test_no_examples_give_nulls_not_zeros():
    empty = score(answers("", ""), THREE_WAY).as_dict()
    assert empty["num_examples"] == 0
    assert empty["labels_present"] == []
    for name in ("accuracy", "macro_precision", "macro_recall", "macro_f1", "loss", "group_accuracy"):
        assert empty[name] is None
    assert {row["f1"] for row in empty["per_class"].values()} == {None}
    with_columns = answers("", "").with_columns(pl.lit(None, pl.Float32).alias(f"prob_{n}") for n in THREE_WAY.names)
    assert score(with_columns, THREE_WAY).loss is None
    assert EpochMetrics(THREE_WAY).compute() == {}


def test_one_class_only():
    scores = score(answers("eee", "eee"), THREE_WAY)
    assert (scores.accuracy, scores.macro_f1, scores.labels_present) == (1.0, 1.0, ["entailment"])
    assert scores.loss is None  # no probabilities are known


def test_scores_can_be_written_as_json():
    frame = frame_of(torch.randn(9, 3, generator=torch.Generator().manual_seed(1)), torch.arange(9) % 3, THREE_WAY)
    values = json.loads(json.dumps(score(frame, THREE_WAY).as_dict(), allow_nan=False))
    assert sum(map(sum, values["confusion"])) == values["num_examples"] == 9
    assert list(values["per_class"]) == THREE_WAY.names


def test_loss_column_wins_and_a_zero_probability_costs_a_finite_loss():
    frame = answers("en", "ee").with_columns(
        prob_entailment=pl.lit(1.0, pl.Float32),
        prob_neutral=pl.lit(0.0, pl.Float32),
        prob_contradiction=pl.lit(0.0, pl.Float32),
    )
    assert score(frame, THREE_WAY).loss == pytest.approx(-math.log(np.finfo(np.float32).tiny) / 2)
    assert score(frame.with_columns(loss=pl.Series([0.5, 1.5])), THREE_WAY).loss == 1.0


def test_group_accuracy_needs_every_row_of_a_group():
    frame = answers("eenncc", "eenncn")
    groups = frame.with_columns(group_id=pl.Series(["a", "a", "b", "c", "c", None]))
    assert score(groups, THREE_WAY).group_accuracy == 1.0  # the wrong row stands in no group
    groups = frame.with_columns(group_id=pl.Series(["a", "a", "b", "b", "c", "c"]))
    assert score(groups, THREE_WAY).group_accuracy == pytest.approx(2 / 3)
    assert score(frame.with_columns(group_id=pl.lit(None, pl.String)), THREE_WAY).group_accuracy is None


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"label": pl.lit("refute")}, "2 rows have a label outside"),
        ({"predicted": pl.lit(None, pl.String)}, "2 rows have a predicted outside"),
        ({"loss": pl.lit(math.nan)}, "2 rows have no number"),
        ({"loss": pl.Series([0.1, None])}, "1 rows have no number"),
        ({"prob_neutral": pl.lit(0.5)}, "are missing"),
        ({f"prob_{name}": pl.lit(math.nan) for name in THREE_WAY.names}, "2 rows have no number"),
        ({f"prob_{name}": pl.lit(-3.0) for name in THREE_WAY.names}, "expected 0 to 1"),
    ],
)
def test_bad_predictions_are_refused(change: dict[str, pl.Expr], match: str):
    with pytest.raises(ValueError, match=match):
        score(answers("en", "ee").with_columns(**change), THREE_WAY)


def test_bad_counts_are_refused():
    for confusion in (np.zeros((2, 3), int), np.zeros((3, 3)), np.full((3, 3), -1)):
        with pytest.raises(ValueError, match="confusion matrix of 3 labels"):
            scores_from_confusion(confusion, THREE_WAY, None)
    with pytest.raises(ValueError, match="loss over 9 examples is nan"):
        scores_from_confusion(np.ones((3, 3), int), THREE_WAY, math.nan)
    metrics = EpochMetrics(BINARY)
    metrics.update(torch.tensor([[math.nan, 0.0]]), torch.tensor([1]))
    with pytest.raises(ValueError, match="loss over 1 examples is nan"):
        metrics.compute()


def test_ghosts_are_not_counted_and_reset_forgets():
    metrics = EpochMetrics(BINARY)
    metrics.update(torch.tensor([[math.nan, 3.0], [0.0, 2.0]]), torch.tensor([IGNORE_INDEX, 1]))
    metrics.update(torch.zeros(2, 2), torch.full((2,), IGNORE_INDEX))
    assert metrics.compute() == pytest.approx({"accuracy": 1.0, "macro_f1": 1.0, "loss": math.log1p(math.exp(-2.0))})
    metrics.reset()
    metrics.update(torch.tensor([[0.0, 2.0]]), torch.tensor([0]))
    assert metrics.compute()["accuracy"] == 0.0


def epoch_data() -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(7)
    labels = torch.randint(2, (23,), generator=random)  # the third label only in predictions
    return torch.randn(23, 3, generator=random) * 4, labels


def count_share(rank: int, world_size: int, folder: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/store{world_size}", rank=rank, world_size=world_size)
    logits, labels = epoch_data()
    start, end = [(0, 23)][rank] if world_size == 1 else [(0, 17), (17, 23)][rank]
    metrics = build_epoch_metrics(THREE_WAY)
    for at in range(start, end, 5):  # 4 batches and 2: the processes need not agree on their number
        metrics.update(logits[at : min(at + 5, end)], labels[at : min(at + 5, end)])
    Path(folder, f"{world_size}-{rank}.json").write_text(json.dumps(metrics.compute()))
    dist.destroy_process_group()


def test_epoch_metrics_equal_the_final_scores_in_one_and_two_processes(tmp_path: Path):
    logits, labels = epoch_data()
    frame = frame_of(logits, labels, THREE_WAY)
    scores = score(frame, THREE_WAY)
    count_share(0, 1, str(tmp_path))
    torch.multiprocessing.spawn(count_share, args=(2, str(tmp_path)), nprocs=2)
    for world_size in (1, 2):
        for rank in range(world_size):
            values = json.loads((tmp_path / f"{world_size}-{rank}.json").read_text())
            assert (values["accuracy"], values["macro_f1"]) == (scores.accuracy, scores.macro_f1)
            assert values["loss"] == pytest.approx(scores.loss, abs=1e-6)  # fp32 probabilities in the table
    assert 0 < scores.macro_f1 < scores.accuracy < 1  # not vacuous
