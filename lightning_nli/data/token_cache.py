"""Token ids on disk: single texts, from which any number of splits are put together, and whole large splits.

CACHE/texts/TOKENIZER/PART/{keys,offsets,token_ids}.npy meta.json: every text once, whatever split, fold or run has it
CACHE/tokens/SPLIT/{token_ids,token_types,offsets,whole_lengths}.npy meta.json: the rows of one split, flat

A folder appears by rename and never changes, so any number of processes may read while others add.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

CACHE_FORMAT = 3

Ids = npt.NDArray[np.int32]
Encode = Callable[[list[str]], list[Ids]]
"""Texts -> ids of each, without special tokens."""

_KEY_BYTES = 16


def digest(*parts: str) -> str:
    """32 hex digits over texts; where one ends and the next begins counts."""
    hasher = hashlib.blake2b(digest_size=16)
    for part in parts:
        encoded = part.encode("utf-8", "surrogatepass")
        hasher.update(len(encoded).to_bytes(8, "little"))
        hasher.update(encoded)
    return hasher.hexdigest()


def write_entry(arrays: Mapping[str, npt.NDArray[Any] | None], entry: Path) -> None:
    """Write arrays as a folder that appears whole; those that are None are left out.

    Raises:
        OSError: the cache cannot be written to.
    """
    partial = entry.with_name(f".{entry.name}.{uuid.uuid4().hex[:8]}")
    partial.mkdir(parents=True)  # not `mkdtemp`, whose 0700 would keep a group from sharing the cache
    try:
        for name, values in arrays.items():
            if values is not None:
                np.save(partial / f"{name}.npy", values)
        meta = {"format": CACHE_FORMAT, "arrays": [name for name, values in arrays.items() if values is not None]}
        (partial / "meta.json").write_text(json.dumps(meta), encoding="utf-8")
        partial.rename(entry)
    except OSError:
        if not (entry / "meta.json").exists():  # otherwise another process was first, with the same content
            raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def map_array(path: Path) -> npt.NDArray[Any]:
    """An array of `write_entry`, read from disk as it is needed."""
    mapped: npt.NDArray[Any] = np.load(path, mmap_mode="r")
    return mapped


def text_tokens(texts: Sequence[str], folder: Path, encode: Encode) -> list[Ids]:
    """Ids of each text in order; what `folder` has is mapped from there, the rest is encoded and added to it.

    One process at a time adds, and those that wait for it find what it added: folds of one pool that start together
    encode every text once between them.

    Args:
        texts: All different.
        folder: Of one tokenizer; texts of any number of splits.
        encode: Called once with the texts that nobody has encoded yet, if there are any.
    """
    keys = [hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=_KEY_BYTES).digest() for text in texts]
    missing = dict(zip(keys, range(len(keys)), strict=True))
    found: dict[int, Ids] = {}
    seen: set[str] = set()
    _look_up(missing, found, folder, seen)
    if missing:
        folder.mkdir(parents=True, exist_ok=True)
        with _one_at_a_time(folder):
            _look_up(missing, found, folder, seen)
            if missing:
                _add(missing, found, folder, encode([texts[place] for place in missing.values()]))
    return [found[place] for place in range(len(texts))]


def _look_up(missing: dict[bytes, int], found: dict[int, Ids], folder: Path, seen: set[str]) -> None:
    """Move what the parts that are not `seen` hold from `missing` (key -> place) to `found` (place -> ids)."""
    parts = sorted(part for part in folder.iterdir() if part.name[0] != ".") if folder.is_dir() else []
    for part in parts:
        if missing and part.name not in seen:
            seen.add(part.name)
            keys = np.load(part / "keys.npy")
            starts = np.frombuffer(b"".join(missing), np.uint64).reshape(-1, 2)[:, 0]
            rows = np.flatnonzero(np.isin(keys[:, 0], starts)).tolist()
            if rows:
                offsets, ids = np.load(part / "offsets.npy"), np.asarray(map_array(part / "token_ids.npy"))
                for row in rows:
                    place = missing.pop(keys[row].tobytes(), None)
                    if place is not None:
                        found[place] = ids[offsets[row] : offsets[row + 1]]


def _add(missing: Mapping[bytes, int], found: dict[int, Ids], folder: Path, encoded: Sequence[Ids]) -> None:
    keys = np.frombuffer(b"".join(missing), np.uint64).reshape(-1, 2)
    offsets = np.zeros(len(encoded) + 1, np.int64)
    np.cumsum([len(ids) for ids in encoded], out=offsets[1:])
    name = hashlib.blake2b(keys.tobytes(), digest_size=16).hexdigest()
    write_entry({"keys": keys, "offsets": offsets, "token_ids": np.concatenate(encoded)}, folder / name)
    found.update(zip(missing.values(), encoded, strict=True))


@contextlib.contextmanager
def _one_at_a_time(folder: Path) -> Iterator[None]:
    with (folder / ".lock").open("w") as handle:
        with contextlib.suppress(OSError):  # a file system without locks: a text may be encoded twice, to the same ids
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
