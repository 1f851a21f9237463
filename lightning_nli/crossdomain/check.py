"""A second look at a fold, from its rows alone: is anything shared between training and test?"""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from lightning_nli.crossdomain.folds import Fold
from lightning_nli.crossdomain.pool import Pool

MAX_SHOWN = 5


def fold_problems(pool: Pool, fold: Fold) -> list[str]:
    """What is wrong with a fold, one line each; empty if nothing is.

    Training and `id_val` rows may share with the tested rows: no row, no pair under any spelling, no held-out domain;
    and, where laws are guarded, no law and no premise that says almost the same. Every row of unknown domain is out.
    Where whole domains choose, training rows may share as little with the rows that choose.
    """
    tested = pool.compared_rows(fold.test)
    problems: list[str] = []
    for part, ids in (("train", fold.train), ("id_val", fold.id_val)):
        rows = pool.compared_rows(ids)
        shares = {
            f"rows both {'train' if part == 'train' else 'choose'} and are tested": rows["example_id"].is_in(
                tested["example_id"].implode()
            ),
            "pairs stand in test too": rows["pair"].is_in(tested["pair"].implode()),
            "rows carry a held-out domain": rows["names"].list.set_intersection(list(fold.held_out)).list.len() > 0,
            "rows are of unknown domain": rows["names"].list.len() == 0,
        }
        if fold.guards_laws:
            shares["rows are of laws that are tested"] = rows["law_id"].is_in(tested["law_id"].implode())
            shares["rows have premises that nearly are tested ones"] = _near_tested(pool, rows, tested)
        problems += [
            f"{fold.name}: {int(found.sum())} {part} {what}: {_shown(rows.filter(found)['example_id'])}"
            for what, found in shares.items()
            if found.any()
        ]
    problems += _shared_with_choosers(pool, fold) if fold.choosers else []
    if set(fold.train) & set(fold.id_val):
        problems.append(f"{fold.name}: rows both train and choose: {_shown(list(set(fold.train) & set(fold.id_val)))}")
    if not (fold.train and fold.id_val and fold.test):
        problems.append(f"{fold.name}: {len(fold.train)} train, {len(fold.id_val)} id_val, {len(fold.test)} test rows")
    return problems


def _shared_with_choosers(pool: Pool, fold: Fold) -> list[str]:
    rows, choosing = pool.compared_rows(fold.train), pool.compared_rows(fold.id_val)
    shares = {
        "rows carry a domain that chooses": rows["names"].list.set_intersection(list(fold.choosers)).list.len() > 0,
        "rows are of laws that choose": rows["law_id"].is_in(choosing["law_id"].implode()),
        "rows have premises that nearly are ones that choose": _near_tested(pool, rows, choosing),
    }
    return [
        f"{fold.name}: {int(found.sum())} train {what}: {_shown(rows.filter(found)['example_id'])}"
        for what, found in shares.items()
        if found.any()
    ]


def lacking_labels(pool: Pool, fold: Fold) -> list[str]:
    """Labels that a part of a fold has no row of, one line each with what it has: its figures say little."""
    lines: list[str] = []
    for part, ids in {"train": fold.train, "id_val": fold.id_val, **fold.tests}.items():
        labels = pool.part(ids).frame["label"].cast(pl.String)
        counts = {name: int((labels == name).sum()) for name in pool.scheme.names}
        if 0 in counts.values():
            found = ", ".join(f"{count} {name}" for name, count in counts.items())
            lines.append(f"{fold.name}: {part} has {found}")
    return lines


def _near_tested(pool: Pool, rows: pl.DataFrame, tested: pl.DataFrame) -> pl.Series:
    pairs = pool.near_premises.filter(pl.col("near_id").is_in(tested["premise_id"].unique().implode()))
    near = rows["premise_id"].is_in(pairs["premise_id"].implode())
    return near | rows["text"].is_in(tested["text"].unique().implode())


def _shown(ids: Sequence[str] | pl.Series) -> str:
    listed = sorted(ids)
    return ", ".join(listed[:MAX_SHOWN]) + (" ..." if len(listed) > MAX_SHOWN else "")
