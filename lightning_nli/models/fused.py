"""The blocks of a post-norm Transformer layer as one autograd function each, around the kernels of `kernels.c`.

BERT, RoBERTa, XLM-R and ELECTRA share three: self-attention; dense, dropout, residual, norm; and dense, GELU. Between
their products each is one pass over memory. Without the kernels (fp32, a GPU, no compiler) they compute what the
library's modules do.

Shape suffixes: T tokens, D input columns, E output columns.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from lightning_nli.models.attention import AttentionBackend
from lightning_nli.models.linear import FastLinear, weight_gradient
from lightning_nli.models.native import Kernels, dropout_arguments, kernels_for
from lightning_nli.models.native_attention import BlockAttention, native_self_attention

_ADD_NORM = re.compile(r"(Bert|Roberta|XLMRoberta|Electra|Camembert)(Self)?Output")
_SELF_ATTENTION = re.compile(r"(Bert|Roberta|XLMRoberta|Electra|Camembert)SelfAttention")
_GELU = re.compile(r"(Bert|Roberta|XLMRoberta|Electra|Camembert)Intermediate")


class _DenseGelu(torch.autograd.Function):
    """gelu(x W^T + b)."""

    @staticmethod
    def forward(ctx: Any, x_TD: Tensor, weight: Tensor, bias: Tensor, kernels: Kernels) -> Tensor:
        before_TE = torch.mm(x_TD, weight.t())
        out_TE = torch.empty_like(before_TE)
        kernels.bias_gelu(before_TE, bias, out_TE, *before_TE.shape)
        ctx.save_for_backward(x_TD, weight, bias, before_TE)
        ctx.kernels = kernels
        return out_TE

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x_TD, weight, bias, before_TE = ctx.saved_tensors
        num_columns = before_TE.shape[1]
        change_TE = torch.empty_like(before_TE)
        parts, of_bias = torch.empty(torch.get_num_threads(), num_columns), torch.empty(num_columns)
        out_TE = grads[0].contiguous()
        ctx.kernels.bias_gelu_backward(out_TE, before_TE, bias, change_TE, parts, of_bias, *before_TE.shape)
        of_x = torch.mm(change_TE, weight) if ctx.needs_input_grad[0] else None
        return of_x, weight_gradient(x_TD, change_TE, ctx.kernels), of_bias.to(weight.dtype), None


class _DenseDropoutAddNorm(torch.autograd.Function):
    """layer_norm(dropout(x W^T + b) + residual)."""

    @staticmethod
    def forward(
        ctx: Any,
        x_TD: Tensor,
        weight: Tensor,
        bias: Tensor,
        residual_TE: Tensor,
        norm_weight: Tensor,
        norm_bias: Tensor,
        eps: float,
        p: float,
        kernels: Kernels,
    ) -> Tensor:
        sum_TE = torch.mm(x_TD, weight.t())
        out_TE = torch.empty_like(sum_TE)
        mean_T, rstd_T = torch.empty(2, sum_TE.shape[0])
        drop = dropout_arguments(p)
        kernels.bias_dropout_add_norm(
            sum_TE, bias, residual_TE, norm_weight, norm_bias, out_TE, mean_T, rstd_T, *sum_TE.shape, eps, *drop
        )
        ctx.save_for_backward(x_TD, weight, sum_TE, norm_weight, mean_T, rstd_T)
        ctx.drop, ctx.kernels = drop, kernels
        return out_TE

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x_TD, weight, sum_TE, norm_weight, mean_T, rstd_T = ctx.saved_tensors
        num_columns = sum_TE.shape[1]
        of_residual, change_TE = torch.empty_like(sum_TE), torch.empty_like(sum_TE)
        parts, sums = torch.empty(torch.get_num_threads(), 3, num_columns), torch.empty(3, num_columns)
        out_TE = grads[0].contiguous()
        ctx.kernels.bias_dropout_add_norm_backward(
            out_TE, sum_TE, norm_weight, mean_T, rstd_T, of_residual, change_TE, parts, sums, *sum_TE.shape, *ctx.drop
        )
        of_x = torch.mm(change_TE, weight) if ctx.needs_input_grad[0] else None
        of_norm_weight, of_norm_bias, of_bias = sums.to(weight.dtype)
        return (
            of_x,
            weight_gradient(x_TD, change_TE, ctx.kernels),
            of_bias,
            of_residual,
            of_norm_weight,
            of_norm_bias,
            *[None] * 3,
        )


_dense_gelu: Callable[..., Tensor] = _DenseGelu.apply
_dense_dropout_add_norm: Callable[..., Tensor] = _DenseDropoutAddNorm.apply


class FusedAddNorm(nn.Module):
    """What `BertSelfOutput` and `BertOutput` compute."""

    dense: nn.Linear
    dropout: nn.Module
    LayerNorm: nn.LayerNorm

    def forward(self, hidden_states: Tensor, input_tensor: Tensor) -> Tensor:
        dense, norm = self.dense, self.LayerNorm
        kernels = _kernels_for([dense], hidden_states, input_tensor, norm.weight)
        if kernels is None:
            return norm(self.dropout(dense(hidden_states)) + input_tensor)  # type: ignore[no-any-return]
        rows_TD, residual_TE = _rows(hidden_states), _rows(input_tensor)
        p = float(self.dropout.p) if self.training else 0.0  # type: ignore[arg-type]
        out_TE = _dense_dropout_add_norm(
            rows_TD, dense.weight, dense.bias, residual_TE, norm.weight, norm.bias, norm.eps, p, kernels
        )
        return out_TE.view(input_tensor.shape)


class FusedGelu(nn.Module):
    """What `BertIntermediate` computes."""

    dense: nn.Linear
    intermediate_act_fn: nn.Module

    def forward(self, hidden_states: Tensor) -> Tensor:
        dense = self.dense
        kernels = _kernels_for([dense], hidden_states)
        if kernels is None:
            return self.intermediate_act_fn(dense(hidden_states))  # type: ignore[no-any-return]
        out_TE = _dense_gelu(_rows(hidden_states), dense.weight, dense.bias, kernels)
        return out_TE.view(*hidden_states.shape[:-1], dense.out_features)


class FusedSelfAttention(nn.Module):
    """A layer's self-attention, in one function where the pack's own attention is asked for."""

    def forward(self, hidden_states: Tensor, attention_mask: Tensor | None = None, *args: Any, **options: Any) -> Any:
        layer: Any = self
        layout = options.get("packed_layout")
        parts = (layer.query, layer.key, layer.value)
        kernels = _kernels_for(parts, hidden_states)
        is_plain = attention_mask is None and not layer.is_causal
        if kernels is None or not is_plain or layout is None or layout.backend is not AttentionBackend.BUCKETED:
            return super().forward(hidden_states, attention_mask, *args, **options)  # type: ignore[misc]
        layout.num_calls += 1
        attention = BlockAttention(
            kernels,
            layout.buckets,
            layer.num_attention_heads,
            layer.attention_head_size,
            layer.scaling,
            float(layer.dropout.p) if self.training else 0.0,
            window=None,
        )
        parameters = (*(part.weight for part in parts), *(part.bias for part in parts))
        out_TD = native_self_attention(attention, _rows(hidden_states), *parameters)
        return out_TD.view(hidden_states.shape), None


def _kernels_for(parts: Sequence[nn.Module], *tensors: Tensor) -> Kernels | None:
    """The kernels, if they fit: plain linear layers with a bias, here as a whole.

    A layer of another class (an adapter around it) computes something else, and stage 3 of DeepSpeed, which shards
    weights, gathers them for modules that are called.
    """
    for part in parts:
        is_plain = type(part) in (nn.Linear, FastLinear) and part.bias is not None
        if not is_plain or hasattr(part.weight, "ds_id"):
            return None
    return kernels_for(parts[0].weight, *tensors)  # type: ignore[arg-type]


def _rows(x: Tensor) -> Tensor:
    return x.reshape(-1, x.shape[-1]).contiguous()


def fuse_layers(model: nn.Module) -> None:
    """Let the dense blocks of a model run fused where they are known; weights, names and state stay as they are."""
    for module in model.modules():
        name = type(module).__name__
        if _SELF_ATTENTION.fullmatch(name):
            library = type(module)
            module.__class__ = type(f"Fused{name}", (FusedSelfAttention, library), {"__module__": __name__})
        elif _ADD_NORM.fullmatch(name):
            module.__class__ = FusedAddNorm
        elif _GELU.fullmatch(name) and type(module.intermediate_act_fn).__name__ == "GELUActivation":  # exact, not tanh
            module.__class__ = FusedGelu
