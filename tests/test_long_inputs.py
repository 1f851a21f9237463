"""Packed inputs of up to 4,096 tokens: the logits of the library's padded call."""

from __future__ import annotations

import pytest
import torch
from tiny_models import SIZES
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    ModernBertConfig,
    ModernBertForSequenceClassification,
)

from lightning_nli.batch import PackedBatch
from lightning_nli.models.attention import AttentionBackend
from lightning_nli.models.encoder import PackedEncoder
from lightning_nli.models.padded import PaddedEncoder

LONGEST = 4096
NUM_WORDS = 200


def make_model(family: str):
    torch.manual_seed(0)
    sizes = SIZES | {"vocab_size": NUM_WORDS, "max_position_embeddings": LONGEST, "num_labels": 3}
    sizes |= {"initializer_range": 0.3, "num_attention_heads": 2, "pad_token_id": 0}
    if family == "bert":
        return BertForSequenceClassification(BertConfig(**sizes)).eval()
    ends = dict.fromkeys(("bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id"), 1)
    return ModernBertForSequenceClassification(ModernBertConfig(**sizes, **ends, local_attention=32)).eval()


@pytest.mark.parametrize("family", ["bert", "modernbert"])
def test_packed_equals_padded_up_to_4096_tokens(family):
    lengths = [LONGEST, 1500, 17, 600]
    ids = torch.randint(2, NUM_WORDS, (sum(lengths),), generator=torch.Generator().manual_seed(1))
    batch = PackedBatch(
        input_ids=ids,
        position_ids=torch.cat([torch.arange(length) for length in lengths]),
        token_type_ids=torch.zeros_like(ids) if family == "bert" else None,
        cu_seqlens=torch.tensor([0, *lengths]).cumsum(0).int(),
        max_seqlen=LONGEST,
        labels=torch.zeros(len(lengths), dtype=torch.long),
        example_ids=torch.arange(len(lengths)),
        step_num_segments=len(lengths),
    )
    with torch.inference_mode():
        padded = PaddedEncoder(make_model(family))(batch)
        packed = PackedEncoder(make_model(family), AttentionBackend.BUCKETED)(batch)
    assert padded.std(0).min() > 0.01
    torch.testing.assert_close(packed, padded, rtol=1e-4, atol=1e-5)
