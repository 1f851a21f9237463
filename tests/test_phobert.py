"""PhoBERT: a slow tokenizer, word-segmented text, 256 positions."""

from __future__ import annotations

import importlib.metadata
import json
import logging
import shutil

import polars as pl
import pytest
from test_tokenization import make_frame, rows_of
from tiny_models import TEXTS, bert_tokenizer, stand_in
from transformers import AutoTokenizer, PhobertTokenizer

from lightning_nli.cli.main import main
from lightning_nli.data.readers import read_source
from lightning_nli.data.segments import Template
from lightning_nli.data.tokenization import EncoderSpec, require_offsets, tokenize_split
from lightning_nli.models import words
from lightning_nli.models.words import count_joined_rows, expects_words, resolve_segmenter, warn_mixed_words
from lightning_nli.training.trained import open_run
from lightning_nli.types import BINARY, UserError

PAIR = ("premise", "hypothesis")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return stand_in("phobert-base", tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def tokenizer(folder):
    return AutoTokenizer.from_pretrained(folder)


@pytest.fixture
def heard(caplog):
    logging.getLogger("lightning_nli").propagate = True
    caplog.set_level(logging.INFO, logger="lightning_nli")
    return caplog


@pytest.fixture(scope="module")
def published(shared, tmp_path_factory):
    """The real tokenizer, found as in the published folder, and real statutes."""
    folder = tmp_path_factory.mktemp("published")
    for name in ("vocab.txt", "bpe.codes"):
        (folder / name).symlink_to(shared / "tokenizers" / "phobert" / name)
    (folder / "config.json").write_text(json.dumps({"model_type": "roberta", "tokenizer_class": "PhobertTokenizer"}))
    frame = read_source(f"vilegalnli:{shared / 'data' / 'vilegalnli'}#dev", on_bad_row="drop").frame.head(60)
    return AutoTokenizer.from_pretrained(folder), frame


@pytest.mark.parametrize("max_length", [10, 40, 64, 128, 256])
def test_the_published_tokenizers_pairs_are_ours(published, max_length):
    """Even budgets: where both texts are cut, an odd token is the second's with us, the first's in slow tokenizers."""
    tokenizer, frame = published
    spec = EncoderSpec(tokenizer, PAIR, max_length, segmenter="pyvi")
    split = tokenize_split(frame, spec, BINARY)
    from pyvi import ViTokenizer

    texts = [[ViTokenizer.tokenize(text) for text in frame[name]] for name in PAIR]
    expected = tokenizer(*texts, truncation="longest_first", max_length=max_length)["input_ids"]
    assert rows_of(split) == expected
    assert any("_" in token for token in tokenizer.convert_ids_to_tokens(expected[0]))
    assert tokenizer.unk_token_id not in {token for row in expected[:5] for token in row}


def test_one_text_and_three_texts_stand_in_phoberts_layout(tokenizer):
    frame = make_frame([(TEXTS[0], TEXTS[2], TEXTS[3])])
    (row,) = rows_of(tokenize_split(frame, EncoderSpec(tokenizer, ("hypothesis",), 64), BINARY))
    assert row == tokenizer(TEXTS[2])["input_ids"]
    segments = ("hypothesis", "condition", "premise")
    (row,) = rows_of(tokenize_split(frame, EncoderSpec(tokenizer, segments, 64), BINARY))
    parts = [tokenizer(frame[name][0], add_special_tokens=False)["input_ids"] for name in segments]
    assert row == [0, *parts[0], 2, 2, *parts[1], 2, 2, *parts[2], 2]


class TypedTokenizer(PhobertTokenizer):
    """A slow tokenizer that tells the second text by token type 1, as BERT's does."""

    model_input_names = ("input_ids", "token_type_ids", "attention_mask")

    def create_token_type_ids_from_sequences(self, token_ids_0, token_ids_1=None):
        return [0] * (len(token_ids_0) + 2) + ([] if token_ids_1 is None else [1] * (len(token_ids_1) + 2))


def test_a_slow_tokenizer_with_token_types_is_laid_out_by_them(folder):
    tokenizer = TypedTokenizer(str(folder / "vocab.txt"), str(folder / "bpe.codes"))
    frame = make_frame([(TEXTS[0], TEXTS[2], None)])
    split = tokenize_split(frame, EncoderSpec(tokenizer, PAIR, 64, num_token_types=2), BINARY)
    expected = tokenizer(TEXTS[0], TEXTS[2])
    assert split.token_ids.tolist() == expected["input_ids"]
    assert split.token_types.tolist() == expected["token_type_ids"]
    assert set(split.token_types.tolist()) == {0, 1}


def test_other_merges_are_another_cache_entry(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "m")
    codes = tmp_path / "m" / "bpe.codes"
    codes.write_text(codes.read_text().replace("l a 1\n", ""))
    specs = [EncoderSpec(AutoTokenizer.from_pretrained(path), PAIR, 64) for path in (folder, tmp_path / "m", folder)]
    assert specs[0].tokenizer.get_vocab() == specs[1].tokenizer.get_vocab()
    prints = [spec.fingerprint() for spec in specs]
    assert prints[0] == prints[2] != prints[1]


def test_t12_offsets_are_refused_in_one_line(tokenizer):
    with pytest.raises(UserError, match=r"PhobertTokenizer is a slow tokenizer .* needs a fast one"):
        require_offsets(tokenizer)
    require_offsets(bert_tokenizer())


def test_auto_segments_for_phobert_and_for_no_other(tokenizer, heard, monkeypatch):
    assert expects_words("phobert-base", bert_tokenizer())
    assert expects_words("some/folder", tokenizer)
    assert resolve_segmenter("auto", "some/folder", tokenizer) == "pyvi"
    assert "'some/folder' reads word-segmented text: segmenting with pyvi" in heard.text
    assert resolve_segmenter("auto", "xlmr-base", bert_tokenizer()) == "none"
    assert resolve_segmenter("pyvi", "xlmr-base", bert_tokenizer()) == "pyvi"
    assert resolve_segmenter("underthesea", "phobert-base", tokenizer) == "underthesea"
    assert "none" not in heard.text
    assert resolve_segmenter("none", "phobert-base", tokenizer) == "none"
    assert "'phobert-base' was trained on word-segmented text; --segmenter none" in heard.text
    installed = {"pyvi", "underthesea"}
    monkeypatch.setattr(words.importlib.util, "find_spec", lambda name: name if name in installed else None)
    installed.remove("pyvi")
    assert resolve_segmenter("auto", "phobert-base", tokenizer) == "underthesea"
    installed.remove("underthesea")
    with pytest.raises(UserError, match=r"no segmenter is installed: pip install 'lightning-nli\[vietnamese\]'"):
        resolve_segmenter("auto", "phobert-base", tokenizer)


def test_t02_mixed_rows_are_counted(tokenizer, heard, shared):
    frame = pl.read_ndjson(shared / "cases" / "inputs" / "tok" / "segmentation.jsonl")
    assert count_joined_rows([frame, frame.head(1)], PAIR) == (1, 3)
    warn_mixed_words("phobert-base", tokenizer, "none", [frame], PAIR)
    assert "1 of 2 rows have no '_' joins, which 'phobert-base' expects" in heard.text
    heard.clear()
    warn_mixed_words("phobert-base", tokenizer, "pyvi", [frame], PAIR)
    assert "1 of 2 rows have no '_' joins and are segmented with pyvi; the other 1 are left" in heard.text
    heard.clear()
    warn_mixed_words("xlmr-base", bert_tokenizer(), "none", [frame], PAIR)
    warn_mixed_words("phobert-base", tokenizer, "pyvi", [frame.head(1)], PAIR)
    warn_mixed_words("phobert-base", tokenizer, "none", [frame.tail(1)], PAIR)
    assert not heard.text


FIT = "--data sample:60 --precision fp32 --accelerator cpu --epochs 1 --test-split none --val-split none".split()


@pytest.fixture(scope="module")
def run(folder, tmp_path_factory):
    pytest.importorskip("pyvi")
    target = tmp_path_factory.mktemp("runs") / "run"
    assert main(["fit", *FIT, "--model", str(folder), "--run-dir", str(target), "--quiet"]) == 0
    return target


def test_a_run_remembers_its_segmenter_and_predicts_with_it(run, heard):
    meta = json.loads((run / "encoder" / "meta.json").read_text())
    assert (meta["segmenter"], meta["segmenter_version"]) == ("pyvi", importlib.metadata.version("pyvi"))
    assert meta["road"] == "packed"
    assert json.loads((run / "result.json").read_text())["encoder"]["segmenter"] == "pyvi"
    scorer = open_run(run).scorer
    assert scorer.spec.segmenter == "pyvi"
    assert not heard.text
    plain = make_frame([("Người lao động được nghỉ.", "Người lao động nghỉ.", None)])
    joined = make_frame([("Người lao_động được nghỉ .", "Người lao_động nghỉ .", None)])
    assert rows_of(tokenize_split(plain, scorer.spec, BINARY)) == rows_of(tokenize_split(joined, scorer.spec, BINARY))
    meta["segmenter_version"] = "0.0.1"
    (run / "encoder" / "meta.json").write_text(json.dumps(meta))
    open_run(run)
    assert "trained on text segmented by pyvi 0.0.1, here is version" in heard.text


def test_t01_long_texts_are_cut_to_256_and_258_is_refused_by_number(run, folder, tmp_path, capsys, shared):
    source = shared / "cases" / "inputs" / "tok" / "long_300_words.jsonl"
    assert main(["predict", str(run), str(source), str(tmp_path / "out.jsonl"), "--quiet"]) == 0
    assert len((tmp_path / "out.jsonl").read_text().splitlines()) == len(source.read_text().splitlines())
    spec = open_run(run).scorer.spec
    split = tokenize_split(pl.read_ndjson(source).with_columns(label=pl.lit(None, pl.String)), spec, BINARY)
    assert split.num_truncated == 1
    assert split.lengths.max() == 256
    capsys.readouterr()
    fit = ["fit", *FIT, "--model", str(folder), "--run-dir", str(tmp_path / "r"), "--quiet", "--max-length", "258"]
    assert main(fit) == 2
    assert "at most 256 tokens; take --max-length 256" in capsys.readouterr().err


def test_the_template_of_a_slow_tokenizer_is_the_one_it_writes(tokenizer):
    template = Template.of_tokenizer(tokenizer, 2)
    assert template.specials == ((0,), (2, 2), (2,))
    assert template.text_types == (0, 0)
