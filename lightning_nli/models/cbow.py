"""CBoW: the bag-of-words baseline of the MultiNLI paper (Williams et al. 2018), as a Hugging Face model.

The premise is the mean of its word vectors, so is the hypothesis; [p; h; p - h; p * h] goes through three tanh layers
and a classifier. The paper sums the vectors; over statutes of a hundred words a sum saturates tanh. Measured on
ViLegalNLI (trained on dev, accuracy on test, one seed): vectors of spread 0.4, as pretrained ones have: mean 88.1, sum
85.7; the narrower ones that are drawn here without a file: mean 88.2, sum 88.6.

Shape suffixes: S segments, L longest segment, D width of a word vector.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, AutoModelForSequenceClassification, PreTrainedConfig, PreTrainedModel
from transformers import initialization as init
from transformers.modeling_outputs import BaseModelOutput, SequenceClassifierOutput

MODEL_TYPE = "cbow"


class CBowConfig(PreTrainedConfig):  # type: ignore[misc]
    """Sizes of a CBoW model.

    Args:
        vocab_size: Words, with padding and the unknown word.
        embedding_size: Width of a word vector.
        hidden_size: Width of the tanh layers.
        num_hidden_layers: Tanh layers.
        dropout: Of word vectors' means and of every tanh layer's output.
        pad_token_id: Row of padding.
        kwargs: What every configuration of the library takes.
    """

    model_type = MODEL_TYPE

    def __init__(
        self,
        vocab_size: int = 2,
        embedding_size: int = 300,
        hidden_size: int = 300,
        num_hidden_layers: int = 3,
        dropout: float = 0.1,
        pad_token_id: int = 0,
        **kwargs: Any,
    ) -> None:
        self.vocab_size, self.embedding_size, self.hidden_size = vocab_size, embedding_size, hidden_size
        self.num_hidden_layers, self.dropout = num_hidden_layers, dropout
        self.type_vocab_size = 2  # 0: a word of the premise, 1: of the hypothesis
        super().__init__(pad_token_id=pad_token_id, **kwargs)


class _CBowPreTrainedModel(PreTrainedModel):  # type: ignore[misc]
    config_class = CBowConfig
    base_model_prefix = "cbow"
    supports_gradient_checkpointing = False

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.Embedding):
            init.normal_(module.weight, std=module.embedding_dim**-0.5)
            if module.padding_idx is not None:
                init.zeros_(module.weight[module.padding_idx])
        elif isinstance(module, nn.Linear):
            init.xavier_uniform_(module.weight)
            init.zeros_(module.bias)


class CBowModel(_CBowPreTrainedModel):
    """Word ids of two texts -> features of their pair."""

    def __init__(self, config: CBowConfig) -> None:
        super().__init__(config)
        self.word_embeddings = nn.Embedding(config.vocab_size, config.embedding_size, config.pad_token_id)
        widths = [4 * config.embedding_size] + [config.hidden_size] * config.num_hidden_layers
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(widths))
        self.drop = nn.Dropout(config.dropout)
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.word_embeddings

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        self.word_embeddings = value

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        **_: Any,
    ) -> BaseModelOutput:
        """`last_hidden_state` is (S, hidden_size): one row a pair."""
        words_SLD = self.word_embeddings(input_ids)
        is_word_SL = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        second_SL = torch.zeros_like(input_ids) if token_type_ids is None else token_type_ids
        p_SD = _mean(words_SLD, is_word_SL * (1 - second_SL))
        h_SD = _mean(words_SLD, is_word_SL * second_SL)
        features = self.drop(torch.cat([p_SD, h_SD, p_SD - h_SD, p_SD * h_SD], dim=-1))
        for layer in self.layers:
            features = self.drop(torch.tanh(layer(features)))
        return BaseModelOutput(last_hidden_state=features)


def _mean(words_SLD: Tensor, chosen_SL: Tensor) -> Tensor:
    """(S, D) mean of the chosen words of each row, 0 where none is chosen."""
    weights_SL1 = chosen_SL.unsqueeze(-1).to(words_SLD.dtype)
    return (words_SLD * weights_SL1).sum(1) / weights_SL1.sum(1).clamp(min=1)


class CBowForSequenceClassification(_CBowPreTrainedModel):
    """CBoW with a linear classifier."""

    def __init__(self, config: CBowConfig) -> None:
        super().__init__(config)
        self.num_labels = config.num_labels
        self.cbow = CBowModel(config)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)
        self.post_init()

    def forward(self, input_ids: Tensor, **inputs: Any) -> SequenceClassifierOutput:
        """`logits` is (S, labels)."""
        return SequenceClassifierOutput(logits=self.classifier(self.cbow(input_ids, **inputs).last_hidden_state))


def register_cbow() -> None:
    """Make the model type known to the library's `Auto` classes; harmless when repeated."""
    AutoConfig.register(MODEL_TYPE, CBowConfig, exist_ok=True)
    AutoModel.register(CBowConfig, CBowModel, exist_ok=True)
    AutoModelForSequenceClassification.register(CBowConfig, CBowForSequenceClassification, exist_ok=True)
