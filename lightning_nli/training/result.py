"""From predictions to the scores of `result.json`: does the model read the premise, then accuracy and the rest."""

from __future__ import annotations

import json
import logging
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import polars as pl

from lightning_nli.baselines import hard_rows, hard_scores, hypothesis_only, linear
from lightning_nli.config import cache_root
from lightning_nli.data.readers import fingerprint
from lightning_nli.data.swaps import evaluation_swaps, other_law_swaps, swap_unit
from lightning_nli.data.text import comparison_expr
from lightning_nli.metrics import Scores, score
from lightning_nli.swaps import premise_scores, swap_scores
from lightning_nli.types import LabelScheme, UserError

log = logging.getLogger(__name__)

RESULT_SCHEMA = 1


class Predictor(Protocol):
    """Anything that answers rows: a fine-tuned encoder or a baseline."""

    @property
    def reads_premise(self) -> bool:
        """Whether the premise is among what it sees."""

    def predictions(self, frame: pl.DataFrame) -> pl.DataFrame:
        """The predictions table of `frame`, in row order."""


@dataclass(frozen=True)
class SplitScores:
    """Scores of one scored set.

    Attributes:
        scores: The set's entry in `result.json`.
        predictions: The predictions table, with the answers under swapped premises beside.
    """

    scores: dict[str, Any]
    predictions: pl.DataFrame


@dataclass(frozen=True)
class Judge:
    """Swaps and hard rows fixed once for a pool, of which the scored sets are parts.

    Attributes:
        swaps: `SWAP_SCHEMA` over the pool.
        hard_ids: Ids of the pool's hard rows.
        has_other_law: Whether the kind `other_law` is among the swaps; it is asked for, not part of every score.
    """

    swaps: pl.DataFrame
    hard_ids: frozenset[str]
    has_other_law: bool = False

    @classmethod
    def of(cls, frame: pl.DataFrame, scheme: LabelScheme) -> Judge:
        """The judge of a pool, from the cache if it was asked for before."""
        return cls(cached_swaps(frame, scheme), frozenset(cached_hard_rows(frame, scheme)))

    def part(self, frame: pl.DataFrame) -> Judge:
        """What concerns the rows of `frame`."""
        ids = frame["example_id"]
        swaps = self.swaps.filter(pl.col("example_id").is_in(ids.implode()))
        return replace(self, swaps=swaps, hard_ids=self.hard_ids & set(ids))

    def with_other_law(self, frame: pl.DataFrame, scheme: LabelScheme) -> Judge:
        """The same judge, with the premises of other laws that cover most words of a hypothesis beside.

        Raises:
            UserError: no row of the pool has a law.
        """
        if swap_unit(frame) != "law":
            raise UserError("--swaps other-law: no row of the scored set has a law_id; leave it out")
        return replace(self, swaps=pl.concat([self.swaps, other_law_swaps(frame, frame, scheme)]), has_other_law=True)


def cached_swaps(frame: pl.DataFrame, scheme: LabelScheme) -> pl.DataFrame:
    """The swaps of a scored set, fixed once for its fingerprint and kept in the cache."""
    path = cache_root() / "swaps" / f"{scheme.name}-{fingerprint(frame)}.parquet"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f".{path.name}.{os.getpid()}")
        evaluation_swaps(frame, scheme).write_parquet(partial)
        partial.replace(path)
    return pl.read_parquet(path)


def cached_hard_rows(frame: pl.DataFrame, scheme: LabelScheme) -> list[str]:
    """Ids of the rows that the cross-fitted hypothesis-only model gets wrong, kept in the cache."""
    path = cache_root() / "hard" / f"{scheme.name}-{fingerprint(frame)}.json"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f".{path.name}.{os.getpid()}")
        partial.write_text(json.dumps(hard_rows(frame, scheme)), encoding="utf-8")
        partial.replace(path)
    ids: list[str] = json.loads(path.read_text(encoding="utf-8"))
    return ids


def score_split(
    predictor: Predictor, frame: pl.DataFrame, scheme: LabelScheme, train: pl.DataFrame, judge: Judge | None = None
) -> SplitScores:
    """All scores of one set.

    Args:
        predictor: The model.
        frame: Labelled rows.
        scheme: Labels.
        train: The run's training rows, for the hypothesis-only baseline.
        judge: Swaps and hard rows of the pool that `frame` is part of; None: those of `frame`.
    """
    predictions = predictor.predictions(frame)
    judge = judge.part(frame) if judge else Judge.of(frame, scheme)
    swaps = judge.swaps
    kinds = ("hard", "random", "other_law") if judge.has_other_law else ("hard", "random")
    swapped = {kind: swapped_rows(frame, swaps.filter(pl.col("kind") == kind)) for kind in kinds}
    answers = {
        # Blind to the premise, its answer is the same by definition: rounding in another pack must not say otherwise.
        kind: predictor.predictions(rows) if predictor.reads_premise else predictions.join(rows, "example_id", "semi")
        for kind, rows in swapped.items()
    }
    scores = score(predictions, scheme).as_dict()
    scores["premise"] = premise_scores(predictions, answers["hard"], answers["random"], scheme, unit=swap_unit(frame))
    if judge.has_other_law:
        scores["held_out_swaps"] = {"other_law": swap_scores(predictions, answers["other_law"], scheme)}
    baseline = hypothesis_only(train, frame, scheme)
    scores["hard"] = hard_scores(predictions, sorted(judge.hard_ids), baseline, scheme)
    scores["hypothesis_only"] = _figures(score(baseline, scheme), ("accuracy", "macro_f1"))
    scores["linear"] = linear_scores(train, frame, scheme)
    scores["unseen"] = unseen_scores(train, frame, predictions, scheme)
    entailed = f"prob_{scheme.entailed.value}"
    table = predictions
    for kind, answer in answers.items():
        columns = answer.select(
            "example_id",
            pl.col(entailed).alias(f"{kind}_swap_{entailed}"),
            pl.col("predicted").alias(f"{kind}_swap_predicted"),
        )
        premises = swaps.filter(pl.col("kind") == kind).select("example_id", pl.col("premise_id").alias(f"{kind}_swap"))
        table = table.join(columns, on="example_id", how="left", maintain_order="left")
        table = table.join(premises, on="example_id", how="left", maintain_order="left")
    return SplitScores(scores, table)


_SHORT = ("num_examples", "accuracy", "macro_precision", "macro_recall", "macro_f1", "group_accuracy", "num_groups")
_LINEAR = (("premise",), ("condition", "premise"))


def _figures(scores: Scores, names: Sequence[str] = _SHORT) -> dict[str, Any]:
    return {name: getattr(scores, name) for name in names}


def linear_scores(train: pl.DataFrame, frame: pl.DataFrame, scheme: LabelScheme) -> dict[str, dict[str, Any]]:
    """What linear models that never see the hypothesis reach, by the texts that they read.

    Only where every row has a condition: a premise that all labels share gives nothing away.
    """
    if train["condition"].null_count() + frame["condition"].null_count() or frame.is_empty():
        return {}
    return {",".join(read): _figures(score(linear(train, frame, scheme, segments=read), scheme)) for read in _LINEAR}


def unseen_scores(
    train: pl.DataFrame, frame: pl.DataFrame, predictions: pl.DataFrame, scheme: LabelScheme
) -> dict[str, dict[str, Any]]:
    """Scores of the rows whose texts training does not have, compared without case, spaces and punctuation.

    Args:
        train: The run's training rows.
        frame: Scored rows.
        predictions: Answers to them.
        scheme: Labels.

    Returns:
        `hypothesis`: of the rows whose hypothesis is new, without any group of which training has a hypothesis;
        `hypothesis,premise`: of the rows of which both are new, groups apart (these are parts of groups). Each with the
        share of the rows' commonest label as `majority`.
    """
    is_new = {
        name: ~frame.select(key).to_series().is_in(train.select(key).to_series().implode())
        for name in ("hypothesis", "premise")
        for key in [comparison_expr(pl.col(name))]
    }
    known_groups = frame.filter(~is_new["hypothesis"])["group_id"].drop_nulls().implode()
    in_new_group = ~frame["group_id"].is_in(known_groups).fill_null(False)
    kept = {
        "hypothesis": (is_new["hypothesis"] & in_new_group, _SHORT),
        "hypothesis,premise": (is_new["hypothesis"] & is_new["premise"], _SHORT[:-2]),
    }
    found = {}
    for name, (is_kept, figures) in kept.items():
        part = predictions.join(frame.filter(is_kept), on="example_id", how="semi")
        counts = part.group_by("label").len()["len"].to_list()
        majority = max(counts) / part.height if counts else None
        found[name] = _figures(score(part, scheme), figures) | {"majority": majority}
    return found


def swapped_rows(frame: pl.DataFrame, swaps: pl.DataFrame) -> pl.DataFrame:
    """The rows that have a swap, under the swapped premise."""
    new = swaps.select("example_id", pl.col("premise").alias("_premise"), pl.col("premise_id").alias("_premise_id"))
    joined = frame.join(new, on="example_id", how="inner", maintain_order="left")
    return joined.with_columns(premise="_premise", premise_id="_premise_id").drop("_premise", "_premise_id")


def premise_gain(scores: SplitScores, twin_folder: Path, name: str) -> float | None:
    """Accuracy minus that of the same recipe on hypotheses only, over the rows of both; None until that run exists."""
    path = twin_folder / "predictions" / f"{name}.parquet"
    if not (twin_folder / "result.json").exists() or not path.exists():
        return None
    twin = pl.read_parquet(path).select("example_id", blind=pl.col("predicted") == pl.col("label"))
    own = scores.predictions.select("example_id", right=pl.col("predicted") == pl.col("label"))
    paired = own.join(twin, on="example_id", how="inner")
    if paired.height != own.height:
        return None
    return float(paired.select(pl.col("right").mean() - pl.col("blind").mean()).item())


def write_result(folder: Path, result: dict[str, Any]) -> None:
    """Write `result.json` by rename.

    Raises:
        ValueError: a score is NaN or infinite (missing is null).
    """
    _refuse_nan(result, "result")
    partial = folder / f".result.json.{os.getpid()}"
    partial.write_text(json.dumps(result, indent=1, ensure_ascii=False, allow_nan=False), encoding="utf-8")
    partial.replace(folder / "result.json")


def read_result(folder: Path) -> dict[str, Any]:
    """The run's `result.json`.

    Raises:
        UserError: there is none, or it is of another schema.
    """
    path = folder / "result.json"
    if not path.exists():
        raise UserError(f"{folder} holds no finished run (no result.json)")
    result: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    if result.get("schema") != RESULT_SCHEMA:
        raise UserError(f"{path} has schema {result.get('schema')}, this version reads {RESULT_SCHEMA}")
    return result


def _refuse_nan(value: Any, where: str) -> None:
    if isinstance(value, dict):
        for name, inner in value.items():
            _refuse_nan(inner, f"{where}.{name}")
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            _refuse_nan(inner, f"{where}[{index}]")
    elif isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{where} is {value}; missing scores are null")
