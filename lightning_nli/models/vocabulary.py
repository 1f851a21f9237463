"""Train only the embedding rows that the run's texts can touch, and put every row back afterwards.

A row that no example touches gets no gradient, so leaving it out changes no logit; untouched rows come back
bit-identical to the pretrained ones.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

_WORTH_IT = 0.5  # trim when at most this share of the rows is kept

TokenIds = npt.NDArray[np.int64]


def kept_tokens(splits: Iterable[npt.NDArray[np.int32]], tokenizer: Any) -> TokenIds:
    """Sorted ids that any of the splits uses, special and added tokens included."""
    special = np.array(sorted({*tokenizer.all_special_ids, *tokenizer.get_added_vocab().values()}), np.int64)
    return np.unique(np.concatenate([special, *(np.unique(ids).astype(np.int64) for ids in splits)]))


def is_worth_it(kept: TokenIds, model: Any) -> bool:
    """Whether leaving rows out at least halves the vocabulary."""
    return len(kept) <= _WORTH_IT * int(model.get_input_embeddings().weight.shape[0])


def trim_vocabulary(model: Any, kept: TokenIds) -> TokenIds:
    """Shrink the input embedding to the rows `kept`, in place.

    Returns:
        (vocabulary,) new id of every token id, -1 where the row is gone.
    """
    old = model.get_input_embeddings()
    remap = np.full(old.weight.shape[0], -1, np.int64)
    remap[kept] = np.arange(len(kept))
    padding = None if old.padding_idx is None or remap[old.padding_idx] < 0 else int(remap[old.padding_idx])
    new = nn.Embedding(len(kept), old.weight.shape[1], padding_idx=padding, dtype=old.weight.dtype)
    with torch.no_grad():
        new.weight.copy_(old.weight[torch.from_numpy(kept)])
    model.set_input_embeddings(new)
    return remap


def restore_vocabulary(pretrained: Tensor, trained: Tensor, kept: Tensor) -> Tensor:
    """The full (vocabulary, D) table: trained rows where `kept` says so, pretrained rows elsewhere."""
    full = pretrained.clone()
    full[kept] = trained.to(full.dtype)
    return full
