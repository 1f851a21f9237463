"""One example explained through the library `lime`: words left out at random, answers fitted by a line.

The library perturbs a text of numbers, one a feature, so that nothing but words can be left out; what the model is
asked is written out from the numbers that are left. Method: Ribeiro, Singh and Guestrin 2016, "Why Should I Trust
You?"; the library's own kernel (width 25 over 100 x cosine distance) and ridge regression, over all words.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from lightning_nli.explain.models import Probabilities, TextModel, Texts
from lightning_nli.explain.words import Mask, Perturber, WordedExample
from lightning_nli.types import LabelScheme, UserError

_REPLACEMENTS = ("0", "1")


@dataclass(frozen=True)
class LabelExplanation:
    """What speaks for and against one label.

    Attributes:
        label: Its name.
        probability: The model's, of the whole example.
        weights: (features,) float64: what a word adds to the label's probability while it is there.
        intercept: Of the fitted line: every word left out.
        local_prediction: What the line says of the whole example.
        fit: R^2 of the line over the perturbations, weighted as it was fitted: how far the weights can be trusted.
    """

    label: str
    probability: float
    weights: npt.NDArray[np.float64]
    intercept: float
    local_prediction: float
    fit: float

    def share(self, chosen: Mask) -> float | None:
        """Share of all weight (absolute values) on the chosen features; None where nothing weighs."""
        total = float(np.abs(self.weights).sum())
        return float(np.abs(self.weights[chosen]).sum()) / total if total else None


@dataclass(frozen=True)
class Explanation:
    """One example explained.

    Attributes:
        example_id: Its id.
        gold: Its label in the data, if it has one.
        predicted: The model's answer.
        probabilities: Label name -> the model's probability.
        example: Its texts and words.
        labels: One entry a label asked for.
        seed: Of the perturbations.
        num_samples: Perturbations, the whole example among them.
        num_distinct: Different ones: each is scored once.
    """

    example_id: str
    gold: str | None
    predicted: str
    probabilities: dict[str, float]
    example: WordedExample
    labels: tuple[LabelExplanation, ...]
    seed: int
    num_samples: int
    num_distinct: int


@dataclass(frozen=True)
class LimeSettings:
    """How to explain.

    Attributes:
        num_samples: Perturbations of an example.
        seed: Of the perturbations; every example starts from it, so its explanation depends on no other.
        labels: Names to explain; empty: the predicted one.
    """

    num_samples: int = 1_000
    seed: int = 1
    labels: tuple[str, ...] = ()


def check_labels(labels: Sequence[str], scheme: LabelScheme) -> None:
    """Make sure that the labels asked for are the model's.

    Raises:
        UserError: one is not.
    """
    for label in labels:
        if label not in scheme.names:
            raise UserError(f"--label {label}: the model answers {', '.join(scheme.names)}")


def require_lime() -> Any:
    """The library's text explainer.

    Raises:
        UserError: it is not installed.
    """
    try:
        from lime.lime_text import LimeTextExplainer
    except ModuleNotFoundError as error:
        if error.name != "lime":
            raise
        raise UserError("`lnli explain` needs its library: pip install 'lightning-nli[explain]'") from None
    return LimeTextExplainer


def read_example(model: TextModel, texts: Texts) -> WordedExample:
    """Prepare the texts of an example and find the words that the model reads.

    A word is read if what the model is given changes when it is left out, or another word stands in its place.
    """
    prepared = {name: model.prepare(texts[name]) for name in model.segments}
    joined_here = any(model.joins_words(texts[name]) for name in model.segments)
    whole = WordedExample.of(prepared, joined_here=joined_here)
    (given,), cut = model.inputs([prepared])
    if not cut:
        return whole
    changed = [
        {**prepared, name: text[: word.start] + put + text[word.end :]}
        for word in whole.words
        for name, text in [(whole.names[word.segment], whole.texts[word.segment])]
        for put in ("", _REPLACEMENTS[text[word.start : word.end] == _REPLACEMENTS[0]])
    ]
    same = [one == given for one in model.inputs(changed)[0]]
    unread = [number for number in range(len(whole.words)) if same[2 * number] and same[2 * number + 1]]
    return WordedExample.of(prepared, unread=unread, joined_here=joined_here)


def explain_example(
    model: TextModel, example_id: str, texts: Texts, *, gold: str | None = None, settings: LimeSettings | None = None
) -> Explanation:
    """Weights of an example's words.

    Args:
        model: Trained model.
        example_id: Id of the example.
        texts: Segment name -> raw text.
        gold: Its label in the data.
        settings: How to explain.

    Raises:
        UserError: a label that the model does not have, or no word to leave out.
    """
    settings = settings or LimeSettings()
    check_labels(settings.labels, model.scheme)
    example = read_example(model, texts)
    if not example.features:
        raise UserError(f"example '{example_id}' has no word that could be left out")
    answered = model.probabilities([dict(zip(example.names, example.texts, strict=True))])[0]
    names = model.scheme.names
    predicted = names[int(answered.argmax())]
    memory = _Memory(model, example)
    labels = [
        _explain_label(memory, names.index(label), answered, settings) for label in settings.labels or [predicted]
    ]
    return Explanation(
        example_id=example_id,
        gold=gold,
        predicted=predicted,
        probabilities=dict(zip(names, answered.tolist(), strict=True)),
        example=example,
        labels=tuple(labels),
        seed=settings.seed,
        num_samples=settings.num_samples,
        num_distinct=len(memory.known),
    )


class _Memory:
    """Answers to perturbations, each asked once however often it is drawn, and for whichever label."""

    def __init__(self, model: TextModel, example: WordedExample) -> None:
        self.model = model
        self.num_features = len(example.features)
        self.known: dict[bytes, Probabilities] = {}
        self._perturber = Perturber(example)

    def answer(self, drawn: list[str]) -> Probabilities:
        """(drawn, labels) for the library's texts: numbers of the features that are left."""
        masks = np.zeros((len(drawn), self.num_features), np.bool_)
        for mask, text in zip(masks, drawn, strict=True):
            mask[[int(number) for number in text.split()]] = True
        keys = [np.packbits(mask).tobytes() for mask in masks]
        new = {key: mask for key, mask in zip(keys, masks, strict=True) if key not in self.known}
        rows = [self._perturber.texts(mask) for mask in new.values()]
        self.known.update(zip(new, self.model.probabilities(rows), strict=True))
        return np.stack([self.known[key] for key in keys])


def _explain_label(memory: _Memory, label: int, answered: Probabilities, settings: LimeSettings) -> LabelExplanation:
    """One label: the library keeps the fit of the last label only, so each is asked alone, with the same draws."""
    names = memory.model.scheme.names
    explainer = require_lime()(
        split_expression=r"\s+",
        class_names=names,
        feature_selection="none",
        random_state=np.random.RandomState(settings.seed),
    )
    ask: Callable[[list[str]], Probabilities] = memory.answer
    found = explainer.explain_instance(
        " ".join(map(str, range(memory.num_features))),
        ask,
        labels=(label,),
        num_features=memory.num_features,
        num_samples=settings.num_samples,
    )
    weights = np.zeros(memory.num_features)
    for feature, weight in found.local_exp[label]:
        weights[feature] = weight
    return LabelExplanation(
        label=names[label],
        probability=float(answered[label]),
        weights=weights,
        intercept=float(found.intercept[label]),
        local_prediction=float(np.ravel(found.local_pred)[0]),
        fit=float(found.score),
    )
