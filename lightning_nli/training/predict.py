"""Label pairs from a file or standard input: order kept, raw text untouched, memory bounded, one or many processes."""

from __future__ import annotations

import csv
import json
import multiprocessing
import os
import sys
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import polars as pl
import torch

from lightning_nli.data.readers import iter_rows, pick_columns
from lightning_nli.data.schema import EXAMPLE_SCHEMA
from lightning_nli.data.tables import RAW
from lightning_nli.data.tokenization import log_truncation, tokenize_split
from lightning_nli.training.scoring import Scorer, answer_table
from lightning_nli.training.setfit import SetFitScorer
from lightning_nli.training.strategy import set_cpu_threads
from lightning_nli.training.trained import open_run
from lightning_nli.types import UserError

_OUTPUT_SUFFIXES = (".jsonl", ".csv", ".tsv")


@dataclass(frozen=True)
class PredictRequest:
    """What to label and how.

    Attributes:
        run: Run folder.
        source: Input file, None for JSON lines on standard input.
        target: Output file by suffix (.jsonl, .csv, .tsv), None for JSON lines on standard output.
        checkpoint: `best`, `last` or a path.
        precision: Other than the run's own.
        devices: Processes.
        chunk_rows: Rows in flight per process.
        keep_unusable: Rows with an empty text are written with null answers instead of stopping the job.
        overwrite: Whether an existing output file may be replaced.
    """

    run: Path
    source: Path | None
    target: Path | None
    checkpoint: str = "best"
    precision: str | None = None
    devices: int = 1
    chunk_rows: int = 2_000
    keep_unusable: bool = False
    overwrite: bool = False


def predict_file(request: PredictRequest, progress: Callable[[int], None] | None = None) -> int:
    """Label every row of the source in order; returns the number of rows.

    The output file appears only when all of it is written.

    Raises:
        UserError: a file or column is not there, a row has an empty text, or the output exists.
    """
    if request.target is not None:
        if request.target.suffix.lower() not in _OUTPUT_SUFFIXES:
            raise UserError(f"{request.target}: predictions go to {', '.join(_OUTPUT_SUFFIXES)} files")
        if request.target.exists() and not request.overwrite:
            raise UserError(f"{request.target} exists; --force replaces it")
    rows = 0
    with _output(request.target) as write:
        for chunk, answers in _answers(request):
            write(pl.concat([chunk, answers], how="horizontal"))
            rows += chunk.height
            if progress is not None:
                progress(rows)
    return rows


def _answers(request: PredictRequest) -> Iterator[tuple[pl.DataFrame, pl.DataFrame]]:
    """Raw chunks with their answers, in order; with several devices, chunks are scored side by side."""
    chunks = _numbered_chunks(request)
    if request.devices == 1:
        _load_worker(request)
        for start, chunk in chunks:
            yield chunk, _answer_chunk(start, chunk)
        return
    spawn = multiprocessing.get_context("spawn")
    places = spawn.Queue()
    for place in range(request.devices):
        places.put(place)
    with ProcessPoolExecutor(request.devices, spawn, _load_worker, (request, places)) as pool:
        waiting: deque[tuple[pl.DataFrame, Future[pl.DataFrame]]] = deque()
        for start, chunk in chunks:
            waiting.append((chunk, pool.submit(_answer_chunk, start, chunk)))
            if len(waiting) >= 2 * request.devices:
                done, future = waiting.popleft()
                yield done, future.result()
        while waiting:
            done, future = waiting.popleft()
            yield done, future.result()


def _numbered_chunks(request: PredictRequest) -> Iterator[tuple[int, pl.DataFrame]]:
    start = 0
    for chunk in iter_rows(request.source, request.chunk_rows, keep_raw=True):
        yield start, chunk
        start += chunk.height


class _Worker:
    """The model of this process, loaded once."""

    scorer: Scorer | SetFitScorer
    keep_unusable: bool
    source: str


def _load_worker(request: PredictRequest, places: Any = None) -> None:
    place = 0 if places is None else places.get()
    set_cpu_threads(request.devices)
    scorer = open_run(request.run, checkpoint=request.checkpoint, precision=request.precision).scorer
    if isinstance(scorer, Scorer) and scorer.device.type == "cuda":
        scorer.device = torch.device("cuda", place % torch.cuda.device_count())
        scorer.encoder.to(scorer.device)
    scorer.cache = None  # a stream is read once
    _Worker.scorer, _Worker.keep_unusable = scorer, request.keep_unusable
    _Worker.source = "standard input" if request.source is None else str(request.source)


def _answer_chunk(start: int, chunk: pl.DataFrame) -> pl.DataFrame:
    """`predicted` and one probability a label for each row of a raw chunk."""
    scorer = _Worker.scorer
    columns = pick_columns(chunk)
    texts = chunk.select(pl.col(columns[name]).alias(name) for name in scorer.spec.segments if name in columns)
    absent = [name for name in scorer.spec.segments if name not in columns]
    if absent:
        raise UserError(f"{_Worker.source} has no column for '{absent[0]}', which the model reads")
    usable = texts.select(
        pl.all_horizontal(pl.col(name).is_not_null() & (pl.col(name).str.strip_chars() != "") for name in texts.columns)
    ).to_series()
    if not usable.all() and not _Worker.keep_unusable:
        row = start + int(usable.arg_min() or 0) + 1
        raise UserError(
            f"{_Worker.source}, row {row}: a text is empty; --on-bad-row null keeps such rows without an answer"
        )
    frame = _as_examples(texts.filter(usable))
    names = ["predicted", *(f"prob_{name}" for name in scorer.scheme.names)]
    answers = _answers_of(scorer, frame).select(names)
    places = pl.DataFrame({"row": usable.arg_true()})
    placed = pl.concat([places, answers], how="horizontal")
    every = pl.DataFrame({"row": pl.arange(0, chunk.height, eager=True, dtype=pl.UInt32)})
    return every.join(placed, on="row", how="left", maintain_order="left").select(names)


def _answers_of(scorer: Scorer | SetFitScorer, frame: pl.DataFrame) -> pl.DataFrame:
    if isinstance(scorer, SetFitScorer):
        return scorer.predictions(frame)
    split = tokenize_split(frame, scorer.spec, scorer.scheme)
    log_truncation({_Worker.source: split}, scorer.spec.max_length)
    return answer_table(frame, scorer.split_logits(split), scorer.scheme)


def _as_examples(texts: pl.DataFrame) -> pl.DataFrame:
    missing = {name: pl.lit(None, dtype) for name, dtype in EXAMPLE_SCHEMA.items() if name not in texts.columns}
    return texts.with_columns(**missing).with_columns(
        example_id=pl.arange(0, pl.len()).cast(pl.String) if texts.height else pl.lit(None, pl.String)
    )


@contextmanager
def _output(target: Path | None) -> Iterator[Callable[[pl.DataFrame], None]]:
    """A writer of chunks; the file appears by rename when the block ends well."""
    if target is None:
        yield _writer(sys.stdout, ".jsonl")
        return
    partial = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("w", encoding="utf-8", newline="") as file:
            yield _writer(file, target.suffix.lower())
        partial.replace(target)
    except OSError as error:
        raise UserError(f"{target} cannot be written: {error}") from None
    finally:
        partial.unlink(missing_ok=True)


def _writer(file: IO[str], suffix: str) -> Callable[[pl.DataFrame], None]:
    columns: list[str] = []

    def write_json(frame: pl.DataFrame) -> None:
        answered = [name for name in frame.columns if name == "predicted" or name.startswith("prob_")]
        rows = frame.iter_rows(named=True)
        if RAW in frame.columns:  # JSON in: what was a number or a list goes out as one
            rows = (json.loads(row[RAW]) | {name: row[name] for name in answered} for row in rows)
        file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        file.flush()

    def write_table(frame: pl.DataFrame) -> None:
        frame = frame.drop(RAW, strict=False)
        writer = csv.writer(file, delimiter="\t" if suffix == ".tsv" else ",", lineterminator="\n")
        if not columns:
            columns.extend(frame.columns)
            writer.writerow(columns)
        if frame.columns != columns:
            raise UserError(f"later rows have other columns ({frame.columns}) than the first ({columns}); write .jsonl")
        writer.writerows(frame.iter_rows())

    return write_json if suffix == ".jsonl" else write_table
