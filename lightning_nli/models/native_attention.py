"""Attention over buckets with the kernels of `kernels.c`: what lies between the batched products is one pass each.

The same formulas as `buckets.py`.

Shape suffixes: T tokens of the pack, N heads, H head, L longest of a bucket rounded up, P = segments * heads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from lightning_nli.models.native import Kernels, dropout_arguments

if TYPE_CHECKING:
    from lightning_nli.models.buckets import Bucket

_LANES = 16  # lengths are rounded up to a multiple: no kernel has a remainder, and products are no slower


class _Blocks:
    """Copies between a pack and the blocks of one bucket."""

    def __init__(self, kernels: Kernels, bucket: Bucket, num_heads: int, head_size: int) -> None:
        self._kernels, self._bucket, self._head_size = kernels, bucket, head_size
        self.sizes = (bucket.num_segments, num_heads, -(-bucket.longest // _LANES) * _LANES)

    def gather(self, x_TNH: Tensor, scale: float = 1.0) -> Tensor:
        """(P, L, H); empty slots are 0."""
        num_segments, num_heads, longest = self.sizes
        block_PLH = x_TNH.new_empty(num_segments * num_heads, longest, self._head_size)
        where = (self._bucket.starts, self._bucket.lengths, block_PLH, *self.sizes, self._head_size)
        self._kernels.gather_rows(x_TNH, x_TNH.stride(0), *where, scale)
        return block_PLH

    def scatter(self, block_PLH: Tensor, into_TNH: Tensor, scale: float = 1.0) -> None:
        where = (self._bucket.starts, self._bucket.lengths, *self.sizes, self._head_size)
        self._kernels.scatter_rows(block_PLH, into_TNH, into_TNH.stride(0), *where, scale)


class _NativeAttention(torch.autograd.Function):
    """softmax(q k^T scaling) v in every bucket."""

    @staticmethod
    def forward(
        ctx: Any,
        q_TNH: Tensor,
        k_TNH: Tensor,
        v_TNH: Tensor,
        buckets: Sequence[Bucket],
        scaling: float,
        dropout: float,
        window: int | None,
        kernels: Kernels,
    ) -> Tensor:
        q_TNH, k_TNH, v_TNH = (_with_rows(x) for x in (q_TNH, k_TNH, v_TNH))
        out_TNH = torch.empty(v_TNH.shape, dtype=v_TNH.dtype)
        saved, drops = [], []
        for bucket in buckets:
            blocks = _Blocks(kernels, bucket, *q_TNH.shape[1:])
            q_PLH, k_PLH, v_PLH = blocks.gather(q_TNH, scaling), blocks.gather(k_TNH), blocks.gather(v_TNH)
            weights_PLL = torch.bmm(q_PLH, k_PLH.transpose(1, 2))
            drop = dropout_arguments(dropout)
            used_PLL = torch.empty_like(weights_PLL) if dropout else None
            kernels.masked_softmax(
                weights_PLL, used_PLL, bucket.lengths, *blocks.sizes, -1 if window is None else window, *drop
            )
            blocks.scatter(torch.bmm(weights_PLL if used_PLL is None else used_PLL, v_PLH), out_TNH)
            saved += [q_PLH, k_PLH, v_PLH, weights_PLL]
            drops.append(drop)
        ctx.save_for_backward(*saved)
        ctx.buckets, ctx.scaling, ctx.drops, ctx.kernels = buckets, scaling, drops, kernels
        return out_TNH

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors
        out_TNH = _with_rows(grads[0])
        of_q, of_k, of_v = (torch.empty(out_TNH.shape, dtype=out_TNH.dtype) for _ in range(3))
        for place, (bucket, drop) in enumerate(zip(ctx.buckets, ctx.drops, strict=True)):
            q_PLH, k_PLH, v_PLH, weights_PLL = saved[4 * place : 4 * place + 4]
            blocks = _Blocks(ctx.kernels, bucket, *out_TNH.shape[1:])
            out_PLH = blocks.gather(out_TNH)
            change_PLL = torch.bmm(out_PLH, v_PLH.transpose(1, 2))
            used_PLL = torch.empty_like(weights_PLL) if drop[0] else None
            ctx.kernels.masked_softmax_backward(change_PLL, weights_PLL, used_PLL, bucket.lengths, *blocks.sizes, *drop)
            used_PLL = weights_PLL if used_PLL is None else used_PLL
            blocks.scatter(torch.bmm(change_PLL, k_PLH), of_q, ctx.scaling)
            blocks.scatter(torch.bmm(change_PLL.transpose(1, 2), q_PLH), of_k)  # q holds the scaling
            blocks.scatter(torch.bmm(used_PLL.transpose(1, 2), out_PLH), of_v)
        return of_q, of_k, of_v, *[None] * 5


native_attention: Callable[..., Tensor] = _NativeAttention.apply


def _with_rows(x_TNH: Tensor) -> Tensor:
    """The tensor with each token's heads in one stretch of memory, which the kernels read by rows."""
    return x_TNH if x_TNH.stride()[1:] == (x_TNH.shape[2], 1) else x_TNH.contiguous()
