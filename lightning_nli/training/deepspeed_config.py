"""DeepSpeed's settings: ours, readable, and the user's own file, which may add to them but not contradict them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightning_nli.config import ExperimentConfig
from lightning_nli.types import UserError

STAGES = {"deepspeed": 2, "deepspeed_stage_1": 1, "deepspeed_stage_2": 2, "deepspeed_stage_3": 3}
"""ZeRO stage of each `--strategy`."""

_BUCKET_ELEMENTS = 50_000_000
_DEVICES = {"none": None, "cpu": "cpu", "disk": "nvme"}
_OURS = {
    "optimizer": "--lr and --weight-decay",
    "scheduler": "--schedule and --warmup-fraction",
    "data_efficiency": "--objective",
    "curriculum_learning": "--objective",
}


@dataclass(frozen=True, kw_only=True)
class ZeroSettings:
    """What we ask of DeepSpeed. Accumulation is filled in from the trainer.

    Attributes:
        stage: 1 shares out the optimizer's state, 2 gradients too, 3 weights too.
        precision: `fp32`, `bf16` or `fp16` (dynamic loss scaling).
        clip: Largest L2 norm of the gradient; 0 for none.
        offload: Where the optimizer's state is kept: `none` (on the device), `cpu`, `disk` (stage 3).
        offload_parameters: Where weights are kept that are not in use (stage 3): `none`, `cpu`, `disk`.
        offload_dir: Folder for what goes to the disk.
        overlap: Reduce gradients while the backward pass goes on (GPU).
        bucket_elements: Gradients reduced at once; 50 million are 100 MB in bf16.
    """

    stage: int = 2
    precision: str = "fp32"
    clip: float = 0.0
    offload: str = "none"
    offload_parameters: str = "none"
    offload_dir: str | None = None
    overlap: bool = False
    bucket_elements: int = _BUCKET_ELEMENTS

    def as_json(self) -> dict[str, Any]:
        """What `deepspeed.initialize` takes."""
        settings: dict[str, Any] = {
            # Feeds DeepSpeed's own timers alone: packs have no fixed number of examples.
            "train_micro_batch_size_per_gpu": 1,
            "zero_allow_untested_optimizer": True,
            "zero_optimization": self._zero(),
        }
        if self.offload != "none":
            settings["zero_force_ds_cpu_optimizer"] = False  # torch's AdamW: the same numbers as without offloading
        if self.precision != "fp32":
            settings[self.precision] = {"enabled": True}
        if self.clip:
            settings["gradient_clipping"] = self.clip
        return settings

    def _zero(self) -> dict[str, Any]:
        zero: dict[str, Any] = {
            "stage": self.stage,
            "contiguous_gradients": True,
            "overlap_comm": self.overlap,
            "reduce_bucket_size": self.bucket_elements,
            "allgather_bucket_size": self.bucket_elements,
        }
        if self.stage == 3:
            zero["stage3_prefetch_bucket_size"] = self.bucket_elements
        for name, where in (("offload_optimizer", self.offload), ("offload_param", self.offload_parameters)):
            if where != "none":
                zero[name] = {"device": _DEVICES[where], "pin_memory": self.overlap}
            if where == "disk":
                zero[name]["nvme_path"] = self.offload_dir
        return zero


def zero_settings(config: ExperimentConfig, precision: str, *, on_gpu: bool) -> ZeroSettings:
    """Our settings for a run, checked.

    Raises:
        UserError: offloading that the stage does not do, a folder that is missing, or no async_io for the disk.
    """
    engine = config.engine
    stage = STAGES[engine.strategy]
    if engine.deepspeed_config and engine.strategy == "deepspeed":
        stage = _stage_of(read_user_file(Path(engine.deepspeed_config)), stage)
    if stage != 3 and engine.offload_parameters != "none":
        raise UserError(
            f"--offload-parameters {engine.offload_parameters}: only ZeRO stage 3 keeps weights elsewhere; "
            f"take --strategy deepspeed_stage_3, or leave it out (stage {stage})"
        )
    if stage != 3 and engine.offload == "disk":
        raise UserError(
            f"--offload disk: only ZeRO stage 3 keeps the optimizer's state on the disk (this is stage {stage}); take "
            "--strategy deepspeed_stage_3, or --offload cpu"
        )
    if engine.offload == "none" and engine.offload_parameters != "none":
        raise UserError(
            f"--offload-parameters {engine.offload_parameters} needs the optimizer's state offloaded too: add "
            "--offload cpu or disk"
        )
    if "disk" in (engine.offload, engine.offload_parameters):
        check_disk(engine.offload_dir)
    return ZeroSettings(
        stage=stage,
        precision=precision,
        clip=config.optim.clip,
        offload=engine.offload,
        offload_parameters=engine.offload_parameters,
        offload_dir=engine.offload_dir,
        overlap=on_gpu,
    )


def check_disk(folder: str | None) -> None:
    """Whether DeepSpeed can keep tensors on the disk here.

    Raises:
        UserError: no folder is given, or its async_io cannot be built.
    """
    if folder is None or not Path(folder).is_dir():
        what = "needs --offload-dir FOLDER" if folder is None else f"--offload-dir {folder} is no folder"
        raise UserError(
            f"--offload disk: {what}: a folder on a fast local disk (NVMe), one for all processes of a node"
        )
    from deepspeed.ops.op_builder import AsyncIOBuilder

    if not AsyncIOBuilder().is_compatible(verbose=False):
        raise UserError(
            "--offload disk needs DeepSpeed's async_io, which needs libaio and its headers (`lnli doctor` looks for "
            "it): apt-get install libaio-dev, or take --offload cpu"
        )


def deepspeed_json(config: ExperimentConfig, settings: ZeroSettings) -> dict[str, Any]:
    """Our settings, with what `--deepspeed-config FILE` adds.

    Raises:
        UserError: the file contradicts our options.
    """
    ours = settings.as_json()
    if config.engine.deepspeed_config is None:
        return ours
    path = Path(config.engine.deepspeed_config)
    theirs = _without_auto(read_user_file(path))
    _check_conflicts(path, theirs, config, settings)
    for name in ("gradient_accumulation_steps", "train_batch_size", "train_micro_batch_size_per_gpu"):
        theirs.pop(name, None)  # the same as ours, and filled in from there
    return _merged(ours, theirs)


def read_user_file(path: Path) -> dict[str, Any]:
    """A DeepSpeed JSON file.

    Raises:
        UserError: it cannot be read, or holds something else.
    """
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"--deepspeed-config {path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise UserError(f"--deepspeed-config {path} is not valid JSON: {error}") from None
    if not isinstance(values, dict):
        raise UserError(f"--deepspeed-config {path} must hold an object of settings")
    return values


def _without_auto(values: dict[str, Any]) -> dict[str, Any]:
    """Without what says `auto`: that is ours to fill in."""
    kept = {name: value for name, value in values.items() if value != "auto"}
    return {name: _without_auto(value) if isinstance(value, dict) else value for name, value in kept.items()}


def _merged(ours: dict[str, Any], theirs: dict[str, Any]) -> dict[str, Any]:
    merged = dict(ours)
    for name, value in theirs.items():
        both = isinstance(value, dict) and isinstance(ours.get(name), dict)
        merged[name] = _merged(ours[name], value) if both else value
    return merged


def _stage_of(values: dict[str, Any], default: int) -> int:
    stage = values.get("zero_optimization", {}).get("stage", default)
    return default if stage == "auto" else int(stage)


def _check_conflicts(path: Path, theirs: dict[str, Any], config: ExperimentConfig, ours: ZeroSettings) -> None:
    for name, flags in _OURS.items():
        if name in theirs:
            raise UserError(f"{path} has '{name}', which {flags} decide here; remove it from the file")
    zero = theirs.get("zero_optimization", {})
    world_size = config.engine.devices * config.engine.num_nodes
    micro, accumulate = config.packing.batch_size, config.optim.accumulate
    said = [
        ("gradient_accumulation_steps", theirs.get("gradient_accumulation_steps"), "--accumulate", accumulate),
        ("gradient_clipping", theirs.get("gradient_clipping"), "--clip", config.optim.clip),
        ("zero_optimization.stage", zero.get("stage"), f"--strategy {config.engine.strategy}, stage", ours.stage),
        ("zero_optimization.offload_optimizer.device", _device(zero, "offload_optimizer"), "--offload", ours.offload),
        (
            "zero_optimization.offload_param.device",
            _device(zero, "offload_param"),
            "--offload-parameters",
            ours.offload_parameters,
        ),
        (
            "bf16.enabled",
            theirs.get("bf16", {}).get("enabled"),
            f"--precision is {ours.precision}, bf16",
            ours.precision == "bf16",
        ),
        (
            "fp16.enabled",
            theirs.get("fp16", {}).get("enabled"),
            f"--precision is {ours.precision}, fp16",
            ours.precision == "fp16",
        ),
    ]
    if config.packing.max_tokens is None:
        total = micro * accumulate * world_size
        said += [
            ("train_micro_batch_size_per_gpu", theirs.get("train_micro_batch_size_per_gpu"), "--batch-size", micro),
            (
                "train_batch_size",
                theirs.get("train_batch_size"),
                f"--batch-size {micro} x --accumulate {accumulate} x {world_size} processes =",
                total,
            ),
        ]
    for name, value, flag, own in said:
        if value is not None and value != own:
            raise UserError(
                f"{path} says {name} {json.dumps(value)}, but {flag} {json.dumps(own)}: remove '{name}' from the file "
                "(the options decide), or make the two agree"
            )


def _device(zero: dict[str, Any], name: str) -> str | None:
    device = zero.get(name, {}).get("device")
    return None if device is None else {"nvme": "disk"}.get(device, str(device))
