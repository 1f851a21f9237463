"""What is made of swapped premises (`data/swaps.py`): rows that training gets, and figures of answers under them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import polars as pl

from lightning_nli.config_augment import AugmentSpec
from lightning_nli.data.schema import EXAMPLE_SCHEMA
from lightning_nli.data.splits import stable_unit
from lightning_nli.data.swaps import mine_swaps, random_swaps
from lightning_nli.data.text import comparison_expr
from lightning_nli.types import LabelScheme, UserError

NUM_CANDIDATES = 8
"""Hard swaps of a row among which a run's mistakes are looked for."""

SwapChooser = Callable[[pl.DataFrame, pl.DataFrame, int], pl.DataFrame]
"""Training rows, candidates (`SWAP_SCHEMA`), swaps a row at most -> the candidates to take, `order` from 0."""

_PLACE_COLUMNS = ("chapter", "section", "article", "clause", "point")


def rows_to_add(
    train: pl.DataFrame,
    scored: Sequence[pl.DataFrame],
    scheme: LabelScheme,
    spec: AugmentSpec,
    *,
    choose: SwapChooser | None = None,
) -> pl.DataFrame:
    """Everything that `--augment` adds to the training rows.

    Args:
        train: Training examples.
        scored: Sets that will be scored.
        scheme: Labels.
        spec: What is asked for; its `run` is the caller's business.
        choose: Takes the hard swaps from the candidates; None: those that cover most.

    Returns:
        `EXAMPLE_SCHEMA`: the swapped rows (`<id>~swap0`), under a cap those whose ids have the smallest hashes; then,
        with `balance=sample`, repeated training rows (`<id>~copy0`).

    Raises:
        UserError: `balance=sample` where no training row has the label of the swapped ones.
    """
    added = augment_with_swaps(train, scored, scheme, hard=spec.hard, random=spec.random, choose=choose)
    if spec.cap is not None:
        added = _first_by_hash(added, int(spec.cap / (1 - spec.cap) * train.height + 1e-9))
    if spec.balance == "sample":
        added = pl.concat([added, _repeated(train, added.height, scheme)])
    return added


def _first_by_hash(rows: pl.DataFrame, num_rows: int) -> pl.DataFrame:
    """At most so many rows, in their order: those whose ids have the smallest hashes."""
    draws = pl.Series([stable_unit(example_id, 0) for example_id in rows["example_id"]], dtype=pl.Float64)
    return rows.filter(draws.rank("ordinal") <= num_rows)


def _repeated(train: pl.DataFrame, num_swaps: int, scheme: LabelScheme) -> pl.DataFrame:
    """Copies of rows of the other labels, as many as keep the labels' shares beside so many unsupported rows more."""
    label = train["label"].cast(pl.String)
    num_unsupported = int((label == scheme.unsupported.value).sum())
    if num_swaps and not num_unsupported:
        raise UserError(
            f"--augment balance=sample: no training row is '{scheme.unsupported.value}', the label of swapped rows, so "
            "there is no share to keep; leave balance out"
        )
    copies = [train.clear()]
    for name in scheme.names:
        rows = train.filter(label == name)
        if name == scheme.unsupported.value or rows.is_empty():
            continue
        whole, rest = divmod(round(rows.height * num_swaps / max(1, num_unsupported)), rows.height)
        parts = [rows] * whole + [_first_by_hash(rows, rest)]
        copies += [part.with_columns(pl.format("{}~copy{}", "example_id", pl.lit(n))) for n, part in enumerate(parts)]
    return pl.concat(copies)


def augment_with_swaps(
    train: pl.DataFrame,
    scored: Sequence[pl.DataFrame],
    scheme: LabelScheme,
    *,
    hard: int,
    random: int,
    choose: SwapChooser | None = None,
) -> pl.DataFrame:
    """Training rows to add: entailed rows under other premises of the same law, labelled as unsupported.

    Args:
        train: Training examples; the premises come from here.
        scored: Sets that will be scored; no premise that stands in one of them is taken.
        scheme: Labels.
        hard: Swaps a row that cover most words of the hypothesis.
        random: Random swaps a row, other than the hard ones.
        choose: Takes the hard swaps from `NUM_CANDIDATES` a row instead.

    Returns:
        `EXAMPLE_SCHEMA`, ids `<id>~swap0`, ...; article, clause and the like, rules and ratings are empty.
    """
    keys = [frame.select(comparison_expr(pl.col("premise"))).to_series() for frame in scored]
    seen = pl.concat(keys) if keys else pl.Series(dtype=pl.String)
    pool = train.filter(~comparison_expr(pl.col("premise")).is_in(seen.implode()))
    mined = mine_swaps(train, pool, scheme, num_hard=hard if choose is None else NUM_CANDIDATES)
    if choose is not None:
        mined = choose(train, mined, hard)
    drawn = random_swaps(train, pool, scheme, num=random, same="law", taken=mined)
    swaps = pl.concat([mined, drawn]).sort("example_id", "kind", "order")
    swaps = swaps.with_columns(number=pl.int_range(pl.len()).over("example_id"))
    new = swaps.select("example_id", "number", swapped="premise", swapped_id="premise_id")
    rows = train.join(new, on="example_id", how="inner", maintain_order="left_right").with_columns(
        example_id=pl.format("{}~swap{}", "example_id", "number"),
        premise="swapped",
        premise_id="swapped_id",
        label=pl.lit(scheme.unsupported.value, EXAMPLE_SCHEMA["label"]),
        rule=pl.lit([], EXAMPLE_SCHEMA["rule"]),
        ratings=pl.lit([], EXAMPLE_SCHEMA["ratings"]),
        **{name: pl.lit(None, EXAMPLE_SCHEMA[name]) for name in _PLACE_COLUMNS},  # of the premise that left
    )
    return rows.select(list(EXAMPLE_SCHEMA))


def premise_scores(
    predictions: pl.DataFrame,
    hard_predictions: pl.DataFrame,
    random_predictions: pl.DataFrame,
    scheme: LabelScheme,
    *,
    unit: str | None = None,
) -> dict[str, Any]:
    """Say how far the answers depend on the premise; a model that never looks at it scores 0, 0 and 0.5.

    Args:
        predictions: Answers to the set, as `metrics.score` reads them.
        hard_predictions: Answers to its rows under their hard swap, one a row, under the row's `example_id`.
        random_predictions: The same for the random swap.
        scheme: Labels.
        unit: `swap_unit` of the set, handed on.

    Returns:
        `discrimination` and `random_swap` (share of rows entailed with the own premise and not with the swapped),
        `rank` (own premise above the swapped by the probability of entailment, ties one half; hard swaps),
        `num_rows`, `num_rows_random`, `left_out` (entailed rows without a hard swap), `gain` (null here), `unit`.
        Shares over no rows are null.

    Raises:
        ValueError: swap answers repeat a row, or belong to none of the gold-entailed rows.
    """
    hard = swap_scores(predictions, hard_predictions, scheme)
    drawn = swap_scores(predictions, random_predictions, scheme)
    return {
        "discrimination": hard["discrimination"],
        "random_swap": drawn["discrimination"],
        "rank": hard["rank"],
        "num_rows": hard["num_rows"],
        "num_rows_random": drawn["num_rows"],
        "left_out": hard["left_out"],
        "gain": None,
        "unit": unit,
    }


def swap_scores(predictions: pl.DataFrame, swapped: pl.DataFrame, scheme: LabelScheme) -> dict[str, Any]:
    """The same of one kind of swap: `discrimination`, `rank`, `num_rows`, `left_out`; null over no rows.

    Raises:
        ValueError: as `premise_scores`.
    """
    is_entailed = pl.col("label").cast(pl.String) == scheme.entailed.value
    own = _answers(predictions.filter(is_entailed), scheme, "own")
    pairs = _paired(own, _answers(swapped, scheme, "swapped"))
    turned = pl.col("own_entailed") & ~pl.col("swapped_entailed")
    above = (pl.col("own_score") > pl.col("swapped_score")) + 0.5 * (pl.col("own_score") == pl.col("swapped_score"))
    return {
        "discrimination": pairs.select(turned.mean()).item(),
        "rank": pairs.select(above.mean()).item(),
        "num_rows": pairs.height,
        "left_out": own.height - pairs.height,
    }


def _answers(predictions: pl.DataFrame, scheme: LabelScheme, prefix: str) -> pl.DataFrame:
    entailed = scheme.entailed.value
    answers = predictions.select(
        "example_id",
        (pl.col("predicted").cast(pl.String) == entailed).alias(f"{prefix}_entailed"),
        pl.col(f"prob_{entailed}").fill_nan(None).alias(f"{prefix}_score"),
    )
    if sum(answers.null_count().row(0)):
        raise ValueError(f"predictions with nulls or NaN: {answers.null_count().to_dicts()}")
    if answers["example_id"].n_unique() != answers.height:
        raise ValueError("predictions repeat an example_id; one answer a row and kind of swap")
    return answers


def _paired(own: pl.DataFrame, swapped: pl.DataFrame) -> pl.DataFrame:
    pairs = own.join(swapped, on="example_id", how="inner", maintain_order="left")
    if pairs.height != swapped.height:
        foreign = swapped.join(own, on="example_id", how="anti")["example_id"]
        raise ValueError(f"swap answers to rows that are not gold-entailed: {foreign.head(5).to_list()}")
    return pairs
