"""Seconds from the start of a process to the first optimizer step, with cached tokens; memory of a million pairs.

    python benchmarks/startup.py --data sample:42012 --model e5-small
    python benchmarks/startup.py --rows 1000000

A start does what `lnli fit` does, up to the end of the first optimizer step. The first start fills the caches, and
notes which modules it imported; every later one imports these first, so that imports are a figure of their own.
`--rows` (0: left out) repeats the pairs to so many, tokenizes them once, and then, in a new process, opens them from
the cache, plans an epoch by tokens and collates packs from all over it. Growth is counted from where the texts are in
memory; `mapped` are pages of the cache's files, which the system may take back at any time.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from report import (
    STARTED,
    add_task_options,
    alternate,
    as_median,
    describe,
    heading,
    make_parser,
    memory_gib,
    run_worker,
    say,
    serve,
    spread,
    table,
    write,
)

PARTS = ("imports_s", "data_s", "build_s", "ready_s", "first_step_s", "beyond_imports_s", "ready_beyond_imports_s")
_PACKS_WALKED = 400


def main(argv: list[str] | None = None) -> None:
    """Run the benchmark, or one start."""
    args = _parser().parse_args(argv)
    if serve(args, {"start": start, "walk": walk}):
        return
    with tempfile.TemporaryDirectory() as folder:
        task, cache = Path(folder) / "task.json", share_cache(Path(folder))
        settings: dict[str, Any] = {name: getattr(args, name) for name in ("data", "model", "precision", "batch_size")}
        settings |= {"max_length": args.max_length, "max_tokens": args.max_tokens, "rows": args.rows, "modules": []}
        task.write_text(json.dumps(settings), encoding="utf-8")
        first = run_worker(__file__, "start", task, threads=args.threads, LNLI_CACHE=str(cache))
        say(f"first start: {first['first_step_s']:.1f} s")
        task.write_text(json.dumps(settings | {"modules": first["modules"]}), encoding="utf-8")
        runs = alternate(
            {"start": lambda: run_worker(__file__, "start", task, threads=args.threads, LNLI_CACHE=str(cache))},
            args.repeats,
            lambda run: f"{run['beyond_imports_s']:.2f} s beyond imports",
        )["start"]
        walks = [
            run_worker(__file__, "walk", task, threads=args.threads, LNLI_CACHE=str(cache))
            for _ in range(2 if args.rows else 0)
        ]
    report = {
        "facts": describe(__file__, args, argv),
        "first_start": {name: first[name] for name in PARTS},
        "second_start": {name: spread(run[name] for run in runs) for name in PARTS},
        "mapped": walks[-1] if walks else None,
    }
    write(args, report, as_markdown(report))


def _parser() -> argparse.ArgumentParser:
    parser = make_parser(__doc__, "startup", repeats=3)
    add_task_options(parser, data="sample:42012")
    parser.add_argument("--max-tokens", type=int, default=4096, help="tokens of a pack, for --rows")
    parser.add_argument("--rows", type=int, default=0, help="pairs that are memory-mapped")
    return parser


def share_cache(folder: Path) -> Path:
    """A cache with the user's encoders and without anything that a run adds."""
    from lightning_nli.config import cache_root

    cache = folder / "cache"
    cache.mkdir()
    for name in ("encoders", "wheels"):
        there = cache_root().resolve() / name
        if there.exists():
            (cache / name).symlink_to(there)
    return cache


def import_all(names: list[str]) -> None:
    """Import these modules; those that are made while others are imported are left out."""
    for name in names:
        try:
            importlib.import_module(name)
        except Exception:
            continue


def start(task: Path) -> dict[str, Any]:
    """A training up to the end of its first optimizer step, with the seconds since the process was started."""
    origin = float(os.environ[STARTED])
    settings = json.loads(task.read_text(encoding="utf-8"))
    before = time.time()
    import_all(settings["modules"])
    import pytorch_lightning as lightning

    from lightning_nli.config import parse_config
    from lightning_nli.training.corpora import load_run_data
    from lightning_nli.training.run import build_run
    from lightning_nli.training.run_folder import check_run_folder, claim_run_folder
    from lightning_nli.training.strategy import check_engine, set_cpu_threads
    from lightning_nli.training.trained import save_encoder

    imports_s = time.time() - before
    found: dict[str, Any] = {"imports_s": imports_s}

    def mark(name: str) -> None:
        found[name] = time.time() - origin

    class Watch(lightning.Callback):
        def on_train_batch_start(self, *args: Any) -> None:
            mark("ready_s")

        def on_train_batch_end(self, *args: Any) -> None:
            mark("first_step_s")
            raise _FirstStepDone

    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "run"
        flags = {name.replace("_", "-"): settings[name] for name in ("data", "model", "precision", "batch_size")}
        flags |= {"max-length": settings["max_length"], "lr": 2e-5, "epochs": 1, "run-dir": folder}
        config = parse_config([f"--{name}={value}" for name, value in flags.items()])
        check_engine(config)
        check_run_folder(folder, config)
        data = load_run_data(config)
        mark("data_s")
        set_cpu_threads(1)
        built = build_run(config, data, folder, quiet=True)
        claim_run_folder(folder, config, data.bad_rows)
        save_encoder(folder, built.loaded, built.meta, built.kept_tokens)
        mark("build_s")
        built.trainer.callbacks.append(Watch())
        with contextlib.suppress(_FirstStepDone):
            built.trainer.fit(built.module, built.datamodule)
    for name in ("ready", "first_step"):
        beyond = "ready_beyond_imports_s" if name == "ready" else "beyond_imports_s"
        found[beyond] = found[f"{name}_s"] - imports_s
    return found | {"modules": [name for name in sys.modules if not name.startswith("__m")]}


class _FirstStepDone(Exception):  # noqa: N818
    """Ends a training that was only to begin."""


def walk(task: Path) -> dict[str, Any]:
    """Open many pairs from the cache (or fill it), plan an epoch, collate packs; seconds and growth in GiB."""
    import polars as pl
    from transformers import AutoTokenizer

    from lightning_nli.config import cache_root
    from lightning_nli.data.packing import PackPlan, collate_pack, count_micro_steps, plan_steps
    from lightning_nli.data.readers import read_source
    from lightning_nli.data.tokenization import EncoderSpec, tokenize_split
    from lightning_nli.models.offline import resolve_model

    settings = json.loads(task.read_text(encoding="utf-8"))
    corpus = read_source(settings["data"], on_bad_row="drop")
    copies = -(-settings["rows"] // corpus.frame.height)
    frame = pl.concat([corpus.frame] * copies, rechunk=False).head(settings["rows"])
    texts = [*corpus.frame["premise"].to_list(), *corpus.frame["hypothesis"].to_list()]
    tokenizer = AutoTokenizer.from_pretrained(str(resolve_model(settings["model"], lambda: texts)))
    spec = EncoderSpec(tokenizer, ("premise", "hypothesis"), settings["max_length"])
    before, started = memory_gib(), time.perf_counter()
    split = tokenize_split(frame, spec, corpus.scheme, cache=cache_root())
    opened_s, opened = time.perf_counter() - started, memory_gib()
    plan = PackPlan(None, settings["max_tokens"])
    started = time.perf_counter()
    num_steps = count_micro_steps(split.lengths, plan, epochs=1)
    steps = plan_steps(split.lengths, plan, epoch=0, num_micro_steps=num_steps)
    plan_s = time.perf_counter() - started
    for ranks in steps[:: max(1, len(steps) // _PACKS_WALKED)]:
        collate_pack(split, ranks[0])
    after = memory_gib()
    return {
        "pairs": len(split),
        "tokens": int(split.offsets[-1]),
        "open_s": opened_s,
        "plan_s": plan_s,
        "packs": num_steps,
        "pack_fill": int(split.offsets[-1]) / (num_steps * settings["max_tokens"]),
        "growth_when_open_gib": opened["resident"] - before["resident"],
        "growth_gib": after["resident"] - before["resident"],
        "own_growth_gib": after["own"] - before["own"],
        "mapped_growth_gib": after["mapped"] - before["mapped"],
        "peak_growth_gib": after["peak"] - before["peak"],
    }


def as_markdown(report: dict[str, Any]) -> str:
    """The tables for people."""
    settings = report["facts"]["settings"]
    what = f"{settings['data']}, {settings['model']}, {settings['precision']}, batch {settings['batch_size']}"
    words = {
        "imports_s": "imports",
        "data_s": "rows read, from the start of the process",
        "build_s": "run built",
        "ready_s": "first batch in hand",
        "first_step_s": "first optimizer step done",
        "ready_beyond_imports_s": "first batch in hand, without imports",
        "beyond_imports_s": "first optimizer step done, without imports",
    }
    rows = [
        (word, f"{report['first_start'][name]:.2f}", as_median(report["second_start"][name], 2))
        for name, word in words.items()
    ]
    text = heading(report["facts"], what) + table(("seconds", "first start", "later starts"), rows)
    found = report["mapped"]
    if found is None:
        return text
    return text + (
        f"\n{found['pairs']:,} pairs ({found['tokens']:,} tokens) from the cache: open after {found['open_s']:.1f} s, "
        f"{found['packs']:,} packs planned in {found['plan_s']:.1f} s, {100 * found['pack_fill']:.1f}% full; resident "
        f"growth {1024 * found['growth_gib']:.0f} MiB ({1024 * found['own_growth_gib']:.0f} own, "
        f"{1024 * found['mapped_growth_gib']:.0f} mapped), "
        f"the peak grew by {1024 * found['peak_growth_gib']:.0f} MiB.\n"
    )


if __name__ == "__main__":
    main()
