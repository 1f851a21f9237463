"""Overlap of premise and hypothesis, words and their cache, lengths: hand-counted texts and ViLegalNLI's Table 12."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import polars as pl
import pytest
from tiny_models import bert_tokenizer

from lightning_nli.analysis.lengths import describe, length_histogram, measure_lengths, share_histogram
from lightning_nli.analysis.overlap import MEASURES, add_overlap
from lightning_nli.analysis.text_cache import cached_texts, map_texts
from lightning_nli.analysis.words import word_lists
from lightning_nli.data.readers import read_source
from lightning_nli.types import UserError

YES, NO = "entailment", "non_entailment"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LNLI_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "analysis"


def pairs(*rows: tuple[str, str]) -> pl.DataFrame:
    return pl.DataFrame(rows, schema={"premise": pl.String, "hypothesis": pl.String}, orient="row")


def overlap_of(premise: str, hypothesis: str, **options: str) -> dict[str, float | None]:
    return add_overlap(pairs((premise, hypothesis)), **options).select(*MEASURES).row(0, named=True)


def test_every_measure_by_hand():
    # words: {a b c d} and {a b x}, the hypothesis says "a" twice; 2 shared, 5 in either
    found = overlap_of("A b, c d.", "a x a b")
    assert found["jaccard"] == pytest.approx(2 / 5)
    assert found["new_word_rate"] == pytest.approx(1 / 3)
    assert found["vianli_overlap"] == pytest.approx(2 / (4 + 4 + 5))
    assert found["lcs"] == pytest.approx(3 / 9)  # " b " is not one run in both, but a subsequence: " ", "b" and " "
    in_words = overlap_of("A b, c d.", "a x a b", lcs_units="words")
    assert in_words["lcs"] == pytest.approx(2 / 4)


def test_the_subsequence_of_characters_keeps_case_and_order():
    assert overlap_of("abcd", "abcd")["lcs"] == 1.0
    assert overlap_of("abcd", "ABCD")["lcs"] == 0.0
    assert overlap_of("abcd", "dcba")["lcs"] == pytest.approx(1 / 4)
    assert overlap_of("abcdefgh", "xbxdx")["lcs"] == pytest.approx(2 / 8)
    assert overlap_of("ho\u0300a", "h\u00f2a")["lcs"] == 1.0  # composed first


def test_the_formula_as_printed_never_exceeds_a_third():
    found = overlap_of("thuế phải nộp", "nộp thuế phải")
    assert found["jaccard"] == 1.0 and found["vianli_overlap"] == pytest.approx(1 / 3)


def test_a_text_without_words_has_no_rate():
    found = add_overlap(pairs(("Phải nộp", "?!"), ("...", "?!")), lcs_units="words")
    assert found["new_word_rate"].to_list() == [None, None]
    assert found["jaccard"].to_list() == [0.0, None]
    assert found["lcs"].to_list() == [0.0, None]


def test_columns_are_added_in_order_and_to_no_rows_too():
    rows = pairs(*[(f"điều {i}", f"điều {i % 7}") for i in range(50)]).with_columns(pl.lit(1).alias("kept"))
    found = add_overlap(rows)
    assert found.columns == ["premise", "hypothesis", "kept", *MEASURES]
    assert found["jaccard"].to_list() == [1.0 if i == i % 7 else pytest.approx(1 / 3) for i in range(50)]
    empty = add_overlap(rows.clear())
    assert empty.is_empty() and empty.schema == found.schema


def test_unknown_words_and_units_are_refused():
    with pytest.raises(UserError, match="unknown words 'letters'; choose one of syllables, pyvi, underthesea"):
        add_overlap(pairs(("a", "b")), "letters")
    with pytest.raises(UserError, match="unknown unit 'syllables'"):
        add_overlap(pairs(("a", "b")), lcs_units="syllables")


def test_pyvi_words_keep_case_and_marks(cache: Path):
    pytest.importorskip("pyvi")
    texts = pl.Series("text", ["Người lao động nộp thuế.", None, "người lao động"])
    assert word_lists(texts, "pyvi").to_list() == [
        ["Người", "lao_động", "nộp", "thuế", "."],
        None,
        ["người", "lao_động"],
    ]
    assert word_lists(texts, "syllables").to_list()[0] == ["người", "lao", "động", "nộp", "thuế"]
    assert len(list(cache.glob("words-pyvi-*/*.parquet"))) == 1


def test_pyvi_words_and_characters_reproduce_table_12(shared: Path, cache: Path):
    """Every third row; all 8,944 give 28.72, 60.46, 41.64 and 18.97, 74.93, 34.15."""
    pytest.importorskip("pyvi")
    frame = read_source(f"vilegalnli:{shared / 'data' / 'vilegalnli'}", on_bad_row="drop").frame
    found = add_overlap(frame.gather_every(3), "pyvi")
    means = found.group_by(pl.col("label").cast(pl.String)).agg(pl.col(*MEASURES).mean() * 100)
    printed = {YES: (28.71, 60.00, 41.34), NO: (18.43, 75.39, 34.29)}
    computed = {YES: (29.19, 60.08, 41.86), NO: (18.93, 75.02, 34.10)}
    for label, *shares in means.select("label", "jaccard", "new_word_rate", "lcs").iter_rows():
        assert shares == pytest.approx(printed[label], abs=0.6)
        assert shares == pytest.approx(computed[label], abs=0.02)


def upper(log: list[str], text: str) -> str:
    log.append(text)
    return text.upper()


def test_a_text_is_computed_once_ever(cache: Path):
    log: list[str] = []
    texts = pl.Series("t", ["b", None, "a", "b"])
    assert cached_texts(texts, "upper-1", partial(upper, log)).to_list() == ["B", None, "A", "B"]
    assert log == ["b", "a"]
    assert cached_texts(pl.Series("t", ["c", "a"]), "upper-1", partial(upper, log)).to_list() == ["C", "A"]
    assert log == ["b", "a", "c"]
    cached_texts(pl.Series("t", ["a"]), "upper-2", partial(upper, log))  # another version computes anew
    assert log == ["b", "a", "c", "a"]
    stored = pl.concat([pl.read_parquet(file) for file in cache.glob("upper-1/*")])
    assert stored.columns == ["key", "value"] and sorted(stored["value"]) == ["A", "B", "C"]


def test_a_damaged_cache_is_named(cache: Path):
    (cache / "upper").mkdir(parents=True)
    (cache / "upper" / "half.parquet").write_bytes(b"PAR1")
    with pytest.raises(UserError, match=r"half\.parquet cannot be read .*; delete it"):
        cached_texts(pl.Series(["a"]), "upper", str.upper)


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LNLI_CACHE", str(tmp_path / "file"))
    with pytest.raises(UserError, match=r"cannot be written .*; set LNLI_CACHE"):
        cached_texts(pl.Series(["a"]), "upper", str.upper)


def test_workers_give_the_same_in_the_same_order():
    texts = [f"điều {number}" for number in range(7)]
    assert map_texts(str.upper, texts, 2) == [text.upper() for text in texts]
    with pytest.raises(RuntimeError, match=r"(?s)ended with code 1.*ValueError"):
        map_texts(partial(int, base=10), ["1", "x"], 2)  # type: ignore[arg-type]


def test_lengths_in_three_units(cache: Path):
    pytest.importorskip("pyvi")
    frame = pairs(("Người lao động phải nộp thuế.", "nộp thuế - nộp"), ("a", "b  c")).with_columns(
        pl.lit(None, pl.String).alias("condition")
    )
    found = measure_lengths(frame, words="pyvi", tokenizer=bert_tokenizer())
    assert found.columns == [f"{name}_{unit}" for name in ("premise", "hypothesis") for unit in UNITS]
    assert found["premise_syllables"].to_list() == [6, 1]
    assert found["hypothesis_syllables"].to_list() == [4, 2]  # "-" stands alone
    assert found["premise_words"].to_list() == [6, 1]  # Người lao_động phải nộp thuế .
    assert found["hypothesis_tokens"].to_list() == [4, 2]  # without [CLS] and [SEP]


UNITS = ("syllables", "words", "tokens")


def test_summaries_by_split_and_label():
    values = pl.DataFrame({"x": [1.0, 2.0, 3.0, None]})
    by = pl.DataFrame({"split": ["dev", "dev", "test", None], "label": [YES, NO, NO, NO]})
    found = describe(values, by)
    by_group = {(row["split"], row["label"]): row for row in found.iter_rows(named=True)}
    assert by_group[None, None]["rows"] == 3 and by_group[None, None]["mean"] == 2.0
    assert by_group[None, None]["sd"] == 1.0 and by_group[None, None]["q75"] == 2.5
    assert by_group["dev", None]["mean"] == 1.5 and by_group[None, NO]["mean"] == 2.5
    assert by_group["test", NO]["rows"] == 1 and by_group["test", NO]["sd"] is None
    assert ("test", YES) not in by_group


def test_histograms_count_every_row_once():
    lengths = pl.DataFrame({"x": [*range(100), 5000]}, schema={"x": pl.UInt32})
    labels = pl.Series([YES if i % 2 else NO for i in range(101)])
    found = length_histogram(lengths, labels)
    assert found["rows"].sum() == 101 and found.height == 2 * 20
    assert found.filter(pl.col("label") == YES).row(1) == ("x", YES, 5, 9, 3)  # 5, 7, 9
    assert found.filter(pl.col("label") == NO).row(-1) == ("x", NO, 95, None, 3)  # 96, 98, 5000
    shares = pl.DataFrame({"x": [0.0, 0.1, 0.35, 1.0, None]})
    counts = share_histogram(shares, pl.Series([YES] * 5))
    assert counts["rows"].to_list() == [1, 1, 0, 1, 0, 0, 0, 0, 0, 1]
    assert counts["high"][-1] == 1.0
