"""Many explanations as figures: weight by segment, the words that carry it, and how much lies on empty words."""

from __future__ import annotations

import unicodedata
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lightning_nli.explain.lime_text import Explanation, LabelExplanation
from lightning_nli.explain.words import Feature

# Words that say how a sentence hangs together, not what it is about. Negation, modality and quantity (not, must, all,
# không, phải, được, bị, mọi) are left out of the list on purpose: in a law they decide; and so is `will`,
# which is a thing in some laws.
_ENGLISH = """
a an the this that these those such of in on at by to from for with as into upon under about and or but if then than so
is are was were be been being am do does did has have had it its he him his she her they them their we us our
i me my you your who whom whose which what there here also too very just
"""
_VIETNAMESE = """
và hoặc hay là thì mà của cho với bởi từ đến tại trong ngoài trên dưới về theo như cũng này kia đó đấy nọ các những một
cái con chiếc việc sự do vì nên để khi lúc nếu rằng ra vào lên xuống lại đi đã đang sẽ vẫn rồi nhé à ạ
"""
FUNCTION_WORDS = frozenset(unicodedata.normalize("NFC", word) for word in (_ENGLISH + _VIETNAMESE).split())
"""Words without content, lower case, NFC."""


def has_content(word: str) -> bool:
    """Whether a word says what a text is about: no function word, no single letter (a list mark)."""
    plain = unicodedata.normalize("NFC", word).lower().replace("_", " ").strip()
    return plain not in FUNCTION_WORDS and not (len(plain) == 1 and plain.isalpha())


@dataclass(frozen=True)
class SegmentShare:
    """A segment's part in the explanations.

    Attributes:
        segment: Its name.
        weight: Mean over explanations of its share of all weight.
        words: Mean over explanations of its share of all distinct words: what it would have if all weighed the same.
    """

    segment: str
    weight: float | None
    words: float


@dataclass(frozen=True)
class UsedWord:
    """A word over all explanations.

    Attributes:
        segment: Where it stands.
        word: In lower case.
        num_examples: Explanations that have it.
        num_top: Explanations in which it is among the heaviest.
        mean_weight: Mean over those that have it; above 0: it speaks for the explained label.
        share: Its part of all weight, the mean over all explanations (0 where it is absent).
        has_content: Whether it is no function word.
    """

    segment: str
    word: str
    num_examples: int
    num_top: int
    mean_weight: float
    share: float
    has_content: bool


@dataclass(frozen=True)
class Summary:
    """All explanations of one label, or of all labels.

    Attributes:
        label: Name of the label; None: whichever label each example was explained for.
        num_explanations: How many.
        segments: A share for each segment, in order.
        empty_weight: Mean share of weight on words without content.
        empty_words: Mean share of such words among the distinct words.
        mean_fit: Mean R^2 of the fitted lines.
        words: Most used first.
    """

    label: str | None
    num_explanations: int
    segments: tuple[SegmentShare, ...]
    empty_weight: float | None
    empty_words: float
    mean_fit: float
    words: tuple[UsedWord, ...]

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "label": self.label,
            "num_explanations": self.num_explanations,
            "mean_fit": self.mean_fit,
            "segments": [vars(share) for share in self.segments],
            "without_content": {"weight": self.empty_weight, "words": self.empty_words},
            "words": [vars(word) for word in self.words],
        }


def summarize(explanations: Sequence[Explanation], *, top: int = 10, num_words: int = 30) -> list[Summary]:
    """Figures over all explanations, then by label where there are several.

    Where each example was explained for several labels there are figures by label only: what speaks for the one speaks
    against the other, and together they would cancel.

    Args:
        explanations: At least one, all of the same segments.
        top: How many words of an explanation count as its heaviest.
        num_words: Words that are listed.
    """
    pairs = [(one, label) for one in explanations for label in one.labels]
    labels = list(dict.fromkeys(label.label for _, label in pairs))
    has_one_each = all(len(one.labels) == 1 for one in explanations)
    summaries = [_summarize(None, pairs, top, num_words)] if has_one_each else []
    if len(labels) > 1:
        of_label = ([pair for pair in pairs if pair[1].label == name] for name in labels)
        summaries += [_summarize(name, part, top, num_words) for name, part in zip(labels, of_label, strict=True)]
    return summaries


def _summarize(
    label: str | None, pairs: list[tuple[Explanation, LabelExplanation]], top: int, num_words: int
) -> Summary:
    names = pairs[0][0].example.names
    shares, empty = [], []
    for one, weights in pairs:
        features = one.example.features
        of_segment = [np.array([feature.segment == name for feature in features]) for name in names]
        shares.append([(weights.share(chosen), float(chosen.mean())) for chosen in of_segment])
        without = np.array([not has_content(feature.text) for feature in features])
        empty.append((weights.share(without), float(without.mean())))
    columns = zip(names, zip(*shares, strict=True), strict=True)
    return Summary(
        label=label,
        num_explanations=len(pairs),
        segments=tuple(SegmentShare(name, *_mean_pair(column)) for name, column in columns),
        empty_weight=_mean_pair(empty)[0],
        empty_words=_mean_pair(empty)[1],
        mean_fit=float(np.mean([weights.fit for _, weights in pairs])),
        words=tuple(_used_words(pairs, top)[:num_words]),
    )


def _mean_pair(values: Sequence[tuple[float | None, float]]) -> tuple[float | None, float]:
    """Means of both, the first over what is known."""
    known = [first for first, _ in values if first is not None]
    return float(np.mean(known)) if known else None, float(np.mean([second for _, second in values]))


def _used_words(pairs: list[tuple[Explanation, LabelExplanation]], top: int) -> list[UsedWord]:
    found: dict[tuple[str, str], list[tuple[float, float, bool]]] = defaultdict(list)
    for one, label in pairs:
        for key, weight, share, is_top in _words_of(one.example.features, label, top):
            found[key].append((weight, share, is_top))
    words = [
        UsedWord(
            segment=segment,
            word=word,
            num_examples=len(seen),
            num_top=sum(is_top for _, _, is_top in seen),
            mean_weight=float(np.mean([weight for weight, _, _ in seen])),
            share=sum(share for _, share, _ in seen) / len(pairs),
            has_content=has_content(word),
        )
        for (segment, word), seen in found.items()
    ]
    return sorted(words, key=lambda one: (-one.share, one.segment, one.word))


def _words_of(
    features: Sequence[Feature], label: LabelExplanation, top: int
) -> list[tuple[tuple[str, str], float, float, bool]]:
    """Words of one explanation in lower case: summed weight, share of all weight, whether among the heaviest."""
    weights: dict[tuple[str, str], float] = defaultdict(float)
    sizes: dict[tuple[str, str], float] = defaultdict(float)
    for feature, weight in zip(features, label.weights.tolist(), strict=True):
        key = (feature.segment, unicodedata.normalize("NFC", feature.text).lower())
        weights[key] += weight
        sizes[key] += abs(weight)
    total = sum(sizes.values())
    heaviest = sorted(sizes, key=lambda key: (-sizes[key], key))[:top]
    return [(key, weights[key], sizes[key] / total if total else 0.0, key in heaviest) for key in weights]
