"""How the parts of a checkpoint get to the disk and back: straight into the file, failures noted, never raised alone.

A process that raises while the others wait for it would make them wait for ever. So a failed write is noted, and the
processes agree afterwards on what to do (`RunCheckpoints.save`).
"""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.plugins.io import TorchCheckpointIO
from torch import Tensor

from lightning_nli.training.safe_load import load_checked

_GIB = 2**30
_SPARE_BYTES = 16 << 20  # of room that must stay: index, manifest, metrics
_FULL = (errno.ENOSPC, errno.EDQUOT)


class WriteFailure:
    """The first failure of the writes since `clear`, in one line."""

    def __init__(self) -> None:
        self.reason: str | None = None

    def clear(self) -> None:
        self.reason = None

    def write(self, values: Any, path: Path) -> None:
        """`torch.save`, noting what went wrong; what was written of the file stays."""
        try:
            torch.save(values, path)
        except (OSError, RuntimeError) as error:
            self.reason = self.reason or describe_failure(error, path)


WRITES = WriteFailure()
"""Of this process, which writes one checkpoint at a time."""


def describe_failure(error: BaseException, path: Path) -> str:
    """Why a write failed. torch says that it did, but not why: the room that is left tells."""
    code = getattr(error, "errno", None)
    parent = next(folder for folder in (path, *path.parents) if folder.exists())
    left = shutil.disk_usage(parent).free
    if code in _FULL or (code is None and left < _SPARE_BYTES):
        return f"the disk is full ({left / _GIB:.2f} GiB free for {path})"
    return (str(error).strip() or type(error).__name__).splitlines()[0]


class DirectCheckpointIO(TorchCheckpointIO):
    """Writes into the file itself, where Lightning's own first makes a second copy of everything in memory."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any | None = None) -> None:
        WRITES.write(checkpoint, Path(path))


def shard_engine() -> Any:
    """DeepSpeed's reader and writer of shards: writes as above, reads only what `safe_load` lets pass."""
    from deepspeed.runtime.checkpoint_engine.torch_checkpoint_engine import TorchCheckpointEngine

    class ShardEngine(TorchCheckpointEngine):  # type: ignore[misc]
        def save(self, state_dict: Any, path: str) -> None:
            WRITES.write(state_dict, Path(path))

        def load(self, path: str, map_location: Any = None) -> Any:
            return load_checked(path, map_location)

    return ShardEngine()


def own_parts(module: pl.LightningModule) -> list[Tensor]:
    """The values of the parameters that this process holds; with ZeRO stage 3 its parts of them."""
    return [getattr(parameter, "ds_tensor", parameter).detach() for parameter in module.parameters()]


def has_finite_weights(module: pl.LightningModule) -> bool:
    """Whether this process' weights are numbers, all of them."""
    return all(bool(torch.isfinite(part).all()) for part in own_parts(module))


def estimate_bytes(module: pl.LightningModule) -> int:
    """Room that a checkpoint takes: fp32 weights, two fp32 numbers of AdamW for each trained one."""
    sizes = [(getattr(p, "ds_numel", p.numel()), p.requires_grad) for p in module.parameters()]
    return sum(4 * count + 8 * count * trained for count, trained in sizes)


def lack_of_room(folder: Path, num_bytes: int) -> str | None:
    """What is wrong if `num_bytes` do not fit into `folder`; None where they do."""
    free = shutil.disk_usage(folder).free
    if free >= num_bytes + _SPARE_BYTES:
        return None
    return f"a checkpoint takes {num_bytes / _GIB:.2f} GiB, {free / _GIB:.2f} GiB are free in {folder}"


def delete(path: Path) -> None:
    """Delete a file or folder; a folder is renamed first, so that half of one never looks like a whole one."""
    if path.is_dir():
        gone = path.with_name(f".gone-{path.name}-{os.getpid()}")
        path.rename(gone)
        shutil.rmtree(gone)
    else:
        path.unlink(missing_ok=True)
