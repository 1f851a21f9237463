"""Bytes of a sweep: estimated before it starts, watched while it runs, given back when trials end."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

from lightning_nli.tuning.sweep import Status, Sweep, ranked, write_json
from lightning_nli.types import UserError

BYTES_PER_PARAMETER = 12
"""fp32 weight and the two moments of AdamW."""

FILES_OF_A_RUNNING_TRIAL = 3
"""The best, the newest, and the one being written."""

_GIB = 1024**3
_RESERVE_CHECKPOINTS = 2


@dataclass(frozen=True)
class DiskWatch:
    """Says when the disk has no room for the next checkpoints.

    Attributes:
        folder: Of the sweep.
        checkpoint_bytes: Size of one checkpoint.
    """

    folder: Path
    checkpoint_bytes: int

    def is_full(self) -> bool:
        return shutil.disk_usage(self.folder).free < _RESERVE_CHECKPOINTS * self.checkpoint_bytes

    def describe(self) -> str:
        free = shutil.disk_usage(self.folder).free / _GIB
        return f"disk nearly full: {free:.1f} GiB free, a checkpoint takes {self.checkpoint_bytes / _GIB:.1f}"


def check_disk(sweep: Sweep, checkpoint_bytes: int, concurrent: int) -> str:
    """What the sweep will take on disk at most, as a line.

    Raises:
        UserError: it is more than what is free.
    """
    running = concurrent * FILES_OF_A_RUNNING_TRIAL * len(sweep.spec.members)
    needed = (running + sweep.spec.keep) * checkpoint_bytes
    free = shutil.disk_usage(sweep.folder).free
    line = (
        f"disk: a checkpoint takes {checkpoint_bytes / _GIB:.2f} GiB; at most {running} of running trials "
        f"and {sweep.spec.keep} of ended ones take {needed / _GIB:.2f} GiB, {free / _GIB:.1f} GiB are free"
    )
    if needed > free:
        raise UserError(f"{line}: free some, or lower --max-concurrent or --keep-checkpoints-num")
    return line


def prune_checkpoints(sweep: Sweep) -> None:
    """Keep the chosen checkpoint of the best `keep` trials that ended; running and failed ones go on from theirs."""
    trials = sweep.trials()
    ended = [trial for trial in trials if trial.status in (Status.FINISHED, Status.STOPPED)]
    keep = 0 if sweep.spec.inner_folds else sweep.spec.keep
    kept = {trial.name for trial in ranked(ended, sweep.spec.metrics[0])[:keep]}
    for trial in ended:
        for run in sweep.runs(trial.name):
            _prune_run(run / "checkpoints", keep=trial.name in kept)


def _prune_run(folder: Path, *, keep: bool) -> None:
    index = folder / "index.json"
    if not index.exists():
        return
    values = json.loads(index.read_text(encoding="utf-8"))
    last = max(values["saved"], key=lambda entry: entry["step"], default=None)
    chosen = values["best"] or (last["name"] if last else None)
    if not keep:
        shutil.rmtree(folder)
        return
    values["saved"] = [entry for entry in values["saved"] if entry["name"] == chosen]
    write_json(index, values)
    for path in folder.iterdir():
        if path.name != index.name and not path.name.startswith(str(chosen)):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
