"""Stands in for the process that trains: reports the scores of a scenario, epoch by epoch, by the same rules.

    python scripted_trial.py SCENARIO.json LEDGER

SCENARIO.json maps the `seed` of a trial to its scores after each epoch; in place of a score `"crash"` ends the process
with an error, once (a file beside the reports remembers it). For a seed that it does not name, the score is the sum of
the learning rates of all epochs so far, which checkpoints carry along. `_bytes` is the size of a checkpoint, `_seconds`
the time of an epoch; above the rate `_crash_above_lr` the second epoch ends with an error.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import yaml


def main(scenario: Path, ledger: Path) -> int:
    script = json.loads(scenario.read_text())
    config = yaml.safe_load((ledger / "config.yaml").read_text(encoding="utf-8"))
    metrics = json.loads((ledger / "task.json").read_text())["metrics"]
    run = Path(config["run_dir"])
    (run / "checkpoints").mkdir(parents=True, exist_ok=True)
    reports = ledger / "reports.jsonl"
    done, weight = resume(run / "checkpoints")
    scores = list(script.get(str(config["seed"]), []))
    epochs = len(scores) or config["optim"]["epochs"]
    for epoch in range(done + 1, epochs + 1):
        weight += config["optim"]["lr"]
        if len(scores) < epoch:  # without a script the rates add up: what is taken over from another trial is seen
            scores += [None] * (epoch - 1 - len(scores)) + [weight]
        time.sleep(script.get("_seconds", 0.0))
        if scores[epoch - 1] == "crash":
            if not (ledger / "crashed").exists():
                (ledger / "crashed").touch()
                sys.stderr.write("lnli: scripted crash\n")
                return 2
            scores[epoch - 1] = 0.9
        if epoch == 2 and config["optim"]["lr"] > script.get("_crash_above_lr", 1.0):
            sys.stderr.write("lnli: scripted crash\n")
            return 2
        save(run / "checkpoints", epoch, scores, weight, script.get("_bytes", 10))
        values = scores[epoch - 1] if isinstance(scores[epoch - 1], list) else [scores[epoch - 1]]
        report = {
            "epoch": float(epoch),
            "step": 10 * epoch,
            "seconds": 0.5,
            "scores": dict(zip(metrics, values, strict=True)),
        }
        with reports.open("a") as file:
            file.write(json.dumps(report) + "\n")
        if not any(line.strip().isdigit() and int(line) >= epoch for line in iter(sys.stdin.readline, "")):
            return 75
    (run / "result.json").write_text("{}")
    return 0


def resume(folder: Path) -> tuple[int, float]:
    if not (folder / "index.json").exists():
        return 0, 0.0
    last = max(json.loads((folder / "index.json").read_text())["saved"], key=lambda entry: entry["step"])
    return last["epoch"] + 1, float((folder / last["name"]).read_bytes().partition(b"\0")[0])


def save(folder: Path, epoch: int, scores: list, weight: float, size: int) -> None:
    name = f"step-{10 * epoch:08d}-val.ckpt"
    (folder / name).write_bytes(f"{weight}\0".encode() + bytes(size))
    seen = [score if isinstance(score, float) else -1.0 for score in scores[:epoch]]
    best = max(range(len(seen)), key=lambda place: seen[place], default=epoch - 1) + 1
    kept = sorted({best, epoch})
    entries = [{"name": f"step-{10 * e:08d}-val.ckpt", "step": 10 * e, "epoch": e - 1, "score": 0.0} for e in kept]
    for path in folder.glob("*.ckpt"):
        if path.name not in {entry["name"] for entry in entries}:
            path.unlink()
    index = {"monitor": "id_val/macro_f1", "saved": entries, "best": f"step-{10 * best:08d}-val.ckpt"}
    (folder / "index.json").write_text(json.dumps(index))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
