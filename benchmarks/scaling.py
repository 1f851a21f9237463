"""Training in 1 and 2 processes of this machine over gloo, the vocabulary trimmed and whole; bytes sent a step.

    python benchmarks/scaling.py --model e5-small
    python benchmarks/scaling.py --document              writes the tables of docs/SCALING.md (a model, no measurement)

Every process has one thread and the same batch size. Two processes that do not exchange anything show what the machine
itself loses; efficiency is the speed of two exchanging ones over twice that of one, and over that of those two.
Bytes are counted twice: what is handed to the all-reduce, and what the loopback device sent (other programs' too).
"""

from __future__ import annotations

import argparse
import json
import socket
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cost_model import document_tables
from report import (
    add_task_options,
    alternate,
    describe,
    heading,
    make_parser,
    ratio,
    serve,
    spread,
    start_worker,
    table,
    write,
)

BEGIN, END = "<!-- tables: python benchmarks/scaling.py --document -->", "<!-- end of tables -->"
ALONE, APART, TOGETHER = "1 process", "2 processes, apart", "2 processes, ddp"
VOCABULARIES = {"trimmed": "auto", "whole": "off"}
DOCUMENT = Path(__file__).resolve().parents[1] / "docs" / "SCALING.md"


def main(argv: list[str] | None = None) -> None:
    """Run the benchmark, or one process, or write the document's tables."""
    args = _parser().parse_args(argv)
    if args.document:
        text = DOCUMENT.read_text(encoding="utf-8")
        DOCUMENT.write_text(with_tables(text, document_tables()), encoding="utf-8")
        return
    if serve(args, {"train": train}):
        return
    from preparation import prepare_for

    with tempfile.TemporaryDirectory() as folder:
        prepare_for(args, Path(folder), num_rows=2 * args.steps * args.batch_size)
        runs = alternate(
            {
                f"{kind}, {word}": _run(kind, trim, Path(folder), args)
                for word, trim in VOCABULARIES.items()
                for kind in (ALONE, APART, TOGETHER)
            },
            args.repeats,
            lambda run: f"{run['tokens_s']:,.0f} tokens/s",
        )
    report = {"facts": describe(__file__, args, argv), "runs": summarize(runs)}
    write(args, report, as_markdown(report))


def _parser() -> argparse.ArgumentParser:
    parser = make_parser(__doc__, "scaling", repeats=2)
    parser.set_defaults(threads=1)
    add_task_options(parser, data="sample:1000")
    parser.add_argument(
        "--steps", type=int, default=8, help="optimizer steps of each process, each with --batch-size rows"
    )
    parser.add_argument("--warm-up", type=int, default=2, help="steps not counted")
    parser.add_argument("--document", action="store_true", help="write the tables of docs/SCALING.md and end")
    return parser


def _run(kind: str, trim: str, scratch: Path, args: argparse.Namespace) -> Callable[[], dict[str, Any]]:
    """All processes of one arm, started together."""
    processes = 1 if kind == ALONE else 2

    def run() -> dict[str, Any]:
        settings = {"trim": trim, "steps": args.steps, "warm_up": args.warm_up, "connected": kind == TOGETHER}
        file = scratch / "arm.json"
        file.write_text(json.dumps(settings), encoding="utf-8")
        ring = _ring_environment() if kind == TOGETHER else {}
        started = []
        for rank in range(processes):
            own = {"RANK": str(rank), "LOCAL_RANK": str(rank)} if ring else {}
            started.append(start_worker(__file__, "train", file, threads=args.threads, **ring, **own))
        return join_ranks([one.finish() for one in started], args.warm_up)

    return run


def _ring_environment() -> dict[str, str]:
    """What torchrun would set, for two processes of this machine."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
    return place | {"WORLD_SIZE": "2", "NODE_RANK": "0", "GROUP_RANK": "0", "LOCAL_WORLD_SIZE": "2"}


def train(file: Path) -> dict[str, Any]:
    """One process of an arm."""
    import polars as pl
    from contestants import Task
    from our_runs import StepWatch, build

    settings = json.loads(file.read_text(encoding="utf-8"))
    task, watch = Task.read(file.parent / "task.json"), StepWatch()
    processes = 2 if settings["connected"] else 1
    rows = pl.read_parquet(task.table).head(settings["steps"] * task.batch_size * processes)
    flags = ["--trim-vocab", settings["trim"], "--accelerator", "cpu"]
    flags += ["--devices", "2", "--strategy", "ddp"] if settings["connected"] else []
    with tempfile.TemporaryDirectory() as folder:
        built = build(task, rows, Path(folder), *flags)
        counter = _exchange_counter(settings["warm_up"])
        built.trainer.callbacks = [watch, counter]
        built.trainer.fit(built.module, built.datamodule)
    timed = len(watch.losses) - settings["warm_up"]
    return watch.measured() | {
        "reduced_bytes_a_step": counter.reduced_bytes / len(watch.losses),
        "loopback_bytes_a_step": counter.loopback_bytes / timed,
    }


def _exchange_counter(warm_up: int) -> Any:
    import pytorch_lightning as lightning
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
    from torch.nn.parallel import DistributedDataParallel

    class ExchangeCounter(lightning.Callback):
        """Bytes handed to the all-reduce, and bytes that the loopback device sent after the warm-up."""

        def __init__(self) -> None:
            self.reduced_bytes = self.loopback_bytes = self._before = 0

        def on_train_start(self, trainer: Any, module: Any) -> None:
            if isinstance(trainer.strategy.model, DistributedDataParallel):
                # A lambda, because torch reads the annotations of a hook and knows none that are strings.
                trainer.strategy.model.register_comm_hook(None, lambda state, bucket: self._reduce(bucket))

        def _reduce(self, bucket: Any) -> Any:
            self.reduced_bytes += bucket.buffer().nbytes
            return allreduce_hook(None, bucket)  # type: ignore[arg-type]

        def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            if batch_idx + 1 == warm_up:
                self._before = loopback_bytes()
            self.loopback_bytes = loopback_bytes() - self._before

    return ExchangeCounter()


def loopback_bytes(text: str | None = None) -> int:
    """Bytes that the loopback device has sent, by `/proc/net/dev`; 0 where there is none."""
    file = Path("/proc/net/dev")
    text = text if text is not None else file.read_text(encoding="utf-8") if file.exists() else ""
    for line in text.splitlines():
        name, _, counts = line.partition(":")
        if name.strip() == "lo":
            return int(counts.split()[8])
    return 0


def join_ranks(ranks: list[dict[str, Any]], warm_up: int) -> dict[str, Any]:
    """What the processes of one arm did together: their tokens over the time of the slowest."""
    seconds = max(sum(rank["step_s"][warm_up:]) for rank in ranks)
    first = ranks[0]
    return {
        "tokens_s": sum(sum(rank["step_tokens"][warm_up:]) for rank in ranks) / seconds,
        "parameters": first["parameters"],
        "gradient_bytes": first["gradient_bytes"],
        "reduced_bytes_a_step": first["reduced_bytes_a_step"],
        "loopback_bytes_a_step": first["loopback_bytes_a_step"],
        "peak_rss_gib": max(rank["peak_rss_gib"] for rank in ranks),
        "losses": first["losses"],
    }


def summarize(runs: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Tokens a second, efficiency over one process and over two that stay apart, bytes a step."""
    rates = {name: [run["tokens_s"] for run in held] for name, held in runs.items()}
    found: dict[str, Any] = {}
    for name, held in runs.items():
        kind, _, word = name.rpartition(", ")
        twice = [2 * rate for rate in rates[f"{ALONE}, {word}"]]
        is_joint = kind == TOGETHER
        found[name] = {
            "tokens_s": spread(rates[name]),
            "efficiency": None if kind == ALONE else ratio(rates[name], twice),
            "efficiency_beside_apart": ratio(rates[name], rates[f"{APART}, {word}"]) if is_joint else None,
            "parameters": held[0]["parameters"],
            "reduced_bytes_a_step": held[0]["reduced_bytes_a_step"] if is_joint else None,
            "loopback_bytes_a_step": spread(run["loopback_bytes_a_step"] for run in held) if is_joint else None,
            "peak_rss_gib": spread(run["peak_rss_gib"] for run in held),
        }
    return found


def as_markdown(report: dict[str, Any]) -> str:
    """The table for people."""
    settings = report["facts"]["settings"]
    what = f"{settings['model']}, {settings['precision']}, {settings['batch_size']} examples a process and step, gloo"
    header = ("", "tokens/s", "of 2 x one", "of two apart", "parameters", "reduced MB a step", "loopback MB a step")

    def share(found: dict[str, float] | None) -> str:
        return "-" if found is None else f"{100 * found['median']:.0f}%"

    def megabytes(count: float | None) -> str:
        return "-" if count is None else f"{count / 1e6:,.1f}"

    rows = []
    for name, one in report["runs"].items():
        sent = one["loopback_bytes_a_step"]
        rows.append(
            (
                name,
                f"{one['tokens_s']['median']:,.0f}",
                share(one["efficiency"]),
                share(one["efficiency_beside_apart"]),
                f"{one['parameters'] / 1e6:.1f}M",
                megabytes(one["reduced_bytes_a_step"]),
                megabytes(None if sent is None else sent["median"]),
            )
        )
    return heading(report["facts"], what) + table(header, rows)


def with_tables(text: str, tables: str) -> str:
    """The document with what stands between its marks replaced.

    Raises:
        ValueError: it has no marks.
    """
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the document has no '{BEGIN}' and '{END}'")
    return f"{before}{BEGIN}\n\n{tables}\n{END}{after}"


if __name__ == "__main__":
    main()
