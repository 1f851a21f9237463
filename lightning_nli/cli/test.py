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
  lnli test runs/RUN --swaps other-law               also under premises of other laws that share most words
  lnli test runs/RUN --threshold mix=0.2             answer entailed from another probability than 0.5 on (two labels)

Without --data, --subset and --threshold the run's result.json gets the fresh scores (premise gain appears once the
hypothesis-only run exists). Scores at the threshold that id_val chooses stand under `calibrated`.
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
    parser.add_argument("--swaps", choices=("other-law",), help="a further kind of swapped premise, not in every score")
    parser.add_argument(
        "--threshold",
        metavar="P|mix=SHARE",
        help="probability above which a row is entailed in the calibrated scores, or the weight of swapped rows for "
        "which id_val chooses it (default mix=0.333)",
    )
    parser.add_argument("--json", action="store_true", help="print scores as JSON instead of a table")
    parser.add_argument("--quiet", action="store_true", help="only warnings and the table")
    given = parser.parse_args(argv)
    set_up_logging(quiet=given.quiet or given.json)
    from lightning_nli.cli.report import print_scores
    from lightning_nli.training.corpora import load_run_data
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
    scored = _score(given, opened, data)
    scores = {name: entry.scores for name, entry in scored.items()}
    if _is_as_trained(given) and not given.data and given.subset is None and given.threshold is None:
        _store(given.run, scored)
    if given.json:
        sys.stdout.write(json.dumps(scores, ensure_ascii=False, indent=1, allow_nan=False) + "\n")
    else:
        print_scores(scores, title=f"{given.run}, {opened.checkpoint.name} (percent)")
    return 0


def _is_as_trained(given: argparse.Namespace) -> bool:
    return given.checkpoint == "best" and given.precision is None


def _score(given: argparse.Namespace, opened: OpenedRun, data: RunData) -> dict[str, SplitScores]:
    """The sets, or their rows in `--subset`, with what `--swaps` and `--threshold` ask for."""
    from lightning_nli.training.result import Judge
    from lightning_nli.training.scored_sets import add_calibrated, score_sets, threshold_of
    from lightning_nli.training.threshold import DEFAULT_MIX, Threshold, parse_threshold
    from lightning_nli.types import UserError

    asked = DEFAULT_MIX if given.threshold is None else parse_threshold(given.threshold)
    if given.threshold is not None and len(opened.scheme.labels) != 2:
        raise UserError(f"--threshold {given.threshold}: {given.run} has labels {opened.scheme.names}; it needs two")
    judges = {}
    if given.swaps is not None or given.subset is not None:
        judges = {name: Judge.of(rows, opened.scheme) for name, rows in data.scored.items()}
    if given.swaps is not None:
        judges = {name: judge.with_other_law(data.scored[name], opened.scheme) for name, judge in judges.items()}
    if given.subset is not None:
        data = _subset(data, given.subset)
    scored = score_sets(opened.scorer, data, opened.config, judges)
    stored = given.run if _is_as_trained(given) else None
    if isinstance(asked, Threshold):
        threshold: Threshold | None = asked
    elif given.subset is None:
        threshold = threshold_of(scored, opened.scheme, mix=asked, folder=stored)
    else:  # a part of id_val chooses nothing
        threshold = threshold_of({}, opened.scheme, mix=asked, folder=stored)
    if threshold is None and given.threshold is not None:
        raise UserError(f"--threshold {given.threshold}: {given.run} has no scored id_val to choose by; give a number")
    add_calibrated(scored, opened.scheme, threshold)
    return scored


def _store(folder: Path, scored: dict[str, SplitScores]) -> None:
    """Put fresh scores into the run's result; what only `--swaps` computes stays."""
    from lightning_nli.training.result import read_result, write_result
    from lightning_nli.training.run import save_predictions

    if not (folder / "result.json").exists():
        return
    result = read_result(folder)
    for name, entry in scored.items():
        result["scores"][name] = result["scores"].get(name, {}) | entry.scores
    write_result(folder, result)
    for name, entry in scored.items():
        save_predictions(folder, name, entry)


def _subset(data: RunData, path: Path) -> RunData:
    """The rows of the scored sets whose ids stand in a file.

    Raises:
        UserError: the file cannot be read, is empty, or names a row that no set has.
    """
    import polars as pl

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
    return replace(data, scored={name: rows for name, rows in parts.items() if rows.height})
