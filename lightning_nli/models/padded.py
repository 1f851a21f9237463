"""The padded road: for encoders whose attention cannot be replaced, and the reference for tests of packing."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from lightning_nli.batch import PackedBatch


class PaddedEncoder(nn.Module):
    """Pads the segments of a pack and runs the library's own model as it comes."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: PackedBatch) -> Tensor:
        """(S, C) logits."""
        lengths = batch.cu_seqlens.diff().long()
        slots = torch.arange(batch.max_seqlen, device=lengths.device)
        attention_mask = slots < lengths[:, None]

        def pad(values: Tensor, fill: int) -> Tensor:
            block = values.new_full(attention_mask.shape, fill)
            block[attention_mask] = values
            return block

        padding = self.model.get_input_embeddings().padding_idx  # follows a trimmed vocabulary, the config does not
        if padding is None:
            padding = self.model.config.pad_token_id or 0
        inputs = {
            "input_ids": pad(batch.input_ids, padding),
            "attention_mask": attention_mask.long(),
        }
        if batch.token_type_ids is not None:
            inputs["token_type_ids"] = pad(batch.token_type_ids, 0)
        logits: Tensor = self.model(**inputs).logits
        return logits
