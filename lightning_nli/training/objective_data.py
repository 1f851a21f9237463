"""What an objective must know of the training rows: their groups, and what an expert blind to the premise answers."""

from __future__ import annotations

import logging
import re
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import polars as pl

from lightning_nli.baselines import cross_fitted
from lightning_nli.config import ExperimentConfig
from lightning_nli.config_objective import parse_objective
from lightning_nli.data.groups import MIN_GROUP_ROWS, RowGroups
from lightning_nli.metrics import label_indices
from lightning_nli.models.objectives import GroupDRO, Objective, ProductOfExperts, Reweight, VREx
from lightning_nli.training.corpora import RunData
from lightning_nli.types import DOMAINS, LabelScheme, UserError

log = logging.getLogger(__name__)

MIN_DOMAIN_ROWS = 100
"""Training rows of a domain that is a group of its own."""

SMALL_DOMAINS = "other domains"
"""Group of the domains with fewer rows, of `other`, and of rows without a domain."""

_LOWEST_PROBABILITY = 1e-6  # of an expert: its logarithm must be finite
_SWAP_SUFFIX = re.compile(r"~swap\d+$")  # of rows added by `swaps.augment_with_swaps`

LogProbabilities = npt.NDArray[np.float64]


def build_objective(config: ExperimentConfig, data: RunData) -> tuple[Objective, RowGroups | None]:
    """The run's training loss, with tables over `data.train`, and the groups that every optimizer step must hold.

    Raises:
        UserError: there are not two groups, the global batch cannot hold 4 rows of each, or one law alone cannot be
            cross-fitted.
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
    if spec.kind == "product_of_experts":
        return ProductOfExperts(expert_log_probabilities(data)), None
    if spec.kind == "reweight":
        return Reweight(expert_log_probabilities(data), label_indices(data.train, "label", data.scheme)), None
    return Objective(), None


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
    place = {example_id: row for row, example_id in enumerate(published["example_id"])}
    ids = (name if name in place else _SWAP_SUFFIX.sub("", name) for name in data.train["example_id"])
    rows = [place[name] for name in ids]
    logarithms: LogProbabilities = np.log(np.maximum(answers[rows], _LOWEST_PROBABILITY))
    return logarithms


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
