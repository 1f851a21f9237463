"""The scripts kept in `slurm/` for people to copy: `python -m lightning_nli.launch.examples slurm` writes them."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from lightning_nli.launch.slurm import JobSpec, check_job, render_sbatch

_VENV = ("source .venv/bin/activate",)
_CACHE = "/shared/lnli-cache"
_RECIPE = ("--config", "experiments/vilegalnli/xlmr-large.yaml", "--resume", "auto")

_FIT = JobSpec(
    name="lnli-fit",
    command=("lnli", "fit", *_RECIPE, "--devices", "1"),
    gpus_per_node=1,
    cpus_per_task=8,
    time="12:00:00",
    partition="gpu",
    prelude=_VENV,
    cache=_CACHE,
)

EXAMPLES = {
    "single-node.sbatch": replace(
        _FIT,
        command=("lnli", "fit", *_RECIPE, "--strategy", "ddp", "--devices", "4"),
        gpus_per_node=4,
        tasks_per_node=4,
    ),
    "multi-node-deepspeed.sbatch": replace(
        _FIT,
        name="lnli-deepspeed",
        command=("lnli", "fit", *_RECIPE, "--strategy", "deepspeed", "--devices", "8", "--num-nodes", "2"),
        nodes=2,
        gpus_per_node=8,
        tasks_per_node=8,
        time="1-00:00:00",
    ),
    "cross-domain-array.sbatch": replace(
        _FIT,
        name="lnli-cross-domain",
        command=("lnli", "cross-domain", "work", "boards/vilegalnli-devtest-lodo-1", "--models", "e5-small,hyponly-v1"),
        time="08:00:00",
        array="0-7",
    ),
    "tune_ray.sbatch": replace(
        _FIT,
        name="lnli-tune",
        command=(
            *("python", "-m", "lightning_nli.launch.ray_node", "lnli", "tune", "--resume"),
            *("--config", "experiments/vilegalnli/xlmr-large.yaml"),
            *("--space", "experiments/tune/large-encoder.yaml", "--num-samples", "24"),
            *("--tune-dir", "runs/tune/xlmr-large", "--gpus-per-trial", "1", "--cpus-per-trial", "8"),
        ),
        nodes=2,
        gpus_per_node=0,
        cpus_per_task=32,
        options=("--gres=gpu:4",),
        time="1-00:00:00",
    ),
    "container.sbatch": replace(_FIT, name="lnli-container", container="lightning-nli.sif", prelude=()),
}
"""File name -> job."""


def main(folder: Path) -> None:
    """Write every example into `folder`."""
    for name, spec in EXAMPLES.items():
        check_job(spec)
        (folder / name).write_text(render_sbatch(spec), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
