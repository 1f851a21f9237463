"""A board's folder: cells to run, leases on them, records of them. Everything appears by rename.

BOARD/suite.json  folds.json  cells/ID/{cell.json, lease.json, record.json, predictions/*.parquet}
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import threading
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lightning_nli.types import UserError

RECORD_SCHEMA = 1
HEARTBEAT_S = 10.0
STALE_S = 60.0


@dataclass(frozen=True)
class BoardSuite:
    """What all records of a board share; `suite.json`.

    Attributes:
        key: Suite name, version and data fingerprint.
        suite: The suite's own entries.
    """

    key: dict[str, Any]
    suite: dict[str, Any]


@dataclass(frozen=True)
class HeldCell:
    """A cell that a runner holds now.

    Attributes:
        cell_id: Of the cell.
        runner: `host:process id`.
        started: When it was taken, in seconds since 1970.
    """

    cell_id: str
    runner: str
    started: float


def write_json(path: Path, value: Any) -> None:
    """Write by rename; a number that is not finite is refused.

    Raises:
        ValueError: a number is NaN or infinite.
    """
    partial = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}")
    partial.write_text(json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False), encoding="utf-8")
    partial.replace(path)


def read_json(path: Path) -> Any:
    """Read what `write_json` wrote.

    Raises:
        UserError: the file is damaged.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is damaged ({error}); delete it and run again") from None


def open_board(folder: Path, key: Mapping[str, Any], suite: Mapping[str, Any]) -> None:
    """Make the board's folder for a suite, or check that it is this suite's.

    Raises:
        UserError: the folder holds the board of another suite, version or data.
    """
    file = folder / "suite.json"
    if file.exists():
        there = read_json(file)["key"]
        if there != dict(key):
            raise UserError(f"{folder} is the board of {there}, not of {dict(key)}; give another --board")
        return
    if folder.exists() and any(folder.iterdir()):
        raise UserError(f"{folder} is not empty and holds no board; give another --board")
    (folder / "cells").mkdir(parents=True, exist_ok=True)
    write_json(file, {"key": dict(key), "suite": dict(suite)})


def write_folds(folder: Path, folds: Sequence[Mapping[str, Any]]) -> None:
    """Keep beside a board's records what its folds hold and what each rule took out of them: `folds.json`."""
    if not (folder / "folds.json").exists():
        write_json(folder / "folds.json", list(folds))


def read_board_suite(folder: Path) -> BoardSuite:
    """The suite of a board.

    Raises:
        UserError: the folder holds none.
    """
    file = folder / "suite.json"
    if not file.exists():
        raise UserError(f"{folder} holds no board (no suite.json); `lnli cross-domain run --board {folder}` makes one")
    values = read_json(file)
    return BoardSuite(values["key"], values["suite"])


def add_cell(folder: Path, cell: Any) -> None:
    """Put a cell on the board, unless it is there."""
    home = folder / "cells" / cell.cell_id
    if not (home / "cell.json").exists():
        home.mkdir(parents=True, exist_ok=True)
        write_json(home / "cell.json", asdict(cell))


def read_records(folder: Path) -> list[dict[str, Any]]:
    """Every record of a board, finished or failed, by cell id.

    Raises:
        UserError: a record is damaged, or of another suite, version or data than the board.
    """
    key = read_board_suite(folder).key
    records = []
    for file in sorted((folder / "cells").glob("*/record.json")):
        record = read_json(file)
        if record.get("suite") != key:
            raise UserError(f"{file} is of {record.get('suite')}, the board of {key}; records of two suites never mix")
        records.append(record)
    return records


def read_boards(folders: Sequence[Path]) -> list[dict[str, Any]]:
    """Records of boards that are parts of one, run on machines without a common disk; with `home`, the cell's folder.

    A cell that several boards have is taken once: the first finished record, else the first failed one.

    Raises:
        UserError: the boards are not of one suite, version and data, or their suites have other folds, sizes or seeds;
            or a model has two finished cells for one fold and seed: its settings changed, so they are of two models.
    """
    first = read_board_suite(folders[0])
    records: dict[str, dict[str, Any]] = {}
    for folder in folders:
        other = read_board_suite(folder)
        if other.key != first.key:
            raise UserError(
                f"{folder} is the board of {other.key}, {folders[0]} of {first.key}; records of two suites never mix"
            )
        if differing := _differing(first.suite, other.suite):
            raise UserError(
                f"the suites of {folders[0]} and {folder} have one version, but other {', '.join(differing)}; records "
                "of two suites never mix"
            )
        for record in read_records(folder):
            there = records.get(record["cell_id"])
            if there is None or (there["status"], record["status"]) == ("failed", "finished"):
                records[record["cell_id"]] = record | {"home": str(folder / "cells" / record["cell_id"])}
    _refuse_two_recipes(records.values())
    return list(records.values())


def _differing(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[str]:
    """Entries of two suites that differ; machines may keep the data elsewhere and run other models."""
    names = sorted({*first, *second} - {"data", "models"})
    return [name for name in names if first.get(name) != second.get(name)]


def _refuse_two_recipes(records: Iterable[Mapping[str, Any]]) -> None:
    seen: dict[tuple[Any, ...], str] = {}
    for record in records:
        if record["status"] == "finished":
            cell = tuple(record[name] for name in ("model", "fold", "seed"))
            if seen.setdefault(cell, record["cell_id"]) != record["cell_id"]:
                raise UserError(
                    f"model '{cell[0]}' has two finished cells for {cell[1]}, seed {cell[2]} ({seen[cell]} and "
                    f"{record['cell_id']}): its settings changed. Give the new settings a name of their own, or delete "
                    "the old cells"
                )


def is_done(folder: Path, cell_id: str, *, retry_failed: bool = False) -> bool:
    """Whether a cell has its record (a failed one counts unless it is to be tried again)."""
    file = folder / "cells" / cell_id / "record.json"
    if not file.exists():
        return False
    return not retry_failed or read_json(file)["status"] == "finished"


def missing_cells(folder: Path, cell_ids: Sequence[str], *, retry_failed: bool = False) -> list[str]:
    """Cells without a record, in the order given."""
    return [cell_id for cell_id in cell_ids if not is_done(folder, cell_id, retry_failed=retry_failed)]


@contextlib.contextmanager
def lease(folder: Path, cell_id: str) -> Iterator[bool]:
    """Take a cell for this process while the block runs; gives False if another one has it.

    The lease is a file with a heartbeat; one whose heart stopped for a minute is taken over. Taking and taking over
    happen under a lock of the board, so that two runners never hold the same cell.
    """
    file = folder / "cells" / cell_id / "lease.json"
    token = uuid.uuid4().hex
    stop = threading.Event()
    heart = threading.Thread(target=_beat, args=(file, stop), daemon=True)
    try:  # from before it is taken: a signal may end the runner at any line
        with _locked(folder):
            taken = not file.exists() or time.time() - file.stat().st_mtime > STALE_S
            if taken:
                holder = {"token": token, "pid": os.getpid(), "host": os.uname().nodename, "started": time.time()}
                write_json(file, holder)
        if taken:
            heart.start()
        yield taken
    finally:
        stop.set()
        if heart.is_alive():
            heart.join()
        with _locked(folder):
            if file.exists() and read_json(file)["token"] == token:
                file.unlink()


def _beat(file: Path, stop: threading.Event) -> None:
    while not stop.wait(HEARTBEAT_S):
        with contextlib.suppress(FileNotFoundError):
            os.utime(file)


def held_cells(folder: Path) -> list[HeldCell]:
    """Cells in the hands of runners whose heart beats, by runner; one that ends meanwhile is left out."""
    found = []
    for file in folder.glob("cells/*/lease.json"):
        with contextlib.suppress(FileNotFoundError, KeyError, UserError):
            if time.time() - file.stat().st_mtime <= STALE_S:
                holder = read_json(file)
                runner = f"{holder['host']}:{holder['pid']}"
                found.append(HeldCell(file.parent.name, runner, float(holder["started"])))
    return sorted(found, key=lambda held: held.runner)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    with (folder / ".lock").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def publish(folder: Path, cell_id: str, record: Mapping[str, Any], predictions: Path | None) -> None:
    """Put a cell's predictions and record in place, the record last: a cell with a record is complete."""
    home = folder / "cells" / cell_id
    if predictions is not None:
        target = home / "predictions"
        shutil.rmtree(target, ignore_errors=True)
        predictions.rename(target)
    write_json(home / "record.json", record)
