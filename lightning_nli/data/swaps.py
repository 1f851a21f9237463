"""Mining of swapped premises: for an entailed hypothesis, other premises that do not support it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from lightning_nli.data.splits import stable_unit
from lightning_nli.data.text import comparison_expr, normalize_text
from lightning_nli.types import DOMAINS, LabelScheme

IntArray = npt.NDArray[np.int64]

WORD_PATTERN = r"(?u)\b\w+\b"
"""A word of `text.word_set`, as scikit-learn spells the pattern."""

SWAP_SCHEMA: dict[str, pl.DataType] = {
    "example_id": pl.String(),
    "kind": pl.String(),  # hard, random or other_law
    "order": pl.Int64(),  # 0, 1, ... within a kind
    "premise": pl.String(),  # the swapped text
    "premise_id": pl.String(),
    "unit": pl.String(),  # law; corpus where no row of the corpus has a law_id
}

_CELLS_PER_BLOCK = 4_000_000


def list_words(text: str) -> list[str]:
    """The words of the normalized text in lower case, in order, repeats kept; their set is `text.word_set`."""
    return re.findall(WORD_PATTERN, normalize_text(text).lower())


def swap_unit(*frames: pl.DataFrame) -> str:
    """`law`, or `corpus` if no row of `frames` has a `law_id`: then the whole corpus is one law."""
    return "law" if any(frame["law_id"].null_count() < frame.height for frame in frames) else "corpus"


def mine_swaps(rows: pl.DataFrame, pool: pl.DataFrame, scheme: LabelScheme, *, num_hard: int = 1) -> pl.DataFrame:
    """Give each gold-entailed row the premises of its law that cover most words of its hypothesis.

    A candidate is another premise of the same law, at most 1.5 times as long + 10 words, whose word set has a Jaccard
    index under 0.5 and a containment (intersection by the smaller set) under 0.8 with that of the own premise. Equal
    covers: by `premise_id`. The answer depends on neither the order of `rows` nor that of `pool`.

    Args:
        rows: Examples; those that are not entailed, or have no law in a corpus of laws, are left out.
        pool: Examples whose premises may be taken, each once (by `comparison_key`).
        scheme: Labels.
        num_hard: Swaps a row, at most.

    Returns:
        `SWAP_SCHEMA`, kind `hard`, by example id; a row without a candidate is left out.
    """
    task = _prepare(rows, pool, scheme)
    return _swap_table(task, _most_covering(_same_law_candidates(task), num_hard), "hard")


def other_law_swaps(rows: pl.DataFrame, pool: pl.DataFrame, scheme: LabelScheme, *, num: int = 1) -> pl.DataFrame:
    """Give each gold-entailed row the premises of other laws that cover most words of its hypothesis.

    Filters and order are those of `mine_swaps`. `augment` never makes such rows, so they show whether reading goes
    beyond the swaps of training.

    Args:
        rows: Examples; those that are not entailed or have no law are left out.
        pool: Examples whose premises may be taken.
        scheme: Labels.
        num: Swaps a row, at most.

    Returns:
        `SWAP_SCHEMA`, kind `other_law`, by example id; none in a corpus without laws.
    """
    task = _prepare(rows, pool, scheme)
    found = _other_law_candidates(task) if task.unit == "law" else iter(())
    return _swap_table(task, _most_covering(found, num), "other_law")


def random_swaps(
    rows: pl.DataFrame,
    pool: pl.DataFrame,
    scheme: LabelScheme,
    *,
    num: int = 1,
    same: str = "domain",
    taken: pl.DataFrame | None = None,
) -> pl.DataFrame:
    """Give each gold-entailed row random premises, drawn by the hash of its `example_id`.

    Args:
        rows: Examples.
        pool: Examples whose premises may be taken.
        scheme: Labels.
        num: Swaps a row, at most.
        same: `domain`, for scoring: premises of another law that share a domain. `law`, for training: premises of the
            same law that pass the filters of `mine_swaps`.
        taken: Swaps of which no premise is drawn again for the same row.

    Returns:
        `SWAP_SCHEMA`, kind `random`, by example id; a row without a domain, law or candidate is left out.

    Raises:
        ValueError: `same` is neither of the two.
    """
    if same not in ("domain", "law"):
        raise ValueError(f"a random swap shares the domain or the law, not {same=}")
    task = _prepare(rows, pool, scheme)
    used = _used_keys(taken)
    ids, keys = task.rows["example_id"].to_list(), task.premises["key"].to_list()
    picks = []
    for row, candidates, _ in _same_law_candidates(task) if same == "law" else _same_domain_candidates(task):
        avoid = used.get(ids[row], set())
        free = [at for at in candidates.tolist() if keys[at] not in avoid] if avoid else candidates.tolist()
        picks.append((row, np.array(_draw(ids[row], free, num), dtype=np.int64)))
    return _swap_table(task, picks, "random")


def evaluation_swaps(frame: pl.DataFrame, scheme: LabelScheme) -> pl.DataFrame:
    """Return the swaps a scored set is judged by: for a gold-entailed row one `hard` and one `random` if there is one.

    Args:
        frame: The set; swaps come from its own premises, so they are fixed by it alone.
        scheme: Labels.

    Returns:
        `SWAP_SCHEMA`.
    """
    return pl.concat([mine_swaps(frame, frame, scheme), random_swaps(frame, frame, scheme)])


@dataclass(frozen=True)
class _Task:
    """Rows to swap and premises to take.

    Attributes:
        rows: Gold-entailed rows by example id: `example_id hypothesis premise domains law key`.
        premises: Distinct premises in the order that settles ties: `law key premise premise_id domains`.
        unit: `law`, or `corpus`: then `law` is the same everywhere.
    """

    rows: pl.DataFrame
    premises: pl.DataFrame
    unit: str


def _prepare(rows: pl.DataFrame, pool: pl.DataFrame, scheme: LabelScheme) -> _Task:
    unit = swap_unit(rows, pool)
    law = pl.col("law_id") if unit == "law" else pl.lit("")
    keyed = [frame.with_columns(law=law, key=comparison_expr(pl.col("premise"))) for frame in (rows, pool)]
    entailed, known = (frame.filter(pl.col("law").is_not_null()) for frame in keyed)
    is_entailed = pl.col("label").cast(pl.String) == scheme.entailed.value
    entailed = entailed.filter(is_entailed).select("example_id", "hypothesis", "premise", "domains", "law", "key")
    premises = (
        known.sort("premise_id", "premise")
        .group_by("law", "key", maintain_order=True)
        .agg(pl.col("premise", "premise_id").first(), pl.col("domains").explode().drop_nulls().unique())
    )
    return _Task(entailed.sort("example_id"), premises.sort("premise_id", "key", "law"), unit)


def _word_matrix(texts: Sequence[str]) -> Any:
    """Sparse (texts, words) int32 of 0 and 1."""
    from scipy.sparse import csr_array

    places: dict[str, int] = {}
    rows = [sorted({places.setdefault(word, len(places)) for word in list_words(text)}) for text in texts]
    columns = np.array([place for row in rows for place in row], dtype=np.int32)
    starts = np.cumsum([0, *map(len, rows)])
    return csr_array((np.ones(len(columns), dtype=np.int32), columns, starts), shape=(len(rows), max(len(places), 1)))


@dataclass(frozen=True)
class _Words:
    """Words of the premises: sets as rows of a sparse matrix, their sizes, and lengths with repeats."""

    sets: Any  # (N, V) int32
    sizes: IntArray  # (N,)
    lengths: IntArray  # (N,)
    keys: IntArray  # (N,), equal where the texts are the same for `comparison_key`

    def take(self, at: IntArray) -> _Words:
        return _Words(self.sets[at], self.sizes[at], self.lengths[at], self.keys[at])


def _words_of(table: pl.DataFrame, sets: Any, codes: dict[str, int]) -> _Words:
    lengths = np.array([len(list_words(text)) for text in table["premise"]], dtype=np.int64)
    keys = np.array([codes.setdefault(key, len(codes)) for key in table["key"]], dtype=np.int64)
    return _Words(sets, sets.sum(axis=1).astype(np.int64), lengths, keys)


def _is_allowed(own: _Words, other: _Words) -> npt.NDArray[np.bool_]:
    """(own, other): the filters of `mine_swaps`, in whole numbers."""
    shared = (own.sets @ other.sets.T).toarray()
    union = own.sizes[:, None] + other.sizes[None] - shared
    smaller = np.minimum(own.sizes[:, None], other.sizes[None])
    is_short = 2 * other.lengths[None] <= 3 * own.lengths[:, None] + 20
    is_other = own.keys[:, None] != other.keys[None]
    allowed: npt.NDArray[np.bool_] = is_short & is_other & (2 * shared < union) & (5 * shared < 4 * smaller)
    return allowed


def _most_covering(found: Iterator[tuple[int, IntArray, IntArray]], num: int) -> list[tuple[int, IntArray]]:
    """Row and its `num` candidates that cover most; of equals the first."""
    return [(row, candidates[np.argsort(-covers, kind="stable")[:num]]) for row, candidates, covers in found]


def _same_law_candidates(task: _Task) -> Iterator[tuple[int, IntArray, IntArray]]:
    """For each row with a premise of its law: row, allowed premises ascending, hypothesis words each covers."""
    return _allowed_candidates(task, _positions_by_law(task.premises))


def _other_law_candidates(task: _Task) -> Iterator[tuple[int, IntArray, IntArray]]:
    """The same over the premises of all other laws."""
    law = task.premises["law"].to_numpy()
    return _allowed_candidates(task, {name: np.flatnonzero(law != name) for name in task.rows["law"].unique()})


def _allowed_candidates(task: _Task, pool_by_law: dict[str, IntArray]) -> Iterator[tuple[int, IntArray, IntArray]]:
    """For each row whose law has premises to take from: row, allowed ones, hypothesis words each covers."""
    num_rows, num_premises = task.rows.height, task.premises.height
    texts = [*task.rows["premise"], *task.rows["hypothesis"], *task.premises["premise"]]
    sets = _word_matrix(texts)
    codes: dict[str, int] = {}
    own = _words_of(task.rows, sets[:num_rows], codes)
    hypotheses = sets[num_rows : 2 * num_rows]
    premises = _words_of(task.premises, sets[2 * num_rows :], codes)
    assert premises.sets.shape[0] == num_premises
    for law, members in _positions_by_law(task.rows).items():
        at = pool_by_law.get(law)
        if at is None or not len(at):
            continue
        others = premises.take(at)
        for block in np.array_split(members, -(-len(members) * len(at) // _CELLS_PER_BLOCK)):
            allowed = _is_allowed(own.take(block), others)
            covers = (hypotheses[block] @ others.sets.T).toarray()
            for index, row in enumerate(block.tolist()):
                yield row, at[allowed[index]], covers[index][allowed[index]]


def _same_domain_candidates(task: _Task) -> Iterator[tuple[int, IntArray, None]]:
    """For each row: row, premises ascending that share a domain with it and stand in another law."""
    domains, pool_domains = _domain_matrix(task.rows), _domain_matrix(task.premises)
    law, pool_law, key, pool_key = (
        frame[name].to_numpy() for name in ("law", "key") for frame in (task.rows, task.premises)
    )
    for row in range(task.rows.height):
        is_candidate = (pool_domains[:, domains[row]].any(axis=1)) & (pool_key != key[row])
        if task.unit == "law":  # in a corpus without laws every premise counts as one of another law
            is_candidate &= pool_law != law[row]
        yield row, np.flatnonzero(is_candidate), None


def _positions_by_law(table: pl.DataFrame) -> dict[str, IntArray]:
    """Law -> its row positions, ascending."""
    groups = table.with_row_index("at").group_by("law", maintain_order=True).agg(pl.col("at").cast(pl.Int64))
    return {law: positions.to_numpy() for law, positions in zip(groups["law"], groups["at"], strict=True)}


def _domain_matrix(table: pl.DataFrame) -> npt.NDArray[np.bool_]:
    """(rows, domains)."""
    places = {name: index for index, name in enumerate(DOMAINS)}
    matrix = np.zeros((table.height, len(places)), dtype=np.bool_)
    for row, names in enumerate(table["domains"].to_list()):
        matrix[row, [places[name] for name in names or []]] = True
    return matrix


def _draw(example_id: str, candidates: Sequence[int], num: int) -> list[int]:
    """Draw up to `num` of the candidates without replacement, by the hash of the example id and the draw's number."""
    left, drawn = list(candidates), []
    for number in range(min(num, len(left))):
        place = int(stable_unit(f"{example_id}#{number}", 0) * len(left))
        drawn.append(left.pop(min(place, len(left) - 1)))
    return drawn


def _used_keys(taken: pl.DataFrame | None) -> dict[str, set[str]]:
    used: dict[str, set[str]] = {}
    if taken is not None:
        keys = taken.select("example_id", key=comparison_expr(pl.col("premise")))
        for example_id, key in keys.iter_rows():
            used.setdefault(example_id, set()).add(key)
    return used


def _swap_table(task: _Task, picks: Sequence[tuple[int, IntArray]], kind: str) -> pl.DataFrame:
    rows = np.repeat([row for row, _ in picks], [len(chosen) for _, chosen in picks]).astype(np.int64)
    orders = [order for _, chosen in picks for order in range(len(chosen))]
    premises = np.array([at for _, chosen in picks for at in chosen.tolist()], dtype=np.int64)
    columns = {
        "example_id": task.rows["example_id"].gather(rows),
        "kind": pl.repeat(kind, len(rows), dtype=pl.String, eager=True),
        "order": pl.Series(orders, dtype=pl.Int64),
        "premise": task.premises["premise"].gather(premises),
        "premise_id": task.premises["premise_id"].gather(premises),
        "unit": pl.repeat(task.unit, len(rows), dtype=pl.String, eager=True),
    }
    return pl.DataFrame(columns, schema=SWAP_SCHEMA).sort("example_id", "order")
