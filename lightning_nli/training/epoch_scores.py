"""Scores of `id_val` after every epoch that the epoch's own counts do not give: `id_val/premise.discrimination`, ..."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pytorch_lightning as lightning
from pytorch_lightning.callbacks import Callback

from lightning_nli.config import ExperimentConfig, cache_root
from lightning_nli.config_monitor import MONITOR_PREFIX, check_monitor
from lightning_nli.data.tokenization import EncoderSpec, TokenizedSplit, tokenize_split
from lightning_nli.training.corpora import VAL_NAME, RunData
from lightning_nli.training.result import Judge, score_split, swapped_rows
from lightning_nli.training.scoring import Scorer
from lightning_nli.types import UserError

COUNTED = frozenset(f"{MONITOR_PREFIX}{name}" for name in ("accuracy", "macro_f1", "loss"))
"""What validation logs anyway."""


@dataclass(frozen=True)
class RunWatch:
    """What somebody who watches a run wants of it.

    Attributes:
        metrics: Scores of `id_val` to log after every epoch, beside the one that chooses the checkpoint.
        callbacks: Called after the run's own, so that an epoch's checkpoint is there.
        scored: Names of the sets to score in the end; None for all.
    """

    metrics: tuple[str, ...] = ()
    callbacks: tuple[Callback, ...] = field(default=())
    scored: tuple[str, ...] | None = None


def find_score(scores: dict[str, Any], metric: str) -> float | None:
    """`id_val/premise.rank` in the scores of `id_val`; None where it is null or absent."""
    value: Any = scores
    for part in metric.removeprefix(MONITOR_PREFIX).split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return None if value is None else float(value)


def _extra_metrics(config: ExperimentConfig, watch: RunWatch | None, *, has_val: bool) -> list[str]:
    """Scores that must be computed after every epoch.

    Raises:
        UserError: one is no score, or the weights are spread over processes.
    """
    wanted = [config.checkpoints.monitor, *(watch.metrics if watch else ())] if has_val else []
    extra = [check_monitor(name) for name in dict.fromkeys(wanted) if name not in COUNTED]
    if extra and config.engine.strategy == "deepspeed_stage_3":
        raise UserError(
            f"--monitor {extra[0]} needs the whole model after every epoch, which --strategy deepspeed_stage_3 has in "
            "parts; take deepspeed_stage_2, or monitor id_val/macro_f1"
        )
    return extra


def swapped_tokens(
    config: ExperimentConfig, data: RunData, spec: EncoderSpec, watch: RunWatch | None
) -> list[TokenizedSplit]:
    """Ids of `id_val` under its swapped premises, where epochs are scored so: a trimmed vocabulary must have them."""
    if not _extra_metrics(config, watch, has_val=data.has_val):
        return []
    frame = data.scored[VAL_NAME]
    swaps = Judge.of(frame, data.scheme).swaps
    kinds = swaps["kind"].unique(maintain_order=True)
    return [
        tokenize_split(swapped_rows(frame, swaps.filter(pl.col("kind") == kind)), spec, data.scheme, cache=cache_root())
        for kind in kinds
    ]


def watch_epochs(
    trainer: lightning.Trainer,
    config: ExperimentConfig,
    data: RunData,
    spec: EncoderSpec,
    first_position: int,
    remap: npt.NDArray[np.int64] | None,
    watch: RunWatch | None,
) -> None:
    """Give the trainer what scores its epochs and what is told of them."""
    extra = _extra_metrics(config, watch, has_val=data.has_val)
    if extra:
        trainer.callbacks.insert(  # type: ignore[attr-defined]
            0, EpochScores(extra, data, spec, first_position, config.packing.eval_max_tokens, remap)
        )
    if watch:
        trainer.callbacks.extend(watch.callbacks)  # type: ignore[attr-defined]


def sets_to_score(data: RunData, watch: RunWatch | None) -> RunData:
    """The run's rows, with those sets alone that are to be scored in the end."""
    if watch is None or watch.scored is None:
        return data
    return replace(data, scored={name: rows for name, rows in data.scored.items() if name in watch.scored})


class EpochScores(Callback):
    """Scores `id_val` in full with the model as it is, and logs what was asked for.

    Args:
        metrics: Scores to log.
        data: Rows of the run.
        spec: Text to ids.
        first_position: Position of a segment's first token.
        max_tokens: Tokens per pack.
        remap: New id of every token id, where the vocabulary is trimmed.
    """

    def __init__(
        self,
        metrics: Sequence[str],
        data: RunData,
        spec: EncoderSpec,
        first_position: int,
        max_tokens: int,
        remap: npt.NDArray[np.int64] | None,
    ) -> None:
        self.metrics, self.data = tuple(metrics), data
        self.spec, self.first_position, self.max_tokens, self.remap = spec, first_position, max_tokens, remap

    def on_validation_epoch_end(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        scorer = Scorer(
            encoder=pl_module,
            spec=self.spec,
            scheme=self.data.scheme,
            first_position=self.first_position,
            max_tokens=self.max_tokens,
            device=trainer.strategy.root_device,
            cache=cache_root(),
            remap=self.remap,
        )
        frame = self.data.scored[VAL_NAME]
        scores = score_split(scorer, frame, self.data.scheme, self.data.published_train).scores
        for metric in self.metrics:
            value = find_score(scores, metric)
            pl_module.log(metric, float("nan") if value is None else value, batch_size=1)
