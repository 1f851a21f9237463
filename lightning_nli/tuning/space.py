"""Which settings a sweep varies: a YAML file of distributions over settings, checked before anything starts."""

from __future__ import annotations

import itertools
import json
import math
import random
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from lightning_nli.config import ExperimentConfig, check_config, flat_settings, leaf_names, load_config, unknown_name
from lightning_nli.types import UserError

KINDS = ("choice", "uniform", "loguniform", "randint", "lograndint")

_WHAT_IS_SCORED = (
    *("data", "test_data", "train_split", "val_split", "test_split", "val_fraction", "subset", "split_seed"),
    *("label_scheme", "on_bad_row", "method"),
)
_WHERE_IT_RUNS = (
    *("run_dir", "resume"),
    *(f"engine.{name}" for name in ("devices", "num_nodes", "strategy", "accelerator", "threads", "max_time")),
)
FIXED = frozenset((*_WHAT_IS_SCORED, *_WHERE_IT_RUNS))
"""Settings that a sweep never varies: they say what is scored, or belong to the machine."""

_DIGITS = 6
_MAX_REPEATED_DRAWS = 200

Settings = dict[str, Any]


@dataclass(frozen=True)
class Domain:
    """Values of one setting.

    Attributes:
        kind: One of `KINDS`; `randint` and `lograndint` include both ends.
        values: The choices, or the lower and the upper end.
    """

    kind: str
    values: tuple[Any, ...]

    def draw(self, rng: random.Random) -> Any:
        """One value; numbers have six digits."""
        if self.kind == "choice":
            return self.values[int(rng.random() * len(self.values))]
        low, high = self.values
        share = rng.random()
        if self.kind == "randint":
            return low + min(high - low, int(share * (high - low + 1)))
        if self.kind == "lograndint":
            value = math.exp(math.log(low) + share * (math.log(high + 1) - math.log(low)))
            return max(low, min(high, int(value)))
        if self.kind == "loguniform":
            value = math.exp(math.log(low) + share * (math.log(high) - math.log(low)))
        else:
            value = low + share * (high - low)
        return min(high, max(low, float(f"{value:.{_DIGITS}g}")))

    def as_mutation(self) -> Any:
        """How population-based training changes a value: a list is walked along, a range scaled."""
        return list(self.values) if self.kind == "choice" else self.as_tune()

    def as_tune(self) -> Any:
        """The same for Ray Tune."""
        from ray import tune

        if self.kind == "choice":
            return tune.choice(list(self.values))
        low, high = self.values
        if self.kind in ("randint", "lograndint"):
            return getattr(tune, self.kind)(low, high + 1)
        return getattr(tune, self.kind)(low, high)


@dataclass(frozen=True)
class SearchSpace:
    """The settings that trials differ in.

    Attributes:
        domains: Dotted name -> values.
    """

    domains: Mapping[str, Domain]

    def as_dict(self) -> dict[str, dict[str, list[Any]]]:
        """As the file has it, names dotted."""
        return {name: {domain.kind: list(domain.values)} for name, domain in self.domains.items()}

    def draw(self, num_samples: int, seed: int) -> list[Settings]:
        """Different settings, the first N the same however many are drawn; fewer where a small space has no more."""
        drawn: list[Settings] = []
        known: set[str] = set()
        number = 0
        while len(drawn) < num_samples and number < num_samples + _MAX_REPEATED_DRAWS:
            settings = {
                name: domain.draw(random.Random(f"{seed}/{number}/{name}")) for name, domain in self.domains.items()
            }
            number += 1
            key = settings_key(settings)
            if key not in known:
                known.add(key)
                drawn.append(settings)
        return drawn

    def grid(self) -> list[Settings]:
        """Every combination of choices.

        Raises:
            UserError: a setting has no list of choices.
        """
        for name, domain in self.domains.items():
            if domain.kind != "choice":
                raise UserError(f"--search grid: {name} is {domain.kind}; a grid needs {name}: {{choice: [...]}}")
        names = list(self.domains)
        combinations = itertools.product(*(domain.values for domain in self.domains.values()))
        return [dict(zip(names, values, strict=True)) for values in combinations]


def settings_key(settings: Mapping[str, Any]) -> str:
    """One text for equal settings."""
    return json.dumps(dict(settings), sort_keys=True, ensure_ascii=False)


def load_space(path: Path, base: ExperimentConfig) -> SearchSpace:
    """Read a space and check that every value fits its setting.

    Args:
        path: YAML file, `NAME: {KIND: [...]}`; names bare, dotted or under their group.
        base: Settings that trials start from.

    Raises:
        UserError: the file, a name, a kind or a value is not as it must be.
    """
    import yaml

    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"no search space {path}; spaces of this project are in experiments/tune/") from None
    except (OSError, yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"search space {path} cannot be read: {' '.join(str(error).split())}") from None
    return check_space(values, base, str(path))


def check_space(values: Any, base: ExperimentConfig, where: str) -> SearchSpace:
    """A space from plain values.

    Raises:
        UserError: names the entry at fault.
    """
    if not isinstance(values, dict) or not values:
        raise UserError(f"{where}: a search space holds lines like 'optim.lr: {{loguniform: [1.0e-5, 1.0e-4]}}'")
    groups = {name.split(".")[0] for name in leaf_names().values() if "." in name}
    flat: dict[str, Any] = {}
    for name, value in values.items():
        inner = {f"{name}.{leaf}": held for leaf, held in value.items()} if _is_group(name, value, groups) else None
        for key, held in (inner if inner is not None else {str(name): value}).items():
            dotted = _dotted(key, where)
            if dotted in flat:
                raise UserError(f"{where}: {dotted} is given twice")
            flat[dotted] = held
    return SearchSpace(_typed({name: _domain(name, value, where) for name, value in flat.items()}, base, where))


def _is_group(name: Any, value: Any, groups: set[str]) -> bool:
    return name in groups and isinstance(value, dict) and not set(value) & set(KINDS)


def _dotted(name: str, where: str) -> str:
    leaves = leaf_names()
    dotted = name if name in leaves.values() else leaves.get(name.replace("-", "_"))
    if dotted is None:
        raise unknown_name(name, where=where)
    if dotted in FIXED or dotted.startswith("checkpoints."):
        raise UserError(f"{where}: {dotted} cannot be searched: it says what is scored, or where a trial runs")
    return dotted


def _domain(name: str, value: Any, where: str) -> Domain:
    kinds = ", ".join(KINDS)
    if not isinstance(value, dict) or len(value) != 1 or next(iter(value)) not in KINDS:
        raise UserError(f"{where}: {name}: write {{KIND: [...]}} with one of {kinds}; got {value!r}")
    ((kind, given),) = value.items()
    if not isinstance(given, list) or not given:
        raise UserError(f"{where}: {name}: {kind} takes a list, got {given!r}")
    given = [_number(item) for item in given] if kind != "choice" else given
    if kind == "choice":
        if len({json.dumps(item) for item in given}) != len(given):
            raise UserError(f"{where}: {name}: a choice stands there twice: {given}")
        return Domain(kind, tuple(given))
    wanted = int if kind.endswith("randint") else (int, float)
    if len(given) != 2 or not all(isinstance(item, wanted) and not isinstance(item, bool) for item in given):
        raise UserError(
            f"{where}: {name}: {kind} takes two {'whole ' if wanted is int else ''}numbers [low, high], got {given}"
        )
    low, high = given
    if not low < high or not all(math.isfinite(item) for item in given):
        raise UserError(f"{where}: {name}: {kind} needs low < high, got {given}")
    if kind.startswith("log") and low <= 0:
        raise UserError(f"{where}: {name}: {kind} needs a low end above 0, got {low}")
    return Domain(kind, (low, high) if wanted is int else (float(low), float(high)))


def _number(value: Any) -> Any:
    """YAML reads `1e-5` as text; everybody means the number."""
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value


def _typed(domains: dict[str, Domain], base: ExperimentConfig, where: str) -> dict[str, Domain]:
    """The domains with every value in its setting's own type, as a file of settings would give it.

    The first values of all domains are read together, then the second ones, ...; one by one only where some do not go
    together, which settings that are drawn need not do.
    """
    typed: dict[str, list[Any]] = {name: [] for name in domains}
    for place in range(max(len(domain.values) for domain in domains.values())):
        together = {name: domain.values[place] for name, domain in domains.items() if place < len(domain.values)}
        try:
            found = _typed_values(together, base)
        except UserError:
            found = {}
            for name, value in together.items():
                try:
                    found |= _typed_values({name: value}, base)
                except UserError as error:
                    kind = domains[name].kind
                    raise UserError(f"{where}: {name}: {kind}: value {value!r} does not fit: {error}") from None
        for name, value in found.items():
            typed[name].append(value)
    return {name: replace(domain, values=tuple(typed[name])) for name, domain in domains.items()}


def _typed_values(settings: Mapping[str, Any], base: ExperimentConfig) -> dict[str, Any]:
    values = asdict(base)
    for name, value in settings.items():
        group, _, leaf = name.rpartition(".")
        (values[group] if group else values)[leaf] = value
    flat = flat_settings(asdict(config_from(values)))
    return {name: flat[name] for name in settings}


def with_settings(base: ExperimentConfig, settings: Mapping[str, Any]) -> ExperimentConfig:
    """`base` with other settings, each of its own type already.

    Raises:
        UserError: settings that do not go together.
    """
    config = base
    for name, value in settings.items():
        group, _, leaf = name.rpartition(".")
        changed = {group: replace(getattr(config, group), **{leaf: value})} if group else {leaf: value}
        config = replace(config, **changed)
    return check_config(config)


def config_from(values: Mapping[str, Any]) -> ExperimentConfig:
    """Settings from plain, nested values.

    Raises:
        UserError: as `load_config`.
    """
    import yaml

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "settings.yaml"
        path.write_text(yaml.safe_dump(dict(values), sort_keys=False, allow_unicode=True), encoding="utf-8")
        try:
            return load_config(path)
        except UserError as error:
            raise UserError(str(error).removeprefix(f"{path}: ")) from None
