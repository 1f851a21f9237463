"""Pools built by hand, for tests of what is cut from them."""

from __future__ import annotations

import polars as pl

from lightning_nli.crossdomain.pool import Pool, build_pool
from lightning_nli.data.schema import EXAMPLE_SCHEMA
from lightning_nli.types import BINARY

NEAR = "the same words stand here in the same order as in the other law but for one word at the end {}"


def row(id_: str, law: str, domains: list[str], premise: str | None = None) -> dict[str, object]:
    text = premise or f"premise number {id_} of the law called {law} says its own thing {id_}"
    return {"example_id": id_, "premise_id": f"p-{text}", "law_id": law, "domains": domains, "premise": text}


def pool_of(*rows: dict[str, object]) -> Pool:
    usual = {"corpus": "t", "hypothesis": "h", "label": "entailment", "rule": [], "ratings": []}
    frame = pl.DataFrame([usual | given for given in rows], schema=EXAMPLE_SCHEMA)
    return build_pool(frame.with_columns(hypothesis=pl.format("h {}", "example_id")), BINARY)
