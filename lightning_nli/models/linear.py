"""Linear layers whose gradients are fast on CPUs in bf16.

oneDNN multiplies by a transposed left operand at a quarter of its speed; the weight's gradient is such a product. Its
smaller operand is therefore laid out anew first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from lightning_nli.models.native import Kernels, kernels_for


def weight_gradient(x_TD: Tensor, out_TE: Tensor, kernels: Kernels | None) -> Tensor:
    """(E, D) gradient of the weight of x W^T, `out_TE` being that of the result."""
    if x_TD.shape[1] <= out_TE.shape[1]:
        return torch.mm(_transposed(x_TD, kernels), out_TE).t()
    return torch.mm(_transposed(out_TE, kernels), x_TD)


def _transposed(x_TD: Tensor, kernels: Kernels | None) -> Tensor:
    if kernels is None:
        return x_TD.t().contiguous()
    out_DT = torch.empty(x_TD.shape[::-1], dtype=x_TD.dtype)
    kernels.transpose(x_TD.contiguous(), out_DT, *x_TD.shape)
    return out_DT


class _Linear(torch.autograd.Function):
    """x W^T + b over the rows of x; the same gradients as `F.linear`, by other memory layouts."""

    @staticmethod
    def forward(ctx: Any, x_TD: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x_TD, weight)
        out = torch.mm(x_TD, weight.t())
        return out if bias is None else out.add_(bias)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x_TD, weight = ctx.saved_tensors
        out_TE = grads[0]
        of_x = torch.mm(out_TE, weight) if ctx.needs_input_grad[0] else None
        of_bias = out_TE.sum(0) if ctx.needs_input_grad[2] else None
        of_weight = weight_gradient(x_TD, out_TE, kernels_for(out_TE)) if ctx.needs_input_grad[1] else None
        return of_x, of_weight, of_bias


_linear: Callable[..., Tensor] = _Linear.apply


class FastLinear(nn.Linear):
    """`nn.Linear`, faster to train in bf16 on a CPU; elsewhere the same."""

    def forward(self, x: Tensor) -> Tensor:
        is_half = x.dtype is torch.bfloat16 and self.weight.dtype is torch.bfloat16  # autocast's weights are fp32
        if not is_half or x.device.type != "cpu" or not torch.is_grad_enabled():
            return F.linear(x, self.weight, self.bias)
        rows_TD = x.reshape(-1, x.shape[-1])
        return _linear(rows_TD, self.weight, self.bias).view(*x.shape[:-1], self.out_features)


def speed_up_linear(model: nn.Module) -> None:
    """Make every `nn.Linear` of a model a `FastLinear`; weights, names and state stay as they are."""
    for module in model.modules():
        if type(module) is nn.Linear:
            module.__class__ = FastLinear
