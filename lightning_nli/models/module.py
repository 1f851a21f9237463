"""Loss and logging around an encoder; no data, no files. Works with a plain Lightning `Trainer`.

Shape suffixes: S segments, C labels.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytorch_lightning as pl
import torch
from torch import Tensor, nn

from lightning_nli.batch import PackedBatch
from lightning_nli.config import OptimConfig
from lightning_nli.epoch_metrics import EpochMetrics, GroupAccuracy
from lightning_nli.models.objectives import Objective
from lightning_nli.models.optim import build_optimizer, build_schedule
from lightning_nli.types import LabelScheme

VAL_PREFIX = "id_val"


class NLIModule(pl.LightningModule):
    """A natural language inference classifier over packed batches.

    Args:
        encoder: Maps a `PackedBatch` to (S, C) logits.
        scheme: Labels in logit order.
        optim: AdamW and schedule.
        seed: Of dropout, which is seeded at every micro-step from (seed, rank, micro-step).
        compute_dtype: bf16 mode: forward and backward run on bf16 copies of the fp32 weights, gradients are summed in
            fp32. None computes in the weights' own type.
        checkpoint_extras: Plain values stored beside the weights in every checkpoint.
        objective: Training loss, by default cross-entropy.
        val_groups: (rows,) group of each validation row (`metrics.group_indices`); None: no group accuracy.
    """

    def __init__(
        self,
        encoder: nn.Module,
        scheme: LabelScheme,
        optim: OptimConfig,
        *,
        seed: int = 1,
        compute_dtype: torch.dtype | None = None,
        checkpoint_extras: dict[str, Any] | None = None,
        objective: Objective | None = None,
        val_groups: npt.NDArray[np.int64] | None = None,
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.scheme, self.optim, self.seed = scheme, optim, seed
        self.compute_dtype = compute_dtype
        self.checkpoint_extras = checkpoint_extras or {}
        self.objective = objective or Objective()
        self.val_metrics = EpochMetrics(scheme)
        self.test_metrics = EpochMetrics(scheme)
        self.val_group_accuracy: GroupAccuracy | None = None
        if val_groups is not None and (val_groups >= 0).any():
            self.val_group_accuracy = GroupAccuracy(val_groups)
        self._step_loss: Tensor | None = None

    def forward(self, batch: PackedBatch) -> Tensor:
        """(S, C) fp32 logits."""
        if self.compute_dtype is None:
            logits_SC: Tensor = self.encoder(batch)
            return logits_SC.float()
        cast = {
            name: value.to(self.compute_dtype) if value.is_floating_point() else value
            for name, value in self.encoder.named_parameters()
        }
        return torch.func.functional_call(self.encoder, cast, (batch,)).float()  # type: ignore[no-any-return]

    def training_step(self, batch: PackedBatch, batch_idx: int) -> Tensor:
        self._seed_dropout(batch_idx)
        share = self.objective.share(self(batch), batch, self._sum_over_ranks)
        self._step_loss = share.detach() if self._step_loss is None else self._step_loss + share.detach()
        averaged_away = self.trainer.world_size * self.trainer.accumulate_grad_batches
        return share * averaged_away

    def _sum_over_ranks(self, values: Tensor) -> Tensor:
        return self.trainer.strategy.reduce(values, reduce_op="sum")  # type: ignore[return-value]

    def _seed_dropout(self, batch_idx: int) -> None:
        micro_step = self.current_epoch * int(self.trainer.num_training_batches) + batch_idx
        mixed = (self.seed * 1_000_003 + self.global_rank) * 2_147_483_629 + micro_step
        torch.manual_seed(mixed % 2**63)

    def on_train_batch_end(self, outputs: Any, batch: PackedBatch, batch_idx: int) -> None:
        if (batch_idx + 1) % self.trainer.accumulate_grad_batches:
            return
        loss, self._step_loss = self._step_loss, None
        if loss is not None and self.global_step % self.trainer.log_every_n_steps == 0:  # type: ignore[attr-defined]
            total = self.trainer.strategy.reduce(loss, reduce_op="sum")
            self.log("train/loss", total, batch_size=1, rank_zero_only=True)
            self.log("train/lr", self.trainer.optimizers[0].param_groups[0]["lr"], batch_size=1, rank_zero_only=True)

    def validation_step(self, batch: PackedBatch, batch_idx: int) -> None:
        logits = self(batch)
        self.val_metrics.update(logits, batch.labels)
        if self.val_group_accuracy is not None:
            self.val_group_accuracy.update(logits, batch.labels, batch.example_ids)

    def on_validation_epoch_end(self) -> None:
        self._log_metrics(self.val_metrics, VAL_PREFIX)
        if self.val_group_accuracy is not None:
            self._log_metrics(self.val_group_accuracy, VAL_PREFIX)

    def test_step(self, batch: PackedBatch, batch_idx: int) -> None:
        self.test_metrics.update(self(batch), batch.labels)

    def on_test_epoch_end(self) -> None:
        self._log_metrics(self.test_metrics, "test")

    def _log_metrics(self, metrics: EpochMetrics | GroupAccuracy, prefix: str) -> None:
        values = metrics.compute()
        metrics.reset()
        for name, value in values.items():
            self.log(f"{prefix}/{name}", value, batch_size=1)

    def predict_step(self, batch: PackedBatch, batch_idx: int) -> tuple[Tensor, Tensor]:
        """(S,) source rows, -1 in a ghost, and (S, C) fp32 logits."""
        return batch.example_ids, self(batch)

    def configure_optimizers(self) -> Any:
        optimizer = build_optimizer(self, self.optim, fused="mixed" not in str(self.trainer.precision))
        planned = getattr(getattr(self.trainer, "datamodule", None), "num_optimizer_steps", None)
        num_steps = planned() if planned is not None else int(self.trainer.estimated_stepping_batches)
        schedule = build_schedule(optimizer, self.optim, num_steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        state = self.objective.state()
        checkpoint["lightning_nli"] = self.checkpoint_extras | ({"objective": state} if state else {})

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.objective.load_state(checkpoint["lightning_nli"].get("objective", {}))
