"""Explanations as JSON, and both files of a report: explanations.json and explanations.html."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lightning_nli.explain.lime_text import Explanation, LabelExplanation
from lightning_nli.explain.summary import Summary, has_content, summarize
from lightning_nli.types import UserError

SCHEMA = 1

JSON_NAME = "explanations.json"
HTML_NAME = "explanations.html"


@dataclass(frozen=True)
class Report:
    """What is written.

    Attributes:
        run: Run folder, as the user wrote it.
        source: Where the examples are from.
        explanations: In the order asked for.
        summaries: Over all, then by label.
        top: Words shown of an explanation.
    """

    run: str
    source: str
    explanations: tuple[Explanation, ...]
    summaries: tuple[Summary, ...]
    top: int

    @classmethod
    def of(cls, run: str, source: str, explanations: Sequence[Explanation], top: int) -> Report:
        return cls(run, source, tuple(explanations), tuple(summarize(explanations, top=top)), top)

    def as_dict(self) -> dict[str, Any]:
        """All figures unrounded, every word of every example."""
        return {
            "schema": SCHEMA,
            "run": self.run,
            "source": self.source,
            "seed": self.explanations[0].seed,
            "num_samples": self.explanations[0].num_samples,
            "summaries": [summary.as_dict() for summary in self.summaries],
            "examples": [_example(one) for one in self.explanations],
        }


def _example(one: Explanation) -> dict[str, Any]:
    return {
        "example_id": one.example_id,
        "gold": one.gold,
        "predicted": one.predicted,
        "probabilities": one.probabilities,
        "segments": dict(zip(one.example.names, map(one.example.show, one.example.texts), strict=True)),
        "num_unread_words": one.example.num_unread,
        "num_distinct_samples": one.num_distinct,
        "labels": [_label(one, label) for label in one.labels],
    }


def _label(one: Explanation, label: LabelExplanation) -> dict[str, Any]:
    features = one.example.features
    words = [
        {
            "segment": features[place].segment,
            "word": features[place].text,
            "weight": float(label.weights[place]),
            "occurrences": features[place].occurrences,
            "has_content": has_content(features[place].text),
        }
        for place in ranking(label)
    ]
    names = one.example.names
    return {
        "label": label.label,
        "probability": label.probability,
        "intercept": label.intercept,
        "local_prediction": label.local_prediction,
        "fit": label.fit,
        "segment_shares": {
            name: label.share(np.array([feature.segment == name for feature in features])) for name in names
        },
        "words": words,
    }


def ranking(label: LabelExplanation) -> list[int]:
    """Numbers of the features, heaviest first, ties in the order of the texts."""
    return [int(place) for place in np.argsort(-np.abs(label.weights), kind="stable")]


def check_target(folder: Path, *, force: bool) -> None:
    """Make sure that a report may be written to a folder.

    Raises:
        UserError: it holds a report and `force` does not say to replace it, or it is a file.
    """
    if folder.is_file():
        raise UserError(f"--out {folder} is a file; give a folder")
    if (folder / JSON_NAME).exists() and not force:
        raise UserError(f"--out {folder} holds a report; --force replaces it")


def write_report(report: Report, folder: Path) -> None:
    """Write both files by rename.

    Raises:
        UserError: the folder cannot be written.
    """
    from lightning_nli.explain.page import explanation_page

    contents = {
        JSON_NAME: json.dumps(report.as_dict(), ensure_ascii=False, indent=1, allow_nan=False) + "\n",
        HTML_NAME: explanation_page(report),
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in contents.items():
            partial = folder / f".{name}"
            partial.write_text(text, encoding="utf-8")
            partial.replace(folder / name)
    except OSError as error:
        raise UserError(f"--out {folder} cannot be written: {error.strerror}") from None
