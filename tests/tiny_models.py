"""Small encoders and tokenizers made on the spot: no network, no files of others."""

from __future__ import annotations

import re
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import (
    AlbertTokenizer,
    AutoConfig,
    AutoModel,
    AutoModelForSequenceClassification,
    BertConfig,
    BertForSequenceClassification,
    BertModel,
    BertTokenizer,
    DebertaV2Tokenizer,
    MPNetTokenizer,
    PhobertTokenizer,
    PreTrainedTokenizerFast,
    RobertaConfig,
    RobertaForSequenceClassification,
    RobertaModel,
    RobertaTokenizer,
    XLMRobertaTokenizer,
)

from lightning_nli.models.registry import model_card

TEXTS = [
    "Người lao động được nghỉ hằng năm mười hai ngày.",
    "Doanh nghiệp phải nộp thuế trong thời hạn ba mươi ngày kể từ ngày phát sinh.",
    "Không được trả lương chậm quá mười lăm ngày.",
    "Cơ quan thuế có quyền kiểm tra sổ sách.",
]
SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def bert_tokenizer() -> PreTrainedTokenizerFast:
    """Words of `TEXTS` in BERT's layout: [CLS] A [SEP] B [SEP], token types 0 and 1."""
    tokenizer = Tokenizer(models.WordLevel(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer.train_from_iterator(TEXTS, trainers.WordLevelTrainer(special_tokens=special))
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    names = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), special, strict=True))
    inputs = ["input_ids", "token_type_ids", "attention_mask"]
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_input_names=inputs, **names)


def roberta_tokenizer() -> PreTrainedTokenizerFast:
    """Words of `TEXTS` in XLM-R's layout: <s> A </s> </s> B </s>, one token type."""
    tokenizer = Tokenizer(models.WordLevel(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    tokenizer.train_from_iterator(TEXTS, trainers.WordLevelTrainer(special_tokens=special))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<s>",
        cls_token="<s>",
        pad_token="<pad>",
        eos_token="</s>",
        sep_token="</s>",
        unk_token="<unk>",
        mask_token="<mask>",
    )


def bert_config(tokenizer: Any, **changes: Any) -> BertConfig:
    return BertConfig(
        vocab_size=len(tokenizer), max_position_embeddings=64, pad_token_id=tokenizer.pad_token_id, **(SIZES | changes)
    )


def save_bert(folder: Path, *, labels: list[str] | None = None, base_only: bool = False, seed: int = 0) -> Path:
    """A tiny BERT with its tokenizer; `labels` are the names of its head."""
    tokenizer = bert_tokenizer()
    torch.manual_seed(seed)
    if base_only:
        BertModel(bert_config(tokenizer)).save_pretrained(folder)
    else:
        names = labels or ["LABEL_0", "LABEL_1"]
        config = bert_config(tokenizer, id2label=dict(enumerate(names)), label2id={n: i for i, n in enumerate(names)})
        BertForSequenceClassification(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def save_roberta_encoder(folder: Path, tokenizer: Any, num_rows: int | None = None) -> Path:
    """An encoder without a head, of `num_rows` tokens (all of the tokenizer), with weights that tell texts apart."""
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    config = roberta_config(num_rows or len(tokenizer), initializer_range=0.3, **sizes)
    torch.manual_seed(0)
    RobertaModel(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def roberta_config(num_rows: int, **changes: Any) -> RobertaConfig:
    return RobertaConfig(
        vocab_size=num_rows,
        max_position_embeddings=66,
        type_vocab_size=1,
        pad_token_id=1,
        bos_token_id=0,
        eos_token_id=2,
        **(SIZES | changes),
    )


def roberta_model(tokenizer: Any, **changes: Any) -> RobertaForSequenceClassification:
    config = roberta_config(len(tokenizer), **changes)
    torch.manual_seed(0)
    return RobertaForSequenceClassification(config).eval()


@cache
def _words() -> tuple[str, ...]:
    """Words of the embedded corpus and of `TEXTS`, most frequent first."""
    from lightning_nli.data.sample import sample_corpus

    rows = sample_corpus(120)
    lines = [*TEXTS, *rows["premise"].to_list(), *rows["hypothesis"].to_list()]
    counts = Counter(word for line in lines for word in re.findall(r"\w+", line))
    return tuple(sorted(counts, key=lambda word: (-counts[word], word)))


@cache
def _letters() -> tuple[str, ...]:
    """Every printable ASCII sign and every letter of `_words`, either case."""
    letters = {letter for word in _words() for letter in word + word.lower() + word.upper()}
    return tuple(sorted(letters | set(map(chr, range(33, 127)))))


def _word_pieces(special: list[str], *, lower: bool) -> dict[str, int]:
    pieces = [*special, *_letters(), *(f"##{letter}" for letter in _letters()), *_words()]
    if lower:
        pieces += [word.lower() for word in _words()]
    return {piece: index for index, piece in enumerate(dict.fromkeys(pieces))}


def _unigram_pieces(special: list[str]) -> list[tuple[str, float]]:
    known = [(piece, 0.0) for piece in special]
    letters = [("\u2581", -4.0), *((letter, -9.0) for letter in _letters())]
    return known + letters + [(f"\u2581{word}", -5.0 - 0.001 * place) for place, word in enumerate(_words())]


def _byte_pairs(special: list[str]) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """A vocabulary of all bytes, and merges that build every word, with and without a space before it."""
    split = pre_tokenizers.ByteLevel(add_prefix_space=False)
    merges: list[tuple[str, str]] = []
    for form in [form for word in _words() for form in (word, f" {word}")]:
        letters = "".join(piece for piece, _ in split.pre_tokenize_str(form))
        merges += [(letters[:end], letters[end]) for end in range(1, len(letters))]
    merges = list(dict.fromkeys(merges))
    pieces = [*special, *sorted(pre_tokenizers.ByteLevel.alphabet()), *("".join(merge) for merge in merges)]
    return {piece: index for index, piece in enumerate(dict.fromkeys(pieces))}, merges


def write_phobert_files(folder: Path) -> None:
    """`vocab.txt` and `bpe.codes` of an invented PhoBERT vocabulary: letters, words, words joined by `_`."""
    merges = [
        merge
        for word in (*_words(), "lao_\u0111\u1ed9ng")
        for merge in [
            *((word[:end], word[end]) for end in range(1, len(word) - 1)),
            *([(word[:-1], f"{word[-1]}</w>")] if len(word) > 1 else []),
        ]
    ]
    merges = list(dict.fromkeys(merges))
    pieces = ["".join(merge) for merge in merges]
    whole = [piece.removesuffix("</w>") for piece in pieces if piece.endswith("</w>")]
    inner = [f"{piece}@@" for piece in pieces if not piece.endswith("</w>")]
    vocabulary = dict.fromkeys([*_letters(), *(f"{letter}@@" for letter in _letters()), *whole, *inner])
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "vocab.txt").write_text("".join(f"{piece} 1\n" for piece in vocabulary), encoding="utf-8")
    (folder / "bpe.codes").write_text("".join(f"{a} {b} 1\n" for a, b in merges), encoding="utf-8")


_BERT_SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
_ROBERTA_SPECIAL = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]


def stand_in_tokenizer(kind: str, folder: Path, *, lower: bool = False) -> Any:
    """The tokenizer class of an architecture (or of `phobert`) over an invented vocabulary."""
    if kind == "phobert":
        write_phobert_files(folder)
        return PhobertTokenizer(str(folder / "vocab.txt"), str(folder / "bpe.codes"))
    if kind in ("bert", "distilbert", "electra"):
        return BertTokenizer(vocab=_word_pieces(_BERT_SPECIAL, lower=lower), do_lower_case=lower, strip_accents=False)
    if kind == "mpnet":
        special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", "[UNK]"]
        return MPNetTokenizer(vocab=_word_pieces(special, lower=True), strip_accents=False)
    if kind in ("roberta", "longformer"):
        vocabulary, merges = _byte_pairs(_ROBERTA_SPECIAL)
        return RobertaTokenizer(vocab=vocabulary, merges=merges)
    if kind in ("xlm-roberta", "camembert"):
        return XLMRobertaTokenizer(vocab=_unigram_pieces(_ROBERTA_SPECIAL))
    if kind == "albert":
        special = ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"]
        return AlbertTokenizer(vocab=_unigram_pieces(special), do_lower_case=False, keep_accents=True)
    if kind == "deberta-v2":
        return DebertaV2Tokenizer(vocab=_unigram_pieces(["[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]"]))
    assert kind == "modernbert", kind
    vocabulary, merges = _byte_pairs(_BERT_SPECIAL)
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    names = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), _BERT_SPECIAL, strict=True))
    return PreTrainedTokenizerFast(tokenizer_object=backend, model_input_names=["input_ids", "attention_mask"], **names)


# What the published configs of an architecture say beside the common sizes.
_OWN_SETTINGS: dict[str, dict[str, Any]] = {
    "bert": {"type_vocab_size": 2},
    "electra": {"type_vocab_size": 2, "embedding_size": 16},
    "albert": {"type_vocab_size": 2, "embedding_size": 16, "num_hidden_groups": 1},
    "distilbert": {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64, "sinusoidal_pos_embds": False},
    "longformer": {"type_vocab_size": 1, "attention_window": [32, 32]},
    "deberta-v2": {
        "type_vocab_size": 0,
        "relative_attention": True,
        "position_buckets": 16,
        "norm_rel_ebd": "layer_norm",
        "share_att_key": True,
        "pos_att_type": ["p2c", "c2p"],
        "max_relative_positions": -1,
        "position_biased_input": False,
        "pooler_hidden_size": 32,
    },
    "modernbert": {"local_attention": 32, "global_attn_every_n_layers": 2, "classifier_pooling": "cls"},
    **{name: {"type_vocab_size": 1} for name in ("roberta", "xlm-roberta", "camembert")},
}


def stand_in(name: str, folder: Path, *, labels: list[str] | None = None, seed: int = 0, **changes: Any) -> Path:
    """A tiny random model folder with the architecture, tokenizer class and longest input of a published model.

    Args:
        name: Alias or hub id of the registry, or a `model_type`, or `phobert`.
        folder: Where to write.
        labels: Names of a trained head; None writes no head (`roberta-large-mnli` has its own).
        seed: Of the weights.
        changes: Other entries of the model's config.
    """
    card = model_card(name)
    kind = "phobert" if card is not None and card.word_segmented else card.architecture.model_type if card else name
    model_type = "roberta" if kind == "phobert" else kind
    lower = card is not None and ("uncased" in card.hub_id or "MiniLM" in card.hub_id)
    tokenizer = stand_in_tokenizer(kind, folder, lower=lower)
    limit = {"phobert": 256, "longformer": 4096}.get(kind, 512)
    has_offset = model_type in ("roberta", "xlm-roberta", "camembert", "longformer", "mpnet")
    settings = {
        "vocab_size": len(tokenizer),
        "max_position_embeddings": limit + 2 * has_offset,
        "pad_token_id": tokenizer.pad_token_id,
        **dict.fromkeys(("bos_token_id", "cls_token_id"), tokenizer.cls_token_id),
        **dict.fromkeys(("eos_token_id", "sep_token_id"), tokenizer.sep_token_id),
    }
    labels = labels or (["CONTRADICTION", "NEUTRAL", "ENTAILMENT"] if name.endswith("roberta-large-mnli") else None)
    if labels:
        settings |= {"id2label": dict(enumerate(labels)), "label2id": {text: i for i, text in enumerate(labels)}}
    config = AutoConfig.for_model(model_type, **(SIZES | settings | _OWN_SETTINGS.get(model_type, {}) | changes))
    torch.manual_seed(seed)
    maker = AutoModelForSequenceClassification if labels else AutoModel
    maker.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
