"""One run: build, fit, score, write."""

from __future__ import annotations

import logging
import resource
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytorch_lightning as lightning
import torch
from pytorch_lightning.loggers import CSVLogger, TensorBoardLogger
from pytorch_lightning.plugins.environments import SLURMEnvironment  # type: ignore[attr-defined]

from lightning_nli.config import ExperimentConfig, cache_root, config_hash, run_folder
from lightning_nli.config_setfit import SETFIT
from lightning_nli.data.datamodule import NLIDataModule
from lightning_nli.data.groups import RowGroups
from lightning_nli.data.packing import PackPlan, count_micro_steps
from lightning_nli.data.tokenization import log_truncation, tokenize_split
from lightning_nli.metrics import group_indices
from lightning_nli.models.encoder import LoadedEncoder
from lightning_nli.models.module import NLIModule
from lightning_nli.training.baseline import BaselinePredictor
from lightning_nli.training.callbacks import NanGuard, StopOnSignal, TrainingProgress
from lightning_nli.training.checkpoint import CheckpointIndex, RunCheckpoints
from lightning_nli.training.corpora import VAL_NAME, RunData, load_run_data
from lightning_nli.training.encoder import load_run_encoder, trim_run_encoder
from lightning_nli.training.epoch_scores import RunWatch, sets_to_score, swapped_tokens, watch_epochs
from lightning_nli.training.manifest import RunIdentity
from lightning_nli.training.objective_data import build_objective, row_bundles
from lightning_nli.training.processes import FirstErrorFirst, tie_to_parent
from lightning_nli.training.result import RESULT_SCHEMA, Judge, Predictor, SplitScores, write_result
from lightning_nli.training.resume import find_checkpoint, run_identity
from lightning_nli.training.run_folder import check_run_folder, claim_run_folder, processor_name
from lightning_nli.training.scored_sets import add_calibrated, score_sets, threshold_of
from lightning_nli.training.setfit import fit_setfit, plan_setfit
from lightning_nli.training.signals import listening, parse_max_time, time_limit_s
from lightning_nli.training.strategy import Engine, check_engine, is_first_process, set_cpu_threads
from lightning_nli.training.trained import (
    RunMeta,
    describe_truncation,
    encoder_spec,
    open_run,
    point_out_specials,
    save_encoder,
)

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
        truncation: What `--max-length` did to each set, as `result.json` has it.
        identity: What its checkpoints must share with it.
    """

    trainer: lightning.Trainer
    module: NLIModule
    datamodule: NLIDataModule
    progress: TrainingProgress
    loaded: LoadedEncoder
    meta: RunMeta
    kept_tokens: npt.NDArray[np.int64] | None
    truncation: dict[str, Any]
    identity: RunIdentity


def train(config: ExperimentConfig, *, quiet: bool = False) -> dict[str, Any]:
    """Run `config` to the end and return what `result.json` holds. Every process of the run calls this.

    Raises:
        UserError: settings, data, model or run folder are not as they must be.
        Stopped: a signal or the time limit ended the run early; it is saved and can be resumed.
    """
    folder = run_folder(config)
    parse_max_time(config.engine.max_time)
    check_engine(config)
    if is_first_process():
        check_run_folder(folder, config)
    with listening():
        return train_on(config, load_run_data(config), folder, quiet=quiet)


def train_on(
    config: ExperimentConfig,
    data: RunData,
    folder: Path,
    *,
    quiet: bool = False,
    judge: Judge | None = None,
    watch: RunWatch | None = None,
) -> dict[str, Any]:
    """Run `config` on rows that are chosen already, in a folder of its own.

    Args:
        config: Settings; its sources and splits are not read.
        data: Rows.
        folder: Run folder.
        quiet: No progress.
        judge: Swaps and hard rows of the scored sets, where a suite has fixed them.
        watch: What is told of every epoch, and which sets are scored, in a sweep.

    Raises:
        UserError: as `train`.
        Stopped: as `train`.
    """
    started = time.perf_counter()
    is_first = is_first_process()
    if config.method != "finetune":
        if is_first:
            claim_run_folder(folder, config, data.bad_rows)
        predictor, details = _train_other(config, data, folder)
        result = _score_all(config, folder, data, predictor, selection=None, judge=judge) | details
        return _finish(folder, result, {"wall_s": round(time.perf_counter() - started, 1)})
    set_cpu_threads(config.engine.devices, config.engine.threads)
    built = build_run(config, data, folder, quiet=quiet, watch=watch)
    if is_first:
        claim_run_folder(folder, config, data.bad_rows)
        save_encoder(folder, built.loaded, built.meta, built.kept_tokens)
    goes_on = config.resume == "auto"
    resumed = find_checkpoint(folder / "checkpoints", built.identity, is_first=is_first) if goes_on else None
    built.trainer.fit(built.module, built.datamodule, ckpt_path=resumed, weights_only=True)
    cost, meta, truncation = _training_cost(built), built.meta, built.truncation
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
    data = sets_to_score(data, watch)
    result = _score_all(config, folder, data, open_run(folder).scorer, selection=selection, judge=judge)
    result["encoder"] = meta.as_result()
    result["data"]["truncation"] = truncation
    return _finish(folder, result, cost | {"wall_s": round(time.perf_counter() - started, 1)})


def _train_other(config: ExperimentConfig, data: RunData, folder: Path) -> tuple[Predictor, dict[str, Any]]:
    """A model that Lightning does not train, and what `result.json` says of it alone."""
    if config.method != SETFIT:
        return BaselinePredictor.of(config, data), {}
    predictor, details = fit_setfit(config, data, folder)
    return predictor, {"setfit": details}


def describe_run(config: ExperimentConfig) -> str:
    """What `train` would do, after reading the data and building the model; writes no run folder."""
    folder = run_folder(config)
    data = load_run_data(config)
    lines = [f"run folder: {folder}", f"training rows: {data.train.height}"]
    lines += [f"scored rows, {name}: {frame.height}" for name, frame in data.scored.items()]
    if config.method == SETFIT:
        lines.append(plan_setfit(config, data).describe())
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


def build_run(
    config: ExperimentConfig, data: RunData, folder: Path, *, quiet: bool = False, watch: RunWatch | None = None
) -> BuiltRun:
    """Encoder, tokens, module and trainer of a run.

    Raises:
        UserError: a setting that the encoder or the machine cannot serve.
    """
    tie_to_parent()
    lightning.seed_everything(config.seed, verbose=False)
    objective, groups = build_objective(config, data)
    loaded, engine, meta = load_run_encoder(config, data)
    spec = encoder_spec(config, loaded, meta)
    tokens = {
        name: tokenize_split(frame, spec, data.scheme, cache=cache_root())
        for name, frame in {"train": data.train, **data.scored}.items()
    }
    log_truncation(tokens, config.text.max_length)
    texts = [*tokens.values(), *swapped_tokens(config, data, spec, watch)]
    kept, remap = trim_run_encoder(config, loaded, [split.token_ids for split in texts])
    point_out_specials(loaded, spec, config.text, meta.chunk_length, remap)
    if config.engine.activation_checkpointing:
        loaded.model.gradient_checkpointing_enable({"use_reentrant": False})
    if config.engine.compile:
        loaded.encoder.compile()
    loaded.encoder.train()  # pretrained models come without dropout, and Lightning leaves them so
    module = NLIModule(
        loaded.encoder,
        data.scheme,
        config.optim,
        seed=config.seed,
        compute_dtype=engine.compute_dtype,
        checkpoint_extras={"config_hash": config_hash(config), "data": data.fingerprint},
        objective=objective,
        val_groups=group_indices(data.scored[VAL_NAME]) if data.has_val else None,
    )
    datamodule = NLIDataModule(
        train=tokens["train"],
        plan=_pack_plan(config, data, groups),
        epochs=config.optim.epochs,
        val=tokens.get(VAL_NAME),
        eval_max_tokens=config.packing.eval_max_tokens,
        first_position=loaded.first_position,
        remap=remap,
        num_workers=config.engine.num_workers,
    )
    progress = TrainingProgress(quiet=quiet)
    assert datamodule.plan is not None
    identity = run_identity(config, data.fingerprint, spec, tokens["train"], datamodule.plan)
    checkpoints = RunCheckpoints(folder / "checkpoints", config.checkpoints, has_val=data.has_val, identity=identity)
    trainer = _build_trainer(config, engine, folder, progress, checkpoints)
    watch_epochs(trainer, config, data, spec, loaded.first_position, remap, watch)
    _log_plan(config, data, engine, loaded, module)
    truncation = describe_truncation(meta, tokens)
    return BuiltRun(trainer, module, datamodule, progress, loaded, meta, kept, truncation, identity)


def _pack_plan(config: ExperimentConfig, data: RunData, groups: RowGroups | None) -> PackPlan:
    return PackPlan(
        batch_size=None if config.packing.max_tokens else config.packing.batch_size,
        max_tokens=config.packing.max_tokens,
        seed=config.seed,
        groups=groups,
        bundles=row_bundles(config, data),
    )


def _build_trainer(
    config: ExperimentConfig, engine: Engine, folder: Path, progress: TrainingProgress, checkpoints: RunCheckpoints
) -> lightning.Trainer:
    stop = StopOnSignal(checkpoints, max_time_s=time_limit_s(config.engine.max_time))
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
        callbacks=[FirstErrorFirst(), progress, NanGuard(config.engine.on_nan), stop, checkpoints],
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
        "attention": str(getattr(built.loaded.encoder, "backend", "padded")),
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
    scored = score_sets(predictor, data, config, None if judge is None else dict.fromkeys(data.scored, judge))
    add_calibrated(scored, data.scheme, threshold_of(scored, data.scheme))
    if is_first_process():
        for name, one in scored.items():
            save_predictions(folder, name, one)
    return {
        "schema": RESULT_SCHEMA,
        "status": "finished",
        "label_names": data.scheme.names,
        "seeds": {"seed": config.seed, "split_seed": config.split_seed},
        "selection": selection,
        "scores": {name: one.scores for name, one in scored.items()},
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
    empty["attention"] = None
    peak_gib = peak / (_KIB_PER_GIB if sys.platform == "linux" else _KIB_PER_GIB * 1024)
    result["cost"] = empty | cost | {"peak_rss_gib": round(peak_gib, 2)}
    if is_first_process():
        write_result(folder, result)
    return result
