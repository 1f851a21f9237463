"""The CPU's own dropout and linear layers: the same mathematics as torch's."""

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from lightning_nli.models.dropout import FastDropout, dropout_mask, speed_up_dropout
from lightning_nli.models.linear import FastLinear, speed_up_linear


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("p", [0.1, 0.5])
def test_a_mask_drops_its_share_and_scales_the_rest(dtype, p):
    torch.manual_seed(3)
    mask = dropout_mask((300, 401), p, dtype)
    assert mask.shape == (300, 401) and mask.dtype is dtype
    values = mask.abs().unique()
    torch.testing.assert_close(values, torch.tensor([0, 1 / (1 - p)], dtype=dtype))
    dropped = (mask == 0).double().mean().item()
    assert abs(dropped - p) < 5 * (p * (1 - p) / mask.numel()) ** 0.5
    of_rows = (mask == 0).double().mean(1)  # no row or place is special
    assert of_rows.std().item() == pytest.approx((p * (1 - p) / 401) ** 0.5, rel=0.15)


def test_masks_follow_torchs_seed_and_differ_from_call_to_call():
    torch.manual_seed(3)
    first, second = dropout_mask((7, 9), 0.5, torch.float32), dropout_mask((7, 9), 0.5, torch.float32)
    torch.manual_seed(3)
    assert torch.equal(first, dropout_mask((7, 9), 0.5, torch.float32))
    assert not torch.equal(first, second)


def test_a_share_that_cannot_be_dropped_is_refused():
    with pytest.raises(ValueError, match=r"\[0, 1\)"):
        dropout_mask((2,), 1.0, torch.float32)


def test_dropout_is_off_in_evaluation_and_its_gradient_is_its_mask():
    layer = FastDropout(0.5)
    x = torch.randn(50, 8, requires_grad=True)
    assert layer.eval()(x) is x
    out = layer.train()(x)
    out.sum().backward()
    torch.testing.assert_close(out, x * x.grad)
    assert (x.grad == 0).any() and (x.grad == 2).any()


@pytest.mark.parametrize("sizes", [(6, 24), (24, 6)])
@pytest.mark.parametrize("bias", [True, False])
def test_a_fast_layer_has_the_values_and_gradients_of_torchs(sizes, bias):
    torch.manual_seed(0)
    layer = nn.Linear(*sizes, bias=bias).to(torch.bfloat16)
    x = torch.randn(2, 5, sizes[0], dtype=torch.bfloat16)
    up = torch.randn(2, 5, sizes[1], dtype=torch.bfloat16)
    found = []
    for _ in range(2):
        layer.zero_grad()
        given = x.clone().requires_grad_()
        out = layer(given)
        out.backward(up)
        found.append([out.detach(), given.grad, *(parameter.grad for parameter in layer.parameters())])
        speed_up_linear(layer)
    assert isinstance(layer, FastLinear)
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=2e-2, atol=2e-2)  # one rounding of bf16


def test_a_fast_layer_in_fp32_and_without_gradients_is_torchs_to_the_bit():
    layer = FastLinear(6, 24)
    x = torch.randn(3, 6)
    assert torch.equal(layer(x), F.linear(x, layer.weight, layer.bias))
    half, y = layer.to(torch.bfloat16), x.to(torch.bfloat16)
    with torch.no_grad():
        assert torch.equal(half(y), F.linear(y, half.weight, half.bias))


def test_a_model_keeps_its_names_and_weights():
    model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Dropout(0.3), nn.LayerNorm(4)))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    speed_up_linear(model)
    speed_up_dropout(model)
    assert type(model[0]) is FastLinear and type(model[1][0]) is FastDropout and model[1][0].p == 0.3
    after = model.state_dict()
    assert list(after) == list(before) and all(torch.equal(after[name], before[name]) for name in before)
