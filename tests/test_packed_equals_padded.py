"""Packing changes nothing: logits and gradients equal the library's own padded model, neighbours never leak."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import (
    AlbertConfig,
    AlbertForSequenceClassification,
    BertConfig,
    BertForSequenceClassification,
    DistilBertConfig,
    DistilBertForSequenceClassification,
    ElectraConfig,
    ElectraForSequenceClassification,
    ModernBertConfig,
    ModernBertForSequenceClassification,
    MPNetConfig,
    MPNetForSequenceClassification,
    RobertaConfig,
    RobertaForSequenceClassification,
    XLMRobertaConfig,
    XLMRobertaForSequenceClassification,
)

from lightning_nli.data.packing import MicroStep, collate_pack
from lightning_nli.data.tokenization import TokenizedSplit
from lightning_nli.models.attention import AttentionBackend, varlen_attention
from lightning_nli.models.encoder import PackedEncoder, _probe, first_position
from lightning_nli.models.padded import PaddedEncoder
from lightning_nli.types import UserError

SMALL = {
    "vocab_size": 100,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 66,
    "initializer_range": 0.5,  # large: a leak must show
    "num_labels": 3,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
ROBERTA_LIKE = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "type_vocab_size": 1}
NO_DISTILBERT_DROPOUT = {"dropout": 0.0, "attention_dropout": 0.0, "seq_classif_dropout": 0.0}
MODERNBERT = {
    "pad_token_id": 0,
    **dict.fromkeys(("bos_token_id", "cls_token_id"), 2),
    **dict.fromkeys(("eos_token_id", "sep_token_id"), 3),
    "local_attention": 8,  # local layers see 4 places to either side; segments have up to 30 tokens
    "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
    "num_hidden_layers": 3,
}
LAYOUTS = {
    "bert": (BertForSequenceClassification, BertConfig, {"pad_token_id": 0, "type_vocab_size": 2}),
    "roberta": (RobertaForSequenceClassification, RobertaConfig, ROBERTA_LIKE),
    "xlm-roberta": (XLMRobertaForSequenceClassification, XLMRobertaConfig, ROBERTA_LIKE),
    "electra": (
        ElectraForSequenceClassification,
        ElectraConfig,
        {"pad_token_id": 0, "type_vocab_size": 2, "embedding_size": 16},
    ),
    "albert": (
        AlbertForSequenceClassification,
        AlbertConfig,
        {"pad_token_id": 0, "type_vocab_size": 2, "embedding_size": 16, "classifier_dropout_prob": 0.0},
    ),
    "distilbert": (
        DistilBertForSequenceClassification,
        DistilBertConfig,
        {"pad_token_id": 0, "n_layers": 2, "n_heads": 4, "dim": 32, "hidden_dim": 64, **NO_DISTILBERT_DROPOUT},
    ),
    "modernbert": (ModernBertForSequenceClassification, ModernBertConfig, MODERNBERT),
    "modernbert, mean": (
        ModernBertForSequenceClassification,
        ModernBertConfig,
        MODERNBERT | {"classifier_pooling": "mean"},
    ),
}
LENGTHS = [17, 5, 9, 17, 2, 30, 16]


def make_model(layout: str, initializer_range: float = 0.5):
    model_class, config_class, extra = LAYOUTS[layout]
    torch.manual_seed(0)
    return model_class(config_class(**(SMALL | {"initializer_range": initializer_range} | extra))).eval()


def make_split(*, with_types: bool) -> TokenizedSplit:
    total = sum(LENGTHS)
    ids = np.random.Generator(np.random.Philox(1)).integers(5, 100, total).astype(np.int32)
    types = (np.arange(total) % 7 > 3).astype(np.int8) if with_types else None
    offsets = np.concatenate([[0], np.cumsum(LENGTHS)])
    return TokenizedSplit(ids, types, offsets, np.arange(len(LENGTHS)) % 3, np.diff(offsets))


ALL_ROWS = tuple(range(7))


def make_batch(model, order=ALL_ROWS):
    split = make_split(with_types=getattr(model.config, "type_vocab_size", 0) > 1)
    return collate_pack(split, MicroStep(tuple(order), len(order)), first_position=first_position(model))


def gradients(model) -> dict[str, torch.Tensor]:
    found = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    return found


@pytest.mark.parametrize("backend", [AttentionBackend.BUCKETED, AttentionBackend.SDPA])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_logits_and_gradients_equal_the_padded_model(layout, backend):
    model = make_model(layout, initializer_range=0.2)
    batch = make_batch(model)
    padded_logits = PaddedEncoder(model)(batch)
    torch.nn.functional.cross_entropy(padded_logits, batch.labels).backward()
    expected = gradients(model)
    encoder = PackedEncoder(model, backend)
    logits = encoder(batch)
    torch.nn.functional.cross_entropy(logits, batch.labels).backward()
    torch.testing.assert_close(logits, padded_logits, rtol=1e-5, atol=1e-5)
    assert padded_logits.std() > 0.1  # the comparison is not of constants
    found = gradients(model)
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        assert (found[name] - gradient).abs().max() <= 1e-5, name
    assert max(gradient.abs().max() for gradient in expected.values()) > 0.1


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("backend", [AttentionBackend.BUCKETED, AttentionBackend.SDPA])
def test_changing_one_segment_leaves_its_neighbours_bit_equal(layout, backend):
    model = make_model(layout)
    encoder = PackedEncoder(model, backend)
    batch = make_batch(model)
    before = encoder(batch)
    ids = batch.input_ids.clone()
    start, stop = batch.cu_seqlens[2:4].tolist()
    ids[start:stop] = (ids[start:stop] + 41) % 95 + 5
    after = encoder(replace(batch, input_ids=ids))
    others = [0, 1, 3, 4, 5, 6]
    assert (after[2] - before[2]).abs().max() > 1e-3  # the change did reach something
    assert torch.equal(after[others], before[others])


def test_p02_three_sequences_do_not_see_each_other():
    """The tiny model of the reported fault: large weights, so that a leak moves logits by more than 1."""
    config = RobertaConfig(**(SMALL | {"max_position_embeddings": 258}), **ROBERTA_LIKE)
    torch.manual_seed(0)
    encoder = PackedEncoder(RobertaForSequenceClassification(config).eval(), AttentionBackend.BUCKETED)
    rows = [[0, 10, 11, 2, 2, 12, 2], [0, 20, 21, 22, 23, 2, 2, 24, 25, 2], [0, 30, 2, 2, 31, 32, 2]]

    def logits(sequences: list[list[int]]) -> torch.Tensor:
        lengths = [len(row) for row in sequences]
        ids, offsets = np.concatenate(sequences).astype(np.int32), np.cumsum([0, *lengths])
        split = TokenizedSplit(ids, None, offsets, np.zeros(len(rows), int), np.diff(offsets))
        return encoder(collate_pack(split, MicroStep((0, 1, 2), 3), first_position=2))

    before = logits(rows)
    after = logits([rows[0], [0, 20, 99, *rows[1][3:]], rows[2]])
    assert (after[1] - before[1]).abs().max() > 1e-3
    assert (after[[0, 2]] - before[[0, 2]]).abs().max() < 1e-6


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_order_of_segments_in_a_pack_changes_nothing(layout):
    model = make_model(layout)
    encoder = PackedEncoder(model, AttentionBackend.BUCKETED)
    order = (5, 0, 3, 6, 2, 1, 4)
    torch.testing.assert_close(encoder(make_batch(model, order)), encoder(make_batch(model))[list(order)])


class _Vocabulary:
    """As much of a tokenizer as the probe asks for."""

    all_special_ids = (0, 1, 2)

    def __len__(self) -> int:
        return 100


def test_the_probe_passes_models_that_use_the_hook():
    for layout in LAYOUTS:
        encoder = PackedEncoder(make_model(layout), AttentionBackend.BUCKETED)
        _probe(encoder, _Vocabulary())
        assert encoder.last_num_calls == encoder.model.config.num_hidden_layers


def test_a_model_that_ignores_the_hook_is_caught():
    config = MPNetConfig(**SMALL, pad_token_id=1)
    torch.manual_seed(0)
    encoder = PackedEncoder(MPNetForSequenceClassification(config).eval(), AttentionBackend.BUCKETED)
    with pytest.raises((UserError, TypeError), match=r"packed|packed_layout"):
        _probe(encoder, _Vocabulary())


def test_a_model_that_takes_the_argument_and_does_not_call_is_caught(monkeypatch):
    model = make_model("bert")
    encoder = PackedEncoder(model, AttentionBackend.BUCKETED)
    plain = model.forward
    monkeypatch.setattr(model, "forward", lambda *args, packed_layout=None, **kwargs: plain(*args, **kwargs))
    model.config._attn_implementation = "eager"
    with pytest.raises(UserError, match="called our attention 0 times"):
        _probe(encoder, _Vocabulary())


def test_changing_one_segment_leaves_its_neighbours_alone_in_attention_itself():
    cu_seqlens = torch.tensor([0, 3, 8, 9], dtype=torch.int32)
    q, k, v = torch.randn(3, 9, 2, 4, generator=torch.Generator().manual_seed(0))
    for backend in (AttentionBackend.BUCKETED, AttentionBackend.SDPA):
        before = varlen_attention(q, k, v, cu_seqlens, 5, backend=backend)
        changed = v.clone()
        changed[3:8] += 1.0
        after = varlen_attention(q, k, changed, cu_seqlens, 5, backend=backend)
        assert not torch.equal(after[3:8], before[3:8])
        assert torch.equal(torch.cat([after[:3], after[8:]]), torch.cat([before[:3], before[8:]]))


@pytest.mark.parametrize("backend", [AttentionBackend.BUCKETED, AttentionBackend.SDPA])
def test_a_window_hides_what_is_further_away_and_nothing_else(backend):
    cu_seqlens = torch.tensor([0, 3, 15, 25], dtype=torch.int32)
    q, k, v = torch.randn(3, 25, 2, 4, generator=torch.Generator().manual_seed(0))
    before = varlen_attention(q, k, v, cu_seqlens, 12, backend=backend, window=4)
    changed = v.clone()
    changed[5] += 1.0
    moved = (varlen_attention(q, k, changed, cu_seqlens, 12, backend=backend, window=4) != before).any(-1).any(-1)
    assert moved.nonzero().flatten().tolist() == list(range(3, 10))  # 4 places to either side, inside its segment


def test_a_model_whose_window_is_ignored_is_caught():
    model = make_model("modernbert")
    for layer in model.model.layers:
        layer.attn.sliding_window = None  # the library's own mask still has it
    encoder = PackedEncoder(model, AttentionBackend.BUCKETED)
    with pytest.raises(UserError, match=r"does not run packed .*logits differ"):
        _probe(encoder, _Vocabulary())


@pytest.mark.parametrize("window", [None, 2])
def test_bucketed_attention_has_the_gradients_of_the_reference(window):
    """With the window, empty slots behind the second segment see no token of it: no NaN may come of that."""
    cu_seqlens = torch.tensor([0, 30, 54, 80, 84, 85], dtype=torch.int32)
    base = torch.randn(3, 85, 2, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    weight = torch.randn(85, 2, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    found = {}
    for backend in (AttentionBackend.BUCKETED, AttentionBackend.SDPA):
        inputs = base.clone().requires_grad_()
        out = varlen_attention(*inputs, cu_seqlens, 30, backend=backend, window=window)
        (out * weight).sum().backward()
        found[backend] = (out.detach(), inputs.grad)
    for mine, reference in zip(found[AttentionBackend.BUCKETED], found[AttentionBackend.SDPA], strict=True):
        torch.testing.assert_close(mine, reference)


def test_attention_dropout_is_applied_in_training_only():
    cu_seqlens = torch.tensor([0, 8, 14], dtype=torch.int32)
    q, k, v = torch.randn(3, 14, 2, 4, generator=torch.Generator().manual_seed(0))
    whole = varlen_attention(q, k, v, cu_seqlens, 8, backend=AttentionBackend.BUCKETED)
    torch.manual_seed(0)
    dropped = varlen_attention(q, k, v, cu_seqlens, 8, backend=AttentionBackend.BUCKETED, dropout=0.5)
    assert not torch.allclose(whole, dropped)
