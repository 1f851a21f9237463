"""`NLIModule` and `NLIDataModule` under a plain Lightning `Trainer`: loss, accumulation, precision, seeds, schedule."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
import pytorch_lightning as pl
import torch
from tiny_models import NO_DROPOUT, bert_config, bert_tokenizer
from torch import nn
from transformers import BertForSequenceClassification

from lightning_nli.config import OptimConfig
from lightning_nli.data.datamodule import NLIDataModule
from lightning_nli.data.packing import MicroStep, PackPlan, collate_pack
from lightning_nli.data.tokenization import TokenizedSplit
from lightning_nli.models.attention import AttentionBackend
from lightning_nli.models.encoder import PackedEncoder
from lightning_nli.models.module import NLIModule
from lightning_nli.models.optim import build_optimizer, build_schedule
from lightning_nli.models.padded import PaddedEncoder
from lightning_nli.types import BINARY

LENGTHS = [9, 4, 12, 6, 7, 3, 15, 8, 5, 10, 11]


def make_split(lengths=LENGTHS) -> TokenizedSplit:
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    ids = np.random.Generator(np.random.Philox(3)).integers(5, 30, int(offsets[-1])).astype(np.int32)
    return TokenizedSplit(ids, None, offsets, np.arange(len(lengths)) % 2, np.diff(offsets))


def make_encoder(*, dropout: float = 0.0, padded: bool = False) -> nn.Module:
    torch.manual_seed(0)
    changes = NO_DROPOUT if not dropout else {name: dropout for name in NO_DROPOUT}
    model = BertForSequenceClassification(bert_config(bert_tokenizer(), type_vocab_size=1, **changes))
    return PaddedEncoder(model) if padded else PackedEncoder(model, AttentionBackend.BUCKETED)


def make_trainer(**options) -> pl.Trainer:
    defaults = {"accelerator": "cpu", "devices": 1, "max_epochs": 1, "logger": False, "enable_checkpointing": False}
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "log_every_n_steps": 1}
    return pl.Trainer(**(defaults | quiet | {"use_distributed_sampler": False} | options))


class FixedLoss(nn.Module):
    """Answers with logits whose cross-entropy is, row by row of the source, what the test wants."""

    def __init__(self, losses: list[float]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))
        self.register_buffer("losses", torch.tensor(losses))

    def forward(self, batch) -> torch.Tensor:
        right = torch.exp(-self.losses[batch.example_ids.clamp(min=0)])
        log_probabilities = torch.stack([right.log(), (1 - right).log()], -1)
        flip = batch.labels == 1
        return torch.where(flip[:, None], log_probabilities.flip(-1), log_probabilities) * self.weight


def test_p08_validation_loss_weighs_pairs_not_packs():
    """Nine pairs at 0.2 in one pack and one pair at 1.0 in another: 0.28, not 0.60."""
    split = make_split([5] * 9 + [45])
    module = NLIModule(FixedLoss([0.2] * 9 + [1.0]), BINARY, OptimConfig())
    data = NLIDataModule(val=split, eval_max_tokens=45)
    trainer = make_trainer()
    (metrics,) = trainer.validate(module, data, verbose=False)
    assert len(data.val_dataloader()) == 2
    assert metrics["id_val/loss"] == pytest.approx(0.28, abs=1e-6)


def test_p09_the_logged_loss_of_an_accumulated_step_is_the_mean_over_its_pairs():
    """Micro-batches of 4 and 1 pairs, losses 0.2 x 4 and 2.2: 0.6, not 1.2."""
    module = NLIModule(FixedLoss([0.2, 0.2, 0.2, 0.2, 2.2]), BINARY, OptimConfig(lr=1e-9))
    data = NLIDataModule(train=make_split([5] * 5), plan=PackPlan(4, None))
    trainer = make_trainer(accumulate_grad_batches=2)
    sampler_seed = next(
        seed
        for seed in range(50)
        if _order_ends_with(data.train, 4, seed)  # the pair at 2.2 stands alone in the second micro-batch
    )
    data.plan = PackPlan(4, None, seed=sampler_seed)
    trainer.fit(module, data)
    assert float(trainer.callback_metrics["train/loss"]) == pytest.approx(0.6, abs=1e-6)


def _order_ends_with(split: TokenizedSplit, row: int, seed: int) -> bool:
    from lightning_nli.data.packing import shuffled

    return shuffled(len(split), seed=seed, epoch=0)[-1] == row


def test_p09_accumulated_gradients_equal_those_of_one_batch():
    split = make_split()
    found = []
    for micro_batches in ([MicroStep((0, 1, 2, 3, 4), 5)], [MicroStep((0, 1, 2, 3), 5), MicroStep((4,), 5)]):
        module = NLIModule(make_encoder(), BINARY, OptimConfig()).train()
        accumulate = len(micro_batches)
        trainer = SimpleNamespace(
            world_size=1,
            accumulate_grad_batches=accumulate,
            num_training_batches=accumulate,
            current_epoch=0,
            global_rank=0,
        )
        module._trainer = trainer
        for index, step in enumerate(micro_batches):
            loss = module.training_step(collate_pack(split, step), index)
            (loss / accumulate).backward()  # what Lightning does with the returned loss
        found.append({name: p.grad.clone() for name, p in module.named_parameters() if p.grad is not None})
    assert found[0].keys() == found[1].keys()
    for name, gradient in found[0].items():
        torch.testing.assert_close(found[1][name], gradient, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("max_tokens", [15, 40, 1000])
@pytest.mark.parametrize("padded", [False, True])
def test_m09_scores_do_not_move_with_the_pack_size(max_tokens, padded):
    module = NLIModule(make_encoder(padded=padded), BINARY, OptimConfig())
    (metrics,) = make_trainer().test(
        module, NLIDataModule(test=make_split(), eval_max_tokens=max_tokens), verbose=False
    )
    alone = NLIModule(make_encoder(padded=True), BINARY, OptimConfig())
    (expected,) = make_trainer().test(alone, NLIDataModule(test=make_split(), eval_max_tokens=15), verbose=False)
    assert metrics["test/accuracy"] == expected["test/accuracy"]
    assert metrics["test/loss"] == pytest.approx(expected["test/loss"], abs=1e-5)


class RecordRows(pl.Callback):
    def __init__(self) -> None:
        self.epochs: list[list[int]] = []
        self.losses: list[float] = []

    def on_train_epoch_start(self, trainer, pl_module) -> None:
        self.epochs.append([])

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx) -> None:
        self.epochs[-1] += [row for row in batch.example_ids.tolist() if row >= 0]
        self.losses.append(float(outputs["loss"]))


def fit_recorded(*, dropout: float = 0.0, compute_dtype=None, seed: int = 1):
    record = RecordRows()
    module = NLIModule(
        make_encoder(dropout=dropout), BINARY, OptimConfig(lr=1e-3), seed=seed, compute_dtype=compute_dtype
    )
    data = NLIDataModule(train=make_split(), val=make_split(), plan=PackPlan(3, None, seed=seed), epochs=2)
    make_trainer(max_epochs=2, callbacks=[record]).fit(module, data)
    return record, module


def test_s03_epochs_differ_and_a_run_repeats_itself():
    first, _ = fit_recorded(dropout=0.3)
    again, _ = fit_recorded(dropout=0.3)
    assert sorted(first.epochs[0]) == sorted(first.epochs[1]) == list(range(len(LENGTHS)))
    assert first.epochs[0] != first.epochs[1]
    assert again.epochs == first.epochs
    assert again.losses == first.losses  # dropout is seeded at every micro-step
    other, _ = fit_recorded(dropout=0.3, seed=2)
    assert other.losses != first.losses


def test_bf16_computes_on_copies_and_keeps_fp32_weights_and_gradients():
    exact, _ = fit_recorded()
    record, module = fit_recorded(compute_dtype=torch.bfloat16)
    assert {parameter.dtype for parameter in module.parameters()} == {torch.float32}
    batch = collate_pack(make_split(), MicroStep((0, 1, 2), 3))
    module.train()
    module(batch).sum().backward()
    assert {p.grad.dtype for p in module.parameters() if p.grad is not None} == {torch.float32}
    assert record.losses == pytest.approx(exact.losses, rel=0.05)
    assert record.losses != exact.losses


def test_predict_returns_every_row_once():
    module = NLIModule(make_encoder(), BINARY, OptimConfig())
    batches = make_trainer().predict(module, NLIDataModule(test=make_split(), eval_max_tokens=20))
    rows = torch.cat([example_ids for example_ids, _ in batches])
    assert sorted(rows.tolist()) == list(range(len(LENGTHS)))
    assert batches[0][1].shape[1] == 2


def test_biases_and_layer_norms_are_not_decayed():
    module = make_encoder()
    optimizer = build_optimizer(module, OptimConfig(weight_decay=0.1))
    names = {id(parameter): name for name, parameter in module.named_parameters()}
    decayed, plain = ({names[id(p)] for p in group["params"]} for group in optimizer.param_groups)
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.1, 0.0]
    assert all(name.endswith("weight") and "LayerNorm" not in name for name in decayed)
    assert all(name.endswith("bias") or "LayerNorm" in name for name in plain)
    assert len(decayed) + len(plain) == len(names)


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("linear", [0.0, 0.5, 1.0, 0.5, 0.0]),
        ("cosine", [0.0, 0.5, 1.0, 0.5, 0.0]),
        ("constant", [0.0, 0.5, 1.0, 1.0, 1.0]),
    ],
)
def test_schedules_warm_up_and_decay_to_the_end(schedule, expected):
    config = OptimConfig(lr=2.0, warmup_fraction=0.2, schedule=schedule)
    optimizer = build_optimizer(nn.Linear(2, 2), config)
    scheduler = build_schedule(optimizer, config, 100)
    rates = []
    for _ in range(101):
        rates.append(scheduler.get_last_lr()[0] / 2.0)
        optimizer.step()
        scheduler.step()
    assert [rates[step] for step in (0, 10, 20, 60, 100)] == pytest.approx(expected, abs=1e-9)
    assert all(math.isfinite(rate) for rate in rates)
