"""What chooses a cell's checkpoint: rows of the training laws, of a training domain left out, or (an oracle) the test.

Only `ORACLE` ever sees a held-out domain. A suite has to ask for it, and its board says so and ranks nobody.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import polars as pl

from lightning_nli.crossdomain.folds import Fold, Removal, leave_out, order_by_hash
from lightning_nli.crossdomain.pool import MIN_CORE_LAWS, MIN_CORE_ROWS, Pool
from lightning_nli.data.splits import stable_unit
from lightning_nli.types import UserError

ID_VAL, LAST, LEAVE_ONE_OUT, ORACLE = "id_val", "last", "leave_one_out", "oracle"
SELECTIONS = (ID_VAL, LAST, LEAVE_ONE_OUT, ORACLE)

_SECOND_GUARD = {Removal.LAW: Removal.CHOOSES_LAW, Removal.PREMISE: Removal.CHOOSES_PREMISE}


def select(pool: Pool, folds: Iterable[Fold], method: str, *, seed: int) -> list[Fold]:
    """The folds with the rows that choose under a method; training rows are those that the method leaves.

    `leave_one_out` changes folds that hold domains out. One training domain, drawn by hash of the held-out ones and
    the seed among those that are large enough (`DomainSize.is_core`, counted in the fold's own rows), leaves training
    as if it were tested: with its laws, and with the premises that say almost the same. Its rows become `id_val`. This
    is the leave-one-domain-out selection of DomainBed (Gulrajani and Lopez-Paz, In Search of Lost Domain
    Generalization, 2021, section 3) with one draw in place of a training for each training domain. Folds by law or
    premise keep their `id_val`, which is whole laws or premises: what is left out to choose by is of the same kind as
    what is tested. So does a `disjoint` fold, whose own dev domains train nothing.

    The other methods leave folds as they are: `last` uses no `id_val`, and an oracle trains on what `id_val` would
    have, so that two boards differ in what chooses alone.

    Args:
        pool: Rows.
        folds: Of a scheme, before they are cut to one size.
        method: One of `SELECTIONS`.
        seed: Of the draw and of the order of training rows.

    Raises:
        UserError: a fold has no training domain that is large enough.
    """
    return [_leave_one_out(pool, fold, seed) if method == LEAVE_ONE_OUT else fold for fold in folds]


def choosing_ids(fold: Fold, method: str) -> tuple[str, ...]:
    """Ids of the rows that choose a checkpoint."""
    return {ID_VAL: fold.id_val, LEAVE_ONE_OUT: fold.id_val, ORACLE: fold.test}.get(method, ())


def _leave_one_out(pool: Pool, fold: Fold, seed: int) -> Fold:
    if fold.scheme != "leave-domain-out":
        return fold
    rows = pool.part((*fold.train, *fold.id_val))
    domain = _draw(rows, fold, seed)
    inner = leave_out(rows, fold.name, fold.scheme, [domain], seed=seed, near=pool)
    second = {_SECOND_GUARD[reason]: ids for reason, ids in inner.removed.items() if reason in _SECOND_GUARD}
    train = order_by_hash(rows, (*inner.train, *inner.id_val), seed)
    return replace(fold, train=train, id_val=inner.test, removed={**fold.removed, **second}, choosers=(domain,))


def _draw(rows: Pool, fold: Fold, seed: int) -> str:
    key = "+".join(sorted(fold.held_out))
    able = [size.domain for size in rows.domains if size.is_core and _leaves_rows(rows, size.domain)]
    if not able:
        raise UserError(
            f"selection {LEAVE_ONE_OUT}: fold {fold.name} has no training domain with {MIN_CORE_ROWS} rows and "
            f"{MIN_CORE_LAWS} laws beside others to train on; take selection {ID_VAL}"
        )
    return min(able, key=lambda domain: (stable_unit(f"{key}:{domain}", seed), domain))


def _leaves_rows(rows: Pool, domain: str) -> bool:
    """Whether rows are left that carry other domains only and are of other laws."""
    carries = pl.col("domains").list.contains(domain)
    laws = rows.frame.filter(carries)["law_id"].unique().implode()
    return not rows.frame.filter(pl.col("law_id").is_in(laws).not_()).is_empty()
