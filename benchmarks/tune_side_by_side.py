"""Two trials side by side with half the cores each, against one after the other with all of them; wall seconds.

    python benchmarks/tune_side_by_side.py CONFIG.yaml FOLDER

Both sweeps train the same two trials (learning rates 2e-5 and 5e-5) after one that only fills the caches.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path


def sweep(config: Path, space: Path, folder: Path, *, concurrent: int, cores: int) -> float:
    """Wall seconds of a sweep, Ray's start included."""
    words = ["tune", "--config", str(config), "--space", str(space), "--tune-dir", str(folder), "--search", "grid"]
    words += ["--scheduler", "none", "--max-concurrent", str(concurrent), "--cpus-per-trial", str(cores // concurrent)]
    started = time.perf_counter()
    subprocess.run([sys.executable, "-m", "lightning_nli", *words, "--quiet"], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - started


def main(config: Path, folder: Path) -> None:
    """Measure and print."""
    cores = len(os.sched_getaffinity(0))
    folder.mkdir(parents=True)
    space = folder / "space.yaml"
    space.write_text("lr: {choice: [2.0e-5, 5.0e-5]}\n", encoding="utf-8")
    sweep(config, space, folder / "warm", concurrent=1, cores=cores)
    one_by_one = sweep(config, space, folder / "one-by-one", concurrent=1, cores=cores)
    together = sweep(config, space, folder / "together", concurrent=2, cores=cores)
    sys.stdout.write(
        f"{cores} cores: one after the other {one_by_one:.0f} s, side by side {together:.0f} s, "
        f"ratio {together / one_by_one:.2f}\n"
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
