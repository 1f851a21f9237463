"""The board in a terminal and as a file: numbers, blanks and their reasons, the order of columns."""

from __future__ import annotations

import csv
import io
import json
import random
import re
from dataclasses import replace

import pytest
from boards import Page, blank, board_row, estimate, leaderboard, small_board
from rich.console import Console

from lightning_nli.crossdomain import board_text, render
from lightning_nli.crossdomain.leaderboard import COLUMNS
from lightning_nli.crossdomain.page import board_page
from lightning_nli.crossdomain.wording import BOARD_COLUMNS
from lightning_nli.statistics import Estimate

HEADINGS = [BOARD_COLUMNS[name].heading for name in COLUMNS]


@pytest.fixture
def draw():
    return random.Random(7)


def test_columns_come_in_the_binding_order(draw):
    board = small_board(draw)
    order = ["Rank", *HEADINGS, "Worst domain", "Calibration error", "Cost"]
    head = Page(board_page(board, published=None)).tables["table"][0]
    assert [next(name for name in ["Model", *order] if cell.startswith(name)) for cell in head] == ["Model", *order]
    table = render.board_table(board, 400)
    assert [column.header.replace("\n", " ") for column in table.columns] == ["Model", *order]
    line = next(line for line in render.board_markdown(board).splitlines() if line.startswith("| Model"))
    assert [cell.strip() for cell in line.strip("|").split("|")] == ["Model", *order]
    fields = next(csv.reader(io.StringIO(render.board_csv(board))))
    values = [name.rpartition("_")[0] for name in fields if name.endswith(("_percent", "_points"))]
    assert values == [*COLUMNS, "worst_domain_accuracy", "calibration_error"]


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_no_terminal_is_too_narrow_for_a_figure(draw, width):
    board = small_board(draw)
    out = io.StringIO()
    Console(file=out, width=width).print(render.board_table(board, width))
    lines = out.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    words = [word.strip() for line in lines for word in re.split("[│┃]", line)]
    for row in board.rows[:3]:
        for name in COLUMNS:
            for part in board_text.figure(row.figures[name], BOARD_COLUMNS[name]) or ():
                assert part in words, (width, row.model, name)
    names = [{word.strip() for word in re.split("[│┃]", line)} for line in lines]
    side_by_side = max(len(found & {row.model for row in board.rows}) for found in names)
    assert side_by_side == {60: 1, 80: 2, 120: 3, 200: 1}[width]  # wide enough: a row a model


def test_a_blank_cell_says_why(draw):
    board = small_board(draw)
    why = {
        "twin": board_text.why_blank(board, board.rows[1], "premise_gain"),
        "linear": board_text.why_blank(board, board.rows[2], "premise_gain"),
        "effects": board_text.why_blank(board, board.rows[2], "law_effect"),
        "lost": board_text.why_blank(board, board.rows[3], "accuracy"),
    }
    assert why["twin"] == "this model is the one on hypotheses only"
    assert why["linear"] == "no encoder is trained"
    assert why["effects"] == "the suite has no reference folds"
    assert why["lost"] == "failed: out of memory: out:insurance (seed 1); not run: out:insurance (seed 2)"
    page = Page(board_page(board, published=None))
    for attrs in page.all("a"):
        if (attrs["href"] or "").startswith("#"):
            assert attrs["href"][1:] in {one.get("id") for _, one in page.elements}
    assert re.fullmatch(r"– \d", page.tables["ours"][3][5])
    printed = io.StringIO()
    Console(file=printed, width=400).print(render.board_table(board, 400))
    for text in (board_page(board, published=None), render.board_markdown(board), printed.getvalue()):
        assert all(note in text for note in why.values())
        assert "2 cells missing" in text


def test_a_missing_reference_fold_blanks_the_effects_alone(draw):
    row = replace(board_row("a", draw), missing=("premise:3, seed 1: not run",))
    board = leaderboard([blank(row, "law_effect", "domain_effect", "pooled")])
    assert board_text.why_blank(board, board.rows[0], "law_effect") == "not run: premise:3 (seed 1)"
    assert board_text.why_blank(board, board.rows[0], "pooled") == "no domain is held out"
    lacking = replace(row, missing=("out:securities, seed 1: not run",))  # not core: only pooled needs it
    other = blank(lacking, "pooled", "accuracy", "law_effect")
    assert "securities" in board_text.why_blank(board, other, "pooled")
    assert board_text.why_blank(replace(board, core=[]), other, "accuracy") == "no core domain is held out"
    assert board_text.why_blank(replace(board, core=[]), other, "law_effect") == "no core domain is held out"


def test_missing_is_null_or_empty_never_zero(draw):
    board = small_board(draw)
    lost = render.board_json(board)["models"][3]
    assert set(lost["figures"].values()) == {None} and lost["rank"] is None and lost["worst"] is None
    assert set(lost["blank"]) == set(COLUMNS)
    assert lost["domains"]["insurance"]["accuracy"] is None
    assert lost["missing"][0] == {"reason": "failed: out of memory", "cells": {"out:insurance": [1]}}
    row = list(csv.DictReader(io.StringIO(render.board_csv(board))))[3]
    assert [row[f"{name}_{BOARD_COLUMNS[name].unit}"] for name in COLUMNS] == [""] * len(COLUMNS)
    assert row["cells_missing"] == "2" and "out:insurance" in row["notes"] and row["rank_best"] == ""


def test_csv_holds_percent_to_four_places(draw):
    board = small_board(draw)
    row = next(csv.DictReader(io.StringIO(render.board_csv(board))))
    for name in COLUMNS:
        one, unit = board.rows[0].figures[name], BOARD_COLUMNS[name].unit
        for part, value in ((unit, one.value), ("low", one.low), ("high", one.high)):
            assert float(row[f"{name}_{part}"]) == pytest.approx(100 * value, abs=5e-5)
        assert row[f"{name}_laws"] == "20"
    assert (row["rank_best"], row["rank_worst"], row["worst_domain"]) == ("1", "1", "insurance")


@pytest.mark.parametrize(
    ("made", "column", "text"),
    [
        (estimate(0.894, 0.013), "accuracy", ("89.4", "[88.1, 90.7]")),
        (estimate(0.99, 0.03), "accuracy", ("99.0", "[96.0, 100.0]")),
        (estimate(0.9, 1e20), "accuracy", ("90.0", "[0.0, 100.0]")),
        (estimate(0.9, float("inf")), "accuracy", ("90.0", "[0.0, 100.0]")),
        (Estimate(0.9, 0.1, float("nan"), float("nan"), 9, 0.0), "accuracy", ("90.0", "no interval")),
        (estimate(0.9, None, laws=3), "accuracy", ("90.0", "3 laws")),
        (estimate(-0.0004, 0.001), "law_effect", ("+0.0", "[-0.1, +0.1]")),
        (estimate(-0.006, 0.004), "law_effect", ("-0.6", "[-1.0, -0.2]")),
        (Estimate(None, None, None, None, 0, None, "not defined"), "accuracy", None),
        (None, "accuracy", None),
    ],
)
def test_figures_and_intervals_as_text(made, column, text):
    assert board_text.figure(made, BOARD_COLUMNS[column]) == text


def test_figures_that_are_not_finite_do_not_reach_the_json(draw):
    row = board_row("a", draw)
    board = leaderboard([replace(row, figures={**row.figures, "pooled": estimate(0.9, float("inf"))})])
    made = render.board_json(board)
    json.dumps(made, allow_nan=False)
    assert made["models"][0]["figures"]["pooled"]["low"] is None
    Page(board_page(board, published=None))


def test_one_seed_is_noted(draw):
    board = small_board(draw)
    assert board_text.seeds_note(board) == ""
    noted = {name: one and replace(one, note=board_text.NO_SEEDS) for name, one in board.rows[0].figures.items()}
    board = replace(board, rows=[replace(board.rows[0], figures=noted), *board.rows[1:]])
    note = board_text.seeds_note(board)
    assert note.startswith("Training variance not included (one seed): small.")
    assert note in board_page(board, published=None)
    assert note in render.board_markdown(board)
