"""Models that read one text only: how much of the accuracy needs no premise."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from lightning_nli.baselines import hypothesis_only, majority
from lightning_nli.data.schema import Corpus
from lightning_nli.data.splits import draw_split, take_subset
from lightning_nli.metrics import Scores, score
from lightning_nli.types import Split, UserError

HELD_OUT_FRACTION = 0.2
"""Share of the rows that are scored where a corpus has no two splits."""

MAX_ROWS = 50_000
"""Most rows to train on, and to score: more change the figures little and cost memory."""

_SPLIT_SEED = 0


@dataclass(frozen=True)
class BlindScores:
    """Linear models that see one text only, and the majority label, on rows they were not trained on.

    Attributes:
        train: What they were trained on, for people.
        test: What they were scored on, for people.
        num_train: Rows.
        majority: Always the commonest label of the training rows.
        hypothesis_only: `hyponly-v1`.
        premise_only: The same model on the premise in the hypothesis' place.
    """

    train: str
    test: str
    num_train: int
    majority: Scores
    hypothesis_only: Scores
    premise_only: Scores

    @property
    def verdict(self) -> str:
        """How much of the accuracy needs no premise, in one sentence."""
        blind, most, premise = (
            f"{100 * (scores.accuracy or 0.0):.1f}%"
            for scores in (self.hypothesis_only, self.majority, self.premise_only)
        )
        return (
            f"A linear model that never reads the premise gets {blind} of {self.test} right (trained on {self.train}); "
            f"the commonest label alone gets {most}, a model that reads the premise alone {premise}."
        )


def blind_scores(corpus: Corpus) -> BlindScores:
    """Train and score models that see one text only.

    They are trained on the split train (without one, on dev) and scored on test (without one, on dev). A corpus without
    two splits is cut by its split unit, `HELD_OUT_FRACTION` of the rows held out. Of more than `MAX_ROWS` rows on
    either side whole units are drawn, and the names say so.

    Raises:
        UserError: there is not enough to train or score on.
    """
    train, test, train_name, test_name = _train_and_test(corpus)
    (train, train_name), (test, test_name) = (
        _at_most(rows, name, corpus.split_unit) for rows, name in ((train, train_name), (test, test_name))
    )
    scheme = corpus.scheme
    train_premises, test_premises = (rows.with_columns(hypothesis="premise") for rows in (train, test))
    return BlindScores(
        train=train_name,
        test=test_name,
        num_train=train.height,
        majority=score(majority(train, test, scheme), scheme),
        hypothesis_only=score(hypothesis_only(train, test, scheme), scheme),
        premise_only=score(hypothesis_only(train_premises, test_premises, scheme), scheme),
    )


def _train_and_test(corpus: Corpus) -> tuple[pl.DataFrame, pl.DataFrame, str, str]:
    """Rows to train and to score on, with their names."""
    frame = corpus.frame
    there = [split.value for split in Split if (frame["split"] == split.value).any()]
    if len(there) > 1:
        train, test = there[0], there[-1]
        return frame.filter(pl.col("split") == train), frame.filter(pl.col("split") == test), train, test
    if frame[corpus.split_unit].n_unique() < 2:
        raise UserError(f"'{corpus.source}' has {frame.height} rows of one '{corpus.split_unit}': nothing to hold out")
    train_rows, test_rows = draw_split(frame, fraction=HELD_OUT_FRACTION, unit=corpus.split_unit, seed=_SPLIT_SEED)
    name = there[0] if there else "all rows"
    return train_rows, test_rows, f"the rest of {name}", f"{HELD_OUT_FRACTION:.0%} of {name}"


def _at_most(rows: pl.DataFrame, name: str, unit: str) -> tuple[pl.DataFrame, str]:
    if rows.height <= MAX_ROWS:
        return rows, name
    drawn = take_subset(rows, MAX_ROWS, unit, _SPLIT_SEED)
    return drawn, f"{drawn.height} of {rows.height} rows of {name}"
