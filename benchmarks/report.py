"""What the benchmark scripts share: runs in processes of their own, facts of the machine, medians, result files.

Every run of a contestant is a fresh process of the same script (`--worker NAME --task FILE --out FILE`), so that its
peak memory, caches and threads are its own; contestants alternate, so that other work on the machine falls on all.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
PACKAGES = (
    *("torch", "transformers", "tokenizers", "datasets", "accelerate", "sentence-transformers"),
    *("pytorch-lightning", "deepspeed", "flash-attn", "numpy", "polars", "lightning-nli"),
)
STARTED = "BENCHMARK_STARTED"
"""Environment variable with the time (seconds since the epoch) at which a worker was started."""

Worker = Callable[[Path], dict[str, Any]]

_WORKER_OPTIONS = ("worker", "task", "out")
_KIB_PER_GIB = 1024**2


def make_parser(about: str | None, name: str, *, repeats: int) -> argparse.ArgumentParser:
    """A parser with the options that every script has; the hidden ones start a worker."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--name", default=name, help="of the result files")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the result files")
    parser.add_argument("--repeats", type=int, default=repeats, help="runs of each contestant")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1, help="CPU threads of a run")
    for option in _WORKER_OPTIONS:
        parser.add_argument(f"--{option}", type=str if option == "worker" else Path, help=argparse.SUPPRESS)
    return parser


def add_task_options(parser: argparse.ArgumentParser, *, data: str, rows: str = "training rows") -> None:
    """The options that `preparation.prepare_for` reads.

    Args:
        parser: Of a script.
        data: Default of `--data`.
        rows: What its rows are for.
    """
    parser.add_argument("--data", default=data, help=f"{rows}, as in lnli fit")
    parser.add_argument("--model", default="e5-small", help="as in lnli fit; a folder of lnli export is one too")
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--max-length", type=int, default=256)
    parser.add_argument("--precision", choices=("bf16", "fp32"), default="bf16")


def serve(args: argparse.Namespace, workers: Mapping[str, Worker]) -> bool:
    """Run the worker that `args` ask for, if they do, and write what it measured; the peak memory is put right.

    The kernel hands `ru_maxrss` on from the process that started this one, so the peak is read elsewhere.
    """
    if not args.worker:
        return False
    found = workers[args.worker](args.task)
    args.out.write_text(json.dumps(found | {"peak_rss_gib": peak_rss_gib()}), encoding="utf-8")
    return True


class WorkerError(SystemExit):
    """A worker failed or took too long."""


@dataclass(frozen=True)
class Started:
    """A worker that runs.

    Attributes:
        name: Of the worker.
        process: Its process.
        out: Where it will write what it measured.
    """

    name: str
    process: subprocess.Popen[bytes]
    out: Path

    def finish(self, timeout_s: float | None = None) -> dict[str, Any]:
        """Wait for the worker and return what it measured.

        Raises:
            WorkerError: it failed, or took longer than `timeout_s` and was killed; uncaught, this ends the benchmark.
        """
        try:
            code = self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise WorkerError(f"{self.name} took longer than {timeout_s:.0f} s") from None
        if code:
            errors = self.out.with_suffix(".log").read_text(encoding="utf-8", errors="replace")
            raise WorkerError(f"{self.name} failed:\n{errors[-3000:]}")
        return json.loads(self.out.read_text(encoding="utf-8"))  # type: ignore[no-any-return]


def start_worker(script: str, name: str, task: Path, *, threads: int, **environment: str) -> Started:
    """Start worker `name` of `script` on a task file, beside which its output goes."""
    out = task.parent / f"{uuid.uuid4().hex}.json"
    command = [sys.executable, script, "--worker", name, "--task", str(task), "--out", str(out)]
    settings = {
        "OMP_NUM_THREADS": str(threads),
        "RAYON_NUM_THREADS": str(threads),
        "TOKENIZERS_PARALLELISM": "true",
        "HF_HUB_OFFLINE": "1",
        STARTED: repr(time.time()),
    }
    with out.with_suffix(".log").open("wb") as log:
        process = subprocess.Popen(
            command, env=os.environ | settings | environment, stdout=subprocess.DEVNULL, stderr=log
        )
    return Started(name, process, out)


def run_worker(
    script: str, name: str, task: Path, *, threads: int, timeout_s: float | None = None, **environment: str
) -> dict[str, Any]:
    """`start_worker`, waited for."""
    return start_worker(script, name, task, threads=threads, **environment).finish(timeout_s)


def arm(script: str, name: str, task: Path, threads: int) -> Callable[[], dict[str, Any]]:
    """`run_worker`, to be called once a repeat."""
    return lambda: run_worker(script, name, task, threads=threads)


def alternate(
    runs: Mapping[str, Callable[[], dict[str, Any]]], repeats: int, told: Callable[[dict[str, Any]], str]
) -> dict[str, list[dict[str, Any]]]:
    """Every contestant once, then again, `repeats` times; one line a run says what `told` makes of it."""
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in runs}
    for repeat in range(repeats):
        for name, run in runs.items():
            found[name].append(run())
            say(f"{name}, run {repeat + 1}: {told(found[name][-1])}")
    return found


def describe(script: str, args: argparse.Namespace, argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Command, settings, machine and versions of a benchmark."""
    from lightning_nli.training.run_folder import processor_name

    given = sys.argv[1:] if argv is None else argv
    kept = {name: value for name, value in vars(args).items() if name not in (*_WORKER_OPTIONS, "results")}
    return {
        "command": " ".join(["python", f"benchmarks/{Path(script).name}", *given]),
        "settings": kept,
        "processor": processor_name(),
        "cores": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1024**3, 1),
        "python": platform.python_version(),
        "versions": versions(),
    }


def versions() -> dict[str, str | None]:
    """Version of every package that takes part; None where it is not installed."""
    found: dict[str, str | None] = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    return found


def spread(values: Iterable[float]) -> dict[str, Any]:
    """Median, extremes, (largest - smallest) / median, and every value."""
    held = list(values)
    middle = statistics.median(held)
    width = (max(held) - min(held)) / middle if middle else None
    return {"median": middle, "min": min(held), "max": max(held), "spread": width, "all": held}


def ratio(above: Sequence[float], below: Sequence[float]) -> dict[str, float]:
    """Ratio of the medians, and the smallest and largest ratio of the runs of one repeat.

    Raises:
        ValueError: not as many runs of one as of the other.
    """
    pairs = [one / other for one, other in zip(above, below, strict=True)]
    return {
        "median": statistics.median(above) / statistics.median(below),
        "min": min(pairs),
        "max": max(pairs),
    }


def as_ratio(found: Mapping[str, float]) -> str:
    """`4.10x (3.92 to 4.31)`."""
    return f"{found['median']:.2f}x ({found['min']:.2f} to {found['max']:.2f})"


def as_median(found: Mapping[str, Any], digits: int = 1) -> str:
    """`12.3 (12.0 to 12.9)`."""
    return f"{found['median']:,.{digits}f} ({found['min']:,.{digits}f} to {found['max']:,.{digits}f})"


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [f"| {' | '.join(header)} |", "|" + "---|" * len(header)]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)]) + "\n"


def heading(facts: Mapping[str, Any], what: str) -> str:
    """Command, machine and what is counted, above a table."""
    return (
        f"`{facts['command']}`\n\n{facts['processor']}, {facts['cores']} cores, "
        f"{facts['settings']['threads']} threads a run; {what}; medians of {facts['settings']['repeats']} runs each, "
        "in brackets the extremes.\n\n"
    )


def write(args: argparse.Namespace, report: Mapping[str, Any], markdown: str) -> None:
    """`NAME.json` and `NAME.md` in the folder of results; the table is printed too."""
    args.results.mkdir(parents=True, exist_ok=True)
    target = args.results / args.name
    text = json.dumps(report, indent=1, default=str, allow_nan=False)
    target.with_suffix(".json").write_text(text + "\n", encoding="utf-8")
    target.with_suffix(".md").write_text(markdown, encoding="utf-8")
    say(markdown)


def memory_gib() -> dict[str, float]:
    """Resident memory of this process now: all of it, and the parts that are its own and of mapped files."""
    names = {"VmRSS": "resident", "RssAnon": "own", "RssFile": "mapped", "VmHWM": "peak"}
    found: dict[str, float] = {}
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        name, _, rest = line.partition(":")
        if name in names:
            found[names[name]] = int(rest.split()[0]) / _KIB_PER_GIB
    return found


def peak_rss_gib() -> float:
    """Largest resident memory of this process since it runs this program."""
    if Path("/proc/self/status").exists():
        return memory_gib()["peak"]
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / _KIB_PER_GIB


def say(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
