"""Parameter groups and schedule."""

from __future__ import annotations

import math

from torch import nn
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR

from lightning_nli.config import OptimConfig


def build_optimizer(module: nn.Module, config: OptimConfig, *, fused: bool = True) -> AdamW:
    """AdamW; biases and normalization weights (all 1-dimensional parameters) are not decayed.

    Args:
        module: Whose parameters.
        config: Rate and decay.
        fused: One kernel for all parameters; Lightning cannot clip for it under autocast.
    """
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for p in trained if p.dim() > 1], "weight_decay": config.weight_decay},
        {"params": [p for p in trained if p.dim() <= 1], "weight_decay": 0.0},
    ]
    return AdamW(groups, lr=config.lr, fused=fused)


def build_schedule(optimizer: AdamW, config: OptimConfig, num_steps: int) -> LambdaLR:
    """Linear warm-up from 0, then `config.schedule` to the end of `num_steps` optimizer steps."""
    warmup_steps = round(config.warmup_fraction * num_steps)

    def factor(step: int) -> float:
        if step < warmup_steps:
            return step / warmup_steps
        if config.schedule == "constant":
            return 1.0
        done = min(1.0, (step - warmup_steps) / max(1, num_steps - warmup_steps))
        return 1.0 - done if config.schedule == "linear" else 0.5 * (1.0 + math.cos(math.pi * done))

    return LambdaLR(optimizer, factor)
