"""Attention over buckets with the kernels of `kernels.c`: what lies between the batched products is one pass each.

The same formulas as `buckets.py`.

Shape suffixes: T tokens of the pack, N heads, H head, D hidden = N * H, L longest of a bucket rounded up,
P = segments * heads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from lightning_nli.models.buckets import Bucket, empty_for
from lightning_nli.models.linear import weight_gradient
from lightning_nli.models.native import Kernels, dropout_arguments

_LANES = 16  # lengths are rounded up to a multiple: no kernel has a remainder, and products are no slower


@dataclass
class BlockAttention:
    """softmax(q k^T scaling) v in every bucket, forward and backward.

    Attributes:
        kernels: Compiled.
        buckets: Of the pack.
        num_heads: N.
        head_size: H.
        scaling: Of the scores.
        dropout: Share of the weights that is dropped.
        window: How many places to either side a token sees; None: its whole segment.
    """

    kernels: Kernels
    buckets: Sequence[Bucket]
    num_heads: int
    head_size: int
    scaling: float
    dropout: float
    window: int | None
    _drops: list[tuple[int, float, int]] = field(default_factory=list)

    def forward(self, qkv: Sequence[Tensor], biases: Sequence[Tensor | None], out: Tensor) -> list[Tensor]:
        """Write the attention to `out`; all are (T, D) with rows in one stretch. Returns what `backward` needs."""
        saved: list[Tensor] = []
        for bucket in self.buckets:
            q_PLH, k_PLH, v_PLH = (
                self._gather(bucket, x, bias, scale)
                for x, bias, scale in zip(qkv, biases, (self.scaling, 1.0, 1.0), strict=True)
            )
            weights_PLL = torch.bmm(q_PLH, k_PLH.transpose(1, 2))
            drop = dropout_arguments(self.dropout)
            used_PLL = torch.empty_like(weights_PLL) if self.dropout else None
            window = -1 if self.window is None else self.window
            self.kernels.masked_softmax(weights_PLL, used_PLL, bucket.lengths, *self._sizes(bucket), window, *drop)
            self._scatter(bucket, torch.bmm(weights_PLL if used_PLL is None else used_PLL, v_PLH), out)
            saved += [q_PLH, k_PLH, v_PLH, weights_PLL]
            self._drops.append(drop)
        return saved

    def backward(self, of_out: Tensor, saved: Sequence[Tensor], into: Sequence[Tensor]) -> None:
        """Write the gradients of q, k and v, (T, D) each, to `into`."""
        of_q, of_k, of_v = into
        for place, (bucket, drop) in enumerate(zip(self.buckets, self._drops, strict=True)):
            q_PLH, k_PLH, v_PLH, weights_PLL = saved[4 * place : 4 * place + 4]
            out_PLH = self._gather(bucket, of_out)
            change_PLL = torch.bmm(out_PLH, v_PLH.transpose(1, 2))
            used_PLL = torch.empty_like(weights_PLL) if drop[0] else None
            self.kernels.masked_softmax_backward(
                change_PLL, weights_PLL, used_PLL, bucket.lengths, *self._sizes(bucket), *drop
            )
            used_PLL = weights_PLL if used_PLL is None else used_PLL
            self._scatter(bucket, torch.bmm(change_PLL, k_PLH), of_q, self.scaling)
            self._scatter(bucket, torch.bmm(change_PLL.transpose(1, 2), q_PLH), of_k)  # q holds the scaling
            self._scatter(bucket, torch.bmm(used_PLL.transpose(1, 2), out_PLH), of_v)

    def _sizes(self, bucket: Bucket) -> tuple[int, int, int]:
        """(B, N, L)."""
        return bucket.num_segments, self.num_heads, -(-bucket.longest // _LANES) * _LANES

    def _gather(self, bucket: Bucket, x_TD: Tensor, bias_D: Tensor | None = None, scale: float = 1.0) -> Tensor:
        """(P, L, H); empty slots are 0."""
        sizes = self._sizes(bucket)
        block_PLH = x_TD.new_empty(sizes[0] * sizes[1], sizes[2], self.head_size)
        where = (bucket.starts, bucket.lengths, block_PLH, *sizes, self.head_size)
        self.kernels.gather_rows(x_TD, x_TD.stride(0), bias_D, *where, scale)
        return block_PLH

    def _scatter(self, bucket: Bucket, block_PLH: Tensor, into_TD: Tensor, scale: float = 1.0) -> None:
        where = (bucket.starts, bucket.lengths, *self._sizes(bucket), self.head_size)
        self.kernels.scatter_rows(block_PLH, into_TD, into_TD.stride(0), *where, scale)


class _NativeAttention(torch.autograd.Function):
    """Attention over queries, keys and values of (T, N, H)."""

    @staticmethod
    def forward(
        ctx: Any,
        attention: BlockAttention,
        *qkv_TNH: Tensor,
    ) -> Tensor:
        out_TNH = empty_for(qkv_TNH[2].shape, qkv_TNH[2], attention.buckets)
        saved = attention.forward([_flat(x) for x in qkv_TNH], [None] * 3, _flat(out_TNH))
        ctx.save_for_backward(*saved)
        ctx.attention = attention
        return out_TNH

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        of_qkv = [empty_for(grads[0].shape, grads[0], ctx.attention.buckets) for _ in range(3)]
        ctx.attention.backward(_flat(grads[0]), ctx.saved_tensors, [_flat(x) for x in of_qkv])
        return None, *of_qkv


def _flat(x_TNH: Tensor) -> Tensor:
    """(T, D), a view where the heads of a token lie side by side in memory."""
    return x_TNH.flatten(1)


class _SelfAttention(torch.autograd.Function):
    """Queries, keys and values of x in one product, and their attention: (T, D)."""

    @staticmethod
    def forward(ctx: Any, attention: BlockAttention, x_TD: Tensor, *parameters: Tensor) -> Tensor:
        weights, biases = torch.cat(parameters[:3]), parameters[3:]
        qkv = torch.mm(x_TD, weights.t()).chunk(3, dim=1)
        out_TD = empty_for(qkv[0].shape, x_TD, attention.buckets)
        saved = attention.forward(qkv, biases, out_TD)
        ctx.save_for_backward(x_TD, weights, *saved)
        ctx.attention = attention
        return out_TD

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x_TD, weights, *saved = ctx.saved_tensors
        of_qkv = empty_for((x_TD.shape[0], weights.shape[0]), x_TD, ctx.attention.buckets)
        ctx.attention.backward(grads[0].contiguous(), saved, of_qkv.chunk(3, dim=1))
        of_x = torch.mm(of_qkv, weights) if ctx.needs_input_grad[1] else None
        of_weights = weight_gradient(x_TD, of_qkv, ctx.attention.kernels)
        return None, of_x, *of_weights.chunk(3), *of_qkv.sum(0).chunk(3)


native_attention: Callable[..., Tensor] = _NativeAttention.apply
native_self_attention: Callable[..., Tensor] = _SelfAttention.apply
