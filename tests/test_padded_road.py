"""Encoders that cannot be packed: padded without being asked, said once, and equal to the library's own call."""

from __future__ import annotations

import json
import logging
from dataclasses import replace

import pytest
import torch
from test_tokenization import FRAME, PAIR
from tiny_models import SIZES, bert_tokenizer, stand_in
from transformers import AutoModelForSequenceClassification, AutoTokenizer, SqueezeBertConfig, SqueezeBertModel

from lightning_nli.cli.main import main
from lightning_nli.data.packing import MicroStep, collate_pack
from lightning_nli.data.tokenization import EncoderSpec, tokenize_split
from lightning_nli.models.encoder import load_encoder
from lightning_nli.models.padded import LongformerEncoder, PaddedEncoder
from lightning_nli.models.registry import Road, model_card
from lightning_nli.models.vocabulary import trim_to_texts
from lightning_nli.training.trained import open_run, read_meta
from lightning_nli.types import BINARY, UserError

LABELS = ["not_entailment", "entailment"]
WIDE = {"initializer_range": 0.3}
NAMES = ["deberta-v3-base", "all-mpnet-base", "longformer-base"]
SPREAD = {"longformer-base": {"attention_window": [8, 8]}}  # segments are longer than that


@pytest.fixture(scope="module", params=NAMES)
def folder(request, tmp_path_factory):
    target = tmp_path_factory.mktemp("padded") / request.param
    return stand_in(request.param, target, labels=LABELS, **WIDE, **SPREAD.get(request.param, {}))


def our_batch(loaded, max_length: int = 60):
    spec = EncoderSpec(loaded.tokenizer, PAIR, max_length, num_token_types=loaded.num_token_types)
    split = tokenize_split(FRAME, spec, BINARY)
    assert split.lengths.max() > 16
    return collate_pack(split, MicroStep((0, 1, 2, 3), 4), first_position=loaded.first_position)


def library_logits(folder, **changes) -> torch.Tensor:
    model, tokenizer = AutoModelForSequenceClassification.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    texts = [FRAME[name].to_list() for name in PAIR]
    inputs = tokenizer(*texts, padding=True, truncation="longest_first", max_length=60, return_tensors="pt")
    with torch.inference_mode():
        return model.eval()(**inputs, **changes).logits


def test_padded_equals_the_librarys_own_call(folder, caplog):
    logging.getLogger("lightning_nli").propagate = True
    with caplog.at_level(logging.INFO, logger="lightning_nli"):
        loaded = load_encoder(folder, BINARY)
    said = [record.getMessage() for record in caplog.records if "runs padded" in record.getMessage()]
    assert len(set(said)) == 1  # seen once by each handler
    assert said[0].startswith(f"{loaded.model.config.model_type} runs padded: ")
    loaded.encoder.eval()
    with torch.inference_mode():
        logits = loaded.encoder(our_batch(loaded))
    expected = library_logits(folder)
    assert expected.std() > 0.01
    torch.testing.assert_close(logits, expected, rtol=1e-5, atol=1e-5)
    assert loaded.road is (Road.LONGFORMER if "longformer" in folder.name else Road.PADDED)


def test_neighbours_are_bit_equal_and_gradients_are_the_librarys(folder):
    loaded = load_encoder(folder, BINARY)
    loaded.encoder.eval()
    batch = our_batch(loaded)
    before = loaded.encoder(batch)
    before.sum().backward()
    found = {name: value.grad.clone() for name, value in loaded.model.named_parameters() if value.grad is not None}
    ids = batch.input_ids.clone()
    start, stop = batch.cu_seqlens[1:3].tolist()
    ids[start + 1 : stop - 1] = ids[start + 1 : stop - 1].flip(0)
    after = loaded.encoder(replace(batch, input_ids=ids))
    assert torch.equal(after[[0, 2, 3]], before[[0, 2, 3]])
    assert not torch.equal(after[1], before[1])
    model, tokenizer = AutoModelForSequenceClassification.from_pretrained(folder), loaded.tokenizer
    texts = [FRAME[name].to_list() for name in PAIR]
    inputs = tokenizer(*texts, padding=True, truncation="longest_first", max_length=60, return_tensors="pt")
    model.eval()(**inputs).logits.sum().backward()
    expected = {name: value.grad for name, value in model.named_parameters() if value.grad is not None}
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-4, atol=1e-5, msg=name)


@pytest.mark.parametrize("attention", ["bucketed", "sdpa"])
def test_a_packed_backend_is_refused_by_the_architectures_name(folder, attention):
    with pytest.raises(
        UserError, match=rf"--attention {attention}: [\w-]+ cannot be packed, .*; take --attention auto"
    ):
        load_encoder(folder, BINARY, attention=attention)
    assert isinstance(load_encoder(folder, BINARY, attention="padded").encoder, PaddedEncoder)


def test_auto_means_padded_whatever_packed_models_get(folder):
    assert isinstance(load_encoder(folder, BINARY, packed_attention="bucketed").encoder, PaddedEncoder)


def test_a_trimmed_vocabulary_changes_no_logit(folder):
    loaded = load_encoder(folder, BINARY)
    loaded.encoder.eval()
    batch = our_batch(loaded)
    with torch.inference_mode():
        whole = loaded.encoder(batch)
    kept, remap = trim_to_texts(loaded.model, loaded.tokenizer, [batch.input_ids.numpy()])
    assert len(kept) < len(remap) / 2
    with torch.inference_mode():
        trimmed = loaded.encoder(replace(batch, input_ids=torch.from_numpy(remap)[batch.input_ids]))
    assert torch.equal(trimmed, whole)


def test_longformer_has_global_attention_on_the_first_and_on_chosen_tokens(tmp_path):
    folder = stand_in("longformer-base", tmp_path, labels=LABELS, attention_window=[4, 4], **WIDE)
    loaded = load_encoder(folder, BINARY)
    loaded.encoder.eval()
    batch = our_batch(loaded)
    marker = int(batch.input_ids[5])
    chosen = LongformerEncoder(loaded.model, global_token_ids=[marker]).eval()
    inputs = chosen.padded_inputs(batch)
    mask = inputs["global_attention_mask"]
    assert mask[:, 0].all()
    assert torch.equal(mask[:, 1:].bool(), inputs["input_ids"][:, 1:] == marker)
    assert mask[:, 1:].any()
    with torch.inference_mode():
        plain, marked = loaded.encoder(batch), chosen(batch)
    assert (plain - marked).abs().max() > 1e-4
    torch.testing.assert_close(marked, library_logits(folder, global_attention_mask=mask), rtol=1e-5, atol=1e-5)


FIT = "--data sample:60 --lr 1e-3 --precision fp32 --accelerator cpu --epochs 1 --val-split none --quiet".split()


@pytest.mark.parametrize("name", ["deberta-v3-base", "longformer-base"])
def test_a_run_records_its_road_and_is_opened_on_it(tmp_path, name, capsys):
    run = tmp_path / "run"
    model = stand_in(name, tmp_path / "model", **SPREAD.get(name, {}))
    assert main(["fit", *FIT, "--model", str(model), "--run-dir", str(run)]) == 0
    result = json.loads((run / "result.json").read_text())
    assert result["encoder"]["road"] == model_card(name).road
    assert result["encoder"]["architecture"] == model_card(name).architecture.model_type
    capsys.readouterr()
    assert main(["test", str(run), "--json", "--quiet"]) == 0
    assert json.loads(capsys.readouterr().out)["test"]["loss"] == result["scores"]["test"]["loss"]
    assert type(open_run(run).scorer.encoder) is (LongformerEncoder if "longformer" in name else PaddedEncoder)
    meta = json.loads((run / "encoder" / "meta.json").read_text())
    earlier = {name: meta[name] for name in ("scheme", "segments")}  # as runs of earlier versions have it
    (run / "encoder" / "meta.json").write_text(json.dumps(earlier))
    config = (run / "config.yaml").read_text()
    (run / "config.yaml").write_text(config.replace("segmenter: auto", "segmenter: none"))
    assert read_meta(run).road == meta["road"]
    assert open_run(run).scorer.spec.segmenter == "none"


def test_an_unknown_architecture_that_does_not_pack_is_padded_under_auto_only(tmp_path, caplog):
    tokenizer = bert_tokenizer()
    torch.manual_seed(0)
    config = SqueezeBertConfig(vocab_size=len(tokenizer), embedding_size=32, max_position_embeddings=64, **SIZES)
    SqueezeBertModel(config).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(UserError, match=r"SqueezeBertForSequenceClassification does not run packed"):
        load_encoder(tmp_path, BINARY, attention="bucketed")
    logging.getLogger("lightning_nli").propagate = True
    with caplog.at_level(logging.WARNING, logger="lightning_nli"):
        loaded = load_encoder(tmp_path, BINARY)
    assert "squeezebert runs padded: SqueezeBertForSequenceClassification does not run packed" in caplog.text
    loaded.encoder.eval()
    again = load_encoder(tmp_path, BINARY, attention="padded")
    again.encoder.eval()
    with torch.inference_mode():
        assert torch.equal(loaded.encoder(our_batch(loaded)), again.encoder(our_batch(again)))
