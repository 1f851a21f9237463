"""Settings that SetFit reads, and those it does not."""

from __future__ import annotations

from dataclasses import asdict

from lightning_nli.config_schema import EngineConfig, ExperimentConfig, OptimConfig, PackingConfig, SetFitConfig
from lightning_nli.types import UserError

SETFIT = "setfit"

ENCODER_METHODS = ("finetune", SETFIT)
"""Methods that train an encoder: another seed gives another model, and one on hypotheses alone is its twin."""

_IGNORED = {
    "optim": ("weight_decay", "epochs", "accumulate", "schedule", "clip"),
    "packing": ("max_tokens", "eval_max_tokens"),
    "engine": tuple(name for name in asdict(EngineConfig()) if name != "accelerator"),
}
_PLAIN = {"optim": OptimConfig(), "packing": PackingConfig(), "engine": EngineConfig()}


def check_setfit(config: ExperimentConfig) -> None:
    """Refuse settings of SetFit without SetFit, and settings that SetFit would ignore.

    Raises:
        UserError: names the settings.
    """
    if config.method != SETFIT:
        if config.setfit != SetFitConfig():
            raise UserError(f"--num-iterations and --max-pairs belong to --method {SETFIT}; leave them out")
        return
    if config.setfit.num_iterations < 1 or config.setfit.max_pairs < 1:
        raise UserError("--num-iterations and --max-pairs must be above 0")
    if config.text.template != "separators" or config.text.chunk_pool != "none":
        raise UserError(f"--method {SETFIT} joins texts by separators and reads no chunks; leave out what asks for it")
    ignored = [name for name in ("head", "objective", "checkpoints") if _differs(config, name)]
    ignored += [
        name
        for group, names in _IGNORED.items()
        for name in names
        if getattr(getattr(config, group), name) != getattr(_PLAIN[group], name)
    ]
    if ignored:
        raise UserError(
            f"--method {SETFIT} reads of the training settings --lr, --batch-size, --warmup-fraction, "
            f"--num-iterations and --max-pairs only; leave out: {', '.join(ignored)}"
        )


def _differs(config: ExperimentConfig, name: str) -> bool:
    return bool(getattr(config, name) != getattr(ExperimentConfig(), name))
