"""The words in which a user names a source (`READER:PATH[#SPLIT]`), and the files behind them."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from lightning_nli.data.tables import SUFFIXES, check_path
from lightning_nli.data.values import SPLIT_NAMES, nearest, parse_split
from lightning_nli.types import Split, UserError


@dataclass(frozen=True)
class SourceRequest:
    """A source string taken apart.

    Attributes:
        reader: Name of the reader.
        path: File or folder; None for the embedded sample.
        split: The one split wanted; None: all of them.
        num_examples: Size of the embedded sample; None: its default, and with any other reader.
    """

    reader: str
    path: Path | None
    split: Split | None = None
    num_examples: int | None = None


def parse_source(source: str, readers: Collection[str]) -> SourceRequest:
    """Take `READER:PATH[#SPLIT]`, `sample[:N][#SPLIT]` or a bare path (read as `plain`) apart.

    Raises:
        UserError: the reader or split is unknown, or there is nothing at the path.
    """
    body, split = _cut_split(source)
    reader, colon, rest = body.partition(":")
    if reader == "sample":
        if colon and not (rest.isdecimal() and int(rest) > 0):
            raise UserError(f"source '{source}': write sample or sample:N with N examples, at least 1")
        return SourceRequest("sample", None, split, int(rest) if colon else None)
    if colon and reader in readers:
        return SourceRequest(reader, _existing(rest, source), split)
    if Path(body).exists():
        return SourceRequest("plain", Path(body), split)
    if colon and re.fullmatch(r"\w+", reader):
        hint = nearest(reader.lower(), readers)
        raise UserError(f"source '{source}': unknown reader '{reader}'{hint} Readers: {', '.join(sorted(readers))}")
    if body in readers:
        raise UserError(f"source '{source}': the reader '{body}' needs a path, {body}:PATH")
    return SourceRequest("plain", _existing(body, source), split)


def find_files(path: Path) -> list[tuple[Path, Split | None]]:
    """The file itself, or the published splits of a folder in the order train, dev, test; with the split of each.

    A file is a published split if its name without suffix is train, dev (val, valid, validation) or test, in any case.

    Raises:
        UserError: a folder holds no split, or two files for one.
    """
    if not path.is_dir():
        check_path(path)
        return [(path, _split_of(path))]
    found: dict[Split, list[Path]] = {}
    for file in sorted(path.iterdir()):
        split = _split_of(file)
        if split and file.suffix.lower() in SUFFIXES and file.is_file():
            found.setdefault(split, []).append(file)
    for split, files in found.items():
        if len(files) > 1:
            names = ", ".join(file.name for file in files)
            raise UserError(f"{path} holds {len(files)} files for the split {split.value} ({names}); name one file")
    if not found:
        raise UserError(f"{path} holds no train, dev or test file ({' '.join(SUFFIXES)}); name a file")
    return [(found[split][0], split) for split in Split if split in found]


def corpus_name(path: Path) -> str:
    """The file's name without suffix, or the folder's where the file is named for a split."""
    resolved = path.resolve()
    return resolved.name if path.is_dir() else resolved.parent.name if _split_of(path) else resolved.stem


def _cut_split(source: str) -> tuple[str, Split | None]:
    body, hash_, name = source.rpartition("#")
    if not hash_ or Path(source.partition(":")[2] or source).exists():
        return source, None
    try:
        return body, Split(parse_split(name))
    except ValueError as error:
        raise UserError(f"source '{source}': {error}") from error


def _existing(path: str, source: str) -> Path:
    if not path or not Path(path).exists():
        raise UserError(f"source '{source}': no file or folder '{path}'")
    return Path(path)


def _split_of(path: Path) -> Split | None:
    return SPLIT_NAMES.get(path.stem.lower())
