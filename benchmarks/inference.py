"""Scoring by us, as `lnli test` and `lnli predict` do it, against `Trainer.predict`; the logits are compared.

    python benchmarks/inference.py --data vilegalnli:DIR#dev --model e5-small --rows 640

Two clocks: from the texts (tokenizing counts on both sides) and from token ids (it counts on neither). Both sides give
their logits in the order of the rows; in fp32 they must be equal within 1e-4, or the benchmark fails. `Trainer` runs as
it does after a bf16 training (autocast) and, in bf16, also with `bf16_full_eval`, its faster way.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from report import (
    Worker,
    add_task_options,
    alternate,
    arm,
    as_median,
    as_ratio,
    describe,
    heading,
    make_parser,
    ratio,
    serve,
    spread,
    table,
    write,
)

OURS, TRAINER, FULL = "lightning-nli", "Trainer.predict", "Trainer.predict, bf16_full_eval"
TOLERANCE = 1e-4
"""Largest difference between two sides' fp32 logits."""
_MARGIN = 10  # rows that stand in another place must differ so many times more


def main(argv: list[str] | None = None) -> None:
    """Run the benchmark, or one contestant."""
    args = _parser().parse_args(argv)
    if serve(args, {OURS: _ours, TRAINER: _trainer(full=False), FULL: _trainer(full=True)}):
        return
    from preparation import prepare_for

    names = [OURS, TRAINER, *([FULL] if args.precision == "bf16" else [])]
    with tempfile.TemporaryDirectory() as folder:
        task = prepare_for(args, Path(folder), num_rows=args.rows)
        runs = alternate(
            {name: arm(__file__, name, Path(folder) / "task.json", args.threads) for name in names},
            args.repeats,
            lambda run: f"{len(run['logits']) / run['from_texts_s']:.1f} examples/s from texts",
        )
    agreement = None if len(task.segments) > 2 else compare(runs, exact=args.precision == "fp32")
    report = {"facts": describe(__file__, args, argv), "agreement": agreement, "contestants": summarize(runs)}
    write(args, report, as_markdown(report))


def _parser() -> argparse.ArgumentParser:
    parser = make_parser(__doc__, "inference", repeats=3)
    add_task_options(parser, data="sample:2000", rows="rows to score")
    parser.add_argument("--rows", type=int, default=320, help="rows scored; Trainer.predict takes --batch-size at once")
    return parser


def _ours(file: Path) -> dict[str, Any]:
    import polars as pl
    import torch
    from contestants import Task, run_data

    from lightning_nli.config import PackingConfig
    from lightning_nli.data.tokenization import EncoderSpec, tokenize_split
    from lightning_nli.models.encoder import load_encoder
    from lightning_nli.training.scoring import Scorer

    task = Task.read(file)
    data = run_data(task, pl.read_parquet(task.table))
    loaded = load_encoder(task.model, data.scheme)
    encoder = loaded.encoder.eval()
    if task.precision == "bf16":
        encoder = encoder.to(torch.bfloat16)
    spec = EncoderSpec(loaded.tokenizer, task.segments, task.max_length, num_token_types=loaded.num_token_types)
    max_tokens = max(PackingConfig().eval_max_tokens, task.max_length)
    scorer = Scorer(encoder, spec, data.scheme, loaded.first_position, max_tokens, torch.device("cpu"))
    scorer.logits(data.train.head(task.batch_size))
    started = time.perf_counter()
    logits = scorer.logits(data.train)
    from_texts_s = time.perf_counter() - started
    split = tokenize_split(data.train, spec, data.scheme)
    started = time.perf_counter()
    scorer.split_logits(split)
    from_tokens_s = time.perf_counter() - started
    return {"from_texts_s": from_texts_s, "from_tokens_s": from_tokens_s, "logits": logits.tolist()}


def _trainer(*, full: bool) -> Worker:
    def score(file: Path) -> dict[str, Any]:
        import polars as pl
        from contestants import Task
        from datasets import Dataset
        from transformers import (
            AutoModelForSequenceClassification,
            AutoTokenizer,
            DataCollatorWithPadding,
            Trainer,
            TrainingArguments,
        )

        task = Task.read(file)
        first, *others = task.segments
        columns = {"first": pl.col(first), "second": pl.concat_str(others, separator=" ")}
        texts = Dataset.from_dict(pl.read_parquet(task.table).select(**columns).to_dict(as_series=False))
        tokenizer = AutoTokenizer.from_pretrained(task.model)
        half = task.precision == "bf16"
        arguments = {"bf16_full_eval": half and full, "bf16": half and not full, "use_cpu": True, "report_to": []}

        def tokenize(rows: dict[str, Any]) -> Any:
            return tokenizer(rows["first"], rows["second"], truncation=True, max_length=task.max_length)

        with tempfile.TemporaryDirectory() as folder:
            trainer = Trainer(
                AutoModelForSequenceClassification.from_pretrained(task.model),
                TrainingArguments(folder, per_device_eval_batch_size=task.batch_size, disable_tqdm=True, **arguments),
                data_collator=DataCollatorWithPadding(tokenizer),
            )
            options = {"batched": True, "remove_columns": ["first", "second"]}
            trainer.predict(texts.select(range(task.batch_size)).map(tokenize, **options))
            started = time.perf_counter()
            tokens = texts.map(tokenize, **options)
            tokenized = time.perf_counter()
            logits = trainer.predict(tokens).predictions
            ended = time.perf_counter()
        return {
            "from_texts_s": ended - started,
            "from_tokens_s": ended - tokenized,
            "logits": logits.astype(float).tolist(),
        }

    return score


def compare(runs: dict[str, list[dict[str, Any]]], *, exact: bool) -> dict[str, float]:
    """How far our logits are from `Trainer`'s, row by row; ends the benchmark if they are not equal and must be.

    Args:
        runs: Of every contestant.
        exact: Whether more than `TOLERANCE` is an error (fp32).

    Returns:
        `largest_difference`; `of_other_rows`, what it would be if the rows stood one place further, which shows that
        the comparison can fail; `same_label_fraction`.
    """
    import numpy as np

    ours, theirs = (np.array(runs[name][0]["logits"]) for name in (OURS, TRAINER))
    found = {
        "largest_difference": float(np.abs(ours - theirs).max()),
        "of_other_rows": float(np.abs(np.roll(ours, 1, axis=0) - theirs).max()),
        "same_label_fraction": float((ours.argmax(-1) == theirs.argmax(-1)).mean()),
    }
    away, elsewhere = found["largest_difference"], found["of_other_rows"]
    if exact and not (away <= TOLERANCE and away < elsewhere / _MARGIN):
        sys.exit(f"the logits do not agree row by row: {found}")
    return found


def summarize(runs: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Examples a second by either clock with their spread, and how many times as fast ours are."""
    clocks = ("from_texts_s", "from_tokens_s")
    rates = {
        name: {clock: [len(run["logits"]) / run[clock] for run in held] for clock in clocks}
        for name, held in runs.items()
    }
    return {
        name: {
            "examples_s": {clock.removesuffix("_s"): spread(one[clock]) for clock in clocks},
            "ours_is": {clock.removesuffix("_s"): ratio(rates[OURS][clock], one[clock]) for clock in clocks},
            "peak_rss_gib": spread(run.get("peak_rss_gib", 0.0) for run in runs[name]),
        }
        for name, one in rates.items()
    }


def as_markdown(report: dict[str, Any]) -> str:
    """The table for people."""
    settings, agreement = report["facts"]["settings"], report["agreement"]
    what = f"{settings['model']}, {settings['precision']}, {settings['rows']} rows; examples a second"
    header = ("", "from texts", "ours is", "from token ids", "ours is", "peak GiB")
    rows = [
        (
            name,
            *(
                cell
                for clock in ("from_texts", "from_tokens")
                for cell in (as_median(one["examples_s"][clock]), as_ratio(one["ours_is"][clock]))
            ),
            f"{one['peak_rss_gib']['median']:.2f}",
        )
        for name, one in report["contestants"].items()
    ]
    agreed = "Inputs of three texts are joined in two ways; logits are not compared."
    if agreement is not None:
        agreed = (
            f"Logits, row by row: largest difference {agreement['largest_difference']:.1e}, the same label on "
            f"{100 * agreement['same_label_fraction']:.1f}% of rows; against the neighbouring row "
            f"{agreement['of_other_rows']:.1e}."
        )
    return heading(report["facts"], what) + table(header, rows) + f"\n{agreed}\n"


if __name__ == "__main__":
    main()
