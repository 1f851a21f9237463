"""`lnli test`."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from lightning_nli.cli.logs import set_up_logging, silence_libraries

if TYPE_CHECKING:
    from lightning_nli.training.corpora import RunData
    from lightning_nli.training.result import SplitScores
    from lightning_nli.training.trained import OpenedRun

_EPILOG = """\
examples:
  lnli test runs/RUN                                 the run's own validation and test rows, from its checkpoint
  lnli test runs/RUN --data mine=my_test.csv         another set, scored under the name 'mine'
  lnli test runs/RUN --checkpoint last --precision fp32
  lnli test runs/RUN --subset report/subsets/hard.txt         only the rows whose ids stand in that file, one a line

Without --data and --subset the run's result.json gets the fresh scores (premise gain appears once the hypothesis-only
run exists).
"""


def main(argv: list[str]) -> int:
    """Parse, score, print."""
    parser = argparse.ArgumentParser(
        prog="lnli test", epilog=_EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path, help="run folder")
    parser.add_argument("--data", action="append", default=[], metavar="NAME=SOURCE", help="score this set instead")
    parser.add_argument("--subset", type=Path, metavar="FILE", help="score only the rows with these ids, one a line")
    parser.add_argument("--checkpoint", default="best", metavar="best|last|PATH", help="which weights (default best)")
    parser.add_argument("--precision", choices=("fp32", "bf16"), help="other than the run's own")
    parser.add_argument("--eval-max-tokens", type=int, metavar="N", help="tokens per pack, other than the run's own")
    parser.add_argument("--json", action="store_true", help="print scores as JSON instead of a table")
    parser.add_argument("--quiet", action="store_true", help="only warnings and the table")
    given = parser.parse_args(argv)
    set_up_logging(quiet=given.quiet or given.json)
    from lightning_nli.cli.report import print_scores
    from lightning_nli.training.corpora import load_run_data
    from lightning_nli.training.result import read_result, write_result
    from lightning_nli.training.run import retest, save_predictions
    from lightning_nli.training.trained import open_run
    from lightning_nli.types import UserError

    silence_libraries()
    opened = open_run(
        given.run, checkpoint=given.checkpoint, precision=given.precision, max_tokens=given.eval_max_tokens
    )
    config = opened.config
    if given.data:
        config = replace(config, test_split="none", test_data=given.data)
    data = load_run_data(config)
    if given.data:
        wanted = set(config.test_sources)
        data = replace(data, scored={name: rows for name, rows in data.scored.items() if name in wanted})
    if not data.scored:
        raise UserError(f"{given.run} has no rows to score; give --data NAME=SOURCE")
    scored = retest(opened, data) if given.subset is None else _retest_subset(opened, data, given.subset)
    scores = {name: entry.scores for name, entry in scored.items()}
    as_trained = not given.data and given.subset is None and given.checkpoint == "best" and given.precision is None
    if as_trained and (given.run / "result.json").exists():
        result = read_result(given.run)
        result["scores"] |= scores
        write_result(given.run, result)
        for name, entry in scored.items():
            save_predictions(given.run, name, entry)
    if given.json:
        sys.stdout.write(json.dumps(scores, ensure_ascii=False, indent=1, allow_nan=False) + "\n")
    else:
        print_scores(scores, title=f"{given.run}, {opened.checkpoint.name} (percent)")
    return 0


def _retest_subset(opened: OpenedRun, data: RunData, path: Path) -> dict[str, SplitScores]:
    """Score the rows whose ids stand in a file; their swaps and hard rows are those of the whole sets.

    Raises:
        UserError: the file cannot be read, is empty, or names a row that no set has.
    """
    import polars as pl

    from lightning_nli.training.result import Judge, score_split
    from lightning_nli.types import UserError

    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"--subset {path} cannot be read: {error}") from None
    ids = list(dict.fromkeys(line.strip() for line in lines if line.strip()))
    known = set().union(*(frame["example_id"] for frame in data.scored.values()))
    foreign = [one for one in ids if one not in known]
    if foreign or not ids:
        sets = ", ".join(data.scored)
        what = f"{len(foreign)} of {len(ids)} ids are of no row of {sets}, as '{foreign[0]}'" if ids else "holds no id"
        raise UserError(f"--subset {path}: {what}; write the example_id of a scored row on each line")
    parts = {name: frame.filter(pl.col("example_id").is_in(ids)) for name, frame in data.scored.items()}
    scored = {}
    for name, rows in parts.items():
        if rows.height:
            judge = Judge.of(data.scored[name], opened.scheme)
            scored[name] = score_split(opened.scorer, rows, opened.scheme, data.published_train, judge)
            scored[name].scores["premise"]["trained_on_swaps"] = opened.config.augment != "none"
    return scored
