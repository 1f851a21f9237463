"""Peak memory of the same fine-tuning, by us with a trimmed vocabulary and with the whole one, and by `Trainer`.

    python benchmarks/memory.py --data vilegalnli:DIR#dev --model e5-small

Counted are the largest resident memory of the whole process, and, for ours, the parameters that are trained, the bytes
of their gradients and of the optimizer's state.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

from report import (
    Worker,
    add_task_options,
    alternate,
    arm,
    as_median,
    describe,
    heading,
    make_parser,
    serve,
    spread,
    table,
    write,
)

TRIMMED, WHOLE, TRAINER = "lightning-nli", "lightning-nli, --trim-vocab off", "Trainer"
_MIB = 1024**2


def main(argv: list[str] | None = None) -> None:
    """Run the benchmark, or one contestant."""
    args = _parser().parse_args(argv)
    if serve(args, {TRIMMED: _ours("auto"), WHOLE: _ours("off"), TRAINER: _trainer}):
        return
    from preparation import prepare_for

    with tempfile.TemporaryDirectory() as folder:
        prepare_for(args, Path(folder), num_rows=args.steps * args.batch_size)
        task = Path(folder) / "task.json"
        runs = alternate(
            {name: arm(__file__, name, task, args.threads) for name in (TRIMMED, WHOLE, TRAINER)},
            args.repeats,
            lambda run: f"{run['peak_rss_gib']:.2f} GiB",
        )
    report = {"facts": describe(__file__, args, argv), "contestants": summarize(runs)}
    write(args, report, as_markdown(report))


def _parser() -> argparse.ArgumentParser:
    parser = make_parser(__doc__, "memory", repeats=2)
    add_task_options(parser, data="sample:400")
    parser.add_argument("--steps", type=int, default=6)
    return parser


def _ours(trim: str) -> Worker:
    def train(file: Path) -> dict[str, Any]:
        import polars as pl
        from contestants import Task
        from our_runs import StepWatch, build

        task, watch = Task.read(file), StepWatch()
        with tempfile.TemporaryDirectory() as folder:
            built = build(task, pl.read_parquet(task.table), Path(folder), "--trim-vocab", trim)
            built.trainer.callbacks = [watch]
            built.trainer.fit(built.module, built.datamodule)
        return watch.measured()

    return train


def _trainer(file: Path) -> dict[str, Any]:
    from contestants import Task, trainer

    return trainer(Task.read(file))


def summarize(runs: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Peak memory with its spread, its share of `Trainer`'s, and sizes; None where a contestant does not tell them."""
    sizes = ("parameters", "gradient_bytes", "optimizer_bytes", "dropout_is_on")
    found: dict[str, Any] = {
        name: {"peak_rss_gib": spread(run["peak_rss_gib"] for run in held)}
        | {size: held[0].get(size) for size in sizes}
        for name, held in runs.items()
    }
    for one in found.values():
        one["share_of_trainer"] = one["peak_rss_gib"]["median"] / found[TRAINER]["peak_rss_gib"]["median"]
    return found


def as_markdown(report: dict[str, Any]) -> str:
    """The table for people."""
    settings = report["facts"]["settings"]
    what = f"{settings['model']}, {settings['precision']}, {settings['steps']} steps of {settings['batch_size']}"
    header = ("", "peak GiB", "of Trainer's", "parameters", "gradients MiB", "optimizer MiB")
    rows = [
        (
            name,
            as_median(one["peak_rss_gib"], 2),
            f"{100 * one['share_of_trainer']:.0f}%",
            f"{one['parameters'] / 1e6:.1f}M",
            *(
                "-" if one[size] is None else f"{one[size] / _MIB:,.0f}"
                for size in ("gradient_bytes", "optimizer_bytes")
            ),
        )
        for name, one in report["contestants"].items()
    ]
    lines = heading(report["facts"], what) + table(header, rows)
    if report["contestants"][TRIMMED]["dropout_is_on"] is False:
        lines += "\nOurs trained without dropout.\n"
    return lines


if __name__ == "__main__":
    main()
