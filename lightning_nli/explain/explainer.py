"""Rows of a table explained one after another."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import polars as pl

from lightning_nli.explain.lime_text import Explanation, LimeSettings, explain_example
from lightning_nli.explain.models import TextModel
from lightning_nli.types import UserError

log = logging.getLogger(__name__)


def choose_rows(frame: pl.DataFrame, ids: Sequence[str] | None, limit: int, source: str) -> pl.DataFrame:
    """The rows with these ids, in their order; without ids the first `limit` rows.

    Raises:
        UserError: an id is of no row, or there is no row.
    """
    if frame.is_empty():
        raise UserError(f"{source} has no rows")
    if ids is None:
        if frame.height > limit:
            log.info("%s has %d rows: explaining the first %d (--ids, --limit)", source, frame.height, limit)
        return frame.head(limit)
    wanted = list(dict.fromkeys(ids))
    known = set(frame["example_id"])
    absent = [one for one in wanted if one not in known]
    if absent:
        raise UserError(
            f"--ids: {source} has no row '{absent[0]}' (ids are as '{frame['example_id'][0]}', "
            "`lnli data convert` shows them)"
        )
    return pl.DataFrame({"example_id": wanted}).join(frame, on="example_id", how="left", maintain_order="left")


def explain_rows(model: TextModel, rows: pl.DataFrame, settings: LimeSettings) -> list[Explanation]:
    """Explain each row of a table of examples, in its order.

    Raises:
        UserError: a row lacks a text that the model reads, or as `explain_example`.
    """
    for name in model.segments:
        if rows[name].null_count():
            raise UserError(f"{rows[name].null_count()} rows have no '{name}', which the model reads")
    explanations = []
    for number, row in enumerate(rows.iter_rows(named=True), 1):
        texts = {name: row[name] for name in model.segments}
        explanations.append(explain_example(model, row["example_id"], texts, gold=row["label"], settings=settings))
        log.info("explained %d of %d: %s", number, rows.height, row["example_id"])
    return explanations
