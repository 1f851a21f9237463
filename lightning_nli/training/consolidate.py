"""Shards or a checkpoint -> one fp32 file of weights, read back and compared before it gets its name."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lightning_nli.training.manifest import sync
from lightning_nli.training.run_folder import read_run_config
from lightning_nli.training.trained import checkpoint_path, load_model
from lightning_nli.types import UserError

_FORMATS = (".safetensors", ".pt")
_PROBE_SHAPE = (4, 24)


@dataclass(frozen=True)
class Consolidated:
    """What was written.

    Attributes:
        path: The file.
        checkpoint: Where the weights are from.
        num_tensors: In the file.
        num_parameters: In the file.
        largest_difference: Of any logit on probe inputs, between the model with the checkpoint's weights and the one
            with the file's.
    """

    path: Path
    checkpoint: Path
    num_tensors: int
    num_parameters: int
    largest_difference: float


def consolidate(source: Path, target: Path, *, choice: str = "best") -> Consolidated:
    """Write a checkpoint's weights, every vocabulary row included, as one fp32 file under the model's own names.

    The file is read back without DeepSpeed: every tensor must be the one written, and a model with them must answer
    probe inputs with the same logits.

    Args:
        source: Run folder, or one of its checkpoints.
        target: New file, `.safetensors` or `.pt` (a state dict).
        choice: `best` or `last`, of a run folder.

    Raises:
        UserError: the source is no run or checkpoint of ours or is damaged, or the target exists.
    """
    if target.suffix not in _FORMATS:
        raise UserError(f"{target} must end in {' or '.join(_FORMATS)}")
    if target.exists():
        raise UserError(f"{target} exists; give another file")
    folder, checkpoint = _find(source, choice)
    config = read_run_config(folder)
    model = load_model(folder, checkpoint, config)
    weights = {name: value.float().contiguous().clone() for name, value in model.state_dict().items()}
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{target.stem}.{os.getpid()}{target.suffix}")
    try:
        _write(weights, partial)
        difference = _prove(model, weights, partial)
        sync(partial)
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
    num_parameters = sum(value.numel() for value in weights.values())
    return Consolidated(target, checkpoint, len(weights), num_parameters, difference)


def _find(source: Path, choice: str) -> tuple[Path, Path]:
    if (source / "config.yaml").exists():
        return source, checkpoint_path(source, choice)
    if not source.exists():
        raise UserError(f"{source} does not exist")
    folder = source.resolve().parent.parent
    if not (folder / "config.yaml").exists():
        raise UserError(f"{source} is neither a run folder nor a checkpoint in one (RUN/checkpoints/NAME)")
    return folder, source


def _write(weights: dict[str, Tensor], path: Path) -> None:
    if path.suffix == ".pt":
        torch.save(weights, path)
        return
    from safetensors.torch import save_file

    save_file(weights, path)


def read_consolidated(path: Path) -> dict[str, Tensor]:
    """The weights of a consolidated file."""
    if path.suffix == ".pt":
        weights: dict[str, Tensor] = torch.load(path, weights_only=True)
        return weights
    from safetensors.torch import load_file

    return dict(load_file(path))


def _prove(model: Any, written: dict[str, Tensor], path: Path) -> float:
    """Largest difference of a probe's logits between `model` and itself with the weights of the file."""
    found = read_consolidated(path)
    wrong = [name for name, value in written.items() if not torch.equal(found.get(name, torch.empty(0)), value)]
    assert not wrong and found.keys() == written.keys(), f"{path} does not read back as written: {wrong[:3]}"
    num_rows = len(model.get_input_embeddings().weight)
    ids = torch.randint(num_rows, _PROBE_SHAPE, generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    with torch.inference_mode():
        before = model(input_ids=ids, attention_mask=mask).logits
        for parameter in model.parameters():
            parameter.zero_()  # what answers next can only come from the file
        model.load_state_dict(found)
        after = model(input_ids=ids, attention_mask=mask).logits
    difference = float((before - after).abs().max())
    assert difference == 0, f"{path} answers other logits than the checkpoint, by {difference}"
    return difference
