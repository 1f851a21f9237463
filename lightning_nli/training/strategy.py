"""The Lightning strategy of a run: one process, DDP or DeepSpeed, on GPU or CPU."""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.plugins import DeepSpeedPrecision
from pytorch_lightning.plugins.environments import SLURMEnvironment  # type: ignore[attr-defined]
from pytorch_lightning.strategies import DDPStrategy, DeepSpeedStrategy, SingleDeviceStrategy, Strategy

from lightning_nli.config import EngineConfig, ExperimentConfig
from lightning_nli.models.attention import choose_backend
from lightning_nli.models.registry import architecture_of
from lightning_nli.training.deepspeed_config import STAGES, deepspeed_json, zero_settings
from lightning_nli.training.hardware import has_native_bf16
from lightning_nli.training.processes import RankLauncher
from lightning_nli.training.storage import DirectCheckpointIO, shard_engine
from lightning_nli.types import UserError

if TYPE_CHECKING:
    from torch.optim import Optimizer


@dataclass(frozen=True)
class Engine:
    """Resolved settings of where and how a run computes.

    Attributes:
        accelerator: `cpu` or `gpu`.
        precision: `fp32`, `bf16`, `bf16-autocast` or `fp16`.
        compute_dtype: bf16 copies of the weights for forward and backward (`NLIModule`), where the strategy does not
            keep bf16 weights itself.
        strategy: Lightning strategy.
        trainer_precision: Lightning's word, where the strategy has no precision plugin of ours.
    """

    accelerator: str
    precision: str
    compute_dtype: torch.dtype | None
    strategy: Strategy
    trainer_precision: str | None

    @property
    def device(self) -> torch.device:
        return torch.device("cuda" if self.accelerator == "gpu" else "cpu")


def resolve_accelerator(engine: EngineConfig) -> str:
    """`gpu` or `cpu`.

    Raises:
        UserError: a GPU is asked for and there are too few.
    """
    found = torch.cuda.device_count()
    if engine.accelerator == "gpu" or (engine.accelerator == "auto" and found):
        if engine.devices > found:
            raise UserError(f"--devices {engine.devices} GPUs asked for, {found} found; --accelerator cpu runs without")
        return "gpu"
    return "cpu"


def check_slurm(engine: EngineConfig) -> None:
    """Compare the processes that SLURM started with those the run expects, which would otherwise wait for ever.

    Raises:
        UserError: they are not as many.
    """
    if not SLURMEnvironment.detect():
        return
    started, wanted = int(os.environ["SLURM_NTASKS"]), engine.devices * engine.num_nodes
    if started != wanted:
        raise UserError(
            f"SLURM_NTASKS={started}, but --devices {engine.devices} x --num-nodes {engine.num_nodes} is {wanted}: "
            f"start as many tasks (--nodes={engine.num_nodes} --ntasks-per-node={engine.devices}) or change the flags"
        )


def check_engine(config: ExperimentConfig) -> None:
    """What can be known of processes, kernels and DeepSpeed before the data are read or a process is started.

    Raises:
        UserError: they contradict each other, the machine, or SLURM.
    """
    check_slurm(config.engine)
    if config.engine.attention in ("flash", "varlen"):
        accelerator = resolve_accelerator(config.engine)
        resolve_attention(config.engine, accelerator, resolve_precision(config.engine, accelerator))
        choose_backend(config.engine.attention, torch.device("cuda" if accelerator == "gpu" else "cpu"))
    if config.engine.strategy in STAGES:
        accelerator = resolve_accelerator(config.engine)
        if accelerator == "cpu":
            os.environ.setdefault("DS_ACCELERATOR", "cpu")
        precision = resolve_precision(config.engine, accelerator)
        deepspeed_json(config, zero_settings(config, precision, on_gpu=accelerator == "gpu"))


def resolve_precision(engine: EngineConfig, accelerator: str, *, family: str | None = None) -> str:
    """The precision word that `auto` stands for, checked against the hardware and the encoder's family.

    Raises:
        UserError: fp16 on a CPU, or for DeBERTa, whose scores overflow in it.
    """
    if engine.precision == "auto":
        return "bf16" if has_native_bf16(accelerator) else "fp32"
    if engine.precision == "fp16" and accelerator == "cpu":
        raise UserError("--precision fp16 needs a GPU; on a CPU take bf16 or fp32")
    if family is not None and engine.precision in architecture_of(family).refused_precisions:
        raise UserError(f"--precision {engine.precision} overflows in {family}; take bf16 or fp32")
    return engine.precision


def resolve_attention(engine: EngineConfig, accelerator: str, precision: str) -> str:
    """`--attention`, where `auto` knows that the flash kernels take half precision only.

    Raises:
        UserError: a flash kernel is asked for in fp32.
    """
    if precision != "fp32" or accelerator == "cpu":
        return engine.attention
    if engine.attention in ("flash", "varlen"):
        raise UserError(f"--attention {engine.attention} takes half precision only; with fp32 take bucketed or auto")
    return "bucketed" if engine.attention == "auto" else engine.attention


def build_strategy(config: ExperimentConfig, *, family: str | None = None) -> Engine:
    """Resolve accelerator, precision and strategy.

    Raises:
        UserError: a combination that cannot run.
    """
    engine = config.engine
    accelerator = resolve_accelerator(engine)
    precision = resolve_precision(engine, accelerator, family=family)
    processes = engine.devices * engine.num_nodes
    if engine.strategy in STAGES:
        return Engine(accelerator, precision, None, _deepspeed(config, accelerator, precision), None)
    if engine.activation_checkpointing and precision == "bf16":
        raise UserError(
            "--activation-checkpointing recomputes layers in the master weights' type: take --precision "
            "bf16-autocast (or fp32), or --strategy deepspeed, whose weights are bf16 themselves"
        )
    compute = torch.bfloat16 if precision == "bf16" else None
    word = {"fp32": "32-true", "bf16": "32-true", "bf16-autocast": "bf16-mixed", "fp16": "16-mixed"}[precision]
    if engine.strategy == "ddp" or processes > 1:
        backend = "gloo" if accelerator == "cpu" else "nccl"
        ddp = PackedDDPStrategy(
            process_group_backend=backend, gradient_as_bucket_view=True, checkpoint_io=DirectCheckpointIO()
        )
        return Engine(accelerator, precision, compute, ddp, word)
    device = torch.device("cuda", 0) if accelerator == "gpu" else torch.device("cpu")
    return Engine(accelerator, precision, compute, _one_process(device), word)


def _one_process(device: torch.device) -> Strategy:
    return SingleDeviceStrategy(device, checkpoint_io=DirectCheckpointIO())


def _deepspeed(config: ExperimentConfig, accelerator: str, precision: str) -> Strategy:
    if precision == "bf16-autocast":
        raise UserError("--precision bf16-autocast with --strategy deepspeed: take bf16, which DeepSpeed does itself")
    if accelerator == "cpu":
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    word = {"fp32": "32-true", "bf16": "bf16-true", "fp16": "16-mixed"}[precision]
    return PackedDeepSpeedStrategy(
        config=deepspeed_json(config, zero_settings(config, precision, on_gpu=accelerator == "gpu")),
        precision_plugin=_UnscaledPrecision(word),  # type: ignore[arg-type]
        process_group_backend="gloo" if accelerator == "cpu" else "nccl",
        cluster_environment=None,
    )


class _UnscaledPrecision(DeepSpeedPrecision):
    """Lightning has divided the loss by the accumulation already; DeepSpeed's engine must not do so again.

    Inputs are left as they are: a packed batch holds integers only.
    """

    def convert_input(self, data: Any) -> Any:
        return data

    def backward(  # type: ignore[override]
        self, tensor: torch.Tensor, model: pl.LightningModule, optimizer: Optimizer | None, *args: Any, **kwargs: Any
    ) -> None:
        super().backward(tensor, model, optimizer, *args, scale_wrt_gas=False, **kwargs)


class PackedDDPStrategy(DDPStrategy):
    """Lightning's DDP strategy, whose processes live and die together and all load the checkpoint of the first."""

    def _configure_launcher(self) -> None:
        assert self.cluster_environment is not None
        self._launcher = RankLauncher(self.cluster_environment, self.num_processes, self.num_nodes)

    def load_checkpoint(self, checkpoint_path: Any, weights_only: bool | None = None) -> dict[str, Any]:
        return super().load_checkpoint(self.broadcast(checkpoint_path), weights_only)


class PackedDeepSpeedStrategy(DeepSpeedStrategy):
    """Lightning's DeepSpeed strategy, which also runs on CPU processes over gloo and reads and writes checked shards.

    It saves into the folder it is given; `RunCheckpoints` gives it a temporary one and renames that when it is whole.
    """

    def _configure_launcher(self) -> None:
        assert self.cluster_environment is not None
        self._launcher = RankLauncher(self.cluster_environment, self.num_processes, self.num_nodes)

    def load_checkpoint(self, checkpoint_path: Any, weights_only: bool | None = None) -> dict[str, Any]:
        return super().load_checkpoint(self.broadcast(checkpoint_path), weights_only)

    def setup_environment(self) -> None:
        if self._on_gpu:
            super().setup_environment()
        else:
            DDPStrategy.setup_environment(self)

    def setup_distributed(self) -> None:
        if self._on_gpu:
            super().setup_distributed()
            return
        from lightning_fabric.utilities.seed import reset_seed

        reset_seed()
        self.set_world_ranks()
        self._init_deepspeed_distributed()

    @property
    def _on_gpu(self) -> bool:
        return self.root_device.type == "cuda"

    def _setup_model_and_optimizer(
        self, model: torch.nn.Module, optimizer: Optimizer | None, lr_scheduler: Any = None
    ) -> tuple[Any, Any]:
        """As Lightning's, with the local rank as device: a CPU device has no index."""
        import deepspeed

        engine, wrapped, _, _ = deepspeed.initialize(
            args=argparse.Namespace(device_rank=self.root_device.index if self._on_gpu else self.local_rank),
            config=self.config,
            model=model,
            model_parameters=[parameter for parameter in model.parameters() if parameter.requires_grad],
            optimizer=optimizer,
            lr_scheduler=lr_scheduler,
            dist_init_required=False,
        )
        engine.checkpoint_engine = shard_engine()
        return engine, wrapped


def is_first_process() -> bool:
    """Whether this process has global rank 0, by what SLURM, torchrun or Lightning put into the environment."""
    if SLURMEnvironment.detect():
        return os.environ["SLURM_PROCID"] == "0"
    if "TORCHELASTIC_RUN_ID" in os.environ:
        return os.environ["RANK"] == "0"
    return os.environ.get("LOCAL_RANK", "0") == "0" and os.environ.get("NODE_RANK", "0") == "0"


def set_cpu_threads(processes_here: int, threads: int | None = None) -> None:
    """Take `threads`, else `OMP_NUM_THREADS`, else an even share of this machine's cores for each process."""
    if threads is not None:
        torch.set_num_threads(threads)
    elif "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // processes_here))
