"""Leaderboards built by hand, for tests of what shows them."""

from __future__ import annotations

import random

from lightning_nli.crossdomain.leaderboard import COLUMNS, BoardRow, DomainFigure, Leaderboard
from lightning_nli.statistics import Estimate
from lightning_nli.types import DOMAINS

SETTINGS = {"data": ["sample"], "model": "e5-small", "method": "finetune", "augment": "none", "segments": "auto"}
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
