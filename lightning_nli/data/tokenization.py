"""Frame -> flat token ids and offsets, in a cache that processes may share. Truncation happens here only."""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from lightning_nli.data.segments import Template, truncate_segments
from lightning_nli.data.text import WordSegmenter, normalize_text
from lightning_nli.types import IGNORE_INDEX, LabelScheme, UserError

log = logging.getLogger(__name__)

_CACHE_FORMAT = 2
_CHUNK_ROWS = 10_000


@dataclass(frozen=True)
class EncoderSpec:
    """Everything that decides which ids a text becomes.

    Attributes:
        tokenizer: A Hugging Face tokenizer.
        segments: Text columns of one example, in order.
        max_length: Longest segment in tokens, special tokens included.
        truncation: `longest_first` or `premise_first`.
        normalize: Whether texts are normalized first (`data/text.py`).
        segmenter: Word segmenter applied after normalization.
        num_token_types: Rows of the encoder's token type table; below 2, token types are left out.
    """

    tokenizer: Any
    segments: tuple[str, ...]
    max_length: int
    truncation: str = "longest_first"
    normalize: bool = True
    segmenter: str = "none"
    num_token_types: int = 1

    def fingerprint(self) -> str:
        """Hash of the tokenizer, its special tokens, the template and every option that moves an id."""
        backend = getattr(self.tokenizer, "backend_tokenizer", None)
        vocabulary = [backend.to_str()] if backend is not None else _slow_vocabulary(self.tokenizer)
        options = {
            "tokenizer": [type(self.tokenizer).__name__, *vocabulary, str(self.tokenizer.special_tokens_map)],
            "options": [list(self.segments), self.max_length, self.truncation, self.normalize, self.num_token_types],
            "segmenter": [self.segmenter, WordSegmenter(self.segmenter).version],
            "format": _CACHE_FORMAT,
        }
        return _digest(json.dumps(options, sort_keys=True))


def _slow_vocabulary(tokenizer: Any) -> list[str]:
    """Everything a slow tokenizer goes by: its ids, and the contents of its files (merges are no ids)."""
    files = [Path(getattr(tokenizer, name, None) or "") for name in sorted(tokenizer.vocab_files_names)]
    contents = [hashlib.blake2b(path.read_bytes()).hexdigest() for path in files if path.is_file()]
    return [json.dumps(tokenizer.get_vocab(), sort_keys=True), *contents]


def require_offsets(tokenizer: Any) -> None:
    """Make sure that a tokenizer tells which characters a token stands for, before its offsets are read.

    Raises:
        UserError: it is a slow tokenizer, which gives none.
    """
    if not getattr(tokenizer, "is_fast", False):
        raise UserError(
            f"{type(tokenizer).__name__} is a slow tokenizer and does not tell which characters a token stands for; "
            "what works on words or spans needs a fast one (tokenizer.json)"
        )


@dataclass(frozen=True)
class TokenizedSplit:
    """The examples of one split as flat, memory-mapped arrays.

    Attributes:
        token_ids: (sum of lengths,) int32.
        token_types: (sum of lengths,) int8, or None where the encoder has no token types.
        offsets: (examples + 1,) int64, where each example starts in `token_ids`.
        labels: (examples,) int64, IGNORE_INDEX where there is no label.
        num_truncated: Examples that lost tokens to `max_length`.
        num_cut_tokens: Tokens lost that way.
    """

    token_ids: npt.NDArray[np.int32]
    token_types: npt.NDArray[np.int8] | None
    offsets: npt.NDArray[np.int64]
    labels: npt.NDArray[np.int64]
    num_truncated: int
    num_cut_tokens: int

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        return np.diff(self.offsets)


def _digest(*parts: str) -> str:
    hasher = hashlib.blake2b(digest_size=16)
    for part in parts:
        encoded = part.encode("utf-8", "surrogatepass")
        hasher.update(len(encoded).to_bytes(8, "little"))
        hasher.update(encoded)
    return hasher.hexdigest()


def class_indices(frame: pl.DataFrame, scheme: LabelScheme) -> npt.NDArray[np.int64]:
    """(rows,) int64 class index of each row's label, IGNORE_INDEX where it has none."""
    mapping = {label.value: index for index, label in enumerate(scheme.labels)}
    return (
        frame["label"]
        .cast(pl.String)
        .replace_strict(mapping, default=IGNORE_INDEX, return_dtype=pl.Int64)
        .fill_null(IGNORE_INDEX)
        .to_numpy()
    )


def tokenize_split(
    frame: pl.DataFrame, spec: EncoderSpec, scheme: LabelScheme, *, cache: Path | None = None
) -> TokenizedSplit:
    """Tokenize the rows of `frame`, or map the ids of an earlier, equal call from `cache` into memory.

    The cache key covers the texts, the tokenizer and every option of `spec`; a finished entry appears by rename, so
    any number of processes may ask for the same one at the same time.

    Raises:
        UserError: a segment column has missing texts.
    """
    for name in spec.segments:
        if frame[name].null_count():
            raise UserError(f"{frame[name].null_count()} rows have no '{name}', which --segments asks for")
    labels = class_indices(frame, scheme)
    if cache is None:
        return _assemble(_encode_frame(frame, spec), labels)
    texts = [_digest(*frame[name].to_list()) for name in spec.segments]
    entry = cache / "tokens" / _digest(spec.fingerprint(), *texts)
    if not (entry / "meta.json").exists():
        _write_entry(_encode_frame(frame, spec), entry)
    return _assemble(_read_entry(entry), labels)


def _assemble(arrays: dict[str, Any], labels: npt.NDArray[np.int64]) -> TokenizedSplit:
    return TokenizedSplit(labels=labels, **arrays)


def _write_entry(arrays: dict[str, Any], entry: Path) -> None:
    partial = entry.with_name(f".{entry.name}.{uuid.uuid4().hex[:8]}")
    partial.mkdir(parents=True)  # not `mkdtemp`, whose 0700 would keep a group from sharing the cache
    try:
        meta = {name: value for name, value in arrays.items() if isinstance(value, int)}
        for name in ("token_ids", "token_types", "offsets"):
            if arrays[name] is not None:
                np.save(partial / f"{name}.npy", arrays[name])
        (partial / "meta.json").write_text(json.dumps(meta), encoding="utf-8")
        partial.rename(entry)
    except OSError:
        if not (entry / "meta.json").exists():  # otherwise another process was first, with the same content
            raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _read_entry(entry: Path) -> dict[str, Any]:
    meta = json.loads((entry / "meta.json").read_text(encoding="utf-8"))
    types = entry / "token_types.npy"
    return {
        "token_ids": _map_array(entry / "token_ids.npy"),
        "token_types": _map_array(types) if types.exists() else None,
        "offsets": np.load(entry / "offsets.npy"),
        **meta,
    }


def _map_array(path: Path) -> npt.NDArray[Any]:
    mapped: npt.NDArray[Any] = np.load(path, mmap_mode="r")
    return mapped


def _encode_frame(frame: pl.DataFrame, spec: EncoderSpec) -> dict[str, Any]:
    template = Template.of_tokenizer(spec.tokenizer, len(spec.segments))
    parts = [_encode_texts(frame[name].to_list(), spec) for name in spec.segments]
    cut_first = spec.segments.index("premise") if "premise" in spec.segments else 0
    ids: list[npt.NDArray[np.int32]] = []
    types: list[npt.NDArray[np.int8]] = []
    truncated = cut = 0
    for row in range(frame.height):
        texts = [part[row] for part in parts]
        kept = truncate_segments(
            [len(text) for text in texts],
            spec.max_length - template.num_special_tokens,
            first=cut_first if spec.truncation == "premise_first" else None,
        )
        lost = sum(len(text) for text in texts) - sum(kept)
        truncated, cut = truncated + (lost > 0), cut + lost
        row_ids, row_types = template.join([text[:count] for text, count in zip(texts, kept, strict=True)])
        ids.append(row_ids)
        types.append(row_types)
    offsets = np.zeros(frame.height + 1, np.int64)
    np.cumsum([len(row_ids) for row_ids in ids], out=offsets[1:])
    has_types = spec.num_token_types > 1
    return {
        "token_ids": np.concatenate(ids) if ids else np.zeros(0, np.int32),
        "token_types": (np.concatenate(types) if types else np.zeros(0, np.int8)) if has_types else None,
        "offsets": offsets,
        "num_truncated": truncated,
        "num_cut_tokens": cut,
    }


def _encode_texts(texts: Sequence[str], spec: EncoderSpec) -> list[npt.NDArray[np.int32]]:
    """Ids of every text without special tokens; a repeated text (a premise with many hypotheses) is encoded once."""
    segmenter = WordSegmenter(spec.segmenter)
    place: dict[str, int] = {}
    positions = [place.setdefault(text, len(place)) for text in texts]
    unique = list(place)
    encoded: list[npt.NDArray[np.int32]] = []
    for start in range(0, len(unique), _CHUNK_ROWS):
        chunk = [prepare_text(text, spec, segmenter) for text in unique[start : start + _CHUNK_ROWS]]
        batch = spec.tokenizer(chunk, add_special_tokens=False, verbose=False)["input_ids"]
        encoded.extend(np.asarray(ids, np.int32) for ids in batch)
    return [encoded[position] for position in positions]


def log_truncation(tokens: dict[str, TokenizedSplit], max_length: int) -> None:
    """One line for each split that lost tokens to `--max-length`."""
    for name, split in tokens.items():
        if split.num_truncated:
            log.info(
                "%s: %d of %d examples are longer than --max-length %d (%d tokens cut)",
                name,
                split.num_truncated,
                len(split),
                max_length,
                split.num_cut_tokens,
            )


def prepare_text(text: str, spec: EncoderSpec, segmenter: WordSegmenter) -> str:
    """The text as the tokenizer sees it: normalized, then word-segmented, as `spec` says."""
    return segmenter(normalize_text(text) if spec.normalize else text)
