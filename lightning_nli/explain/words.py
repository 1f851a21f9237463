"""An example as the words that a perturbation may take out of it; what stands between segments is out of reach."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Mask = npt.NDArray[np.bool_]

_MARKS = "\u0300-\u036f"  # of text that is not in NFC
_LETTER = rf"[\w{_MARKS}]"
WORD = re.compile(
    rf"\[[^\[\]\s]+\]"  # a token of anonymised text: [Person-1]
    rf"|\d+(?:[.,/-]\d+)+"  # 1.500.000, 12/2019
    rf"|{_LETTER}+(?:[-'\u2019]{_LETTER}+)*"  # a syllable, a word joined by _, well-known
)
"""A word: letters, digits and `_` with their accents; placeholders and numbers stay whole. Punctuation is no word."""


@dataclass(frozen=True)
class Word:
    """A word where it stands.

    Attributes:
        segment: Which text, by number.
        start: Place of its first character.
        end: Place after its last.
        feature: Number of the feature it belongs to, None where the model does not read it (cut by `--max-length`).
    """

    segment: int
    start: int
    end: int
    feature: int | None


@dataclass(frozen=True)
class Feature:
    """A distinct word of one segment: all its occurrences there come and go together.

    Attributes:
        segment: Name of its text.
        text: The word, as it is shown.
        occurrences: How often it stands there.
    """

    segment: str
    text: str
    occurrences: int


@dataclass(frozen=True)
class WordedExample:
    """The texts of one example, as its model reads them, with their words.

    Attributes:
        names: Names of the segments, in order.
        texts: Their texts, normalized and word-segmented as the model wants them.
        words: Every word, in order.
        features: Distinct words of each segment that the model reads.
        joined_here: Whether `_` was put between syllables by a segmenter of ours, so that it is not shown.
    """

    names: tuple[str, ...]
    texts: tuple[str, ...]
    words: tuple[Word, ...]
    features: tuple[Feature, ...]
    joined_here: bool = False

    @classmethod
    def of(cls, texts: Mapping[str, str], *, unread: Sequence[int] = (), joined_here: bool = False) -> WordedExample:
        """Find the words of each text.

        Args:
            texts: Segment name -> text as the model reads it.
            unread: Numbers of words that the model does not read.
            joined_here: Whether a segmenter of ours joined words.
        """
        words: list[Word] = []
        places: dict[tuple[int, str], int] = {}
        counts: Counter[int] = Counter()
        hidden = set(unread)
        for segment, text in enumerate(texts.values()):
            for found in WORD.finditer(text):
                feature = None
                if len(words) not in hidden:
                    feature = places.setdefault((segment, found.group()), len(places))
                    counts[feature] += 1
                words.append(Word(segment, found.start(), found.end(), feature))
        names = tuple(texts)
        features = tuple(
            Feature(names[segment], _shown(text, joined_here), counts[number])
            for (segment, text), number in places.items()
        )
        return cls(names, tuple(texts.values()), tuple(words), features, joined_here)

    def show(self, text: str) -> str:
        """Part of a text as a reader knows it."""
        return _shown(text, self.joined_here)

    @property
    def num_unread(self) -> int:
        """Words that the model does not read."""
        return sum(word.feature is None for word in self.words)

    def pieces(self, segment: int) -> list[tuple[str, Word | None]]:
        """A text cut into words and what stands between them, in order; joined they are the text."""
        text, pieces, end = self.texts[segment], [], 0
        for word in (one for one in self.words if one.segment == segment):
            pieces += [(text[end : word.start], None), (text[word.start : word.end], word)]
            end = word.end
        return [(piece, word) for piece, word in (*pieces, (text[end:], None)) if piece]


def _shown(text: str, joined_here: bool) -> str:
    return text.replace("_", " ") if joined_here else text


class Perturber:
    """Writes an example out with some of its features left out."""

    def __init__(self, example: WordedExample) -> None:
        self.example = example
        self._pieces = [_read_part(example.pieces(index)) for index in range(len(example.names))]

    def texts(self, mask: Mask) -> dict[str, str]:
        """Segment name -> text with the features where `mask` (features,) holds; a text may be empty.

        Words that the model does not read are never there, so that none of them moves into its sight.
        """
        named = zip(self.example.names, self._pieces, strict=True)
        return {name: _write(pieces, mask) for name, pieces in named}


def _read_part(pieces: list[tuple[str, Word | None]]) -> list[tuple[str, int | None]]:
    """Pieces with their features, without unread words and what stands between two of them or at an unread end."""
    kept: list[tuple[str, int | None]] = []
    for place, (text, word) in enumerate(pieces):
        near = [pieces[at][1] for at in (place - 1, place + 1) if 0 <= at < len(pieces)]
        is_hidden = word is not None and word.feature is None
        is_between = word is None and bool(near) and all(one is not None and one.feature is None for one in near)
        if not is_hidden and not is_between:
            kept.append((text, None if word is None else word.feature))
    return kept


def _write(pieces: list[tuple[str, int | None]], mask: Mask) -> str:
    """Joined pieces; white space that stood on both sides of a word left out becomes that of one side."""
    parts: list[str] = []
    left_out = False
    for text, feature in pieces:
        if feature is not None and not mask[feature]:
            left_out = True
            continue
        if left_out and (not parts or parts[-1][-1].isspace()):
            text = text.lstrip()
        if text:
            parts.append(text)
            left_out = False
    written = "".join(parts)
    return written.rstrip() if left_out else written
