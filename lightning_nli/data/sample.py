"""The embedded corpus: invented Vietnamese statutes and premise-hypothesis pairs of our own grammar.

Synthetic through and through: no sentence comes from a law or from another corpus, no duty in it exists. It is there so
that a demo, a tutorial and the tests have a corpus to train on without a download. **Report no results on it**: a score
says that the machinery works, nothing about a model's grasp of law.

What it has in common with the real corpora: the shares of the 27 fields of law, and rows of several fields
(`sample_plan`); laws that repeat each other, numbers in words and digits, days, conditions, exceptions and references
to other articles (`sample_law`, `sample_grammar`); all rules of generation, by number (`sample_pairs`).

How a pair comes about. A premise states two facts (who, may or must or must not, which act, which detail) in the words
of its fields. It yields one entailed and one not entailed hypothesis in the same form: the first restates a fact or
what follows from it, the second states something else or the fact with a part changed. Changed parts are drawn as the
originals were, so the hypothesis alone tells nothing about the label, nor does the premise, which always stands once
under each label.

How it is split. The split of a premise depends on the two acts it speaks of and on nothing else. From a few thousand
rows on, 2 to 3% of the premises are near copies of a premise of an earlier law (word 3-gram Jaccard of at least 0.7,
never equal), with one number or one actor changed and the acts kept: **a near copy stands in the same split as its
original**, and so would equal premises in a huge corpus. The acts are drawn so that every law is split about 70/15/15.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date
from itertools import islice
from typing import Any

import polars as pl

from lightning_nli.data.sample_draw import Draw
from lightning_nli.data.sample_law import Originals, build_law
from lightning_nli.data.sample_pairs import build_pairs
from lightning_nli.data.sample_plan import LawPlan, plan_laws
from lightning_nli.data.sample_words import WORDS
from lightning_nli.data.schema import EXAMPLE_SCHEMA

DEFAULT_NUM_EXAMPLES = 3600
CHUNK_ROWS = 10_000

Row = tuple[Any, ...]  # the values of `_COLUMNS`
_COLUMNS = (
    "example_id", "premise", "hypothesis", "premise_id", "law_id", "label", "domains", "rule", "law_name", "law_date",
    "chapter", "section", "article", "clause", "point", "split",
)  # fmt: skip


def sample_corpus(num_examples: int | None = None, seed: int = 0) -> pl.DataFrame:
    """The synthetic sample corpus: for demos and tests only, nobody should report results on it.

    Law after law is written until there are enough rows: a larger corpus begins with the rows of a smaller one. A
    premise has two rows, one under each label, and stands in one split, together with its near copies in other laws.

    Args:
        num_examples: Number of rows; 3,600 by default.
        seed: Another seed gives other laws; the ids stay.

    Returns:
        A frame of `EXAMPLE_SCHEMA` with binary labels, `split` about 70/15/15 by premise within each law, domains in
        the shares of `sample_plan.PAPER_TOTALS` (26% of the rows have two) and all 27 of them from about 500 rows on.

    Raises:
        ValueError: `num_examples` is not positive.
    """
    return pl.concat(iter_sample(num_examples, seed))


def iter_sample(num_examples: int | None = None, seed: int = 0, chunk_rows: int = CHUNK_ROWS) -> Iterator[pl.DataFrame]:
    """The rows of `sample_corpus` in frames of `chunk_rows`, the last one shorter; one frame is in memory at a time.

    Args:
        num_examples: Number of rows in all; 3,600 by default.
        seed: As for `sample_corpus`.
        chunk_rows: Rows of a frame.

    Raises:
        ValueError: `num_examples` or `chunk_rows` is not positive.
    """
    wanted = DEFAULT_NUM_EXAMPLES if num_examples is None else num_examples
    if wanted < 1 or chunk_rows < 1:
        raise ValueError(f"{num_examples=} and {chunk_rows=} must be positive")
    return _frames(islice(_rows(seed), wanted), chunk_rows)


def _frames(rows: Iterator[Row], chunk_rows: int) -> Iterator[pl.DataFrame]:
    lists = ("domains", "rule")  # come as words: polars splits a column of texts faster than it takes lists in
    schema = EXAMPLE_SCHEMA | dict.fromkeys(lists, pl.String())
    while chunk := list(islice(rows, chunk_rows)):
        columns = dict.fromkeys(EXAMPLE_SCHEMA, [None] * len(chunk)) | {"corpus": ["sample"] * len(chunk)}
        columns |= dict(zip(_COLUMNS, map(list, zip(*chunk, strict=True)), strict=True))
        table = pl.DataFrame(columns, schema=schema)
        yield table.with_columns(pl.col(name).str.split(" ").cast(EXAMPLE_SCHEMA[name]) for name in lists)


def _rows(seed: int) -> Iterator[Row]:
    """Row after row, without end."""
    originals = Originals()
    for plan in plan_laws(seed):
        yield from _law_rows(plan, originals, Draw("law", seed, plan.number))


def _law_rows(plan: LawPlan, originals: Originals, draw: Draw) -> Iterator[Row]:
    year, number = 2031 + draw.below(9), plan.number + 1
    things = draw.sample([thing for field in plan.fields for thing in WORDS[field].things], 2)
    law_id, law_name = f"M-{number:03d}/{year}/QS", f"Luật mẫu số {number} về {' và '.join(things)}"
    law_date = date(year, 1 + draw.below(12), 1 + draw.below(28))
    law = build_law(plan, originals, draw)
    for index, place in enumerate(law.provisions):
        premise, premise_id = place.text, f"sample-{number:04d}-{index + 1:02d}"
        third = index * 3 // len(law.provisions)
        where = (
            f"Chương {'I' * (1 + third)}",
            f"Mục {1 + index % 2}" if third == 1 else None,
            f"Điều {place.article}",
            f"Khoản {place.clause}",
            place.point and f"Điểm {place.point}",
            place.split.value,
        )
        for at, pair in enumerate(build_pairs(place, law, draw), start=1):
            texts = (f"{premise_id}-{at}", premise, pair.hypothesis, premise_id, law_id)
            lists = " ".join(place.domains), " ".join(map(str, pair.rules))
            yield *texts, pair.label.value, *lists, law_name, law_date, *where
    originals.remember(law)
