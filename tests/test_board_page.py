"""The page of a board: its numbers, escaping, nothing fetched from anywhere, published rows, pictures, size."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
import random
import re
from dataclasses import replace

import polars as pl
import pytest
from boards import HOSTILE, SETTINGS, Page, blank, board_row, estimate, large_board, leaderboard, small_board
from rich.console import Console

from lightning_nli.crossdomain import board_text, render
from lightning_nli.crossdomain.leaderboard import COLUMNS
from lightning_nli.crossdomain.page import board_page
from lightning_nli.crossdomain.transfer import TransferMatrix, transfer_matrices
from lightning_nli.crossdomain.wording import BOARD_COLUMNS, english_name
from lightning_nli.published import published_figures
from lightning_nli.types import DOMAINS


@pytest.fixture(scope="module")
def papers():
    return published_figures("vilegalnli")


@pytest.fixture
def draw():
    return random.Random(7)


def shown(value, unit="percent"):
    return f"{value * 100:+.1f}".replace("-0.0", "+0.0") if unit == "points" else f"{value * 100:.1f}"


def test_numbers_on_the_page_equal_the_json(draw, papers):
    board = small_board(draw)
    made = render.board_json(board)
    page = Page(board_page(board, published=papers))
    assert json.loads(page.scripts[0]) == json.loads(json.dumps(made, allow_nan=False))
    checked = 0
    for row, model in zip(page.tables["ours"], made["models"], strict=True):
        for cell, name in zip(row[2:10], COLUMNS, strict=True):
            figure, unit = model["figures"][name], BOARD_COLUMNS[name].unit
            if figure is None:
                assert cell.startswith("–")
                continue
            low = shown(figure["low"] if unit == "points" else max(0.0, figure["low"]), unit)
            high = shown(figure["high"], unit)
            assert cell == f"{shown(figure['value'], unit)} [{low}, {high}]"
            checked += 1
        assert row[11] == shown(model["calibration_error"])
    assert checked == 8 + 7 + 5


def test_every_domain_is_on_the_heatmap_with_names_and_sizes(draw):
    board = small_board(draw)
    text = board_page(board, published=None)
    page = Page(text)
    heat = [body for name, body in page.tables.items() if name.startswith("body")]
    assert len(heat) == 3
    for row, line in zip(board.rows, heat[0], strict=True):
        for one, cell in zip(row.domains.values(), line[1:], strict=True):
            assert cell.split()[0] == ("–" if one.accuracy is None else shown(one.accuracy.value))
            if not one.is_core:
                assert cell.endswith("2 laws")
    assert heat[0][3][1 + list(DOMAINS).index("insurance")] == "– failed"
    first = board.rows[0].domains["tax_fees"]
    assert (
        f'Tax - Fees <i lang="vi">Thuế - Phí - Lệ Phí</i></span><small>{first.rows:,} rows<br>{first.laws} laws' in text
    )
    assert text.count("<br>not core</small>") == 3 * 3
    assert "few rows" in heat[2][0] or any(cell == "– few rows" for cell in heat[2][0])


def test_domains_have_the_names_of_the_published_table():
    printed = published_figures("vilegalnli").filter(table=11)["system"].unique().to_list()
    assert {english_name(domain) for domain in DOMAINS} == set(printed) - {"All"}
    assert english_name("group a") == "group a"


def test_text_from_data_is_escaped_everywhere(draw, papers):
    settings = {**SETTINGS, "model": HOSTILE, "optim": {HOSTILE: HOSTILE}}
    rows = [
        board_row(HOSTILE, draw, settings=settings, missing=(f"out:{HOSTILE}, seed 1: failed: {HOSTILE}",)),
        blank(board_row(HOSTILE + "2", draw, missing=(f"out:insurance, seed 1: failed: {HOSTILE}",)), "accuracy"),
    ]
    board = leaderboard(rows, {(HOSTILE, HOSTILE + "2"): (0.1, 0.001)})
    domains = {HOSTILE: replace(board.rows[0].domains["insurance"], domain=HOSTILE)}
    board = replace(board, key={"suite": HOSTILE, "version": HOSTILE, "data": HOSTILE})
    board = replace(board, suite={**board.suite, "scheme": HOSTILE, "selection": HOSTILE}, core=[*board.core, HOSTILE])
    board.rows[0] = replace(board.rows[0], domains={**board.rows[0].domains, **domains}, worst=domains[HOSTILE])
    printed = papers.filter(table=14).with_columns(system=pl.lit(HOSTILE), setting=pl.lit(HOSTILE))
    matrix = TransferMatrix(HOSTILE, (HOSTILE,), {(HOSTILE, HOSTILE): None})
    text = board_page(board, published=printed, transfers=[matrix])
    page = Page(text)
    assert "<img" not in text and "<!--" not in text and page.all("img") == []
    assert len(page.scripts) == 2
    assert not [name for _, attrs in page.elements for name in attrs if name.startswith("on")]
    assert json.loads(page.scripts[0])["models"][0]["model"] == HOSTILE
    assert " ".join(page.tables["ours"][0][0].split()).startswith(" ".join(HOSTILE.split()))
    markdown = render.board_markdown(board)
    assert "<img" not in markdown and "[bold]" not in markdown
    assert len({line.count("|") - line.count("\\|") for line in markdown.splitlines() if line.startswith("| ")}) == 1
    out = io.StringIO()
    Console(file=out, width=3000).print(render.board_table(board, 3000))
    assert "[bold]x[/bold]" in out.getvalue()
    assert next(csv.DictReader(io.StringIO(render.board_csv(board))))["model"] == HOSTILE


def test_the_page_asks_nobody_for_anything(draw, papers):
    text = board_page(small_board(draw), published=papers)
    page = Page(text)
    assert not re.search(r"https?:|//[a-z]|url\((?!#)|@import", text.replace("/*", ""))
    assert {attrs.get("href") for attrs in page.all("link")} == {"data:,"}
    assert not [attrs for _, attrs in page.elements if "src" in attrs]
    policy = next(attrs["content"] for attrs in page.all("meta") if attrs.get("http-equiv"))
    for content, name in ((page.scripts[1], "script-src"), (page.style, "style-src")):
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{name} 'sha256-{digest}';" in policy
    assert "default-src 'none'" in policy
    assert not [attrs for _, attrs in page.elements if "style" in attrs]


def test_ids_are_unique_and_names_point_somewhere(draw, papers):
    page = Page(board_page(small_board(draw), published=papers))
    ids = [attrs["id"] for _, attrs in page.elements if attrs.get("id")]
    assert len(ids) == len(set(ids))
    for _, attrs in page.elements:
        assert set((attrs.get("aria-labelledby") or "").split()) <= set(ids)
    sortable = [attrs for attrs in page.all("th") if "aria-sort" in attrs]
    assert [attrs["aria-sort"] for attrs in sortable].count("descending") == 1
    assert len(sortable) == 12  # all but the worst domain, which is never ranked


def test_published_rows_stand_apart(draw, papers):
    page = Page(board_page(small_board(draw), published=papers))
    rows = page.tables["published"]
    headings = [row[0] for row in rows if len(row) == 1]
    assert len(headings) == 2 and all("not ranked with ours" in heading for heading in headings)
    models = [row for row in rows if len(row) > 1]
    assert len(models) == 16 + 2  # Table 14, and Table 15 without the rows that repeat it
    assert all("published" in row[0] for row in models)
    info = next(row for row in models if row[0].startswith("InfoXLM (large)"))
    assert info[2 + COLUMNS.index("accuracy")] == "88.0" and info[2 + COLUMNS.index("macro_f1")] == "87.8"
    assert [cell for place, cell in enumerate(info[1:], 1) if place not in (5, 6)] == [""] * 10
    assert not any("published" in cell for row in page.tables["ours"] for cell in row)
    text = board_page(small_board(draw), published=papers)
    assert "more than every fine-tuned encoder of its Table 14 (the best, InfoXLM (large), has 88.0%)" in text
    without = board_page(small_board(draw), published=None)
    assert "hyponly-v1" not in without.split("<main>")[1].split('id="models"')[0]
    assert 'id="published"' not in without
    assert 'id="published"' not in board_page(small_board(draw), published=papers.filter(table=11))


def test_the_command_and_settings_of_each_model_are_there(draw):
    board = small_board(draw)
    text = board_page(board, published=None)
    base = "lnli cross-domain run --suite benchmarks/suites/vilegalnli-lodo.yaml --models"
    assert f"{base} small</code>" in text
    assert f"{base} large --retry-failed</code>" in text
    assert "augment: &quot;premise_swap=1+1&quot;" in text
    assert "encoder, trained with premise_swap=1+1" in text
    assert "Significantly better than: small-h." in text and "Significantly worse than: small." in text
    assert text.count("Significantly") == 2  # p = 0.8 is no difference
    assert board_text.rerun_command(board, replace(board.rows[0], model="a'; rm b")).endswith("""'a'"'"'; rm b'""")


def test_effects_are_drawn_where_they_are(draw):
    row = board_row("a", draw)
    places = {"a": (0.01, 0.0), "b": (0.02, 0.01), "c": (-0.01, -0.02)}
    rows = [
        replace(
            row,
            model=name,
            figures={
                **row.figures,
                "law_effect": estimate(law, 0.004),
                "domain_effect": estimate(domain, None, laws=3),
            },
        )
        for name, (law, domain) in places.items()
    ]
    text = board_page(leaderboard(rows), published=None)
    spots = re.findall(r'class="mark"><title>(\w)</title><g transform="translate\(([\d.]+) ([\d.]+)\)', text)
    at = {name: (float(x), float(y)) for name, x, y in spots}
    assert at["c"][0] < at["a"][0] < at["b"][0] and at["c"][1] > at["a"][1] > at["b"][1]
    assert at["b"][0] - at["a"][0] == pytest.approx(at["a"][1] - at["b"][1], abs=0.2)  # one scale for both axes
    reach = re.search(r'class="whisk" clip-path="url\(#in\)" d="M([\d.]+) [\d.]+H([\d.]+)"', text)
    assert float(reach[2]) - float(reach[1]) == pytest.approx(0.8 * (at["b"][0] - at["a"][0]), abs=0.3)
    assert "law +1.0 [+0.6, +1.4]; domain +0.0 3 laws" in text


def test_no_effects_no_plot_and_no_domains_no_heatmap(draw):
    row = replace(blank(board_row("a", draw), "law_effect"), domains={}, worst=None)
    text = board_page(leaderboard([row]), published=None)
    assert "No model has both effects" in text and 'id="domains"' not in text and 'id="transfer"' not in text
    Page(text)


def transfer_record(source, seed, scores, *, model="a", method="finetune", status="finished"):
    domains = {name: {"accuracy": value} for name, value in scores.items()}
    config = {"config": {"method": method}}
    return {
        "model": model,
        "fold": f"from:{source}",
        "seed": seed,
        "status": status,
        "domains": domains,
        "result": config,
    }


def test_transfer_matrices_average_seeds_and_blank_what_is_missing(draw):
    records = [
        transfer_record("insurance", 1, {"tax_fees": 0.8}),
        transfer_record("insurance", 2, {"tax_fees": 0.9}),
        transfer_record("tax_fees", 1, {"insurance": 0.7}),
        transfer_record("tax_fees", 2, {"insurance": 0.1}, status="failed"),
        transfer_record("tax_fees", 1, {"insurance": 0.6}, model="linear", method="hyponly-v1"),
        {"model": "a", "fold": "out:insurance", "seed": 1, "status": "finished"},
    ]
    encoder, linear = transfer_matrices(records, [1, 2])
    assert encoder.domains == ("insurance", "tax_fees")
    assert encoder.accuracy["insurance", "tax_fees"] == pytest.approx(0.85)
    assert encoder.accuracy["tax_fees", "insurance"] is None  # a seed is missing
    assert linear.accuracy["tax_fees", "insurance"] == pytest.approx(0.6)  # draws nothing: the first seed alone
    page = Page(board_page(small_board(draw), published=None, transfers=[encoder]))
    first, second = list(page.tables.values())[-1]
    assert first[1:] == ["– itself", "85.0"] and second[1:] == ["– not run", "– itself"]
    assert transfer_matrices(records[-1:], [1]) == []


def test_fifty_models_fit_into_two_megabytes(papers):
    board = large_board(50)
    lines = tuple(f"premise:{fold}, seed {seed}: not run" for fold in range(1, 41) for seed in range(1, 6))
    board = replace(board, rows=[replace(row, missing=lines) for row in board.rows])
    text = board_page(board, published=papers)
    assert len(board.rows) == 50 and len(board.rows[0].domains) == 26
    assert len(text.encode("utf-8")) < 2_000_000
    Page(text)
