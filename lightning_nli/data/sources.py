"""The words in which a user names a source, `READER:PATH[#SPLIT[=AS]][@SHARE][::RAW=LABEL,...]`, and its files."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path

from lightning_nli.data.tables import SUFFIXES, check_path
from lightning_nli.data.values import SPLIT_NAMES, nearest, parse_split
from lightning_nli.types import Label, Split, UserError

SOURCE_HELP = """\
sources:
  READER:PATH              PATH is a file, or a folder with train, dev and test files; readers:
                           {readers}
  PATH                     the reader is told by the columns (and named), else plain:PATH
                           (.jsonl .json .csv .tsv .parquet .xlsx)
  sample[:N]               the embedded corpus, N rows of it
  SOURCE#dev               only the published split dev
  SOURCE#dev=train         the published split dev, read as training rows; SOURCE#=test: all rows, as test rows
  SOURCE@2000  SOURCE@0.5  in a mixture: at most 2000 training rows; half of them (2.0: each of them twice)
  SOURCE::0=entailment,1=neutral,2=contradiction
                           what the file's own labels mean, where they are no names
"""


@dataclass(frozen=True)
class SourceRequest:
    """A source string taken apart.

    Attributes:
        reader: Name of the reader; None: to be told by the file's columns.
        path: File or folder; None for the embedded sample.
        split: The one split wanted; None: all of them.
        as_split: Split under which its rows go on; None: their own.
        num_examples: Size of the embedded sample; None: its default, and with any other reader.
        mix_rows: In a mixture, the most training rows to take.
        mix_weight: In a mixture, how often each training row counts.
        labels: The file's own labels -> ours.
    """

    reader: str | None
    path: Path | None
    split: Split | None = None
    as_split: Split | None = None
    num_examples: int | None = None
    mix_rows: int | None = None
    mix_weight: float | None = None
    labels: Mapping[str, Label] = field(default_factory=dict)


def parse_source(source: str, readers: Collection[str]) -> SourceRequest:
    """Take a source string apart; a path that exists as written is never cut.

    Raises:
        UserError: the reader, split, share or label is unknown, or there is nothing at the path.
    """
    body, labels = _cut_labels(source)
    body, rows, weight = _cut_share(body, source)
    body, split, as_split = _cut_split(body, source)
    reader, path, num_examples = _reader_and_path(body, source, readers)
    return SourceRequest(
        reader,
        path,
        split,
        as_split=as_split,
        num_examples=num_examples,
        mix_rows=rows,
        mix_weight=weight,
        labels=labels,
    )


def find_files(path: Path, patterns: Mapping[Split, tuple[str, ...]] | None = None) -> list[tuple[Path, Split | None]]:
    """The file itself, or the published splits of a folder in the order train, dev, test; with the split of each.

    Args:
        path: File or folder.
        patterns: Names (with `*`) of each split's files; of several patterns the first that matches counts, with all
            its files. Without, or where none matches, a split's file is called train, dev (val, valid, validation) or
            test, in any case.

    Raises:
        UserError: a folder holds no split, or two files for one.
    """
    if not path.is_dir():
        check_path(path)
        return [(path, _split_of(path, patterns or {}))]
    found = {split: files for split in Split if (files := _matching(path, (patterns or {}).get(split, ())))}
    if not found:
        found = _named_for_splits(path)
    if not found:
        raise UserError(f"{path} holds no train, dev or test file ({' '.join(SUFFIXES)}); name a file")
    return [(file, split) for split, files in found.items() for file in files]


def corpus_name(path: Path) -> str:
    """The file's name without suffix, or the folder's where the file is named for a split."""
    resolved = path.resolve()
    return resolved.name if path.is_dir() else resolved.parent.name if _split_of(path, {}) else resolved.stem


def _reader_and_path(body: str, source: str, readers: Collection[str]) -> tuple[str | None, Path | None, int | None]:
    reader, colon, rest = body.partition(":")
    if reader == "sample":
        if colon and not (rest.isdecimal() and int(rest) > 0):
            raise UserError(f"source '{source}': write sample or sample:N with N examples, at least 1")
        return "sample", None, int(rest) if colon else None
    if colon and reader in readers:
        return reader, _existing(rest, source), None
    if Path(body).exists():
        return None, Path(body), None
    if colon and re.fullmatch(r"\w+", reader):
        hint = nearest(reader.lower(), readers)
        raise UserError(f"source '{source}': unknown reader '{reader}'{hint} Readers: {', '.join(sorted(readers))}")
    if body in readers:
        raise UserError(f"source '{source}': the reader '{body}' needs a path, {body}:PATH")
    return None, _existing(body, source), None


def _is_there(source: str) -> bool:
    return Path(source.partition(":")[2] or source).exists()


def _cut_labels(source: str) -> tuple[str, dict[str, Label]]:
    body, mark, text = source.rpartition("::")
    if not mark or _is_there(source):
        return source, {}
    labels: dict[str, Label] = {}
    for entry in text.split(","):
        raw, equals, name = (part.strip() for part in entry.rpartition("="))
        if not equals or not raw or name not in list(Label):
            raise UserError(
                f"source '{source}': after '::' write RAW=LABEL,... with LABEL of {', '.join(Label)}; got '{entry}'"
            )
        labels[raw] = Label(name)
    return body, labels


def _cut_share(body: str, source: str) -> tuple[str, int | None, float | None]:
    rest, mark, text = body.rpartition("@")
    if not mark or _is_there(body):
        return body, None, None
    if re.fullmatch(r"[1-9]\d*", text):
        return rest, int(text), None
    if re.fullmatch(r"\d*\.\d+", text) and float(text) > 0:
        return rest, None, float(text)
    raise UserError(f"source '{source}': after '@' write a number of rows (2000) or a weight above 0 (0.5, 2.0)")


def _cut_split(body: str, source: str) -> tuple[str, Split | None, Split | None]:
    rest, mark, text = body.rpartition("#")
    if not mark or _is_there(body):
        return body, None, None
    name, equals, as_name = text.partition("=")
    try:
        split = Split(parse_split(name)) if name or not equals else None
        return rest, split, Split(parse_split(as_name)) if equals else None
    except ValueError as error:
        raise UserError(f"source '{source}': {error}") from error


def _existing(path: str, source: str) -> Path:
    if not path or not Path(path).exists():
        raise UserError(f"source '{source}': no file or folder '{path}'")
    return Path(path)


def _is_table(path: Path) -> bool:
    return path.suffix.lower() in SUFFIXES and path.is_file()


def _matching(folder: Path, patterns: tuple[str, ...]) -> list[Path]:
    """Files of the first pattern that has any; several files of one pattern (shards, rounds) belong together."""
    for pattern in patterns:
        files = sorted(file for file in folder.glob(pattern) if _is_table(file))
        if files:
            return files
    return []


def _named_for_splits(folder: Path) -> dict[Split, list[Path]]:
    found: dict[Split, list[Path]] = {}
    for file in sorted(folder.iterdir()):
        split = _split_of(file, {})
        if split and _is_table(file):
            found.setdefault(split, []).append(file)
    for split, files in found.items():
        if len(files) > 1:
            names = ", ".join(file.name for file in files)
            raise UserError(f"{folder} holds {len(files)} files for the split {split.value} ({names}); name one file")
    return {split: found[split] for split in Split if split in found}


def _split_of(path: Path, patterns: Mapping[Split, tuple[str, ...]]) -> Split | None:
    """The split that a file's name speaks of."""
    if path.stem.lower() in SPLIT_NAMES:
        return SPLIT_NAMES[path.stem.lower()]
    names = {split: [pattern.rpartition("/")[2] for pattern in known] for split, known in patterns.items()}
    fitting = [split for split, known in names.items() if any(fnmatch(path.name, name) for name in known)]
    return fitting[0] if len(fitting) == 1 else None
