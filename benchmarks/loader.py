"""Tokenizing and caching by us against `datasets.map` with the same fast tokenizer and as many processes.

    python benchmarks/loader.py --data vilegalnli:DIR --processes 2

First start: texts to token ids in an empty cache. Second start: the same call in a new process, from that cache.
Counted is the call alone (ours with labels and cache key, theirs without reading the rows); both sides must end with
the same ids. `--processes` is `num_proc` of `datasets.map`, whose processes have one thread each, and the number of
threads of our tokenizer. Texts a second count every text of every row on both sides; we encode a repeated one once.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from report import (
    alternate,
    as_median,
    as_ratio,
    describe,
    heading,
    make_parser,
    ratio,
    run_worker,
    serve,
    spread,
    table,
    write,
)

OURS, THEIRS = "lightning-nli", "datasets.map"


def main(argv: list[str] | None = None) -> None:
    """Run the benchmark, or one contestant."""
    args = _parser().parse_args(argv)
    if serve(args, {OURS: ours, THEIRS: theirs}):
        return
    with tempfile.TemporaryDirectory() as folder:
        texts = prepare_rows(Path(folder), data=args.data, model=args.model, max_length=args.max_length)
        runs = alternate(
            {name: _both_starts(name, Path(folder), args.processes) for name in (OURS, THEIRS)},
            args.repeats,
            lambda run: f"first start {run['first_s']:.2f} s, second {run['second_s']:.2f} s",
        )
    check_same_ids(runs)
    report = {"facts": describe(__file__, args, argv), "texts": texts, "contestants": summarize(runs, texts["texts"])}
    write(args, report, as_markdown(report))


def _parser() -> argparse.ArgumentParser:
    parser = make_parser(__doc__, "loader", repeats=3)
    parser.add_argument("--data", default="sample:20000", help="rows, as in lnli fit")
    parser.add_argument("--model", default="e5-small", help="whose tokenizer, as in lnli fit")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--max-length", type=int, default=256)
    return parser


def prepare_rows(scratch: Path, *, data: str, model: str, max_length: int) -> dict[str, Any]:
    """Write tokenizer, rows and `task.json`; how many texts there are, and how many distinct ones."""
    import json

    import polars as pl
    from transformers import AutoTokenizer

    from lightning_nli.data.readers import read_source
    from lightning_nli.models.offline import resolve_model

    corpus = read_source(data, on_bad_row="drop")
    frame = corpus.frame.filter(pl.col("premise").is_not_null())
    texts = [*frame["premise"].to_list(), *frame["hypothesis"].to_list()]
    AutoTokenizer.from_pretrained(str(resolve_model(model, lambda: texts))).save_pretrained(scratch / "model")
    frame.write_parquet(scratch / "rows.parquet")
    settings = {"folder": str(scratch), "scheme": corpus.scheme.name, "max_length": max_length, "processes": 1}
    (scratch / "task.json").write_text(json.dumps(settings), encoding="utf-8")
    return {"rows": frame.height, "texts": len(texts), "distinct": len(set(texts))}


def _both_starts(name: str, scratch: Path, processes: int) -> Callable[[], dict[str, Any]]:
    """A first and a second start of one contestant, each a process, with a cache of their own."""
    import json

    def run() -> dict[str, Any]:
        with tempfile.TemporaryDirectory(dir=scratch) as cache:
            settings = json.loads((scratch / "task.json").read_text(encoding="utf-8"))
            task = Path(cache) / "task.json"
            task.write_text(json.dumps(settings | {"processes": processes, "cache": cache}), encoding="utf-8")
            found = [
                run_worker(__file__, name, task, threads=processes if name == OURS else 1, HF_DATASETS_OFFLINE="1")
                for _ in range(2)
            ]
        first, second = found
        return {
            "first_s": first["seconds"],
            "second_s": second["seconds"],
            "ids": sorted({first["ids"], second["ids"]}),
            "peak_rss_gib": first["peak_rss_gib"],
        }

    return run


def ours(task: Path) -> dict[str, Any]:
    """`tokenize_split` with a cache."""
    import json

    import polars as pl
    from transformers import AutoTokenizer

    from lightning_nli.data.tokenization import EncoderSpec, tokenize_split
    from lightning_nli.types import SCHEMES

    settings = json.loads(task.read_text(encoding="utf-8"))
    folder = Path(settings["folder"])
    spec = EncoderSpec(
        AutoTokenizer.from_pretrained(folder / "model"), ("premise", "hypothesis"), settings["max_length"]
    )
    frame = pl.read_parquet(folder / "rows.parquet")
    started = time.perf_counter()
    split = tokenize_split(frame, spec, SCHEMES[settings["scheme"]], cache=Path(settings["cache"]) / "ours")
    seconds = time.perf_counter() - started
    return {"seconds": seconds, "ids": _digest(split.token_ids)}


def theirs(task: Path) -> dict[str, Any]:
    """`datasets.map` of pairs, batched, as the library's documentation has it."""
    import json

    import numpy as np
    from datasets import load_dataset
    from transformers import AutoTokenizer

    settings = json.loads(task.read_text(encoding="utf-8"))
    folder, processes = Path(settings["folder"]), settings["processes"]
    tokenizer = AutoTokenizer.from_pretrained(folder / "model")
    max_length = settings["max_length"]

    def tokenize(rows: dict[str, Any]) -> Any:
        return tokenizer(rows["premise"], rows["hypothesis"], truncation=True, max_length=max_length)

    source = {"data_files": str(folder / "rows.parquet"), "split": "train"}
    rows = load_dataset("parquet", cache_dir=f"{settings['cache']}/theirs", **source)
    rows = rows.select_columns(["premise", "hypothesis"])
    started = time.perf_counter()
    tokens = rows.map(
        tokenize, batched=True, num_proc=processes if processes > 1 else None, remove_columns=rows.column_names
    )
    seconds = time.perf_counter() - started
    ids = tokens.data.column("input_ids").combine_chunks().flatten().to_numpy(zero_copy_only=False)
    return {"seconds": seconds, "ids": _digest(ids.astype(np.int32))}


def _digest(ids: Any) -> str:
    import hashlib

    return hashlib.blake2b(ids.tobytes(), digest_size=8).hexdigest()


def check_same_ids(runs: dict[str, list[dict[str, Any]]]) -> None:
    """End the benchmark if two runs ended with other ids."""
    found = {ids for held in runs.values() for run in held for ids in run["ids"]}
    if len(found) != 1:
        sys.exit(f"the contestants made other token ids: { ({name: held[0]['ids'] for name, held in runs.items()}) }")


def summarize(runs: dict[str, list[dict[str, Any]]], num_texts: int) -> dict[str, Any]:
    """Texts a second of the first start, seconds of the second, and how many times as fast ours are."""
    rates = {name: [num_texts / run["first_s"] for run in held] for name, held in runs.items()}
    again = {name: [run["second_s"] for run in held] for name, held in runs.items()}
    return {
        name: {
            "texts_s": spread(rates[name]),
            "ours_is": ratio(rates[OURS], rates[name]),
            "second_start_s": spread(again[name]),
            "second_start_ours_is": ratio(again[name], again[OURS]),
            "peak_rss_gib": spread(run["peak_rss_gib"] for run in runs[name]),
        }
        for name in runs
    }


def as_markdown(report: dict[str, Any]) -> str:
    """The table for people."""
    facts, texts = report["facts"], report["texts"]
    what = f"{texts['rows']:,} rows, {texts['distinct']:,} of {texts['texts']:,} texts distinct, " + (
        f"{facts['settings']['processes']} processes"
    )
    header = ("", "texts/s, first start", "ours is", "second start, s", "ours is", "peak GiB")
    rows = [
        (
            name,
            as_median(one["texts_s"], 0),
            as_ratio(one["ours_is"]),
            as_median(one["second_start_s"], 2),
            as_ratio(one["second_start_ours_is"]),
            f"{one['peak_rss_gib']['median']:.2f}",
        )
        for name, one in report["contestants"].items()
    ]
    return heading(facts, what) + table(header, rows)


if __name__ == "__main__":
    main()
