"""Trainings of a tiny model, one after another in the same processes, each under its own strategy.

    python distributed_worker.py JOBS.json OUT_FOLDER

Several ranks are started with torchrun's environment (RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT). A job is
{"name", "optimizer": "adamw" or "sgd", "settings": settings of `lnli fit`}. Dropout is off. Rank 0 writes the loss of
every optimizer step, the validation scores, and a few final weights; every rank writes the rows it trained on, epoch by
epoch.
"""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch

from lightning_nli.cli.logs import set_up_logging
from lightning_nli.config import parse_config, run_folder
from lightning_nli.models.module import NLIModule
from lightning_nli.training import run as run_module
from lightning_nli.training.checkpoint import CheckpointIndex, read_weights
from lightning_nli.training.corpora import load_run_data


class _SGDModule(NLIModule):
    """Plain SGD: Adam would hide a gradient that is off by a factor."""

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.05)


class _Recorder(pl.Callback):
    def __init__(self) -> None:
        self.num_steps = 0
        self.rows: list[list[int]] = []
        self.scores: list[dict[str, float]] = []
        self._seen_step = 0

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.rows.append([])

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *args: Any) -> None:
        batch = args[1]
        self.rows[-1] += [row for row in batch.example_ids.tolist() if row >= 0]
        if trainer.global_step != self._seen_step:
            self._seen_step = trainer.global_step
            self.num_steps += 1

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.scores.append({k: float(v) for k, v in trainer.callback_metrics.items() if k.startswith("id_val/")})


def run_job(out: Path, optimizer: str, settings: list[str]) -> None:
    run_module.NLIModule = _SGDModule if optimizer == "sgd" else NLIModule
    config = parse_config([*settings, "--run-dir", str(out.with_suffix(""))])
    folder = run_folder(config)
    folder.mkdir(parents=True, exist_ok=True)
    data = load_run_data(config)
    run_module.set_cpu_threads(config.engine.devices)
    built = run_module.build_run(config, data, folder, quiet=True)
    for module in built.module.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    recorder = _Recorder()
    built.trainer.callbacks.insert(0, recorder)
    built.trainer.fit(built.module, built.datamodule)
    rank = built.trainer.global_rank
    out.with_suffix(f".rank{rank}.json").write_text(json.dumps({"rows": recorder.rows, "steps": recorder.num_steps}))
    if rank == 0:
        weights = read_weights(folder / "checkpoints" / CheckpointIndex.read(folder / "checkpoints").last.name)
        name = next(name for name in weights if name.endswith("classifier.weight"))
        layer = next(name for name in weights if name.endswith("layer.0.attention.self.query.weight"))
        metrics = (folder / "metrics.csv").read_text().splitlines()
        result = {
            "losses": [float(row["train/loss"]) for row in csv.DictReader(metrics) if row["train/loss"]],
            "scores": recorder.scores,
            "micro_steps": built.trainer.num_training_batches,
            "weights": {name: weights[name].tolist(), layer: weights[layer].tolist()},
        }
        out.write_text(json.dumps(result))


if __name__ == "__main__":
    set_up_logging(quiet=True)
    run_module._LOG_EVERY_STEPS = 1
    for job in json.loads(Path(sys.argv[1]).read_text()):
        run_job(Path(sys.argv[2]) / f"{job['name']}.json", job["optimizer"], job["settings"])
