"""Heads of other families: two-layer heads are matched in their last layer."""

from __future__ import annotations

import pytest
import torch
from test_tokenization import FRAME, PAIR
from tiny_models import roberta_model, roberta_tokenizer, save_bert
from transformers import RobertaConfig

from lightning_nli.data.packing import MicroStep, collate_pack
from lightning_nli.data.tokenization import EncoderSpec, tokenize_split
from lightning_nli.models.encoder import load_encoder, longest_segment
from lightning_nli.types import BINARY, THREE_WAY, UserError

NAMES = ["CONTRADICTION", "neutral", "Entailment"]


def our_logits(loaded) -> torch.Tensor:
    spec = EncoderSpec(loaded.tokenizer, PAIR, 60, num_token_types=loaded.num_token_types)
    batch = collate_pack(
        tokenize_split(FRAME, spec, BINARY), MicroStep((0, 1, 2, 3), 4), first_position=loaded.first_position
    )
    loaded.encoder.eval()
    with torch.inference_mode():
        return loaded.encoder(batch)


@pytest.fixture(scope="module")
def roberta(tmp_path_factory):
    folder, tokenizer = tmp_path_factory.mktemp("roberta"), roberta_tokenizer()
    names = {"id2label": dict(enumerate(NAMES)), "label2id": {name: i for i, name in enumerate(NAMES)}}
    model = roberta_model(tokenizer, initializer_range=0.3, **names)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder, model, tokenizer


@pytest.mark.parametrize("attention", ["auto", "padded"])
def test_a_two_layer_head_is_matched_by_name(roberta, attention):
    folder, model, tokenizer = roberta
    loaded = load_encoder(folder, THREE_WAY, attention=attention)
    texts = [FRAME[column].to_list() for column in PAIR]
    inputs = tokenizer(*texts, truncation=True, max_length=60, padding=True, return_tensors="pt")
    with torch.inference_mode():
        expected = model(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"]).logits
    assert (expected[:, 0] - expected[:, 2]).abs().max() > 0.05  # another order would show
    torch.testing.assert_close(our_logits(loaded), expected[:, [2, 1, 0]], rtol=1e-4, atol=1e-5)


def test_k02_a_new_head_keeps_the_encoder_and_answers_finite_numbers(roberta):
    folder, model, _ = roberta
    loaded = load_encoder(folder, BINARY, head="new", seed=3)
    old, new = model.roberta.state_dict(), loaded.model.roberta.state_dict()
    assert all(torch.equal(old[name], new[name]) for name in old)
    logits = our_logits(loaded)
    assert logits.shape == (4, 2)
    assert torch.isfinite(logits).all()
    assert loaded.model.config.num_labels == 2


def test_k02_two_published_labels_do_not_serve_three(tmp_path):
    folder = save_bert(tmp_path / "m", labels=["entailment", "not_entailment"])
    with pytest.raises(UserError, match=r"has 2 labels .* the data has 3 .*--head new") as caught:
        load_encoder(folder, THREE_WAY)
    assert "merge" not in str(caught.value)  # that advice is for the other direction


def test_a_mapping_that_is_no_mapping_or_repeats_itself_is_refused(tmp_path):
    folder = save_bert(tmp_path / "m", labels=["LABEL_0", "LABEL_1"])
    with pytest.raises(UserError, match="--head takes auto, new, or LABEL_0=entailment"):
        load_encoder(folder, BINARY, head="entailment")
    with pytest.raises(UserError, match=r"answers \['entailment'\], the data asks"):
        load_encoder(folder, BINARY, head="LABEL_0=entailment,LABEL_1=entailment")
    with pytest.raises(UserError, match="names label 1 'LABEL_1', which says nothing"):
        load_encoder(folder, BINARY, head="LABEL_0=entailment")


def test_a_position_table_of_258_holds_256_tokens_in_the_roberta_family():
    assert longest_segment(RobertaConfig(max_position_embeddings=258, pad_token_id=1)) == 256
