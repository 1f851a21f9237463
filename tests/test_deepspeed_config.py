"""DeepSpeed's settings: ours, the user's file, and what in it contradicts our options."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from lightning_nli.cli.main import main
from lightning_nli.config import parse_config
from lightning_nli.training.deepspeed_config import ZeroSettings, deepspeed_json, zero_settings
from lightning_nli.training.strategy import check_engine
from lightning_nli.types import UserError


def settings_of(*flags: str, precision: str = "fp32") -> dict:
    config = parse_config(["--strategy", "deepspeed", "--accelerator", "cpu", *flags])
    return deepspeed_json(config, zero_settings(config, precision, on_gpu=False))


def user_file(tmp_path: Path, values: object) -> list[str]:
    path = tmp_path / "ds.json"
    path.write_text(json.dumps(values))
    return ["--deepspeed-config", str(path)]


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_s07_the_micro_batch_size_is_ours_and_accumulation_the_trainers(stage):
    settings = ZeroSettings(stage=stage, precision="bf16", clip=1.0).as_json()
    assert settings["train_micro_batch_size_per_gpu"] == 1
    assert settings["zero_optimization"]["stage"] == stage
    assert "gradient_accumulation_steps" not in settings  # the trainer's alone
    assert settings["bf16"] == {"enabled": True}
    assert settings["gradient_clipping"] == 1.0


def test_offloading_says_where_what_is_kept():
    assert "offload_optimizer" not in settings_of()["zero_optimization"]
    zero = settings_of("--offload", "cpu")["zero_optimization"]
    assert zero["offload_optimizer"]["device"] == "cpu" and "offload_param" not in zero
    both = ["--strategy", "deepspeed_stage_3", "--offload", "cpu", "--offload-parameters", "cpu"]
    config = parse_config(both)
    zero = zero_settings(config, "fp32", on_gpu=False).as_json()["zero_optimization"]
    assert zero["offload_optimizer"]["device"] == zero["offload_param"]["device"] == "cpu"
    disk = ZeroSettings(stage=3, offload="disk", offload_parameters="disk", offload_dir="nvme").as_json()
    for name in ("offload_optimizer", "offload_param"):
        assert disk["zero_optimization"][name] == {"device": "nvme", "pin_memory": False, "nvme_path": "nvme"}


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--offload-parameters", "cpu", "--offload", "cpu"], "only ZeRO stage 3"),
        (["--offload", "disk"], "only ZeRO stage 3"),
        (["--strategy", "deepspeed_stage_3", "--offload-parameters", "cpu"], "add --offload cpu"),
        (["--strategy", "deepspeed_stage_3", "--offload", "disk"], "needs --offload-dir"),
        (["--strategy", "deepspeed_stage_3", "--offload", "disk", "--offload-dir", "absent"], "absent is no folder"),
        (["--strategy", "ddp", "--offload", "cpu"], "--offload cpu is DeepSpeed's"),
        (["--strategy", "ddp", "--deepspeed-config", "x"], "--deepspeed-config x is DeepSpeed's"),
        (["--offload-dir", "x"], "is for --offload disk"),
        (["--on-nan", "skip"], "DeepSpeed cannot leave out a step"),
    ],
)
def test_offloading_that_cannot_be_is_refused(flags, message):
    base = [] if "--strategy" in flags else ["--strategy", "deepspeed"]
    with pytest.raises(UserError, match=message):
        check_engine(parse_config([*base, "--accelerator", "cpu", *flags]))


def test_offloading_to_disk_without_async_io_says_what_is_missing(tmp_path):
    builder = pytest.importorskip("deepspeed.ops.op_builder").AsyncIOBuilder
    flags = ["--strategy", "deepspeed_stage_3", "--accelerator", "cpu", "--offload", "disk", "--offload-dir"]
    config = parse_config([*flags, str(tmp_path)])
    if builder().is_compatible(verbose=False):
        check_engine(config)
    else:
        with pytest.raises(UserError, match=r"async_io.*libaio"):
            check_engine(config)


def test_the_users_file_adds_to_ours(tmp_path):
    values = {
        "zero_optimization": {"stage": 3, "stage3_max_live_parameters": 1000, "reduce_bucket_size": 7},
        "train_batch_size": "auto",
        "gradient_accumulation_steps": 2,
        "wall_clock_breakdown": True,
    }
    settings = settings_of(*user_file(tmp_path, values), "--accumulate", "2")
    zero = settings["zero_optimization"]
    assert zero["stage"] == 3 and zero["stage3_max_live_parameters"] == 1000 and zero["reduce_bucket_size"] == 7
    assert zero["contiguous_gradients"] is True  # ours stays
    assert settings["wall_clock_breakdown"] is True
    assert "gradient_accumulation_steps" not in settings and "train_batch_size" not in settings


CONFLICTS = {
    "gradient_accumulation_steps": ({"gradient_accumulation_steps": 8}, ["8", "--accumulate 4"]),
    "gradient_clipping": ({"gradient_clipping": 0.3}, ["0.3", "--clip 1.0"]),
    "micro batch": ({"train_micro_batch_size_per_gpu": 2}, ["2", "--batch-size 16"]),
    "batch": ({"train_batch_size": 2}, ["2", "--batch-size 16 x --accumulate 4 x 1 processes = 64"]),
    "bf16": ({"bf16": {"enabled": True}}, ["true", "--precision is fp32"]),
    "optimizer": ({"optimizer": {"type": "Adam"}}, ["optimizer", "--lr"]),
    "scheduler": ({"scheduler": {"type": "WarmupLR"}}, ["scheduler", "--schedule"]),
    "offload": ({"zero_optimization": {"offload_optimizer": {"device": "cpu"}}}, ["cpu", "--offload"]),
}


@pytest.mark.parametrize("what", CONFLICTS)
def test_s08_what_contradicts_our_options_is_refused_and_names_both(tmp_path, what):
    values, words = CONFLICTS[what]
    with pytest.raises(UserError) as caught:
        settings_of(*user_file(tmp_path, values), "--accumulate", "4")
    message = str(caught.value)
    assert all(word in message for word in words) and "remove" in message and "\n" not in message


def test_a_stage_named_twice_must_be_the_same(tmp_path):
    config = parse_config(
        ["--strategy", "deepspeed_stage_2", *user_file(tmp_path, {"zero_optimization": {"stage": 3}})]
    )
    with pytest.raises(UserError, match=r"zero_optimization.stage 3, but --strategy deepspeed_stage_2, stage 2"):
        deepspeed_json(config, zero_settings(config, "fp32", on_gpu=False))


def test_s08_the_refusal_comes_before_anything_is_read_or_started(tmp_path, capsys):
    flags = user_file(tmp_path, {"gradient_accumulation_steps": 8})
    base = ["--data", "absent.csv", "--strategy", "deepspeed", "--devices", "2", "--accelerator", "cpu"]
    assert main(["fit", *base, *flags, "--accumulate", "4", "--run-dir", str(tmp_path / "run")]) == 2
    error = capsys.readouterr().err
    assert "gradient_accumulation_steps 8, but --accumulate 4" in error and len(error.strip().splitlines()) == 1


@pytest.mark.parametrize("text", ["{", "[1]"])
def test_a_file_that_is_no_object_is_refused(tmp_path, text):
    (tmp_path / "ds.json").write_text(text)
    with pytest.raises(UserError, match=r"--deepspeed-config .*ds\.json"):
        settings_of("--deepspeed-config", str(tmp_path / "ds.json"))


def test_s09_deepspeed_is_imported_only_where_it_is_asked_for(tmp_path):
    settings = "--data sample:60 --model tiny --strategy auto --accelerator cpu --precision fp32 --dry-run".split()
    script = f"import sys; from lightning_nli.cli.main import main; main(['fit', *{settings!r}]); print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=tmp_path, timeout=200
    )
    assert "dry run" in done.stdout
    assert not [name for name in done.stdout.split() if name.partition(".")[0] == "deepspeed"]
