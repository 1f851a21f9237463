"""Lightning's view of the data: planned packs, one loader a stage."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pytorch_lightning as pl
from torch.utils.data import DataLoader, Dataset, Sampler

from lightning_nli.batch import PackedBatch
from lightning_nli.data.packing import MicroStep, PackPlan, collate_pack, count_micro_steps, plan_evaluation, plan_steps
from lightning_nli.data.tokenization import TokenizedSplit

Loader = TypeVar("Loader", bound=DataLoader[PackedBatch])


class PackDataset(Dataset[PackedBatch]):
    """Indexed by a planned micro-step; holds numpy arrays only, so workers never touch polars."""

    def __init__(
        self, split: TokenizedSplit, *, first_position: int = 0, remap: npt.NDArray[np.int64] | None = None
    ) -> None:
        self.split, self.first_position, self.remap = split, first_position, remap

    def __getitem__(self, step: MicroStep) -> PackedBatch:  # type: ignore[override]
        return collate_pack(self.split, step, first_position=self.first_position, remap=self.remap)


class TrainSampler(Sampler[MicroStep]):
    """This rank's micro-steps of an epoch. Lightning calls `set_epoch`; the length never changes."""

    def __init__(self, split: TokenizedSplit, plan: PackPlan, *, global_rank: int, epochs: int) -> None:
        self.lengths, self.plan, self.global_rank = split.lengths, plan, global_rank
        self.num_micro_steps = count_micro_steps(self.lengths, plan, epochs=epochs)
        self.epoch = 0
        self.first = 0  # micro-steps of the next epoch that an earlier, stopped process has already done

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return self.num_micro_steps

    def __iter__(self) -> Iterator[MicroStep]:
        steps = plan_steps(self.lengths, self.plan, epoch=self.epoch, num_micro_steps=self.num_micro_steps)
        first, self.first = self.first, 0
        yield from (ranks[self.global_rank] for ranks in steps[first:])


class TrainLoader(DataLoader[PackedBatch]):
    """A loader that a stopped run goes on with in the middle of an epoch: Lightning keeps its state in checkpoints."""

    trainer: pl.Trainer

    def state_dict(self) -> dict[str, int]:
        progress = self.trainer.fit_loop.epoch_loop.batch_progress.state_dict()["current"]
        return {"epoch": self.trainer.current_epoch, "micro_steps_done": int(progress["processed"])}

    def load_state_dict(self, state: dict[str, int]) -> None:
        assert isinstance(self.sampler, TrainSampler)
        finished = state["micro_steps_done"] >= len(self.sampler)
        self.sampler.set_epoch(state["epoch"] + finished)
        self.sampler.first = 0 if finished else state["micro_steps_done"]


class NLIDataModule(pl.LightningDataModule):
    """Packed batches of tokenized splits, for any Lightning `Trainer` with `use_distributed_sampler=False`.

    Args:
        train: Split to train on, or None.
        plan: Batch size or pack size, accumulation and shuffle seed; the trainer's world size is filled in.
        epochs: Passes over the training split (they share one number of micro-steps).
        val: Split that chooses the checkpoint, or None.
        test: Split to score, or None; `predict` reads it too.
        eval_max_tokens: Tokens per pack when scoring.
        first_position: Position of a segment's first token.
        remap: New id of every token id, where the vocabulary is trimmed.
        num_workers: Loader processes (spawned).
    """

    def __init__(
        self,
        *,
        train: TokenizedSplit | None = None,
        plan: PackPlan | None = None,
        epochs: int = 1,
        val: TokenizedSplit | None = None,
        test: TokenizedSplit | None = None,
        eval_max_tokens: int = 4096,
        first_position: int = 0,
        remap: npt.NDArray[np.int64] | None = None,
        num_workers: int = 0,
    ) -> None:
        super().__init__()
        self.train, self.plan, self.epochs, self.val, self.test = train, plan, epochs, val, test
        self.eval_max_tokens, self.first_position, self.remap = eval_max_tokens, first_position, remap
        self.num_workers = num_workers

    def _loader(
        self, split: TokenizedSplit, sampler: Sampler[MicroStep] | list[MicroStep], kind: type[Loader]
    ) -> Loader:
        return kind(
            PackDataset(split, first_position=self.first_position, remap=self.remap),
            batch_size=None,
            sampler=sampler,
            num_workers=self.num_workers,
            multiprocessing_context="spawn" if self.num_workers else None,
            pin_memory=self.trainer is not None and self.trainer.strategy.root_device.type == "cuda",
        )

    def _train_sampler(self) -> TrainSampler:
        assert self.train is not None and self.plan is not None and self.trainer is not None
        plan = replace(self.plan, world_size=self.trainer.world_size, accumulate=self.trainer.accumulate_grad_batches)
        return TrainSampler(self.train, plan, global_rank=self.trainer.global_rank, epochs=self.epochs)

    def num_optimizer_steps(self) -> int:
        """Optimizer steps of the whole training.

        The schedule must not ask the trainer for them: that would make the loader before the loader's state in a
        checkpoint is there to be loaded.
        """
        assert self.trainer is not None
        return self.epochs * len(self._train_sampler()) // self.trainer.accumulate_grad_batches

    def train_dataloader(self) -> DataLoader[PackedBatch]:
        assert self.train is not None and self.trainer is not None
        sampler = self._train_sampler()
        sampler.set_epoch(self.trainer.current_epoch)
        loader = self._loader(self.train, sampler, TrainLoader)
        loader.trainer = self.trainer
        return loader

    def _scoring_loader(self, split: TokenizedSplit) -> DataLoader[PackedBatch]:
        assert self.trainer is not None
        steps = plan_evaluation(split.lengths, max_tokens=self.eval_max_tokens, world_size=self.trainer.world_size)
        return self._loader(split, [ranks[self.trainer.global_rank] for ranks in steps], DataLoader[PackedBatch])

    def val_dataloader(self) -> DataLoader[PackedBatch] | list[DataLoader[PackedBatch]]:
        return [] if self.val is None else self._scoring_loader(self.val)

    def test_dataloader(self) -> DataLoader[PackedBatch]:
        assert self.test is not None
        return self._scoring_loader(self.test)

    def predict_dataloader(self) -> DataLoader[PackedBatch]:
        return self.test_dataloader()
