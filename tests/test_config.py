"""Settings: YAML and flags mean the same, flags win, nothing unknown passes."""

from __future__ import annotations

from dataclasses import replace
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


def test_every_setting_of_the_contract_is_there_under_a_unique_bare_name():
    dotted = list(leaf_names().values())
    assert set(CONTRACT) <= set(dotted)
    assert len({name.rsplit(".", 1)[-1] for name in CONTRACT}) == len(CONTRACT)


def test_help_names_every_setting_with_its_default():
    text = config_help()
    for leaf in leaf_names():
        assert f"--{leaf.replace('_', '-')} " in text, leaf
    assert " ".join(text.split()).count("(default: ") == len(leaf_names())
    for unit in ("tokens", "optimizer steps", "examples", "DD:HH:MM:SS"):
        assert unit in text
    assert max(map(len, text.splitlines())) <= 110


def test_yaml_reads_back_equal(tmp_path):
    config = parse_config(
        "--data a.csv --data b.csv --test-data x=c.csv --lr 3e-5 --max-tokens 4096 --compile --subset 10 "
        "--max-time 1:00:00 --run-dir r --resume auto --augment premise_swap=2+1".split()
    )
    save_config(config, tmp_path / "c.yaml")
    assert load_config(tmp_path / "c.yaml") == config
    assert config.sources == ["a.csv", "b.csv"]
    assert config.test_sources == {"x": "c.csv"}


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
        (["--lr"], "needs a value"),
        (["--seed", "1", "--seed", "2"], "given 2 times"),
        (["stray"], "unexpected argument"),
        (["--config", "absent.yaml"], "does not exist"),
        (["--epochs", "0"], "above 0"),
        (["--val-fraction", "1"], "between 0 and 1"),
        (["--val-split", "test", "--test-split", "test"], "choose and score"),
        (["--max-tokens", "512", "--batch-size", "4"], "exclude each other"),
        (["--max-tokens", "100"], "below --max-length"),
        (["--eval-max-tokens", "100"], "below --max-length"),
        (["--segments", "premise,premise"], "each once"),
        (["--label-scheme", "four_way"], "must be one of"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(arguments, message):
    with pytest.raises(UserError, match=message):
        parse_config(arguments)


def test_broken_yaml_and_lists_are_refused(tmp_path):
    path = tmp_path / "c.yaml"
    for text in ("a: [", "- 1\n"):
        path.write_text(text)
        with pytest.raises(UserError, match=r"c\.yaml"):
            load_config(path)


def test_run_folder_follows_the_settings_that_decide_the_result():
    config = ExperimentConfig()
    assert run_folder(config) == run_folder(ExperimentConfig())
    assert run_folder(config).parent == Path("runs")
    assert run_folder(replace(config, seed=2)) != run_folder(config)
    assert config_hash(replace(config, resume="auto", run_dir="x")) == config_hash(config)
    longer = replace(config, engine=replace(config.engine, max_time="1:00", num_workers=2))
    assert config_hash(longer) == config_hash(config)
    assert run_folder(replace(config, run_dir="x")) == Path("x")


def test_the_twin_differs_in_what_it_sees_only():
    config = parse_config(["--lr", "1e-4", "--augment", "premise_swap=1+1", "--run-dir", "x"])
    twin = hypothesis_only_twin(config)
    assert (twin.segments, twin.augment, twin.run_dir) == ("hypothesis", "none", None)
    assert replace(twin, segments=config.segments, augment=config.augment, run_dir="x") == config


@pytest.mark.parametrize("path", sorted(ROOT.glob("experiments/**/*.yaml")), ids=lambda path: path.name)
def test_every_experiment_loads(path):
    assert load_config(path).model
