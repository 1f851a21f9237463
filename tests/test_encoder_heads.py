"""Published heads are matched by label name, never by position; what cannot be served is refused by name."""

from __future__ import annotations

import logging

import pytest
import torch
from test_tokenization import FRAME, PAIR
from tiny_models import bert_tokenizer, roberta_model, roberta_tokenizer, save_bert
from transformers import AutoModelForSequenceClassification

from lightning_nli.data.packing import MicroStep, collate_pack
from lightning_nli.data.tokenization import EncoderSpec, tokenize_split
from lightning_nli.models.encoder import load_encoder, longest_segment
from lightning_nli.types import BINARY, THREE_WAY, WILLS, UserError


def our_logits(loaded) -> torch.Tensor:
    split = tokenize_split(FRAME, EncoderSpec(loaded.tokenizer, PAIR, 64, num_token_types=2), BINARY)
    loaded.encoder.eval()
    with torch.inference_mode():
        return loaded.encoder(collate_pack(split, MicroStep((0, 1, 2, 3), 4), first_position=loaded.first_position))


def library_logits(folder) -> torch.Tensor:
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    inputs = bert_tokenizer()(
        FRAME["premise"].to_list(),
        FRAME["hypothesis"].to_list(),
        truncation=True,
        max_length=64,
        padding=True,
        return_tensors="pt",
    )
    with torch.inference_mode():
        return model(**inputs).logits


@pytest.mark.parametrize(
    ("names", "scheme", "order"),
    [
        (["CONTRADICTION", "neutral", "Entailment"], THREE_WAY, [2, 1, 0]),
        (["entailment", "neutral", "contradiction"], THREE_WAY, [0, 1, 2]),
        (["entailment", "neutral", "contradiction"], WILLS, [2, 0, 1]),
        (["entailment", "not_entailment"], BINARY, [1, 0]),
    ],
)
def test_a_published_head_is_matched_by_name(tmp_path, names, scheme, order):
    folder = save_bert(tmp_path / "m", labels=names)
    loaded = load_encoder(folder, scheme)
    assert not loaded.head_is_new
    torch.testing.assert_close(our_logits(loaded), library_logits(folder)[:, order], rtol=1e-4, atol=1e-5)
    assert list(loaded.model.config.id2label.values()) == scheme.names


def test_a_head_without_names_is_refused_unless_a_mapping_is_given(tmp_path):
    folder = save_bert(tmp_path / "m", labels=["LABEL_0", "LABEL_1", "LABEL_2"])
    with pytest.raises(UserError, match=r"'LABEL_0', which says nothing.*--head LABEL_0=\.\.\."):
        load_encoder(folder, THREE_WAY)
    loaded = load_encoder(folder, THREE_WAY, head="LABEL_0=contradiction,LABEL_1=entailment,LABEL_2=neutral")
    torch.testing.assert_close(our_logits(loaded), library_logits(folder)[:, [1, 2, 0]], rtol=1e-4, atol=1e-5)


def test_k02_another_number_of_labels_is_refused_and_a_new_head_must_be_asked_for(tmp_path, caplog):
    folder = save_bert(tmp_path / "m", labels=["entailment", "neutral", "contradiction"])
    with pytest.raises(
        UserError, match=r"has 3 labels .* the data has 2 .*merge neutral and contradiction.*--head new"
    ):
        load_encoder(folder, BINARY)
    with caplog.at_level(logging.WARNING, logger="lightning_nli"):
        logging.getLogger("lightning_nli").propagate = True
        loaded = load_encoder(folder, BINARY, head="new")
    assert loaded.head_is_new
    assert "put aside" in caplog.text
    assert our_logits(loaded).shape == (4, 2)


def test_a_base_model_gets_a_new_head_that_depends_on_the_seed_alone(tmp_path):
    folder = save_bert(tmp_path / "m", base_only=True)
    first, again, other = (load_encoder(folder, THREE_WAY, seed=seed) for seed in (1, 1, 2))
    assert first.head_is_new
    assert torch.equal(first.model.classifier.weight, again.model.classifier.weight)
    assert not torch.equal(first.model.classifier.weight, other.model.classifier.weight)
    assert first.model.classifier.weight.shape == (3, 32)
    with pytest.raises(UserError, match="no trained head to map"):
        load_encoder(folder, THREE_WAY, head="LABEL_0=entailment")


def test_a_missing_model_is_refused_in_one_line(tmp_path):
    with pytest.raises(UserError, match="cannot be loaded") as caught:
        load_encoder(tmp_path / "absent", BINARY)
    assert "\n" not in str(caught.value)


def test_roberta_positions_leave_two_places_less():
    assert longest_segment(roberta_model(roberta_tokenizer()).config) == 64  # a table of 66
