from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest
from tiny_models import stand_in

from lightning_nli.cli.data import main
from lightning_nli.data.readers import read_source
from lightning_nli.types import UserError


def write_jsonl(path: Path, rows: list[dict[str, object]]) -> str:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def row(
    id_: object, premise: str, hypothesis: str | None, label: object = "neutral", **more: object
) -> dict[str, object]:
    return {"id": id_, "premise": premise, "hypothesis": hypothesis, "label": label, **more}


@pytest.fixture
def clean(tmp_path: Path) -> str:
    rows = [
        row(1, "Thuế nộp theo quý.", "Thuế nộp bốn lần.", "entailment", domain="Thuế - Phí - Lệ Phí", law_id="1/A"),
        row(2, "Rừng là của chung.", "Rừng là của riêng.", "contradiction", domain="tax_fees", law_id="2/A"),
    ]
    return write_jsonl(tmp_path / "clean.jsonl", rows)


def check_json(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, dict]:
    code = main(["check", *argv, "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_check_describes_a_source(clean: str, capsys: pytest.CaptureFixture[str]):
    code, result = check_json(capsys, clean)
    report = result["sources"][0]
    assert code == 0 and result["ok"]
    assert report["rows"] == 2
    assert report["labels"] == {"entailment": 1, "neutral": 0, "contradiction": 1}
    assert report["domains"] == [{"domain": "tax_fees", "rows": 2, "laws": 2}]
    assert report["lengths"]["premise"] == {"mean": 4.0, "median": 4.0, "p95": 4.0, "max": 4.0}


def test_check_prints_tables(clean: str, capsys: pytest.CaptureFixture[str]):
    assert main(["check", clean]) == 0
    out = capsys.readouterr().out
    assert "entailment 1, neutral 0, contradiction 1" in out
    assert "Thuế - Phí - Lệ Phí" in out


def test_bad_rows_are_listed_beside_the_rest(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    source = write_jsonl(tmp_path / "bad.jsonl", [row(1, "A", "B"), row(2, "C", None), row(3, "D", "E", "neutrl")])
    assert main(["check", source]) == 2
    out = capsys.readouterr().out
    assert "row 2, column 'hypothesis'" in out and "did you mean 'neutral'" in out
    assert "neutral 1" in out
    code, result = check_json(capsys, source, "--on-bad-row", "drop")
    assert code == 0
    assert [bad["row"] for bad in result["sources"][0]["bad_rows"]] == [2, 3]


def test_d02_late_values_are_counted_as_an_extra_column(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    rows = [row(i, "Tiền đề", f"Câu {i}", evidence=None if i < 120 else f"khoản {i}") for i in range(130)]
    assert main(["check", write_jsonl(tmp_path / "late.jsonl", rows)]) == 0
    assert "evidence: 10 values, not read" in capsys.readouterr().out


def test_d09_leaks_between_sources_warn_and_fail_when_strict(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    train = write_jsonl(
        tmp_path / "train.jsonl", [row(1, "Án phí do bên thua trả.", "Bên thua trả."), row(2, "B.", "C")]
    )
    test = write_jsonl(tmp_path / "test.jsonl", [row(11, "án phí do bên thua trả", "BÊN THUA TRẢ!"), row(12, "b", "D")])
    code, result = check_json(capsys, test, train)
    assert code == 0
    (leak,) = result["leaks"]
    assert leak["pair_ids"] == [["1", "11"]] and leak["premise_ids"] == [["2", "12"]]
    assert leak["train"].endswith("train.jsonl#train")
    assert main(["check", train, test, "--strict"]) == 2
    assert main(["check", train, "--strict"]) == 0


def test_duplicates_warn_and_fail_when_strict(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    source = write_jsonl(tmp_path / "twice.jsonl", [row(1, "A", "B"), row(2, "A", "B", "entailment")])
    assert main(["check", source]) == 0
    assert "1 rows repeat an earlier pair, 1 of them under another label" in capsys.readouterr().out
    assert main(["check", source, "--strict"]) == 2


@pytest.mark.parametrize("suffix", ["jsonl", "csv", "parquet"])
def test_d03_convert_keeps_every_row_and_reads_back_the_same(tmp_path: Path, suffix: str):
    path = tmp_path / "lone.tsv"
    path.write_text(
        'premise\thypothesis\tlabel\nHọ nói "có\tD\tneutral\n"Luật\tF\tneutral\nI\tk"\tneutral\n', encoding="utf-8"
    )
    out = tmp_path / f"out.{suffix}"
    assert main(["convert", str(path), str(out)]) == 0
    before, after = read_source(str(path)).frame, read_source(str(out)).frame
    assert after.equals(before)
    assert after["premise"].to_list() == ['Họ nói "có', '"Luật', "I"]


def test_d05_convert_writes_one_line_a_row_with_its_letters(tmp_path: Path):
    source = write_jsonl(tmp_path / "lines.jsonl", [row(1, "Một\u2028hai\x85ba\u2029", "Đúng"), row(2, "Bốn", "Năm")])
    out = tmp_path / "out.jsonl"
    assert main(["convert", source, str(out)]) == 0
    content = out.read_bytes()
    assert content.count(b"\n") == 2 and "Đúng".encode() in content
    assert read_source(str(out)).frame["premise"][0] == "Một\u2028hai\x85ba"


def test_convert_keeps_lists_dates_and_ratings(tmp_path: Path):
    more = {"domains": ["tax_fees", "other"], "rule": [7, 3], "law_date": "2015-11-26", "chapter": "4"}
    ratings = [{"rater": "a", "label": "neutral"}, {"rater": "b", "label": None}]
    source = write_jsonl(tmp_path / "rich.jsonl", [row(1, "A", "B", ratings=ratings, **more), row(2, "C", "D")])
    before = read_source(source).frame
    assert before["ratings"][0].to_list() == ratings
    for suffix in ("jsonl", "csv", "parquet"):
        out = tmp_path / f"out.{suffix}"
        assert main(["convert", source, str(out)]) == 0
        assert read_source(str(out)).frame.equals(before)


def test_convert_refuses_to_overwrite_and_leaves_nothing_half_written(clean: str, tmp_path: Path):
    out = tmp_path / "out.jsonl"
    out.write_text("mine")
    with pytest.raises(UserError, match="--force"):
        main(["convert", clean, str(out)])
    assert out.read_text() == "mine"
    assert main(["convert", clean, str(out), "--force"]) == 0
    with pytest.raises(UserError, match="no format"):
        main(["convert", clean, str(tmp_path / "out.doc")])
    assert main(["convert", clean, str(tmp_path / "out.doc"), "--to", "parquet"]) == 0
    assert pl.read_parquet(tmp_path / "out.doc").height == 2
    bad = write_jsonl(tmp_path / "bad.jsonl", [row(1, "A", None), row(2, "A", "B")])
    with pytest.raises(UserError, match="--on-bad-row drop"):
        main(["convert", bad, str(tmp_path / "bad.csv")])
    assert main(["convert", bad, str(tmp_path / "bad.csv"), "--on-bad-row", "drop"]) == 0
    assert not list(tmp_path.glob(".*"))


def test_help_shows_examples(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as stop:
        main(["--help"])
    assert stop.value.code == 0
    assert "lnli data check sample:200" in capsys.readouterr().out


def test_published_splits_exit_2_for_bad_rows_and_list_them(shared: Path, capsys: pytest.CaptureFixture[str]):
    code, result = check_json(capsys, f"vilegalnli:{shared / 'data' / 'vilegalnli'}")
    report = result["sources"][0]
    assert code == 2
    assert [bad["row"] for bad in report["bad_rows"]] == [103, 630, 1462, 1867, 3041]
    assert [part["rows"] for part in report["duplicates"]] == [129, 21]
    assert len(report["domains"]) == 28 and report["laws"] == 166
    (leak,) = result["leaks"]
    assert (leak["pairs"], leak["shared_premises"]) == (0, 5)


def test_t02_segmented_and_plain_rows_are_told_apart_for_a_model_of_words(tmp_path: Path, capsys):
    pytest.importorskip("pyvi")
    rows = [
        {"premise": "Người lao động có quyền nghỉ.", "hypothesis": "Được nghỉ.", "label": "entailment"},
        {"premise": "Người lao_động có quyền nghỉ .", "hypothesis": "Được nghỉ .", "label": "entailment"},
    ]
    path = tmp_path / "t.jsonl"
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    folder = stand_in("phobert", tmp_path / "phobert")
    assert main(["check", str(path), "--model", str(folder)]) == 0
    shown = capsys.readouterr().out
    assert "1 of 2 rows have no '_' joins" in shown and "word segmenter pyvi" in shown
    assert main(["check", str(path), "--model", str(folder), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)["model"]
    assert report["joined_rows"] == 1 and report["sources"][str(path)]["tokens"]["max"] > 8
    with pytest.raises(UserError, match="cannot be loaded"):
        main(["check", str(path), "--model", str(tmp_path / "none")])
