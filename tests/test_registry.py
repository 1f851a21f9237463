"""The registry: every published encoder, names that resolve or are passed on, and a stand-in of each architecture."""

from __future__ import annotations

import csv
import tomllib
from pathlib import Path

import pytest
from tiny_models import TEXTS, stand_in
from transformers import AutoConfig, AutoTokenizer

from lightning_nli.config import EngineConfig
from lightning_nli.models import registry
from lightning_nli.models.encoder import check_length, load_encoder, longest_segment
from lightning_nli.models.heads import hub_errors
from lightning_nli.models.offline import resolve_model
from lightning_nli.models.registry import Road, architecture_of, model_card, model_cards, near_alias
from lightning_nli.training.strategy import resolve_precision
from lightning_nli.types import BINARY, UserError

CARDS = {card.alias: card for card in model_cards()}

# Systems of the papers' tables -> alias. Language models and ablations are no encoders of the registry.
VILEGALNLI_14 = {
    "XLM-R (base)": "xlmr-base",
    "XLM-R (large)": "xlmr-large",
    "mBERT": "mbert",
    "InfoXLM (base)": "infoxlm-base",
    "InfoXLM (large)": "infoxlm-large",
    "PhoBERT (base)": "phobert-base",
    "PhoBERT (large)": "phobert-large",
    "viBERT": "vibert",
    "CafeBERT": "cafebert",
    "DeBERTa V3 (base)": "deberta-v3-base",
    "DeBERTa V3 (large)": "deberta-v3-large",
}
VIANLI_10 = {
    "CBoW": "cbow",
    "mBERT": "mbert",
    "XLM-RBase": "xlmr-base",
    "XLM-RLarge": "xlmr-large",
    "InfoXMLBase": "infoxlm-base",
    "infoXMLLarge": "infoxlm-large",
    "PhoBERTBase": "phobert-base",
    "PhoBERTLarge": "phobert-large",
}
WILLS_2 = {
    "bert-base-uncased": "bert-base",
    "distilbert-base-uncased": "distilbert-base",
    "longformer-base-4096": "longformer-base",
    "roberta-large-mnli": "roberta-large-mnli",
    "all-MiniLM-L12-v2": "all-minilm-l12",
    "all-distilroberta-v1": "all-distilroberta",
    "multi-qa-mpnet-base-dot-v1": "multi-qa-mpnet-base",
    "all-mpnet-base-v2": "all-mpnet-base",
}


@pytest.mark.parametrize(
    ("file", "table", "expected"),
    [
        ("vilegalnli_table14_models.csv", "ViLegalNLI 14", VILEGALNLI_14),
        ("vianli_table10_word_syllable.csv", "ViANLI 10", VIANLI_10),
        ("wills_table2_models.csv", "Wills 2", WILLS_2),
    ],
)
def test_every_encoder_of_the_papers_has_a_card(shared, file, table, expected):
    with (shared / "papers" / file).open(encoding="utf-8") as lines:
        rows = [row for row in csv.DictReader(lines) if "Large Language" not in row.get("group", "")]
    assert {row["model"] for row in rows} == set(expected)
    assert {alias for alias, card in CARDS.items() if table in card.tables} == set(expected.values())


def test_a_card_is_found_by_alias_and_by_hub_id():
    card = model_card("phobert-base")
    assert card == model_card("vinai/phobert-base")
    assert (card.max_tokens, card.word_segmented, card.road) == (256, True, Road.PACKED)
    assert model_card("some/model") is None
    assert len({card.hub_id for card in CARDS.values()}) == len(CARDS)
    assert [alias for alias, card in CARDS.items() if card.word_segmented] == ["phobert-base", "phobert-large"]


def test_roads_and_precisions_are_those_of_the_architecture():
    roads = {alias: card.road for alias, card in CARDS.items() if card.road is not Road.PACKED}
    padded = ("deberta-v3-base", "deberta-v3-large", "cbow", "multi-qa-mpnet-base", "all-mpnet-base")
    assert roads == dict.fromkeys(padded, Road.PADDED) | {"longformer-base": Road.LONGFORMER}
    for card in CARDS.values():
        assert (card.road is Road.PACKED) == (card.architecture.why == "")
    refusing = {alias for alias, card in CARDS.items() if "fp16" in card.refused_precisions}
    assert refusing == {"deberta-v3-base", "deberta-v3-large"}
    assert architecture_of("brand-new").road is Road.PACKED  # until the probe says no


def test_the_refused_precisions_are_refused():
    for card in CARDS.values():
        for precision in ("fp16", "bf16"):
            engine = EngineConfig(precision=precision)
            if precision in card.refused_precisions:
                with pytest.raises(UserError, match=precision):
                    resolve_precision(engine, "gpu", family=card.architecture.model_type)
            else:
                assert resolve_precision(engine, "gpu", family=card.architecture.model_type) == precision


def test_an_alias_becomes_the_hub_id_and_other_names_are_passed_on():
    assert resolve_model("cafebert", list) == "uitnlp/CafeBERT"
    assert resolve_model("uitnlp/CafeBERT", list) == "uitnlp/CafeBERT"
    assert resolve_model("./cafebert", list) == "./cafebert"
    assert resolve_model("someone/other", list) == "someone/other"


@pytest.mark.parametrize(
    ("name", "alias"),
    [
        ("phobert-bse", "phobert-base"),
        ("CafeBert", "cafebert"),
        ("xlm-roberta-base", "xlmr-base"),
        ("microsoft/deberta-v3-lage", "deberta-v3-large"),
        ("phobert-base", None),
        ("vinai/phobert-base", None),
        ("runs/17/encoder", None),
    ],
)
def test_a_near_miss_is_told(name, alias):
    assert near_alias(name) == alias


def test_a_name_that_cannot_be_loaded_brings_the_hint(tmp_path):
    with pytest.raises(UserError, match=r"phobert-bse' cannot be loaded.*did you mean --model phobert-base\?"):
        load_encoder(tmp_path / "phobert-bse", BINARY)


@pytest.mark.parametrize(
    "error",
    ["`tiktoken` is required to read a `tiktoken` file.", "You need to have sentencepiece or tiktoken installed"],
)
def test_a_tokenizer_that_needs_sentencepiece_is_told_so(error):
    """DeBERTa-v3 is published with `spm.model` alone; the library's own message asks for another package."""
    with pytest.raises(UserError, match=r"'x' is a sentencepiece model .*: pip install sentencepiece"), hub_errors("x"):
        raise ValueError(error)


def test_the_registry_is_package_data():
    root = Path(registry.__file__).parents[2]
    patterns = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]
    package = root / "lightning_nli"
    assert package / "models" / "registry.yaml" in {
        path for pattern in patterns["lightning_nli"] for path in package.glob(pattern)
    }


def test_the_longest_input_is_that_of_the_card_or_of_the_position_table(tmp_path):
    config = AutoConfig.from_pretrained(stand_in("phobert-base", tmp_path / "p"))
    assert longest_segment(config) == 256
    for name in ("phobert-base", str(tmp_path / "p")):  # by card, and by the folder's own position table
        check_length(name, config, 256)
        with pytest.raises(UserError, match=r"--max-length 258: .* at most 256 tokens; take --max-length 256"):
            check_length(name, config, 258)
    mpnet = AutoConfig.from_pretrained(stand_in("all-mpnet-base", tmp_path / "m"))
    assert longest_segment(mpnet) == 512
    with pytest.raises(UserError, match="at most 384 tokens"):
        check_length("all-mpnet-base", mpnet, 400)


ARCHITECTURES = {card.architecture.model_type: card.alias for card in CARDS.values() if card.alias != "cbow"}


@pytest.mark.parametrize("name", [*ARCHITECTURES.values(), "phobert-base", "albert", "modernbert"])
def test_a_stand_in_has_the_architecture_the_tokenizer_and_the_limit(tmp_path, name):
    folder = stand_in(name, tmp_path)
    config, tokenizer = AutoConfig.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    card = model_card(name)
    if card is not None:
        assert config.model_type == card.architecture.model_type
        assert longest_segment(config) >= card.max_tokens
        assert (type(tokenizer).__name__ == "PhobertTokenizer") == card.word_segmented
    ids = tokenizer(TEXTS[0], TEXTS[1])["input_ids"]
    assert max(ids) < config.vocab_size
    assert tokenizer.unk_token_id not in ids
    assert tokenizer.decode(ids, skip_special_tokens=True).lower().startswith("người lao động")
