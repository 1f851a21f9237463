"""The papers' figures as package data: complete, as printed, and the page of them up to date."""

from __future__ import annotations

import csv
import subprocess
import sys
from collections import Counter
from pathlib import Path

import polars as pl
import pytest

from lightning_nli.models.registry import model_cards
from lightning_nli.published import PAPERS, published_figures, published_page, published_tables
from lightning_nli.published.page import read_measured
from lightning_nli.types import DOMAINS, UserError

DOCS = Path(__file__).resolve().parents[1] / "docs"
MEASURED_HEADER = "paper,table,system,setting,test_set,metric,value,unit,command\n"

# Figures of each table: rows x columns of the paper.
COUNTS = {
    "vilegalnli": {5: 6, 7: 3 * 3, 8: 4, 11: 28 * 4, 12: 2 * 9, 13: 10 * 2, 14: 16 * 4, 15: 4 * 4},
    "vianli": {2: 4 * 6, 4: 10, 5: 15, 6: 15, 7: 8 * 3, 8: 17 * 7, 9: 3 * 8, 10: 9 * 6, 11: 4 * 8},
    "wills": {1: 3 * 2, 2: 8 * 5, 3: 9 * 5, 4: 9 * 5},
}


def value(paper: str, table: int, **wanted: str) -> float:
    conditions = [pl.col(name) == text for name, text in wanted.items()]
    rows = published_figures(paper).filter(pl.col("table") == table, *conditions)
    assert rows.height == 1, rows
    return rows["value"][0]


def test_every_table_is_there_with_all_its_figures():
    frame = published_figures()
    found = {(paper, table): n for paper, table, n in frame.group_by("paper", "table").len().iter_rows()}
    assert found == {(paper, table): n for paper, tables in COUNTS.items() for table, n in tables.items()}
    assert {(entry.paper, entry.number) for entry in published_tables()} == set(found)
    keys = ["paper", "table", "system", "setting", "test_set", "metric"]
    assert not frame.select(keys).is_duplicated().any()
    assert frame.select("paper", "table", "system", "metric", "unit", "source").null_count().sum_horizontal()[0] == 0


def test_only_a_dash_of_the_paper_is_missing():
    missing = published_figures().filter(pl.col("value").is_null())
    assert missing.select("paper", "table", "system", "test_set").rows() == [("vianli", 7, "XNLI", "test")]


def test_spot_values_and_sources():
    assert value("vilegalnli", 14, system="InfoXLM (large)", test_set="test", metric="accuracy") == 87.98
    assert value("vilegalnli", 13, system="không cần", metric="frequency") == 13.02
    mixture = "ViNLI + XNLI + VnNewsNLI + ViA1 + ViA2"
    assert value("vianli", 8, system="XLM-R (large)", setting=mixture, test_set="ViA3") == 19.12
    assert value("vianli", 10, system="CBoW", setting="words", test_set="ViNLI test") == 45.8
    assert value("wills", 2, system="roberta-large-mnli", metric="group_accuracy") == 84.31
    sources = published_figures("vilegalnli").filter(pl.col("table") == 14)["source"].unique().to_list()
    assert sources == ["ViLegalNLI (arXiv 2605.00116), Table 14"]


def test_sums_are_those_that_the_notes_speak_of():
    domains = published_figures("vilegalnli").filter(pl.col("table") == 11)
    sums = domains.filter(pl.col("system") != "All").group_by("test_set").agg(pl.col("value").sum())
    assert dict(sums.iter_rows()) == {"train": 41862, "dev": 5314, "test": 4811, "total": 49086}
    assert domains["system"].n_unique() == len(DOMAINS) + 1
    by_split = {name: pl.col("value").filter(pl.col("test_set") == name).sum() for name in ("train", "dev", "test")}
    total = pl.col("value").filter(pl.col("test_set") == "total").sum()
    wrong = domains.group_by("system").agg(pl.sum_horizontal(by_split.values()) != total).filter(pl.col("value"))
    (note,) = [note for note in published_tables("vilegalnli")[3].notes if note.startswith("Seven fields")]
    named = note.partition(":")[2].strip(" .").split(", ")
    assert sorted(named) == sorted(wrong["system"]) and len(named) == 7
    words = published_figures("vilegalnli").filter(
        pl.col("table") == 12, pl.col("metric").is_in(["noun", "verb", "adj", "pron", "adv", "other"])
    )
    shares = words.group_by("system", maintain_order=True).agg(pl.col("value").sum().round(2))["value"].to_list()
    assert shares == [67.92, 66.83]


def test_vianli_is_the_mean_of_its_rounds():
    """330, 330 and 340 rows: a misread digit would show."""
    frame = published_figures("vianli").filter(pl.col("table").is_in([8, 9, 11]))
    sizes = {"ViA1": 0.33, "ViA2": 0.33, "ViA3": 0.34}
    checked = 0
    for _, rows in frame.group_by("table", "system", "setting"):
        found = dict(rows.select("test_set", "value").iter_rows())
        for suffix in {name.partition(" ")[2] for name in found}:
            end = f" {suffix}" if suffix else ""
            mean = sum(share * found[f"{name}{end}"] for name, share in sizes.items())
            assert mean == pytest.approx(found[f"ViANLI{end}"], abs=0.02)
            checked += 1
    assert checked == 17 + 2 * 3 + 2 * 4


def test_differences_of_table_10_are_differences():
    frame = published_figures("vianli").filter(pl.col("table") == 10)
    for _, rows in frame.group_by("system", "setting"):
        found = dict(rows.select("test_set", "value").iter_rows())
        for split in ("dev", "test"):
            assert found[f"ViNLI {split}"] - found[f"ViANLI {split}"] == pytest.approx(found[split])


def test_every_published_encoder_is_one_of_the_registry():
    cards = {card.hub_id: card for card in model_cards()}
    frame = published_figures().filter(~pl.col("setting").str.starts_with("LLM").fill_null(False))
    known = frame.drop_nulls("hub_id").select("paper", "table", "hub_id").unique()
    assert set(known["hub_id"]) == set(cards)
    names = {"vilegalnli": "ViLegalNLI", "vianli": "ViANLI", "wills": "Wills"}
    listed = {table for card in cards.values() for table in card.tables}
    stand = {(f"{names[paper]} {table}", hub_id) for paper, table, hub_id in known.iter_rows()}
    assert {pair for pair in stand if pair[0] in listed} == {
        (t, card.hub_id) for card in cards.values() for t in card.tables
    }


# How the shared files name what is named otherwise here.
SHARED = {
    "vilegalnli": {5: "kappa", 7: "agreement", 8: "before_mitigation", 11: "domains", 12: "overlap_pos", 13: "pmi"}
    | {14: "models", 15: "cross_domain"},
    "vianli": {2: "rounds", 4: "lengths", 5: "jaccard", 6: "new_word", 7: "datasets", 8: "mixtures", 9: "rounds"}
    | {10: "word_syllable", 11: "hypothesis_only"},
    "wills": {1: "splits", 2: "models", 3: "lengths", 4: "ablation"},
}
ROW_NAMES = ("round", "label", "domain", "token", "model", "data", "segment", "split", "group", "training_data", "unit")
ROW_NAMES += ("setting", "segments", "length_class")


@pytest.mark.parametrize("paper", PAPERS)
def test_every_figure_is_that_of_the_papers_csv(shared, paper):
    """Row by row in the order of the paper, all figures of a row: nothing lost, nothing moved, nothing invented."""
    for table, name in SHARED[paper].items():
        with (shared / "papers" / f"{paper}_table{table}_{name}.csv").open(encoding="utf-8") as file:
            printed = [
                [text.rstrip("%") for column, text in row.items() if column not in ROW_NAMES]
                for row in csv.DictReader(file)
            ]
        rows = published_figures(paper).filter(pl.col("table") == table)
        ours = rows.group_by("system", "setting", maintain_order=True).agg("value")["value"].to_list()
        expected = [[None if text == "-" else float(text) for text in row] for row in printed]
        assert ours == expected, f"{paper} {table}"


def test_a_wrong_paper_is_named():
    with pytest.raises(UserError, match="no published figures of 'anli'"):
        published_figures("anli")


def test_the_page_in_docs_is_up_to_date():
    command = "run `python -m lightning_nli.published docs/measured.csv > docs/PUBLISHED.md`"
    assert (DOCS / "PUBLISHED.md").read_text(encoding="utf-8") == published_page(DOCS / "measured.csv"), command


def test_the_command_prints_the_page():
    command = [sys.executable, "-m", "lightning_nli.published"]
    done = subprocess.run([*command, str(DOCS / "measured.csv")], capture_output=True, encoding="utf-8", check=True)
    assert done.stdout == (DOCS / "PUBLISHED.md").read_text(encoding="utf-8")
    wrong = subprocess.run([*command, "no.csv"], capture_output=True, encoding="utf-8", check=False)
    assert wrong.returncode == 2 and wrong.stderr == "no file 'no.csv' with measured figures\n"


def test_every_published_figure_stands_on_the_page():
    lines = published_page().splitlines()
    cells = Counter(cell.strip() for line in lines if line.startswith("|") for cell in line.split("|"))
    assert cells["87.98"] >= 2 and cells["135,218"] == 1 and cells["0.87"] == 1
    numbers = sum(n for cell, n in cells.items() if cell.replace(",", "").replace(".", "").isdecimal())
    assert numbers == sum(n for tables in COUNTS.values() for n in tables.values()) - 1  # one is a dash
    for table in published_tables():
        assert any(line.startswith(f"### Table {table.number}: {table.title}") for line in lines)
        assert all(f"- {note}" in lines for note in table.notes)


def test_a_measured_figure_stands_beside_the_published_one_and_others_apart(tmp_path):
    path = tmp_path / "measured.csv"
    path.write_text(
        MEASURED_HEADER + "vilegalnli,14,CafeBERT,Vietnamese,test,accuracy,86.9,percent,lnli fit A\n"
        "vilegalnli,14,mine,seed 1,test,accuracy,70,percent,lnli fit B\n"
        "vilegalnli,14,mine,seed 1,test,premise_rank,0.5,share,lnli fit B\n"
    )
    lines = published_page(path).splitlines()
    assert "| CafeBERT | Vietnamese | 87.56 | 87.44 | 87.49 | 87.36 | 86.9 |" in lines
    assert "| viBERT | Vietnamese | 75.00 | 74.24 | 74.53 | 73.54 | - |" in lines
    assert "| mine | seed 1 | 70.0 | 0.500 |" in lines
    assert "- mine, seed 1: `lnli fit B`" in lines


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("system,value\nx,1\n", "must have the columns paper,table"),
        (MEASURED_HEADER + "vilegalnli,99,x,,test,accuracy,1,percent,c\n", "no table 99 of 'vilegalnli'"),
        (MEASURED_HEADER + "vilegalnli,14,x,,test,accuracy,1,furlong,c\n", "unit 'furlong' is none of percent"),
        (MEASURED_HEADER + 2 * "vilegalnli,14,x,,test,accuracy,1,percent,c\n", "gives a figure twice"),
        (MEASURED_HEADER + "vilegalnli,14,x,,test,accuracy,much,percent,c\n", "cannot be read"),
        ("", "cannot be read"),
    ],
)
def test_a_faulty_file_of_measured_figures_is_refused(tmp_path, text, message):
    path = tmp_path / "measured.csv"
    path.write_text(text)
    with pytest.raises(UserError, match=message):
        read_measured(path)
