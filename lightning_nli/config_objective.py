"""`--objective`: one text that names the training loss, and the settings it cannot go with."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from typing import Literal

from lightning_nli.config_augment import augment_spec
from lightning_nli.config_schema import ExperimentConfig
from lightning_nli.types import UserError


@dataclass(frozen=True)
class ObjectiveSpec:
    """A parsed `--objective`.

    Attributes:
        kind: Name of the loss.
        groups: What its groups of training rows are, None without groups: `domain`, or `bias` (label x whether
            `hyponly-v1` is right).
        strength: ETA of GroupDRO, BETA of V-REx, WEIGHT of ranking, else None.
        margin: Of the margin loss of ranking; None: the logistic one.
    """

    kind: Literal["cross_entropy", "domain_balanced", "group_dro", "vrex", "product_of_experts", "reweight", "ranking"]
    groups: Literal["domain", "bias"] | None = None
    strength: float | None = None
    margin: float | None = None

    @property
    def has_group_risks(self) -> bool:
        """Whether the loss is made of the mean losses of groups, over one optimizer step."""
        return self.kind in ("group_dro", "vrex")

    @property
    def has_pairs(self) -> bool:
        """Whether the loss compares a row with its swaps, which must then share a pack."""
        return self.kind == "ranking"


OBJECTIVES: dict[str, ObjectiveSpec] = {
    "cross_entropy": ObjectiveSpec("cross_entropy"),
    "domain_balanced": ObjectiveSpec("domain_balanced", "domain"),
    "group_dro:domain": ObjectiveSpec("group_dro", "domain", 0.01),
    "group_dro:bias": ObjectiveSpec("group_dro", "bias", 0.01),
    "vrex": ObjectiveSpec("vrex", "domain", 1.0),
    "product_of_experts": ObjectiveSpec("product_of_experts"),
    "reweight": ObjectiveSpec("reweight"),
    "ranking": ObjectiveSpec("ranking", strength=1.0),
    "ranking:margin": ObjectiveSpec("ranking", strength=1.0, margin=1.0),
}
"""Every objective under its name, with its default strength."""

_PARAMETERS = {"group_dro": "ETA", "vrex": "BETA", "ranking": "WEIGHT"}


def parse_objective(text: str) -> ObjectiveSpec:
    """`vrex=0.5` -> V-REx by domain with BETA 0.5; without a number its default.

    Raises:
        UserError: an unknown name, a number where none is taken, or one that is not above 0.
    """
    name, has_number, number = text.partition("=")
    spec = OBJECTIVES.get(name)
    if spec is not None and not has_number:
        return spec
    if spec is not None and spec.strength is not None and re.fullmatch(r"[0-9.]+(e[+-]?[0-9]+)?", number):
        strength = _number(number)
        if 0 < strength < math.inf:
            return replace(spec, strength=strength)
    raise UserError(f"--objective '{text}': write one of {', '.join(_describe(name) for name in OBJECTIVES)}")


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:  # 1.2.3
        return math.nan


def _describe(name: str) -> str:
    spec = OBJECTIVES[name]
    if spec.strength is None:
        return name
    parameter = _PARAMETERS[spec.kind]
    return f"{name}[={parameter}] ({parameter} above 0, by default {spec.strength:g})"


def check_objective(config: ExperimentConfig) -> None:
    """Refuse what cannot go with the objective.

    Raises:
        UserError: an objective that does not exist; groups with --max-tokens; group risks with --accumulate; ranking
            without swaps, on hypotheses alone, or with packs that cannot hold a row and its swaps.
    """
    spec = parse_objective(config.objective)
    if spec.has_group_risks and config.optim.accumulate > 1:
        raise UserError(
            f"--objective {config.objective} with --accumulate {config.optim.accumulate}: the weight of each group "
            "follows from all rows of the optimizer step, and is needed before the first of them is "
            "differentiated; take --accumulate 1 and a larger --batch-size"
        )
    if spec.groups is not None and config.packing.max_tokens is not None:
        raise UserError(
            f"--objective {config.objective} with --max-tokens {config.packing.max_tokens}: every optimizer step "
            "must hold rows of every group, so rows are counted; give --batch-size instead"
        )
    if spec.has_pairs:
        _check_pairs(config)


def _check_pairs(config: ExperimentConfig) -> None:
    swaps = augment_spec(config.augment)
    if swaps is None:
        raise UserError(
            f"--objective {config.objective} compares rows with their swaps, and --augment is none: give "
            "--augment premise_swap=1+1"
        )
    if config.segments != "auto" and "premise" not in config.segments.split(","):
        raise UserError(
            f"--objective {config.objective} with --segments {config.segments}: without the premise a row and its swap "
            "are the same text; add premise to --segments"
        )
    rows, packing = 1 + swaps.num_swaps, config.packing
    if packing.max_tokens is None and rows > packing.batch_size:
        raise UserError(
            f"--objective {config.objective} with --augment {config.augment}: a row and its swaps are {rows} rows of "
            f"one pack; take --batch-size {rows} or more, not {packing.batch_size}"
        )
    if packing.max_tokens is not None and rows * config.text.max_length > packing.max_tokens:
        raise UserError(
            f"--objective {config.objective} with --augment {config.augment}: a row and its swaps are {rows} segments "
            f"of up to {config.text.max_length} tokens in one pack; take --max-tokens {rows * config.text.max_length} "
            f"or more, not {packing.max_tokens}"
        )
