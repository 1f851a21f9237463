"""The board as one web page: no request to anywhere, sortable, readable without a mouse, on paper and in the dark.

All text from data goes through `html.escape`; data for scripts stand as JSON with `<` escaped; a content policy lets
no other script or style run than those of this page, by their hash.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from lightning_nli.crossdomain import board_text as text
from lightning_nli.crossdomain.leaderboard import BoardRow, Leaderboard
from lightning_nli.crossdomain.page_figures import effects_plot, heatmaps, transfer_tables
from lightning_nli.crossdomain.page_table import board_section, oracle_alarm
from lightning_nli.crossdomain.render import board_json
from lightning_nli.crossdomain.selection import ID_VAL, LAST, LEAVE_ONE_OUT, ORACLE
from lightning_nli.crossdomain.transfer import TransferMatrix
from lightning_nli.crossdomain.wording import GLOSSARY, english_name

if TYPE_CHECKING:
    import polars as pl

_ALPHA = 0.05
_SCHEMES = {
    "leave-one-domain-out": "each domain held out in turn",
    "leave-domain-group-out": "each group of domains held out in turn",
    "disjoint": "training, validation and test rows of different domains",
    "pairwise": "trained on one domain, tested on every other",
    "leave-law-out": "each fold's laws held out",
    "in-domain": "each fold's premises held out",
}
_SELECTIONS = {
    ID_VAL: "best on rows set aside from training",
    LAST: "the last checkpoint",
    LEAVE_ONE_OUT: "best on a training domain that trains nothing",
    ORACLE: "best on the tested rows",
}
_CODE, _CODE_TAG = re.compile(r"`([^`]*)`"), r"<code>\1</code>"


def board_page(board: Leaderboard, *, published: pl.DataFrame | None, transfers: Sequence[TransferMatrix] = ()) -> str:
    """HTML of the board.

    Args:
        board: Our models.
        published: Figures as `lightning_nli.published.published_figures` gives them, shown as reference rows that are
            never ranked with ours; those that are no score of a model on a test set are left out. None: no such rows.
        transfers: Matrices of a `pairwise` suite, one a model.
    """
    style, script = _asset("board.css"), _asset("board.js")
    sections = {
        "board": ("Board", board_section(board, published)),
        "effects": ("Law effect against domain effect", effects_plot(board)),
        "domains": ("Domains", heatmaps(board)),
        "transfer": ("Transfer", transfer_tables(transfers)),
        "models": ("Models: settings and commands", "".join(_models(board))),
        "glossary": ("What the terms mean", _glossary()),
    }
    shown = {name: section for name, section in sections.items() if section[1]}
    links = "".join(f'<a href="#{name}">{escape(heading)}</a>' for name, (heading, _) in shown.items())
    body = "".join(
        f'<section id="{name}" aria-labelledby="h-{name}"><h2 id="h-{name}">{escape(heading)}</h2>{content}</section>\n'
        for name, (heading, content) in shown.items()
    )
    policy = (
        f"default-src 'none'; img-src data:; script-src {_hash(script)}; style-src {_hash(style)}; "
        "base-uri 'none'; form-action 'none'"
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark"><link rel="icon" href="data:,">\n'
        f"<title>{escape(text.title(board))}</title>\n<style>{style}</style></head>\n<body>\n"
        f'<a class="skip" href="#board">Skip to the board</a>\n<header>{_head(board)}'
        f'<nav aria-label="Sections">{links}</nav></header>\n<main>\n{body}</main>\n'
        f'<script type="application/json" id="data">{_embedded(board_json(board))}</script>\n'
        f"<script>{script}</script>\n</body></html>\n"
    )


def _asset(name: str) -> str:
    return files("lightning_nli.crossdomain").joinpath("assets", name).read_text(encoding="utf-8")


def _hash(content: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode('utf-8')).digest()).decode('ascii')}'"


def _embedded(values: Any) -> str:
    """JSON that cannot end its script element."""
    return json.dumps(values, ensure_ascii=False, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


def _head(board: Leaderboard) -> str:
    suite = board.suite
    scheme, selection = str(suite.get("scheme", "")), str(suite.get("selection", ""))
    seeds = suite.get("seeds", [])
    facts = {
        "Data": f"{board.key['data']} ({'as the suite says' if suite.get('fingerprint') else 'unverified'})",
        "Scheme": f"{scheme}: {_SCHEMES[scheme]}" if scheme in _SCHEMES else scheme,
        "Core domains": f"{len(board.core)}: {', '.join(english_name(one) for one in board.core)}"
        if board.core
        else "0",
        "Training rows": str(suite.get("train_rows") or "as many as the smallest training set has, in every fold"),
        "Selection": f"{selection}: {_SELECTIONS[selection]}" if selection in _SELECTIONS else selection,
        "Seeds": ", ".join(str(seed) for seed in seeds),
        "Models": str(len(board.rows)),
    }
    items = "".join(f"<div><dt>{name}</dt><dd>{escape(value)}</dd></div>" for name, value in facts.items() if value)
    return (
        f"<h1>{escape(str(board.key['suite']))} <small>version {escape(str(board.key['version']))}</small></h1>"
        "<p>Natural language inference on statutes, tested on domains of law that no training row carries. The first "
        "columns say whether a model reads the premise at all; accuracy alone does not. Figures are in percent, "
        f"premise gain and effects in points, with 95% intervals by law.</p>{oracle_alarm(board)}<dl>{items}</dl>"
    )


def _models(board: Leaderboard) -> Iterator[str]:
    better, worse = _significant(board)
    yield (
        "<p>A cell is one training: a model, a fold, a seed; the cells of a model differ in fold and seed alone. The "
        "command runs what a board lacks, and all of it on a new board.</p>"
    )
    for place, row in enumerate(board.rows):
        missing = "".join(f"<li>{escape(group.text())}</li>" for group in text.missing_cells(row))
        lists = {
            "Significantly better than": better.get(row.model, []),
            "Significantly worse than": worse.get(row.model, []),
        }
        compared = "".join(f"<p>{name}: {escape(', '.join(names))}.</p>" for name, names in lists.items() if names)
        yield (
            f'<details id="m{place}" data-m="{place}"><summary><b>{escape(row.model)}</b> '
            f"{escape(text.description(row))}</summary>"
            f'<pre class="cmd"><code>{escape(text.rerun_command(board, row))}</code></pre>{compared}'
            + (f"<p>{text.missing_note(row)}:</p><ul>{missing}</ul>" if missing else "")
            + f"<p>Settings:</p><pre><code>{escape(_settings(row))}</code></pre></details>\n"
        )


def _significant(board: Leaderboard) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """Model -> models it beats; model -> models that beat it."""
    better: dict[str, list[str]] = {}
    worse: dict[str, list[str]] = {}
    for (first, second), (difference, p_value) in board.comparisons.items():
        if p_value < _ALPHA and difference != 0:
            winner, loser = (first, second) if difference > 0 else (second, first)
            better.setdefault(winner, []).append(loser)
            worse.setdefault(loser, []).append(winner)
    return better, worse


def _settings(row: BoardRow) -> str:
    """One setting a line, by dotted name."""

    def lines(values: Mapping[str, Any], prefix: str) -> Iterator[str]:
        for name, value in values.items():
            if isinstance(value, Mapping):
                yield from lines(value, f"{prefix}{name}.")
            else:
                yield f"{prefix}{name}: {json.dumps(value, ensure_ascii=False, default=str)}"

    return "\n".join(lines(row.settings, ""))


def _glossary() -> str:
    entries = "".join(
        f"<div><dt>{escape(term)}</dt><dd>{_CODE.sub(_CODE_TAG, escape(meaning))}</dd></div>"
        for term, meaning in GLOSSARY.items()
    )
    return f"<dl>{entries}</dl>"
