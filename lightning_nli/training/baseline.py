"""Models without an encoder, as a run trains and scores them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import polars as pl

from lightning_nli import baselines
from lightning_nli.config import ExperimentConfig
from lightning_nli.training.corpora import RunData

_METHODS: dict[str, tuple[Callable[..., pl.DataFrame], tuple[str, ...]]] = {  # and the texts that each reads
    "majority": (baselines.majority, ()),
    "hyponly-v1": (baselines.hypothesis_only, ("hypothesis",)),
    "overlap-v1": (baselines.overlap, ("hypothesis", "premise")),
}


@dataclass(frozen=True)
class BaselinePredictor:
    """A baseline that trains on the run's training rows and answers any rows of the same scheme.

    Attributes:
        method: Training rows, rows to answer, scheme -> predictions table.
        segments: Texts that it reads.
        data: Rows of the run.
    """

    method: Callable[..., pl.DataFrame]
    segments: tuple[str, ...]
    data: RunData

    @classmethod
    def of(cls, config: ExperimentConfig, data: RunData) -> BaselinePredictor:
        """The baseline that `--method` names."""
        if config.method == "linear-v1":
            return cls(partial(baselines.linear, segments=data.segments), data.segments, data)
        method, segments = _METHODS[config.method]
        return cls(method, segments, data)

    @property
    def reads_premise(self) -> bool:
        return "premise" in self.segments

    def predictions(self, frame: pl.DataFrame) -> pl.DataFrame:
        return self.method(self.data.published_train, frame, self.data.scheme)
