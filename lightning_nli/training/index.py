"""What a run's checkpoint folder holds: which is newest, which is best, how long ago the best was."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, field
from pathlib import Path

from lightning_nli.training.manifest import write_json
from lightning_nli.types import UserError

INDEX_NAME = "index.json"


@dataclass(frozen=True)
class SavedCheckpoint:
    """One checkpoint in the folder.

    Attributes:
        name: File (one process, DDP) or folder (DeepSpeed).
        step: Optimizer steps taken.
        epoch: Epochs begun, counted from 0.
        score: The monitored score, null without validation.
        stale: Scored epochs since the best one.
    """

    name: str
    step: int
    epoch: int
    score: float | None = None
    stale: int = 0


@dataclass
class CheckpointIndex:
    """What the checkpoint folder holds; kept as `index.json` beside the checkpoints, replaced by rename."""

    monitor: str | None = None
    saved: list[SavedCheckpoint] = field(default_factory=list)
    best: str | None = None

    @classmethod
    def read(cls, folder: Path) -> CheckpointIndex:
        """The folder's index; empty where there is none.

        Raises:
            UserError: the index is damaged.
        """
        path = folder / INDEX_NAME
        if not path.exists():
            return cls()
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
            saved = [SavedCheckpoint(**entry) for entry in values["saved"]]
            return cls(monitor=values["monitor"], saved=saved, best=values["best"])
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(f"{path} is damaged ({error}); start the run anew in another --run-dir") from None

    def write(self, folder: Path) -> None:
        write_json(folder / INDEX_NAME, asdict(self))

    @property
    def newest_first(self) -> list[SavedCheckpoint]:
        """By step; of two after the same step (before and after its validation) the one saved later."""
        return [entry for _, _, entry in sorted(((e.step, i, e) for i, e in enumerate(self.saved)), reverse=True)]

    @property
    def last(self) -> SavedCheckpoint | None:
        return next(iter(self.newest_first), None)

    def add(self, entry: SavedCheckpoint, *, lower_is_better: bool) -> None:
        """Register a checkpoint; a score that is no number is never the best."""
        self.saved = [*(known for known in self.saved if known.name != entry.name), entry]
        if self._is_better(entry, lower_is_better=lower_is_better):
            self.best = entry.name

    def _is_better(self, entry: SavedCheckpoint, *, lower_is_better: bool) -> bool:
        if entry.score is None or not math.isfinite(entry.score):
            return False
        best = next((known.score for known in self.saved if known.name == self.best), None)
        sign = -1 if lower_is_better else 1
        return best is None or sign * entry.score > sign * best

    def count_stale(self, score: float | None, *, lower_is_better: bool) -> int:
        """Scored epochs since the best one, the next checkpoint with `score` included; None is no scored epoch."""
        before = 0 if self.last is None else self.last.stale
        if score is None:
            return before
        coming = SavedCheckpoint("", 0, 0, score)
        return 0 if self._is_better(coming, lower_is_better=lower_is_better) else before + 1

    def prune(self, keep: int) -> list[str]:
        """Forget all but the newest `keep` and the best one; returns the names that may be deleted."""
        kept = {entry.name for entry in self.newest_first[:keep]} | {self.best}
        gone = [entry.name for entry in self.saved if entry.name not in kept]
        self.saved = [entry for entry in self.saved if entry.name in kept]
        return gone

    def drop(self, name: str, *, lower_is_better: bool) -> None:
        """Forget a checkpoint that cannot be read; the best one is then the best of the others."""
        others = [entry for entry in self.saved if entry.name != name]
        self.saved, self.best = [], None
        for entry in others:
            self.add(entry, lower_is_better=lower_is_better)

    def chosen(self) -> SavedCheckpoint:
        """The checkpoint that scores count for: the best one, or the last where nothing chose.

        Raises:
            UserError: there is none.
        """
        entry = next((entry for entry in self.saved if entry.name == self.best), self.last)
        if entry is None:
            raise UserError("the run has no checkpoint yet")
        return entry
