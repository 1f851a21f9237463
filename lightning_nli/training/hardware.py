"""What the hardware computes natively; imports torch only when asked."""

from __future__ import annotations


def has_native_bf16(accelerator: str) -> bool:
    """Whether bf16 matrix products run in hardware on a `gpu` or `cpu`."""
    import torch

    if accelerator == "gpu":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())
