"""Compiled kernels: the formulas of torch's operations, the same dropout mask in both passes, and life without them."""

from __future__ import annotations

import logging
import math

import pytest
import torch
from tiny_models import NO_DROPOUT
from torch import nn
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    ElectraConfig,
    ElectraForSequenceClassification,
    RobertaConfig,
    RobertaForSequenceClassification,
    XLMRobertaConfig,
    XLMRobertaForSequenceClassification,
)
from transformers.activations import ACT2FN

from lightning_nli.batch import PackedBatch
from lightning_nli.models import native
from lightning_nli.models.attention import AttentionBackend, varlen_attention
from lightning_nli.models.encoder import PackedEncoder, first_position
from lightning_nli.models.fused import FusedAddNorm, FusedGelu, fuse_layers
from lightning_nli.models.native import compiled_kernels, kernels_for, load_kernels, use_native_kernels

CU_SEQLENS = torch.tensor([0, 30, 54, 80, 84, 85], dtype=torch.int32)
SIZES = {"hidden_size": 40, "intermediate_size": 72, "num_attention_heads": 2, "num_hidden_layers": 2, "vocab_size": 50}
MODELS = {
    "bert": (BertForSequenceClassification, BertConfig),
    "roberta": (RobertaForSequenceClassification, RobertaConfig),
    "xlm-roberta": (XLMRobertaForSequenceClassification, XLMRobertaConfig),
    "electra": (ElectraForSequenceClassification, ElectraConfig),
}


@pytest.fixture(autouse=True)
def switched_on():
    if load_kernels() is None:
        pytest.skip("no C compiler")
    use_native_kernels(True)
    yield
    use_native_kernels(True)


class BertOutput(nn.Module):
    """The parts of the library's block, by its name."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.dense, self.LayerNorm, self.dropout = nn.Linear(24, 40), nn.LayerNorm(40), nn.Dropout(p)
        for parameter in self.LayerNorm.parameters():
            nn.init.normal_(parameter)


class BertIntermediate(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.dense, self.intermediate_act_fn = nn.Linear(24, 40), ACT2FN["gelu"]


def numbers(seed, *shape):
    """bf16 values, so that fp32 and bf16 begin with the same."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


def make_model(name):
    model_class, config_class = MODELS[name]
    torch.manual_seed(0)
    return model_class(config_class(**SIZES, **NO_DROPOUT, pad_token_id=1))


def passes(block, inputs, dtype):
    """Output and all gradients in fp32."""
    block = block.bfloat16().to(dtype)
    given = [x.to(dtype, copy=True).requires_grad_() for x in inputs]
    block.zero_grad()
    out = block(*given)
    out.backward(numbers(9, *out.shape).to(dtype))
    return [x.detach().float() for x in (out, *(x.grad for x in given), *(p.grad for p in block.parameters()))]


def assert_rounded(found, exact):
    for one, other in zip(found, exact, strict=True):
        assert (one - other).norm() <= 0.006 * other.norm()  # bf16 keeps 8 bits: 0.004 for one rounding


@pytest.mark.parametrize("kind", ["gelu", "add_norm"])
def test_a_fused_block_has_the_values_and_gradients_of_fp32(kind):
    torch.manual_seed(0)
    block = BertIntermediate() if kind == "gelu" else BertOutput(0.0)
    fuse_layers(block)
    assert type(block) is (FusedGelu if kind == "gelu" else FusedAddNorm)
    inputs = [numbers(1, 2, 13, 24)] if kind == "gelu" else [numbers(1, 2, 13, 24), numbers(2, 2, 13, 40)]
    exact = passes(block, inputs, torch.float32)
    assert_rounded(passes(block, inputs, torch.bfloat16), exact)


def test_the_same_mask_in_both_passes_and_none_in_evaluation():
    torch.manual_seed(0)
    block = BertOutput(0.25).bfloat16()
    nn.init.zeros_(block.dense.weight)
    nn.init.ones_(block.dense.bias)
    nn.init.ones_(block.LayerNorm.weight)
    nn.init.zeros_(block.LayerNorm.bias)
    block.__class__ = FusedAddNorm
    x, residual = numbers(1, 500, 24), torch.zeros(500, 40, dtype=torch.bfloat16)
    out = block(x, residual)
    dropped = out < 0  # rows of 0 and 1 / (1 - p), normalized
    assert abs(dropped.float().mean().item() - 0.25) < 5 * math.sqrt(0.25 * 0.75 / dropped.numel())
    assert abs(dropped.float().mean(0).std().item() - math.sqrt(0.25 * 0.75 / 500)) < 0.008  # no column is special
    out.backward(numbers(3, 500, 40))
    one_row = torch.autograd.functional.jacobian(
        lambda bias: nn.functional.layer_norm((bias / 0.75) * ~dropped, (40,)), torch.ones(40)
    )
    expected = torch.einsum("te,ted->d", numbers(3, 500, 40).float(), one_row)
    assert (block.dense.bias.grad.float() - expected).norm() < 0.02 * expected.norm()
    assert not (block.eval()(x, residual) < 0).any()


def test_attention_drops_by_one_mask_and_torchs_seed_fixes_it():
    """With v the unit matrix the output shows the dropped weights, which are v's gradient too."""
    length, heads = 32, 3
    q, k = numbers(1, length, heads, length), numbers(2, length, heads, length)
    v = torch.eye(length, dtype=torch.bfloat16)[:, None].expand(length, heads, length).contiguous().requires_grad_()
    cu_seqlens = torch.tensor([0, length], dtype=torch.int32)

    def attend():
        torch.manual_seed(4)
        return varlen_attention(q, k, v, cu_seqlens, length, backend=AttentionBackend.BUCKETED, dropout=0.25)

    out = attend()
    assert torch.equal(out, attend())
    assert abs((out == 0).float().mean().item() - 0.25) < 5 * math.sqrt(0.25 * 0.75 / out.numel())
    up = numbers(3, length, heads, length)
    out.backward(up)
    expected = torch.einsum("inj,inh->jnh", out.detach().float(), up.float())
    assert (v.grad.float() - expected).norm() < 0.006 * expected.norm()


def test_gradients_of_dropped_attention_are_those_of_its_own_mask():
    torch.manual_seed(4)
    length = 24
    q, k, v = (numbers(seed, length, 1, length).requires_grad_() for seed in (1, 2, 3))
    cu_seqlens = torch.tensor([0, length], dtype=torch.int32)
    options = {"backend": AttentionBackend.BUCKETED, "dropout": 0.4}
    unit = torch.eye(length, dtype=torch.bfloat16)[:, None].contiguous()
    torch.manual_seed(6)
    dropped = varlen_attention(q, k, unit, cu_seqlens, length, **options)[:, 0] == 0
    torch.manual_seed(6)
    varlen_attention(q, k, v, cu_seqlens, length, **options).backward(up := numbers(5, length, 1, length))
    exact = [x.detach().float().requires_grad_() for x in (q, k, v)]
    one, other, values = (x[:, 0] for x in exact)
    weights = ((one @ other.T) * length**-0.5).softmax(-1) * ~dropped / 0.6
    (weights @ values).backward(up[:, 0].float())
    for x, reference in zip((q, k, v), exact, strict=True):
        assert (x.grad.float() - reference.grad).norm() < 0.012 * reference.grad.norm()


@pytest.mark.parametrize("window", [None, 2])
def test_packed_attention_has_the_values_and_gradients_of_the_reference(window):
    base = numbers(0, 3, 85, 2, 8)
    found = {}
    for dtype, backend in ((torch.bfloat16, AttentionBackend.BUCKETED), (torch.float32, AttentionBackend.SDPA)):
        inputs = base.to(dtype, copy=True).requires_grad_()
        out = varlen_attention(*inputs, CU_SEQLENS, 30, backend=backend, window=window)
        (out.float() * numbers(1, 85, 2, 8)).sum().backward()
        found[dtype] = (out.detach().float(), inputs.grad.float())
    for mine, reference in zip(found[torch.bfloat16], found[torch.float32], strict=True):
        assert (mine - reference).norm() < 0.008 * reference.norm()


def test_what_is_no_number_stays_none():
    """A training that diverges must be seen to: no kernel may turn NaN into a number."""
    block = BertIntermediate().bfloat16()
    block.__class__ = FusedGelu
    x = numbers(1, 4, 24)
    x[2, 3] = float("nan")
    assert block(x).isnan().any(1).tolist() == [False, False, True, False]
    norm = BertOutput(0.5).bfloat16()
    norm.__class__ = FusedAddNorm
    assert norm(x, numbers(2, 4, 40)).isnan().all(1).tolist() == [False, False, True, False]
    q = numbers(3, 3, 85, 2, 8)
    q[2, 31] = float("inf")
    out = varlen_attention(*q, CU_SEQLENS, 30, backend=AttentionBackend.BUCKETED)
    assert not out[30:54].isfinite().all() and out[:30].isfinite().all() and out[54:].isfinite().all()


@pytest.mark.parametrize("name", MODELS)
def test_every_known_architecture_is_fused_whole_and_learns_as_it_did(name):
    model = make_model(name)
    model.train()
    ids = torch.randint(2, 50, (3, 11))
    found = []
    for fused in (False, True):
        if fused:
            fuse_layers(model)
        model.bfloat16().zero_grad()
        logits = model(ids).logits
        logits.square().sum().backward()
        found.append([logits.detach().float(), *(p.grad.float() for p in model.parameters() if p.grad is not None)])
    assert sum(isinstance(module, FusedAddNorm | FusedGelu) for module in model.modules()) == 6
    assert len(found[0]) == len(found[1])
    whole = [torch.cat([x.flatten() for x in one[1:]]) for one in found]
    assert (whole[1] - whole[0]).norm() < 0.05 * whole[0].norm()
    torch.testing.assert_close(found[1][0], found[0][0], atol=0.02, rtol=0.05)


@pytest.mark.parametrize("name", MODELS)
def test_a_packed_encoder_has_the_logits_and_gradients_of_fp32(name):
    """Self-attention in one function, against the library's own layers and torch's own attention."""
    model = make_model(name)
    model.bfloat16().float().train()
    ids = torch.randint(2, 50, (85,))
    places = torch.cat([torch.arange(n) for n in CU_SEQLENS.diff()]) + first_position(model)
    batch = PackedBatch(
        input_ids=ids,
        position_ids=places,
        token_type_ids=torch.zeros_like(ids),
        cu_seqlens=CU_SEQLENS,
        max_seqlen=30,
        labels=torch.zeros(5, dtype=torch.long),
        example_ids=torch.arange(5),
        step_num_segments=5,
    )
    found = []
    for fused in (False, True):
        if fused:
            fuse_layers(model)
            model.bfloat16()
        encoder = PackedEncoder(model, AttentionBackend.BUCKETED if fused else AttentionBackend.SDPA)
        model.zero_grad()
        logits = encoder(batch)
        assert encoder.last_num_calls == 2 and logits.shape[0] == 5
        logits.square().sum().backward()
        gradients = {n: p.grad.float() for n, p in model.named_parameters() if p.grad is not None}
        found.append((logits.detach().float(), gradients))
        encoder.release()
    torch.testing.assert_close(found[1][0], found[0][0], atol=0.02, rtol=0.05)
    assert found[0][1].keys() == found[1][1].keys()
    for parameter, exact in found[0][1].items():
        if exact.norm() > 1e-3:  # a key's bias moves no softmax
            assert (found[1][1][parameter] - exact).norm() < 0.1 * exact.norm(), parameter


@pytest.mark.parametrize("kernels", [True, False])
def test_places_that_no_segment_holds_change_nothing(kernels):
    """A pack is filled up to a shape that was compiled before; the places behind its segments get 0, both ways."""
    use_native_kernels(kernels)
    q, k, v = numbers(0, 3, 85, 2, 8)
    options = {"backend": AttentionBackend.BUCKETED}
    whole = varlen_attention(q, k, v, CU_SEQLENS, 30, **options)
    filled = [torch.cat([x, numbers(7, 11, 2, 8)]).requires_grad_() for x in (q, k, v)]
    out = varlen_attention(*filled, CU_SEQLENS, 30, **options)
    assert torch.equal(out[:85], whole) and not out[85:].any()
    out.backward(numbers(8, *out.shape))
    assert all(x.grad[:85].any() and not x.grad[85:].any() for x in filled)


@pytest.mark.parametrize("shape", [(7, 10), (8, 64), (33, 35), (1, 3)])
def test_a_transposed_copy_is_exact(shape):
    x = numbers(1, *shape)
    out = torch.empty(shape[::-1], dtype=torch.bfloat16)
    load_kernels().transpose(x, out, *shape)
    assert torch.equal(out, x.t())


def test_an_activation_that_is_not_exact_gelu_is_left_alone():
    block = BertIntermediate()
    block.intermediate_act_fn = ACT2FN["gelu_new"]
    fuse_layers(block)
    assert type(block) is BertIntermediate


def test_the_same_number_of_threads_gives_the_same_bits():
    block = BertOutput(0.3).bfloat16()
    block.__class__ = FusedAddNorm
    inputs, before, found = [numbers(1, 37, 24), numbers(2, 37, 40)], torch.get_num_threads(), []
    try:
        for threads in (2, 2, 1):
            torch.set_num_threads(threads)
            torch.manual_seed(5)
            found.append(passes(block, inputs, torch.bfloat16))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(one, other) for one, other in zip(found[0], found[1], strict=True))
    assert_rounded(found[2], found[0])


def test_fp32_and_what_is_switched_off_never_reach_the_kernels():
    half = numbers(0, 2)
    assert kernels_for(half) is load_kernels()
    assert kernels_for(half, half.float()) is None
    use_native_kernels(False)
    assert kernels_for(half) is None


def test_they_are_compiled_once_and_without_a_compiler_training_goes_on(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("LNLI_CACHE", str(tmp_path / "cache"))
    first = compiled_kernels()
    made = first.stat().st_mtime_ns
    assert compiled_kernels() == first and first.stat().st_mtime_ns == made
    assert [path.name for path in first.parent.iterdir()] == [first.name]  # nothing half-written beside it
    monkeypatch.setattr(native, "_FLAGS", ["--no-such-flag"])
    with pytest.raises(OSError, match="no-such-flag"):
        compiled_kernels()
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    load_kernels.cache_clear()
    try:
        with caplog.at_level(logging.WARNING):
            assert load_kernels() is None and load_kernels() is None
        assert [record.getMessage() for record in caplog.records] == [
            "bf16 on this CPU runs without compiled kernels, slower: "
            "no C compiler was found (apt-get install gcc, or set CC)"
        ]
        block = BertIntermediate().bfloat16()
        block.__class__ = FusedGelu
        assert block(numbers(1, 4, 24)).shape == (4, 40)
    finally:
        load_kernels.cache_clear()


def test_an_adapter_around_a_layer_is_not_passed_by():
    class Adapter(nn.Linear):
        def forward(self, x):
            return super().forward(x) + 1

    block = BertIntermediate().bfloat16()
    block.__class__ = FusedGelu
    x = numbers(1, 4, 24)
    before = block(x)
    block.dense.__class__ = Adapter
    assert (block(x) - before).abs().mean() > 0.3
