"""What one forward pass sees."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedBatch:
    """S premise-hypothesis segments laid end to end in one row of T tokens, no padding."""

    input_ids: Tensor  # (T,) int64
    position_ids: Tensor  # (T,) int64, restarts with every segment (RoBERTa family: at pad_id + 1)
    token_type_ids: Tensor | None  # (T,) int64, for BERT and ELECTRA layouts
    cu_seqlens: Tensor  # (S+1,) int32, from 0 to T, strictly increasing
    max_seqlen: int  # longest segment, measured on the CPU: no device sync in forward
    labels: Tensor  # (S,) int64, IGNORE_INDEX where a segment is not scored
    example_ids: Tensor  # (S,) int64, row of the source frame; -1 in a ghost
    step_num_segments: int  # scored segments in the whole optimizer step, over all ranks

    @property
    def num_segments(self) -> int:
        return int(self.labels.shape[0])

    @property
    def num_tokens(self) -> int:
        return int(self.input_ids.shape[0])

    @property
    def is_ghost(self) -> bool:
        """Whether the batch only keeps this rank in step with the others (no loss, no metric)."""
        return self.num_segments == 1 and int(self.example_ids[0]) < 0

    def _map_tensors(self, change: Any) -> PackedBatch:
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        return replace(self, **{name: change(value) for name, value in values.items() if isinstance(value, Tensor)})

    def to(self, device: torch.device | str, non_blocking: bool = False) -> PackedBatch:
        return self._map_tensors(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> PackedBatch:
        return self._map_tensors(lambda tensor: tensor.pin_memory())
