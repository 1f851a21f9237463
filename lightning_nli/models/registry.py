"""What is known of published encoders and of architectures, from `registry.yaml`. Imports no torch."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from importlib.resources import files
from typing import Any


class Road(StrEnum):
    """How an encoder reads a pack."""

    PACKED = "packed"  # in one row, through our attention hook
    PADDED = "padded"  # by the library's own padded call
    LONGFORMER = "longformer"  # padded, with global attention on the first token


@dataclass(frozen=True, slots=True)
class Architecture:
    """What a `model_type` can do.

    Attributes:
        model_type: As in a model's config.json.
        road: How it reads a pack.
        why: Reason why it cannot be packed; empty where it can.
        refused_precisions: Values of `--precision` in which it does not compute right.
        positions_after_pad: Whether positions count from `pad_id + 1`, so that its position table holds fewer tokens
            than it has rows.
    """

    model_type: str
    road: Road = Road.PACKED
    why: str = ""
    refused_precisions: tuple[str, ...] = ()
    positions_after_pad: bool = False


@dataclass(frozen=True, slots=True)
class ModelCard:
    """A published encoder.

    Attributes:
        alias: Short name for `--model`.
        hub_id: Name on the Hugging Face hub, or of an encoder that is built on this machine (`cbow`).
        architecture: Its architecture.
        max_tokens: Longest input in tokens, special tokens included.
        word_segmented: Whether it was trained on Vietnamese text with the syllables of a word joined by `_`.
        tables: Tables of the three papers it stands in, as `ViLegalNLI 14`.
    """

    alias: str
    hub_id: str
    architecture: Architecture
    max_tokens: int
    word_segmented: bool
    tables: tuple[str, ...]

    @property
    def road(self) -> Road:
        return self.architecture.road

    @property
    def refused_precisions(self) -> tuple[str, ...]:
        return self.architecture.refused_precisions


@cache
def _registry() -> tuple[dict[str, Architecture], dict[str, ModelCard]]:
    import yaml

    text = files("lightning_nli.models").joinpath("registry.yaml").read_text(encoding="utf-8")
    values: dict[str, dict[str, Any]] = yaml.safe_load(text)
    architectures = {name: _architecture(name, entry) for name, entry in values["architectures"].items()}
    cards = {
        alias: ModelCard(
            alias=alias,
            hub_id=entry["hub_id"],
            architecture=architectures[entry["architecture"]],
            max_tokens=entry["max_tokens"],
            word_segmented=entry.get("word_segmented", False),
            tables=tuple(entry["tables"]),
        )
        for alias, entry in values["models"].items()
    }
    return architectures, cards


def _architecture(name: str, entry: dict[str, Any]) -> Architecture:
    return Architecture(
        name,
        Road(entry["road"]),
        why=entry.get("why", ""),
        refused_precisions=tuple(entry.get("refused_precisions", ())),
        positions_after_pad=entry.get("positions_after_pad", False),
    )


def model_cards() -> tuple[ModelCard, ...]:
    """Every published encoder of the registry, in its order."""
    return tuple(_registry()[1].values())


def model_card(name: str) -> ModelCard | None:
    """The card of an alias or hub id, None for any other name (a folder, another model of the hub)."""
    cards = _registry()[1]
    return cards.get(name) or next((card for card in cards.values() if card.hub_id == name), None)


def architecture_of(model_type: str) -> Architecture:
    """What is known of a `model_type`; one that the registry lacks is taken to be packable until the probe says no."""
    return _registry()[0].get(model_type) or Architecture(model_type)


def near_alias(name: str) -> str | None:
    """The alias that a mistyped `--model` most likely means; None where none is near, or the name is a known one."""
    cards = _registry()[1]
    if model_card(name) is not None:
        return None
    last = name.rsplit("/", 1)[-1].lower()
    near = difflib.get_close_matches(last, cards, n=1, cutoff=0.75)
    if near:
        return near[0]
    by_hub = {card.hub_id.rsplit("/", 1)[-1].lower(): card.alias for card in cards.values()}
    near = difflib.get_close_matches(last, by_hub, n=1, cutoff=0.75)
    return by_hub[near[0]] if near else None
