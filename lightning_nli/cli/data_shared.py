"""`lnli data check`: texts and groups that splits share, which a check of whole pairs does not show."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Any

import polars as pl

from lightning_nli.data.text import comparison_expr
from lightning_nli.types import Split

Part = tuple[str, str | None, pl.DataFrame]
"""Source and split, the split's name, its rows."""

# What a corpus' paper says of its own splits, to be read beside the counts.
_CLAIMS = {
    "wills": "the paper takes leakage between its splits for unlikely; by text, statements and laws stand in several "
    "of them. A run's result.json has the scores of the rows that are new to training beside the others (`unseen`)"
}


def in_split_order(parts: Sequence[Part]) -> list[Part]:
    """Parts without a split first, then train, dev, test."""
    order = {split.value: place for place, split in enumerate(Split)}
    return sorted(parts, key=lambda part: order.get(part[1] or "", -1))


def shared_texts(parts: Sequence[Part]) -> list[dict[str, Any]]:
    """Distinct hypotheses, premises and groups that each two parts share, and the rows of the latter that have them.

    Texts are compared without case, spaces and punctuation; groups by their id, within one corpus.
    """
    shared = []
    for (first_name, _, first), (second_name, _, second) in combinations(in_split_order(parts), 2):
        found: dict[str, Any] = {"train": first_name, "test": second_name, "corpus": second["corpus"][0]}
        for column, count in (("hypothesis", "hypotheses"), ("premise", "premises")):
            known = first.select(comparison_expr(pl.col(column))).to_series().unique().implode()
            keys = second.select(comparison_expr(pl.col(column))).to_series()
            again = keys.filter(keys.is_in(known))
            found |= {f"shared_{count}": again.n_unique(), f"{column}_rows": len(again)}
        is_one_corpus = first["corpus"][0] == second["corpus"][0]
        has_groups = is_one_corpus and first["group_id"].count() and second["group_id"].count()
        both = set(first["group_id"].drop_nulls()) & set(second["group_id"].drop_nulls())
        found["shared_groups"] = len(both) if has_groups else None
        shared.append(found)
    return [one for one in shared if one["shared_hypotheses"] or one["shared_premises"] or one["shared_groups"]]


def shared_lines(shared: Sequence[dict[str, Any]]) -> list[str]:
    """The counts in words, and what the corpus' own paper says beside them."""
    lines = []
    for one in shared:
        groups = "" if one["shared_groups"] is None else f"; {one['shared_groups']} groups by id"
        lines.append(
            f"shared {one['train']} -> {one['test']}: {one['shared_hypotheses']} hypotheses "
            f"({one['hypothesis_rows']} rows), {one['shared_premises']} premises ({one['premise_rows']} rows){groups}"
        )
    return lines + [f"note: {_CLAIMS[name]}" for name in sorted({one["corpus"] for one in shared} & _CLAIMS.keys())]
