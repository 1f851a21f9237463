"""Settings of engine and checkpoints that only make sense together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning_nli.types import UserError

if TYPE_CHECKING:
    from lightning_nli.config_schema import ExperimentConfig


def check_engine_settings(config: ExperimentConfig) -> None:
    """Make sure that no engine or checkpoint setting is without effect.

    Raises:
        UserError: names the setting, its value and the mend.
    """
    engine, checkpoints = config.engine, config.checkpoints
    deepspeed_only = {
        "--offload": engine.offload if engine.offload != "none" else None,
        "--offload-parameters": engine.offload_parameters if engine.offload_parameters != "none" else None,
        "--deepspeed-config": engine.deepspeed_config,
    }
    given = [f"{flag} {value}" for flag, value in deepspeed_only.items() if value is not None]
    is_deepspeed = engine.strategy.startswith("deepspeed")
    if given and not is_deepspeed:
        raise UserError(f"{given[0]} is DeepSpeed's; --strategy is {engine.strategy}: take --strategy deepspeed")
    if engine.offload_dir is not None and "disk" not in (engine.offload, engine.offload_parameters):
        raise UserError(f"--offload-dir {engine.offload_dir} is for --offload disk, which is not asked for")
    if engine.on_nan == "skip" and is_deepspeed:
        raise UserError("--on-nan skip: DeepSpeed cannot leave out a step; take --on-nan stop, or --strategy ddp")
    if checkpoints.save_minutes < 0:
        raise UserError(f"--save-minutes must not be below 0, got {checkpoints.save_minutes}")
    if checkpoints.patience is not None and checkpoints.patience < 1:
        raise UserError(f"--patience must be above 0, got {checkpoints.patience}")
