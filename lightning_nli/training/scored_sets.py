"""All sets of a run scored: each by itself, against the twin on hypotheses alone, and at the threshold of `id_val`."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

import polars as pl

from lightning_nli.config import ExperimentConfig, hypothesis_only_twin, run_folder
from lightning_nli.training.corpora import VAL_NAME, RunData
from lightning_nli.training.result import Judge, Predictor, SplitScores, premise_gain, score_split
from lightning_nli.training.threshold import DEFAULT_MIX, Threshold, calibrated_scores, choose_threshold
from lightning_nli.types import LabelScheme

log = logging.getLogger(__name__)


def score_sets(
    predictor: Predictor, data: RunData, config: ExperimentConfig, judges: Mapping[str, Judge] | None = None
) -> dict[str, SplitScores]:
    """Scores of every set of `data.scored`, without those at another threshold.

    Args:
        predictor: The model.
        data: Rows of the run.
        config: Of the run: which twin it has, and whether it trained on swaps.
        judges: Swaps and hard rows by set; a set that is not there has its own.
    """
    twin = run_folder(hypothesis_only_twin(config))
    found = {}
    for name, frame in data.scored.items():
        log.info("scoring %s: %d rows, and its entailed rows under swapped premises", name, frame.height)
        judge = None if judges is None else judges.get(name)
        scored = score_split(predictor, frame, data.scheme, data.published_train, judge)
        scored.scores["premise"]["gain"] = premise_gain(scored, twin, name)
        scored.scores["premise"]["trained_on_swaps"] = config.augment != "none"
        found[name] = scored
    return found


def add_calibrated(scored: Mapping[str, SplitScores], scheme: LabelScheme, threshold: Threshold | None) -> None:
    """Put the scores at a threshold beside the others; null without one."""
    for one in scored.values():
        one.scores["calibrated"] = None if threshold is None else calibrated_scores(one.predictions, scheme, threshold)


def threshold_of(
    scored: Mapping[str, SplitScores], scheme: LabelScheme, *, mix: float = DEFAULT_MIX, folder: Path | None = None
) -> Threshold | None:
    """The threshold that `id_val` chooses: as it was scored now, else as its predictions stand in a run folder."""
    if VAL_NAME in scored:
        return choose_threshold(scored[VAL_NAME].predictions, scheme, mix)
    path = None if folder is None else folder / "predictions" / f"{VAL_NAME}.parquet"
    return choose_threshold(pl.read_parquet(path), scheme, mix) if path is not None and path.exists() else None
