"""A trained model over rows: logits in row order, from one or many processes, and the predictions table.

Shape suffixes: R rows, C labels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import torch
import torch.distributed as dist
from torch import nn

from lightning_nli.data.packing import collate_pack, plan_evaluation
from lightning_nli.data.tokenization import EncoderSpec, TokenizedSplit, class_indices, tokenize_split
from lightning_nli.types import LabelScheme

Progress = Callable[[int], None]


@dataclass
class Scorer:
    """A trained encoder with everything needed to score raw rows.

    Attributes:
        encoder: Maps a `PackedBatch` to (S, C) logits.
        spec: Text to ids.
        scheme: Labels in logit order.
        first_position: Position of a segment's first token.
        max_tokens: Tokens per pack.
        device: Where it runs.
        cache: Token cache, or None.
        remap: New id of every token id, where the model's vocabulary is trimmed.
    """

    encoder: nn.Module
    spec: EncoderSpec
    scheme: LabelScheme
    first_position: int
    max_tokens: int
    device: torch.device
    cache: Path | None = None
    remap: npt.NDArray[np.int64] | None = None

    @property
    def model(self) -> Any:
        return self.encoder.model

    @property
    def reads_premise(self) -> bool:
        return "premise" in self.spec.segments

    def logits(self, frame: pl.DataFrame, progress: Progress | None = None) -> npt.NDArray[np.float32]:
        """(R, C) fp32 logits in row order. In a distributed run every process scores its share and gets all rows."""
        return self.split_logits(tokenize_split(frame, self.spec, self.scheme, cache=self.cache), progress)

    @torch.inference_mode()
    def split_logits(self, split: TokenizedSplit, progress: Progress | None = None) -> npt.NDArray[np.float32]:
        """As `logits`, of a split that is tokenized already."""
        distributed = dist.is_available() and dist.is_initialized()
        rank, world_size = (dist.get_rank(), dist.get_world_size()) if distributed else (0, 1)
        logits_RC = torch.zeros(len(split), len(self.scheme.labels), device=self.device)
        self.encoder.eval()
        for ranks in plan_evaluation(split.lengths, max_tokens=self.max_tokens, world_size=world_size):
            if not ranks[rank].rows:
                continue
            batch = collate_pack(split, ranks[rank], first_position=self.first_position, remap=self.remap)
            batch = batch.to(self.device)
            logits_RC[batch.example_ids] = self.encoder(batch).float()
            if progress is not None:
                progress(batch.num_segments * world_size)
        if distributed and world_size > 1:
            dist.all_reduce(logits_RC)  # every row was filled by exactly one process, the others hold zeros
        values: npt.NDArray[np.float32] = logits_RC.cpu().numpy()
        return values

    def predictions(self, frame: pl.DataFrame, progress: Progress | None = None) -> pl.DataFrame:
        """The predictions table, with the tokens of each row before truncation."""
        split = tokenize_split(frame, self.spec, self.scheme, cache=self.cache)
        table = answer_table(frame, self.split_logits(split, progress), self.scheme)
        return table.with_columns(num_tokens=split.whole_lengths)


def answer_table(frame: pl.DataFrame, logits: npt.NDArray[np.float32], scheme: LabelScheme) -> pl.DataFrame:
    """The predictions table of `metrics.score`, with the exact cross-entropy of each gold label (null without one)."""
    log_probabilities = torch.from_numpy(np.array(logits)).double().log_softmax(-1).numpy()
    gold = class_indices(frame, scheme)
    loss = -log_probabilities[np.arange(len(gold)), np.maximum(gold, 0)]
    return frame.select("example_id", "label", "group_id").with_columns(
        pl.Series("predicted", [scheme.names[index] for index in log_probabilities.argmax(-1)], pl.String),
        *(
            pl.Series(f"prob_{name}", np.exp(log_probabilities[:, i]), pl.Float32)
            for i, name in enumerate(scheme.names)
        ),
        pl.Series("loss", np.where(gold >= 0, loss, np.nan), pl.Float64).fill_nan(None),
    )
