"""Chunk and pool: segments longer than an encoder reads, read in chunks whose logits are pooled.

The longest text of a segment is cut into windows; every chunk holds all the other texts too, so that it can be
answered. Windows are equally long, cover the text and overlap evenly. Where the other texts leave less than a quarter
of a chunk to the window, windows run over the whole segment instead, between its first and its last token.

Shape suffixes: S segments, K chunks, T tokens, C labels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor

from lightning_nli.batch import PackedBatch
from lightning_nli.types import IGNORE_INDEX

_LEAST_WINDOW = 4  # a window is at least this part of a chunk


@dataclass(frozen=True)
class ChunkPooling:
    """How long segments are read.

    Attributes:
        length: Longest chunk in tokens.
        how: `mean` or `max` over the chunks of a segment, label by label.
        special_ids: Ids, as they stand in the batch, of everything that is no text: where texts begin and end.
        first_position: Position of a segment's first token.
    """

    length: int
    how: str
    special_ids: tuple[int, ...]
    first_position: int

    def logits(self, encode: Callable[[PackedBatch], Tensor], batch: PackedBatch) -> Tensor:
        """(S, C) logits; a batch without a long segment goes to `encode` as it is.

        Cutting a batch waits for the device once.
        """
        if batch.max_seqlen <= self.length:
            return encode(batch)
        chunks, segment_K = self.split(batch)
        return self.pool(encode(chunks), segment_K, batch.num_segments)

    def split(self, batch: PackedBatch) -> tuple[PackedBatch, Tensor]:
        """The chunks of all segments, in order, and (K,) the segment each is of."""
        device = batch.input_ids.device
        bounds = batch.cu_seqlens.tolist()
        is_special_T = torch.isin(batch.input_ids, torch.tensor(self.special_ids, device=device)).cpu()
        places: list[Tensor] = []
        owners: list[int] = []
        for segment, (start, end) in enumerate(pairwise(bounds)):
            for pieces in self._pieces(is_special_T[start:end]):
                places.append(torch.cat([torch.arange(start + first, start + last) for first, last in pieces]))
                owners.append(segment)
        lengths = [len(place) for place in places]
        place_T = torch.cat(places).to(device)
        position_T = torch.cat([torch.arange(length) for length in lengths]).to(device)
        types = batch.token_type_ids
        chunks = replace(
            batch,
            input_ids=batch.input_ids[place_T],
            position_ids=position_T + self.first_position,
            token_type_ids=None if types is None else types[place_T],
            cu_seqlens=torch.tensor([0, *lengths], device=device).cumsum(0).int(),
            max_seqlen=max(lengths),
            labels=torch.full((len(lengths),), IGNORE_INDEX, device=device),
            example_ids=batch.example_ids[torch.tensor(owners, device=device)],
        )
        return chunks, torch.tensor(owners, device=device)

    def pool(self, logits_KC: Tensor, segment_K: Tensor, num_segments: int) -> Tensor:
        """(S, C) from the logits of the chunks."""
        reduce = {"mean": "mean", "max": "amax"}[self.how]
        index_KC = segment_K[:, None].expand_as(logits_KC)
        empty_SC = logits_KC.new_zeros(num_segments, logits_KC.shape[1])
        return empty_SC.scatter_reduce(0, index_KC, logits_KC, reduce, include_self=False)

    def _pieces(self, is_special: Tensor) -> list[list[tuple[int, int]]]:
        """Ranges of tokens that make up each chunk of one segment."""
        size = len(is_special)
        if size <= self.length:
            return [[(0, size)]]
        first, last = _longest_text(is_special)
        window = self.length - (size - (last - first))
        if window < self.length // _LEAST_WINDOW:
            first, last, window = 1, size - 1, self.length - 2
        count = -(-(last - first) // window)  # 2 at least: the whole is longer than a chunk
        steps = [first + (last - first - window) * chunk // (count - 1) for chunk in range(count)]
        return [[(0, first), (step, step + window), (last, size)] for step in steps]


def _longest_text(is_special: Tensor) -> tuple[int, int]:
    """First token and end of the longest run of tokens that are not special (of equal ones the first)."""
    edges = [-1, *is_special.nonzero().flatten().tolist(), len(is_special)]
    runs = [(left + 1, right) for left, right in pairwise(edges)]
    return max(runs, key=lambda run: run[1] - run[0])
