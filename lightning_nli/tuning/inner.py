"""Inner folds: whole laws of the training domains, so that no held-out domain chooses anything.

The suite's fold of the held-out domain says which rows may train. They alone are cut into folds by law; every trial
trains once a fold and is scored by the mean over the laws left out. What the suite tests is in none of the files that
trials read.
"""

from __future__ import annotations

from pathlib import Path

import polars as pl

from lightning_nli.config import ExperimentConfig
from lightning_nli.crossdomain.folds import Fold, k_folds
from lightning_nli.crossdomain.pool import Pool
from lightning_nli.crossdomain.suite import OWNED, Suite, build_folds, load_pool, load_suite
from lightning_nli.types import UserError


def check_base(config: ExperimentConfig, suite: Path) -> None:
    """Refuse settings that the suite decides.

    Raises:
        UserError: names them.
    """
    plain = ExperimentConfig()
    decided = [
        name for name in OWNED if name not in ("seed", "run_dir") and getattr(config, name) != getattr(plain, name)
    ]
    if decided:
        raise UserError(f"--config sets {', '.join(decided)}, which the suite {suite} decides; leave them out")


def outer_fold(suite: Suite, pool: Pool, held_out: str) -> Fold:
    """The suite's fold that holds a domain out.

    Raises:
        UserError: it has none.
    """
    folds = [fold for fold in build_folds(suite, pool) if held_out in fold.held_out]
    if not folds:
        named = sorted({domain for fold in build_folds(suite, pool) for domain in fold.held_out})
        raise UserError(f"--held-out {held_out}: suite {suite.name} holds out {', '.join(named) or 'no domain'}")
    return folds[0]


def cut_inner_folds(suite: Suite, held_out: str, num_folds: int) -> tuple[list[pl.DataFrame], str]:
    """Tables of the inner folds (`role`: train or id_val) and the name of their label scheme.

    Args:
        suite: Whose domains.
        held_out: Domain that no row of the tables carries.
        num_folds: Folds by law.

    Raises:
        UserError: there is no such fold, or too few laws.
    """
    pool = load_pool(suite)
    outer = outer_fold(suite, pool, held_out)
    allowed = pl.Series([*outer.train, *outer.id_val], dtype=pl.String).implode()
    inner = Pool(pool.frame.filter(pl.col("example_id").is_in(allowed)), pool.scheme, 0)
    folds = k_folds(inner, "law_id", seed=suite.split_seed, num_folds=num_folds)
    return [_table(inner, fold) for fold in folds], pool.scheme.name


def _table(pool: Pool, fold: Fold) -> pl.DataFrame:
    roles = {id_: "train" for id_ in (*fold.train, *fold.id_val)} | dict.fromkeys(fold.test, "id_val")
    role = pl.col("example_id").replace_strict(roles, default=None, return_dtype=pl.String)
    return pool.frame.with_columns(role=role).filter(pl.col("role").is_not_null())


def prepare_folds(folder: Path, suite: Path, held_out: str, num_folds: int) -> str:
    """Write `folder/inner-N.parquet`; returns the name of their label scheme.

    Raises:
        UserError: as `cut_inner_folds`.
    """
    tables, scheme = cut_inner_folds(load_suite(suite), held_out, num_folds)
    folder.mkdir(parents=True, exist_ok=True)
    for number, table in enumerate(tables, 1):
        table.write_parquet(folder / f"inner-{number}.parquet")
    return scheme
