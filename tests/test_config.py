"""Settings: YAML and flags mean the same, flags win, nothing unknown passes."""

from __future__ import annotations

import re
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from lightning_nli.config import (
    ExperimentConfig,
    config_hash,
    config_help,
    hypothesis_only_twin,
    leaf_names,
    load_config,
    parse_config,
    run_folder,
    save_config,
)
from lightning_nli.config_schema import dotted_names
from lightning_nli.types import UserError

ROOT = Path(__file__).resolve().parents[1]
CONTRACT = """
data train_split val_split test_split val_fraction test_data model method objective augment segments subset label_scheme
seed split_seed run_dir resume on_bad_row
text.max_length text.template text.truncation text.normalize text.segmenter
packing.batch_size packing.max_tokens packing.eval_max_tokens
optim.lr optim.weight_decay optim.epochs optim.accumulate optim.warmup_fraction optim.schedule optim.clip
engine.strategy engine.devices engine.num_nodes engine.accelerator engine.precision engine.attention engine.trim_vocab
engine.activation_checkpointing engine.compile engine.num_workers engine.max_time
checkpoints.monitor checkpoints.every checkpoints.keep
""".split()


# Another value than the default for every setting, as YAML holds it; texts that YAML would take for something else.
OTHER = {
    "data": ["a.csv@2", "dữ liệu: b # c.csv"],
    "train_split": "no",
    "val_split": "none",
    "test_split": "dev",
    "val_fraction": 0.25,
    "test_data": ["x=c.csv"],
    "model": "123",
    "head": "new",
    "method": "hyponly-v1",
    "augment": "premise_swap=2+1",
    "segments": "hypothesis,premise",
    "subset": 10,
    "label_scheme": "binary",
    "seed": 7,
    "split_seed": 8,
    "run_dir": "2026-11-30",
    "resume": "auto",
    "on_bad_row": "drop",
    "max_length": 64,
    "template": "markers",
    "truncation": "proportional",
    "truncation_ratio": "26,66",
    "chunk_pool": "max",
    "normalize": "none",
    "segmenter": "pyvi",
    "batch_size": 4,
    "max_tokens": 512,
    "eval_max_tokens": 2048,
    "lr": 3e-5,
    "weight_decay": 0.0,
    "epochs": 2,
    "accumulate": 3,
    "warmup_fraction": 0.06,
    "schedule": "cosine",
    "clip": 0.5,
    "dropout": 0.2,
    "strategy": "deepspeed_stage_3",
    "devices": 2,
    "num_nodes": 4,
    "accelerator": "cpu",
    "precision": "bf16-autocast",
    "attention": "sdpa",
    "trim_vocab": "off",
    "activation_checkpointing": True,
    "compile": True,
    "native_kernels": "off",
    "threads": 2,
    "num_workers": 1,
    "max_time": "1:00:00",
    "monitor": "id_val/loss",
    "every": 100,
    "keep": 3,
    "save_minutes": 5.0,
    "patience": 2,
}
ONE_CHOICE = {"objective", "num_iterations", "max_pairs"}  # the pairs of SetFit go with --method setfit only
ONE_CHOICE |= {"on_nan", "offload", "offload_parameters", "offload_dir", "deepspeed_config"}  # not with every strategy
DEFAULTS = asdict(ExperimentConfig())
UNITS = {
    "max_length": "tokens",
    "batch_size": "Examples per device",
    "max_tokens": "Tokens per pack",
    "eval_max_tokens": "Tokens per pack",
    "lr": "per optimizer step",
    "epochs": "Passes over the training split",
    "accumulate": "Micro-steps per optimizer step",
    "warmup_fraction": "Share (0 to 1) of all optimizer steps",
    "val_fraction": "Share (0 to 1) of the training rows",
    "subset": "rows",
    "clip": "norm of the gradient",
    "dropout": "Share of activations",
    "devices": "Processes per node",
    "num_nodes": "Machines",
    "num_workers": "processes per device",
    "max_time": "DD:HH:MM:SS",
    "every": "optimizer steps",
    "keep": "checkpoints",
}


def value_of(values, dotted):
    for name in dotted.split("."):
        values = values[name]
    return values


def as_flags(leaf, value):
    values = value if isinstance(value, list) else [value]
    return [
        part
        for one in values
        for part in (f"--{leaf.replace('_', '-')}", str(one).lower() if one is True else str(one))
    ]


def help_entries() -> dict[str, str]:
    """Flag -> its entry of the help, in one line."""
    entries = re.split(r"\n  --", config_help())[1:]
    return {entry.split()[0]: " ".join(re.sub(r"\n\n.*", "", entry).split()) for entry in entries}


def test_every_setting_of_the_contract_is_there_under_a_unique_bare_name():
    dotted = list(dotted_names(ExperimentConfig))
    assert set(CONTRACT) <= set(dotted)
    assert len({name.rsplit(".", 1)[-1] for name in dotted}) == len(dotted) == len(leaf_names())
    assert set(OTHER) | ONE_CHOICE == set(leaf_names())  # the tests below leave none out


@pytest.mark.parametrize("leaf", leaf_names())
def test_help_tells_each_settings_meaning_unit_and_default(leaf):
    entry = help_entries()[leaf.replace("_", "-")]
    default = value_of(DEFAULTS, leaf_names()[leaf])
    words = {"None": "null", "True": "true", "False": "false", "[]": "none"}
    shown = words.get(str(default), default)
    assert entry.endswith(f" (default: {shown})")
    assert len(entry) > len(f"{leaf} TEXT (default: {shown})") + 10, "no meaning"
    assert UNITS.get(leaf, "") in entry


def test_help_shows_choices_and_stands_in_groups_within_110_columns():
    text = config_help()
    assert "precision {auto,fp32,bf16,bf16-autocast,fp16} " in help_entries()["precision"]
    assert [line.split(":")[0] for line in text.splitlines() if re.match(r"\w", line)] == [
        "One training run", "text", "packing", "optim", "engine", "checkpoints", "setfit"
    ]  # fmt: skip
    assert max(map(len, text.splitlines())) <= 110


@pytest.mark.parametrize("without", ["max_tokens", "batch_size"])  # the two exclude each other
def test_every_setting_survives_flags_and_yaml(without, tmp_path):
    given = {leaf: value for leaf, value in OTHER.items() if leaf not in (without, "method")}
    config = parse_config([part for leaf, value in given.items() for part in as_flags(leaf, value)])
    for leaf, value in given.items():
        dotted = leaf_names()[leaf]
        assert value_of(asdict(config), dotted) == value != value_of(DEFAULTS, dotted), leaf
    save_config(config, tmp_path / "c.yaml")
    assert load_config(tmp_path / "c.yaml") == config
    assert [path.name for path in tmp_path.iterdir()] == ["c.yaml"]
    assert config.sources == OTHER["data"]
    assert config.test_sources == {"x": "c.csv"}


def test_a_baseline_survives_yaml_and_takes_no_encoders_settings(tmp_path):
    config = parse_config(["--method", OTHER["method"], "--seed", "3"])
    save_config(config, tmp_path / "c.yaml")
    assert load_config(tmp_path / "c.yaml") == config
    with pytest.raises(UserError, match="leave out what you set of: optim"):
        parse_config(["--method", "majority", "--lr", "1e-4"])


def test_defaults_survive_yaml(tmp_path):
    save_config(ExperimentConfig(), tmp_path / "c.yaml")
    assert load_config(tmp_path / "c.yaml") == ExperimentConfig() == parse_config([])


def test_bare_dotted_and_dashed_names_are_one():
    wanted = parse_config(["--optim.lr", "1e-4", "--packing.batch_size", "4"])
    assert parse_config(["--lr", "1e-4", "--batch-size", "4"]) == wanted
    assert parse_config(["--lr=1e-4", "--batch_size=4"]) == wanted


def test_c02_flags_beat_the_file_in_either_order(tmp_path):
    path = tmp_path / "base.yaml"
    path.write_text("seed: 3\noptim:\n  lr: 1.0e-5\n  epochs: 1\n")
    before = parse_config(["--lr", "5e-5", "--config", str(path)])
    after = parse_config(["--config", str(path), "--lr", "5e-5"])
    assert before == after
    assert (before.optim.lr, before.optim.epochs, before.seed) == (5e-5, 1, 3)


@pytest.mark.parametrize("flag", ["--optim.learning_rate", "--leaning-rate", "--optim.leaning_rate", "--l-r"])
def test_c02_a_misspelt_flag_is_refused_with_the_nearest_name(flag):
    with pytest.raises(UserError, match=r"unknown setting '.*'; did you mean 'optim\.lr'\?"):
        parse_config([flag, "1"])


def test_c02_an_unknown_key_in_a_file_is_refused_with_file_and_nearest_name(tmp_path):
    path = tmp_path / "base.yaml"
    path.write_text("optim:\n  epoch: 2\n")
    with pytest.raises(UserError, match=r"base\.yaml: unknown setting 'optim\.epoch'; did you mean 'optim\.epochs'"):
        parse_config(["--config", str(path)])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--precision", "bf17"], r"--precision: .*auto, fp32, bf16, bf16-autocast, fp16.*'bf17'"),
        (["--lr", "abc"], r"--lr: .*number.*'abc'"),
        (["--epochs", "1.5"], r"--epochs: .*whole number.*'1\.5'"),
        (["--max-tokens", "abc"], r"^--max-tokens: expected a whole number or null, got 'abc'$"),
        (["--compile", "maybe"], r"^--compile: expected true or false, got 'maybe'$"),
        (["--lr", ""], r"^--lr: expected a number, got ''$"),
        (["--lr", "nan"], r"^--lr: expected a number, got 'nan'$"),
        (["--lr"], "--lr needs a value"),
        (["--lr", "--epochs", "3"], "--lr needs a value"),
        (["--config"], "--config needs a value"),
        (["--seed", "1", "--seed", "2"], "given 2 times"),
        (["--lr", "1", "--optim.lr", "2"], "given 2 times"),
        (["stray"], "unexpected argument"),
        (["--config", "absent.yaml"], "does not exist"),
        (["--config", str(ROOT)], "cannot be read"),
        (["--data", ""], "--data needs a source"),
        (["--data", "[]"], "--data needs a source"),
        (["--seed", "-1"], "--seed must lie between 0 and 4294967295"),
        (["--seed", "4294967296"], "--seed must lie between 0 and 4294967295"),
        (["--epochs", "0"], "above 0"),
        (["--keep", "0"], "above 0"),
        (["--lr", "-1"], "above 0"),
        (["--clip", "-1"], "--clip must not be below 0"),
        (["--dropout", "1"], "--dropout must lie between 0 and 1"),
        (["--weight-decay", "-0.1"], "--weight-decay must not be below 0"),
        (["--num-workers", "-1"], "--num-workers must not be below 0"),
        (["--every", "-1"], "--every must not be below 0"),
        (["--warmup-fraction", "1.1"], "between 0 and 1"),
        (["--val-fraction", "1"], "between 0 and 1"),
        (["--val-split", "test", "--test-split", "test"], "choose and score"),
        (["--max-tokens", "512", "--batch-size", "4"], "exclude each other"),
        (["--max-tokens", "100"], "below --max-length"),
        (["--eval-max-tokens", "100"], "below --max-length"),
        (["--segments", "premise,premise"], "each once"),
        (["--method", "majority", "--lr", "1e-4"], "leave out what you set of: optim"),
        (["--label-scheme", "four_way"], "must be one of"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(arguments, message):
    with pytest.raises(UserError, match=message):
        parse_config(arguments)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [", r"c\.yaml is not valid YAML"),
        ("- 1\n", r"c\.yaml must hold settings as 'name: value'"),
        ("lr: 1.0e-4\n", r"c\.yaml: unknown setting 'lr'; did you mean 'optim\.lr'\?"),
        ("config: x.yaml\n", r"c\.yaml: unknown setting 'config'"),
        ("optim: 3\n", r"c\.yaml: 'optim' is a group"),
        ("optim:\n", r"c\.yaml: 'optim' is a group"),
        ("seed: 1\nmodel: tiny\nseed: 2\n", r"c\.yaml: 'seed' is given twice \(line 3\)"),
        ("optim:\n  lr: 1\n  lr: 2\n", r"c\.yaml: 'lr' is given twice \(line 3\)"),
        ("optim:\n  lr: abc\n", r"c\.yaml: optim\.lr: expected a number, got 'abc'$"),
        ("engine:\n  precision: bf17\n", r"c\.yaml: engine\.precision: expected one of auto, fp32, .*, got 'bf17'$"),
        ("engine:\n  max_time: 1:00:00\n", r"c\.yaml: engine\.max_time: expected a text or null, got '3600'; .*quotes"),
        ("model: null\n", r"c\.yaml: model: expected a text, got null"),
        ("optim:\n  epochs: null\n", r"c\.yaml: optim\.epochs: expected a whole number, got null"),
        ("data: [1]\n", r"c\.yaml: data: expected a text, got '\[1\]'"),
    ],
)
def test_a_file_that_makes_no_sense_is_refused_by_its_name_and_the_settings(text, message, tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text(text)
    with pytest.raises(UserError, match=message):
        parse_config(["--config", str(path), "--lr", "1e-4"])


def test_of_two_files_the_wrong_one_is_named_and_the_later_one_wins(tmp_path):
    first, second = tmp_path / "first.yaml", tmp_path / "second.yaml"
    first.write_text("seed: 1\noptim: {epochs: 4}\n")
    second.write_text("seed: 2\n")
    config = parse_config(["--config", str(first), "--config", str(second)])
    assert (config.seed, config.optim.epochs) == (2, 4)
    second.write_text("seed: two\n")
    with pytest.raises(UserError, match=r"second\.yaml: seed: expected a whole number, got 'two'"):
        parse_config(["--config", str(first), "--config", str(second)])


def test_a_file_of_comments_sets_nothing(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text("# seed: 3\n")
    assert load_config(path) == ExperimentConfig()


def test_null_switches_off_what_the_file_switched_on(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text("packing: {max_tokens: 512}\n")
    assert parse_config(["--config", str(path)]).packing.max_tokens == 512
    assert parse_config(["--config", str(path), "--max-tokens", "null"]).packing.max_tokens is None


def test_run_folder_follows_the_settings_that_decide_the_result():
    config = ExperimentConfig()
    assert run_folder(config) == run_folder(ExperimentConfig())
    assert run_folder(config).parent == Path("runs")
    assert run_folder(replace(config, seed=2)) != run_folder(config)
    assert config_hash(replace(config, resume="auto", run_dir="x")) == config_hash(config)
    longer = replace(config, engine=replace(config.engine, max_time="1:00", num_workers=2))
    assert config_hash(longer) == config_hash(config)
    assert run_folder(replace(config, run_dir="x")) == Path("x")
    assert run_folder(replace(config, data="data/my.csv")).name.startswith("my-e5-small-")
    assert run_folder(replace(config, method="majority")).name.startswith("sample-majority-")


@pytest.mark.parametrize("leaf", sorted(OTHER))
def test_the_hash_changes_with_every_setting_but_those_of_where_and_how_fast(leaf):
    flags = as_flags(leaf, OTHER[leaf])
    same = config_hash(parse_config(flags)) == config_hash(ExperimentConfig())
    assert same == (leaf in {"run_dir", "resume", "threads", "num_workers", "max_time", "save_minutes"})


def test_the_twin_differs_in_what_it_sees_only():
    config = parse_config(["--lr", "1e-4", "--augment", "premise_swap=1+1", "--run-dir", "x"])
    twin = hypothesis_only_twin(config)
    assert (twin.segments, twin.augment, twin.run_dir) == ("hypothesis", "none", None)
    assert replace(twin, segments=config.segments, augment=config.augment, run_dir="x") == config


@pytest.mark.parametrize(
    "path",
    sorted(path for path in ROOT.glob("experiments/**/*.yaml") if path.parent.name != "tune"),
    ids=lambda path: path.name,
)
def test_every_experiment_loads(path):
    assert load_config(path).model
