"""The torch half of `metrics.py`: counts gathered batch by batch, over all processes."""

from __future__ import annotations

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
