"""The rows that folds are cut from: duplicates dropped, laws required, near-equal premises known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl

from lightning_nli.data.identity import fingerprint, pair_comparison_expr
from lightning_nli.data.text import comparison_expr
from lightning_nli.types import DOMAINS, LabelScheme, UserError

MIN_CORE_ROWS = 100
MIN_CORE_LAWS = 3
SHINGLE_WORDS = 3
NEAR_JACCARD = 0.7
NEAR_CONTAINMENT = 0.95
OTHER = "other"

_BLOCK_ROWS = 512


@dataclass(frozen=True)
class DomainSize:
    """One field of law in a pool.

    Attributes:
        domain: Slug.
        rows: Rows that carry it.
        single_rows: Rows whose only domain it is.
        laws: Laws behind `rows`.
    """

    domain: str
    rows: int
    single_rows: int
    laws: int

    @property
    def is_core(self) -> bool:
        """Large enough to enter means: 100 rows, 3 laws, and not the rest of everything."""
        return self.rows >= MIN_CORE_ROWS and self.laws >= MIN_CORE_LAWS and self.domain != OTHER


@dataclass(frozen=True)
class Pool:
    """Rows to cut folds from.

    Attributes:
        frame: Rows of `EXAMPLE_SCHEMA`, every one with a law, no pair twice but for case, spaces and punctuation.
        scheme: Labels.
        num_duplicates: Rows dropped because an earlier one has the same texts.
    """

    frame: pl.DataFrame
    scheme: LabelScheme
    num_duplicates: int

    @cached_property
    def fingerprint(self) -> str:
        return fingerprint(self.frame)

    @cached_property
    def domains(self) -> list[DomainSize]:
        """Every domain with a row, largest first."""
        rows = self.frame.select("law_id", "domains", single=pl.col("domains").list.len() == 1)
        rows = rows.filter(pl.col("domains").list.len() > 0).explode("domains")
        sizes = rows.group_by("domains").agg(pl.len(), pl.col("single").sum(), pl.col("law_id").n_unique())
        found = [DomainSize(str(domain), rows, single, laws) for domain, rows, single, laws in sizes.iter_rows()]
        return sorted(found, key=lambda size: (-size.rows, size.domain))

    @cached_property
    def compared(self) -> pl.DataFrame:
        """`example_id`, `premise_id`, `law_id`, `names` (domains as text), `pair` and `text` (premise) as compared."""
        names = pl.col("domains").cast(pl.List(pl.String))
        text = comparison_expr(pl.col("premise"))
        return self.frame.select(
            "example_id", "premise_id", "law_id", names=names, pair=pair_comparison_expr(), text=text
        )

    def part(self, ids: Sequence[str]) -> Pool:
        """The pool of some rows alone, in its order."""
        chosen = pl.Series(list(ids), dtype=pl.String).implode()
        return replace(self, frame=self.frame.filter(pl.col("example_id").is_in(chosen)))

    def compared_rows(self, ids: Sequence[str]) -> pl.DataFrame:
        """Rows of `compared` by id, in the order of the pool."""
        return self.compared.filter(pl.col("example_id").is_in(pl.Series(list(ids), dtype=pl.String).implode()))

    @property
    def core_domains(self) -> list[str]:
        return [size.domain for size in self.domains if size.is_core]

    @cached_property
    def near_premises(self) -> pl.DataFrame:
        """`premise_id`, `near_id`: pairs of different premises that say almost the same, in both directions."""
        texts = self.frame.select("premise_id", text=comparison_expr(pl.col("premise"))).unique(maintain_order=True)
        first, second = near_pairs(texts["text"].to_list())
        ids = texts["premise_id"]
        pairs = pl.DataFrame({"premise_id": ids.gather(first), "near_id": ids.gather(second)})
        both = pl.concat([pairs, pairs.select(premise_id="near_id", near_id="premise_id")])
        return both.filter(pl.col("premise_id") != pl.col("near_id")).unique().sort("premise_id", "near_id")


def build_pool(frame: pl.DataFrame, scheme: LabelScheme) -> Pool:
    """Drop duplicates and check that laws are known.

    Raises:
        UserError: a row has no law.
    """
    missing = frame["law_id"].null_count()
    if missing:
        ids = frame.filter(pl.col("law_id").is_null())["example_id"].head(5).to_list()
        raise UserError(f"{missing} rows have no law_id ({ids} ...); laws are the unit of held-out-domain folds")
    kept = frame.filter(frame.select(pair_comparison_expr()).to_series().is_first_distinct())
    return Pool(kept, scheme, frame.height - kept.height)


def check_domains(names: Sequence[str], pool: Pool) -> None:
    """Refuse names of domains that do not exist or have no row.

    Raises:
        UserError: names them, with the domains of the pool.
    """
    there = [size.domain for size in pool.domains]
    unknown = [name for name in names if name not in DOMAINS]
    absent = [name for name in names if name in DOMAINS and name not in there]
    if unknown or absent:
        raise UserError(f"no rows of the domains {unknown + absent}; the pool has {', '.join(there)}")


def near_pairs(texts: Sequence[str]) -> tuple[list[int], list[int]]:
    """Places of texts whose sets of 3-word shingles have a Jaccard index >= 0.7 or a containment >= 0.95.

    Containment is the intersection over the smaller set; a text of fewer than 3 words is one shingle.

    Args:
        texts: As compared: lower case, one space between words.

    Returns:
        First and second places of each pair, first < second.
    """
    import scipy.sparse as sparse

    numbers: dict[tuple[str, ...], int] = {}
    columns: list[int] = []
    starts = [0]
    for text in texts:
        columns += sorted({numbers.setdefault(shingle, len(numbers)) for shingle in _shingles(text)})
        starts.append(len(columns))
    matrix = sparse.csr_matrix(
        (np.ones(len(columns), np.int32), columns, starts), shape=(len(texts), max(1, len(numbers)))
    )
    sizes = np.diff(starts)
    turned = matrix.T.tocsr()
    first: list[int] = []
    second: list[int] = []
    for start in range(0, len(texts), _BLOCK_ROWS):
        shared: Any = (matrix[start : start + _BLOCK_ROWS] @ turned).tocoo()
        rows, others, common = shared.row + start, shared.col, shared.data
        later = others > rows
        rows, others, common = rows[later], others[later], common[later]
        smaller = np.minimum(sizes[rows], sizes[others])
        union = sizes[rows] + sizes[others] - common
        near = (common >= NEAR_JACCARD * union) | (common >= NEAR_CONTAINMENT * smaller)
        first += rows[near].tolist()
        second += others[near].tolist()
    return first, second


def _shingles(text: str) -> set[tuple[str, ...]]:
    words = text.split(" ")
    return {tuple(words[place : place + SHINGLE_WORDS]) for place in range(max(1, len(words) - SHINGLE_WORDS + 1))}
