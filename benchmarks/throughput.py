"""Training and scoring speed, memory and losses of the same fine-tuning, by us and by the peers, in one run.

    python benchmarks/throughput.py --data vilegalnli:DIR#dev --model e5-small --steps 40 --repeats 3

Contestants alternate, each run is a process of its own. The first steps warm up and are not counted. Writes
`results/NAME.json`, `.md` and `.png`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

from contestants import CONTESTANTS, Task

RESULTS = Path(__file__).parent / "results"
PACKAGES = ("torch", "transformers", "pytorch-lightning", "sentence-transformers", "accelerate", "lightning-nli")


def main() -> None:
    """Run the benchmark, or (with `--worker`) one contestant."""
    args = _parser().parse_args()
    if args.worker:
        _work(args.worker, args.task, args.out)
        return
    with tempfile.TemporaryDirectory() as scratch:
        task = prepare(args, Path(scratch))
        facts = _facts(args, task)
        runs: dict[str, list[dict[str, Any]]] = {name: [] for name in args.contestants.split(";")}
        for repeat in range(args.repeats):
            for name in runs:
                runs[name].append(_run(name, Path(scratch), args.threads))
                _say(f"{name}, run {repeat + 1}: {_rate(runs[name][-1], facts):.1f} examples/s")
    RESULTS.mkdir(exist_ok=True)
    report = {"facts": facts, "contestants": {name: summarize(found, facts) for name, found in runs.items()}}
    target = RESULTS / args.name
    target.with_suffix(".json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    target.with_suffix(".md").write_text(as_markdown(report), encoding="utf-8")
    draw(report, target.with_suffix(".png"))
    _say(as_markdown(report))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--name", default="throughput", help="of the result files")
    parser.add_argument("--data", default="sample:2000", help="training rows, as in lnli fit")
    parser.add_argument("--model", default="e5-small")
    parser.add_argument("--steps", type=int, default=40, help="optimizer steps a run")
    parser.add_argument("--warm-up", type=int, default=8, help="steps not counted")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--max-length", type=int, default=256)
    parser.add_argument("--precision", choices=("bf16", "fp32"), default="bf16")
    parser.add_argument("--dropout", type=float, help="of every layer; default: the checkpoint's")
    parser.add_argument("--eval-rows", type=int, default=320, help="rows scored after training")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--contestants", default=";".join(CONTESTANTS), help="names, separated by ;")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--task", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    return parser


def _work(name: str, task: Path, out: Path) -> None:
    import torch

    torch.manual_seed(1)
    out.write_text(json.dumps(CONTESTANTS[name](Task.read(task))), encoding="utf-8")


def prepare(args: argparse.Namespace, scratch: Path) -> Task:
    """The checkpoint (with its new head) and the rows that all start from."""
    import polars as pl

    from lightning_nli.data.readers import read_source
    from lightning_nli.models.encoder import load_encoder
    from lightning_nli.models.offline import resolve_model

    corpus = read_source(args.data, on_bad_row="drop")
    rows = corpus.frame.head(args.steps * args.batch_size)
    if rows.height < args.steps * args.batch_size:
        sys.exit(f"{args.data} has {rows.height} rows, {args.steps} steps take {args.steps * args.batch_size}")
    loaded = load_encoder(resolve_model(args.model, list), corpus.scheme, attention="padded")
    if args.dropout is not None:
        for name in ("hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout"):
            setattr(loaded.model.config, name, args.dropout)
    loaded.model.save_pretrained(scratch / "model")
    loaded.tokenizer.save_pretrained(scratch / "model")
    index = {name: at for at, name in enumerate(corpus.scheme.names)}
    label = pl.col("label").cast(pl.String).replace_strict(index, return_dtype=pl.Int64)
    rows.select("premise", "hypothesis", "condition", label=label).write_parquet(scratch / "rows.parquet")
    segments = ("premise", "hypothesis") if rows["condition"].null_count() else ("hypothesis", "condition", "premise")
    task = Task(
        model=str(scratch / "model"),
        table=str(scratch / "rows.parquet"),
        segments=segments,
        label_names=tuple(corpus.scheme.names),
        batch_size=args.batch_size,
        max_length=args.max_length,
        precision=args.precision,
        lr=2e-5,
        weight_decay=0.01,
        clip=1.0,
        eval_rows=min(args.eval_rows, rows.height),
    )
    task.write(scratch / "task.json")
    return task


def _facts(args: argparse.Namespace, task: Task) -> dict[str, Any]:
    """What the run is, the work of its timed steps, and what the machine could do."""
    import polars as pl
    from transformers import AutoConfig, AutoTokenizer

    from lightning_nli.training.run_folder import processor_name

    tokenizer, config = AutoTokenizer.from_pretrained(task.model), AutoConfig.from_pretrained(task.model)
    rows = pl.read_parquet(task.table)
    texts = [rows[name].to_list() for name in task.segments]
    seconds = [" ".join(parts) for parts in zip(*texts[1:], strict=True)]
    ids = tokenizer(texts[0], seconds, truncation=True, max_length=task.max_length)["input_ids"]
    lengths = [len(one) for one in ids][args.warm_up * task.batch_size :]
    hidden, layers, inner = config.hidden_size, config.num_hidden_layers, config.intermediate_size
    matrices = layers * (4 * hidden**2 + 2 * hidden * inner)
    flops = sum(6 * matrices * n + 12 * layers * hidden * n**2 for n in lengths)
    return {
        "command": " ".join(["python", "benchmarks/throughput.py", *sys.argv[1:]]),
        "data": args.data,
        "model": args.model,
        "precision": task.precision,
        "batch_size": task.batch_size,
        "max_length": task.max_length,
        "threads": args.threads,
        "steps": args.steps,
        "warm_up": args.warm_up,
        "repeats": args.repeats,
        "eval_rows": task.eval_rows,
        "timed_examples": len(lengths),
        "timed_tokens": sum(lengths),
        "useful_flops": flops,
        "matmul_peak_flops_s": matmul_peak(hidden, inner, task.precision, args.threads),
        "processor": processor_name(),
        "versions": {name: version(name) for name in PACKAGES},
    }


def matmul_peak(hidden: int, inner: int, precision: str, threads: int, tokens: int = 2048) -> float:
    """FLOP/s of the model's largest product, the best of many."""
    import torch

    torch.set_num_threads(threads)
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    x, weight = torch.randn(tokens, hidden).to(dtype), torch.randn(inner, hidden).to(dtype)
    best = float("inf")
    for _ in range(50):
        started = time.perf_counter()
        torch.mm(x, weight.t())
        best = min(best, time.perf_counter() - started)
    return 2 * tokens * hidden * inner / best


def _run(name: str, scratch: Path, threads: int) -> dict[str, Any]:
    out = scratch / "out.json"
    command = [sys.executable, __file__, "--worker", name, "--task", str(scratch / "task.json"), "--out", str(out)]
    environment = os.environ | {
        "OMP_NUM_THREADS": str(threads),
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "true",
    }
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{name} failed:\n{done.stderr[-3000:]}")
    return json.loads(out.read_text(encoding="utf-8"))  # type: ignore[no-any-return]


def _rate(run: dict[str, Any], facts: dict[str, Any]) -> float:
    return facts["timed_examples"] / sum(run["step_s"][facts["warm_up"] :])  # type: ignore[no-any-return]


def summarize(runs: list[dict[str, Any]], facts: dict[str, Any]) -> dict[str, Any]:
    """Medians over repeats of one contestant."""
    rates = [_rate(run, facts) for run in runs]
    scoring = [run["scored"] / run["scoring_s"] for run in runs if run.get("scored")]
    per_example = facts["useful_flops"] / facts["timed_examples"]
    return {
        "examples_s": statistics.median(rates),
        "examples_s_all": rates,
        "scored_examples_s": statistics.median(scoring) if scoring else None,
        "useful_flops_share": statistics.median(rates) * per_example / facts["matmul_peak_flops_s"],
        "peak_rss_gib": statistics.median(run["peak_rss_gib"] for run in runs),
        "trained_parameters": runs[0]["parameters"],
        "losses": runs[0]["losses"],
    }


def as_markdown(report: dict[str, Any]) -> str:
    """The table for people."""
    facts, found = report["facts"], report["contestants"]
    ours = next(iter(found.values()))
    lines = [
        f"`{facts['command']}`",
        "",
        f"{facts['model']}, {facts['precision']}, batch {facts['batch_size']}, {facts['threads']} threads, "
        f"{facts['processor']}; matmul peak {facts['matmul_peak_flops_s'] / 1e9:.0f} GFLOP/s; median of "
        f"{facts['repeats']} runs of {facts['steps']} steps, the first {facts['warm_up']} not counted.",
        "",
        "| | training examples/s | ours is | scoring examples/s | ours is | of matmul peak | peak GiB | last loss |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, one in found.items():
        scoring = one["scored_examples_s"]
        scored, share = "-" if not scoring else f"{scoring:.1f}", 100 * one["useful_flops_share"]
        speed = f"{one['examples_s']:.1f} | {ours['examples_s'] / one['examples_s']:.2f}x"
        ratio = "-" if not scoring or not ours["scored_examples_s"] else f"{ours['scored_examples_s'] / scoring:.2f}x"
        lines.append(
            f"| {name} | {speed} | {scored} | {ratio} | {share:.0f}% | {one['peak_rss_gib']:.2f} | "
            f"{one['losses'][-1]:.4f} |"
        )
    return "\n".join(lines) + "\n"


def draw(report: dict[str, Any], file: Path) -> None:
    """Bars of training speed with every repeat as a dot."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    found = report["contestants"]
    figure, axes = pyplot.subplots(figsize=(7, 0.6 * len(found) + 1.2), layout="constrained")
    names = list(found)[::-1]
    axes.barh(names, [found[name]["examples_s"] for name in names], color="0.6")
    for place, name in enumerate(names):
        rates = found[name]["examples_s_all"]
        axes.plot(rates, [place] * len(rates), "k.", markersize=5)
    axes.set_xlabel("training examples a second (dots: every run)")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(file, dpi=150)


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
