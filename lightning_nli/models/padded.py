"""The padded road: for encoders whose attention cannot be replaced, and the reference for tests of packing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from lightning_nli.batch import PackedBatch
from lightning_nli.models.chunks import ChunkPooling


class PaddedEncoder(nn.Module):
    """Pads the segments of a pack and runs the library's own model as it comes."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        self.chunks: ChunkPooling | None = None

    def forward(self, batch: PackedBatch) -> Tensor:
        """(S, C) logits."""
        return self._logits(batch) if self.chunks is None else self.chunks.logits(self._logits, batch)

    def _logits(self, batch: PackedBatch) -> Tensor:
        logits: Tensor = self.model(**self.padded_inputs(batch)).logits
        return logits

    def padded_inputs(self, batch: PackedBatch) -> dict[str, Tensor]:
        """What the library's model is called with: (S, longest segment) ids, mask and token types."""
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
        return inputs


class LongformerEncoder(PaddedEncoder):
    """Longformer: as padded, with global attention on the first token and on chosen ones.

    The library pads the rows further to whole attention windows and takes that padding off again.

    Args:
        model: A Longformer classifier.
        global_token_ids: Tokens, beside the first of a segment, that see and are seen by all others (marker tokens);
            ids as they stand in the batch.
    """

    def __init__(self, model: Any, global_token_ids: Sequence[int] = ()) -> None:
        super().__init__(model)
        self.global_token_ids = tuple(global_token_ids)

    def padded_inputs(self, batch: PackedBatch) -> dict[str, Tensor]:
        """As the padded road's, with the mask of global tokens."""
        inputs = super().padded_inputs(batch)
        chosen = torch.tensor(self.global_token_ids, dtype=torch.long, device=batch.input_ids.device)
        is_global = torch.isin(inputs["input_ids"], chosen) & inputs["attention_mask"].bool()
        is_global[:, 0] = True
        return inputs | {"global_attention_mask": is_global.long()}
