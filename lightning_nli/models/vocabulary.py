"""Embedding rows: grown for added tokens, trimmed to those that the run's texts can touch, put back afterwards.

A row that no example touches gets no gradient, so leaving it out changes no logit; untouched rows come back
bit-identical to the pretrained ones.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from lightning_nli.models.registry import architecture_of
from lightning_nli.types import UserError

log = logging.getLogger(__name__)

_WORTH_IT = 0.5  # trim when at most this share of the rows is kept

TokenIds = npt.NDArray[np.int64]


def vocabulary_size(tokenizer: Any) -> int:
    """Rows that an embedding table must have for every id of the tokenizer, added tokens included."""
    return max(len(tokenizer), 1 + max(tokenizer.get_vocab().values(), default=-1))


def grow_vocabulary(model: Any, num_tokens: int) -> int:
    """Give the input embedding one row a token, in place; a new row is the mean of the old ones.

    Returns:
        Rows added, 0 where there were enough.
    """
    old = model.get_input_embeddings()
    num_rows, width = old.weight.shape
    if num_tokens <= num_rows:
        return 0
    new = nn.Embedding(num_tokens, width, padding_idx=old.padding_idx, dtype=old.weight.dtype)
    with torch.no_grad():
        new.weight[:num_rows] = old.weight
        new.weight[num_rows:] = old.weight.mean(0)
    model.set_input_embeddings(new)
    model.config.vocab_size = num_tokens
    log.info("embedding table: %d rows, grown to %d for tokens added to the tokenizer", num_rows, num_tokens)
    return int(num_tokens - num_rows)


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


def trim_to_texts(
    model: Any, tokenizer: Any, splits: Iterable[npt.NDArray[np.int32]]
) -> tuple[TokenIds | None, TokenIds | None]:
    """Trim the model to the tokens of the run's splits where that is worth it.

    Returns:
        The rows kept and the new id of every token id, or None twice where the whole table is trained.
    """
    kept = kept_tokens(splits, tokenizer)
    if architecture_of(model.config.model_type).positions_after_pad:  # the library tells padding by its old id
        kept = np.union1d(kept, np.arange(model.config.pad_token_id + 1))
    if not is_worth_it(kept, model):
        return None, None
    before = sum(parameter.numel() for parameter in model.parameters())
    remap = trim_vocabulary(model, kept)
    after = sum(parameter.numel() for parameter in model.parameters())
    log.info(
        "vocabulary: training %d of %d rows, %.1fM of %.1fM parameters (--trim-vocab off trains all)",
        len(kept),
        len(remap),
        after / 1e6,
        before / 1e6,
    )
    return kept, remap


def restore_vocabulary(pretrained: Tensor, trained: Tensor, kept: Tensor, num_rows: int | None = None) -> Tensor:
    """The full (vocabulary, D) table: trained rows where `kept` says so, pretrained rows elsewhere.

    Args:
        pretrained: (rows of the published model, D).
        trained: (kept, D).
        kept: (kept,) row of each trained one.
        num_rows: Rows of the table where it was grown for added tokens (all of those are kept).

    Raises:
        UserError: a row is neither pretrained nor trained.
    """
    num_rows = len(pretrained) if num_rows is None else num_rows
    unknown = num_rows - len(pretrained) - int((kept >= len(pretrained)).sum())
    if len(kept) != len(trained) or unknown != 0:
        raise UserError(
            f"the run trained {len(trained)} embedding rows and names {len(kept)}; its table has {num_rows} rows, the "
            f"pretrained one {len(pretrained)}: they are not of the same model"
        )
    full = torch.cat([pretrained, pretrained.new_zeros(num_rows - len(pretrained), pretrained.shape[1])])
    full[kept] = trained.to(full.dtype)
    return full
