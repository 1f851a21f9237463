"""The torch half of `metrics.py`: counts gathered batch by batch, over all processes."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812
from torchmetrics import Metric

from lightning_nli.metrics import scores_from_confusion
from lightning_nli.types import IGNORE_INDEX, LabelScheme


class EpochMetrics(Metric):
    """Accuracy, macro-F1 and mean loss of everything seen since `reset`, over all processes.

    The states are sums, so batch sizes, uneven shares of rows and the number of processes change nothing.

    Args:
        scheme: Labels, in the order of the logits.
    """

    full_state_update = False
    confusion: Tensor  # (C, C) int64, rows gold, columns predicted
    loss_sum: Tensor  # () float64, nats

    def __init__(self, scheme: LabelScheme) -> None:
        super().__init__()
        self.scheme = scheme
        size = len(scheme.labels)
        self.add_state("confusion", torch.zeros(size, size, dtype=torch.int64), dist_reduce_fx="sum")
        self.add_state("loss_sum", torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")

    def update(self, logits: Tensor, labels: Tensor) -> None:
        """Count one batch, without waiting for the device.

        Args:
            logits: (S, C), any floating type.
            labels: (S,) int64; rows of `IGNORE_INDEX` are not counted.
        """
        logits = logits.detach().double()
        is_scored = labels != IGNORE_INDEX
        cell = torch.where(is_scored, labels * len(self.scheme.labels) + logits.argmax(dim=-1), 0)
        counts = torch.zeros_like(self.confusion).view(-1).scatter_add_(0, cell, is_scored.long())
        self.confusion = self.confusion + counts.view_as(self.confusion)
        self.loss_sum = self.loss_sum + F.cross_entropy(logits, labels, ignore_index=IGNORE_INDEX, reduction="sum")

    def compute(self) -> dict[str, float]:
        """`accuracy`, `macro_f1` and `loss`; empty if no row was scored (a missing number is never 0).

        Raises:
            ValueError: the loss is not finite.
        """
        scores = scores_from_confusion(self.confusion.cpu().numpy(), self.scheme, float(self.loss_sum))
        values = {"accuracy": scores.accuracy, "macro_f1": scores.macro_f1, "loss": scores.loss}
        return {name: value for name, value in values.items() if value is not None}


class GroupAccuracy(Metric):
    """Share of groups whose every row is right, of everything seen since `reset`, over all processes.

    The states count, for each group, rows seen and rows wrong: a group whose rows lie in several batches or processes
    is judged once, by all of them.

    Args:
        groups: (R,) group of each row of the source frame, counted from 0 (`metrics.group_indices`); -1 for no group.
        kwargs: What every metric of torchmetrics takes.
    """

    full_state_update = False
    row_groups: Tensor  # (R,) int64, -1 for no group
    num_rows: Tensor  # (G,) int64
    num_wrong: Tensor  # (G,) int64

    def __init__(self, groups: npt.NDArray[np.int64], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        size = int(groups.max(initial=-1)) + 1
        self.register_buffer("row_groups", torch.from_numpy(groups), persistent=False)
        self.add_state("num_rows", torch.zeros(size, dtype=torch.int64), dist_reduce_fx="sum")
        self.add_state("num_wrong", torch.zeros(size, dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, logits: Tensor, labels: Tensor, example_ids: Tensor) -> None:
        """Count one batch, without waiting for the device.

        Args:
            logits: (S, C), any floating type.
            labels: (S,) int64; rows of `IGNORE_INDEX` are not counted.
            example_ids: (S,) int64 row of the source frame; -1 in a ghost.
        """
        groups = self.row_groups[example_ids.clamp(min=0)]
        is_counted = (labels != IGNORE_INDEX) & (example_ids >= 0) & (groups >= 0)
        is_wrong = is_counted & (logits.detach().argmax(dim=-1) != labels)
        places = groups.clamp(min=0)
        self.num_rows = self.num_rows.scatter_add(0, places, is_counted.long())
        self.num_wrong = self.num_wrong.scatter_add(0, places, is_wrong.long())

    def compute(self) -> dict[str, float]:
        """`group_accuracy` and `num_groups`; empty if no row of a group was counted."""
        is_seen = self.num_rows > 0
        num_groups = int(is_seen.sum())
        if not num_groups:
            return {}
        num_right = int((is_seen & (self.num_wrong == 0)).sum())
        return {"group_accuracy": num_right / num_groups, "num_groups": num_groups}
