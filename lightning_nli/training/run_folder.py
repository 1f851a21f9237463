"""The run folder: claimed once in the process that the user started, never overwritten."""

from __future__ import annotations

import csv
import json
import platform
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from lightning_nli.config import NOT_HASHED, ExperimentConfig, flat_settings, load_config, save_config
from lightning_nli.data.schema import BadRow
from lightning_nli.types import UserError

_PACKAGES = (
    "lightning-nli",
    "torch",
    "pytorch-lightning",
    "transformers",
    "deepspeed",
    "polars",
    "torchmetrics",
    "numpy",
)


def check_run_folder(folder: Path, config: ExperimentConfig) -> None:
    """Whether a run of `config` may live in `folder`: it is new, or holds the same run, unfinished.

    Raises:
        UserError: the folder holds a finished run, an unfinished one without `--resume auto`, or one of other settings.
    """
    if (folder / "result.json").exists():
        raise UserError(f"{folder} holds a finished run; read it with `lnli test {folder}`, or give another --run-dir")
    known = folder / "config.yaml"
    if known.exists():
        if config.resume != "auto":
            raise UserError(
                f"{folder} holds an unfinished run; --resume auto goes on with it, or give another --run-dir"
            )
        _check_same_settings(known, config)
    elif folder.exists() and (folder.is_file() or any(folder.iterdir())):
        raise UserError(f"{folder} is not empty and holds no run of ours; give another --run-dir")


def claim_run_folder(folder: Path, config: ExperimentConfig, bad_rows: Sequence[BadRow] = ()) -> None:
    """Create the folder with `config.yaml`, `environment.json` and the list of rows left out, once all else is checked.

    Raises:
        UserError: as `check_run_folder`.
    """
    check_run_folder(folder, config)
    folder.mkdir(parents=True, exist_ok=True)
    save_config(config, folder / "config.yaml")
    environment = json.dumps(describe_environment(), indent=1, ensure_ascii=False)
    (folder / "environment.json").write_text(environment, encoding="utf-8")
    if bad_rows:
        _write_bad_rows(folder, bad_rows)


def _check_same_settings(path: Path, config: ExperimentConfig) -> None:
    from lightning_nli.training.resume import batch_message, global_batch, settings_to_keep

    earlier = load_config(path)
    before, now = settings_to_keep(earlier), settings_to_keep(config)
    changed = [name for name in before.keys() | now.keys() if before.get(name) != now.get(name)]
    if not changed:
        return
    if changed == ["global batch"]:
        batches = global_batch(earlier), global_batch(config)
        raise UserError(batch_message(str(path.parent), *batches, config.optim.accumulate))
    if changed == ["engine.devices"]:
        raise UserError(
            f"{path.parent} has the shards of --devices {before['engine.devices']} DeepSpeed processes, this is "
            f"--devices {now['engine.devices']}: start as many, or take its weights alone (lnli consolidate)"
        )
    old, new = flat_settings(asdict(earlier)), flat_settings(asdict(config))
    shown = [f"{name}: {old[name]} -> {new[name]}" for name in new if old[name] != new[name] and name not in NOT_HASHED]
    raise UserError(f"{path.parent} was begun with other settings ({'; '.join(shown)}); give another --run-dir")


def read_run_config(folder: Path) -> ExperimentConfig:
    """Settings of the run in `folder`.

    Raises:
        UserError: it holds no run.
    """
    if not (folder / "config.yaml").exists():
        raise UserError(f"{folder} is not a run folder (no config.yaml)")
    return load_config(folder / "config.yaml")


def describe_environment() -> dict[str, Any]:
    """Versions, machine and commit, for `environment.json`."""
    import torch

    packages: dict[str, str | None] = {}
    for name in _PACKAGES:
        try:
            packages[name] = version(name)
        except PackageNotFoundError:
            packages[name] = None
    gpus = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return {
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "processor": processor_name(),
        "gpus": gpus,
        "packages": packages,
        "git_commit": _git_commit(),
    }


def processor_name() -> str:
    """The CPU's model name where the system tells it."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _git_commit() -> str | None:
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return None
    done = subprocess.run(["git", "-C", str(root), "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    return done.stdout.strip() or None


def _write_bad_rows(folder: Path, rows: Sequence[BadRow]) -> None:
    with (folder / "bad_rows.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["file", "row", "column", "reason"])
        writer.writerows([row.file, row.row, row.column, row.reason] for row in rows)
