"""One run's settings: frozen dataclasses <-> YAML <-> flags, strict about unknown names."""

from __future__ import annotations

import difflib
import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

from lightning_nli.config_augment import check_augment
from lightning_nli.config_engine import check_engine_settings
from lightning_nli.config_help import config_help, settings
from lightning_nli.config_monitor import check_monitor
from lightning_nli.config_objective import check_objective
from lightning_nli.config_schema import (
    CheckpointConfig,
    EngineConfig,
    ExperimentConfig,
    OptimConfig,
    PackingConfig,
    SetFitConfig,
    TextConfig,
    leaf_names,
)
from lightning_nli.config_setfit import check_setfit
from lightning_nli.config_text import check_text
from lightning_nli.types import SCHEMES, SEGMENT_NAMES, UserError

__all__ = [
    "CheckpointConfig",
    "EngineConfig",
    "ExperimentConfig",
    "OptimConfig",
    "PackingConfig",
    "SetFitConfig",
    "TextConfig",
    "cache_root",
    "check_config",
    "config_hash",
    "config_help",
    "deciding_settings",
    "flat_settings",
    "hypothesis_only_twin",
    "leaf_names",
    "load_config",
    "parse_config",
    "run_folder",
    "save_config",
]

# What other tools call a setting, so that a wrong name still finds its mend.
_OTHER_NAMES = {
    "learning_rate": "lr",
    "num_train_epochs": "epochs",
    "max_epochs": "epochs",
    "gradient_accumulation_steps": "accumulate",
    "accumulate_grad_batches": "accumulate",
    "per_device_train_batch_size": "batch_size",
    "max_seq_length": "max_length",
    "gradient_clip_val": "clip",
    "max_grad_norm": "clip",
    "warmup_ratio": "warmup_fraction",
    "output_dir": "run_dir",
    "model_name_or_path": "model",
}

_SWITCHES = ("engine.activation_checkpointing", "engine.compile")  # given without a value they mean true

# What decides where a run lives and how fast it goes, but not what it computes.
NOT_HASHED = (
    *("run_dir", "resume", "engine.threads", "engine.num_workers", "engine.max_time"),
    *("engine.offload_dir", "checkpoints.save_minutes"),
)

BLIND_SETTINGS: dict[str, Any] = {"segments": "hypothesis", "augment": "none", "objective": "cross_entropy"}
"""What makes a run its own twin on hypotheses alone."""


def unknown_name(name: str, *, where: str) -> UserError:
    """The error for a setting that does not exist, with the nearest one that does."""
    leaves = leaf_names()
    near = difflib.get_close_matches(
        name.lstrip("-").rsplit(".", 1)[-1].replace("-", "_"), [*leaves, *_OTHER_NAMES], n=1
    )
    hint = f"; did you mean '{leaves[_OTHER_NAMES.get(near[0], near[0])]}'?" if near else ""
    return UserError(f"{where}: unknown setting '{name}'{hint}")


def _check_names(values: dict[str, Any], where: str) -> None:
    known = {setting.name: setting for setting in settings()}
    groups = {name.split(".")[0] for name in known if "." in name}
    for key, value in values.items():
        if key in groups and not isinstance(value, dict):
            raise UserError(f"{where}: '{key}' is a group: it must hold settings as 'name: value'")
        inner = {f"{key}.{leaf}": held for leaf, held in value.items()} if key in groups else {str(key): value}
        for name, held in inner.items():
            if name not in known:
                raise unknown_name(name, where=where)
            if held is None and known[name].default != "null":
                raise UserError(f"{where}: {name}: expected {known[name].takes}, got null")


def _parser() -> Any:
    import jsonargparse

    jsonargparse.set_parsing_settings(docstring_parse_attribute_docstrings=False)
    parser = jsonargparse.ArgumentParser(prog="lnli fit", exit_on_error=False, add_help=False)
    parser.add_class_arguments(ExperimentConfig)
    parser.add_argument("--config", action="config", help="YAML file of settings; flags beat it, in any order")
    return parser


def parse_config(arguments: Sequence[str]) -> ExperimentConfig:
    """Settings from flags (`--lr 1e-4`, `--optim.lr 1e-4`, `--batch-size 16`) and `--config FILE`.

    Raises:
        UserError: an unknown or repeated setting, a value of the wrong type, a file that cannot be read.
    """
    from jsonargparse import ArgumentError

    given, flags = _rewrite_flags(arguments)
    files = [f"--config={file}" for file in given if _read_yaml(Path(file))]  # without those that set nothing
    parser = _parser()
    try:
        for file in files:  # each alone first, so that an error can name it
            where = file.partition("=")[2]
            parser.parse_args([file])
        where = ""
        config = parser.instantiate_classes(parser.parse_args([*files, *flags]))
    except ArgumentError as error:
        raise _readable(str(error), where) from None
    values = {item.name: config[item.name] for item in fields(ExperimentConfig)}
    return check_config(ExperimentConfig(**values))


def _readable(message: str, where: str) -> UserError:
    """The parser's complaint about a value in the user's words: file or flag, what it takes, what it got."""
    message = " ".join(message.split())
    found = re.search(r'key "([\w.]+)"', message)
    setting = next((setting for setting in settings() if found and setting.name == found[1]), None)
    if setting is None:
        return UserError(f"{where}: {message}" if where else message)
    value = re.split(r"(?:Given|Got) value:", message)[-1].strip()
    place = f"{where}: {setting.name}" if where else setting.flag
    hint = "; in YAML a text that looks like a number, a time or yes/no needs quotes" if setting.word == "TEXT" else ""
    return UserError(f"{place}: expected {setting.takes}, got '{value}'{hint if where else ''}")


def _rewrite_flags(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Bare names to dotted ones, repeated list flags to one JSON list, config files first."""
    leaves = leaf_names()
    known = set(leaves.values())
    files: list[str] = []
    values: dict[str, list[str]] = {}
    pending = list(arguments)
    while pending:
        flag = pending.pop(0)
        if not flag.startswith("--"):
            raise UserError(f"unexpected argument '{flag}'; settings are given as --name value")
        name, has_value, value = flag[2:].partition("=")
        name = name.replace("-", "_")
        name = name if name in known else leaves.get(name, name)
        if name != "config" and name not in known:
            raise unknown_name(flag.split("=")[0], where="command line")
        if not has_value:
            is_alone = not pending or pending[0].startswith("--")
            if is_alone and name not in _SWITCHES:
                raise UserError(f"{flag} needs a value")
            value = "true" if is_alone else pending.pop(0)
        if name == "config":
            files.append(value)
        else:
            values.setdefault(name, []).append(value)
    return files, [f"--{name}={_one_value(name, given)}" for name, given in values.items()]


def _one_value(name: str, given: list[str]) -> str:
    if name in ("data", "test_data"):
        return json.dumps(given, ensure_ascii=False) if len(given) > 1 or name == "test_data" else given[0]
    if len(given) > 1:
        raise UserError(f"--{name} is given {len(given)} times: {', '.join(given)}")
    return given[0]


def _read_yaml(path: Path) -> dict[str, Any]:
    import yaml

    try:
        text = path.read_text(encoding="utf-8")
        values = yaml.safe_load(text)
        _check_repeated(yaml.compose(text, Loader=yaml.SafeLoader), where=str(path))
    except FileNotFoundError:
        raise UserError(f"config file {path} does not exist") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"config file {path} is not valid YAML: {' '.join(str(error).split())}") from None
    except OSError as error:
        raise UserError(f"config file {path} cannot be read: {error.strerror}") from None
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise UserError(f"config file {path} must hold settings as 'name: value'")
    _check_names(values, where=str(path))
    return values


def _check_repeated(node: Any, where: str) -> None:
    """YAML takes the last of two equal keys without a word; we do not."""
    seen: set[str] = set()
    for key, value in node.value if getattr(node, "id", "") == "mapping" else ():
        if str(key.value) in seen:
            raise UserError(f"{where}: '{key.value}' is given twice (line {key.start_mark.line + 1})")
        seen.add(str(key.value))
        _check_repeated(value, where)


def load_config(path: Path | str) -> ExperimentConfig:
    """Settings from a YAML file.

    Raises:
        UserError: the file is missing or broken, or holds an unknown setting or a value of the wrong type.
    """
    return parse_config(["--config", str(path)])


def save_config(config: ExperimentConfig, path: Path) -> None:
    """Write every setting, defaults included, as YAML that `load_config` reads back equal."""
    import yaml

    text = yaml.safe_dump(asdict(config), sort_keys=False, allow_unicode=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)


def check_config(config: ExperimentConfig) -> ExperimentConfig:
    """Return `config` if its values make sense together.

    Raises:
        UserError: names the setting, its value and the mend.
    """
    positive = {
        "max_length": config.text.max_length,
        "batch_size": config.packing.batch_size,
        "eval_max_tokens": config.packing.eval_max_tokens,
        "epochs": config.optim.epochs,
        "accumulate": config.optim.accumulate,
        "devices": config.engine.devices,
        "num_nodes": config.engine.num_nodes,
        "keep": config.checkpoints.keep,
        "lr": config.optim.lr,
        "subset": 1 if config.subset is None else config.subset,
        "threads": 1 if config.engine.threads is None else config.engine.threads,
        "max_tokens": 1 if config.packing.max_tokens is None else config.packing.max_tokens,
    }
    for name, value in positive.items():
        if value <= 0:
            raise UserError(f"--{name.replace('_', '-')} must be above 0, got {value}")
    at_least_0 = {
        "weight_decay": config.optim.weight_decay,
        "clip": config.optim.clip,
        "num_workers": config.engine.num_workers,
        "every": config.checkpoints.every,
    }
    for name, value in at_least_0.items():
        if value < 0:
            raise UserError(f"--{name.replace('_', '-')} must not be below 0, got {value}")
    if not 0 <= config.seed < 2**32:
        raise UserError(f"--seed must lie between 0 and {2**32 - 1}, got {config.seed}")
    if not 0 < config.val_fraction < 1:
        raise UserError(f"--val-fraction must lie between 0 and 1, got {config.val_fraction}")
    if not 0 <= config.optim.warmup_fraction <= 1:
        raise UserError(f"--warmup-fraction must lie between 0 and 1, got {config.optim.warmup_fraction}")
    if config.optim.dropout is not None and not 0 <= config.optim.dropout < 1:
        raise UserError(f"--dropout must lie between 0 and 1, got {config.optim.dropout}")
    _check_combinations(config)
    return config


def _check_combinations(config: ExperimentConfig) -> None:
    if not config.sources or not all(config.sources):
        raise UserError("--data needs a source: READER:PATH[#SPLIT], a file, or sample[:N]")
    if config.val_split == config.test_split and config.val_split not in ("auto", "none"):
        raise UserError(
            f"--val-split and --test-split are both '{config.val_split}': the same rows would choose and score"
        )
    if config.label_scheme != "auto" and config.label_scheme not in SCHEMES:
        raise UserError(f"--label-scheme must be one of auto, {', '.join(SCHEMES)}; got '{config.label_scheme}'")
    segments = config.segments.split(",")
    if config.segments != "auto" and (set(segments) - set(SEGMENT_NAMES) or len(set(segments)) != len(segments)):
        raise UserError(f"--segments takes names of {', '.join(SEGMENT_NAMES)}, each once; got '{config.segments}'")
    check_text(config.text, None if config.segments == "auto" else segments)
    check_monitor(config.checkpoints.monitor)
    check_augment(config)
    check_objective(config)
    check_setfit(config)
    check_engine_settings(config)
    _check_baseline(config)
    if config.packing.max_tokens is not None:
        if config.packing.batch_size != PackingConfig.batch_size:
            raise UserError("--batch-size and --max-tokens exclude each other; give one")
        if config.packing.max_tokens < config.text.max_length:
            raise UserError(
                f"--max-tokens {config.packing.max_tokens} is below --max-length {config.text.max_length}: "
                "a segment would not fit into a pack"
            )
    if config.packing.eval_max_tokens < config.text.max_length:
        raise UserError(
            f"--eval-max-tokens {config.packing.eval_max_tokens} is below --max-length {config.text.max_length}"
        )


def _check_baseline(config: ExperimentConfig) -> None:
    """A model without an encoder takes no encoder's settings: better an error than one that does nothing."""
    if config.method in ("finetune", "setfit"):
        return
    plain = ExperimentConfig()
    ignored = ["model", "head", "objective", "augment", "packing", "optim", "engine", "checkpoints"]
    ignored += ["segments"] if config.method != "linear-v1" else []
    changed = [name for name in ignored if getattr(config, name) != getattr(plain, name)]
    if changed:
        raise UserError(f"--method {config.method} trains no encoder; leave out what you set of: {', '.join(changed)}")


def config_hash(config: ExperimentConfig) -> str:
    """Eight hex digits over every setting that decides what a run computes."""
    text = json.dumps(deciding_settings(config), sort_keys=True, ensure_ascii=False)
    return hashlib.blake2b(text.encode(), digest_size=4).hexdigest()


def deciding_settings(config: ExperimentConfig) -> dict[str, Any]:
    """The settings, nested, that decide what a run computes: all but `NOT_HASHED`, and those of another method."""
    values = asdict(config)
    for name in NOT_HASHED:
        group, _, leaf = name.rpartition(".")
        del (values[group] if group else values)[leaf]
    if config.method != "setfit":
        del values["setfit"]
    return values


def flat_settings(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings by dotted name."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        dotted = f"{prefix}{name}"
        flat |= flat_settings(value, f"{dotted}.") if isinstance(value, Mapping) else {dotted: value}
    return flat


def run_folder(config: ExperimentConfig) -> Path:
    """The run's folder: as given, else `runs/NAME-HASH`, the same for the same settings, so a requeue finds it."""
    if config.run_dir is not None:
        return Path(config.run_dir)
    reader = config.sources[0].partition(":")[0].partition("#")[0]
    name = "-".join([Path(reader).stem, Path(config.model).name if config.method == "finetune" else config.method])
    return Path("runs") / f"{name}-{config_hash(config)}"


def hypothesis_only_twin(config: ExperimentConfig) -> ExperimentConfig:
    """The same recipe, plainly trained, on hypotheses alone: what premise gain is measured against."""
    return replace(config, **BLIND_SETTINGS, run_dir=None, resume="never")


def cache_root() -> Path:
    """Where converted encoders, tokens and swap ids are kept: `LNLI_CACHE`, else the user's cache folder."""
    default = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "lightning_nli"
    return Path(os.environ.get("LNLI_CACHE", default))
