"""Training and scoring speed, memory and losses of the same fine-tuning, by us and by the peers, in one run.

    python benchmarks/throughput.py --data vilegalnli:DIR#dev --model e5-small --steps 40 --repeats 3

Contestants alternate, each run is a process of its own. The first steps warm up and are not counted. Writes
`results/NAME.json`, `.md` and `.png`.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path
from typing import Any

from contestants import CONTESTANTS, Task
from flops import matmul_peak, training_flops
from report import Worker, add_task_options, alternate, arm, describe, make_parser, serve, write


def main(argv: list[str] | None = None) -> None:
    """Run the benchmark, or (with `--worker`) one contestant."""
    args = _parser().parse_args(argv)
    if serve(args, {name: _worker(name) for name in CONTESTANTS}):
        return
    from preparation import prepare_for

    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        num_rows = args.steps * args.batch_size
        task = prepare_for(args, scratch, num_rows=num_rows, eval_rows=args.eval_rows, dropout=args.dropout)
        facts = _facts(args, task, argv)
        runs = alternate(
            {name: arm(__file__, name, scratch / "task.json", args.threads) for name in args.contestants.split(";")},
            args.repeats,
            lambda run: f"{_rate(run, facts):.1f} examples/s",
        )
    report = {"facts": facts, "contestants": {name: summarize(found, facts) for name, found in runs.items()}}
    write(args, report, as_markdown(report))
    draw(report, (args.results / args.name).with_suffix(".png"))


def _parser() -> argparse.ArgumentParser:
    parser = make_parser(__doc__, "throughput", repeats=3)
    add_task_options(parser, data="sample:2000")
    parser.add_argument("--steps", type=int, default=40, help="optimizer steps a run")
    parser.add_argument("--warm-up", type=int, default=8, help="steps not counted")
    parser.add_argument("--dropout", type=float, help="of every layer; default: the checkpoint's")
    parser.add_argument("--eval-rows", type=int, default=320, help="rows scored after training")
    parser.add_argument("--contestants", default=";".join(CONTESTANTS), help="names, separated by ;")
    return parser


def _worker(name: str) -> Worker:
    def work(task: Path) -> dict[str, Any]:
        import torch

        torch.manual_seed(1)
        return CONTESTANTS[name](Task.read(task))

    return work


def _facts(args: argparse.Namespace, task: Task, argv: list[str] | None) -> dict[str, Any]:
    """What the run is, the work of its timed steps, and what the machine could do."""
    import polars as pl
    from transformers import AutoConfig, AutoTokenizer

    tokenizer, config = AutoTokenizer.from_pretrained(task.model), AutoConfig.from_pretrained(task.model)
    rows = pl.read_parquet(task.table)
    texts = [rows[name].to_list() for name in task.segments]
    seconds = [" ".join(parts) for parts in zip(*texts[1:], strict=True)]
    ids = tokenizer(texts[0], seconds, truncation=True, max_length=task.max_length)["input_ids"]
    lengths = [len(one) for one in ids][args.warm_up * task.batch_size :]
    return {
        **describe(__file__, args, argv),
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
        "useful_flops": training_flops(config, lengths),
        "matmul_peak_flops_s": matmul_peak(
            config.hidden_size, config.intermediate_size, task.precision, threads=args.threads
        ),
    }


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


if __name__ == "__main__":
    main()
