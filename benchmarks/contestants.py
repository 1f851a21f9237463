"""The same fine-tuning by us and by the peers: each function trains in this process and returns what it measured.

Every contestant starts from the same checkpoint (head included), sees the same examples in the same order, and has the
same batch size, precision, schedule, decay and clipping.
"""

from __future__ import annotations

import json
import math
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

_SEED = 1


@dataclass(frozen=True)
class Task:
    """What all contestants do.

    Attributes:
        model: Folder of the checkpoint that all start from.
        table: Parquet with `premise`, `hypothesis`, `condition`, `label` (class index) in the order of training.
        segments: Columns that are read, in the order of a pair.
        label_names: In logit order.
        batch_size: Examples a step.
        max_length: Tokens an example is cut to.
        precision: `fp32` or `bf16`.
        lr: Peak rate; linear to 0 over the steps, no warm-up.
        weight_decay: Of matrices.
        clip: Gradient norm.
        eval_rows: Rows of the table scored after training; 0: none.
    """

    model: str
    table: str
    segments: tuple[str, ...]
    label_names: tuple[str, ...]
    batch_size: int
    max_length: int
    precision: str
    lr: float
    weight_decay: float
    clip: float
    eval_rows: int

    @classmethod
    def read(cls, file: Path) -> Task:
        values = json.loads(file.read_text(encoding="utf-8"))
        return cls(**{**values, "segments": tuple(values["segments"]), "label_names": tuple(values["label_names"])})

    def write(self, file: Path) -> None:
        file.write_text(json.dumps(asdict(self)), encoding="utf-8")


class Clock:
    """Time of each step's end and its loss."""

    def __init__(self) -> None:
        self.ends: list[float] = [time.perf_counter()]
        self.losses: list[float] = []

    def measured(self, **others: Any) -> dict[str, Any]:
        return {"step_s": np.diff(self.ends).tolist(), "losses": self.losses} | others


def lightning_nli(task: Task) -> dict[str, Any]:
    """Ours, as `lnli fit` builds it: packed, trimmed vocabulary."""
    import polars as pl
    from our_runs import StepWatch, build, run_config

    from lightning_nli.data.packing import shuffled
    from lightning_nli.training.scoring import Scorer
    from lightning_nli.training.trained import encoder_spec

    table = pl.read_parquet(task.table)
    order = shuffled(table.height, seed=_SEED, epoch=0)  # what our plan makes of rows 0, 1, 2...
    watch = StepWatch()
    with tempfile.TemporaryDirectory() as folder:
        built = build(task, table[np.argsort(order)], Path(folder))
        built.trainer.callbacks = [watch]
        built.trainer.fit(built.module, built.datamodule)
        scored: dict[str, Any] = {}
        if task.eval_rows:
            config, data = run_config(task), run_data(task, table.head(task.eval_rows))
            encoder = built.module.encoder
            if task.precision == "bf16":
                encoder = encoder.to(torch.bfloat16)
            scorer = Scorer(
                encoder,
                encoder_spec(config, built.loaded, built.meta),
                data.scheme,
                built.loaded.first_position,
                config.packing.eval_max_tokens,
                next(encoder.parameters()).device,
                None,
                built.datamodule.remap,
            )
            scored = _timed_scoring(task, lambda: scorer.logits(data.train))
    return watch.measured() | scored


def run_data(task: Task, table: Any) -> Any:
    """The table as the rows of a run of ours."""
    import polars as pl

    from lightning_nli.data.schema import EXAMPLE_SCHEMA
    from lightning_nli.training.corpora import RunData
    from lightning_nli.types import SCHEMES

    scheme = next(scheme for scheme in SCHEMES.values() if scheme.names == list(task.label_names))
    names = pl.Series(list(task.label_names))
    columns = {name: pl.lit(None, dtype) for name, dtype in EXAMPLE_SCHEMA.items()}
    columns |= {name: pl.col(name) for name in ("premise", "hypothesis", "condition")}
    columns |= {
        "corpus": pl.lit("benchmark"),
        "example_id": pl.int_range(pl.len()).cast(pl.String),
        "premise_id": pl.int_range(pl.len()).cast(pl.String),
        "label": pl.col("label").map_elements(lambda at: names[at], pl.String),
    }
    frame = table.select(**columns).select(pl.col(name).cast(dtype) for name, dtype in EXAMPLE_SCHEMA.items())
    return RunData(
        train=frame,
        scored={},
        published_train=frame,
        scheme=scheme,
        segments=task.segments,
        bad_rows=(),
        sources=["benchmark"],
        fingerprint="benchmark",
        duplicates={},
    )


def _timed_scoring(task: Task, score: Callable[[], Any]) -> dict[str, Any]:
    started = time.perf_counter()
    logits = np.asarray(score())
    return {"scoring_s": time.perf_counter() - started, "scored": len(logits), "predicted": logits.argmax(-1).tolist()}


def _rows(task: Task) -> list[dict[str, Any]]:
    import polars as pl

    return pl.read_parquet(task.table).rows(named=True)


def _pair(task: Task, row: dict[str, Any]) -> tuple[str, str]:
    """The first text and the others, joined by a blank where there are three."""
    first, *others = (row[name] or "" for name in task.segments)
    return first, " ".join(others)


def _classifier(task: Task) -> Any:
    from transformers import AutoModelForSequenceClassification

    return AutoModelForSequenceClassification.from_pretrained(task.model)


def trainer(task: Task) -> dict[str, Any]:
    """Hugging Face `Trainer` with dynamic padding."""
    return _trainer(task, "sequential")


def trainer_grouped(task: Task) -> dict[str, Any]:
    """Hugging Face `Trainer` grouping examples of similar length (its own order)."""
    return _trainer(task, "group_by_length")


def _trainer(task: Task, sampling: str) -> dict[str, Any]:
    from datasets import Dataset
    from transformers import AutoTokenizer, DataCollatorWithPadding, Trainer, TrainerCallback, TrainingArguments

    tokenizer = AutoTokenizer.from_pretrained(task.model)
    rows = _rows(task)

    def tokenize(row: dict[str, Any]) -> dict[str, Any]:
        ids = tokenizer(*_pair(task, row), truncation=True, max_length=task.max_length)
        return {**ids, "labels": row["label"], "length": len(ids["input_ids"])}

    columns = [*task.segments, "label"]
    data = Dataset.from_list([{name: row[name] for name in columns} for row in rows]).map(
        tokenize, remove_columns=columns
    )
    clock = Clock()

    class Watch(TrainerCallback):
        def on_train_begin(self, *args: Any, **options: Any) -> None:
            clock.ends = [time.perf_counter()]

        def on_step_end(self, *args: Any, **options: Any) -> None:
            clock.ends.append(time.perf_counter())

        def on_log(self, *args: Any, logs: dict[str, Any], **options: Any) -> None:
            if "loss" in logs:
                clock.losses.append(float(logs["loss"]))

    with tempfile.TemporaryDirectory() as folder:
        one = Trainer(
            model=_classifier(task),
            args=TrainingArguments(
                folder,
                per_device_train_batch_size=task.batch_size,
                per_device_eval_batch_size=task.batch_size,
                num_train_epochs=1,
                train_sampling_strategy=sampling,
                **_arguments(task),
            ),
            train_dataset=data,
            data_collator=DataCollatorWithPadding(tokenizer),
            callbacks=[Watch()],
        )
        one.train()
        scored: dict[str, Any] = {}
        if task.eval_rows:
            part = data.select(range(task.eval_rows))
            scored = _timed_scoring(task, lambda: one.predict(part).predictions)
        trained = sum(parameter.numel() for parameter in one.model.parameters())
    return clock.measured(parameters=trained, **scored)


def _arguments(task: Task) -> dict[str, Any]:
    return {
        "learning_rate": task.lr,
        "weight_decay": task.weight_decay,
        "max_grad_norm": task.clip,
        "lr_scheduler_type": "linear",
        "bf16": task.precision == "bf16",
        "use_cpu": not torch.cuda.is_available(),
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
    }


def cross_encoder(task: Task) -> dict[str, Any]:
    """sentence-transformers' `CrossEncoderTrainer`."""
    from datasets import Dataset
    from sentence_transformers.cross_encoder import (
        CrossEncoder,
        CrossEncoderTrainer,
        CrossEncoderTrainingArguments,
    )
    from sentence_transformers.cross_encoder.losses import CrossEntropyLoss
    from torch.utils.data import BatchSampler, SequentialSampler
    from transformers import TrainerCallback

    model = CrossEncoder(
        task.model,
        num_labels=len(task.label_names),
        max_length=task.max_length,
        device="cuda" if torch.cuda.is_available() else "cpu",
    )
    pairs = [(*_pair(task, row), row["label"]) for row in _rows(task)]
    data = Dataset.from_list([{"first": first, "second": second, "label": label} for first, second, label in pairs])
    clock = Clock()

    class Watch(TrainerCallback):
        def on_train_begin(self, *args: Any, **options: Any) -> None:
            clock.ends = [time.perf_counter()]

        def on_step_end(self, *args: Any, **options: Any) -> None:
            clock.ends.append(time.perf_counter())

        def on_log(self, *args: Any, logs: dict[str, Any], **options: Any) -> None:
            if "loss" in logs:
                clock.losses.append(float(logs["loss"]))

    class InOrder(CrossEncoderTrainer):  # type: ignore[misc]
        def get_batch_sampler(self, dataset: Any, batch_size: int, drop_last: bool, **options: Any) -> Any:
            return BatchSampler(SequentialSampler(dataset), batch_size, drop_last)

    with tempfile.TemporaryDirectory() as folder:
        one = InOrder(
            model=model,
            args=CrossEncoderTrainingArguments(
                folder, per_device_train_batch_size=task.batch_size, num_train_epochs=1, **_arguments(task)
            ),
            train_dataset=data,
            loss=CrossEntropyLoss(model),
            callbacks=[Watch()],
        )
        one.train()
        scored: dict[str, Any] = {}
        if task.eval_rows:
            part = [pair[:2] for pair in pairs[: task.eval_rows]]
            scored = _timed_scoring(task, lambda: model.predict(part, batch_size=task.batch_size))
    return clock.measured(parameters=sum(p.numel() for p in model.parameters()), **scored)


def plain_lightning(task: Task) -> dict[str, Any]:
    """A usual Lightning text-classification module: dynamic padding, mixed precision."""
    import pytorch_lightning as lightning
    from torch.utils.data import DataLoader
    from transformers import AutoTokenizer, get_linear_schedule_with_warmup

    tokenizer = AutoTokenizer.from_pretrained(task.model)
    rows = _rows(task)
    num_steps = math.ceil(len(rows) / task.batch_size)
    clock = Clock()

    def collate(batch: list[dict[str, Any]]) -> dict[str, Any]:
        firsts, seconds = zip(*(_pair(task, row) for row in batch), strict=True)
        options = {"truncation": True, "padding": True, "max_length": task.max_length, "return_tensors": "pt"}
        ids = tokenizer(list(firsts), list(seconds), **options)
        return {**ids, "labels": torch.tensor([row["label"] for row in batch])}

    class Classifier(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = _classifier(task)

        def training_step(self, batch: dict[str, Any], batch_idx: int) -> Any:
            return self.model(**batch).loss

        def predict_step(self, batch: dict[str, Any], batch_idx: int) -> Any:
            return self.model(**batch).logits.float()

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.AdamW(self.parameters(), lr=task.lr, weight_decay=task.weight_decay)
            schedule = get_linear_schedule_with_warmup(optimizer, 0, num_steps)
            return [optimizer], [{"scheduler": schedule, "interval": "step"}]

    class Watch(lightning.Callback):
        def on_train_start(self, *args: Any) -> None:
            clock.ends = [time.perf_counter()]

        def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            clock.losses.append(outputs["loss"].item())
            clock.ends.append(time.perf_counter())

    module = Classifier().train()
    runner = lightning.Trainer(
        accelerator="auto",
        devices=1,
        max_epochs=1,
        precision="bf16-mixed" if task.precision == "bf16" else "32-true",
        gradient_clip_val=task.clip,
        callbacks=[Watch()],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    runner.fit(module, DataLoader(rows, batch_size=task.batch_size, collate_fn=collate))  # type: ignore[arg-type]
    scored: dict[str, Any] = {}
    if task.eval_rows:
        loader = DataLoader(rows[: task.eval_rows], batch_size=task.batch_size, collate_fn=collate)  # type: ignore[arg-type]
        scored = _timed_scoring(task, lambda: torch.cat(runner.predict(module, loader)))  # type: ignore[arg-type]
    return clock.measured(parameters=sum(p.numel() for p in module.parameters()), **scored)


CONTESTANTS: dict[str, Callable[[Task], dict[str, Any]]] = {
    "lightning-nli": lightning_nli,
    "Trainer": trainer,
    "Trainer, grouped by length": trainer_grouped,
    "CrossEncoderTrainer": cross_encoder,
    "plain Lightning": plain_lightning,
}
