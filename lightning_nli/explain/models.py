"""What an explanation asks of a model: how it reads texts, and its answers to many of them in bounded memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np
import numpy.typing as npt
import polars as pl
import torch

from lightning_nli.data.text import WordSegmenter, is_segmented
from lightning_nli.data.tokenization import EncoderSpec, TokenizedSplit, prepare_text, tokenize_split
from lightning_nli.training.scoring import Scorer
from lightning_nli.training.setfit import SetFitScorer, join_rows
from lightning_nli.types import LabelScheme

Probabilities = npt.NDArray[np.float64]
Texts = Mapping[str, str]

CHUNK_ROWS = 500
"""Perturbed examples that are tokenized at a time; a forward pass holds as many tokens of them as the run allows."""


class TextModel(Protocol):
    """A trained model over prepared texts."""

    @property
    def scheme(self) -> LabelScheme:
        """Labels in column order."""

    @property
    def segments(self) -> tuple[str, ...]:
        """Texts of an example, in order."""

    def prepare(self, text: str) -> str:
        """The text normalized and word-segmented as the model wants it."""

    def joins_words(self, text: str) -> bool:
        """Whether `prepare` joins syllables of this text by `_`."""

    def inputs(self, rows: Sequence[Texts]) -> tuple[list[bytes], bool]:
        """What the model is given of each row of prepared texts, and whether any row is cut."""

    def probabilities(self, rows: Sequence[Texts]) -> Probabilities:
        """(rows, labels) of prepared texts; a text may be empty."""


class RunModel:
    """The model of a run folder, asked chunk by chunk.

    Prepared texts are not prepared again: a segmenter would join what stands next to each other only because a word
    between was left out.
    """

    def __init__(self, scorer: Scorer | SetFitScorer) -> None:
        self._scorer = scorer
        self._spec: EncoderSpec = replace(scorer.spec, normalize=False, segmenter="none")
        self._segmenter = WordSegmenter(scorer.spec.segmenter)

    @property
    def scheme(self) -> LabelScheme:
        return self._scorer.scheme

    @property
    def segments(self) -> tuple[str, ...]:
        return self._spec.segments

    def prepare(self, text: str) -> str:
        return prepare_text(text, self._scorer.spec, self._segmenter)

    def joins_words(self, text: str) -> bool:
        return self._segmenter.name != "none" and not is_segmented(text)

    def inputs(self, rows: Sequence[Texts]) -> tuple[list[bytes], bool]:
        found: list[bytes] = []
        cut = False
        for split in self._chunks(rows):
            bounds = zip(split.offsets[:-1], split.offsets[1:], strict=True)
            found += [split.token_ids[start:end].tobytes() for start, end in bounds]
            cut = cut or split.num_truncated > 0
        return found, cut

    def probabilities(self, rows: Sequence[Texts]) -> Probabilities:
        answers = [self._answer(split) for split in self._chunks(rows)]
        return np.concatenate(answers) if answers else np.zeros((0, len(self.scheme.labels)))

    def _answer(self, split: TokenizedSplit) -> Probabilities:
        if isinstance(self._scorer, SetFitScorer):
            return self._scorer.text_probabilities(join_rows(split, self._spec.tokenizer))
        logits = torch.from_numpy(self._scorer.split_logits(split)).double()
        probabilities: Probabilities = logits.softmax(-1).numpy()
        return probabilities

    def _chunks(self, rows: Sequence[Texts]) -> Iterator[TokenizedSplit]:
        for start in range(0, len(rows), CHUNK_ROWS):
            chunk = rows[start : start + CHUNK_ROWS]
            columns = {name: pl.Series([row[name] for row in chunk], dtype=pl.String) for name in self.segments}
            frame = pl.DataFrame(columns).with_columns(label=pl.lit(None, pl.String))
            yield tokenize_split(frame, self._spec, self.scheme)
