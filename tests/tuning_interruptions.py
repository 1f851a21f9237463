"""SIGKILL a sweep again and again, its driver and its trials by turns, and compare with one that was left alone.

    python tests/tuning_interruptions.py FOLDER [--kills 10] [--scripted]

Real trials (`cbow` on 120 rows of the embedded corpus, 12 epochs), or with `--scripted` the stand-in of the tests.
Prints what was killed when, and whether both sweeps have the same finished trials with the same reports.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

from lightning_nli.tuning.plan import Request, plan_sweep
from lightning_nli.tuning.sweep import Status, Sweep, create_sweep, open_sweep

BASE = """\
data: sample:120
model: cbow
text: {max_length: 48}
optim: {epochs: 12}
engine: {precision: fp32}
"""
SPACE = "lr: {choice: [1.0e-3, 2.0e-3, 3.0e-3, 4.0e-3]}\n"
SCRIPTED = Path(__file__).with_name("scripted_trial.py")


def new_sweep(home: Path, name: str, *, scripted: bool) -> Sweep:
    request = Request(config=home / "base.yaml", space=home / "space.yaml", search="grid", scheduler="none")
    spec = plan_sweep(request)
    if scripted:
        spec = replace(spec, worker=[sys.executable, str(SCRIPTED), str(home / "script.json")])
    return create_sweep(home / name, spec)


def start(folder: Path) -> subprocess.Popen[bytes]:
    words = ["tune", "--resume", "--tune-dir", str(folder), "--cpus-per-trial", "1", "--max-concurrent", "2"]
    log = (folder / "driver.log").open("ab")
    return subprocess.Popen([sys.executable, "-m", "lightning_nli", *words], stdout=log, stderr=log)


def processes(*words: str) -> list[int]:
    """Processes whose command line holds all of these words."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if all(word in line for word in words):
            found.append(int(path.parent.name))
    return found


def wait_for_trial(driver: subprocess.Popen[bytes], folder: Path, pause_s: float) -> list[int]:
    """Wait until trials run, then a moment more; their processes, none if the driver ended before."""
    while driver.poll() is None:
        if processes("tune work" if "--scripted" not in sys.argv else SCRIPTED.name, str(folder)):
            time.sleep(pause_s)
            return processes("tune work" if "--scripted" not in sys.argv else SCRIPTED.name, str(folder))
        time.sleep(0.2)
    return []


def interrupt(folder: Path, kills: int, longest_s: float) -> list[str]:
    """Start the sweep and kill it or one of its trials until it was killed so often, or is whole."""
    rng, log = random.Random(7), []
    driver = start(folder)
    while len(log) < kills:
        trials = wait_for_trial(driver, folder, rng.uniform(0.0, longest_s))
        if driver.poll() is not None:
            if not open_sweep(folder).is_unfinished:
                break
            driver = start(folder)
            continue
        target = "driver" if len(log) % 2 == 0 or not trials else "trial"
        os.kill(driver.pid if target == "driver" else rng.choice(trials), signal.SIGKILL)
        reports = sum(len(trial.reports) for trial in open_sweep(folder).trials())
        log.append(f"{target} killed at {reports} reports")
        sys.stderr.write(log[-1] + "\n")
        if target == "driver":
            driver.wait()
            driver = start(folder)
    driver.wait()
    return log


def summary(sweep: Sweep) -> dict[str, object]:
    return {
        trial.name: [trial.settings, trial.status.value, [[r.epoch, r.step, r.scores] for r in trial.reports]]
        for trial in sweep.trials()
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--scripted", action="store_true")
    parser.add_argument("--longest", type=float, default=9.0, help="seconds that trials run before a kill, at most")
    args = parser.parse_args()
    home = args.folder.resolve()
    home.mkdir(parents=True)
    (home / "base.yaml").write_text(BASE)
    (home / "space.yaml").write_text(SPACE)
    (home / "script.json").write_text(json.dumps({"_seconds": 1.0}))
    reference = new_sweep(home, "reference", scripted=args.scripted)
    assert start(reference.folder).wait() == 0
    killed = new_sweep(home, "killed", scripted=args.scripted)
    log = interrupt(killed.folder, args.kills, 3.0 if args.scripted else args.longest)
    resumes = 0
    while open_sweep(killed.folder).is_unfinished and resumes < 3:
        resumes += 1
        start(killed.folder).wait()
    time.sleep(5)
    left = processes("tune work", str(killed.folder)) + processes(str(SCRIPTED), str(killed.folder))
    one, other = summary(reference), summary(open_sweep(killed.folder))
    finished = [trial.name for trial in open_sweep(killed.folder).trials() if trial.status is Status.FINISHED]
    drivers = sum(line.startswith("driver") for line in log)
    sys.stdout.write(
        f"{len(log)} kills ({drivers} of the driver, {len(log) - drivers} of a trial), then {resumes} resumes\n"
        f"finished trials: {len(finished)} of {len(one)}; processes left over: {len(left)}\n"
        f"the same trials, reports and scores as without kills: {one == other}\n"
    )
    return 0 if one == other and not left else 1


if __name__ == "__main__":
    sys.exit(main())
