"""What shows a board: numbers, blanks and their reasons, escaping, size; the page in a browser where there is one."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
import random
import re
import shutil
from dataclasses import replace
from html.parser import HTMLParser

import polars as pl
import pytest
from boards import SETTINGS, board_row, estimate, large_board, leaderboard
from rich.console import Console

from lightning_nli.crossdomain import board_text, render
from lightning_nli.crossdomain.leaderboard import COLUMNS
from lightning_nli.crossdomain.page import board_page
from lightning_nli.crossdomain.transfer import TransferMatrix, transfer_matrices
from lightning_nli.crossdomain.wording import BOARD_COLUMNS, english_name
from lightning_nli.published import published_figures
from lightning_nli.statistics import Estimate
from lightning_nli.types import DOMAINS

HOSTILE = """</script><img src=x onerror="document.title='broken'"> | [bold]x[/bold] `a` 'b' & <!--"""
VOID = {"meta", "link", "input", "br"}
HEADINGS = [BOARD_COLUMNS[name].heading for name in COLUMNS]


class Page(HTMLParser):
    """Checks that elements nest, and keeps them: attributes, texts of table cells."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.tables: dict[str, list[list[str]]] = {}
        self.scripts: list[str] = []
        self.style = ""
        self._body = ""
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        assert len(dict(attrs)) == len(attrs), f"an attribute twice in {tag}"
        if tag == "tbody" or (tag == "thead" and "table" not in self.tables):
            self._body = dict(attrs).get("id") or {"thead": "table"}.get(tag, f"body-{len(self.tables)}")
            self.tables[self._body] = []
        if tag == "tr" and self._body:
            self.tables[self._body].append([])
        if tag in ("td", "th") and self._body:
            self.tables[self._body][-1].append("")
        if tag == "script":
            self.scripts.append("")
        if tag not in VOID and not self.get_starttag_text().endswith("/>"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open and self.open.pop() == tag, f"</{tag}> closes nothing"
        if tag in ("tbody", "thead"):
            self._body = ""

    def handle_data(self, data):
        if self.open and self.open[-1] == "script":
            self.scripts[-1] += data
        elif self.open and self.open[-1] == "style":
            self.style += data
        elif {"td", "th"} & set(self.open) and self._body:
            cells = self.tables[self._body][-1]
            cells[-1] = f"{cells[-1]} {data}".strip()

    def all(self, tag):
        return [attrs for name, attrs in self.elements if name == tag]


@pytest.fixture(scope="module")
def papers():
    return published_figures("vilegalnli")


@pytest.fixture
def draw():
    return random.Random(7)


def blank(row, *columns):
    return replace(row, figures={name: None if name in columns else one for name, one in row.figures.items()})


def small_board(draw):
    """A trained encoder, its hypothesis-only twin, a baseline without references, a model with missing cells."""
    twin = {**SETTINGS, "segments": "hypothesis"}
    linear = {**SETTINGS, "method": "hyponly-v1"}
    lost = board_row(
        "large",
        draw,
        missing=("out:insurance, seed 1: failed: out of\nmemory", "out:insurance, seed 2: not run"),
        rank=None,
        worst=None,
        settings={**SETTINGS, "augment": "premise_swap=1+1"},
    )
    domains = dict(lost.domains)
    domains["insurance"] = replace(domains["insurance"], accuracy=None, macro_f1=None, single_accuracy=None)
    rows = [
        board_row("small", draw, rank=(1, 1)),
        blank(board_row("small-h", draw, settings=twin, rank=(2, 3)), "premise_gain"),
        blank(board_row("linear", draw, settings=linear, rank=(2, 3)), "premise_gain", "law_effect", "domain_effect"),
        replace(lost, figures=dict.fromkeys(COLUMNS), domains=domains),
    ]
    return leaderboard(rows, {("small", "small-h"): (0.02, 0.01), ("small-h", "linear"): (0.001, 0.8)})


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


def test_columns_come_in_the_binding_order(draw):
    board = small_board(draw)
    order = ["Rank", *HEADINGS, "Worst domain", "Calibration error", "Cost"]
    head = Page(board_page(board, published=None)).tables["table"][0]
    assert [next(name for name in ["Model", *order] if cell.startswith(name)) for cell in head] == ["Model", *order]
    assert [column.header for column in render.board_table(board).columns] == ["Model", *order]
    line = next(line for line in render.board_markdown(board).splitlines() if line.startswith("| Model"))
    assert [cell.strip() for cell in line.strip("|").split("|")] == ["Model", *order]
    fields = next(csv.reader(io.StringIO(render.board_csv(board))))
    values = [name.rpartition("_")[0] for name in fields if name.endswith(("_percent", "_points"))]
    assert values == [*COLUMNS, "worst_domain_accuracy", "calibration_error"]


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
    Console(file=printed, width=250).print(render.board_table(board))
    for text in (board_page(board, published=None), render.board_markdown(board), printed.getvalue()):
        assert all(note in text for note in why.values())
        assert "2 cells missing" in text


def test_a_missing_reference_fold_blanks_the_effects_alone(draw):
    row = replace(board_row("a", draw), missing=("premise:3, seed 1: not run",))
    board = leaderboard([blank(row, "law_effect", "domain_effect", "pooled")])
    assert board_text.why_blank(board, board.rows[0], "law_effect") == "not run: premise:3 (seed 1)"
    assert board_text.why_blank(board, board.rows[0], "pooled") == "no domain is held out"
    lacking = replace(row, missing=("out:securities, seed 1: not run",))  # not core: only pooled needs it
    other = blank(lacking, "pooled", "accuracy")
    assert "securities" in board_text.why_blank(board, other, "pooled")
    assert board_text.why_blank(board, other, "accuracy") == "no core domain is held out"


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
    Console(file=out, width=2000).print(render.board_table(board))
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


# In a browser.

_BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "chrome")
_CONTRAST = """(selector) => {
  const rgb = (text) => text.match(/[\\d.]+/g).slice(0, 3).map((v) => v * (text.startsWith("color(") ? 255 : 1));
  const light = (c) => c.map((v) => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const ground = (node) => {
    for (; node; node = node.parentElement) {
      const color = getComputedStyle(node).backgroundColor;
      if (color !== "rgba(0, 0, 0, 0)") return color;
    }
  };
  return Math.min(...[...document.querySelectorAll(selector)].map((node) => {
    const [a, b] = [light(rgb(getComputedStyle(node).color)), light(rgb(ground(node)))];
    return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  }));
}"""


@pytest.fixture(scope="module")
def browser():
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    program = next(filter(None, map(shutil.which, _BROWSERS)), None)
    if program is None:
        pytest.skip(f"no browser is installed ({', '.join(_BROWSERS)})")
    with api.sync_playwright() as engine:
        found = engine.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield found
        found.close()


def open_page(browser, file, scheme="light"):
    page = browser.new_page(viewport={"width": 1500, "height": 900}, color_scheme=scheme)
    page.troubles, page.requested = [], []
    page.on("console", lambda message: page.troubles.append(message.text))
    page.on("pageerror", lambda error: page.troubles.append(str(error)))
    page.on("request", lambda request: page.requested.append(request.url))
    page.goto(file.as_uri())
    return page


def names(page):
    return page.locator("#ours tr:not([hidden]) th a").all_inner_texts()


@pytest.mark.slow
def test_a_browser_sorts_and_filters_by_keyboard(browser, tmp_path, draw, papers):
    board = small_board(draw)
    file = tmp_path / "board.html"
    file.write_text(board_page(board, published=papers), encoding="utf-8")
    page = open_page(browser, file)
    value = {row.model: row.figures["discrimination"] for row in board.rows}
    up = sorted((name for name in value if value[name]), key=lambda name: value[name].value)
    button = page.get_by_role("button", name="Premise discrimination")
    button.focus()
    page.keyboard.press("Enter")
    assert names(page) == [*reversed(up), "large"]
    page.keyboard.press("Space")
    assert names(page) == [*up, "large"]  # blank cells last, either way
    head = page.locator("th", has=button)
    assert head.get_attribute("aria-sort") == "ascending"
    assert page.locator("th[aria-sort=descending]").count() == 0
    assert page.locator("#status").inner_text() == (
        "4 of 4 models shown, sorted by Premise discrimination, ascending; blank cells last."
    )
    heat = page.locator("#view-acc tbody th").all_inner_texts()
    assert heat == [*up, "large"] and page.locator("#published tr").count() == 20
    page.get_by_label("Model", exact=True).fill("SMALL")
    assert sorted(names(page)) == ["small", "small-h"]
    assert page.locator("#view-acc tbody tr:visible").count() == 2
    page.get_by_label("Kind").select_option("encoder on hypotheses only")
    assert names(page) == ["small-h"] and "1 of 4 models" in page.locator("#status").inner_text()
    page.get_by_label("Kind").select_option("")
    page.get_by_label("Model", exact=True).fill("")
    page.get_by_label("no missing cells").check()
    assert "large" not in names(page) and len(names(page)) == 3
    page.get_by_label("published figures").uncheck()
    assert not page.locator("#published").is_visible()
    page.get_by_role("radio", name="macro-F1").check()
    assert page.locator("#view-f1").is_visible() and not page.locator("#view-acc").is_visible()
    page.locator("#ours a", has_text="small-h").click()
    assert page.locator("details[open] summary").inner_text().startswith("small-h")
    with page.expect_download() as saved:
        page.get_by_role("button", name="Save figures").click()
    assert json.loads(saved.value.path().read_text("utf-8")) == json.loads(json.dumps(render.board_json(board)))
    assert page.troubles == [] and page.requested[:1] == [file.as_uri()]
    assert all(url.startswith(("data:", "blob:")) for url in page.requested[1:])


@pytest.mark.slow
def test_a_browser_is_ready_in_a_second_and_runs_nothing_of_the_data(browser, tmp_path, papers):
    board = large_board(50)
    hostile = replace(board, rows=[replace(board.rows[0], model=HOSTILE), *board.rows[1:]])
    file = tmp_path / "board.html"
    file.write_text(board_page(hostile, published=papers), encoding="utf-8")
    times = []
    for _ in range(3):  # the machine may be busy: the best of three
        page = open_page(browser, file)
        times.append(page.evaluate("performance.getEntriesByName('board-ready')[0].startTime"))
        if times[-1] < 1000:
            break
        page.close()
    assert min(times) < 1000
    sorting = page.evaluate(
        "() => { const start = performance.now(); document.querySelectorAll('#table thead button')[4].click();"
        " document.body.offsetHeight; return performance.now() - start; }"
    )
    assert sorting < 1000
    assert page.title() == "vilegalnli-lodo, version 1, data 0123456789abcdef"
    assert HOSTILE in page.evaluate("[...document.querySelectorAll('#ours a')].map((one) => one.textContent)")
    assert page.troubles == []


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_is_readable_in_light_and_dark(browser, tmp_path, draw, papers, scheme):
    file = tmp_path / "board.html"
    file.write_text(board_page(small_board(draw), published=papers), encoding="utf-8")
    page = open_page(browser, file, scheme)
    bright = page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert bright == (scheme == "light")
    for selector in ("p", "td", "td small", "th", "th small", "a", "#published th", ".heat td", ".heat th i", "dd"):
        assert page.evaluate(_CONTRAST, selector) >= 4.5, selector
