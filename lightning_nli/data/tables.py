"""Files to tables of text: no type is guessed, no row is lost, and every fault names its file and line."""

from __future__ import annotations

import codecs
import csv
import io
import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import BinaryIO, TextIO

import polars as pl

from lightning_nli.types import UserError

ROW = "__row__"
"""Column that `read_table` adds: 1-based data row (header not counted), in JSONL the 1-based line."""

RAW = "__raw__"
"""Column that `iter_rows` adds for JSON lines when asked: the object as it was, numbers and nested values included."""

SUFFIXES = (".jsonl", ".json", ".csv", ".tsv", ".parquet", ".xlsx")

_QUOTING_HELP = (
    "in a .csv file a field with quotes is quoted as a whole and its inner quotes are doubled; "
    "rename the file to .tsv with tabs between fields to read quotes as plain characters"
)


def read_table(path: Path) -> pl.DataFrame:
    """Read a whole file with every column as text, plus `ROW`; rows without any value are left out.

    Raises:
        UserError: the file is absent, of an unknown kind, broken, or has no rows.
    """
    suffix = check_path(path)
    if suffix in (".csv", ".tsv"):
        frame = _read_delimited(path)
    elif suffix == ".xlsx":
        frame = _read_excel(path)
    elif suffix == ".parquet":
        frame = _as_text(pl.read_parquet(path.read_bytes()))
    else:
        frame = _read_json(path)
    if ROW not in frame.columns:
        frame = frame.with_row_index(ROW, offset=1)
    filled = frame.filter(pl.any_horizontal(pl.exclude(ROW).is_not_null()))
    if filled.is_empty():
        raise UserError(f"{path} has no rows")
    return filled.with_columns(pl.col(ROW).cast(pl.Int64))


def iter_rows(path: Path | str | None, chunk_rows: int = 4096, *, keep_raw: bool = False) -> Iterator[pl.DataFrame]:
    """Yield a file in order, `chunk_rows` rows at a time, every column as text under its own name.

    Memory is bounded for JSONL, CSV and TSV; Parquet is read slice by
    slice, Excel as a whole. A JSONL column first met in a later chunk is absent from the chunks before it.

    Args:
        path: The file; None reads JSON lines from standard input.
        chunk_rows: Most rows in a chunk.
        keep_raw: JSON lines come with one more column, `RAW`.

    Raises:
        UserError: as `read_table`, when the faulty line is reached.
    """
    if path is None:
        yield from _json_chunks(sys.stdin.buffer, "standard input", chunk_rows, keep_raw=keep_raw)
        return
    path = Path(path)
    suffix = check_path(path)
    if suffix == ".jsonl":
        with path.open("rb") as stream:
            yield from _json_chunks(stream, str(path), chunk_rows, keep_raw=keep_raw)
    elif suffix in (".csv", ".tsv"):
        yield from _delimited_chunks(path, chunk_rows)
    elif suffix == ".parquet":
        lazy = pl.scan_parquet(path, glob=False)
        for start in range(0, lazy.select(pl.len()).collect().item(), chunk_rows):
            yield _as_text(lazy.slice(start, chunk_rows).collect())
    else:
        yield from read_table(path).drop(ROW).iter_slices(chunk_rows)


def check_path(path: Path) -> str:
    """Return the lower-case suffix of a file that can be read.

    Raises:
        UserError: the file is absent or its suffix unknown.
    """
    if not path.is_file():
        raise UserError(f"no such file: {path}")
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise UserError(f"{path}: unknown kind of file '{path.suffix}'; readable are {' '.join(SUFFIXES)}")
    return suffix


def cell_text(value: object) -> str | None:
    """A JSON value as text: text stays, null stays, numbers and lists are written as JSON."""
    if value is None or isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, default=str)


def match_columns(names: list[str], wanted: Mapping[str, tuple[str, ...]]) -> dict[str, str]:
    """Map each wanted column to the name it has in a file: the first of its aliases found there, case ignored."""
    by_key = {name.strip().casefold(): name for name in reversed(names)}
    found = {
        column: next((by_key[alias.casefold()] for alias in aliases if alias.casefold() in by_key), None)
        for column, aliases in wanted.items()
    }
    return {column: name for column, name in found.items() if name is not None}


def require_columns(
    picked: Mapping[str, str],
    needed: tuple[str, ...],
    wanted: Mapping[str, tuple[str, ...]],
    names: list[str],
    where: str,
) -> None:
    """Refuse a file without one of the needed columns.

    Raises:
        UserError: names the column, its aliases and the columns that `where` has.
    """
    for name in needed:
        if name not in picked:
            expected = " or ".join(f"'{alias}'" for alias in wanted[name])
            raise UserError(f"{where}: no column for the {name}, expected {expected}; its columns are {names}")


def _read_json(path: Path) -> pl.DataFrame:
    data = path.read_bytes().removeprefix(codecs.BOM_UTF8)
    if path.suffix.lower() == ".json" and data.lstrip()[:1] == b"[":
        values = _parse_json(data, str(path), 1)
        assert isinstance(values, list)
        records = [(number, _record(value, str(path), number)) for number, value in enumerate(values, start=1)]
    else:
        records = list(_json_records(io.BytesIO(data), str(path)))
    if any(ROW in record for _, record in records):
        raise UserError(f"{path}: a column may not be called '{ROW}'")
    columns = dict.fromkeys(key for _, record in records for key in record)
    frame = _frame_of([record for _, record in records], columns)
    return frame.with_columns(pl.Series(ROW, [number for number, _ in records], dtype=pl.Int64))


def _json_records(
    stream: BinaryIO, name: str, *, keep_raw: bool = False
) -> Iterator[tuple[int, dict[str, str | None]]]:
    """Line number and columns of each JSON line; a binary stream ends lines at the newline byte and nowhere else."""
    for number, line in enumerate(stream, start=1):
        content = line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
        if content.strip():
            record = _record(_parse_json(content.rstrip(b"\r\n"), name, number), name, number)
            yield number, record | {RAW: content.decode("utf-8")} if keep_raw else record


def _parse_json(content: bytes, name: str, number: int) -> object:
    try:
        return json.loads(content.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise UserError(f"{name}, line {number}: not UTF-8 ({error.reason}); save the file as UTF-8") from error
    except json.JSONDecodeError as error:
        line = number + error.lineno - 1
        raise UserError(f"{name}, line {line}: not valid JSON: {error.msg} (character {error.colno})") from error


def _record(value: object, name: str, number: int) -> dict[str, str | None]:
    if not isinstance(value, dict):
        raise UserError(f"{name}, line {number}: expected a JSON object, found {type(value).__name__}")
    record = {key: cell_text(cell) for key, cell in value.items()}
    for key, text in record.items():
        try:
            (text or "").encode("utf-8")
        except UnicodeEncodeError as error:
            reason = "half of a surrogate pair, no character"
            raise UserError(f"{name}, line {number}, column '{key}': {reason}; write the text as UTF-8") from error
    return record


def _json_chunks(stream: BinaryIO, name: str, chunk_rows: int, *, keep_raw: bool) -> Iterator[pl.DataFrame]:
    records = (record for _, record in _json_records(stream, name, keep_raw=keep_raw))
    columns: dict[str, None] = {}
    while chunk := list(islice(records, chunk_rows)):
        columns.update(dict.fromkeys(key for record in chunk for key in record))
        yield _frame_of(chunk, columns)


def _frame_of(records: list[dict[str, str | None]], columns: Iterable[str]) -> pl.DataFrame:
    return pl.DataFrame(
        {name: pl.Series([record.get(name) for record in records], dtype=pl.String) for name in columns}
    )


def _read_delimited(path: Path) -> pl.DataFrame:
    """CSV or TSV by polars, which tells a missing field from "", held to the row count of the strict csv parser."""
    is_tsv = path.suffix.lower() == ".tsv"
    with path.open(encoding="utf-8-sig", newline="") as stream:
        num_filled = sum(any(fields) for fields in islice(_delimited_records(stream, path), 1, None))
    if num_filled == 0:
        raise UserError(f"{path} has no rows")
    data = path.read_bytes().removeprefix(codecs.BOM_UTF8)
    try:
        frame = pl.read_csv(
            data, infer_schema=False, separator="\t" if is_tsv else ",", quote_char=None if is_tsv else '"'
        )
    except pl.exceptions.PolarsError as error:
        raise UserError(f"{path} cannot be read: {str(error).splitlines()[0]}; {_QUOTING_HELP}") from error
    num_read = frame.filter(pl.any_horizontal(pl.all().fill_null("") != "")).height
    if num_read != num_filled:
        raise UserError(f"{path}: {num_filled} rows in the file, {num_read} after reading; {_QUOTING_HELP}")
    return frame


def _delimited_records(stream: TextIO, path: Path) -> Iterator[list[str]]:
    """Header, then the fields of every row that is not blank, each as many as the header has."""
    csv.field_size_limit(2**31 - 1)
    if path.suffix.lower() == ".tsv":
        reader = csv.reader(stream, delimiter="\t", quoting=csv.QUOTE_NONE)
    else:
        reader = csv.reader(stream, strict=True)
    width = 0
    start_line = 1
    try:
        for fields in reader:
            if fields and not width:
                width = _check_header(fields, path)
            elif fields and len(fields) != width:
                raise UserError(
                    f"{path}, line {start_line}: {len(fields)} fields where the header has {width}; {_QUOTING_HELP}"
                )
            if fields:
                yield fields
            start_line = reader.line_num + 1
    except csv.Error as error:
        raise UserError(f"{path}, from line {start_line} on: {error}; {_QUOTING_HELP}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path}, near line {start_line}: not UTF-8 ({error.reason}); save it as UTF-8") from error


def _check_header(fields: list[str], path: Path) -> int:
    repeated = sorted({name for name in fields if fields.count(name) > 1})
    if repeated or ROW in fields:
        raise UserError(f"{path}, header: column names must be unique, repeated: {repeated or [ROW]}")
    return len(fields)


def _delimited_chunks(path: Path, chunk_rows: int) -> Iterator[pl.DataFrame]:
    with path.open(encoding="utf-8-sig", newline="") as stream:
        records = _delimited_records(stream, path)
        header = next(records, [])
        filled = (fields for fields in records if any(fields))
        while chunk := list(islice(filled, chunk_rows)):
            frame = pl.DataFrame(chunk, schema=dict.fromkeys(header, pl.String), orient="row")
            yield frame.with_columns(pl.when(pl.all() != "").then(pl.all()))


def _read_excel(path: Path) -> pl.DataFrame:
    try:
        frame = pl.read_excel(path.read_bytes(), infer_schema_length=0, drop_empty_rows=False, raise_if_empty=False)
    except Exception as error:  # calamine and fastexcel raise types of their own
        raise UserError(f"{path} cannot be read as an Excel workbook: {error}") from error
    return _as_text(frame)


def _as_text(frame: pl.DataFrame) -> pl.DataFrame:
    nested = [name for name, dtype in frame.schema.items() if dtype.is_nested()]
    texts = [pl.Series(name, [cell_text(value) for value in frame[name].to_list()], dtype=pl.String) for name in nested]
    return frame.with_columns(pl.exclude(nested).cast(pl.String), *texts)
