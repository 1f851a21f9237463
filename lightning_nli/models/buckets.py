"""Attention inside segments as batched matrix products over buckets of segments of similar length: the CPU kernel.

One autograd function with its gradient by hand: of its time on a CPU the products should be the most, and what autograd
does for slices, masks and dropout in small steps costs more than they do.

Shape suffixes: T tokens of the pack, N heads, H head, B segments of one bucket, L longest of a bucket, P = B * N.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from lightning_nli.models.dropout import dropout_mask

_BUCKET_FILL = 0.8  # a segment shorter than this share of its bucket's longest opens a new bucket


@dataclass(frozen=True)
class Bucket:
    """Consecutive segments of similar length, as a padded (B, L) block.

    Attributes:
        start: First token in the pack.
        stop: One past the last.
        starts: (B,) int32, first token of each segment in the pack.
        lengths: (B,) int32.
        longest: L.
        padded_to_token: (B * L,) token of each slot, counted from `start`; an empty slot repeats its segment's last
            token. None: the segments are of one length, there is no empty slot.
        token_to_padded: (stop - start,) slot of each token.
        is_empty: (B, L) bool.
    """

    start: int
    stop: int
    starts: Tensor
    lengths: Tensor
    longest: int
    padded_to_token: Tensor | None
    token_to_padded: Tensor | None
    is_empty: Tensor | None

    @property
    def num_segments(self) -> int:
        return len(self.lengths)


def make_buckets(cu_seqlens: Tensor) -> list[Bucket]:
    """Cut a pack into runs of segments of similar length.

    Args:
        cu_seqlens: (S+1,) from 0 to T.
    """
    bounds: list[int] = cu_seqlens.tolist()
    lengths = [stop - start for start, stop in pairwise(bounds)]
    buckets: list[Bucket] = []
    first = 0
    for index in range(1, len(lengths) + 1):
        group = lengths[first : index + 1]
        if index == len(lengths) or min(group) < _BUCKET_FILL * max(group):
            buckets.append(_make_bucket(bounds[first], lengths[first:index], cu_seqlens.device))
            first = index
    return buckets


def _make_bucket(start: int, lengths: Sequence[int], device: torch.device) -> Bucket:
    total, longest = sum(lengths), max(lengths)
    lengths_B = torch.tensor(lengths, device=device)
    starts_B = lengths_B.cumsum(0) - lengths_B
    where = (start, start + total, (starts_B + start).int(), lengths_B.int(), longest)
    if min(lengths) == longest:
        return Bucket(*where, None, None, None)
    slot_L = torch.arange(longest, device=device)
    is_empty_BL = slot_L >= lengths_B[:, None]
    token_BL = starts_B[:, None] + torch.minimum(slot_L, lengths_B[:, None] - 1)
    token_to_padded = (~is_empty_BL).flatten().nonzero().squeeze(1)
    return Bucket(*where, token_BL.flatten(), token_to_padded, is_empty_BL)


def outside_window(length: int, window: int, device: torch.device) -> Tensor:
    """(L, L) bool: pairs of places that are more than `window` apart."""
    place_L = torch.arange(length, device=device)
    return (place_L[:, None] - place_L[None, :]).abs() > window


def empty_for(shape: Sequence[int], like: Tensor, buckets: Sequence[Bucket]) -> Tensor:
    """A tensor of (T, ...) to write buckets to; places behind the last one are 0."""
    made = torch.empty(shape, dtype=like.dtype, device=like.device)
    made[buckets[-1].stop :] = 0
    return made


def bucketed_attention(
    q_TNH: Tensor,
    k_TNH: Tensor,
    v_TNH: Tensor,
    buckets: Sequence[Bucket],
    *,
    scaling: float,
    dropout: float = 0.0,
    window: int | None = None,
) -> Tensor:
    """A token sees its own segment (with `window`, at most so many places away) and nothing else: (T, N, H).

    Places behind the last bucket get 0.
    """
    return _attend(q_TNH, k_TNH, v_TNH, buckets, scaling, dropout, window)


class _BucketedAttention(torch.autograd.Function):
    """softmax(q k^T scaling) v in every bucket.

    With W the softmax, M the dropout mask and O = (W M) V: dV = (W M)^T dO, dW = (dO V^T) M, dS = the softmax' own
    gradient of dW, dQ = scaling dS K, dK = scaling dS^T Q.
    """

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
    ) -> Tensor:
        out_TNH = empty_for(v_TNH.shape, v_TNH, buckets)
        saved: list[Tensor | None] = []
        for bucket in buckets:
            q_PLH, k_PLH, v_PLH = (_to_block(x, bucket) for x in (q_TNH, k_TNH, v_TNH))
            q_PLH = q_PLH * scaling
            scores_PLL = torch.bmm(q_PLH, k_PLH.transpose(1, 2))
            _hide(scores_PLL, bucket, q_TNH.shape[1], window)
            weights_PLL = scores_PLL.softmax(-1)
            mask_PLL = _mask_like(weights_PLL, dropout)
            used_PLL = weights_PLL if mask_PLL is None else weights_PLL * mask_PLL
            _from_block(torch.bmm(used_PLL, v_PLH), bucket, out_TNH)
            saved += [q_PLH, k_PLH, v_PLH, weights_PLL, mask_PLL]
        ctx.save_for_backward(*saved)
        ctx.buckets, ctx.scaling = buckets, scaling
        return out_TNH

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors
        into_TNH = [empty_for(grads[0].shape, grads[0], ctx.buckets) for _ in range(3)]
        for place, bucket in enumerate(ctx.buckets):
            q_PLH, k_PLH, v_PLH, weights_PLL, mask_PLL = saved[5 * place : 5 * place + 5]
            out_PLH = _to_block(grads[0], bucket, fill_empty=False)
            change_PLL = torch.bmm(out_PLH, v_PLH.transpose(1, 2))
            used_PLL = weights_PLL
            if mask_PLL is not None:
                used_PLL = weights_PLL * mask_PLL
                change_PLL.mul_(mask_PLL)
            scores_PLL = torch._softmax_backward_data(change_PLL, weights_PLL, -1, weights_PLL.dtype)
            blocks = (
                torch.bmm(scores_PLL, k_PLH).mul_(ctx.scaling),
                torch.bmm(scores_PLL.transpose(1, 2), q_PLH),  # q holds the scaling
                torch.bmm(used_PLL.transpose(1, 2), out_PLH),
            )
            for block_PLH, x_TNH in zip(blocks, into_TNH, strict=True):
                _from_block(block_PLH, bucket, x_TNH)
        return (*into_TNH, None, None, None, None)


_attend: Callable[..., Tensor] = _BucketedAttention.apply


def _to_block(x_TNH: Tensor, bucket: Bucket, *, fill_empty: bool = True) -> Tensor:
    """The bucket's tokens as (P, L, H); empty slots hold a copy of a token, or 0."""
    x_TNH = x_TNH[bucket.start : bucket.stop]
    if bucket.padded_to_token is not None:
        x_TNH = x_TNH.index_select(0, bucket.padded_to_token)
    x_BLNH = x_TNH.reshape(bucket.num_segments, bucket.longest, *x_TNH.shape[1:])
    if not fill_empty and bucket.is_empty is not None:
        x_BLNH = x_BLNH.masked_fill(bucket.is_empty[:, :, None, None], 0)
    return x_BLNH.transpose(1, 2).reshape(-1, bucket.longest, x_TNH.shape[-1])


def _from_block(block_PLH: Tensor, bucket: Bucket, into_TNH: Tensor) -> None:
    """Write a (P, L, H) block to its tokens."""
    num_heads, size = into_TNH.shape[1:]
    x_BLNH = block_PLH.view(bucket.num_segments, num_heads, bucket.longest, size).transpose(1, 2)
    span_TNH = into_TNH[bucket.start : bucket.stop]
    if bucket.token_to_padded is None:
        span_TNH.view(x_BLNH.shape).copy_(x_BLNH)
    else:
        torch.index_select(x_BLNH.reshape(-1, num_heads, size), 0, bucket.token_to_padded, out=span_TNH)


def _hide(scores_PLL: Tensor, bucket: Bucket, num_heads: int, window: int | None) -> None:
    """Lower, in place, the scores of what a token does not see."""
    if window is not None and bucket.longest > window + 1:
        # Not -inf: an empty slot may lie so far behind its segment that its window holds no token, and the NaN of
        # such a row would reach the gradients.
        lowest = torch.finfo(scores_PLL.dtype).min
        scores_PLL.masked_fill_(outside_window(bucket.longest, window, scores_PLL.device), lowest)
    if bucket.is_empty is not None:
        hidden_BL = scores_PLL.new_zeros(bucket.is_empty.shape).masked_fill_(bucket.is_empty, float("-inf"))
        scores_BNLL = scores_PLL.view(bucket.num_segments, num_heads, bucket.longest, bucket.longest)
        scores_BNLL.add_(hidden_BL[:, None, None, :])


def _mask_like(weights_PLL: Tensor, dropout: float) -> Tensor | None:
    if dropout == 0:
        return None
    if weights_PLL.device.type == "cpu":
        return dropout_mask(tuple(weights_PLL.shape), dropout, weights_PLL.dtype)
    return F.dropout(torch.ones_like(weights_PLL), dropout)
