"""Scores by length: full classes, draws, and the labels' shares made equal."""

from __future__ import annotations

import json

import numpy as np
import polars as pl
import pytest
from test_metrics import answers

from lightning_nli.analysis.length_classes import parse_edges, score_length_classes
from lightning_nli.cli.main import main
from lightning_nli.metrics import score
from lightning_nli.types import BINARY, THREE_WAY, UserError


def table(seed: int = 0, rows: int = 90) -> pl.DataFrame:
    """Longer rows are wrong more often, and are more often neutral."""
    random = np.random.default_rng(seed)
    lengths = random.integers(10, 900, rows)
    gold = ["n" if random.random() < length / 900 else random.choice(["e", "c"]) for length in lengths]
    told = [
        g if random.random() > length / 1500 else random.choice(["e", "n", "c"])
        for g, length in zip(gold, lengths, strict=True)
    ]
    return answers("".join(gold), "".join(told)).with_columns(num_tokens=lengths)


def test_edges_belong_to_the_lower_class_and_classes_are_scored_in_full():
    frame = answers("eeennn", "eennnc").with_columns(num_tokens=pl.Series([1, 256, 257, 512, 513, 4000]))
    classes = score_length_classes(frame, THREE_WAY, [256, 512], num_draws=3)
    assert [one.name for one in classes] == ["tokens <= 256", "256 < tokens <= 512", "512 < tokens"]
    assert [one.scores.num_examples for one in classes] == [2, 2, 2]
    assert [one.scores.accuracy for one in classes] == [1.0, 0.5, 0.5]
    for place, one in enumerate(classes):
        assert one.scores == score(frame[2 * place : 2 * place + 2], THREE_WAY)
        assert one.num_drawn == 2  # all of it: no spread
        assert one.drawn["accuracy"].mean == one.scores.accuracy and one.drawn["accuracy"].sd == 0


def test_draws_have_the_size_of_the_smallest_class_and_its_spread():
    frame = table()
    classes = score_length_classes(frame, THREE_WAY, [300, 800], num_draws=1000)
    sizes = [one.scores.num_examples for one in classes]
    assert min(sizes) < min(sizes[:2]) and {one.num_drawn for one in classes} == {min(sizes)}
    for one in classes[:2]:
        drawn, share = one.drawn["accuracy"], one.scores.accuracy
        # Drawn without replacement: variance p(1-p)/n x (N-n)/(N-1).
        size, n = one.scores.num_examples, one.num_drawn
        assert drawn.sd == pytest.approx(np.sqrt(share * (1 - share) / n * (size - n) / (size - 1)), rel=0.1)
        assert drawn.mean == pytest.approx(share, abs=3 * drawn.sd / np.sqrt(1000))
        assert drawn.low < drawn.mean < drawn.high
        assert one.drawn["macro_f1"].mean != one.scores.macro_f1
    again = score_length_classes(frame, THREE_WAY, [300, 800], num_draws=1000)
    assert [one.as_dict() for one in again] == [one.as_dict() for one in classes]
    other = score_length_classes(frame, THREE_WAY, [300, 800], num_draws=1000, seed=2)
    assert other[0].drawn != classes[0].drawn


def test_standardized_figures_are_those_of_a_class_with_the_sets_shares_of_labels():
    """8 e and 2 n in one class, 2 e and 8 n in the other; recall of e is 3/4 and 1/2, of n 1/2 and 7/8."""
    short = answers("e" * 8 + "n" * 2, "e" * 6 + "n" * 2 + "en").with_columns(num_tokens=pl.lit(10))
    long = answers("e" * 2 + "n" * 8, "en" + "n" * 7 + "e").with_columns(num_tokens=pl.lit(20))
    classes = score_length_classes(pl.concat([short, long]), THREE_WAY, [10], num_draws=1)
    assert [one.scores.accuracy for one in classes] == [0.7, 0.8]
    assert [one.standardized["accuracy"] for one in classes] == pytest.approx(
        [(6 / 8 + 1 / 2) / 2, (1 / 2 + 7 / 8) / 2]
    )
    # Scaled to 10 and 10 rows: short has 7.5 of 10 e right and 5 of 10 n; answered e 7.5 + 5, n 2.5 + 5.
    assert classes[0].standardized["macro_f1"] == pytest.approx((2 * 7.5 / (10 + 12.5) + 2 * 5 / (10 + 7.5)) / 2)


def test_a_class_without_one_of_the_labels_has_no_standardized_figure():
    frame = answers("eeen", "eeee").with_columns(num_tokens=pl.Series([1, 2, 30, 40]))
    short, long, none = score_length_classes(frame, THREE_WAY, [10, 50], num_draws=2)
    assert short.standardized == {"accuracy": None, "macro_f1": None}
    assert long.standardized["accuracy"] == pytest.approx(0.75)  # 3 of 4 rows are e
    assert none.scores.accuracy is None and none.drawn == {} and none.num_drawn == 2


def test_a_table_without_lengths_is_refused_with_the_mend():
    with pytest.raises(UserError, match=r"column 'num_tokens'.*`lnli test RUN` writes it"):
        score_length_classes(answers("en", "en"), BINARY, [5])


@pytest.mark.parametrize("text", ["", "a", "256,256", "512,256", "0,5", "1.5"])
def test_edges_rise(text):
    with pytest.raises(UserError, match="rising numbers of tokens, as 256,512"):
        parse_edges(text)


def test_the_command_prints_what_the_function_finds(tmp_path, capsys):
    path = tmp_path / "predictions.parquet"
    table().write_parquet(path)
    assert main(["score", str(path), "--length-classes", "300,600", "--json"]) == 0
    (report,) = json.loads(capsys.readouterr().out)["files"]
    expected = score_length_classes(table(), THREE_WAY, [300, 600])
    assert report["length_classes"] == json.loads(json.dumps([one.as_dict() for one in expected]))
    assert main(["score", str(path), "--length-classes", "300,600"]) == 0
    shown = capsys.readouterr().out
    assert f"{expected[0].num_drawn} rows of the class, 1000 times" in shown and "n <= 300" in shown
    table().drop("num_tokens").write_parquet(path)
    assert main(["score", str(path), "--length-classes", "300"]) == 2
    assert str(path) in capsys.readouterr().err
