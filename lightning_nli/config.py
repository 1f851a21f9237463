"""One run's settings: frozen dataclasses <-> YAML <-> flags, strict about unknown names."""

from __future__ import annotations

import difflib
import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_type_hints

from lightning_nli.types import SCHEMES, SEGMENT_NAMES, UserError


@dataclass(frozen=True, kw_only=True)
class TextConfig:
    """How a pair becomes tokens.

    Attributes:
        max_length: Longest segment in tokens, special tokens included.
        template: How the texts of a segment are joined; `separators` uses the tokenizer's own separators.
        truncation: What is cut when a segment is too long: `longest_first` (token by token from the longest text),
            `premise_first` (only the premise, as long as it lasts).
        normalize: `nfc` (NFC, soft hyphens and zero-width marks removed, no-break spaces made spaces) or `none`.
        segmenter: Vietnamese word segmentation before tokenizing, for PhoBERT: `none`, `pyvi` or `underthesea`.
    """

    max_length: int = 256
    template: Literal["separators"] = "separators"
    truncation: Literal["longest_first", "premise_first"] = "longest_first"
    normalize: Literal["nfc", "none"] = "nfc"
    segmenter: Literal["none", "pyvi", "underthesea"] = "none"


@dataclass(frozen=True, kw_only=True)
class PackingConfig:
    """How segments share a forward pass.

    Attributes:
        batch_size: Examples per device and micro-step (the same membership as a padded run); ignored by none:
            with `max_tokens` set it must stay at its default.
        max_tokens: Throughput mode: tokens per pack instead of examples per batch; null for off.
        eval_max_tokens: Tokens per pack in validation, test and predict.
    """

    batch_size: int = 16
    max_tokens: int | None = None
    eval_max_tokens: int = 4096


@dataclass(frozen=True, kw_only=True)
class OptimConfig:
    """AdamW and its schedule.

    Attributes:
        lr: Peak learning rate.
        weight_decay: AdamW's decay; never on biases and LayerNorm.
        epochs: Passes over the training split.
        accumulate: Micro-steps per optimizer step; global batch = batch_size x accumulate x processes.
        warmup_fraction: Share of all optimizer steps in which the rate rises linearly from 0.
        schedule: `linear` decay to 0, `cosine` to 0, or `constant`, after the warm-up.
        clip: Largest gradient norm; 0 for no clipping.
    """

    lr: float = 2e-5
    weight_decay: float = 0.01
    epochs: int = 3
    accumulate: int = 1
    warmup_fraction: float = 0.0
    schedule: Literal["linear", "cosine", "constant"] = "linear"
    clip: float = 1.0


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """Where and how it runs.

    Attributes:
        strategy: `auto` (one process, or ddp with several devices), `ddp`, `deepspeed` (stage 2), or
            `deepspeed_stage_1`, `deepspeed_stage_2`, `deepspeed_stage_3`; all of them run on CPU too.
        devices: Processes per node: GPUs, or CPU processes.
        num_nodes: Machines.
        accelerator: `auto` takes the GPU when there is one; `cpu`; `gpu`.
        precision: `auto` (bf16 where the hardware does it natively, else fp32), `fp32`, `bf16` (bf16 weights, fp32
            master weights and optimizer), `bf16-autocast`, `fp16` (GPU only).
        attention: `auto` (flash kernel on GPU, its exact twin `bucketed` on CPU), `flash` (package flash-attn),
            `varlen` (flash kernel inside torch), `bucketed`, `sdpa` (slow reference), `padded` (no packing: for
            encoders whose attention cannot be replaced).
        trim_vocab: `auto` trains only the embedding rows that the run's texts can touch when that halves the
            vocabulary or better (no logit changes; untouched rows come back unchanged on export); `off` trains all.
        activation_checkpointing: Recompute layers in backward: less memory, about a third more time.
        compile: Compile the encoder with torch.compile.
        num_workers: Loader processes a device; packs are cheap to build, 0 is usually best.
        max_time: Stop, save and exit with code 75 after this wall time, as DD:HH:MM:SS; null for no limit.
    """

    strategy: Literal["auto", "ddp", "deepspeed", "deepspeed_stage_1", "deepspeed_stage_2", "deepspeed_stage_3"] = (
        "auto"
    )
    devices: int = 1
    num_nodes: int = 1
    accelerator: Literal["auto", "cpu", "gpu"] = "auto"
    precision: Literal["auto", "fp32", "bf16", "bf16-autocast", "fp16"] = "auto"
    attention: Literal["auto", "flash", "varlen", "bucketed", "sdpa", "padded"] = "auto"
    trim_vocab: Literal["auto", "off"] = "auto"
    activation_checkpointing: bool = False
    compile: bool = False
    num_workers: int = 0
    max_time: str | None = None


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    """What is kept and what chooses the best.

    Attributes:
        monitor: Score that chooses the best checkpoint: `id_val/macro_f1`, `id_val/accuracy` or `id_val/loss`.
        every: Also save every so many optimizer steps; 0 saves at the end of each epoch only.
        keep: Newest checkpoints kept beside the best one.
    """

    monitor: Literal["id_val/macro_f1", "id_val/accuracy", "id_val/loss"] = "id_val/macro_f1"
    every: int = 0
    keep: int = 1


@dataclass(frozen=True, kw_only=True)
class ExperimentConfig:
    """One training run.

    Attributes:
        data: Source, `READER:PATH[#SPLIT]` or `sample[:N]`; repeat the flag for several.
        train_split: Published split to train on.
        val_split: Split that chooses the checkpoint: `auto` (the corpus' dev split, else drawn from train), `drawn`,
            `none` (no selection: the last checkpoint counts), or a published split's name.
        test_split: Split scored at the end: `auto` (the corpus' test split, where there is one), `none`, or a name.
        val_fraction: Share of the training rows drawn for validation, whole premises (wills: groups) at a time.
        test_data: Further test sets as NAME=SOURCE, each scored under its name; repeat the flag for several.
        model: `e5-small` (offline, pretrained), `tiny` (random, for tests), or a Hugging Face name or folder.
        head: Classification head: `auto` (a published NLI head is kept and matched by label name; otherwise a new
            one), `new`, or a mapping for a head without names, as `LABEL_0=entailment,LABEL_1=neutral,...`.
        method: `finetune`, or a model that trains no encoder: `majority`, `hyponly-v1` (hypothesis only), `overlap-v1`.
        objective: Training loss: `cross_entropy`.
        augment: `none`, or `premise_swap=H+R`: for each entailed training row H coverage-matched and R random
            premises of the same law as non-entailment rows.
        segments: Texts the model sees, in order, joined by commas: `premise,hypothesis`, `hypothesis`, ...; `auto` takes
            all that the corpus has.
        subset: Use at most this many rows of every split (whole premises); null for all.
        label_scheme: `auto` (the corpus' own), `binary`, `three_way` or `wills`.
        seed: Head, shuffling, dropout.
        split_seed: Drawn splits and subsets.
        run_dir: Folder of the run; default runs/NAME-HASH of these settings.
        resume: `auto` goes on with an unfinished run in the folder; `never` refuses it.
        on_bad_row: Unusable rows are an `error`, or are left out, counted and listed: `drop`.
        text: How a pair becomes tokens.
        packing: How segments share a forward pass.
        optim: AdamW and its schedule.
        engine: Where and how it runs.
        checkpoints: What is kept and what chooses the best.
    """

    data: list[str] | str = "sample"
    train_split: str = "train"
    val_split: str = "auto"
    test_split: str = "auto"
    val_fraction: float = 0.1
    test_data: list[str] | str = field(default_factory=list)
    model: str = "e5-small"
    head: str = "auto"
    method: Literal["finetune", "majority", "hyponly-v1", "overlap-v1"] = "finetune"
    objective: Literal["cross_entropy"] = "cross_entropy"
    augment: str = "none"
    segments: str = "auto"
    subset: int | None = None
    label_scheme: str = "auto"
    seed: int = 1
    split_seed: int = 1
    run_dir: str | None = None
    resume: Literal["auto", "never"] = "never"
    on_bad_row: Literal["error", "drop"] = "error"
    text: TextConfig = field(default_factory=TextConfig)
    packing: PackingConfig = field(default_factory=PackingConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)
    checkpoints: CheckpointConfig = field(default_factory=CheckpointConfig)

    @property
    def sources(self) -> list[str]:
        return [self.data] if isinstance(self.data, str) else list(self.data)

    @property
    def test_sources(self) -> dict[str, str]:
        """Further test sets by name.

        Raises:
            UserError: an entry is not NAME=SOURCE.
        """
        entries = [self.test_data] if isinstance(self.test_data, str) else list(self.test_data)
        named = {}
        for entry in entries:
            name, found, source = entry.partition("=")
            if not found or not name or not source:
                raise UserError(f"--test-data takes NAME=SOURCE, got '{entry}'")
            named[name] = source
        return named


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

# What decides where a run lives and how fast it goes, but not what it computes.
NOT_HASHED = ("run_dir", "resume", "engine.num_workers", "engine.max_time")


def leaf_names() -> dict[str, str]:
    """Every setting's bare name -> its dotted name: `lr` -> `optim.lr`."""
    return {dotted.rsplit(".", 1)[-1]: dotted for dotted in _dotted_names(ExperimentConfig)}


def _dotted_names(cls: type, prefix: str = "") -> Iterator[str]:
    hints = get_type_hints(cls)
    for item in fields(cls):
        if is_dataclass(hints[item.name]):
            yield from _dotted_names(hints[item.name], f"{prefix}{item.name}.")
        else:
            yield f"{prefix}{item.name}"


def unknown_name(name: str, *, where: str) -> UserError:
    """The error for a setting that does not exist, with the nearest one that does."""
    leaves = leaf_names()
    near = difflib.get_close_matches(
        name.lstrip("-").rsplit(".", 1)[-1].replace("-", "_"), [*leaves, *_OTHER_NAMES], n=1
    )
    hint = f"; did you mean '{leaves[_OTHER_NAMES.get(near[0], near[0])]}'?" if near else ""
    return UserError(f"{where}: unknown setting '{name}'{hint}")


def _check_names(values: dict[str, Any], where: str) -> None:
    known = set(_dotted_names(ExperimentConfig))
    groups = {name.split(".")[0] for name in known if "." in name}
    for key, value in values.items():
        inner = [f"{key}.{leaf}" for leaf in value] if isinstance(value, dict) else [str(key)]
        for name in inner:
            if name not in known and name not in groups:
                raise unknown_name(name, where=where)


def _parser() -> Any:
    import jsonargparse

    jsonargparse.set_parsing_settings(docstring_parse_attribute_docstrings=False)
    parser = jsonargparse.ArgumentParser(prog="lnli fit", exit_on_error=False, add_help=False)
    parser.add_class_arguments(ExperimentConfig)
    parser.add_argument("--config", action="config", help="YAML file of settings; flags beat it, in any order")
    return parser


def config_help() -> str:
    """Every setting with its default and meaning, for `lnli fit --help`."""
    return str(_parser().format_help())


def parse_config(arguments: Sequence[str]) -> ExperimentConfig:
    """Settings from flags (`--lr 1e-4`, `--optim.lr 1e-4`, `--batch-size 16`) and `--config FILE`.

    Raises:
        UserError: an unknown or repeated setting, a value of the wrong type, a file that cannot be read.
    """
    from jsonargparse import ArgumentError

    files, flags = _rewrite_flags(arguments)
    for file in files:
        _read_yaml(Path(file))
    parser = _parser()
    try:
        parsed = parser.parse_args([*(f"--config={file}" for file in files), *flags])
        config = parser.instantiate_classes(parsed)
    except ArgumentError as error:
        raise UserError(" ".join(str(error).split())) from None
    values = {item.name: config[item.name] for item in fields(ExperimentConfig)}
    return check_config(ExperimentConfig(**values))


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
            if name.endswith(("compile", "activation_checkpointing")) and (not pending or pending[0].startswith("--")):
                value = "true"
            elif not pending:
                raise UserError(f"{flag} needs a value")
            else:
                value = pending.pop(0)
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
        values = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except FileNotFoundError:
        raise UserError(f"config file {path} does not exist") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"config file {path} is not valid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(values, dict):
        raise UserError(f"config file {path} must hold settings as 'name: value'")
    _check_names(values, where=str(path))
    return values


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
        "max_tokens": 1 if config.packing.max_tokens is None else config.packing.max_tokens,
    }
    for name, value in positive.items():
        if value <= 0:
            raise UserError(f"--{name.replace('_', '-')} must be above 0, got {value}")
    if not 0 < config.val_fraction < 1:
        raise UserError(f"--val-fraction must lie between 0 and 1, got {config.val_fraction}")
    if not 0 <= config.optim.warmup_fraction <= 1:
        raise UserError(f"--warmup-fraction must lie between 0 and 1, got {config.optim.warmup_fraction}")
    _check_combinations(config)
    return config


def _check_combinations(config: ExperimentConfig) -> None:
    if config.val_split == config.test_split and config.val_split not in ("auto", "none"):
        raise UserError(
            f"--val-split and --test-split are both '{config.val_split}': the same rows would choose and score"
        )
    if config.label_scheme != "auto" and config.label_scheme not in SCHEMES:
        raise UserError(f"--label-scheme must be one of auto, {', '.join(SCHEMES)}; got '{config.label_scheme}'")
    segments = config.segments.split(",")
    if config.segments != "auto" and (set(segments) - set(SEGMENT_NAMES) or len(set(segments)) != len(segments)):
        raise UserError(f"--segments takes names of {', '.join(SEGMENT_NAMES)}, each once; got '{config.segments}'")
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


def config_hash(config: ExperimentConfig) -> str:
    """Eight hex digits over every setting that decides what a run computes."""
    values = asdict(config)
    for name in NOT_HASHED:
        group, _, leaf = name.rpartition(".")
        del (values[group] if group else values)[leaf]
    text = json.dumps(values, sort_keys=True, ensure_ascii=False)
    return hashlib.blake2b(text.encode(), digest_size=4).hexdigest()


def run_folder(config: ExperimentConfig) -> Path:
    """The run's folder: as given, else `runs/NAME-HASH`, the same for the same settings, so a requeue finds it."""
    if config.run_dir is not None:
        return Path(config.run_dir)
    reader = config.sources[0].partition(":")[0].partition("#")[0]
    name = "-".join([Path(reader).stem, Path(config.model).name if config.method == "finetune" else config.method])
    return Path("runs") / f"{name}-{config_hash(config)}"


def hypothesis_only_twin(config: ExperimentConfig) -> ExperimentConfig:
    """The same recipe on hypotheses alone: what premise gain is measured against."""
    return replace(config, segments="hypothesis", augment="none", run_dir=None, resume="never")


def cache_root() -> Path:
    """Where converted encoders, tokens and swap ids are kept: `LNLI_CACHE`, else the user's cache folder."""
    default = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "lightning_nli"
    return Path(os.environ.get("LNLI_CACHE", default))
