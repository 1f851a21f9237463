"""Small encoders and tokenizers made on the spot: no network, no files of others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BertModel,
    PreTrainedTokenizerFast,
    RobertaConfig,
    RobertaForSequenceClassification,
)

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


def roberta_model(tokenizer: Any, **changes: Any) -> RobertaForSequenceClassification:
    config = RobertaConfig(
        vocab_size=len(tokenizer),
        max_position_embeddings=66,
        type_vocab_size=1,
        pad_token_id=1,
        bos_token_id=0,
        eos_token_id=2,
        **(SIZES | changes),
    )
    torch.manual_seed(0)
    return RobertaForSequenceClassification(config).eval()
