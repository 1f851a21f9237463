"""The page of a board in headless Chromium, where playwright and a browser are installed."""

from __future__ import annotations

import json
import random
import shutil
from dataclasses import replace

import pytest
from boards import HOSTILE, large_board, small_board

from lightning_nli.crossdomain import board_text, render
from lightning_nli.crossdomain.page import board_page
from lightning_nli.published import published_figures

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
def papers():
    return published_figures("vilegalnli")


@pytest.fixture
def draw():
    return random.Random(7)


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


def under_an_oracle(board):
    """The same figures as `build_leaderboard` gives them where tested rows chose the checkpoints."""
    rows = sorted((replace(row, rank=None) for row in board.rows), key=lambda row: row.model)
    suite, key = ({**values, "selection": "oracle"} for values in (board.suite, board.key))
    return replace(board, key=key, suite=suite, rows=rows, comparisons={})


_STYLE = (
    "(node) => { const s = getComputedStyle(node); return [s.borderTopWidth, s.borderTopStyle, s.borderTopColor]; }"
)
_RANKS = "[...document.querySelectorAll('#ours tr')].map((row) => row.cells[1].textContent)"


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_an_oracles_board_warns_before_its_figures_and_ranks_nobody(browser, tmp_path, draw, papers, scheme):
    board = small_board(draw)
    usual, chosen = tmp_path / "usual.html", tmp_path / "oracle.html"
    usual.write_text(board_page(board, published=papers), encoding="utf-8")
    chosen.write_text(board_page(under_an_oracle(board), published=papers), encoding="utf-8")
    page = open_page(browser, usual, scheme)
    assert page.locator(".alarm").count() == 0 and page.evaluate(_RANKS)[0] == "1"  # the same models can be ranked
    assert page.locator("th[aria-sort=descending]", has_text="Macro-F1").count() == 1
    page = open_page(browser, chosen, scheme)
    assert "selection oracle" in page.title()
    alarms = page.locator(".alarm")
    assert alarms.all_inner_texts() == [board_text.ORACLE_WARNING] * 2
    head, above, table = (one.bounding_box() for one in (alarms.first, alarms.last, page.locator("#table")))
    assert head["y"] > 0 and head["y"] + head["height"] < 900 and head["width"] > 400  # seen before any scrolling
    assert head["y"] < above["y"] < above["y"] + above["height"] <= table["y"]
    color = "rgb(163, 13, 13)" if scheme == "light" else "rgb(255, 154, 148)"
    assert alarms.first.evaluate(_STYLE) == ["3px", "solid", color] and page.evaluate(_CONTRAST, ".alarm b") >= 4.5
    in_order = sorted(row.model for row in board.rows)
    assert names(page) == in_order and page.locator("th[aria-sort=ascending] button").inner_text() == "Model"
    assert page.locator("th[aria-sort=descending]").count() == 0
    page.get_by_role("button", name="Rank").click()
    assert names(page) == in_order and all(rank.startswith("–") for rank in page.evaluate(_RANKS))
    note = page.locator("#ours tr").first.locator("td").first.locator("a").get_attribute("href")
    assert page.locator(note).inner_text() == "an oracle chose: never ranked"
    assert "Significantly" not in page.locator("#models").evaluate("(node) => node.textContent")
    page.get_by_label("Model", exact=True).fill("no such model")
    page.emulate_media(media="print")
    assert names(page) == [] and alarms.first.is_visible() and alarms.last.is_visible()
    assert page.troubles == []
