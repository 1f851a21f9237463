"""Perturbations of one long example: `lnli explain` against plain `lime` with a transformers pipeline, in one run.

    python benchmarks/explain.py runs/RUN --num-samples 5000 --tokens 400

Both get the same model (the run, and its export), the same example and the same number of perturbations, one after the
other, each in a process of its own; printed is one JSON line each: seconds, perturbations a second, peak memory.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

_SEPARATOR = " ||| "
_BATCH_ROWS = 32  # of the pipeline


def _long_pair(run: Path, tokens: int) -> dict[str, str]:
    """A premise of the embedded corpus' clauses and a hypothesis, about as many tokens together as asked for."""
    from lightning_nli.data.sample import sample_corpus
    from lightning_nli.training.trained import open_run

    spec = open_run(run).scorer.spec
    frame = sample_corpus(400).unique("premise", maintain_order=True)
    hypothesis, premise = frame["hypothesis"][0], ""
    for clause in frame["premise"]:
        if len(spec.tokenizer(premise, hypothesis)["input_ids"]) >= tokens:
            break
        premise = f"{premise} {clause}".strip()
    return {"premise": premise, "hypothesis": hypothesis}


def _ours(run: Path, pair: dict[str, str], num_samples: int) -> dict[str, Any]:
    from lightning_nli.explain.lime_text import LimeSettings, explain_example, require_lime
    from lightning_nli.explain.models import RunModel
    from lightning_nli.training.trained import open_run

    model = RunModel(open_run(run).scorer)
    require_lime()  # imported before the clock starts, as on the other side
    before = _Before(_peak_gib(), time.perf_counter(), time.process_time())
    found = explain_example(model, "long", pair, settings=LimeSettings(num_samples=num_samples))
    return _figures("lnli explain", num_samples, before) | {"distinct": found.num_distinct}


def _plain(folder: Path, pair: dict[str, str], num_samples: int) -> dict[str, Any]:
    """As the documentation of both libraries has it; the pair joined, and parted again where the mark survived."""
    import numpy as np
    from lime.lime_text import LimeTextExplainer
    from transformers import pipeline

    classify = pipeline("text-classification", str(folder), top_k=None, device="cpu")
    names = sorted(classify.model.config.label2id, key=classify.model.config.label2id.get)

    def ask(texts: list[str]) -> Any:
        pairs = [text.partition(_SEPARATOR.strip()) for text in texts]
        rows = [{"text": first, "text_pair": second} for first, _, second in pairs]
        answers = classify(rows, batch_size=_BATCH_ROWS, truncation=True)
        return np.array([[next(a["score"] for a in one if a["label"] == name) for name in names] for one in answers])

    explainer = LimeTextExplainer(class_names=names, random_state=1)
    before = _Before(_peak_gib(), time.perf_counter(), time.process_time())
    explainer.explain_instance(_SEPARATOR.join(pair.values()), ask, labels=(0,), num_samples=num_samples)
    return _figures(f"lime + pipeline, batches of {_BATCH_ROWS}", num_samples, before)


class _Before(NamedTuple):
    """Where memory and clocks stood when the model was loaded."""

    peak_gib: float
    wall_s: float
    cpu_s: float


def _figures(name: str, num_samples: int, before: _Before) -> dict[str, Any]:
    wall, cpu = time.perf_counter() - before.wall_s, time.process_time() - before.cpu_s
    return {
        "what": name,
        "perturbations": num_samples,
        "wall_s": round(wall, 1),
        "cpu_s": round(cpu, 1),
        "per_cpu_s": round(num_samples / cpu, 2),
        "peak_rss_gib": round(_peak_gib(), 2),
        "peak_rss_above_the_loaded_model_gib": round(_peak_gib() - before.peak_gib, 2),
    }


def _peak_gib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024**2


def main() -> None:
    """Run both sides, or one of them as a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--num-samples", type=int, default=5_000)
    parser.add_argument("--tokens", type=int, default=400)
    parser.add_argument("--side", choices=("ours", "plain"))
    parser.add_argument("--pair", type=Path)
    given = parser.parse_args()
    if given.side:
        pair = json.loads(given.pair.read_text(encoding="utf-8"))
        side = _ours if given.side == "ours" else _plain
        sys.stdout.write(json.dumps(side(given.run, pair, given.num_samples)) + "\n")
        return
    from lightning_nli.training.export import export_run

    with tempfile.TemporaryDirectory() as scratch:
        exported = export_run(given.run, Path(scratch) / "model")
        pair = Path(scratch) / "pair.json"
        pair.write_text(json.dumps(_long_pair(given.run, given.tokens), ensure_ascii=False), encoding="utf-8")
        for side, folder in (("ours", given.run), ("plain", exported)):
            command = [sys.executable, __file__, str(folder), "--side", side, "--pair", str(pair)]
            subprocess.run([*command, "--num-samples", str(given.num_samples)], check=True)


if __name__ == "__main__":
    main()
