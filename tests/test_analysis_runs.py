"""Slices, premise page, errors and the report of runs: hand-made rows, and runs of the embedded corpus."""

from __future__ import annotations

import base64
import csv
import html
import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from lightning_nli.analysis.answers import RunAnswers, find_twin, run_names
from lightning_nli.analysis.corpus import analyze_corpus
from lightning_nli.analysis.corpus_pages import corpus_document
from lightning_nli.analysis.document import Document, Number, Paragraph, Section, Table, percent
from lightning_nli.analysis.errors import calibration, confusion, disagreement, error_types, leanings
from lightning_nli.analysis.figures import Bar, Panel, bar_figure
from lightning_nli.analysis.html_page import html_page
from lightning_nli.analysis.premise import (
    ACROSS,
    CONDITIONS,
    COVERING,
    REMOVED,
    WITHIN_DOMAIN,
    changed_premises,
    changes,
    no_premise_sentence,
    premise_figures,
)
from lightning_nli.analysis.report import markdown_page, write_csv, write_report
from lightning_nli.analysis.slices import (
    PAPER,
    QUANTILES,
    cut_rows,
    describe_rows,
    estimate_over,
    score_bins,
    scored_unit,
    truncation_slice,
    unicode_form,
    whole_slice,
)
from lightning_nli.config import ExperimentConfig
from lightning_nli.data.readers import read_source
from lightning_nli.data.schema import EXAMPLE_SCHEMA, Corpus
from lightning_nli.statistics import Estimate, jackknife, ratio
from lightning_nli.types import BINARY, THREE_WAY, UserError

YES, NO = "entailment", "non_entailment"


def rows_of(*rows: dict) -> pl.DataFrame:
    """Rows of the schema; what is not given is empty."""
    defaults = {
        "corpus": "mine",
        "premise": "Điều một.",
        "hypothesis": "Một.",
        "domains": [],
        "rule": [],
        "ratings": [],
    }
    full = [defaults | {"example_id": f"e{place}", "premise_id": f"p{place}", "law_id": "L"} | row
            for place, row in enumerate(rows)]  # fmt: skip
    return pl.DataFrame([{name: row.get(name) for name in EXAMPLE_SCHEMA} for row in full], schema=EXAMPLE_SCHEMA)


def run_of(gold: str, answer: str, units: str | None = None, **columns) -> RunAnswers:
    """A run whose gold labels and answers are given as strings of y and n, a letter a row."""
    numbers = {"n": 0, "y": 1}
    table = pl.DataFrame(
        {
            "example_id": [f"e{place}" for place in range(len(gold))],
            "gold": [numbers[one] for one in gold],
            "answer": [numbers[one] for one in answer],
            "unit": list(units or "L" * len(gold)),
        }
    ).with_columns(
        right=pl.col("gold") == pl.col("answer"),
        confidence=pl.lit(0.9),
        loss=pl.lit(0.1),
        prob_non_entailment=pl.when(pl.col("answer") == 0).then(0.9).otherwise(0.1),
        prob_entailment=pl.when(pl.col("answer") == 1).then(0.9).otherwise(0.1),
    )
    for name, values in columns.items():
        table = table.with_columns(pl.Series(name, values))
    return RunAnswers("run", Path("runs/run"), ExperimentConfig(), {}, table)


def bins_of(slices, name: str) -> dict[str, set[str]]:
    (one,) = [part for part in slices if part.name == name]
    return {key: set(one.rows.filter(pl.col("bin") == key)["example_id"]) for key in one.bins}


# Slices


def test_the_papers_bins_hold_their_upper_ends():
    lengths = [1, 20, 21, 40, 41, 60, 61, 200]
    rows = rows_of(*({"hypothesis": " ".join(["từ"] * length), "label": YES} for length in lengths))
    slices = cut_rows(describe_rows(rows), BINARY)
    assert bins_of(slices, "hypothesis-syllables-paper") == {
        "0-20": {"e0", "e1"}, "21-40": {"e2", "e3"}, "41-60": {"e4", "e5"}, "> 60": {"e6", "e7"}
    }  # fmt: skip
    shares = pl.Series("jaccard", [0.0, 0.10, 0.105, 0.20, 0.30, 0.31, 0.40, 0.99])
    slices = cut_rows(describe_rows(rows).with_columns(shares), BINARY)
    assert list(bins_of(slices, "jaccard-paper")) == ["0-10", "11-20", "21-30", "31-40", "> 40"]
    assert bins_of(slices, "jaccard-paper")["11-20"] == {"e2", "e3"}


def test_quantile_bins_are_of_equal_size_and_keep_equal_values_together():
    rows = rows_of(*({"hypothesis": "a", "premise": " ".join("b" * length), "label": YES} for length in range(1, 101)))
    slices = cut_rows(describe_rows(rows), BINARY)
    (one,) = [part for part in slices if part.name == "premise-syllables-quantiles"]
    sizes = one.rows["bin"].value_counts().sort("count")["count"].to_list()
    assert (len(sizes), sum(sizes)) == (5, 100)
    assert max(sizes) - min(sizes) <= 2
    assert not [part for part in slices if part.name == "hypothesis-syllables-quantiles"]  # all of one length
    (ties,) = [
        part
        for part in cut_rows(describe_rows(rows).with_columns(lcs=pl.Series([0.5] * 90 + [0.9] * 10)), BINARY)
        if (part.name, part.cut) == ("lcs-quantiles", QUANTILES)
    ]
    assert sorted(ties.rows["bin"].value_counts()["count"]) == [10, 90]


def test_vianli_has_its_own_bins():
    rows = rows_of({"corpus": "vianli", "hypothesis": " ".join(["a"] * 5), "label": "neutral"},
                   {"corpus": "vianli", "hypothesis": " ".join(["a"] * 31), "label": "neutral"})  # fmt: skip
    slices = cut_rows(describe_rows(rows), THREE_WAY)
    assert list(bins_of(slices, "hypothesis-syllables-paper")) == ["0-5", "> 30"]
    assert {part.source for part in slices if part.cut == PAPER} == {"ViANLI, section 7"}
    mixed = cut_rows(describe_rows(rows.with_columns(corpus=pl.Series(["vianli", "mine"]))), THREE_WAY)
    assert list(bins_of(mixed, "hypothesis-syllables-paper")) == ["0-20", "21-40"]
    assert {part.source for part in mixed} == {""}


def test_a_row_stands_in_each_of_its_domains_and_rules_and_labels_are_kept_apart():
    rows = rows_of(
        {"label": YES, "domains": ["education", "tax_fees"], "rule": [7, 3]},
        {"label": NO, "domains": [], "rule": [7]},
        {"label": NO, "domains": ["tax_fees"], "rule": [10, 2, 7]},
    )
    slices = cut_rows(describe_rows(rows), BINARY)
    assert bins_of(slices, "domain") == {"education": {"e0"}, "tax_fees": {"e0", "e2"}}
    assert next(part for part in slices if part.name == "domain").num_without == 1
    assert bins_of(slices, "rule-entailment") == {"3": {"e0"}, "7": {"e0"}}
    assert bins_of(slices, "rule-non-entailment") == {"2": {"e2"}, "7": {"e1", "e2"}, "10": {"e2"}}
    assert bins_of(slices, "num-rules-non-entailment") == {"1": {"e1"}, "3": {"e2"}}
    assert bins_of(slices, "label") == {NO: {"e1", "e2"}, YES: {"e0"}}


def test_agreement_counts_the_ratings_that_are_there():
    def rated(*labels):
        return [{"rater": f"r{place}", "label": label} for place, label in enumerate(labels)]

    rows = rows_of(
        {"label": YES, "ratings": rated(YES, YES, YES)},
        {"label": YES, "ratings": rated(YES, NO, NO)},
        {"label": NO, "ratings": rated(NO, None, YES)},
        {"label": NO, "ratings": rated(None, None, None)},
        {"label": NO, "ratings": []},
    )
    assert describe_rows(rows)["agreement"].to_list() == ["3 of 3", "1 of 3", "1 of 2", None, None]


def test_unicode_form_is_that_of_the_source():
    import unicodedata

    composed = "Điều luật này"
    rows = rows_of(
        {"hypothesis": composed, "label": YES},
        {"hypothesis": unicodedata.normalize("NFD", composed), "label": YES},
        {"hypothesis": composed + "\u00ad", "label": YES},
        {"hypothesis": "Ðiều", "label": YES},
    )
    found = unicode_form(rows).to_list()
    assert found[0] == "NFC"
    assert found[1] == "not NFC"
    assert found[2] == found[3]
    assert "look-alike" in found[2]


def test_bin_scores_are_those_of_the_jackknife_over_laws():
    gold, answer = "yynnyynnyynn", "yynnynnnynny"
    units = "aabbccddeeff"
    rows = rows_of(*({"label": YES if one == "y" else NO} for one in gold))
    run = run_of(gold, answer, units)
    (score,) = score_bins(whole_slice(rows), run.table, BINARY)
    right = [float(one == other) for one, other in zip(gold, answer, strict=True)]
    sums = np.array([[right[2 * law] + right[2 * law + 1], 2.0] for law in range(6)])
    unbounded = jackknife(sums, ratio, sizes=sums[:, 1])
    assert unbounded.high > 1 and score.accuracy.high == 1  # a share has no interval beyond its own range
    assert score.accuracy == unbounded.within(0, 1)
    assert score.accuracy.value == pytest.approx(sum(right) / 12)
    assert score.macro_f1.value == pytest.approx(
        pl.DataFrame({"g": list(gold), "a": list(answer)})
        .pipe(lambda frame: np.mean([
            2 * ((frame["g"] == x) & (frame["a"] == x)).sum() / ((frame["g"] == x).sum() + (frame["a"] == x).sum())
            for x in "yn"
        ]))
    )  # fmt: skip
    assert score.is_few  # 12 rows
    by_label = next(part for part in cut_rows(describe_rows(rows), BINARY) if part.name == "label")
    assert [one.macro_f1 for one in score_bins(by_label, run.table, BINARY)] == [None, None]


def test_under_five_laws_there_is_no_interval():
    rows = rows_of(*({"label": YES} for _ in range(60)))
    (score,) = score_bins(whole_slice(rows), run_of("y" * 60, "y" * 50 + "n" * 10, "abcd" * 15).table, BINARY)
    assert (score.accuracy.low, score.accuracy.note) == (None, "4 laws")
    assert score.is_few


def test_the_unit_is_the_law_then_the_group_then_the_premise():
    rows = rows_of({"label": YES}, {"label": YES})
    assert scored_unit(rows) == "law_id"
    without = rows.with_columns(law_id=pl.Series(["L", None]))
    assert scored_unit(without) == "premise_id"
    assert scored_unit(without.with_columns(group_id=pl.lit("g"))) == "group_id"


def test_truncation_compares_lengths_before_truncation():
    one = truncation_slice("my run/1", [10, 256, 257], pl.Series(["a", "b", "c"]), 256)
    assert one.name == "truncation-my-run-1"
    assert one.rows["bin"].to_list() == ["up to 256 tokens"] * 2 + ["truncated at 256 tokens"]


# Premise


def test_premise_figures_of_stored_swaps_by_hand():
    # four entailed rows with a swap (laws a to e), one without, one not entailed
    run = run_of(
        "yyyyyn",
        "yyynyn",
        "abcdea",
        hard_answer=pl.Series([0, 1, 0, 0, None, None], dtype=pl.Int64),
        hard_score=[0.1, 0.9, 0.2, 0.05, None, None],
    )
    run = replace(
        run, scores={"premise": {"random_swap": 0.25, "num_rows": 4, "left_out": 1}, "hard": {"balanced": 0.5}}
    )
    whole = Estimate(5 / 6, None, None, None, 6, None)
    figures = premise_figures(run, None, whole, whole, BINARY)
    assert figures.discrimination.value == 2 / 4
    assert figures.rank.value == (1 + 0.5 + 1 + 1) / 4  # own scores .9 .9 .9 .1
    assert (figures.random_swap.value, figures.random_swap.low) == (0.25, None)  # not in the table: as stored
    assert (figures.gain.value, figures.gain.note) == (None, "no hypothesis-only run")
    twin = run_of("yyyyyn", "nnnnyn", "abcdea")
    assert premise_figures(run, twin, whole, whole, BINARY).gain.value == pytest.approx(5 / 6 - 2 / 6)


def test_changes_by_gold_label_by_hand():
    run = run_of("yyynnn", "yynnny", "abcdef")
    after = pl.DataFrame({"example_id": ["e0", "e1", "e2", "e3", "e5"], "after": [0, 1, 0, 0, 0]})
    found = {one.label: one for one in changes(run, COVERING, after, BINARY)}
    assert (found[YES].num_rows, found[NO].num_rows, found["all"].num_rows) == (3, 2, 5)
    assert found[YES].changed.value == pytest.approx(1 / 3)
    assert (found[YES].before.value, found[YES].after.value) == (pytest.approx(2 / 3), pytest.approx(1 / 3))
    assert (found[NO].changed.value, found[NO].before.value, found[NO].after.value) == (0.5, 0.5, 1.0)
    assert found["all"].fall.value == pytest.approx(3 / 5 - 3 / 5)


def test_changed_premises_are_what_they_say():
    rows = read_source("sample:400#test").frame
    frames = changed_premises(rows, BINARY)
    assert set(frames) == set(CONDITIONS)
    assert frames[REMOVED]["premise"].unique().to_list() == [""]
    assert frames[REMOVED].height == rows.height
    own = dict(rows.select("example_id", "premise").iter_rows())
    by_premise = {row["premise"]: row for row in rows.iter_rows(named=True)}
    by_id = {row["example_id"]: row for row in rows.iter_rows(named=True)}
    for condition, frame in frames.items():
        if condition == REMOVED:
            continue
        assert frame.select("hypothesis", "label").equals(
            frame.select("example_id").join(rows, on="example_id", maintain_order="left").select("hypothesis", "label")
        )
        for example_id, premise in frame.select("example_id", "premise").iter_rows():
            assert premise != own[example_id]
            mine, other = by_id[example_id], by_premise[premise]
            shared = set(mine["domains"]) & set(other["domains"])
            if condition == ACROSS:
                assert not shared
            elif condition == WITHIN_DOMAIN:
                assert shared
                assert mine["law_id"] != other["law_id"]
            else:
                assert mine["law_id"] == other["law_id"]
    assert {one["label"] for one in frames[COVERING].iter_rows(named=True)} == {YES, NO}  # every label is swapped


@pytest.mark.parametrize(
    ("accuracy", "blind", "ending"),
    [
        (0.9, 0.7, "50% of what r gains over the constant needs no premise."),
        (0.9, 0.95, "all of what r gains over the constant needs no premise."),
        (0.9, 0.4, "all that r gains over the constant takes the premise."),
        (0.5, 0.7, "r is no better than the constant."),
    ],
)
def test_one_sentence_says_how_much_needs_no_premise(accuracy, blind, ending):
    sentence = no_premise_sentence("r", accuracy, ("b", blind), (NO, 0.5))
    assert sentence.endswith(ending)
    assert f"(b) is right on {100 * blind:.1f}%" in sentence
    assert sentence.count(". ") == 0


def test_the_twin_is_found_by_its_settings():
    full = replace(run_of("y", "y"), config=ExperimentConfig(model="tiny", augment="premise_swap=1+1"))
    other = replace(full, config=ExperimentConfig(model="tiny", segments="hypothesis", seed=2))
    twin = replace(full, config=ExperimentConfig(model="tiny", segments="hypothesis", run_dir="anywhere"))
    assert find_twin(full, [full, other, twin]) is twin
    assert find_twin(full, [full, other]) is None
    assert find_twin(twin, [full, twin]) is None


def test_runs_of_one_name_are_told_apart(tmp_path):
    assert run_names([tmp_path / "a" / "run", tmp_path / "b" / "run"]) == ["a-run", "b-run"]
    assert run_names([tmp_path / "one", tmp_path / "two"]) == ["one", "two"]
    with pytest.raises(UserError, match="given twice"):
        run_names([tmp_path / "a", tmp_path / "b" / ".." / "a"])


# Errors


def test_error_types_by_hand():
    rows = rows_of(
        {"label": YES, "rule": [6, 8]},  # missed: both types
        {"label": YES, "rule": [1]},  # missed: no rule of 6 to 9
        {"label": YES, "rule": [9]},  # right
        {"label": NO, "rule": [1]},  # taken for entailment
        {"label": NO, "rule": [10]},  # taken for entailment
        {"label": NO, "rule": [1, 2]},  # right
    ).with_columns(jaccard=pl.Series([0.2, 0.3, 0.4, 0.35, 0.1, 0.9]))
    run = run_of("yyynnn", "nnyyyn")
    found = {one.key: one for one in error_types(run, rows, BINARY)}
    counts = {key: (one.num_errors, one.num_rows) for key, one in found.items()}
    assert counts == {
        "rules-6-7": (1, 1), "rule-1": (1, 2), "rules-8-9": (1, 2), "other-rules": (1, 1),
        "overlap": (1, 2), "little-overlap": (1, 1),  # the entailed rows' median is 0.3
        "non_entailment-entailment": (2, 3), "entailment-non_entailment": (2, 3),
    }  # fmt: skip
    assert found["rule-1"].share == 0.25
    assert (found["rule-1"].published, found["overlap"].published) == (0.15, None)
    assert confusion(run, BINARY) == [[1, 2], [2, 1]]


def test_leaning_and_disagreement_by_hand():
    run = run_of("yyynn", "nnnny", confidence=[0.9, 0.9, 0.9, 0.9, 0.6])
    no, yes = leanings(run, BINARY)
    assert (no.gold, no.answered, no.lean.value) == (0.4, 0.8, pytest.approx(0.4))
    assert (yes.unsure_gold, yes.unsure_answered) == (0.0, 1.0)  # the least sure fifth is the last row
    other = run_of("yyynn", "yynny")
    pair = disagreement(run, other)
    assert (pair.both_right, pair.first_only, pair.second_only, pair.both_wrong) == (1, 0, 2, 2)
    assert (pair.same_answer, pair.difference.value) == (pytest.approx(3 / 5), pytest.approx(-2 / 5))
    assert pair.mcnemar_p == 0.5  # two of two: 2 x 1/4


def test_calibration_puts_answers_into_their_bins():
    run = run_of("yyyy", "yynn", confidence=[1.0, 0.95, 0.55, 0.56])
    found = calibration(run)
    assert [(one.num_rows, one.accuracy.value) for one in found.bins] == [(2, 0.0), (2, 1.0)]
    assert found.error == pytest.approx((abs(1.95 - 2) + 1.11) / 4)


# Report

EVIL = '<script>alert("1")</script> & |x| [a](b) *c*\x07'


def document_of(*blocks, **options) -> Document:
    return Document("A title", (Section("First", blocks),), {"a": 1}, **options)


def test_text_from_data_is_escaped_everywhere():
    figure = bar_figure("f", EVIL, [Panel(EVIL, (EVIL,), {EVIL: (Bar(0.5, 0.4, 0.6),)})], axis=EVIL)
    document = replace(document_of(Paragraph(EVIL), Table("t", EVIL, (EVIL,), ((EVIL,),)), figure), title=EVIL)
    page = html_page(document)
    assert "<script" not in page
    assert "\x07" not in page
    assert page.count(html.escape(EVIL[:-1])) >= 6  # title twice, paragraph, caption, heading, cell
    assert b"<script" not in figure.svg
    text = markdown_page(document)
    assert "<script" not in text.replace("\\<script", "")
    assert "\\|x\\| \\[a\\](b) \\*c\\*" in text


def test_the_page_asks_for_nothing_from_elsewhere():
    figure = bar_figure("f", "c", [Panel("p", ("a",), {"s": (Bar(0.5),)})], axis="x")
    page = html_page(document_of(figure))
    assert re.findall(r'(?:src|href)="(?!#|data:)', page) == []
    assert "url(" not in page
    assert "@import" not in page
    assert "default-src 'none'" in page
    picture = base64.b64decode(re.search(r"data:image/svg\+xml;base64,([^\"]+)", page)[1])
    assert picture == figure.svg


def test_cells_show_intervals_reasons_and_dashes():
    known = Estimate(0.912, 0.01, 0.891, 0.9333, 100, 50.0, "training variance not included")
    assert percent(known).text == "91.2 [89.1, 93.3]"
    assert percent(Estimate(0.5, None, None, None, 3, None, "3 laws")).text == "50.0 (3 laws)"
    assert percent(None).text == "-"
    assert Number(-0.0001, digits=1).text == "0.0"
    page = html_page(document_of(Table("t", "c", ("run", "x"), (("r", percent(known)),), frozenset({0}))))
    assert 'data-value="0.912">91.2 <span class="interval">[89.1, 93.3]</span>' in page
    assert '<tr class="few">' in page


def test_csv_is_unrounded_and_says_what_rests_on_few_rows(tmp_path):
    cells = (("a, b", percent(Estimate(1 / 3, 0.1, 0.2, 0.5, 9, 8.0, ""))), ("c", percent(0.25)))
    write_csv(Table("t", "c", ("run", "x"), cells, frozenset({1})), tmp_path / "t.csv")
    with (tmp_path / "t.csv").open(encoding="utf-8") as file:
        assert list(csv.reader(file)) == [
            ["run", "x", "x, low", "x, high", "few rows"],
            ["a, b", repr(1 / 3), "0.2", "0.5", "0"],
            ["c", "0.25", "", "", "1"],
        ]


def test_figures_draw_vietnamese_and_hatch_few_rows_the_same_every_time(recwarn):
    panel = Panel("Bộ máy hành chính", ("Thủ tục Tố tụng", "ữ ẵ ợ ỷ Đ đ"), {"một": (Bar(0.5, 0.3, 0.9), Bar(0.4))})
    first = bar_figure("f", "c", [panel], axis="điểm")
    assert first == bar_figure("f", "c", [panel], axis="điểm")
    assert not [one for one in recwarn if "Glyph" in str(one.message)]  # a letter without a glyph warns
    assert first.png.startswith(b"\x89PNG")
    few = replace(panel, series={"một": (Bar(0.5, 0.3, 0.9, True), Bar(0.4))})
    assert b"pattern" not in first.svg
    assert b"pattern" in bar_figure("f", "c", [few], axis="điểm").svg


def test_a_report_is_written_whole_and_never_over_something_else(tmp_path, monkeypatch):
    out = tmp_path / "report"
    document = document_of(Table("t", "c", ("x",), ((1,),)), subsets={"hard": ["b", "ă"]})
    write_report(document, out)
    names = {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()}
    assert names == {"report.html", "report.md", "analysis.json", "tables/t.csv", "subsets/hard.txt"}
    assert (out / "subsets" / "hard.txt").read_text(encoding="utf-8") == "b\nă\n"
    with pytest.raises(UserError, match="--force replaces it"):
        write_report(document, out)
    (out / "report.md").write_text("old")
    write_report(document, out, force=True)
    assert (out / "report.md").read_text() != "old"
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "thesis.tex").write_text("mine")
    with pytest.raises(UserError, match="holds no report of ours"):
        write_report(document, theirs, force=True)
    broken = document_of(Table("t", "c", ("x",), ((1,),)), subsets={"no/such": ["b"]})
    with pytest.raises(UserError, match="cannot be written"):
        write_report(broken, out, force=True)
    assert (out / "report.md").exists()  # the earlier one stays
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report", "theirs"]  # nothing half-made


def test_json_of_an_estimate_has_no_nan():
    empty = estimate_over(pl.DataFrame(schema={"unit": pl.String, "right": pl.Boolean}), ["right", "rows"])
    assert json.loads(json.dumps(vars(empty), allow_nan=False))["value"] is None


def test_the_papers_figures_stand_beside_their_own_corpus():
    def rated(label, *labels):
        return {"label": label, "ratings": [{"rater": f"r{place}", "label": one} for place, one in enumerate(labels)]}

    rows = rows_of(*[rated(YES, YES, YES, NO), rated(YES, YES, YES, YES), rated(NO, NO, NO, YES)] * 4)
    analysis = analyze_corpus(Corpus(rows.with_columns(corpus=pl.lit("vilegalnli")), BINARY, "vilegalnli:x"))
    document = corpus_document(analysis, ["vilegalnli"])
    tables = {table.name: table for table in document.blocks(Table)}
    assert tables["vilegalnli-table-7-agreement"].rows[4][:3] == (YES, 3, 4)
    shares = [cell.value for cell in tables["vilegalnli-table-7-agreement"].rows[4][3:]]
    assert shares == [0.5, 0.5, 62.44]
    assert {row[4].value for row in tables["vilegalnli-table-12-overlap"].rows} >= {28.71, 18.43, 41.34}
    (notes,) = [block.items for block in document.sections[-1].blocks]
    assert any("Table 13: The values cannot be pointwise mutual information" in note for note in notes)
