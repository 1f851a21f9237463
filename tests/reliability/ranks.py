"""`lnli fit` in forked processes, disturbed by real signals at chosen moments.

Everything heavy is imported once, before the forks, so that a run takes seconds. The ranks get torchrun's environment,
as those of `srun` or `torchrun` do.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("DS_ACCELERATOR", "cpu")

import pytorch_lightning as pl
import torch

from lightning_nli.cli.main import main
from lightning_nli.training import callbacks
from lightning_nli.training import run as run_module
from lightning_nli.training.checkpoint import CheckpointIndex, read_weights

MOMENTS = ("step", "validation", "write")
SIGNALS = {"TERM": signal.SIGTERM, "USR2": signal.SIGUSR2, "KILL": signal.SIGKILL}
SETUPS = {
    "1 process": (1, []),
    "DDP, 2 processes": (2, ["--strategy", "ddp"]),
    "DeepSpeed stage 2, 2 processes": (2, ["--strategy", "deepspeed_stage_2"]),
    "DeepSpeed stage 3, 2 processes": (2, ["--strategy", "deepspeed_stage_3"]),
}
FIT = "fit --data sample:120 --model tiny --epochs 2 --lr 1e-3 --accumulate 2 --every 2".split()
FIT += "--test-split none --eval-max-tokens 256 --precision fp32 --accelerator cpu --resume auto --quiet".split()
GLOBAL_BATCH = 16
DISTURBED_STEP = 9  # of 12: in the second epoch, with checkpoints before it
LIMIT_S = 600.0


@dataclass(frozen=True)
class Disturbance:
    """One signal that a rank sends to itself.

    Attributes:
        name: Of `SIGNALS`.
        moment: Of `MOMENTS`: before a backward pass, at a validation batch, in the middle of writing a checkpoint.
        rank: Which process.
        again: Send it a second time, while the first one is being obeyed.
    """

    name: str
    moment: str
    rank: int
    again: bool = False


@dataclass(frozen=True)
class Outcome:
    """How the ranks ended.

    Attributes:
        codes: Exit code of each rank, below 0 for a signal.
        seconds: From the start to the end of the last rank.
        last_after_first_s: From the end of the first rank to that of the last.
        errors: What the ranks wrote to standard error.
    """

    codes: tuple[int, ...]
    seconds: float
    last_after_first_s: float
    errors: str


class _Disturber(pl.Callback):
    def __init__(self, disturbance: Disturbance, rank: int) -> None:
        self.disturbance, self.is_mine, self.is_done = disturbance, rank == disturbance.rank, False
        self._at_step = 0

    def _send(self, moment: str) -> None:
        if self.is_mine and not self.is_done and moment == self.disturbance.moment:
            self.is_done = True
            for _ in range(1 + self.disturbance.again):
                os.kill(os.getpid(), SIGNALS[self.disturbance.name])

    def on_before_backward(self, trainer: pl.Trainer, pl_module: pl.LightningModule, loss: torch.Tensor) -> None:
        if trainer.global_step + 1 >= DISTURBED_STEP:
            self._send("step")

    def on_validation_batch_start(self, trainer: pl.Trainer, *args: Any) -> None:
        if trainer.global_step >= DISTURBED_STEP:
            self._send("validation")

    def on_save_checkpoint(self, trainer: pl.Trainer, *args: Any) -> None:
        self._at_step = trainer.global_step

    def half_written(self) -> None:
        if self._at_step + 1 >= DISTURBED_STEP:
            self._send("write")


def _disturb(disturbance: Disturbance, rank: int) -> None:
    """Have the run call a disturber, and every `torch.save` stop half-way to call it too."""
    disturber = _Disturber(disturbance, rank)
    build, save = run_module._build_trainer, torch.save

    def build_trainer(*args: Any, **kwargs: Any) -> pl.Trainer:
        trainer = build(*args, **kwargs)
        trainer.callbacks.insert(0, disturber)
        return trainer

    def save_slowly(values: Any, target: Any, *args: Any, **kwargs: Any) -> None:
        save(values, target, *args, **kwargs)
        if isinstance(target, str | Path):
            whole = Path(target).read_bytes()
            Path(target).write_bytes(whole[: len(whole) // 2])
            disturber.half_written()
            Path(target).write_bytes(whole)

    run_module._build_trainer, torch.save = build_trainer, save_slowly
    callbacks._ASK_EVERY_S = 0.0  # after every step: those of a tiny model take milliseconds


def preload() -> None:
    """Import what a run imports on its way, so that the forks need not do it one by one."""
    names = ["sklearn.linear_model", "sklearn.feature_extraction.text", "sklearn.model_selection", "pandas"]
    names += ["deepspeed", "deepspeed.utils.zero_to_fp32", "accelerate", "torch.utils.tensorboard", "jsonargparse"]
    names += ["transformers.models.bert.modeling_bert", "transformers.models.bert.tokenization_bert"]
    names += [f"lightning_nli.{name}" for name in ("data.sample", "cli.fit", "cli.report", "training.run", "baselines")]
    for name in names:
        with contextlib.suppress(ImportError):  # what a run does without
            importlib.import_module(name)
    for name in ("AutoModelForSequenceClassification", "AutoTokenizer", "PreTrainedTokenizerFast"):
        getattr(importlib.import_module("transformers"), name)


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def _become_rank(rank: int, world_size: int, port: int, log: Path) -> None:
    with log.open("wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", closefd=False)
    if world_size > 1:
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(world_size)}
        os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "NODE_RANK": "0"}


def start_ranks(work: Callable[[int], int], world_size: int, logs: Path) -> list[int]:
    """Fork processes that do `work` (of the rank, returns the exit code); returns their process ids."""
    preload()
    port = _free_port()
    logs.mkdir(parents=True, exist_ok=True)
    pids = []
    for rank in range(world_size):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                _become_rank(rank, world_size, port, logs / f"rank{rank}.log")
                code = work(rank)
            except SystemExit as leaving:
                code = leaving.code if isinstance(leaving.code, int) else 1
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        pids.append(pid)
    return pids


def start(settings: list[str], world_size: int, logs: Path, disturbance: Disturbance | None = None) -> list[int]:
    """Run `lnli` with these settings in every rank."""

    def work(rank: int) -> int:
        if disturbance is not None:
            _disturb(disturbance, rank)
        return main(settings)

    return start_ranks(work, world_size, logs)


def finish(pids: list[int], logs: Path, *, limit_s: float = LIMIT_S) -> Outcome:
    """Wait for the ranks.

    Raises:
        TimeoutError: they hang; they are killed, and what they wrote is the message.
    """
    started = time.monotonic()
    ends: dict[int, tuple[int, float]] = {}
    while len(ends) < len(pids):
        for pid in pids:
            if pid not in ends:
                done, status = os.waitpid(pid, os.WNOHANG)
                if done:
                    ends[pid] = (os.waitstatus_to_exitcode(status), time.monotonic())
        if time.monotonic() - started > limit_s:
            for pid in pids:
                if pid not in ends:
                    os.kill(pid, signal.SIGKILL)
                    os.waitpid(pid, 0)
            raise TimeoutError(f"{len(pids) - len(ends)} ranks hang\n{read_logs(logs)}")
        time.sleep(0.01)
    times = [end for _, end in ends.values()]
    codes = tuple(ends[pid][0] for pid in pids)
    return Outcome(codes, max(times) - started, max(times) - min(times), read_logs(logs))


def run(settings: list[str], world_size: int, logs: Path, disturbance: Disturbance | None = None) -> Outcome:
    """`start` and `finish`."""
    return finish(start(settings, world_size, logs, disturbance), logs)


def read_logs(logs: Path) -> str:
    return "".join(path.read_text(errors="replace") for path in sorted(logs.glob("*.log")))


def fit(folder: Path, setup: str, disturbance: Disturbance | None = None, extra: list[str] | None = None) -> Outcome:
    """Run `lnli fit` in the processes of a setup, with `folder` as run folder."""
    world_size, flags = SETUPS[setup]
    devices = ["--devices", str(world_size), "--batch-size", str(GLOBAL_BATCH // 2 // world_size)]
    settings = [*FIT, *flags, *devices, "--run-dir", str(folder), *(extra or [])]
    logs = folder.with_name(f"{folder.name}.logs")
    return run(settings, world_size, logs, disturbance)


def final_state(folder: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Weights of the last checkpoint, and what `result.json` says but for costs and places."""
    last = CheckpointIndex.read(folder / "checkpoints").last
    assert last is not None
    result = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    kept = {name: result[name] for name in ("scores", "selection", "data")}
    return read_weights(folder / "checkpoints" / last.name), kept


def largest_difference(one: Path, other: Path) -> float:
    """Of any final weight of two runs; infinite where their scores or selections differ by more than rounding."""
    (weights, result), (other_weights, other_result) = final_state(one), final_state(other)
    if not _is_close(result, other_result) or weights.keys() != other_weights.keys():
        return float("inf")
    return max(float((value - other_weights[name]).detach().abs().max()) for name, value in weights.items())


def _is_close(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return isinstance(other, dict) and one.keys() == other.keys() and all(_is_close(one[k], other[k]) for k in one)
    if isinstance(one, list):
        return isinstance(other, list) and len(one) == len(other) and all(map(_is_close, one, other))
    if isinstance(one, float):
        return isinstance(other, int | float) and abs(one - other) <= 1e-5 + 1e-4 * abs(one)
    return bool(one == other)


def victim(signal_name: str, moment: str, world_size: int) -> int:
    """Who gets the signal: the last rank, so that the first must be told; a write is disturbed where it happens."""
    return 0 if moment == "write" else world_size - 1


def run_cell(folder: Path, undisturbed: Path, setup: str, signal_name: str, moment: str) -> dict[str, Any]:
    """One cell of the kill matrix: disturb a run, start the same command again, compare with the undisturbed run."""
    world_size, _ = SETUPS[setup]
    rank = victim(signal_name, moment, world_size)
    stopped = fit(folder, setup, Disturbance(signal_name, moment, rank))
    leftovers = CheckpointIndex.read(folder / "checkpoints")
    resumed = fit(folder, setup)
    wanted = -signal.SIGKILL if signal_name == "KILL" else 75
    cell = {
        "setup": setup,
        "signal": signal_name,
        "moment": moment,
        "codes": stopped.codes,
        "last_after_first_s": round(stopped.last_after_first_s, 1),
        "resumed_from_step": None if leftovers.last is None else leftovers.last.step,
        "resumed_codes": resumed.codes,
        "difference": None,
        "is_as_wanted": False,
        "log": (stopped.errors + resumed.errors)[-3000:],
    }
    if set(resumed.codes) == {0}:
        cell["difference"] = largest_difference(undisturbed, folder)
        all_as_wanted = stopped.codes[rank] == wanted and (signal_name == "KILL" or set(stopped.codes) == {75})
        cell["is_as_wanted"] = all_as_wanted and cell["difference"] <= (0.0 if world_size == 1 else 1e-5)
    return cell


def write_part(name: str, text: str) -> None:
    """Replace what stands between the marks `name` of docs/RELIABILITY.md."""
    begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
    page = Path(__file__).resolve().parents[2] / "docs" / "RELIABILITY.md"
    old = page.read_text(encoding="utf-8")
    page.write_text(f"{old.split(begin)[0]}{begin}\n\n{text}\n\n{end}{old.split(end)[1]}", encoding="utf-8")
