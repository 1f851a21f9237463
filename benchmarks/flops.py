"""What a model's work costs, and how fast the machine could do it."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any


def training_flops(config: Any, lengths: Iterable[int]) -> int:
    """Useful FLOPs of forward and backward over examples of these lengths in tokens.

    Counted are the matrix products of the layers on real tokens only, 2 operations a multiplication and addition: 6 for
    each weight and token, 12 x layers x width x n^2 for attention in an example of n tokens. Padding, embedding, head,
    normalization and softmax are not counted.
    """
    hidden, layers, inner = config.hidden_size, config.num_hidden_layers, config.intermediate_size
    matrices = layers * (4 * hidden**2 + 2 * hidden * inner)
    return sum(6 * matrices * n + 12 * layers * hidden * n**2 for n in lengths)


def matmul_peak(
    hidden: int, inner: int, precision: str, *, threads: int | None = None, device: str = "cpu", tokens: int = 2048
) -> float:
    """FLOP/s of the model's largest product, the best of many.

    Args:
        hidden: Width.
        inner: Width inside the feed-forward part.
        precision: `bf16` or `fp32`.
        threads: CPU threads; None leaves them.
        device: Where.
        tokens: Rows of the product.
    """
    import torch

    if threads is not None:
        torch.set_num_threads(threads)
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    x, weight = (torch.randn(rows, hidden, device=device).to(dtype) for rows in (tokens, inner))
    products = 1 if device == "cpu" else 20  # a GPU is waited for once for all of them
    best = float("inf")
    for _ in range(50):
        _wait(device)
        started = time.perf_counter()
        for _ in range(products):
            torch.mm(x, weight.t())
        _wait(device)
        best = min(best, time.perf_counter() - started)
    return 2 * tokens * hidden * inner * products / best


def _wait(device: str) -> None:
    import torch

    if device != "cpu":
        torch.cuda.synchronize()
