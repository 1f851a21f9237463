"""Every corpus' reader on a tiny file of its layout, and on the published files where they are."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest

from lightning_nli.data.readers import READERS, read_source
from lightning_nli.types import BINARY, THREE_WAY, WILLS, Split, UserError


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode("utf-8"))
    return path


def jsonl(path: Path, *rows: dict[str, object]) -> Path:
    return write(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


def test_visnli_numbers_its_labels_its_own_way_and_ids_are_premises(tmp_path: Path):
    text = (
        "\ufeffID,Genre,Premise,Hypothesis,Label\r\nA_1,News,Trời mưa.,Có mưa.,0\r\nA_1,News,Trời mưa.,Trời nắng.,1\r\n"
    )
    path = write(tmp_path / "visnli" / "train.csv", text + "A_1,News,Trời mưa.,Gió to.,2\r\n")
    corpus = read_source(f"visnli:{path.parent}")
    assert corpus.scheme is THREE_WAY and corpus.split_unit == "premise_id"
    assert corpus.frame["label"].to_list() == ["entailment", "contradiction", "neutral"]
    assert corpus.frame["premise_id"].to_list() == ["A_1"] * 3 and corpus.frame["group_id"].null_count() == 3
    assert corpus.frame["split"].to_list() == ["train"] * 3


def test_wills_ids_are_groups_once_stripped_and_their_oddities_are_noted(tmp_path: Path):
    rows = "".join(f'{"A1" if n < 4 else "A1 "},"Dòng {n}\nhai",Điều kiện,Luật {n},{n % 3}\n' for n in range(5))
    path = write(tmp_path / "dev.csv", "\ufeffID,statement,conditions,law,classification\n" + rows + "B1,s,c,l,1\n")
    corpus = read_source(f"wills:{path}")
    assert corpus.scheme is WILLS and corpus.split_unit == "group_id"
    assert corpus.frame["group_id"].to_list() == ["A1"] * 5 + ["B1"]
    assert corpus.frame["label"].to_list() == ["refute", "support", "unrelated", "refute", "support", "support"]
    assert corpus.frame["hypothesis"][0] == "Dòng 0\nhai" and corpus.frame["condition"][0] == "Điều kiện"
    assert corpus.notes == ("1 ids end in a space; stripped, an id is a group", "1 groups have 1 rows instead of 5")


CONTRACT = {
    "documents": [
        {
            "id": 7,
            "text": "The Recipient shall keep it secret.",
            "annotation_sets": [
                {
                    "annotations": {
                        "nda-1": {"choice": "Entailment", "spans": [0]},
                        "nda-2": {"choice": "NotMentioned", "spans": []},
                    }
                }
            ],
        }
    ],
    "labels": {"nda-1": {"hypothesis": "It is secret."}, "nda-2": {"hypothesis": "It may be copied."}},
}


def test_contractnli_pairs_every_document_with_every_hypothesis(tmp_path: Path):
    path = write(tmp_path / "dev.json", json.dumps(CONTRACT))
    for source in (f"contractnli:{tmp_path}", str(path)):
        corpus = read_source(source)
        assert corpus.frame["example_id"].to_list() == ["7-nda-1", "7-nda-2"]
        assert corpus.frame["premise_id"].to_list() == ["7", "7"]
        assert corpus.frame["label"].to_list() == ["entailment", "neutral"]
        assert corpus.frame["split"].to_list() == ["dev", "dev"]
    assert corpus.notes[0].startswith("read as contractnli")


def test_contractnli_of_another_layout_is_refused_by_name(tmp_path: Path):
    two = json.loads(json.dumps(CONTRACT))
    two["documents"][0]["annotation_sets"] *= 2
    for content, match in ((two, "one annotation set"), ({"labels": {}}, "not laid out as ContractNLI")):
        path = write(tmp_path / "x.json", json.dumps(content))
        with pytest.raises(UserError, match=match):
            read_source(f"contractnli:{path}")


def test_xnli_takes_the_vietnamese_pairs_only(tmp_path: Path):
    head = "language\tgold_label\tsentence1\tsentence2\tpromptID\tpairID\tgenre\n"
    rows = 'en\tneutral\tA "dog\tB\t1\t11\tx\nvi\tcontradictory\tCon "chó\tMèo\t1\t12\tx\nvi\t-\tChó\tMèo\t1\t13\tx\n'
    path = write(tmp_path / "xnli.dev.tsv", head + rows)
    for source in (f"xnli:{tmp_path}", str(path)):
        corpus = read_source(source, on_bad_row="drop")
        assert corpus.frame["premise"].to_list() == ['Con "chó'] and corpus.frame["premise_id"].to_list() == ["1"]
        assert corpus.frame["label"].to_list() == ["contradiction"] and corpus.frame["split"].to_list() == ["dev"]
        assert "1 rows of another language than 'vi' left aside" in corpus.notes
        assert [bad.reason for bad in corpus.bad_rows] == ["no gold label (id 13)"]


def test_snli_and_mnli_keep_their_annotators_and_prompts(tmp_path: Path):
    row = {
        "gold_label": "neutral",
        "sentence1": "A",
        "sentence2": "B",
        "pairID": "p1",
        "captionID": "c1",
        "annotator_labels": ["neutral", "entailment", ""],
    }
    snli = read_source(f"snli:{jsonl(tmp_path / 's' / 'snli_1.0_dev.jsonl', row).parent}")
    assert snli.frame["premise_id"].to_list() == ["c1"] and snli.frame["example_id"].to_list() == ["p1"]
    assert [rating["label"] for rating in snli.frame["ratings"][0]] == ["neutral", "entailment", None]
    mnli_row = {name: value for name, value in row.items() if name != "captionID"} | {"promptID": "9", "genre": "g"}
    folder = tmp_path / "m"
    jsonl(folder / "multinli_1.0_dev_matched.jsonl", mnli_row)
    jsonl(folder / "multinli_1.0_dev_mismatched.jsonl", mnli_row | {"pairID": "p2", "sentence2": "C"})
    jsonl(folder / "multinli_1.0_train.jsonl", mnli_row | {"pairID": "p3", "sentence2": "D"})
    mnli = read_source(f"mnli:{folder}")
    assert mnli.frame["split"].to_list() == ["train", "dev", "dev"] and mnli.frame["premise_id"].to_list() == ["9"] * 3
    bare = read_source(str(folder / "multinli_1.0_dev_matched.jsonl"))
    assert bare.frame["corpus"].to_list() == ["mnli"] and bare.frame["split"].to_list() == ["dev"]


def test_anli_reads_its_rounds_together_and_letters_as_labels(tmp_path: Path):
    for number, letter in ((1, "e"), (2, "n"), (3, "c")):
        row = {"uid": f"u{number}", "context": f"C{number}", "hypothesis": "H", "label": letter, "reason": "r"}
        jsonl(tmp_path / f"R{number}" / "test.jsonl", row)
    corpus = read_source(f"anli:{tmp_path}")
    assert corpus.frame["label"].to_list() == ["entailment", "neutral", "contradiction"]
    assert corpus.frame["split"].unique().to_list() == ["test"]
    assert read_source(f"anli:{tmp_path}/R2").frame["example_id"].to_list() == ["u2"]


def test_vianli_keeps_unbalanced_quotes_and_typing_errors(tmp_path: Path):
    path = write(
        tmp_path / "vianli_test.csv", 'uid,premise,hypothesis,label\nu1,"Ông nói: ""đi","Ông đi.",contradiction\n'
    )
    (row,) = read_source(f"vianli:{path.parent}").frame.to_dicts()
    assert row["premise"] == 'Ông nói: "đi' and row["split"] == "test" and row["label"] == "contradiction"


def test_the_meaning_of_bare_numbers_can_be_said(tmp_path: Path):
    path = jsonl(tmp_path / "n.jsonl", *({"premise": "p", "hypothesis": f"h{n}", "label": n} for n in (0, 1, 2)))
    corpus = read_source(f"{path}::0=contradiction,1=neutral,2=entailment")
    assert corpus.frame["label"].to_list() == ["contradiction", "neutral", "entailment"]
    with pytest.raises(UserError, match="unknown label '2'"):
        read_source(f"{path}::0=contradiction,1=neutral")
    with pytest.raises(UserError, match=r"RAW=LABEL.*got '0=no'"):
        read_source(f"{path}::0=no")


def test_labels_are_folded_when_asked_and_never_refined(tmp_path: Path):
    rows = [{"premise": "p", "hypothesis": name, "label": name} for name in ("entailment", "neutral", "contradiction")]
    path = jsonl(tmp_path / "t.jsonl", *rows)
    folded = read_source(str(path), scheme="binary")
    assert folded.scheme is BINARY
    assert folded.frame["label"].to_list() == ["entailment", "non_entailment", "non_entailment"]
    assert folded.notes[-1].startswith("labels folded: entailment -> entailment, neutral -> non_entailment")
    assert read_source(str(path), scheme="wills").frame["label"].to_list() == ["support", "unrelated", "refute"]
    with pytest.raises(UserError, match="two do not make three"):
        read_source("sample:10", scheme="three_way")


def test_a_split_can_be_read_as_another(tmp_path: Path):
    rows = [{"premise": "p", "hypothesis": n, "label": "neutral", "split": n} for n in ("train", "dev")]
    path = jsonl(tmp_path / "s.jsonl", *rows)
    assert read_source(f"{path}#dev=train").frame.select("hypothesis", pl.col("split").cast(pl.String)).rows() == [
        ("dev", "train")
    ]
    assert read_source(f"{path}#=test").frame["split"].to_list() == ["test", "test"]
    with pytest.raises(UserError, match="is for training rows"):
        read_source(f"{path}@1")
    with pytest.raises(UserError, match="number of rows"):
        read_source(f"{path}@-1")


def test_every_reader_names_a_scheme_or_finds_it():
    assert set(READERS) == set("vilegalnli vianli visnli wills contractnli xnli snli mnli anli plain sample".split())
    for spec in READERS.values():
        assert spec.signature == {name.casefold() for name in spec.signature}


def test_published_wills_counts(shared: Path):
    corpus = read_source(f"wills:{shared}/data/nli4wills")
    table = corpus.frame.group_by("split", "label").len().sort("split", "label")
    counts = {split: table.filter(pl.col("split") == split)["len"].to_list() for split in ("train", "dev", "test")}
    assert counts == {"train": [107, 116, 281], "dev": [52, 61, 142], "test": [53, 63, 139]}
    test = corpus.frame.filter(pl.col("split") == "test")
    assert test["group_id"].n_unique() == 51 and test.group_by("group_id").len()["len"].unique().to_list() == [5]


def test_published_visnli_and_contractnli_and_vianli_counts(shared: Path):
    visnli = read_source(str(shared / "data" / "visnli"))
    assert visnli.frame["corpus"].unique().to_list() == ["visnli"]
    sizes = {split.value: int((visnli.frame["split"] == split.value).sum()) for split in Split}
    assert sizes == {"train": 1726, "dev": 213, "test": 213}
    augmented = read_source(f"visnli:{shared}/data/visnli/train_augmented.csv#=train")
    assert augmented.frame["label"].unique().to_list() == ["contradiction"] and augmented.frame.height == 200
    contracts = read_source(f"contractnli:{shared}/data/contract_nli").frame
    assert contracts.height == 1037 and contracts["premise_id"].n_unique() == 61
    assert contracts["premise"].str.len_chars().max() <= 41_779
    assert read_source(f"vianli:{shared}/data/vianli#test").frame.height == 24
