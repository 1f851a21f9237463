"""Dropout on CPUs at memory speed: torch's own spends most of its time on its random numbers.

A mask holds 0 or 1 / (1 - p) for each element, drawn from 16 bits of numpy's SFC64, which torch's generator seeds once
a call: `torch.manual_seed` fixes the masks, and recomputed activations get the same ones again. `p` is taken to the
nearest 1 / 32768.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

_STEPS = 1 << 15


def dropout_mask(shape: tuple[int, ...], p: float, dtype: torch.dtype) -> Tensor:
    """A CPU tensor of `shape`: 0 with probability `p`, else 1 / (1 - p).

    Raises:
        ValueError: `p` is not in [0, 1).
    """
    if not 0 <= p < 1:
        raise ValueError(f"a share of [0, 1) can be dropped, got {p=}")
    size = int(np.prod(shape))
    seed = int(torch.randint(2**62, ()))
    raw = np.random.SFC64(seed).random_raw(-(-size // 4)).view(np.int16)[:size]
    # In place on 16-bit lanes, without a branch: below the threshold the difference is negative, its sign fills all
    # bits and the complement clears the value.
    bits = np.bitwise_and(raw, _STEPS - 1, out=raw)
    np.subtract(bits, round(p * _STEPS), out=bits)
    np.right_shift(bits, 15, out=bits)
    np.invert(bits, out=bits)
    kept = torch.tensor(1 / (1 - p), dtype=dtype)
    if dtype is torch.bfloat16:
        return torch.from_numpy(np.bitwise_and(bits, kept.view(torch.int16).item(), out=bits)).view(dtype).view(shape)
    return torch.from_numpy(bits).to(dtype).mul_(-kept).view(shape)


class FastDropout(nn.Module):
    """`nn.Dropout` with `dropout_mask` on CPUs; elsewhere torch's own."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        if x.device.type != "cpu" or self.p >= 1:
            return F.dropout(x, self.p)
        return x * dropout_mask(tuple(x.shape), self.p, x.dtype)

    def extra_repr(self) -> str:
        return f"p={self.p}"


def set_dropout(model: nn.Module, p: float) -> None:
    """Let every layer of a model drop a share of `p`, attention weights included."""
    for module in model.modules():
        if isinstance(module, nn.Dropout | FastDropout):
            module.p = p
        for name in ("dropout", "attention_dropout"):  # attention that drops by itself
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, p)


def speed_up_dropout(model: nn.Module) -> None:
    """Put `FastDropout` in the place of every `nn.Dropout` of a model."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.Dropout:
                swapped: Any = FastDropout(child.p)
                setattr(parent, name, swapped.train(child.training))
