from __future__ import annotations

import io
import sys
from pathlib import Path
from types import SimpleNamespace

import polars as pl
import pytest

from lightning_nli.data.tables import iter_rows, read_table
from lightning_nli.types import UserError


def write(path: Path, text: str) -> Path:
    path.write_bytes(text.encode("utf-8"))
    return path


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ('{"premise": "a"}\n{"premise": \n', r"x\.jsonl, line 2: not valid JSON"),
        ('{"premise": "a"}\n[1]\n', r"x\.jsonl, line 2: expected a JSON object, found list"),
        ('\n{"premise": "\\ud800"}\n', r"x\.jsonl, line 2, column 'premise'"),
        ("\n", "has no rows"),
    ],
)
def test_broken_json_lines_name_file_and_line(tmp_path: Path, text: str, match: str):
    path = write(tmp_path / "x.jsonl", text)
    with pytest.raises(UserError, match=match):
        read_table(path)


def test_broken_files_are_refused_by_name(tmp_path: Path):
    (tmp_path / "latin.csv").write_bytes("premise,hypothesis,label\n\xe9,b,neutral\n".encode("latin-1"))
    (tmp_path / "latin.jsonl").write_bytes(b'{"premise": "\xe9"}\n')
    (tmp_path / "no.xlsx").write_bytes(b"no workbook")
    write(tmp_path / "twice.csv", "premise,premise\na,b\n")
    write(tmp_path / "a.doc", "x")
    for name, match in {
        "latin.csv": "not UTF-8",
        "latin.jsonl": "line 1: not UTF-8",
        "no.xlsx": "cannot be read as an Excel workbook",
        "twice.csv": "must be unique",
        "a.doc": "unknown kind of file",
    }.items():
        with pytest.raises(UserError, match=match):
            read_table(tmp_path / name)


def test_iter_rows_streams_raw_text_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    raw = " e\u0301 "
    texts = [f"{raw}{i}" for i in range(10)]
    frame = pl.DataFrame({"Premise": texts, "n": range(10)})
    frame.write_ndjson(tmp_path / "a.jsonl")
    frame.write_csv(tmp_path / "a.csv")
    frame.write_csv(tmp_path / "a.tsv", separator="\t")
    frame.write_parquet(tmp_path / "a.parquet")
    frame.write_excel(tmp_path / "a.xlsx")
    for suffix in ("jsonl", "csv", "tsv", "parquet", "xlsx"):
        chunks = list(iter_rows(tmp_path / f"a.{suffix}", chunk_rows=4))
        assert [chunk.height for chunk in chunks] == [4, 4, 2]
        whole = pl.concat(chunks)
        assert whole["Premise"].to_list() == texts
        assert whole["n"].to_list() == [str(i) for i in range(10)]
    stdin = SimpleNamespace(buffer=io.BytesIO((tmp_path / "a.jsonl").read_bytes()))
    monkeypatch.setattr(sys, "stdin", stdin)
    assert pl.concat(iter_rows(None, chunk_rows=3))["Premise"].to_list() == texts
