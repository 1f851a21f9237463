"""One run: build, fit, score, write."""

from __future__ import annotations

import logging
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pytorch_lightning as lightning
import torch
from pytorch_lightning.loggers import CSVLogger, TensorBoardLogger
from pytorch_lightning.plugins.environments import SLURMEnvironment  # type: ignore[attr-defined]

from lightning_nli import baselines
from lightning_nli.config import ExperimentConfig, cache_root, config_hash, hypothesis_only_twin, run_folder
from lightning_nli.data.datamodule import NLIDataModule
from lightning_nli.data.packing import PackPlan, count_micro_steps
from lightning_nli.data.tokenization import log_truncation, tokenize_split
from lightning_nli.models.encoder import LoadedEncoder
from lightning_nli.models.module import NLIModule
from lightning_nli.models.offline import is_built_here
from lightning_nli.models.vocabulary import trim_to_texts
from lightning_nli.training.callbacks import StopOnSignal, TrainingProgress, parse_max_time
from lightning_nli.training.checkpoint import CheckpointIndex, RunCheckpoints
from lightning_nli.training.corpora import VAL_NAME, RunData, load_run_data
from lightning_nli.training.encoder import load_run_encoder
from lightning_nli.training.objective_data import build_objective
from lightning_nli.training.result import (
    RESULT_SCHEMA,
    Judge,
    Predictor,
    SplitScores,
    premise_gain,
    score_split,
    write_result,
)
from lightning_nli.training.run_folder import check_run_folder, claim_run_folder, processor_name
from lightning_nli.training.strategy import (
    Engine,
    check_slurm,
    is_first_process,
    set_cpu_threads,
)
from lightning_nli.training.trained import OpenedRun, RunMeta, encoder_spec, open_run, save_encoder

log = logging.getLogger(__name__)

_LOG_EVERY_STEPS = 10
_KIB_PER_GIB = 1024**2


@dataclass(frozen=True)
class BuiltRun:
    """A run ready to fit.

    Attributes:
        trainer: Lightning trainer.
        module: Model, loss and optimizer.
        datamodule: Packed batches.
        progress: Counts throughput.
        loaded: Encoder and tokenizer.
        meta: What the run must remember of them.
        kept_tokens: Vocabulary rows that are trained, None for all.
    """

    trainer: lightning.Trainer
    module: NLIModule
    datamodule: NLIDataModule
    progress: TrainingProgress
    loaded: LoadedEncoder
    meta: RunMeta
    kept_tokens: npt.NDArray[np.int64] | None


@dataclass(frozen=True)
class BaselinePredictor:
    """A baseline that trains on the run's training rows and answers any rows of the same scheme."""

    method: Callable[..., pl.DataFrame]
    data: RunData

    @property
    def reads_premise(self) -> bool:
        return self.method is baselines.overlap

    def predictions(self, frame: pl.DataFrame) -> pl.DataFrame:
        return self.method(self.data.published_train, frame, self.data.scheme)


_BASELINES = {
    "majority": baselines.majority,
    "hyponly-v1": baselines.hypothesis_only,
    "overlap-v1": baselines.overlap,
}


def train(config: ExperimentConfig, *, quiet: bool = False) -> dict[str, Any]:
    """Run `config` to the end and return what `result.json` holds. Every process of the run calls this.

    Raises:
        UserError: settings, data, model or run folder are not as they must be.
        Stopped: a signal or the time limit ended the run early; it is saved and can be resumed.
    """
    folder = run_folder(config)
    parse_max_time(config.engine.max_time)
    check_slurm(config.engine)
    if is_first_process():
        check_run_folder(folder, config)
    return train_on(config, load_run_data(config), folder, quiet=quiet)


def train_on(
    config: ExperimentConfig, data: RunData, folder: Path, *, quiet: bool = False, judge: Judge | None = None
) -> dict[str, Any]:
    """Run `config` on rows that are chosen already, in a folder of its own.

    Args:
        config: Settings; its sources and splits are not read.
        data: Rows.
        folder: Run folder.
        quiet: No progress.
        judge: Swaps and hard rows of the scored sets, where a suite has fixed them.

    Raises:
        UserError: as `train`.
        Stopped: as `train`.
    """
    started = time.perf_counter()
    is_first = is_first_process()
    if config.method != "finetune":
        if is_first:
            claim_run_folder(folder, config, data.bad_rows)
        predictor = BaselinePredictor(_BASELINES[config.method], data)
        result = _score_all(config, folder, data, predictor, selection=None, judge=judge)
        return _finish(folder, result, {"wall_s": round(time.perf_counter() - started, 1)})
    set_cpu_threads(config.engine.devices)
    built = build_run(config, data, folder, quiet=quiet)
    if is_first:
        claim_run_folder(folder, config, data.bad_rows)
        save_encoder(folder, built.loaded, built.meta, built.kept_tokens)
    built.trainer.fit(built.module, built.datamodule, ckpt_path=_resume_path(folder, config), weights_only=True)
    cost, meta = _training_cost(built), built.meta
    del built
    index = CheckpointIndex.read(folder / "checkpoints")
    chosen = index.chosen()
    selection = {
        "method": "best" if index.best else "last",
        "split": VAL_NAME if index.best else None,
        "metric": index.monitor if index.best else None,
        "value": chosen.score,
        "epoch": chosen.epoch,
        "step": chosen.step,
        "checkpoint": chosen.name,
    }
    result = _score_all(config, folder, data, open_run(folder).scorer, selection=selection, judge=judge)
    result["encoder"] = meta.as_result()
    return _finish(folder, result, cost | {"wall_s": round(time.perf_counter() - started, 1)})


def describe_run(config: ExperimentConfig) -> str:
    """What `train` would do, after reading the data and building the model; writes no run folder."""
    folder = run_folder(config)
    data = load_run_data(config)
    lines = [f"run folder: {folder}", f"training rows: {data.train.height}"]
    lines += [f"scored rows, {name}: {frame.height}" for name, frame in data.scored.items()]
    if config.method == "finetune":
        with tempfile.TemporaryDirectory() as scratch:
            built = build_run(config, data, Path(scratch), quiet=True)
        plan = replace(
            built.datamodule.plan or PackPlan(None, None),
            world_size=config.engine.devices * config.engine.num_nodes,
            accumulate=config.optim.accumulate,
        )
        assert built.datamodule.train is not None
        micro_steps = count_micro_steps(built.datamodule.train.lengths, plan, epochs=config.optim.epochs)
        steps = micro_steps // config.optim.accumulate
        trained = sum(parameter.numel() for parameter in built.module.parameters())
        lines += [
            f"trained parameters: {trained / 1e6:.1f}M",
            f"optimizer steps: {steps} an epoch, {steps * config.optim.epochs} in all",
            f"tokens an epoch: {int(built.datamodule.train.lengths.sum())}",
        ]
    return "\n".join([*lines, "dry run: nothing was trained", ""])


def _resume_path(folder: Path, config: ExperimentConfig) -> Path | None:
    last = CheckpointIndex.read(folder / "checkpoints").last
    if config.resume != "auto" or last is None:
        return None
    log.info("going on from %s (epoch %d, step %d)", last.name, last.epoch + 1, last.step)
    return folder / "checkpoints" / last.name


def build_run(config: ExperimentConfig, data: RunData, folder: Path, *, quiet: bool = False) -> BuiltRun:
    """Encoder, tokens, module and trainer of a run.

    Raises:
        UserError: a setting that the encoder or the machine cannot serve.
    """
    lightning.seed_everything(config.seed, verbose=False)
    objective, groups = build_objective(config, data)
    loaded, engine, meta = load_run_encoder(config, data)
    spec = encoder_spec(config, loaded, meta)
    tokens = {
        name: tokenize_split(frame, spec, data.scheme, cache=cache_root())
        for name, frame in {"train": data.train, **data.scored}.items()
    }
    log_truncation(tokens, config.text.max_length)
    kept, remap = None, None
    if config.engine.trim_vocab == "auto" and not is_built_here(config.model):
        kept, remap = trim_to_texts(loaded.model, loaded.tokenizer, (split.token_ids for split in tokens.values()))
    if config.engine.activation_checkpointing:
        loaded.model.gradient_checkpointing_enable({"use_reentrant": False})
    if config.engine.compile:
        loaded.encoder.compile()
    module = NLIModule(
        loaded.encoder,
        data.scheme,
        config.optim,
        seed=config.seed,
        compute_dtype=engine.compute_dtype,
        checkpoint_extras={"config_hash": config_hash(config), "data": data.fingerprint},
        objective=objective,
    )
    datamodule = NLIDataModule(
        train=tokens["train"],
        plan=PackPlan(
            batch_size=None if config.packing.max_tokens else config.packing.batch_size,
            max_tokens=config.packing.max_tokens,
            seed=config.seed,
            groups=groups,
        ),
        epochs=config.optim.epochs,
        val=tokens.get(VAL_NAME),
        eval_max_tokens=config.packing.eval_max_tokens,
        first_position=loaded.first_position,
        remap=remap,
        num_workers=config.engine.num_workers,
    )
    progress = TrainingProgress(quiet=quiet)
    trainer = _build_trainer(config, engine, folder, progress, has_val=data.has_val)
    _log_plan(config, data, engine, loaded, module)
    return BuiltRun(trainer, module, datamodule, progress, loaded, meta, kept)


def _build_trainer(
    config: ExperimentConfig, engine: Engine, folder: Path, progress: TrainingProgress, *, has_val: bool
) -> lightning.Trainer:
    checkpoints = RunCheckpoints(folder / "checkpoints", config.checkpoints, has_val=has_val)
    stop = StopOnSignal(checkpoints.save, max_time_s=parse_max_time(config.engine.max_time))
    loggers = [CSVLogger(folder, name="", version=""), TensorBoardLogger(folder, name="tb", version="")]
    options: dict[str, Any] = {} if engine.trainer_precision is None else {"precision": engine.trainer_precision}
    if SLURMEnvironment.detect():
        options["plugins"] = [SLURMEnvironment(auto_requeue=False)]
    return lightning.Trainer(
        accelerator=engine.accelerator,
        devices=config.engine.devices,
        num_nodes=config.engine.num_nodes,
        strategy=engine.strategy,
        max_epochs=config.optim.epochs,
        accumulate_grad_batches=config.optim.accumulate,
        gradient_clip_val=config.optim.clip or None,
        use_distributed_sampler=False,
        num_sanity_val_steps=0,
        log_every_n_steps=_LOG_EVERY_STEPS,
        callbacks=[progress, stop, checkpoints],
        logger=loggers,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
        **options,
    )


def _log_plan(
    config: ExperimentConfig, data: RunData, engine: Engine, loaded: LoadedEncoder, module: NLIModule
) -> None:
    scored = ", ".join(f"{name} {frame.height}" for name, frame in data.scored.items())
    log.info("rows: train %d%s%s; labels %s", data.train.height, ", " if scored else "", scored, data.scheme.names)
    backend = getattr(loaded.encoder, "backend", "padded")
    log.info(
        "%s, %s head, %.1fM trained parameters; %s x %d, %s, %s attention, strategy %s, %d CPU threads a process",
        config.model,
        "new" if loaded.head_is_new else "published",
        sum(parameter.numel() for parameter in module.parameters()) / 1e6,
        engine.accelerator,
        config.engine.devices * config.engine.num_nodes,
        engine.precision,
        backend,
        config.engine.strategy,
        torch.get_num_threads(),
    )


def _training_cost(built: BuiltRun) -> dict[str, Any]:
    throughput = built.progress.throughput
    on_gpu = built.trainer.strategy.root_device.type == "cuda"
    return {
        "training_s": round(built.progress.training_s, 1),
        "train_examples_per_s": round(throughput.examples / max(1e-9, built.progress.training_s), 2),
        "tokens": throughput.tokens,
        "padding_saved_fraction": round(1 - throughput.tokens / max(1, throughput.padded_tokens), 4),
        "device": torch.cuda.get_device_name(0) if on_gpu else processor_name(),
    }


def _score_all(
    config: ExperimentConfig,
    folder: Path,
    data: RunData,
    predictor: Predictor,
    *,
    selection: dict[str, Any] | None,
    judge: Judge | None,
) -> dict[str, Any]:
    scores: dict[str, Any] = {}
    twin = run_folder(hypothesis_only_twin(config))
    for name, frame in data.scored.items():
        log.info("scoring %s: %d rows, and its entailed rows under swapped premises", name, frame.height)
        scored = score_split(predictor, frame, data.scheme, data.published_train, judge)
        scored.scores["premise"]["gain"] = premise_gain(scored, twin, name)
        scored.scores["premise"]["trained_on_swaps"] = config.augment != "none"
        scores[name] = scored.scores
        if is_first_process():
            save_predictions(folder, name, scored)
    return {
        "schema": RESULT_SCHEMA,
        "status": "finished",
        "label_names": data.scheme.names,
        "seeds": {"seed": config.seed, "split_seed": config.split_seed},
        "selection": selection,
        "scores": scores,
        "data": {
            "source": data.sources,
            "fingerprint": data.fingerprint,
            "duplicates": data.duplicates,
            "bad_rows": len(data.bad_rows),
            "train_rows": data.train.height,
        },
        "config": asdict(config),
    }


def save_predictions(folder: Path, name: str, scored: SplitScores) -> None:
    """Write `predictions/NAME.parquet` by rename."""
    target = folder / "predictions" / f"{name}.parquet"
    target.parent.mkdir(exist_ok=True)
    partial = target.with_name(f".{target.name}")
    scored.predictions.write_parquet(partial)
    partial.replace(target)


def _finish(folder: Path, result: dict[str, Any], cost: dict[str, Any]) -> dict[str, Any]:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    empty = {"training_s": None, "train_examples_per_s": None, "tokens": None, "device": processor_name()}
    peak_gib = peak / (_KIB_PER_GIB if sys.platform == "linux" else _KIB_PER_GIB * 1024)
    result["cost"] = empty | cost | {"peak_rss_gib": round(peak_gib, 2)}
    if is_first_process():
        write_result(folder, result)
    return result


def retest(opened: OpenedRun, data: RunData) -> dict[str, SplitScores]:
    """Score a run's sets again from its checkpoint (premise gain is filled in once the twin run exists)."""
    scores = {}
    twin = run_folder(hypothesis_only_twin(opened.config))
    for name, frame in data.scored.items():
        scored = score_split(opened.scorer, frame, opened.scheme, data.published_train)
        scored.scores["premise"]["gain"] = premise_gain(scored, twin, name)
        scored.scores["premise"]["trained_on_swaps"] = opened.config.augment != "none"
        scores[name] = scored
    return scores
