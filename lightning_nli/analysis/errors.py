"""Where a run is wrong: confusions, types of error, leanings, disagreement with other runs, calibration, hard rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from lightning_nli.analysis.answers import RunAnswers
from lightning_nli.analysis.slices import estimate_over
from lightning_nli.statistics import Estimate, expected_calibration_error, mcnemar
from lightning_nli.types import BINARY, LabelScheme

NUM_CALIBRATION_BINS = 15
"""As `statistics.expected_calibration_error` has them."""

NUM_HARDEST = 30

UNSURE_SHARE = 0.2
"""The least sure fifth of a run's answers."""

PUBLISHED_SHARES = {"rules-6-7": 0.22, "rule-1": 0.15, "rules-8-9": 0.13}
"""ViLegalNLI, Table 16: shares of the errors it looks at; its fourth type, 0.37, is an LLM's leaning to non-entailment
when unsure."""

PLACES = ("law_id", "law_name", "article", "clause", "point")


@dataclass(frozen=True)
class ErrorType:
    """One type of error.

    Attributes:
        key: Short name.
        title: What is wrong with what.
        num_errors: Errors of the type; an error may be of several types (a row carries several rules).
        share: Of all errors of the run.
        num_rows: Rows on which the error can be made.
        rate: Of these rows.
        published: ViLegalNLI's share (Table 16); None: it has no such type.
    """

    key: str
    title: str
    num_errors: int
    share: float | None
    num_rows: int
    rate: Estimate
    published: float | None


@dataclass(frozen=True)
class Leaning:
    """How often a label is the answer, and how often it is right to be.

    Attributes:
        label: The label.
        gold: Its share of the gold labels.
        answered: Its share of the answers.
        lean: `answered` minus `gold`.
        unsure_gold: Its share of the gold labels where the run is least sure (`UNSURE_SHARE`).
        unsure_answered: Its share of the answers there.
    """

    label: str
    gold: float
    answered: float
    lean: Estimate
    unsure_gold: float
    unsure_answered: float


@dataclass(frozen=True)
class Disagreement:
    """Two runs on the same rows.

    Attributes:
        first: Name of a run.
        second: Name of the other.
        both_right: Rows.
        first_only: Rows that only the first gets right.
        second_only: Rows that only the second gets right.
        both_wrong: Rows.
        same_answer: Share of rows with the same answer.
        difference: Accuracy of the first minus that of the second.
        mcnemar_p: McNemar's exact p value; rows of one law are not independent, so only a description.
    """

    first: str
    second: str
    both_right: int
    first_only: int
    second_only: int
    both_wrong: int
    same_answer: float
    difference: Estimate
    mcnemar_p: float


@dataclass(frozen=True)
class CalibrationBin:
    """Answers of about one confidence.

    Attributes:
        low: Lower end of the bin.
        high: Upper end.
        num_rows: Answers in it.
        confidence: Mean probability of the answers given.
        accuracy: Share of them that are right.
    """

    low: float
    high: float
    num_rows: int
    confidence: float
    accuracy: Estimate


@dataclass(frozen=True)
class Calibration:
    """Whether a run is as often right as it says.

    Attributes:
        error: Expected calibration error.
        bins: Those that hold answers.
    """

    error: float | None
    bins: tuple[CalibrationBin, ...]


def confusion(run: RunAnswers, scheme: LabelScheme) -> list[list[int]]:
    """Counts, rows gold, columns answered, in scheme order."""
    size = len(scheme.labels)
    flat = np.bincount(run.table["gold"].to_numpy() * size + run.table["answer"].to_numpy(), minlength=size * size)
    counts: list[list[int]] = flat.reshape(size, size).tolist()
    return counts


def error_types(run: RunAnswers, rows: pl.DataFrame, scheme: LabelScheme) -> list[ErrorType]:
    """Errors by type, as far as the corpus tells rules and overlap.

    Args:
        run: The run.
        rows: The set, in the run's order: `rule`, and `jaccard` where it was measured.
        scheme: Labels.
    """
    entailed = scheme.index(scheme.entailed)
    columns = [name for name in ("rule", "jaccard") if name in rows.columns]
    table = pl.concat([run.table, rows.select(columns)], how="horizontal")
    is_entailed, says_entailed = pl.col("gold") == entailed, pl.col("answer") == entailed
    missed, taken = "entailment missed", "taken for entailment"
    types: list[tuple[str, str, pl.Expr, pl.Expr]] = []
    if scheme == BINARY and (rows["rule"].list.len() > 0).any():
        types += [
            (
                "rules-6-7",
                f"{missed}, rule 6 or 7 (longer sentence, consequence)",
                is_entailed & _has(6, 7),
                ~says_entailed,
            ),
            ("rule-1", f"non-entailment by rule 1 (re-ordered) {taken}", ~is_entailed & _has(1), says_entailed),
            ("rules-8-9", f"{missed}, rule 8 or 9 (case, related clause)", is_entailed & _has(8, 9), ~says_entailed),
            ("other-rules", f"{missed}, no rule of 6 to 9", is_entailed & ~_has(6, 7, 8, 9), ~says_entailed),
        ]
    if "jaccard" in columns:
        middle = table.filter(is_entailed)["jaccard"].median()
        much = (pl.col("jaccard") >= middle).fill_null(False) if middle is not None else pl.lit(False)
        types += [
            (
                "overlap",
                f"{taken}, with as many common words as half of the entailed",
                ~is_entailed & much,
                says_entailed,
            ),
            ("little-overlap", f"{taken}, with fewer common words", ~is_entailed & ~much, says_entailed),
        ]
    for place, name in enumerate(scheme.names):
        for other, answer in enumerate(scheme.names):
            if other != place:
                title = f"{name} answered {answer}"
                types.append((f"{name}-{answer}", title, pl.col("gold") == place, pl.col("answer") == other))
    total = int((~table["right"]).sum())
    return [_error_type(table, total, *one) for one in types]


def leanings(run: RunAnswers, scheme: LabelScheme) -> list[Leaning]:
    """Bias to one label, over all rows and where the run is least sure."""
    table = run.table
    num_unsure = max(1, round(UNSURE_SHARE * table.height))
    unsure = table.sort("confidence", "example_id").head(num_unsure)
    found = []
    for place, name in enumerate(scheme.names):
        gold, answered = (pl.col(column) == place for column in ("gold", "answer"))
        lean = table.with_columns(lean=answered.cast(pl.Float64) - gold.cast(pl.Float64))
        (share, given), (unsure_share, unsure_given) = (
            part.select(gold.mean(), answered.mean()).row(0) for part in (table, unsure)
        )
        found.append(Leaning(name, share, given, estimate_over(lean, ["lean", "rows"]), unsure_share, unsure_given))
    return found


def disagreement(first: RunAnswers, second: RunAnswers) -> Disagreement:
    """Where two runs differ; their tables have the same rows in the same order."""
    one, two = first.table["right"], second.table["right"]
    same = first.table.select((pl.col("answer") == second.table["answer"]).mean()).item()
    only = int((one & ~two).sum()), int((~one & two).sum())
    paired = first.table.with_columns(difference=one.cast(pl.Float64) - two.cast(pl.Float64))
    return Disagreement(
        first.name,
        second.name,
        int((one & two).sum()),
        *only,
        int((~one & ~two).sum()),
        same,
        estimate_over(paired, ["difference", "rows"]),
        mcnemar(*only),
    )


def calibration(run: RunAnswers) -> Calibration:
    """Confidence against accuracy in equal-width bins."""
    table = run.table
    bins = (pl.col("confidence") * NUM_CALIBRATION_BINS).floor().clip(0, NUM_CALIBRATION_BINS - 1).cast(pl.Int64)
    found = []
    for (place,), part in sorted(table.with_columns(bin=bins).partition_by("bin", as_dict=True).items()):
        ends = (place / NUM_CALIBRATION_BINS, (place + 1) / NUM_CALIBRATION_BINS)
        mean = part.select(pl.col("confidence").mean()).item()
        found.append(CalibrationBin(*ends, part.height, mean, estimate_over(part, ["right", "rows"]).within(0, 1)))
    right = table["right"].cast(pl.Float64).to_numpy()
    error = expected_calibration_error(table["confidence"].to_numpy(), right, NUM_CALIBRATION_BINS)
    return Calibration(error, tuple(found))


def hardest_rows(runs: Sequence[RunAnswers], rows: pl.DataFrame, scheme: LabelScheme) -> list[dict[str, Any]]:
    """The rows with the highest mean loss over the runs: where they come from, what they say, what was answered."""
    losses = np.mean([run.table["loss"].to_numpy() for run in runs], axis=0)
    ranked = rows.with_columns(pl.Series("mean_loss", losses)).with_row_index("at")
    ranked = ranked.sort("mean_loss", "example_id", descending=[True, False]).head(NUM_HARDEST)
    found = []
    for row in ranked.iter_rows(named=True):
        answers = {run.name: scheme.names[run.table["answer"][row["at"]]] for run in runs}
        entry = {name: row[name] for name in ("example_id", "mean_loss", "label", *PLACES, "premise", "hypothesis")}
        found.append(entry | {"rule": row["rule"], "domains": row["domains"], "answers": answers})
    return found


def wrong_everywhere(runs: Sequence[RunAnswers]) -> list[str]:
    """Ids of the rows that no run gets right."""
    wrong = np.logical_and.reduce([~run.table["right"].to_numpy() for run in runs])
    return runs[0].table["example_id"].filter(pl.Series(wrong)).to_list()


def _has(*rules: int) -> pl.Expr:
    return pl.any_horizontal(pl.col("rule").list.contains(rule) for rule in rules)


def _error_type(table: pl.DataFrame, total: int, key: str, title: str, where: pl.Expr, error: pl.Expr) -> ErrorType:
    rows = table.filter(where).with_columns(error=error)
    errors = int(rows["error"].sum())
    share = errors / total if total else None
    rate = estimate_over(rows, ["error", "rows"]).within(0, 1)
    return ErrorType(key, title, errors, share, rows.height, rate, PUBLISHED_SHARES.get(key))
