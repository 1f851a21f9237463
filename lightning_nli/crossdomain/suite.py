"""A suite: what is held out, what trains on what, under which recipe; one versioned YAML file.

Two boards may only be compared if suite, version and data fingerprint are the same: the suite's key says so.
"""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning_nli.config import ExperimentConfig, deciding_settings, flat_settings, parse_config
from lightning_nli.config_setfit import ENCODER_METHODS
from lightning_nli.crossdomain.folds import (
    Fold,
    disjoint,
    k_folds,
    leave_domains_out,
    leave_one_domain_out,
    pairwise,
    smallest_training_set,
)
from lightning_nli.crossdomain.pool import Pool, build_pool
from lightning_nli.crossdomain.selection import ID_VAL, LEAVE_ONE_OUT, SELECTIONS, select
from lightning_nli.data.readers import read_source
from lightning_nli.types import UserError

if TYPE_CHECKING:
    from lightning_nli.training.result import Judge

SCHEMES = (
    "leave-one-domain-out",
    "leave-domain-group-out",
    "disjoint",
    "pairwise",
    "leave-law-out",
    "in-domain",
)

HOLD_DOMAINS_OUT = ("leave-one-domain-out", "leave-domain-group-out", "disjoint")
"""Schemes in which a training domain can stand for the held-out ones (`selection: leave_one_out`)."""

BUILT_IN_MODELS: dict[str, dict[str, Any]] = {
    "majority": {"method": "majority"},
    "hyponly-v1": {"method": "hyponly-v1"},
    "overlap-v1": {"method": "overlap-v1"},
}
"""Baselines that every suite knows; any other name is one of the suite's own models, or the name of an encoder."""

OWNED = (
    "data",
    "test_data",
    "train_split",
    "val_split",
    "test_split",
    "subset",
    "seed",
    "split_seed",
    "run_dir",
    "resume",
)
"""Settings that the suite decides, never a recipe or a model."""


@dataclass(frozen=True, kw_only=True)
class Suite:
    """One suite file.

    Attributes:
        name: Of the suite.
        version: Raised whenever a figure could change.
        data: Sources of the pool.
        on_bad_row: As in `lnli fit`.
        fingerprint: Of the pool; null: unverified, any pool is taken.
        swap_ids: Hash of the swapped premises that the pool is scored under; null: unverified.
        hard_ids: Hash of the pool's hard rows; null: unverified.
        scheme: How folds are cut, one of `SCHEMES`.
        domains: Domains held out one at a time; `all`, `core`, or a list.
        groups: Name -> domains, for `leave-domain-group-out`.
        parts: Domains of train, dev and test, for `disjoint`.
        train_rows: Rows of every training set; null: as many as the smallest has.
        references: Also folds by premise and by law, to tell the effect of the law from that of the domain.
        reference_folds: How many of each.
        seeds: Of training; a model that draws nothing has the first alone.
        split_seed: Of folds, `id_val` and training subsets.
        selection: What chooses the checkpoint, one of `SELECTIONS`: best on `id_val` (whole laws of the training
            rows), the `last` one, best on a training domain left out (`leave_one_out`), or best on the tested rows
            (`oracle`: only to know what it would give, never ranked).
        recipe: Settings of every model, by bare or dotted name.
        models: Name -> settings beside the recipe.
    """

    name: str
    version: int
    data: list[str]
    on_bad_row: str = "error"
    fingerprint: str | None = None
    swap_ids: str | None = None
    hard_ids: str | None = None
    scheme: str = "leave-one-domain-out"
    domains: str | list[str] = "all"
    groups: dict[str, list[str]] = field(default_factory=dict)
    parts: dict[str, list[str]] = field(default_factory=dict)
    train_rows: int | None = None
    references: bool = True
    reference_folds: int = 10
    seeds: list[int] = field(default_factory=lambda: [1])
    split_seed: int = 1
    selection: str = ID_VAL
    recipe: dict[str, Any] = field(default_factory=dict)
    models: dict[str, dict[str, Any]] = field(default_factory=dict)

    def key(self, pool: Pool) -> dict[str, Any]:
        """What two records must share to stand on one board."""
        key = {"suite": self.name, "version": self.version, "data": pool.fingerprint}
        return key if self.selection == ID_VAL else key | {"selection": self.selection}


@dataclass(frozen=True)
class Cell:
    """One training: a model, a fold, a seed.

    Attributes:
        model: Its name on the board.
        fold: Name of the fold.
        seed: Of training.
        cell_id: Hash of all that decides the outcome.
        config: Settings of the run, without its folder.
    """

    model: str
    fold: str
    seed: int
    cell_id: str
    config: ExperimentConfig


def load_suite(path: Path) -> Suite:
    """Read a suite file.

    Raises:
        UserError: it is missing, no YAML, or holds an unknown or mistyped name.
    """
    import yaml

    if not path.is_file():
        raise UserError(f"no suite file {path}; suites of this project are in benchmarks/suites/")
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"suite {path} is not valid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(values, dict):
        raise UserError(f"suite {path} must hold 'name: value' lines")
    return check_suite(values, str(path))


def check_suite(values: Mapping[str, Any], where: str) -> Suite:
    """A suite from plain values.

    Raises:
        UserError: names the entry at fault.
    """
    known = {item.name for item in fields(Suite)}
    for name in values:
        if name not in known:
            near = difflib.get_close_matches(str(name), known, n=1)
            raise UserError(f"{where}: unknown entry '{name}'" + (f"; did you mean '{near[0]}'?" if near else ""))
    for name in ("name", "version", "data"):
        if name not in values:
            raise UserError(f"{where}: '{name}' is missing")
    data = [values["data"]] if isinstance(values["data"], str) else values["data"]
    suite = Suite(**{**values, "data": data})
    for name, allowed in {"scheme": SCHEMES, "on_bad_row": ("error", "drop")}.items():
        if getattr(suite, name) not in allowed:
            raise UserError(f"{where}: {name} '{getattr(suite, name)}' is none of {', '.join(allowed)}")
    check_selection(suite, where)
    if not suite.seeds or len(set(suite.seeds)) != len(suite.seeds):
        raise UserError(f"{where}: seeds must be different whole numbers, at least one")
    for owner, settings in {"recipe": suite.recipe, **suite.models}.items():
        taken = sorted(name for name in flat_settings(settings) if name in OWNED)
        if taken:
            raise UserError(f"{where}: {owner} may not set {', '.join(taken)}: the suite does")
    return suite


def check_selection(suite: Suite, where: str) -> None:
    """Refuse a selection that does not exist or has no sense under the suite's scheme.

    Raises:
        UserError: names it, with those that exist.
    """
    if suite.selection not in SELECTIONS:
        raise UserError(f"{where}: selection '{suite.selection}' is none of {', '.join(SELECTIONS)}")
    if suite.selection == LEAVE_ONE_OUT and suite.scheme not in HOLD_DOMAINS_OUT:
        raise UserError(
            f"{where}: selection {LEAVE_ONE_OUT} leaves a training domain out in place of the held-out ones; scheme "
            f"{suite.scheme} has none to leave out, take selection {ID_VAL}"
        )


def load_pool(suite: Suite) -> Pool:
    """Read the suite's sources into its pool.

    Raises:
        UserError: the data are not those of the fingerprint.
    """
    import polars as pl

    corpora = [
        read_source(source, on_bad_row="drop" if suite.on_bad_row == "drop" else "error") for source in suite.data
    ]
    schemes = {corpus.scheme.name for corpus in corpora}
    if len(schemes) > 1:
        raise UserError(f"suite {suite.name}: its sources have the label schemes {sorted(schemes)}; one is needed")
    pool = build_pool(pl.concat([corpus.frame for corpus in corpora]), corpora[0].scheme)
    if suite.fingerprint not in (None, pool.fingerprint):
        raise UserError(
            f"suite {suite.name} version {suite.version} is for the data {suite.fingerprint}, these are "
            f"{pool.fingerprint}: other rows, texts or labels give other figures. For other data copy the suite, "
            "rename it and set its fingerprint to null"
        )
    return pool


def check_judge(suite: Suite, judge: Judge) -> dict[str, str]:
    """Hashes of the swapped premises and of the hard rows, which must be those that the suite names.

    Raises:
        UserError: they are others.
    """
    swaps = sorted(judge.swaps.select("example_id", "kind", "premise_id").iter_rows())
    found = {"swap_ids": _digest(swaps, 8), "hard_ids": _digest(sorted(judge.hard_ids), 8)}
    for name, value in found.items():
        wanted = getattr(suite, name)
        if wanted not in (None, value):
            raise UserError(
                f"suite {suite.name} version {suite.version} is for the {name} {wanted}, here they are {value}: other "
                "versions of this package or of scikit-learn draw others, and figures under them cannot be compared. "
                f"Install what the suite was made with, or copy it, rename it and set {name} to null"
            )
    return found


def _digest(values: Any, size: int) -> str:
    text = json.dumps(values, sort_keys=True, ensure_ascii=False)
    return hashlib.blake2b(text.encode("utf-8"), digest_size=size).hexdigest()


def build_folds(suite: Suite, pool: Pool) -> list[Fold]:
    """The suite's folds, references last, every training set cut to the same size.

    Raises:
        UserError: the scheme or the selection does not fit the pool, or `train_rows` is more than the smallest
            training set has.
    """
    folds = _scheme_folds(suite, pool)
    if suite.references and suite.scheme in ("leave-one-domain-out", "leave-domain-group-out"):
        for unit in ("premise_id", "law_id"):
            folds += k_folds(pool, unit, seed=suite.split_seed, num_folds=suite.reference_folds)
    folds = select(pool, folds, suite.selection, seed=suite.split_seed)
    size = suite.train_rows or smallest_training_set(folds)
    return [fold.take(size) for fold in folds]


def _scheme_folds(suite: Suite, pool: Pool) -> list[Fold]:
    seed = suite.split_seed
    if suite.scheme == "leave-one-domain-out":
        if suite.domains == "core":
            return leave_one_domain_out(pool, seed=seed, domains=pool.core_domains)
        if isinstance(suite.domains, str) and suite.domains != "all":
            raise UserError(f"suite {suite.name}: domains '{suite.domains}' is none of all, core or a list")
        return leave_one_domain_out(pool, seed=seed, domains=None if suite.domains == "all" else list(suite.domains))
    if suite.scheme == "leave-domain-group-out":
        if not suite.groups:
            raise UserError(f"suite {suite.name}: leave-domain-group-out needs groups: name: [domains]")
        return leave_domains_out(pool, suite.groups, seed=seed)
    if suite.scheme == "disjoint":
        return disjoint(pool, suite.parts, seed=seed)
    if suite.scheme == "pairwise":
        return pairwise(pool, seed=seed)
    return k_folds(pool, "law_id" if suite.scheme == "leave-law-out" else "premise_id", seed=seed)


def model_config(suite: Suite, model: str, seed: int) -> ExperimentConfig:
    """Settings of one model under the suite's recipe.

    Raises:
        UserError: a setting is unknown or mistyped.
    """
    own = suite.models.get(model, BUILT_IN_MODELS.get(model, {"model": model}))
    settings = flat_settings(own)
    if "method" not in settings:
        settings = flat_settings(suite.recipe) | settings
    flags = [part for name, value in settings.items() for part in (f"--{name}", _flag_value(value))]
    try:
        config = parse_config([*flags, "--seed", str(seed), "--split-seed", str(suite.split_seed)])
    except UserError as error:
        raise UserError(f"suite {suite.name}, model {model}: {error}") from error
    return replace(config, data=suite.data)


def plan_cells(suite: Suite, pool: Pool, folds: Sequence[Fold], models: Sequence[str]) -> list[Cell]:
    """Every cell of the models asked for, fold by fold."""
    cells = []
    key = suite.key(pool)
    for model in models:
        first = model_config(suite, model, suite.seeds[0])
        seeds = suite.seeds if first.method in ENCODER_METHODS else suite.seeds[:1]
        for seed in seeds:
            config = model_config(suite, model, seed)
            for fold in folds:
                cells.append(Cell(model, fold.name, seed, cell_hash(key, config, fold, suite.selection), config))
    place = {fold.name: number for number, fold in enumerate(folds)}
    return sorted(cells, key=lambda cell: place[cell.fold])


def cell_hash(key: Mapping[str, Any], config: ExperimentConfig, fold: Fold, selection: str) -> str:
    """Twelve hex digits over suite, data, settings, rows and seed."""
    settings = deciding_settings(config)
    rows = {"train": fold.train, "id_val": fold.id_val, "tests": {name: ids for name, ids in fold.tests.items()}}
    return _digest([dict(key), settings, rows, selection], 6)


def _flag_value(value: Any) -> str:
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
