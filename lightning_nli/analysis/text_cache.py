"""Values that are slow to work out of a text, worked out on all cores and kept on disk by the text's hash."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import pickle
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path

import polars as pl

from lightning_nli.config import cache_root
from lightning_nli.types import UserError

log = logging.getLogger(__name__)

BATCH_TEXTS = 50_000
TEXTS_PER_WORKER = 4_000
"""Fewer texts are not worth a process: it takes a second or two to start."""

_WORKER = "import sys; from lightning_nli.analysis.text_cache import work; work(sys.argv[1], sys.argv[2])"


def cached_texts(texts: pl.Series, name: str, compute: Callable[[str], str]) -> pl.Series:
    """Apply `compute` to each distinct text once, ever: what it gave is read back from `LNLI_CACHE`.

    Every `BATCH_TEXTS` texts a file is added to the folder `analysis/NAME` by rename, so a run that was stopped goes on
    where it was, and runs beside each other do not harm each other. The texts themselves are not stored.

    Args:
        texts: Any texts; null stays null.
        name: What is computed, by what, in which version; another name is another cache.
        compute: Text -> text; a function of a module, or a partial of one.

    Returns:
        The results in the order of `texts`.

    Raises:
        UserError: the cache folder cannot be read or written.
    """
    folder = cache_root() / "analysis" / name
    distinct = texts.rename("text").drop_nulls().unique(maintain_order=True)
    asked = pl.DataFrame([distinct, pl.Series("key", [_digest(text) for text in distinct], dtype=pl.String)])
    known = _read(folder, asked["key"])
    missing = asked.join(known, on="key", how="anti", maintain_order="left")
    for number, batch in enumerate(missing.iter_slices(BATCH_TEXTS)):
        log.info("%s: text %d of %d", name, number * BATCH_TEXTS + 1, missing.height)
        num_workers = min(len(os.sched_getaffinity(0)), batch.height // TEXTS_PER_WORKER)
        values = map_texts(compute, batch["text"].to_list(), num_workers)
        computed = batch.select("key").with_columns(pl.Series("value", values, dtype=pl.String))
        _write(folder, computed)
        known = known.vstack(computed)
    values_of = asked.join(known, on="key", how="left").select("text", "value")
    return texts.rename("text").to_frame().join(values_of, on="text", how="left", maintain_order="left")["value"]


def map_texts(compute: Callable[[str], str], texts: Sequence[str], num_workers: int) -> list[str]:
    """Apply `compute` to each text, in order.

    The workers are interpreters of their own, started afresh: they import neither the caller's script, which need not
    guard against that, nor inherit its threads.

    Args:
        compute: A function of a module, or a partial of one.
        texts: Texts.
        num_workers: Processes; below 2: none, the work is done here.

    Raises:
        RuntimeError: a worker failed; the message ends with what it said last.
    """
    if num_workers < 2:
        return [compute(text) for text in texts]
    with tempfile.TemporaryDirectory(prefix="lnli-") as folder:
        bounds = [len(texts) * place // num_workers for place in range(num_workers + 1)]
        tasks = [Path(folder) / f"{place}.task" for place in range(num_workers)]
        workers: list[subprocess.Popen[bytes]] = []
        try:
            for place, task in enumerate(tasks):
                task.write_bytes(pickle.dumps((compute, list(texts[bounds[place] : bounds[place + 1]]))))
                with task.with_suffix(".log").open("wb") as output:
                    command = [sys.executable, "-c", _WORKER, str(task), str(task.with_suffix(".done"))]
                    workers.append(subprocess.Popen(command, stdout=output, stderr=output))
            codes = [worker.wait() for worker in workers]
        finally:
            for worker in workers:
                worker.kill()  # where one is still at work, the others' results are not wanted
                worker.wait()
        for task, code in zip(tasks, codes, strict=True):
            if code:
                said = task.with_suffix(".log").read_text(encoding="utf-8", errors="replace").strip()
                raise RuntimeError(f"a worker ended with code {code}: {said[-500:]}")
        return [text for task in tasks for text in pickle.loads(task.with_suffix(".done").read_bytes())]


def work(task: str, done: str) -> None:
    """What a worker does: read a function and texts from the file `task`, write the results to `done`."""
    compute, texts = pickle.loads(Path(task).read_bytes())
    Path(done).write_bytes(pickle.dumps([compute(text) for text in texts]))


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _read(folder: Path, keys: pl.Series) -> pl.DataFrame:
    """`key`, `value` of the keys that are there."""
    found = pl.DataFrame(schema={"key": pl.String, "value": pl.String})
    for file in sorted(folder.glob("*.parquet")):
        try:
            part = pl.read_parquet(file.read_bytes()).filter(pl.col("key").is_in(keys.implode()))
            found = found.vstack(part)
        except (OSError, pl.exceptions.PolarsError) as error:
            raise UserError(f"{file} cannot be read ({error}); delete it, it will be computed again") from error
    return found.unique("key", keep="first", maintain_order=True)


def _write(folder: Path, computed: pl.DataFrame) -> None:
    name = uuid.uuid4().hex
    partial = folder / f".{name}.partial"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        computed.write_parquet(partial)
        partial.rename(folder / f"{name}.parquet")
    except OSError as error:
        raise UserError(f"{folder} cannot be written ({error}); set LNLI_CACHE to a folder that can") from error
    finally:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
