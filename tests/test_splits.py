from __future__ import annotations

import unicodedata

import polars as pl
import pytest

from lightning_nli.data.splits import draw_split, find_duplicates, find_leaks, stable_unit, take_subset
from lightning_nli.types import UserError


def examples(rows: list[tuple[str, str, str]], labels: list[str] | None = None) -> pl.DataFrame:
    ids, premises, hypotheses = zip(*rows, strict=True)
    return pl.DataFrame(
        {
            "example_id": ids,
            "premise": premises,
            "hypothesis": hypotheses,
            "condition": pl.Series([None] * len(rows), dtype=pl.String),
            "label": labels or ["entailment"] * len(rows),
        }
    )


@pytest.fixture
def frame() -> pl.DataFrame:
    return pl.DataFrame({"row": range(300), "premise_id": [f"p{i // (1 + i % 3)}" for i in range(300)]})


def test_stable_unit_is_fixed_for_ever():
    assert stable_unit("p1", 0) == pytest.approx(0.7421356834026084, abs=1e-12)
    assert stable_unit("p1", 1) != stable_unit("p1", 0)
    assert all(0 <= stable_unit(str(i), 3) < 1 for i in range(100))


@pytest.mark.parametrize("fraction", [0.01, 0.1, 0.5, 0.9])
def test_draw_split_keeps_units_whole_and_reaches_the_fraction(frame: pl.DataFrame, fraction: float):
    train, held = draw_split(frame, fraction=fraction, unit="premise_id", seed=0)
    assert not set(train["premise_id"]) & set(held["premise_id"])
    assert sorted([*train["row"], *held["row"]]) == list(range(300))
    largest = frame["premise_id"].value_counts()["count"].max()
    assert fraction * 300 <= held.height < fraction * 300 + largest
    assert held["row"].is_sorted() and train["row"].is_sorted()


def test_draw_split_depends_on_the_seed_and_not_on_row_order(frame: pl.DataFrame):
    held = draw_split(frame, fraction=0.2, unit="premise_id", seed=0)[1]
    shuffled = draw_split(frame.sample(fraction=1, shuffle=True, seed=5), fraction=0.2, unit="premise_id", seed=0)[1]
    assert set(held["row"]) == set(shuffled["row"])
    assert set(held["row"]) != set(draw_split(frame, fraction=0.2, unit="premise_id", seed=1)[1]["row"])


def test_draw_split_refuses_what_it_cannot_do(frame: pl.DataFrame):
    with pytest.raises(ValueError, match=r"1\.5"):
        draw_split(frame, fraction=1.5, unit="premise_id", seed=0)
    with pytest.raises(UserError, match="premise_id"):
        draw_split(frame.with_columns(premise_id=pl.lit("one")), fraction=0.1, unit="premise_id", seed=0)
    with pytest.raises(UserError, match="300 rows have no premise_id"):
        draw_split(frame.with_columns(premise_id=pl.lit(None, pl.String)), fraction=0.1, unit="premise_id", seed=0)


def test_subsets_are_nested_whole_units(frame: pl.DataFrame):
    small, large = (take_subset(frame, rows, "premise_id", 0) for rows in (50, 120))
    assert set(small["row"]) < set(large["row"])
    assert small.height <= 50 < large.height <= 120
    for subset in (small, large):
        assert frame.filter(pl.col("premise_id").is_in(subset["premise_id"].implode())).height == subset.height
    assert take_subset(frame, 10_000, "premise_id", 0).equals(frame)
    with pytest.raises(UserError, match="too small"):
        take_subset(frame.with_columns(premise_id=pl.lit("one")), 10, "premise_id", 0)


def test_d09_leaks_are_found_under_another_case_space_and_unicode_form():
    train = examples(
        [
            ("1", "Chủ nợ được đòi nợ.", "Chủ nợ đòi được nợ."),
            ("2", "Thuế nộp theo quý.", "Thuế không phải nộp."),
            ("3", "Đường một chiều.", "Đi ngược là sai."),
        ]
    )
    test = examples(
        [
            ("11", unicodedata.normalize("NFD", "Chủ nợ được đòi nợ."), "  CHỦ NỢ ĐÒI ĐƯỢC NỢ "),
            ("12", "Thuế nộp\u00a0theo  quý", "Thuế nộp bốn lần."),
            ("13", "Rừng là tài sản chung.", "Đi ngược là sai."),
        ]
    )
    leaks = find_leaks(train, test)
    assert leaks.pairs.rows() == [("1", "11")]
    assert leaks.premises.rows() == [("2", "12")]
    assert leaks.num_premises == 2
    assert not find_leaks(train, test.tail(1))


def test_duplicates_are_counted_from_the_second_copy_on():
    frame = examples(
        [("1", "A b.", "C"), ("2", "A b.", "C"), ("3", "a b", "c"), ("4", "A b.", "D"), ("5", "A b. ", "C")],
        ["entailment", "entailment", "entailment", "entailment", "neutral"],
    )
    found = find_duplicates(frame)
    assert found.rows.rows() == [("2", "1", True), ("5", "1", False)]
    assert (found.height, found.num_contradictory, found.num_loose) == (2, 1, 3)
    assert not find_duplicates(frame.tail(2))
