"""Attention inside segments: flash kernels on a GPU, an exact twin on the CPU, and a slow reference.

Shape suffixes: T tokens of the pack, N heads, H head, S segments.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from lightning_nli.models.buckets import Bucket, bucketed_attention, make_buckets, outside_window
from lightning_nli.models.native import kernels_for
from lightning_nli.models.native_attention import BlockAttention, native_attention
from lightning_nli.types import UserError

HOOK_NAME = "lightning_nli_packed"
"""Name under which the packed attention is registered with transformers."""


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


@dataclass
class AttentionLayout:
    """Where the segments of one pack lie; made once a forward pass and handed to every layer.

    Attributes:
        cu_seqlens: (S+1,) int32.
        max_seqlen: Longest segment.
        backend: How to compute.
        buckets: Of the bucketed backend.
        num_tokens: Of all segments, where tensors may have places behind them that no segment holds; else None.
        num_calls: Layers that have used it: a model that ignores the hook leaves it at 0.
    """

    cu_seqlens: Tensor
    max_seqlen: int
    backend: AttentionBackend
    buckets: list[Bucket]
    num_tokens: int | None
    num_calls: int = 0

    @classmethod
    def of(cls, cu_seqlens: Tensor, max_seqlen: int, backend: AttentionBackend) -> AttentionLayout:
        bucketed = backend is AttentionBackend.BUCKETED
        buckets = make_buckets(cu_seqlens) if bucketed else []
        return cls(cu_seqlens, max_seqlen, backend, buckets, buckets[-1].stop if bucketed else None)


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
        kernels = kernels_for(q_TNH, k_TNH, v_TNH)
        if kernels is not None:
            num_heads, head_size = q_TNH.shape[1:]
            blocks = BlockAttention(kernels, layout.buckets, num_heads, head_size, scaling, dropout, window)
            return native_attention(blocks, q_TNH, k_TNH, v_TNH)
        return bucketed_attention(q_TNH, k_TNH, v_TNH, layout.buckets, scaling=scaling, dropout=dropout, window=window)
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
        return _first(flash_attn_varlen_func(q_TNH, k_TNH, v_TNH, cu_seqlens, cu_seqlens, longest, longest, **options))
    from torch.nn.attention.varlen import varlen_attn

    # This kernel has no dropout; `load_encoder` has said so.
    return _first(
        varlen_attn(q_TNH, k_TNH, v_TNH, cu_seqlens, cu_seqlens, longest, longest, scale=scaling, window_size=sides)
    )


def _first(found: Tensor | tuple[Tensor, ...]) -> Tensor:
    """The attention itself, where a version of a kernel returns more than that."""
    return found if isinstance(found, Tensor) else found[0]


def _visible(cu_seqlens: Tensor, window: int | None) -> Tensor:
    """(T, T) bool: which token (column) a token (row) sees."""
    segment_index = torch.arange(cu_seqlens.numel() - 1, device=cu_seqlens.device)
    segment_T = torch.repeat_interleave(segment_index, cu_seqlens.diff())
    same_TT = segment_T[:, None] == segment_T[None, :]
    return same_TT if window is None else same_TT & ~outside_window(len(segment_T), window, cu_seqlens.device)


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
