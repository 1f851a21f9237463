"""What an objective must know of the training rows: groups, swaps, weights, answers of an expert blind to laws."""

from __future__ import annotations

import logging
import re
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import polars as pl

from lightning_nli.baselines import cross_fitted
from lightning_nli.config import ExperimentConfig
from lightning_nli.config_augment import augment_spec
from lightning_nli.config_objective import parse_objective
from lightning_nli.data.bundles import Bundle
from lightning_nli.data.groups import MIN_GROUP_ROWS, RowGroups
from lightning_nli.metrics import label_indices
from lightning_nli.models.objectives import GroupDRO, Objective, ProductOfExperts, Ranking, Reweight, VREx
from lightning_nli.training.corpora import RunData
from lightning_nli.types import DOMAINS, LabelScheme, UserError

log = logging.getLogger(__name__)

MIN_DOMAIN_ROWS = 100
"""Training rows of a domain that is a group of its own."""

SMALL_DOMAINS = "other domains"
"""Group of the domains with fewer rows, of `other`, and of rows without a domain."""

_LOWEST_PROBABILITY = 1e-6  # of an expert: its logarithm must be finite
_ADDED = re.compile(r"~(?P<kind>swap|copy)\d+$")  # end of the ids of `swaps.rows_to_add`

LogProbabilities = npt.NDArray[np.float64]


def build_objective(config: ExperimentConfig, data: RunData) -> tuple[Objective, RowGroups | None]:
    """The run's training loss, with tables over `data.train`, and the groups that every optimizer step must hold.

    Raises:
        UserError: there are not two groups, the global batch cannot hold 4 rows of each, one law alone cannot be
            cross-fitted, or no row has a swap to be ranked below it.
    """
    spec = parse_objective(config.objective)
    if spec.groups is not None:
        groups = domain_groups(data.train) if spec.groups == "domain" else bias_groups(data)
        groups = replace(groups, equal_shares=spec.kind == "domain_balanced")
        _check_groups(groups, config)
        if spec.strength is None:
            return Objective(), groups
        kind = GroupDRO if spec.kind == "group_dro" else VREx
        return kind(groups.weights, spec.strength), groups
    weights = label_weights(config, data)
    if spec.has_pairs:
        sources = swap_sources(data)
        if not (sources >= 0).any():
            raise UserError(
                f"--objective {config.objective} with --augment {config.augment}: of {data.published_train.height} "
                "training rows none has a swap (an entailed row needs another premise of its law); take another corpus"
            )
        assert spec.strength is not None
        entailed = data.scheme.index(data.scheme.entailed)
        return Ranking(sources, entailed, spec.strength, margin=spec.margin, weights_N=weights), None
    if spec.kind == "product_of_experts":
        return ProductOfExperts(expert_log_probabilities(data), weights), None
    if spec.kind == "reweight":
        return Reweight(expert_log_probabilities(data), label_indices(data.train, "label", data.scheme)), None
    return Objective(weights), None


def row_bundles(config: ExperimentConfig, data: RunData) -> tuple[Bundle, ...] | None:
    """Rows that the objective needs in one pack: each row with the swaps made from it; None where it needs none."""
    if not parse_objective(config.objective).has_pairs:
        return None
    bundles: dict[int, list[int]] = {}
    for row, source in enumerate(swap_sources(data).tolist()):
        bundles.setdefault(row if source < 0 else source, []).append(row)
    return tuple(tuple(rows) for rows in bundles.values())


def swap_sources(data: RunData) -> npt.NDArray[np.int64]:
    """(N,): for a row with a swapped premise the row that it was made from; -1 for all others."""
    places = _published_places(data)
    sources = [-1 if kind != "swap" else places[source] for source, kind in _origins(data, places)]
    return np.array(sources, dtype=np.int64)


def label_weights(config: ExperimentConfig, data: RunData) -> npt.NDArray[np.float64] | None:
    """(N,), mean 1, under `balance=weight`: each label has in sum the share that it has without added rows."""
    spec = augment_spec(config.augment)
    if spec is None or spec.balance != "weight":
        return None
    published, labels = (label_indices(rows, "label", data.scheme) for rows in (data.published_train, data.train))
    wanted, there = (np.bincount(one, minlength=len(data.scheme.labels)) / len(one) for one in (published, labels))
    if (there[wanted == 0] > 0).any():
        raise UserError(
            f"--augment {config.augment}: no training row is '{data.scheme.unsupported.value}', the label of swapped "
            "rows, so there is no share to keep; leave balance out"
        )
    weights: npt.NDArray[np.float64] = (wanted / np.maximum(there, 1e-12))[labels]
    return weights


def domain_groups(train: pl.DataFrame) -> RowGroups:
    """Groups by field of law; a row of k domains has the share 1/k in each of them.

    Domains with fewer than 100 rows, `other` and unknown ones are one group, the last.

    Args:
        train: Training rows, added ones included.
    """
    domains = [list(dict.fromkeys(names or [])) for names in train["domains"].to_list()]
    counts = dict.fromkeys(DOMAINS, 0)
    for name in (name for names in domains for name in names):
        counts[name] += 1
    kept = [name for name, count in counts.items() if count >= MIN_DOMAIN_ROWS and name != "other"]
    columns = {name: column for column, name in enumerate(kept)}
    weights = np.zeros((train.height, len(kept) + 1), np.float32)
    for row, names in enumerate(domains):
        for name in names or ["other"]:
            weights[row, columns.get(name, len(kept))] += 1 / max(1, len(names))
    return _without_empty((*kept, SMALL_DOMAINS), weights)


def bias_groups(data: RunData) -> RowGroups:
    """Groups label x whether the `expert_log_probabilities` favour it: 4 with two labels, none of them empty."""
    labels = label_indices(data.train, "label", data.scheme)
    is_wrong = expert_log_probabilities(data).argmax(axis=1) != labels
    names = tuple(f"{label}, hyponly-v1 {answer}" for label in data.scheme.names for answer in ("right", "wrong"))
    weights = np.zeros((len(labels), len(names)), np.float32)
    weights[np.arange(len(labels)), 2 * labels + is_wrong] = 1
    return _without_empty(names, weights)


def expert_log_probabilities(data: RunData) -> LogProbabilities:
    """(N, C): what `hyponly-v1`, trained on the laws of the other folds, answers to every row of `data.train`.

    It is fitted on the run's training rows without swapped premises; an added row has the answer to its own hypothesis.
    A probability below 1e-6 counts as 1e-6.

    Raises:
        UserError: all rows are of one law (or one premise, where there are no laws).
    """
    published = data.published_train
    answers = _cross_fitted(published, data.scheme)
    places = _published_places(data)
    rows = [places[source] for source, _ in _origins(data, places)]
    logarithms: LogProbabilities = np.log(np.maximum(answers[rows], _LOWEST_PROBABILITY))
    return logarithms


def _published_places(data: RunData) -> dict[str, int]:
    return {example_id: row for row, example_id in enumerate(data.published_train["example_id"])}


def _origins(data: RunData, places: dict[str, int]) -> list[tuple[str, str | None]]:
    """For each training row the id of the published row behind it, and `swap` or `copy` where it was added."""
    assert data.train["example_id"].head(len(places)).equals(data.published_train["example_id"])
    found: list[tuple[str, str | None]] = []
    for name in data.train["example_id"]:
        added = None if name in places else _ADDED.search(name)
        found.append((name, None) if added is None else (name[: added.start()], added["kind"]))
    return found


def _cross_fitted(train: pl.DataFrame, scheme: LabelScheme) -> npt.NDArray[np.float64]:
    answers = cross_fitted(train, scheme)
    if answers is None:
        raise UserError(
            f"--objective: the {train.height} training rows are of one law (or one premise, without laws); "
            "hyponly-v1 must be trained on other laws than it answers"
        )
    return answers


def _without_empty(names: tuple[str, ...], weights: npt.NDArray[np.float32]) -> RowGroups:
    filled = np.flatnonzero(weights.any(axis=0))
    return RowGroups(tuple(names[group] for group in filled), weights[:, filled])


def _check_groups(groups: RowGroups, config: ExperimentConfig) -> None:
    described = "; ".join(f"{name} {rows:.4g}" for name, rows in zip(groups.names, groups.sizes, strict=True))
    log.info("%s: groups of training rows: %s", config.objective, described)
    num_groups = len(groups.names)
    if num_groups < 2:
        raise UserError(
            f"--objective {config.objective} needs two groups of training rows, there is one ({described}); "
            f"a domain is a group from {MIN_DOMAIN_ROWS} rows on"
        )
    processes = config.engine.devices * config.engine.num_nodes
    width = config.packing.batch_size * processes * config.optim.accumulate
    needed = MIN_GROUP_ROWS * num_groups
    if width < needed:
        raise UserError(
            f"--objective {config.objective} has {num_groups} groups and needs {needed} rows in an optimizer step, "
            f"{MIN_GROUP_ROWS} of each; --batch-size {config.packing.batch_size} over {processes} processes gives "
            f"{width}: take --batch-size {-(-needed // (processes * config.optim.accumulate))} or more"
        )
