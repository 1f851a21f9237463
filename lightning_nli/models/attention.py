"""Attention inside segments: flash kernels on a GPU, an exact twin on the CPU, and a slow reference.

Shape suffixes: T tokens of the pack, N heads, H head, S segments, B segments of one bucket, L longest of a bucket.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from lightning_nli.types import UserError

HOOK_NAME = "lightning_nli_packed"
"""Name under which the packed attention is registered with transformers."""

_BUCKET_FILL = 0.8  # a segment shorter than this share of its bucket's longest opens a new bucket


class AttentionBackend(StrEnum):
    """How attention inside segments is computed."""

    FLASH = "flash"  # flash_attn.flash_attn_varlen_func
    VARLEN = "varlen"  # torch.nn.attention.varlen, the flash kernel inside torch
    BUCKETED = "bucketed"  # batched matmul over buckets of segments of similar length: the CPU twin
    SDPA = "sdpa"  # one masked T x T product: the reference


def choose_backend(name: str, device: torch.device) -> AttentionBackend:
    """The backend for `--attention NAME` on a device.

    Raises:
        UserError: the device or an install lacks what the backend needs.
    """
    has_flash = importlib.util.find_spec("flash_attn") is not None
    if name == "auto":
        if device.type != "cuda":
            return AttentionBackend.BUCKETED
        return AttentionBackend.FLASH if has_flash else AttentionBackend.VARLEN
    backend = AttentionBackend(name)
    if backend in (AttentionBackend.FLASH, AttentionBackend.VARLEN) and device.type != "cuda":
        raise UserError(f"--attention {name} needs a GPU and none is used; on a CPU take --attention bucketed")
    if backend is AttentionBackend.FLASH and not has_flash:
        raise UserError(
            "--attention flash needs the package flash-attn: pip install 'lightning-nli[cuda]', "
            "or take --attention varlen, the same kernel inside torch"
        )
    return backend


@dataclass(frozen=True)
class _Bucket:
    """Consecutive segments of similar length, as a padded (B, L) block."""

    start: int  # first token in the pack
    stop: int
    num_segments: int
    longest: int
    padded_to_token: Tensor | None  # (B * L,) token of each slot (a repeat where the slot is empty); None: no padding
    token_to_padded: Tensor | None  # (stop - start,) slot of each token
    is_empty: Tensor | None  # (B, 1, 1, L) bool


@dataclass
class AttentionLayout:
    """Where the segments of one pack lie; made once a forward pass and handed to every layer.

    Attributes:
        cu_seqlens: (S+1,) int32.
        max_seqlen: Longest segment.
        backend: How to compute.
        buckets: Of the bucketed backend.
        num_calls: Layers that have used it: a model that ignores the hook leaves it at 0.
    """

    cu_seqlens: Tensor
    max_seqlen: int
    backend: AttentionBackend
    buckets: list[_Bucket]
    num_calls: int = 0

    @classmethod
    def of(cls, cu_seqlens: Tensor, max_seqlen: int, backend: AttentionBackend) -> AttentionLayout:
        bucketed = backend is AttentionBackend.BUCKETED
        return cls(cu_seqlens, max_seqlen, backend, _make_buckets(cu_seqlens) if bucketed else [])


def _make_buckets(cu_seqlens: Tensor) -> list[_Bucket]:
    bounds: list[int] = cu_seqlens.tolist()
    lengths = [stop - start for start, stop in pairwise(bounds)]
    buckets: list[_Bucket] = []
    first = 0
    for index in range(1, len(lengths) + 1):
        group = lengths[first : index + 1]
        if index == len(lengths) or min(group) < _BUCKET_FILL * max(group):
            buckets.append(_make_bucket(bounds[first], lengths[first:index], cu_seqlens.device))
            first = index
    return buckets


def _make_bucket(start: int, lengths: Sequence[int], device: torch.device) -> _Bucket:
    total, longest = sum(lengths), max(lengths)
    if min(lengths) == longest:
        return _Bucket(start, start + total, len(lengths), longest, None, None, None)
    lengths_B = torch.tensor(lengths, device=device)
    starts_B = lengths_B.cumsum(0) - lengths_B
    slot_L = torch.arange(longest, device=device)
    is_empty_BL = slot_L >= lengths_B[:, None]
    token_BL = starts_B[:, None] + torch.minimum(slot_L, lengths_B[:, None] - 1)
    token_to_padded = (~is_empty_BL).flatten().nonzero().squeeze(1)
    return _Bucket(
        start, start + total, len(lengths), longest, token_BL.flatten(), token_to_padded, is_empty_BL[:, None, None]
    )


class _Gather(torch.autograd.Function):
    """Rows of `x` by index, with a backward that gathers too (scattering is slow on CPUs).

    `index` maps output rows to input rows, `inverse` the other way; extra output rows get no gradient through
    (their upstream gradient is zero by construction: empty slots are masked).
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, index: Tensor, inverse: Tensor) -> Tensor:
        ctx.save_for_backward(inverse)
        return x.index_select(0, index)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (inverse,) = ctx.saved_tensors
        return grads[0].index_select(0, inverse), None, None


class _Scatter(torch.autograd.Function):
    """The way back: real slots of a padded block to tokens; empty slots get a zero gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, token_to_padded: Tensor) -> Tensor:
        ctx.save_for_backward(token_to_padded)
        ctx.rows = x.shape[0]
        return x.index_select(0, token_to_padded)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (token_to_padded,) = ctx.saved_tensors
        full = grads[0].new_zeros((ctx.rows, *grads[0].shape[1:]))
        return full.index_copy_(0, token_to_padded, grads[0]), None


_gather: Callable[..., Tensor] = _Gather.apply
_scatter: Callable[..., Tensor] = _Scatter.apply


def varlen_attention(
    q_TNH: Tensor,
    k_TNH: Tensor,
    v_TNH: Tensor,
    cu_seqlens: Tensor,
    max_seqlen: int,
    *,
    backend: AttentionBackend,
    scaling: float | None = None,
    dropout: float = 0.0,
    window: int | None = None,
) -> Tensor:
    """Bidirectional attention in which a token sees its own segment and nothing else: (T, N, H).

    With `window`, it sees of its segment the tokens that are at most so many places away.
    """
    layout = AttentionLayout.of(cu_seqlens, max_seqlen, backend)
    return packed_attention(q_TNH, k_TNH, v_TNH, layout, scaling=scaling, dropout=dropout, window=window)


def packed_attention(
    q_TNH: Tensor,
    k_TNH: Tensor,
    v_TNH: Tensor,
    layout: AttentionLayout,
    *,
    scaling: float | None = None,
    dropout: float = 0.0,
    window: int | None = None,
) -> Tensor:
    """`varlen_attention` over a layout that is already made."""
    scaling = q_TNH.shape[-1] ** -0.5 if scaling is None else scaling
    if layout.backend is AttentionBackend.BUCKETED:
        return _bucketed(q_TNH, k_TNH, v_TNH, layout.buckets, scaling, dropout, window)
    if layout.backend is AttentionBackend.SDPA:
        visible_TT = _visible(layout.cu_seqlens, window)
        q_NTH, k_NTH, v_NTH = (x.transpose(0, 1) for x in (q_TNH, k_TNH, v_TNH))
        return F.scaled_dot_product_attention(
            q_NTH, k_NTH, v_NTH, attn_mask=visible_TT, dropout_p=dropout, scale=scaling
        ).transpose(0, 1)
    cu_seqlens, longest = layout.cu_seqlens, layout.max_seqlen
    sides = (-1, -1) if window is None else (window, window)
    if layout.backend is AttentionBackend.FLASH:
        from flash_attn import flash_attn_varlen_func

        options = {"dropout_p": dropout, "softmax_scale": scaling, "window_size": sides}
        out = flash_attn_varlen_func(q_TNH, k_TNH, v_TNH, cu_seqlens, cu_seqlens, longest, longest, **options)
        return out  # type: ignore[no-any-return]
    from torch.nn.attention.varlen import varlen_attn

    # This kernel has no dropout; `load_encoder` has said so.
    out = varlen_attn(q_TNH, k_TNH, v_TNH, cu_seqlens, cu_seqlens, longest, longest, scale=scaling, window_size=sides)
    return out if isinstance(out, Tensor) else out[0]


def _visible(cu_seqlens: Tensor, window: int | None) -> Tensor:
    """(T, T) bool: which token (column) a token (row) sees."""
    segment_index = torch.arange(cu_seqlens.numel() - 1, device=cu_seqlens.device)
    segment_T = torch.repeat_interleave(segment_index, cu_seqlens.diff())
    same_TT = segment_T[:, None] == segment_T[None, :]
    return same_TT if window is None else same_TT & ~_outside(len(segment_T), window, cu_seqlens.device)


def _outside(length: int, window: int, device: torch.device) -> Tensor:
    """(L, L) bool: pairs of places that are more than `window` apart."""
    place_L = torch.arange(length, device=device)
    return (place_L[:, None] - place_L[None, :]).abs() > window


def _bucketed(
    q_TNH: Tensor,
    k_TNH: Tensor,
    v_TNH: Tensor,
    buckets: list[_Bucket],
    scaling: float,
    dropout: float,
    window: int | None,
) -> Tensor:
    outputs = []
    for bucket in buckets:
        span = slice(bucket.start, bucket.stop)
        q_BNLH = _to_block(q_TNH[span], bucket)
        k_BNLH = _to_block(k_TNH[span], bucket)
        v_BNLH = _to_block(v_TNH[span], bucket)
        scores_BNLL = torch.matmul(q_BNLH * scaling, k_BNLH.transpose(-1, -2))
        if window is not None and bucket.longest > window + 1:
            # Not -inf: an empty slot may lie so far behind its segment that its window holds no token, and the NaN of
            # such a row would reach the gradients.
            lowest = torch.finfo(scores_BNLL.dtype).min
            scores_BNLL = scores_BNLL.masked_fill(_outside(bucket.longest, window, scores_BNLL.device), lowest)
        if bucket.is_empty is not None:
            scores_BNLL = scores_BNLL.masked_fill(bucket.is_empty, float("-inf"))
        weights_BNLL = F.dropout(scores_BNLL.softmax(-1), dropout, training=dropout > 0)
        out_BLNH = torch.matmul(weights_BNLL, v_BNLH).transpose(1, 2)
        block = out_BLNH.reshape(-1, *q_TNH.shape[1:])
        outputs.append(block if bucket.token_to_padded is None else _scatter(block, bucket.token_to_padded))
    return torch.cat(outputs)


def _to_block(x_TNH: Tensor, bucket: _Bucket) -> Tensor:
    if bucket.padded_to_token is not None:
        x_TNH = _gather(x_TNH, bucket.padded_to_token, bucket.token_to_padded)
    return x_TNH.view(bucket.num_segments, bucket.longest, *x_TNH.shape[1:]).transpose(1, 2)


def attention_hook(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    packed_layout: AttentionLayout,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """What transformers calls in every layer: (1, N, T, H) in, (1, T, N, H) out.

    A layer's `sliding_window` counts the token itself (the library's convention for flash kernels): a token sees
    `sliding_window - 1` places to either side.

    Raises:
        UserError: the layer asks for something that packing does not compute (causal order, a soft cap, a bias).
    """
    asked = {name: options[name] for name in ("softcap", "position_bias") if options.get(name) is not None}
    if getattr(module, "is_causal", False):
        asked["is_causal"] = True
    if asked or attention_mask is not None:
        raise UserError(f"packed attention does not compute {asked or 'a mask'}; take --attention padded")
    packed_layout.num_calls += 1
    q_TNH, k_TNH, v_TNH = (x[0].transpose(0, 1) for x in (query, key, value))
    window = None if sliding_window is None else sliding_window - 1
    out_TNH = packed_attention(q_TNH, k_TNH, v_TNH, packed_layout, scaling=scaling, dropout=dropout, window=window)
    return out_TNH[None], None


def register_attention_hook() -> None:
    """Make the packed attention known to transformers; harmless when repeated."""
    from transformers import AttentionInterface

    AttentionInterface.register(HOOK_NAME, attention_hook)
