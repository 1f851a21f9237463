"""Does a run need the premise? Its figures with intervals, and what its answers do when the premise is changed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from lightning_nli.analysis.answers import RunAnswers
from lightning_nli.analysis.slices import estimate_over
from lightning_nli.data.splits import stable_unit
from lightning_nli.data.swaps import mine_swaps, random_swaps
from lightning_nli.statistics import Estimate
from lightning_nli.types import DOMAINS, LabelScheme

REMOVED, COVERING, WITHIN_LAW, WITHIN_DOMAIN, ACROSS = "removed", "law_covering", "law_random", "domain", "across"

CONDITIONS: dict[str, str] = {
    REMOVED: "removed (an empty text)",
    COVERING: "of the same law, covering most words of the hypothesis",
    WITHIN_LAW: "of the same law, at random",
    WITHIN_DOMAIN: "of another law of the same field, at random",
    ACROSS: "of no common field, at random",
}
"""What the premise is changed for."""

_STORED = {"hard": COVERING, "random": WITHIN_DOMAIN}
"""Kind of a stored swap -> what it is."""


@dataclass(frozen=True)
class PremiseFigures:
    """Whether a run reads the premise, in the order in which it is told.

    Attributes:
        discrimination: Share of entailed rows answered entailed with their own premise and not with one of the same
            law that covers most words of the hypothesis.
        random_swap: The same with a random premise of the same field, of another law.
        rank: Share of rows with more probability of entailment under their own premise; ties one half.
        num_rows: Entailed rows with a swap.
        num_rows_random: Entailed rows with a random swap.
        left_out: Entailed rows without a swap.
        unit: `law`, or `corpus`: no row names a law, the corpus counts as one.
        trained_on_swaps: Whether training saw swapped premises; None: an earlier version does not say.
        gain: Accuracy minus that of the same recipe on hypotheses alone; value None: no such run is known.
        accuracy: Over all rows.
        macro_f1: Over all rows.
        hypothesis_only: Accuracy of `hyponly-v1` trained on the run's training rows.
        hard: The `hard` entry of `result.json`.
    """

    discrimination: Estimate
    random_swap: Estimate
    rank: Estimate
    num_rows: int | None
    num_rows_random: int | None
    left_out: int | None
    unit: str | None
    trained_on_swaps: bool | None
    gain: Estimate
    accuracy: Estimate
    macro_f1: Estimate
    hypothesis_only: float | None
    hard: dict[str, Any]


@dataclass(frozen=True)
class Change:
    """What a changed premise does to the answers.

    Attributes:
        condition: Key of `CONDITIONS`.
        label: Gold label of the rows; `all`.
        num_rows: Rows that the change exists for.
        changed: Share of rows with another answer than under the own premise.
        before: Accuracy under the own premise.
        after: Share still answered with the gold label, which a changed premise no longer supports if it is entailment.
        fall: `before` minus `after`.
    """

    condition: str
    label: str
    num_rows: int
    changed: Estimate
    before: Estimate
    after: Estimate
    fall: Estimate


def premise_figures(
    run: RunAnswers, twin: RunAnswers | None, accuracy: Estimate, macro_f1: Estimate, scheme: LabelScheme
) -> PremiseFigures:
    """The first figures of a report.

    Args:
        run: The run.
        twin: The same recipe on hypotheses alone, if it is among the runs.
        accuracy: Of the run.
        macro_f1: Of the run.
        scheme: Labels.
    """
    stored = run.scores.get("premise", {})
    entailed = scheme.index(scheme.entailed)
    rows = run.table.filter(pl.col("gold") == entailed)
    return PremiseFigures(
        discrimination=_turned(rows, "hard", entailed, stored.get("discrimination")),
        random_swap=_turned(rows, "random", entailed, stored.get("random_swap")),
        rank=_rank(rows, scheme, stored.get("rank")),
        num_rows=stored.get("num_rows"),
        num_rows_random=stored.get("num_rows_random"),
        left_out=stored.get("left_out"),
        unit=stored.get("unit"),
        trained_on_swaps=stored.get("trained_on_swaps"),
        gain=known(stored.get("gain"), "no hypothesis-only run") if twin is None else _gain(run, twin),
        accuracy=accuracy,
        macro_f1=macro_f1,
        hypothesis_only=run.scores.get("hypothesis_only", {}).get("accuracy"),
        hard=run.scores.get("hard", {}),
    )


def known(value: float | None, note: str) -> Estimate:
    """A figure from elsewhere, without an interval; `note` says why if it is missing."""
    return Estimate(value, None, None, None, 0, None, "" if value is not None else note)


def no_premise_sentence(run: str, accuracy: float, blind: tuple[str, float], constant: tuple[str, float]) -> str:
    """How much of a run's accuracy needs no premise, in one sentence.

    Args:
        run: Its name.
        accuracy: Its accuracy.
        blind: Name and accuracy of the best model known that never sees a premise.
        constant: The commonest gold label and its share.
    """
    (blind_name, blind_accuracy), (label, share) = blind, constant
    start = (
        f"A model that never reads the premise ({blind_name}) is right on {_percent(blind_accuracy)} of the rows, "
        f"the constant answer {label} on {_percent(share)}, {run} on {_percent(accuracy)}: "
    )
    if accuracy <= share:
        return start + f"{run} is no better than the constant."
    needless = (blind_accuracy - share) / (accuracy - share)
    if needless <= 0:
        return start + f"all that {run} gains over the constant takes the premise."
    part = "all" if needless >= 1 else _percent(needless, 0)
    return start + f"{part} of what {run} gains over the constant needs no premise."


def stored_changes(run: RunAnswers, scheme: LabelScheme) -> list[Change]:
    """What the swaps scored with the run tell: entailed rows only, two kinds of swap."""
    found = []
    for kind, condition in _STORED.items():
        if f"{kind}_answer" in run.table.columns:
            answers = run.table.select("example_id", after=f"{kind}_answer").drop_nulls()
            found += changes(run, condition, answers, scheme)
    return found


def changes(run: RunAnswers, condition: str, answers: pl.DataFrame, scheme: LabelScheme) -> list[Change]:
    """Compare the answers under a changed premise with the run's own, for each gold label and for all rows.

    Args:
        run: The run.
        condition: Key of `CONDITIONS`.
        answers: `example_id`, `after` (class index) of the rows that the change exists for.
        scheme: Labels.
    """
    paired = run.table.join(answers, on="example_id", how="inner", maintain_order="left").with_columns(
        changed=pl.col("answer") != pl.col("after"), still=pl.col("gold") == pl.col("after")
    )
    paired = paired.with_columns(fall=pl.col("right").cast(pl.Float64) - pl.col("still").cast(pl.Float64))
    parts = {name: paired.filter(pl.col("gold") == place) for place, name in enumerate(scheme.names)}
    parts = {name: part for name, part in parts.items() if part.height}
    if len(parts) > 1:
        parts["all"] = paired
    return [
        Change(
            condition=condition,
            label=name,
            num_rows=part.height,
            changed=estimate_over(part, ["changed", "rows"]).within(0, 1),
            before=estimate_over(part, ["right", "rows"]).within(0, 1),
            after=estimate_over(part, ["still", "rows"]).within(0, 1),
            fall=estimate_over(part, ["fall", "rows"]),
        )
        for name, part in parts.items()
    ]


def changed_premises(rows: pl.DataFrame, scheme: LabelScheme) -> dict[str, pl.DataFrame]:
    """The rows under changed premises, whatever their label; a row that a change does not exist for is left out.

    Args:
        rows: The set; changed premises are its own.
        scheme: Labels.
    """
    entailed = pl.lit(scheme.entailed.value, rows.schema["label"])
    unlabelled = rows.with_columns(label=entailed)  # swaps are mined for entailed rows: here for all
    mined = {
        COVERING: mine_swaps(unlabelled, unlabelled, scheme),
        WITHIN_LAW: random_swaps(unlabelled, unlabelled, scheme, same="law"),
        WITHIN_DOMAIN: random_swaps(unlabelled, unlabelled, scheme),
        ACROSS: _swaps_across(rows),
    }
    frames = {REMOVED: rows.with_columns(premise=pl.lit(""))}
    for condition, swaps in mined.items():
        new = swaps.select("example_id", changed="premise")
        joined = rows.join(new, on="example_id", how="inner", maintain_order="left")
        frames[condition] = joined.with_columns(premise="changed").drop("changed")
    return {condition: frame for condition, frame in frames.items() if frame.height}


def _swaps_across(rows: pl.DataFrame) -> pl.DataFrame:
    """For each row with a known field a premise of no common field, drawn by the hash of its id."""
    masks = np.zeros((rows.height, len(DOMAINS)), dtype=np.bool_)
    places = {name: place for place, name in enumerate(DOMAINS)}
    for row, names in enumerate(rows["domains"].to_list()):
        masks[row, [places[name] for name in names]] = True
    order = rows.with_row_index("at").sort("premise_id", "example_id").unique("premise_id", keep="first")
    pool = order.sort("premise_id")["at"].to_numpy()
    pool = pool[masks[pool].any(axis=1)]
    candidates: dict[bytes, Any] = {}
    ids, premises, drawn = rows["example_id"].to_list(), rows["premise"].to_list(), []
    for row in np.flatnonzero(masks.any(axis=1)).tolist():
        key = masks[row].tobytes()
        if key not in candidates:
            candidates[key] = pool[~masks[pool][:, masks[row]].any(axis=1)]
        free = candidates[key]
        if len(free):
            at = free[min(int(stable_unit(f"{ids[row]}#across", 0) * len(free)), len(free) - 1)]
            drawn.append((ids[row], premises[int(at)]))
    return pl.DataFrame(drawn, schema={"example_id": pl.String, "premise": pl.String}, orient="row")


def _turned(rows: pl.DataFrame, kind: str, entailed: int, stored: float | None) -> Estimate:
    if f"{kind}_answer" not in rows.columns:
        return known(stored, "not scored")
    swapped = pl.col(f"{kind}_answer")
    paired = rows.filter(swapped.is_not_null())
    return estimate_over(
        paired.with_columns(turned=(pl.col("answer") == entailed) & (swapped != entailed)), ["turned", "rows"]
    ).within(0, 1)


def _rank(rows: pl.DataFrame, scheme: LabelScheme, stored: float | None) -> Estimate:
    if "hard_score" not in rows.columns:
        return known(stored, "not scored")
    own, swapped = pl.col(f"prob_{scheme.entailed.value}"), pl.col("hard_score")
    above = (own > swapped).cast(pl.Float64) + 0.5 * (own == swapped).cast(pl.Float64)
    return estimate_over(rows.filter(swapped.is_not_null()).with_columns(above=above), ["above", "rows"]).within(0, 1)


def _gain(run: RunAnswers, twin: RunAnswers) -> Estimate:
    paired = run.table.with_columns(gain=run.table["right"].cast(pl.Float64) - twin.table["right"].cast(pl.Float64))
    return estimate_over(paired, ["gain", "rows"])


def _percent(share: float, digits: int = 1) -> str:
    return f"{100 * share:.{digits}f}%"
