"""A plain Lightning `Trainer` does the whole round: accumulation, schedule, one set of numbers in every stage."""

from __future__ import annotations

import logging
import math

import pytest
import pytorch_lightning as pl
import torch
from test_module import LENGTHS, make_encoder, make_split, make_trainer

from lightning_nli.config import CheckpointConfig, OptimConfig
from lightning_nli.data.datamodule import NLIDataModule
from lightning_nli.data.packing import PackPlan
from lightning_nli.models.module import NLIModule
from lightning_nli.training.checkpoint import CheckpointIndex, RunCheckpoints, read_weights
from lightning_nli.types import BINARY, IGNORE_INDEX


class RecordSteps(pl.Callback):
    """Gradients, learning rate and pairs of every optimizer step, as they reach the optimizer."""

    def __init__(self) -> None:
        self.gradients: list[dict[str, torch.Tensor]] = []
        self.rates: list[float] = []
        self.pairs: list[int] = []

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx) -> None:
        self.pairs.append(int((batch.labels != IGNORE_INDEX).sum()))

    def on_before_optimizer_step(self, trainer, pl_module, optimizer) -> None:
        named = pl_module.named_parameters()
        self.gradients.append({name: p.grad.clone() for name, p in named if p.grad is not None})
        self.rates.append(optimizer.param_groups[0]["lr"])


def fit_steps(plan: PackPlan, lengths=LENGTHS, *, accumulate: int = 1, epochs: int = 1, **optim) -> RecordSteps:
    record = RecordSteps()
    module = NLIModule(make_encoder(), BINARY, OptimConfig(**({"lr": 1e-3} | optim)))
    data = NLIDataModule(train=make_split(lengths), plan=plan, epochs=epochs)
    trainer = make_trainer(accumulate_grad_batches=accumulate, max_epochs=epochs, callbacks=[record])
    trainer.fit(module, data)
    assert trainer.global_step == len(record.rates)
    return record


@pytest.mark.parametrize(
    ("plan", "accumulate", "pairs"),
    [
        (PackPlan(4, None), 2, [4, 1]),
        (PackPlan(2, None), 4, [2, 2, 1, 0]),  # a ghost fills the step
        (PackPlan(None, 20), 3, [1, 2, 2]),
    ],
)
def test_p09_one_accumulated_step_has_the_gradients_of_one_batch(plan, accumulate, pairs):
    lengths = [4, 15, 5, 12, 6]
    (expected,) = fit_steps(PackPlan(5, None), lengths).gradients
    record = fit_steps(plan, lengths, accumulate=accumulate)
    assert sorted(record.pairs) == sorted(pairs)
    (found,) = record.gradients
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        # relative to the tensor's largest entry: single entries may be sums that cancel
        assert (found[name] - gradient).abs().max() <= 1e-5 * gradient.abs().max() + 1e-8, name
    assert max(gradient.abs().max() for gradient in expected.values()) > 1e-2


@pytest.mark.parametrize("schedule", ["linear", "cosine", "constant"])
def test_the_schedule_spans_the_optimizer_steps_that_are_taken(schedule):
    """11 rows in threes are 4 micro-steps, 2 optimizer steps an epoch, 10 in all, 2 of them warm-up."""
    plan = PackPlan(3, None)
    record = fit_steps(plan, accumulate=2, epochs=5, lr=0.01, warmup_fraction=0.2, schedule=schedule)
    done = [step / 8 for step in range(8)]
    tail = {
        "linear": [1 - d for d in done],
        "cosine": [(1 + math.cos(math.pi * d)) / 2 for d in done],
        "constant": [1.0] * 8,
    }
    assert record.rates == pytest.approx([0.01 * factor for factor in [0.0, 0.5, *tail[schedule]]], abs=1e-12)


def predictions(module, data) -> torch.Tensor:
    batches = make_trainer().predict(module, data)
    rows, logits = (torch.cat(parts) for parts in zip(*batches, strict=True))
    assert sorted(rows.tolist()) == list(range(len(LENGTHS)))
    return logits[rows.argsort()]


def test_one_trainer_fits_validates_tests_and_predicts_with_one_set_of_numbers():
    split = make_split()
    module = NLIModule(make_encoder(), BINARY, OptimConfig(lr=1e-3, warmup_fraction=0.0))
    data = NLIDataModule(train=split, val=split, test=split, plan=PackPlan(3, None), epochs=2, eval_max_tokens=30)
    trainer = make_trainer(max_epochs=2)
    (before,) = trainer.validate(module, data, verbose=False)
    trainer.fit(module, data)
    fitted = {name: float(value) for name, value in trainer.callback_metrics.items()}
    (validated,) = trainer.validate(module, data, verbose=False)
    (tested,) = trainer.test(module, data, verbose=False)
    logits, labels = predictions(module, data), torch.from_numpy(split.labels)
    loss = float(torch.nn.functional.cross_entropy(logits, labels))
    accuracy = float((logits.argmax(-1) == labels).double().mean())
    assert before["id_val/loss"] > loss  # it did learn
    for metrics, prefix in ((fitted, "id_val"), (validated, "id_val"), (tested, "test")):
        assert metrics[f"{prefix}/loss"] == pytest.approx(loss, abs=1e-6)
        assert metrics[f"{prefix}/accuracy"] == pytest.approx(accuracy, abs=1e-6)


def test_m09_the_answers_do_not_move_with_the_pack_size():
    logits = {
        (max_tokens, padded): predictions(
            NLIModule(make_encoder(padded=padded), BINARY, OptimConfig()),
            NLIDataModule(test=make_split(), eval_max_tokens=max_tokens),
        )
        for max_tokens in (15, 40, 1000)
        for padded in (False, True)
    }
    expected = logits[15, True]
    assert expected.std() > 1e-3  # not constants
    for found in logits.values():
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
        assert torch.equal(found.argmax(-1), expected.argmax(-1))


class Scripted(NLIModule):
    """Reports a given score after each epoch instead of its own."""

    scores = (math.nan, 0.5, 0.3)

    def on_validation_epoch_end(self) -> None:
        if not self.trainer.sanity_checking:
            self.log("id_val/macro_f1", self.scores[self.current_epoch], batch_size=1)


@pytest.fixture(scope="module")
def scripted_run(tmp_path_factory):
    """Three epochs whose scores are NaN, 0.5 and 0.3, saved by our checkpoint callback."""
    folder = tmp_path_factory.mktemp("run") / "checkpoints"
    split = make_split()
    module = Scripted(make_encoder(), BINARY, OptimConfig(), checkpoint_extras={"scheme": "binary", "seed": 1})
    data = NLIDataModule(train=split, val=split, plan=PackPlan(6, None), epochs=3)
    checkpoints = RunCheckpoints(folder, CheckpointConfig(monitor="id_val/macro_f1", keep=3), has_val=True)
    heard: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: heard.append(record.getMessage())
    logger = logging.getLogger("lightning_nli.training.checkpoint")
    logger.addHandler(handler)
    make_trainer(max_epochs=3, callbacks=[checkpoints], enable_checkpointing=True).fit(module, data)
    logger.removeHandler(handler)
    return folder, module, heard


def test_k09_an_epoch_without_a_number_is_named_and_never_the_best(scripted_run):
    folder, _, heard = scripted_run
    index = CheckpointIndex.read(folder)
    assert [entry.score for entry in index.saved] == [None, 0.5, pytest.approx(0.3)]
    assert index.chosen().name == "step-00000004-val.ckpt"
    assert heard == ["id_val/macro_f1 is nan after step 2: not a candidate for the best"]
    assert not list(folder.glob(".partial*"))


def test_k07_our_checkpoints_hold_plain_values_and_load_without_the_unsafe_switch(scripted_run):
    folder, module, _ = scripted_run
    path = folder / CheckpointIndex.read(folder).last.name
    checkpoint = torch.load(path, weights_only=True)
    assert checkpoint["lightning_nli"] == {"scheme": "binary", "seed": 1}
    assert checkpoint["optimizer_states"]
    weights = read_weights(path)
    expected = module.encoder.model.state_dict()
    assert weights.keys() == expected.keys()
    assert all(torch.equal(weights[name], expected[name]) for name in expected)
