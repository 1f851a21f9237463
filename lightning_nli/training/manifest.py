"""What stands beside every checkpoint: whose it is, and the checksums of its files."""

from __future__ import annotations

import hashlib
import json
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from lightning_nli import __version__
from lightning_nli.types import UserError

MANIFEST_SCHEMA = 1
_SUFFIX = ".manifest.json"
_CHUNK_BYTES = 1 << 22
_MAX_THREADS = 8


@dataclass(frozen=True)
class RunIdentity:
    """What a checkpoint must share with the run that goes on from it.

    Attributes:
        run: Hash of the settings that decide what is computed, those of `devices` left out.
        data: Fingerprint of all rows.
        tokenizer: Fingerprint of everything that turns text into ids.
        plan: Hash of the order of the training examples, whatever the number of processes.
        global_batch: Examples (or packs) of an optimizer step, over all processes.
        accumulate: Micro-steps of an optimizer step.
        world_size: Processes.
        sharded: Whether each process keeps a part of its own (DeepSpeed).
    """

    run: str
    data: str
    tokenizer: str
    plan: str
    global_batch: int
    accumulate: int
    world_size: int
    sharded: bool


@dataclass(frozen=True)
class StoredFile:
    """Size in bytes and SHA-256 of one file of a checkpoint."""

    num_bytes: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """One checkpoint.

    Attributes:
        name: File, or folder of shards.
        step: Optimizer steps taken.
        epoch: Epochs begun, counted from 0.
        score: The monitored score, null without one.
        stale: Scored epochs since the best one.
        identity: Whose it is; null where a trainer of somebody else's saved it.
        files: By path below the checkpoint (the empty path for a checkpoint that is one file).
        version: Of this package.
    """

    name: str
    step: int
    epoch: int
    score: float | None
    stale: int
    identity: RunIdentity | None
    files: dict[str, StoredFile]
    version: str = __version__

    @property
    def num_bytes(self) -> int:
        return sum(file.num_bytes for file in self.files.values())


def manifest_path(checkpoint: Path) -> Path:
    """Where the manifest of a checkpoint is: beside it."""
    return checkpoint.with_name(checkpoint.name + _SUFFIX)


def list_files(checkpoint: Path) -> dict[str, Path]:
    """The files of a checkpoint by path below it, in order; one with an empty path if it is a file."""
    if not checkpoint.is_dir():
        return {"": checkpoint}
    return {str(path.relative_to(checkpoint)): path for path in sorted(checkpoint.rglob("*")) if path.is_file()}


def measure_files(checkpoint: Path) -> dict[str, StoredFile]:
    """Size and checksum of every file of a checkpoint, several at a time."""
    found = list_files(checkpoint)
    with ThreadPoolExecutor(min(_MAX_THREADS, max(1, len(found)))) as pool:
        return dict(zip(found, pool.map(_measure, found.values()), strict=True))


def _measure(path: Path) -> StoredFile:
    hasher = hashlib.sha256()
    num_bytes = 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            hasher.update(chunk)
            num_bytes += len(chunk)
    return StoredFile(num_bytes, hasher.hexdigest())


def sync_tree(path: Path) -> None:
    """Force a file, or a folder and all below it, to the disk: what a rename names must be there after a power cut."""
    below = path.rglob("*") if path.is_dir() else ()
    for one in [*below, path]:
        sync(one)


def sync(path: Path) -> None:
    """Force a file's contents, or the names in a folder, to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_json(path: Path, values: dict[str, Any]) -> None:
    """Write by rename, forced to the disk: after a crash the file is the old or the new one."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    with partial.open("w", encoding="utf-8") as file:
        json.dump(values, file, indent=1, ensure_ascii=False)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


def write_manifest(manifest: Manifest, checkpoint: Path) -> None:
    """Write the manifest of `checkpoint` beside it."""
    write_json(manifest_path(checkpoint), {"schema": MANIFEST_SCHEMA} | asdict(manifest))


def read_manifest(checkpoint: Path) -> Manifest | None:
    """The manifest beside a checkpoint, None where there is none.

    Raises:
        UserError: it is damaged, or of a newer version of this package.
    """
    path = manifest_path(checkpoint)
    if not path.exists():
        return None
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        schema = values.pop("schema")
        if schema > MANIFEST_SCHEMA:
            raise UserError(f"{path} has schema {schema}, this version reads {MANIFEST_SCHEMA}; install a newer one")
        identity = values.pop("identity")
        files = {name: StoredFile(**entry) for name, entry in values.pop("files").items()}
        known = None if identity is None else RunIdentity(**identity)
        return Manifest(identity=known, files=files, **values)
    except UserError:
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{path} is damaged ({error})") from None


def find_damage(checkpoint: Path, manifest: Manifest) -> str | None:
    """What is wrong with the files of a checkpoint: one is missing, cut or changed; None if they are whole."""
    found = list_files(checkpoint)
    for name, file in manifest.files.items():
        shown = name or checkpoint.name
        path = found.get(name)
        if path is None or not path.exists():
            return f"{shown} is missing"
        size = path.stat().st_size
        if size != file.num_bytes:
            return f"{shown} has {size} bytes, {file.num_bytes} were written"
    now = measure_files(checkpoint)
    changed = [name for name, file in manifest.files.items() if now[name].sha256 != file.sha256]
    return f"{changed[0] or checkpoint.name} has changed since it was written (checksum)" if changed else None


def check_whole(checkpoint: Path) -> None:
    """Compare a checkpoint with the manifest beside it; one without a manifest is not checked.

    Raises:
        UserError: a file is missing, cut or changed.
    """
    manifest = read_manifest(checkpoint)
    damage = None if manifest is None else find_damage(checkpoint, manifest)
    if damage is not None:
        raise UserError(f"checkpoint {checkpoint} is damaged or not ours: {damage}")


def differences(stored: RunIdentity, now: RunIdentity) -> list[str]:
    """Names of the attributes in which two identities differ."""
    return [item.name for item in fields(RunIdentity) if getattr(stored, item.name) != getattr(now, item.name)]
