"""One prepared script for a CUDA machine, under 8 minutes: exactness, speed against the peers, memory, largest pack.

    python benchmarks/gpu.py
    python benchmarks/gpu.py --dry-run        every part on a CPU with tiny shapes; measures nothing, writes nothing

Encoders have the shapes of XLM-R base and large with random weights and a small tokenizer (no hub): neither speed nor
memory depend on the weights. Parts, in order, each a process of its own: packed against padded on the real kernels; the
machine's bf16 matmul peak; training by us and the peers; ours compiled; the largest pack that fits. A part for which no
time is left is `null` in the result, and one that fails says why.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpu_parts import COMPILED, OURS, TRAINER, worker, write_task
from report import WorkerError, describe, make_parser, run_worker, say, serve, table, write

SHAPES = {
    "xlm-r-base": {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072},
    "xlm-r-large": {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096},
}
TINY = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
_LEAST_S = 15.0  # a part is not begun with less time left


def main(argv: list[str] | None = None) -> None:
    """Run all parts, or one of them."""
    args = _parser().parse_args(argv)
    if args.worker:
        serve(args, {args.worker: worker(args.worker)})
        return
    import torch

    if not (args.dry_run or torch.cuda.is_available()):
        sys.exit("gpu.py: no CUDA device here; --dry-run goes through every part on a CPU")
    session = Session(args, time.monotonic() + 60 * args.minutes)
    shapes = {"tiny": TINY} if args.dry_run else {name: SHAPES[name] for name in args.shapes.split(",")}
    report: dict[str, Any] = {"facts": describe(__file__, args, argv), "dry_run": args.dry_run, "shapes": {}}
    with tempfile.TemporaryDirectory() as folder:
        tasks = {
            name: write_task(Path(folder) / name, shape, args, dry_run=args.dry_run) for name, shape in shapes.items()
        }
        for part in ("exact", "peak", "train", COMPILED, "pack"):
            for name, task in tasks.items():
                report["shapes"].setdefault(name, {})[part] = session.run(part, task)
    if args.dry_run:
        say(as_markdown(report))
    else:
        write(args, report, as_markdown(report))


def _parser() -> argparse.ArgumentParser:
    parser = make_parser(__doc__, "gpu", repeats=1)
    parser.add_argument("--dry-run", action="store_true", help="tiny shapes on a CPU, in this process")
    parser.add_argument("--minutes", type=float, default=7.5, help="parts that would begin later are left out")
    parser.add_argument("--shapes", default=",".join(SHAPES))
    parser.add_argument("--contestants", help="names as in throughput.py, separated by ;")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--warm-up", type=int, default=10)
    parser.add_argument("--max-length", type=int, default=256)
    return parser


@dataclass
class Session:
    """Parts that run one after the other until the time is over.

    Attributes:
        args: Of the command line.
        deadline: On the monotonic clock.
        failures: What failed, by part.
    """

    args: argparse.Namespace
    deadline: float
    failures: list[str] = field(default_factory=list)

    def run(self, part: str, task: Path) -> Any:
        """What a part measured; for `train` a dict by contestant. None: no time was left."""
        if part != "train":
            return self._one(part, task)
        from contestants import CONTESTANTS

        default = [OURS, TRAINER] if self.args.dry_run else list(CONTESTANTS)
        names = self.args.contestants.split(";") if self.args.contestants else default
        return {name: self._one(f"train:{name}", task) for name in names}

    def _one(self, part: str, task: Path) -> dict[str, Any] | None:
        say(f"{task.parent.name}: {part}")
        if self.args.dry_run:
            return worker(part)(task)
        left = self.deadline - time.monotonic()
        if left < _LEAST_S:
            return None
        try:
            return run_worker(__file__, part, task, threads=self.args.threads, timeout_s=left)
        except WorkerError as error:
            self.failures.append(part)
            say(str(error))
            return {"error": str(error)[-500:]}


def as_markdown(report: dict[str, Any]) -> str:
    """The tables for people."""
    facts = report["facts"]
    parts = [f"`{facts['command']}`\n"]
    if report["dry_run"]:
        parts.append("A dry run on a CPU: no figure below means anything.\n")
    for name, found in report["shapes"].items():
        peak = found["peak"] or {}
        parts += [
            f"{name}, {peak.get('device', '-')}, matmul peak {_number(peak.get('flops_s'), 1e12)} TFLOP/s, bf16:\n"
        ]
        parts.append(_training_table(found, peak))
        parts.append(f"Largest pack: {_pack(found['pack'])}. Packed against padded: {_exactness(found['exact'])}.\n")
    return "\n".join(parts)


def _training_table(found: dict[str, Any], peak: dict[str, Any]) -> str:
    trained = found["train"] | {COMPILED: found[COMPILED]}
    ours = (trained.get(OURS) or {}).get("examples_s")
    rows = []
    for name, one in trained.items():
        speed = (one or {}).get("examples_s")
        if one is None or speed is None:
            rows.append((name, "no time left" if one is None else "failed", *["-"] * 5))
            continue
        tokens = speed * peak["tokens_an_example"] if "tokens_an_example" in peak else None
        share = speed * peak["flops_an_example"] / peak["flops_s"] if "flops_s" in peak else None
        rows.append(
            (
                name,
                f"{speed:,.1f}",
                _number(tokens, 1),
                "-" if not ours else f"{ours / speed:.2f}x",
                "-" if share is None else f"{100 * share:.0f}%",
                _number(one["peak_gpu_gib"], 1),
                f"{one['last_loss']:.4f}",
            )
        )
    return table(("", "examples/s", "tokens/s", "ours is", "of matmul peak", "peak GPU GiB", "last loss"), rows)


def _number(value: float | None, unit: float) -> str:
    return "-" if value is None else f"{value / unit:,.1f}"


def _pack(found: dict[str, Any] | None) -> str:
    if found is None or "error" in found:
        return "not found" if found else "no time left"
    return f"{found['max_tokens']:,} tokens{' (the limit of the search)' if found['is_at_the_limit'] else ''}"


def _exactness(found: dict[str, Any] | None) -> str:
    if found is None or "error" in found:
        return found["error"] if found else "no time left"
    return (
        f"logits fp32 {found['logits_fp32']:.1e}, bf16 {found['logits_bf16_packed']:.1e} (padded "
        f"{found['logits_bf16_padded']:.1e}); gradient fp32 {found['gradient_fp32']:.1e}, bf16 "
        f"{found['gradient_bf16_packed']:.1e} (padded {found['gradient_bf16_padded']:.1e}), "
        "relative to the largest value"
    )


if __name__ == "__main__":
    main()
