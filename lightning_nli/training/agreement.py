"""What all processes of a run must decide alike: small numbers over a CPU group, without waiting for a GPU."""

from __future__ import annotations

from typing import Any

import pytorch_lightning as pl
import torch
import torch.distributed as dist


class Agreement:
    """Decisions that every process takes alike. Every process must ask the same questions in the same order.

    Args:
        trainer: Of a run whose process group is set up.
    """

    def __init__(self, trainer: pl.Trainer) -> None:
        self.world_size = trainer.world_size
        self._group: Any = None
        if self.world_size > 1 and dist.get_backend() != "gloo":
            self._group = dist.new_group(backend="gloo")

    def largest(self, *values: float) -> list[float]:
        """The largest of each value over all processes."""
        if self.world_size == 1:
            return list(values)
        shared = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(shared, dist.ReduceOp.MAX, group=self._group)
        largest: list[float] = shared.tolist()
        return largest

    def any(self, flag: bool) -> bool:
        """Whether the flag is set on any process."""
        return self.largest(float(flag))[0] > 0
