"""SIGKILL at random moments of saving, again and again in one folder: no checkpoint may ever be half a one.

python tests/reliability/random_kills.py [COUNT]
"""

from __future__ import annotations

import logging
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import pytorch_lightning as pl
import torch
from pytorch_lightning.strategies import SingleDeviceStrategy
from ranks import finish, start_ranks, write_part
from torch.utils.data import DataLoader

from lightning_nli.config import CheckpointConfig, parse_config
from lightning_nli.training.checkpoint import RunCheckpoints
from lightning_nli.training.index import CheckpointIndex
from lightning_nli.training.manifest import RunIdentity
from lightning_nli.training.resume import find_checkpoint
from lightning_nli.training.storage import DirectCheckpointIO
from lightning_nli.training.strategy import build_strategy

WIDTH = 600  # 0.36M weights: a checkpoint of 4.3 MB
IDENTITY = RunIdentity("r", "d", "t", "p", global_batch=1, accumulate=1, world_size=1, sharded=False)
MOST_STEPS = 1_000
LONGEST_DELAY_S = 0.25  # a save takes about a tenth of a second
LIMIT_S = 600.0


class _Module(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = torch.nn.ModuleDict({"model": torch.nn.Linear(WIDTH, WIDTH)})

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        return self.encoder["model"](batch).square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters())


def _save_at_every_step(folder: Path, rank: int, world_size: int) -> int:
    checkpoints = RunCheckpoints(folder, CheckpointConfig(every=1), has_val=False, identity=IDENTITY)
    strategy: Any = SingleDeviceStrategy(torch.device("cpu"), checkpoint_io=DirectCheckpointIO())
    if world_size > 1:
        flags = f"--strategy deepspeed --devices {world_size} --accelerator cpu --precision fp32".split()
        strategy = build_strategy(parse_config(flags)).strategy
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=world_size,
        strategy=strategy,
        max_epochs=1,
        logger=False,
        callbacks=[checkpoints],
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    torch.manual_seed(0)
    data = DataLoader(torch.randn(MOST_STEPS, WIDTH), batch_size=1)
    found = find_checkpoint(folder, IDENTITY, is_first=rank == 0)
    trainer.fit(_Module(), data, ckpt_path=found, weights_only=True)
    return 0


def _newest_step(folder: Path) -> int:
    last = CheckpointIndex.read(folder).last
    return -1 if last is None else last.step


def _kill_while_saving(folder: Path, world_size: int, draw: random.Random) -> str:
    """Start, wait until a new checkpoint has been saved and the next one is begun, kill; says what lay there then."""
    logs = folder.with_name("logs")
    before = _newest_step(folder)
    pids = start_ranks(lambda rank: _save_at_every_step(folder, rank, world_size), world_size, logs)
    end = time.monotonic() + LIMIT_S
    while _newest_step(folder) <= before or not list(folder.glob(".partial-*")):
        ended = os.waitpid(pids[0], os.WNOHANG)[1]
        if time.monotonic() > end or ended:
            raise RuntimeError(f"no checkpoint ({ended=})\n" + "".join(path.read_text() for path in logs.glob("*")))
    time.sleep(draw.uniform(0, LONGEST_DELAY_S))
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    finish(pids, logs)
    if list(folder.glob(".partial-*")):
        return "half-written checkpoint there"
    return "half-deleted checkpoint there" if list(folder.glob(".gone-*")) else "between writing and the next step"


def kill_many(count: int, world_size: int, folder: Path, *, seed: int = 0) -> Counter[str]:
    """What lay in the folder after each kill, and how often what is taken for a checkpoint was not whole."""
    draw = random.Random(seed)
    seen: Counter[str] = Counter(corrupted=0)
    folder.mkdir(parents=True)
    for _ in range(count):
        seen[_kill_while_saving(folder, world_size, draw)] += 1
        newest = find_checkpoint(folder, IDENTITY, is_first=True)  # every byte against the manifest
        is_whole = newest is not None and not list(folder.glob("damaged-*"))
        if is_whole and world_size == 1:
            is_whole = torch.load(newest, weights_only=True)["global_step"] == _newest_step(folder)
        seen["corrupted"] += not is_whole
        for path in folder.glob("damaged-*"):
            path.rename(path.with_name(f"seen-{path.name}"))
    return seen


def main() -> None:
    count = next((int(word) for word in sys.argv[1:] if word.isdigit()), 100)
    logging.disable(logging.INFO)
    lines = []
    with tempfile.TemporaryDirectory() as scratch:
        for world_size, share, name in ((1, 0.8, "files"), (2, 0.2, "DeepSpeed folders, 2 processes")):
            number = round(count * share)
            seen = kill_many(number, world_size, Path(scratch) / name / "checkpoints")
            counts = ", ".join(f"{what}: {times}" for what, times in sorted(seen.items()))
            lines.append(f"{number} SIGKILLs while saving {name}: {counts}")
            sys.stdout.write(lines[-1] + "\n")
            sys.stdout.flush()
    if "--write" in sys.argv:
        write_part("random kills", "\n".join(f"- {line}" for line in lines))


if __name__ == "__main__":
    main()
