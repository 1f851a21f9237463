from __future__ import annotations

import datetime
import json
import re
import unicodedata
from pathlib import Path

import polars as pl
import pytest

from lightning_nli.data.readers import READERS, fingerprint, iter_rows, pick_columns, read_source
from lightning_nli.data.schema import EXAMPLE_SCHEMA
from lightning_nli.types import BINARY, DOMAINS, THREE_WAY, WILLS, UserError

VILEGALNLI = {
    "Law ID": "1/2015/QH13",
    "Law Name": "LUẬT BẾN ĐÒ",
    "Law Field": "LUẬT BẾN ĐÒ",
    "Law Date": "2015-11-26 00:00:00",
    "Chapter": "III",
    "Section": None,
    "Article": "12a",
    "Clause": "2",
    "Tag Point": "F",
    "Premise": "Chủ đò phải có áo phao.",
    "Hypothesis": "Đò phải có áo phao.",
    "Label": "1",
    "File Name": "law_1.txt",
    "GPT Label": "1",
    "Deepseek Label": "1",
    "Llama Label": "1",
    "Agreements": "3",
    "Rule": "7_3",
    "Frequency": "2",
    "Field of Law": "['Giao thông - Vận tải']",
    "rule_complexity": "2",
    "Check": "1",
}


def vilegalnli(path: Path, *changes: dict[str, str | None]) -> str:
    rows = [VILEGALNLI | {"Hypothesis": f"Câu số {number}."} | change for number, change in enumerate(changes, 1)]
    pl.DataFrame(rows, schema=dict.fromkeys(VILEGALNLI, pl.String)).write_excel(path)
    return f"vilegalnli:{path}"


def write(path: Path, text: str) -> str:
    path.write_bytes(text.encode("utf-8"))
    return str(path)


def jsonl(path: Path, *rows: dict[str, object]) -> str:
    usual = {"premise": "Tiền đề.", "label": "neutral"}
    lines = (json.dumps(usual | {"hypothesis": f"h{i}"} | row, ensure_ascii=False) for i, row in enumerate(rows))
    return write(path, "".join(line + "\n" for line in lines))


# ViLegalNLI


def test_vilegalnli_columns_become_the_schema(tmp_path: Path):
    corpus = read_source(vilegalnli(tmp_path / "Dev.xlsx", {}))
    (row,) = corpus.frame.to_dicts()
    assert corpus.scheme is BINARY and corpus.split_unit == "premise_id"
    assert dict(corpus.frame.schema) == EXAMPLE_SCHEMA
    expected = {
        "corpus": "vilegalnli",
        "label": "entailment",
        "domains": ["transportation"],
        "rule": [7, 3],
        "law_id": "1/2015/QH13",
        "law_name": "LUẬT BẾN ĐÒ",
        "law_date": datetime.date(2015, 11, 26),
        "chapter": "III",
        "section": None,
        "article": "12a",
        "clause": "2",
        "point": None,
        "split": "dev",
        "condition": None,
        "group_id": None,
    }
    assert {name: row[name] for name in expected} == expected
    assert row["ratings"] == [{"rater": name, "label": "entailment"} for name in ("gpt", "deepseek", "llama")]
    assert corpus.extra_columns["Law Field"] == 1 and corpus.notes == ()


def test_vilegalnli_oddities_are_repaired_and_noted(tmp_path: Path):
    corpus = read_source(
        vilegalnli(
            tmp_path / "Test.xlsx",
            {"Chapter": "3", "Rule": None, "Deepseek Label": "-1", "Agreements": "2", "Tag Point": "T_đ"},
            {"Chapter": None, "Rule": "7", "Deepseek Label": None, "Agreements": "2", "Tag Point": "FF"},
            {"Field of Law": "[]", "Premise": unicodedata.normalize("NFD", VILEGALNLI["Premise"]), "Section": "2"},
            {"Field of Law": "['Bảo hiểm', 'Lĩnh vực khác']", "Premise": "Chủ đò phải có áo\u00ad phao."},
            {"Label": "0", "Llama Label": "0", "Agreements": "3", "Law Date": "2018-01-02"},
        )
    )
    frame = corpus.frame
    assert frame["chapter"].to_list() == ["III", None, "III", "III", "III"]
    assert frame["rule"].to_list() == [[], [7], [7, 3], [7, 3], [7, 3]]
    assert frame["point"].to_list() == ["đ", None, None, None, None]
    assert frame["section"].to_list() == [None, None, "2", None, None]
    assert [rating["label"] for rating in frame["ratings"][0]] == ["entailment", None, "entailment"]
    assert [rating["label"] for rating in frame["ratings"][1]] == ["entailment", None, "entailment"]
    assert frame["domains"].to_list()[2:4] == [[], ["insurance", "other"]]
    assert frame["label"].to_list()[-1] == "non_entailment"
    assert frame["law_date"].to_list()[-1] == datetime.date(2018, 1, 2)
    assert frame["premise"].n_unique() == 1 and frame["premise_id"].n_unique() == 1
    assert [note.partition("; repaired")[0] for note in corpus.notes] == [
        "1 rows: the premise is not in NFC",
        "1 rows: the premise holds soft hyphens or zero-width marks",
        "'Agreements' is not the number of raters who agree with the label in 1 rows",
        "'Tag Point' had 1 stray values ['FF']",
    ]


def test_vilegalnli_unusable_rows_are_named(tmp_path: Path):
    changes = [{}, {"Hypothesis": None}, {"Label": "2"}, {"Field of Law": "['Bảo hiêm']"}, {"Premise": "  "}]
    source = vilegalnli(tmp_path / "Test.xlsx", *changes)
    with pytest.raises(UserError, match="4 unusable rows") as error:
        read_source(source)
    message = str(error.value)
    assert "Test.xlsx, row 2, column 'hypothesis': the hypothesis is missing" in message
    assert "row 3, column 'label'" in message and "nearest is 'insurance' (Bảo hiểm)" in message
    assert "use --on-bad-row drop" in message
    corpus = read_source(source, on_bad_row="drop")
    assert [bad.row for bad in corpus.bad_rows] == [2, 3, 4, 5]
    assert corpus.frame.height == 1


def test_a_folder_is_read_split_by_split(tmp_path: Path):
    vilegalnli(tmp_path / "Dev.xlsx", {}, {})
    vilegalnli(tmp_path / "test.xlsx", {"Hypothesis": None}, {"Premise": "Bến đò mở cửa."})
    write(tmp_path / "premises.csv", "a,b\n1,2\n")
    source = f"vilegalnli:{tmp_path}"
    assert read_source(f"{source}#dev").frame["split"].to_list() == ["dev", "dev"]
    assert read_source(f"{source}#val").frame.height == 2
    assert read_source(source, on_bad_row="drop").frame["split"].to_list() == ["dev", "dev", "test"]
    with pytest.raises(UserError, match="no split 'train'; it has dev, test"):
        read_source(f"{source}#train")
    write(tmp_path / "dev.csv", "a,b\n1,2\n")
    with pytest.raises(UserError, match="2 files for the split dev"):
        read_source(source)


def test_published_vilegalnli_has_the_counts_we_know(shared: Path):
    folder = shared / "data" / "vilegalnli"
    dev = read_source(f"vilegalnli:{folder}#dev")
    test = read_source(f"vilegalnli:{folder}#test", on_bad_row="drop")
    assert (dev.frame.height, len(dev.bad_rows)) == (4656, 0)
    assert (test.frame.height, len(test.bad_rows)) == (4288, 5)
    assert [bad.row - 1 for bad in test.bad_rows] == [102, 629, 1461, 1866, 3040]
    for corpus, several, none, not_nfc, hyphens in ((dev, 1341, 30, 286, 17), (test, 964, 36, 178, 5)):
        num_domains = corpus.frame["domains"].list.len()
        assert ((num_domains > 1).sum(), (num_domains == 0).sum()) == (several, none)
        assert f"{not_nfc} rows: the premise is not in NFC; repaired" in corpus.notes
        assert f"{hyphens} rows: the premise holds soft hyphens or zero-width marks; repaired" in corpus.notes
        assert corpus.frame["domains"].list.explode().drop_nulls().n_unique() == len(DOMAINS) == 27
        assert corpus.frame["law_id"].null_count() == 0
    assert dev.frame["label"].value_counts(sort=True)["count"].to_list() == [2542, 2114]
    assert any("FF" in note for note in test.notes) and not any("Agreements" in note for note in test.notes)
    assert len(set(dev.frame["law_id"]) & set(test.frame["law_id"])) == 129


# Plain files


def test_d02_late_values_and_mixed_numbers_are_text(tmp_path: Path):
    late = read_source(jsonl(tmp_path / "a.jsonl", *({"evidence": None if i < 120 else "x"} for i in range(130))))
    assert late.frame.height == 130 and late.extra_columns == {"evidence": 10}
    mixed = read_source(jsonl(tmp_path / "b.jsonl", *({"article": i if i < 120 else "12a"} for i in range(130))))
    assert mixed.frame["article"].to_list() == [*map(str, range(120)), *["12a"] * 10]
    table = (
        "premise,hypothesis,label,article\n"
        + "".join(f"p,h{i},neutral,{i}\n" for i in range(120))
        + "p,h,neutral,12a\n"
    )
    assert read_source(write(tmp_path / "c.csv", table)).frame["article"].to_list()[-2:] == ["119", "12a"]


def test_d03_lone_quotes_in_tsv_are_characters_and_in_csv_named(tmp_path: Path):
    rows = 'A\tB\tneutral\nHọ "nói\tD\tneutral\n"Luật\tF\tneutral\nG\tH\tneutral\nI\tcông"\tneutral\n'
    frame = read_source(write(tmp_path / "q.tsv", "premise\thypothesis\tlabel\n" + rows)).frame
    assert frame["premise"].to_list() == ["A", 'Họ "nói', '"Luật', "G", "I"]
    assert frame["hypothesis"].to_list()[-1] == 'công"'
    text = "premise,hypothesis,label\n" + rows.replace("\t", ",")
    with pytest.raises(UserError, match=r"q\.csv, (from )?line 4.*quotes"):
        read_source(write(tmp_path / "q.csv", text))
    merged = 'premise,hypothesis,label\n"A,B,neutral\nC,D",E,neutral\n"F,G,neutral\nH",I\n'
    with pytest.raises(UserError, match=r"line 4: 2 fields where the header has 3"):
        read_source(write(tmp_path / "m.csv", merged))


def test_csv_with_quotes_line_breaks_and_blank_lines(tmp_path: Path):
    text = '\ufeffpremise,hypothesis,label\r\n"a ""b""","l1\nl2",neutral\r\n\r\nc,,neutral\r\n'
    corpus = read_source(write(tmp_path / "a.csv", text), on_bad_row="drop")
    assert corpus.frame.select("premise", "hypothesis").rows() == [('a "b"', "l1\nl2")]
    assert [bad.row for bad in corpus.bad_rows] == [3]


def test_d04_words_stay_words_and_missing_is_not_empty(tmp_path: Path):
    fields = ["1,A,None", "2,B,null", "3,C,NA", "4,D,", '5,E,""']
    text = "id,premise,hypothesis,label\n" + "".join(f"{field},neutral\n" for field in fields)
    corpus = read_source(write(tmp_path / "n.csv", text), on_bad_row="drop")
    assert corpus.frame["hypothesis"].to_list() == ["None", "null", "NA"]
    reasons = [bad.reason for bad in corpus.bad_rows]
    assert reasons == ["the hypothesis is missing (id 4)", "the hypothesis is empty text (id 5)"]


def test_d05_only_newline_bytes_end_a_json_line(tmp_path: Path):
    marks = ["\u2028", "\u2029", "\x85"]
    path = jsonl(tmp_path / "u.jsonl", *({"premise": f"Một{mark}hai"} for mark in marks))
    assert read_source(path).frame["premise"].to_list() == [f"Một{mark}hai" for mark in marks]
    assert [frame.height for frame in iter_rows(path, chunk_rows=2)] == [2, 1]


@pytest.mark.parametrize("name", ["b.jsonl", "b.csv", "b.tsv", "b.json"])
def test_d06_byte_order_mark_is_no_part_of_the_first_name(tmp_path: Path, name: str):
    if name.startswith("b.json"):
        text = '{"id": "a", "premise": "p", "hypothesis": "h", "label": "neutral"}\n'
    else:
        text = "id,premise,hypothesis,label\na,p,h,neutral\n".replace(",", "," if name == "b.csv" else "\t")
    path = write(tmp_path / name, "\ufeff" + text)
    assert read_source(path).frame["example_id"].to_list() == ["a"]
    assert next(iter_rows(path)).columns == ["id", "premise", "hypothesis", "label"]


def test_d07_known_spellings_map_and_a_misspelling_is_refused_with_its_id(tmp_path: Path):
    labels = ["contradictory", "Contradiction", "entailed", "NEUTRAL ", "contradiciton"]
    corpus = read_source(
        jsonl(tmp_path / "l.jsonl", *({"id": i, "label": label} for i, label in enumerate(labels))), on_bad_row="drop"
    )
    assert corpus.frame["label"].to_list() == ["contradiction", "contradiction", "entailment", "neutral"]
    assert corpus.scheme is THREE_WAY
    (bad,) = corpus.bad_rows
    assert bad.reason == "unknown label 'contradiciton'; did you mean 'contradiction'? (id 4)"


@pytest.mark.parametrize(
    ("labels", "scheme"),
    [
        (["not_entailment", "Entailment", "non-entailment"], BINARY),
        (["entailment", "neutral"], THREE_WAY),
        (["support", "Refuted", "unrelated"], WILLS),
    ],
)
def test_the_scheme_follows_the_label_names(tmp_path: Path, labels: list[str], scheme: object):
    assert read_source(jsonl(tmp_path / "s.jsonl", *({"label": label} for label in labels))).scheme is scheme


def test_label_order_is_never_guessed(tmp_path: Path):
    numbers = jsonl(tmp_path / "n.jsonl", {"label": 0}, {"label": 1}, {"label": 2})
    with pytest.raises(UserError, match=r"bare numbers.*say what they mean"):
        read_source(numbers)
    with pytest.raises(UserError, match="bare numbers"):
        read_source(numbers, scheme="three_way")
    with pytest.raises(UserError, match="of no one scheme"):
        read_source(jsonl(tmp_path / "m.jsonl", {"label": "neutral"}, {"label": "not_entailment"}))
    with pytest.raises(UserError, match="did you mean 'binary'"):
        read_source(numbers, scheme="binry")
    only_entailed = jsonl(tmp_path / "e.jsonl", {"label": "entailment"})
    assert read_source(only_entailed, scheme="three_way").scheme is THREE_WAY


def test_d08_rows_without_a_gold_label_are_set_aside_with_their_ids(tmp_path: Path):
    labels = ["entailment", "-", -1, None, "neutral"]
    path = jsonl(tmp_path / "g.jsonl", *({"id": i, "label": label} for i, label in enumerate(labels, 1)))
    with pytest.raises(UserError, match="3 unusable rows"):
        read_source(path)
    corpus = read_source(path, on_bad_row="drop")
    assert corpus.frame["label"].to_list() == ["entailment", "neutral"]
    assert [bad.reason for bad in corpus.bad_rows] == [f"no gold label (id {i})" for i in (2, 3, 4)]


def test_rows_to_predict_need_no_label(tmp_path: Path):
    path = write(tmp_path / "p.csv", "sentence1,sentence2\nA,B\n")
    with pytest.raises(UserError, match="no column for the label"):
        read_source(path)
    assert read_source(path, labelled=False).frame["label"].to_list() == [None]
    odd = jsonl(tmp_path / "o.jsonl", {"label": "-"}, {"label": "neutral"}, {"label": 7})
    assert read_source(odd, labelled=False, scheme="three_way").frame["label"].to_list() == [None, "neutral", None]


def test_column_aliases_ignore_case(tmp_path: Path):
    text = (
        "UID,Law,Statement,Conditions,Classification,DOMAIN,Split\nx, A ,B,C,support,Thuế -  phí - lệ phí,Validation\n"
    )
    (row,) = read_source(write(tmp_path / "w.csv", text)).frame.to_dicts()
    wanted = {"example_id": "x", "premise": "A", "condition": "C", "domains": ["tax_fees"], "split": "dev"}
    assert {name: row[name] for name in wanted} == wanted
    with pytest.raises(UserError, match="no column for the hypothesis"):
        read_source(write(tmp_path / "x.csv", "premise,label\nA,neutral\n"))


def test_ids_are_unique_and_repeated_ones_name_groups(tmp_path: Path):
    rows = [{"id": " a "}, {"id": "b", "hypothesis": "x"}, {"id": "b ", "hypothesis": "y"}, {}, {"hypothesis": "h3"}]
    frame = read_source(jsonl(tmp_path / "i.jsonl", *rows)).frame
    assert frame["example_id"][0] == "a" and frame["group_id"].to_list() == [None, "b", "b", None, None]
    hashed = frame["example_id"].to_list()[1:]
    assert all(re.fullmatch(r"[0-9a-f]{16}-\d", id_) for id_ in hashed)
    assert hashed[2][:-2] == hashed[3][:-2] and hashed[2].endswith("-1") and hashed[3].endswith("-2")
    assert frame["premise_id"].n_unique() == 1


def test_ids_numbered_anew_in_each_file_are_no_groups(tmp_path: Path):
    for split in ("train", "dev"):
        jsonl(tmp_path / f"{split}.jsonl", {"id": 0, "premise": split}, {"id": 1, "premise": split})
    frame = read_source(str(tmp_path)).frame
    assert frame["group_id"].null_count() == 4 and frame["example_id"].n_unique() == 4
    assert frame["split"].to_list() == ["train", "train", "dev", "dev"]


def test_texts_are_normalized_unless_asked_not_to(tmp_path: Path):
    raw = unicodedata.normalize("NFD", " Án phí ")
    path = jsonl(tmp_path / "t.jsonl", {"premise": raw})
    kept, normal = read_source(path, normalize=False).frame, read_source(path).frame
    assert kept["premise"].to_list() == [raw] and normal["premise"].to_list() == ["Án phí"]
    assert kept["example_id"].equals(normal["example_id"]) and fingerprint(kept) == fingerprint(normal)


def test_fingerprint_sees_texts_labels_ids_and_order(tmp_path: Path):
    frame = read_source(jsonl(tmp_path / "f.jsonl", {"id": "a"}, {"id": "b"})).frame
    assert fingerprint(frame) == "f6637528d71498ac"  # on every machine and library version
    others = [
        frame.reverse(),
        frame.with_columns(example_id=pl.Series(["a", "c"])),
        frame.with_columns(hypothesis=pl.lit("x")),
        frame.with_columns(label=pl.lit("entailment").cast(frame.schema["label"])),
    ]
    assert len({fingerprint(other) for other in (frame, *others)}) == 5


def test_sources_are_refused_by_what_is_wrong_with_them(tmp_path: Path):
    path = jsonl(tmp_path / "a.jsonl", {})
    assert read_source(f"plain:{path}").frame.height == 1
    for source, match in {
        f"vilegalnl:{path}": "unknown reader 'vilegalnl'; did you mean 'vilegalnli'.*anli, contractnli, .*, xnli",
        f"{tmp_path}/none.jsonl": "no file or folder",
        "plain:": "no file or folder",
        f"{path}#tset": "unknown split 'tset'",
        f"{path}#dev": "no rows of the split 'dev'",
        "sample:many": "sample:N",
        "vilegalnli": "needs a path",
        f"{tmp_path}": "holds no train, dev or test file",
    }.items():
        with pytest.raises(UserError, match=match):
            read_source(source)


def test_parquet_excel_and_json_arrays_read_as_text(tmp_path: Path):
    rows = [{"id": 1, "premise": "A", "hypothesis": "B", "label": "neutral", "article": 7, "domains": ["tax_fees"]}]
    pl.DataFrame(rows).write_parquet(tmp_path / "r.parquet")
    write(tmp_path / "r.json", json.dumps(rows))
    pl.DataFrame(rows).drop("domains").write_excel(tmp_path / "r.xlsx")
    for suffix in ("parquet", "json", "xlsx"):
        (row,) = read_source(str(tmp_path / f"r.{suffix}")).frame.to_dicts()
        assert (row["example_id"], row["article"]) == ("1", "7")
        assert row["domains"] == ([] if suffix == "xlsx" else ["tax_fees"])
        assert next(iter_rows(tmp_path / f"r.{suffix}"))["article"].to_list() == ["7"]


def test_pick_columns_maps_to_raw_names():
    frame = pl.DataFrame({"ID": ["1"], "Sentence1": ["a"], "text_pair": ["b"], "x": ["c"]})
    assert pick_columns(frame) == {"premise": "Sentence1", "hypothesis": "text_pair", "id": "ID"}
    with pytest.raises(UserError, match="no column for the hypothesis"):
        pick_columns(frame.drop("text_pair"))


def test_sample_is_a_source():
    pytest.importorskip("lightning_nli.data.sample")
    corpus = read_source("sample:120")
    assert corpus.frame.height == 120 and corpus.scheme is BINARY
    dev = read_source("sample:120#dev").frame
    assert 0 < dev.height < 120 and dev["split"].unique().to_list() == ["dev"]
    assert set(READERS) >= {"plain", "vilegalnli", "sample"}


def test_d11_a_field_of_law_written_differently_is_one_field(tmp_path: Path):
    spellings = ["Văn hóa - Xã hội", "văn hóa  -  xã hội", "Văn hoá - Xã hội", "culture_society"]
    spellings.append(unicodedata.normalize("NFD", spellings[0]))
    rows = [{"domain": spelling} for spelling in spellings]
    frame = read_source(jsonl(tmp_path / "d.jsonl", *rows)).frame
    assert frame["domains"].to_list() == [["culture_society"]] * 5
    with pytest.raises(UserError, match=r"unknown field of law 'Văn hóa'.*nearest is 'culture_society'"):
        read_source(jsonl(tmp_path / "e.jsonl", {"domain": "Văn hóa"}))
