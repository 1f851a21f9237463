"""Marker and anonymisation tokens: exact ids, and the same through trimming, resume, predict and export."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest
import torch
from test_added_tokens import FIT, save_model
from test_tokenization import make_frame, rows_of
from tiny_models import TEXTS, bert_tokenizer, roberta_tokenizer, stand_in, stand_in_tokenizer
from transformers import AutoModel, AutoTokenizer, pipeline

from lightning_nli.cli.main import main
from lightning_nli.data.segments import Joining, Template, add_markers, find_placeholders
from lightning_nli.data.tokenization import EncoderSpec, tokenize_split
from lightning_nli.models.padded import LongformerEncoder
from lightning_nli.training.trained import open_run
from lightning_nli.types import BINARY

SEGMENTS = ("hypothesis", "condition", "premise")
NUM_ROWS = {"whole": 100, "trimmed": 400}
TRIM = {"whole": "off", "trimmed": "auto"}
NEW = ["[STATE]", "[COND]", "[LAW]", "[NO_COND]", "[Person-1]", "[Person-2]"]


def test_placeholders_are_found_and_amendments_are_not():
    text = "[Person-1] and [Person12] of [Address-2], [SSN]; [person-3] [Person -9] [NO_COND] [repealed] [As of 2021.]"
    assert find_placeholders([text, "[Person-1] [2] [a] [Nickname]"]) == [
        "[Address-2]", "[NO_COND]", "[Person -9]", "[Person-1]", "[Person12]", "[SSN]", "[person-3]"
    ]  # fmt: skip


@pytest.mark.parametrize("kind", ["bert", "roberta", "xlm-roberta", "words"])
def test_markers_stand_before_their_texts_and_placeholders_are_one_token(kind, tmp_path):
    tokenizer = bert_tokenizer() if kind == "words" else stand_in_tokenizer(kind, tmp_path, lower=kind == "bert")
    before = len(tokenizer)
    texts = ("Người lao động [Person-1], [Person-2].", "[NO_COND]", TEXTS[1])
    assert add_markers(tokenizer, SEGMENTS, texts) == NEW
    assert add_markers(tokenizer, SEGMENTS, texts) == []
    ids = tokenizer.convert_tokens_to_ids(NEW)
    assert ids == list(range(before, before + 6)) and len(tokenizer) == before + 6
    frame = make_frame([(texts[2], texts[0], texts[1])])
    spec = EncoderSpec(tokenizer, SEGMENTS, 512, joining=Joining.MARKERS, num_token_types=2)
    split = tokenize_split(frame, spec, BINARY)
    (row,) = rows_of(split)
    plain = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
    first, last = tokenizer("a")["input_ids"][0], tokenizer("a")["input_ids"][-1]
    assert row == [first, ids[0], *plain[0], ids[1], *plain[1], ids[2], *plain[2], last]
    assert plain[1] == [ids[3]] and plain[0].count(ids[4]) == plain[0].count(ids[5]) == 1
    assert set(split.token_types.tolist()) == {0}
    # What an exported model is called with: one text that holds the markers.
    joined = f"[STATE] {texts[0]} [COND] {texts[1]} [LAW] {texts[2]}"
    assert tokenizer(joined)["input_ids"] == row
    assert spec.template.special_ids == tuple(sorted({first, *ids[:3], last}))


def test_markers_are_cut_by_no_truncation():
    tokenizer = roberta_tokenizer()
    add_markers(tokenizer, SEGMENTS, [])
    frame = make_frame([(" ".join(TEXTS),) * 3])
    for truncation in ("proportional", "longest_first", "head", "tail", "head_tail"):
        spec = EncoderSpec(tokenizer, SEGMENTS, 20, joining=Joining.MARKERS, truncation=truncation, ratio=(3, 1, 7))
        (row,) = rows_of(tokenize_split(frame, spec, BINARY))
        assert len(row) == 20
        assert [token for token in row if token in spec.template.special_ids] == [
            0, *tokenizer.convert_tokens_to_ids(["[STATE]", "[COND]", "[LAW]"]), 2
        ]  # fmt: skip


def test_a_tokenizer_without_the_markers_is_refused():
    with pytest.raises(ValueError, match=r"the tokenizer has no \[STATE\], \[LAW\]"):
        Template.with_markers(bert_tokenizer(), ("hypothesis", "premise"))


@pytest.fixture(scope="module")
def wills(tmp_path_factory) -> Path:
    """Three splits of groups of five in the corpus' layout."""
    folder = tmp_path_factory.mktemp("wills")
    for number, split in enumerate(("train", "dev", "test")):
        rows = [
            (f"G{number}{group}{' ' * (row == 4)}", f"{TEXTS[group]} [Person-1] {split}", f"[Person-2] {TEXTS[row % 4]}"
             if row else "[NO_COND]", f"{TEXTS[(group + row) % 4]} {split} {row}", row if row < 3 else 2)
            for group in range(2) for row in range(5)
        ]  # fmt: skip
        names = ["ID", "statement", "conditions", "law", "classification"]
        pl.DataFrame(rows, schema=names, orient="row").write_csv(folder / f"{split}.csv")
    return folder


def settings(model: Path, wills: Path, *more: str) -> list[str]:
    return [
        *FIT,
        "--data",
        f"wills:{wills}",
        "--model",
        str(model),
        "--max-length",
        "24",
        "--template",
        "markers",
        *more,
    ]


@pytest.fixture(scope="module", params=NUM_ROWS)
def run(request, wills, tmp_path_factory):
    """A run whose tokenizer has two of the tokens already, on a whole and on a trimmed vocabulary."""
    folder = tmp_path_factory.mktemp(request.param)
    model = save_model(folder / "model", NUM_ROWS[request.param])
    pieces = ["fit", *settings(model, wills, "--trim-vocab", TRIM[request.param]), "--run-dir", str(folder / "run")]
    assert main(pieces) == 0
    assert (folder / "run" / "encoder" / "kept_tokens.npy").exists() == (request.param == "trimmed")
    return folder / "run"


def answers(run: Path) -> list[float]:
    return pl.read_parquet(run / "predictions" / "test.parquet")["prob_support"].to_list()


def test_result_json_says_what_was_cut_and_how(run):
    result = json.loads((run / "result.json").read_text())
    found = result["data"]["truncation"]
    assert found["rule"] == "proportional"
    assert sum(found["shares"].values()) == pytest.approx(100, abs=0.2)
    assert list(found["shares"]) == list(SEGMENTS)
    lengths = pl.read_parquet(run / "predictions" / "test.parquet")["num_tokens"]
    assert found["sets"]["test"] == {
        "num_examples": 10,
        "num_truncated": int((lengths > 24).sum()),
        "num_cut_tokens": int((lengths - 24).clip(lower_bound=0).sum()),
    }
    assert found["sets"]["train"]["num_truncated"] > 0
    assert result["scores"]["test"]["num_groups"] == 2


def test_a_marked_run_predicts_and_tests_the_same(run, wills, tmp_path, capsys):
    rows = pl.read_csv(wills / "test.csv").rename(
        {"statement": "hypothesis", "conditions": "condition", "law": "premise"}
    )
    rows.select(SEGMENTS).write_ndjson(tmp_path / "in.jsonl")
    assert main(["predict", str(run), str(tmp_path / "in.jsonl"), str(tmp_path / "out.jsonl"), "--quiet"]) == 0
    assert pl.read_ndjson(tmp_path / "out.jsonl")["prob_support"].to_list() == pytest.approx(answers(run), abs=1e-6)
    spec = open_run(run).scorer.spec
    assert spec.joining is Joining.MARKERS and spec.truncation == "proportional"
    total = sum(spec.ratio)
    shares = json.loads((run / "result.json").read_text())["data"]["truncation"]["shares"]
    assert [round(100 * weight / total, 1) for weight in spec.ratio] == list(shares.values())


def test_the_exported_folder_reads_the_markers_in_one_text(run, wills, tmp_path):
    assert main(["export", str(run), str(tmp_path / "model")]) == 0
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    assert set(NEW) <= set(tokenizer.get_vocab())
    table = AutoModel.from_pretrained(tmp_path / "model").get_input_embeddings().weight
    places = tokenizer.convert_tokens_to_ids(["[STATE]", "[Person-1]"])
    assert not torch.allclose(table[places[0]], table[places[1]])  # equal, the mean, before they were trained
    scorer = open_run(run, precision="fp32").scorer
    classify = pipeline("text-classification", str(tmp_path / "model"), device="cpu", top_k=None)
    frame = make_frame([("Cơ quan thuế [Person-1]", "sổ sách", "Không được")])  # short: nothing is cut
    (found,) = classify(["[STATE] sổ sách [COND] Không được [LAW] Cơ quan thuế [Person-1]"])
    expected = scorer.predictions(frame.with_columns(label=pl.lit(None, frame.schema["label"])))
    assert {one["label"]: one["score"] for one in found} == pytest.approx(
        {name: expected[f"prob_{name}"][0] for name in scorer.scheme.names}, abs=1e-5
    )


def test_a_stopped_marked_run_goes_on_to_the_same_answers(run, wills, tmp_path):
    trim = TRIM["trimmed" if (run / "encoder" / "kept_tokens.npy").exists() else "whole"]
    pieces = ["fit", *settings(run.parent / "model", wills, "--trim-vocab", trim)]
    pieces += ["--run-dir", str(tmp_path / "run"), "--resume", "auto", "--max-time", "0"]
    codes = [main(pieces)]
    while codes[-1] == 75 and len(codes) < 5:
        codes.append(main(pieces))
    assert codes[0] == 75 and codes[-1] == 0
    assert answers(tmp_path / "run") == answers(run)


@pytest.mark.parametrize("trim", ["off", "auto"])
def test_longformer_looks_at_the_first_token_and_at_the_markers(wills, tmp_path, trim, monkeypatch):
    masks = []
    inputs_of = LongformerEncoder.padded_inputs

    def record(self, batch):
        inputs = inputs_of(self, batch)
        masks.append((self, inputs["input_ids"], inputs["global_attention_mask"]))
        return inputs

    monkeypatch.setattr(LongformerEncoder, "padded_inputs", record)
    model = stand_in("longformer-base", tmp_path / "model", attention_window=[8, 8])
    assert main(["fit", *settings(model, wills, "--trim-vocab", trim), "--run-dir", str(tmp_path / "run")]) == 0
    assert {len(encoder.global_token_ids) for encoder, _, _ in masks} == {3}
    is_trimmed = (tmp_path / "run" / "encoder" / "kept_tokens.npy").exists()
    assert (
        len({encoder.global_token_ids for encoder, _, _ in masks}) == 1 + is_trimmed
    )  # in training, when opened again
    for encoder, ids, mask in masks:
        chosen = torch.tensor(encoder.global_token_ids)
        assert (mask.sum(1) == 4).all() and mask[:, 0].all()
        assert torch.isin(ids[:, 1:][mask[:, 1:].bool()], chosen).all()


def test_cbow_is_told_to_take_separators(wills, tmp_path, capsys):
    pieces = settings(Path("cbow"), wills, "--run-dir", str(tmp_path / "run"))
    assert main(["fit", *pieces]) == 2
    assert "--template markers: cbow tells two texts apart by token types" in capsys.readouterr().err
