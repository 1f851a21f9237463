"""Our training inside a benchmark: built as `lnli fit` builds it, watched step by step."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytorch_lightning as lightning
from contestants import Task, run_data

from lightning_nli.config import ExperimentConfig, parse_config
from lightning_nli.training.run import BuiltRun, build_run


def build(task: Task, table: Any, folder: Path, *flags: str) -> BuiltRun:
    """A run over the rows of `table` under the settings of `task`, then `flags`.

    Args:
        task: Model, batch size, rate and so on.
        table: Rows as in `Task.table`.
        folder: Empty run folder.
        flags: Further settings of `lnli fit`.
    """
    built = build_run(run_config(task, *flags), run_data(task, table), folder, quiet=True)
    built.trainer.logger = None  # type: ignore[assignment]
    return built


def run_config(task: Task, *flags: str) -> ExperimentConfig:
    """The settings of `task`, then `flags`."""
    settings = {
        "model": task.model,
        "batch-size": task.batch_size,
        "max-length": task.max_length,
        "precision": task.precision,
        "lr": task.lr,
        "weight-decay": task.weight_decay,
        "clip": task.clip,
        "epochs": 1,
        "seed": 1,
        "data": "sample",
    }
    given = {flag.removeprefix("--") for flag in flags if flag.startswith("--")}
    settings = {name: value for name, value in settings.items() if name not in given}
    return parse_config([*(part for name, value in settings.items() for part in (f"--{name}", str(value))), *flags])


class StepWatch(lightning.Callback):
    """What every optimizer step of a run takes and keeps.

    Attributes:
        ends: Times at which training began and each step ended.
        losses: Of each step.
        tokens: Of each step.
        sizes: Parameters, and bytes of gradients and of the optimizer's state, of this process.
        dropout_is_on: Whether the run drops anything: without, it is cheaper than a peer that does.
    """

    def __init__(self) -> None:
        self.ends: list[float] = []
        self.losses: list[float] = []
        self.tokens: list[int] = []
        self.sizes: dict[str, int] = {}
        self.dropout_is_on = False

    def on_train_start(self, trainer: Any, module: Any) -> None:
        """Start the clock."""
        self.sizes["parameters"] = sum(parameter.numel() for parameter in module.parameters())
        layers = [one for one in module.modules() if "Dropout" in type(one).__name__]
        self.dropout_is_on = any(layer.training and layer.p > 0 for layer in layers)
        self.ends = [time.perf_counter()]

    def on_before_optimizer_step(self, trainer: Any, module: Any, optimizer: Any) -> None:
        """Weigh the gradients."""
        held = [parameter.grad for parameter in module.parameters() if parameter.grad is not None]
        self.sizes["gradient_bytes"] = sum(gradient.nbytes for gradient in held)

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Take time, loss and tokens; weigh the optimizer's state once."""
        self.losses.append(outputs["loss"].item())
        self.ends.append(time.perf_counter())
        self.tokens.append(batch.num_tokens)
        if "optimizer_bytes" not in self.sizes:
            states = trainer.optimizers[0].state.values()
            held = [value for state in states for value in state.values() if hasattr(value, "nbytes")]
            self.sizes["optimizer_bytes"] = sum(value.nbytes for value in held)

    def measured(self) -> dict[str, Any]:
        """All of it, with seconds of each step."""
        seconds = [after - before for before, after in zip(self.ends, self.ends[1:], strict=False)]
        counted = {"step_s": seconds, "losses": self.losses, "step_tokens": self.tokens}
        return counted | self.sizes | {"dropout_is_on": self.dropout_is_on}
