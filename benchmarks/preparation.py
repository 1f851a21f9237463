"""The checkpoint and the rows that all contestants of a benchmark start from."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import polars as pl
from contestants import Task

from lightning_nli.data.readers import read_source
from lightning_nli.models.encoder import load_encoder
from lightning_nli.models.offline import resolve_model


def prepare(
    scratch: Path,
    *,
    data: str,
    model: str,
    num_rows: int,
    batch_size: int,
    max_length: int,
    precision: str,
    eval_rows: int = 0,
    dropout: float | None = None,
) -> Task:
    """Write a checkpoint with its new head, the rows, and `task.json` to a folder; too few rows end the benchmark."""
    corpus = read_source(data, on_bad_row="drop")
    rows = corpus.frame.head(num_rows)
    if rows.height < num_rows:
        sys.exit(f"{data} has {rows.height} rows, {num_rows} are needed")
    texts = [*rows["premise"].to_list(), *rows["hypothesis"].to_list()]
    loaded = load_encoder(resolve_model(model, lambda: texts), corpus.scheme, attention="padded")
    if dropout is not None:
        for name in ("hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout"):
            setattr(loaded.model.config, name, dropout)
    loaded.model.save_pretrained(scratch / "model")
    loaded.tokenizer.save_pretrained(scratch / "model")
    index = {name: at for at, name in enumerate(corpus.scheme.names)}
    label = pl.col("label").cast(pl.String).replace_strict(index, return_dtype=pl.Int64)
    rows.select("premise", "hypothesis", "condition", label=label).write_parquet(scratch / "rows.parquet")
    segments = ("premise", "hypothesis") if rows["condition"].null_count() else ("hypothesis", "condition", "premise")
    task = Task(
        model=str(scratch / "model"),
        table=str(scratch / "rows.parquet"),
        segments=segments,
        label_names=tuple(corpus.scheme.names),
        batch_size=batch_size,
        max_length=max_length,
        precision=precision,
        lr=2e-5,
        weight_decay=0.01,
        clip=1.0,
        eval_rows=min(eval_rows, rows.height),
    )
    task.write(scratch / "task.json")
    return task


def prepare_for(
    args: argparse.Namespace, scratch: Path, *, num_rows: int, eval_rows: int = 0, dropout: float | None = None
) -> Task:
    """`prepare` by the options of `report.add_task_options`."""
    return prepare(
        scratch,
        data=args.data,
        model=args.model,
        num_rows=num_rows,
        batch_size=args.batch_size,
        max_length=args.max_length,
        precision=args.precision,
        eval_rows=eval_rows,
        dropout=dropout,
    )
