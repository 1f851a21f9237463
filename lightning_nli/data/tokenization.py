"""Frame -> flat token ids and offsets, in a cache that processes may share. Truncation happens here only."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from lightning_nli.data.segments import Joining, Template, Truncation, plan_cuts
from lightning_nli.data.text import WordSegmenter, normalize_text
from lightning_nli.data.token_cache import CACHE_FORMAT, digest, map_array, text_tokens, write_entry
from lightning_nli.types import IGNORE_INDEX, LabelScheme, UserError

log = logging.getLogger(__name__)

ROWS_IN_MEMORY = 100_000
"""Splits of at most so many rows are put together from cached texts; larger ones have a flat entry of their own."""

_CHUNK_ROWS = 10_000


@dataclass(frozen=True)
class EncoderSpec:
    """Everything that decides which ids a text becomes.

    Attributes:
        tokenizer: A Hugging Face tokenizer.
        segments: Text columns of one example, in order.
        max_length: Longest segment in tokens, special tokens included.
        joining: Separators or markers between the texts.
        truncation: What goes of a longer example.
        ratio: Weights that `proportional` shares the room by, one a segment.
        normalize: Whether texts are normalized first (`data/text.py`).
        segmenter: Word segmenter applied after normalization.
        num_token_types: Rows of the encoder's token type table; below 2, token types are left out.
    """

    tokenizer: Any
    segments: tuple[str, ...]
    max_length: int
    joining: Joining = Joining.SEPARATORS
    truncation: Truncation = Truncation.LONGEST_FIRST
    ratio: tuple[int, ...] | None = None
    normalize: bool = True
    segmenter: str = "none"
    num_token_types: int = 1

    @property
    def template(self) -> Template:
        """Layout of one example."""
        if self.joining == Joining.MARKERS:
            return Template.with_markers(self.tokenizer, self.segments)
        return Template.of_tokenizer(self.tokenizer, len(self.segments))

    def fingerprint(self) -> str:
        """Hash of the tokenizer, its special tokens, the template and every option that moves an id."""
        options = {
            "tokenizer": _tokenizer_parts(self.tokenizer),
            "options": [list(self.segments), self.max_length, self.normalize, self.num_token_types],
            "layout": [self.joining, self.truncation, self.ratio],
            "segmenter": [self.segmenter, WordSegmenter(self.segmenter).version],
            "format": CACHE_FORMAT,
        }
        return digest(json.dumps(options, sort_keys=True))

    def text_fingerprint(self) -> str:
        """Hash of what decides the ids of a single text: not of segments, lengths and layout, which rows alone have."""
        options = {
            "tokenizer": _tokenizer_parts(self.tokenizer),
            "normalize": self.normalize,
            "segmenter": [self.segmenter, WordSegmenter(self.segmenter).version],
            "format": CACHE_FORMAT,
        }
        return digest(json.dumps(options, sort_keys=True))


def _tokenizer_parts(tokenizer: Any) -> list[str]:
    """Class, vocabulary with merges and added tokens, and special tokens."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    vocabulary = [backend.to_str()] if backend is not None else _slow_vocabulary(tokenizer)
    return [type(tokenizer).__name__, *vocabulary, str(tokenizer.special_tokens_map)]


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
    """The examples of one split as flat arrays, those of a large one memory-mapped.

    Attributes:
        token_ids: (sum of lengths,) int32.
        token_types: (sum of lengths,) int8, or None where the encoder has no token types.
        offsets: (examples + 1,) int64, where each example starts in `token_ids`.
        labels: (examples,) int64, IGNORE_INDEX where there is no label.
        whole_lengths: (examples,) int64 tokens of each example before `max_length` cut it, special tokens included.
    """

    token_ids: npt.NDArray[np.int32]
    token_types: npt.NDArray[np.int8] | None
    offsets: npt.NDArray[np.int64]
    labels: npt.NDArray[np.int64]
    whole_lengths: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        return np.diff(self.offsets)

    @property
    def num_truncated(self) -> int:
        """Examples that lost tokens to `max_length`."""
        return int((self.whole_lengths > self.lengths).sum())

    @property
    def num_cut_tokens(self) -> int:
        """Tokens lost that way."""
        return int((self.whole_lengths - self.lengths).sum())


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
    """Ids of the rows of `frame`, the same with and without a cache.

    A split of up to `ROWS_IN_MEMORY` rows is put together from single texts, which the cache keeps under everything
    that decides their ids: a text is encoded once, whatever splits, folds and swapped rows it stands in, and a fold
    stores nothing of its own. A larger split is kept flat, under its texts, the tokenizer and every option of `spec`,
    so that all processes of a machine map the same pages. Any number of processes may ask at the same time.

    Raises:
        UserError: a segment column has missing texts.
    """
    _check_texts(frame, spec)
    labels = class_indices(frame, scheme)
    if cache is None or frame.height <= ROWS_IN_MEMORY:
        return _assemble(_encode_frame(frame, spec, cache), labels)
    texts = [digest(*frame[name].to_list()) for name in spec.segments]
    entry = cache / "tokens" / digest(spec.fingerprint(), *texts)
    if not (entry / "meta.json").exists():
        write_entry(_encode_frame(frame, spec), entry)
    return _assemble(_read_entry(entry), labels)


def count_segment_tokens(frame: pl.DataFrame, spec: EncoderSpec, *, cache: Path | None = None) -> tuple[int, ...]:
    """Tokens of each segment over all rows, at least 1: the ratio of `proportional` truncation is that of averages.

    Raises:
        UserError: a segment column has missing texts.
    """
    _check_texts(frame, spec)
    cache = cache if frame.height <= ROWS_IN_MEMORY else None
    totals = (sum(len(text) for text in texts) for texts in _encode_columns(frame, spec, cache))
    return tuple(max(1, total) for total in totals)


def _check_texts(frame: pl.DataFrame, spec: EncoderSpec) -> None:
    for name in spec.segments:
        if frame[name].null_count():
            raise UserError(f"{frame[name].null_count()} rows have no '{name}', which --segments asks for")


def _assemble(arrays: dict[str, Any], labels: npt.NDArray[np.int64]) -> TokenizedSplit:
    return TokenizedSplit(labels=labels, **arrays)


def _read_entry(entry: Path) -> dict[str, Any]:
    types = entry / "token_types.npy"
    return {
        "token_ids": map_array(entry / "token_ids.npy"),
        "token_types": map_array(types) if types.exists() else None,
        "offsets": np.load(entry / "offsets.npy"),
        "whole_lengths": np.load(entry / "whole_lengths.npy"),
    }


def _encode_frame(frame: pl.DataFrame, spec: EncoderSpec, cache: Path | None = None) -> dict[str, Any]:
    template, truncation = spec.template, Truncation(spec.truncation)
    room = spec.max_length - template.num_special_tokens
    parts = _encode_columns(frame, spec, cache)
    premise = spec.segments.index("premise") if "premise" in spec.segments else 0
    whole_lengths = np.full(frame.height, template.num_special_tokens, np.int64)
    ids: list[npt.NDArray[np.int32]] = []
    types: list[npt.NDArray[np.int8]] = []
    for row in range(frame.height):
        texts = [part[row] for part in parts]
        lengths = [len(text) for text in texts]
        whole_lengths[row] += sum(lengths)
        cuts = plan_cuts(lengths, room, truncation, premise=premise, ratio=spec.ratio)
        row_ids, row_types = template.join([cut.apply(text) for text, cut in zip(texts, cuts, strict=True)])
        ids.append(row_ids)
        types.append(row_types)
    offsets = np.zeros(frame.height + 1, np.int64)
    np.cumsum([len(row_ids) for row_ids in ids], out=offsets[1:])
    has_types = spec.num_token_types > 1
    return {
        "token_ids": np.concatenate(ids) if ids else np.zeros(0, np.int32),
        "token_types": (np.concatenate(types) if types else np.zeros(0, np.int8)) if has_types else None,
        "offsets": offsets,
        "whole_lengths": whole_lengths,
    }


def _encode_columns(frame: pl.DataFrame, spec: EncoderSpec, cache: Path | None) -> list[list[npt.NDArray[np.int32]]]:
    """Ids of every segment's texts, row by row, without special tokens; a repeated text is encoded once."""
    place: dict[str, int] = {}
    columns = [[place.setdefault(text, len(place)) for text in frame[name].to_list()] for name in spec.segments]
    texts = list(place)
    if cache is None:
        encoded = _encode_texts(texts, spec)
    else:
        encoded = text_tokens(texts, cache / "texts" / spec.text_fingerprint(), lambda new: _encode_texts(new, spec))
    return [[encoded[at] for at in column] for column in columns]


def _encode_texts(texts: Sequence[str], spec: EncoderSpec) -> list[npt.NDArray[np.int32]]:
    segmenter = WordSegmenter(spec.segmenter)
    encoded: list[npt.NDArray[np.int32]] = []
    for start in range(0, len(texts), _CHUNK_ROWS):
        chunk = [prepare_text(text, spec, segmenter) for text in texts[start : start + _CHUNK_ROWS]]
        batch = spec.tokenizer(chunk, add_special_tokens=False, verbose=False)["input_ids"]
        encoded.extend(np.asarray(ids, np.int32) for ids in batch)
    return encoded


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
