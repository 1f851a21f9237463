"""Accuracy from each training domain to each tested one: what the records of a `pairwise` suite hold."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lightning_nli.config_setfit import ENCODER_METHODS

FROM = "from"
"""Regime of a fold that trains on one domain."""


@dataclass(frozen=True)
class TransferMatrix:
    """One model.

    Attributes:
        model: Its name.
        domains: Slugs, in the order of rows and columns.
        accuracy: (trained on, tested on) -> accuracy averaged over seeds; null where a seed's cell is missing.
    """

    model: str
    domains: tuple[str, ...]
    accuracy: Mapping[tuple[str, str], float | None]


def transfer_matrices(records: Iterable[Mapping[str, Any]], seeds: Sequence[int]) -> list[TransferMatrix]:
    """A matrix for each model with a finished cell; none if the records are of another scheme.

    Args:
        records: Of a board.
        seeds: Of the suite; a model that trains no encoder has the first alone.
    """
    by_model: dict[str, dict[tuple[str, int], Mapping[str, Any]]] = {}
    for record in records:
        regime, _, domain = record["fold"].partition(":")
        if regime == FROM and record["status"] == "finished":
            by_model.setdefault(record["model"], {})[domain, record["seed"]] = record
    domains = _domains(by_model.values())
    return [TransferMatrix(model, domains, _accuracy(cells, domains, seeds)) for model, cells in by_model.items()]


def _domains(models: Iterable[Mapping[tuple[str, int], Mapping[str, Any]]]) -> tuple[str, ...]:
    """Every domain that a model was trained or tested on, in order of name."""
    names: set[str] = set()
    for cells in models:
        for (domain, _), record in cells.items():
            names |= {domain, *record["domains"]}
    return tuple(sorted(names))


def _accuracy(
    cells: Mapping[tuple[str, int], Mapping[str, Any]], domains: Sequence[str], seeds: Sequence[int]
) -> dict[tuple[str, str], float | None]:
    is_trained = any(record["result"]["config"]["method"] in ENCODER_METHODS for record in cells.values())
    wanted = seeds if is_trained else seeds[:1]
    table: dict[tuple[str, str], float | None] = {}
    for source in domains:
        of_seeds = [cells.get((source, seed), {}).get("domains", {}) for seed in wanted]
        for target in domains:
            values = [scores.get(target, {}).get("accuracy") for scores in of_seeds]
            table[source, target] = None if None in values else sum(values) / len(values)
    return table
