"""The scripts kept in `slurm/` for people to copy: `python -m lightning_nli.launch.examples slurm` writes them."""

from __future__ import annotations

import sys
from pathlib import Path

from lightning_nli.launch.slurm import JobSpec, check_job, render_sbatch

_VENV = ("source .venv/bin/activate",)
_CACHE = "/shared/lnli-cache"
_RECIPE = ("--config", "experiments/vilegalnli/xlmr-large.yaml", "--resume", "auto")

EXAMPLES = {
    "single-node.sbatch": JobSpec(
        name="lnli-fit",
        command=("lnli", "fit", *_RECIPE, "--strategy", "ddp", "--devices", "4"),
        gpus_per_node=4,
        tasks_per_node=4,
        cpus_per_task=8,
        time="12:00:00",
        partition="gpu",
        prelude=_VENV,
        cache=_CACHE,
    ),
    "multi-node-deepspeed.sbatch": JobSpec(
        name="lnli-deepspeed",
        command=("lnli", "fit", *_RECIPE, "--strategy", "deepspeed", "--devices", "8", "--num-nodes", "2"),
        nodes=2,
        gpus_per_node=8,
        tasks_per_node=8,
        cpus_per_task=8,
        time="1-00:00:00",
        partition="gpu",
        prelude=_VENV,
        cache=_CACHE,
    ),
    "cross-domain-array.sbatch": JobSpec(
        name="lnli-cross-domain",
        command=("lnli", "cross-domain", "work", "boards/vilegalnli-devtest-lodo-1", "--models", "e5-small,hyponly-v1"),
        gpus_per_node=1,
        cpus_per_task=8,
        time="08:00:00",
        partition="gpu",
        array="0-7",
        prelude=_VENV,
        cache=_CACHE,
    ),
    "container.sbatch": JobSpec(
        name="lnli-container",
        command=("lnli", "fit", *_RECIPE, "--devices", "1"),
        gpus_per_node=1,
        cpus_per_task=8,
        time="12:00:00",
        partition="gpu",
        container="lightning-nli.sif",
        cache=_CACHE,
    ),
}
"""File name -> job."""


def main(folder: Path) -> None:
    """Write every example into `folder`."""
    for name, spec in EXAMPLES.items():
        check_job(spec)
        (folder / name).write_text(render_sbatch(spec), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
