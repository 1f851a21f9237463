"""Leaderboards built by hand, and their page read back, for tests of what shows them."""

from __future__ import annotations

import random
from dataclasses import replace
from html.parser import HTMLParser

from lightning_nli.crossdomain.leaderboard import COLUMNS, BoardRow, DomainFigure, Leaderboard
from lightning_nli.statistics import Estimate
from lightning_nli.types import DOMAINS

SETTINGS = {"data": ["sample"], "model": "e5-small", "method": "finetune", "augment": "none", "segments": "auto"}
HOSTILE = """</script><img src=x onerror="document.title='broken'"> | [bold]x[/bold] `a` 'b' & <!--"""
VOID = {"meta", "link", "input", "br"}
SEEDS = (1, 2, 3, 4, 5)
NOT_CORE = ("securities", "intellectual_property", "administrative_violations")
DIFFERENCES = ("premise_gain", "law_effect", "domain_effect")


def estimate(value: float, reach: float | None = 0.013, *, laws: int = 20, note: str = "") -> Estimate:
    if reach is None:
        return Estimate(value, None, None, None, laws, None, note or f"{laws} laws")
    return Estimate(value, reach / 2, value - reach, value + reach, laws, laws - 1.0, note)


def domain_figure(domain: str, draw: random.Random) -> DomainFigure:
    is_core, size = domain not in NOT_CORE, random.Random(domain)  # rows and laws are the same for all models
    rows, laws = (size.randint(100, 1365), size.randint(6, 40)) if is_core else (size.randint(6, 90), 2)
    value, reach = draw.uniform(0.78, 0.96), draw.uniform(0.01, 0.06) if is_core else None
    return DomainFigure(
        domain,
        rows,
        laws,
        is_core,
        estimate(value, reach, laws=laws),
        estimate(value - 0.004, reach, laws=laws),
        value + 0.01 if rows > 400 else None,
    )


def figures(draw: random.Random) -> dict[str, Estimate | None]:
    values = {
        "discrimination": draw.uniform(0.0, 0.7),
        "random_swap": draw.uniform(0.0, 0.8),
        "premise_gain": draw.gauss(0.003, 0.01),
        "accuracy": draw.uniform(0.85, 0.93),
        "macro_f1": draw.uniform(0.85, 0.93),
        "pooled": draw.uniform(0.85, 0.93),
        "law_effect": draw.gauss(0.006, 0.006),
        "domain_effect": draw.gauss(0.004, 0.006),
    }
    return {name: estimate(values[name], 0.005 if name in DIFFERENCES else 0.013) for name in COLUMNS}


def board_row(name: str, draw: random.Random, **changes) -> BoardRow:
    domains = {domain: domain_figure(domain, draw) for domain in DOMAINS if domain != "other"}
    entries = {
        "model": name,
        "figures": figures(draw),
        "worst": domains["insurance"],
        "calibration_error": draw.uniform(0.01, 0.1),
        "cost_s": draw.uniform(30, 40_000),
        "domains": domains,
        "missing": (),
        "rank": (1, 2),
        "settings": SETTINGS,
    }
    return BoardRow(**(entries | changes))


def leaderboard(rows: list[BoardRow], comparisons=None) -> Leaderboard:
    core = [name for name, one in rows[0].domains.items() if one.is_core] if rows else []
    suite = {"scheme": "leave-one-domain-out", "selection": "id_val", "seeds": list(SEEDS), "references": True}
    key = {"suite": "vilegalnli-lodo", "version": 1, "data": "0123456789abcdef"}
    return Leaderboard(key, suite, rows, core, comparisons or {})


def large_board(num_models: int = 50) -> Leaderboard:
    draw = random.Random(1)
    rows = []
    for number in range(num_models):
        method = "finetune" if number % 5 else "hyponly-v1"
        segments = "hypothesis" if number % 7 == 1 else "auto"
        settings = {**SETTINGS, "method": method, "segments": segments}
        settings |= {
            "optim": {f"setting_{n}": n / 7 for n in range(40)},
            "augment": "premise_swap=1+1" if number % 9 == 2 else "none",
        }
        best = draw.randint(1, num_models)
        rank = (best, min(num_models, best + draw.randint(0, 9)))
        rows.append(board_row(f"organization/encoder-{number}-large", draw, settings=settings, rank=rank))
    rows.sort(key=lambda row: -row.figures["macro_f1"].value)
    pairs = {(a.model, b.model): (0.01, 0.01) for i, a in enumerate(rows) for b in rows[i + 10 :]}
    return leaderboard(rows, pairs)


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
