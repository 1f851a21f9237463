"""Any number of runs on one set, cut into slices and compared: everything that their report shows."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from itertools import combinations
from pathlib import Path
from typing import Any

import polars as pl

from lightning_nli.analysis.answers import (
    RunAnswers,
    SetRows,
    find_twin,
    read_answers,
    read_set,
    run_names,
)
from lightning_nli.analysis.errors import (
    Calibration,
    Disagreement,
    ErrorType,
    Leaning,
    calibration,
    confusion,
    disagreement,
    error_types,
    hardest_rows,
    leanings,
    wrong_everywhere,
)
from lightning_nli.analysis.premise import (
    Change,
    PremiseFigures,
    changed_premises,
    changes,
    no_premise_sentence,
    premise_figures,
    stored_changes,
)
from lightning_nli.analysis.slices import BinScore, Slice, cut_rows, score_bins, truncation_slice, whole_slice
from lightning_nli.config import cache_root
from lightning_nli.training.corpora import load_run_data
from lightning_nli.training.result import Judge, Predictor
from lightning_nli.training.run_folder import read_run_config
from lightning_nli.types import LabelScheme

log = logging.getLogger(__name__)

_NO_LIMIT = 1_000_000  # tokens: no text is longer


@dataclass(frozen=True)
class RunPart:
    """What is said of one run.

    Attributes:
        name: Its name.
        source: Where its rows come from, as its user wrote it.
        method: How it answers: encoder and segments, or baseline.
        premise: First page.
        changes: Its answers under changed premises.
        confusion: Counts, rows gold, columns answered.
        errors: By type.
        leanings: By label.
        calibration: Confidence against accuracy.
    """

    name: str
    source: str
    method: str
    premise: PremiseFigures
    changes: tuple[Change, ...]
    confusion: list[list[int]]
    errors: tuple[ErrorType, ...]
    leanings: tuple[Leaning, ...]
    calibration: Calibration


@dataclass(frozen=True)
class SlicePart:
    """A slice with the scores of every run.

    Attributes:
        slice: The bins.
        scores: Run -> scores of the bins that hold rows.
    """

    slice: Slice
    scores: dict[str, tuple[BinScore, ...]]

    def as_dict(self) -> dict[str, Any]:
        """Without the rows."""
        names = ("name", "title", "cut", "source", "num_without", "one_label")
        bins = {
            run: [asdict(score) | {"is_few": score.is_few} for score in scores] for run, scores in self.scores.items()
        }
        return {name: getattr(self.slice, name) for name in names} | {"bins": bins}


@dataclass(frozen=True)
class RunsAnalysis:
    """What the predictions of runs on one set tell.

    Attributes:
        set_name: The set.
        corpora: Names of the corpora it is of.
        num_rows: Its rows.
        unit: Column over which intervals are taken.
        num_units: Its values.
        words: What overlap counted as a word.
        label_names: In the order of confusion matrices.
        verdict: How much of the accuracy needs no premise, in one sentence.
        scored_again: Whether the models answered under changed premises, or only the stored swaps are shown.
        runs: Run by run.
        slices: Slice by slice.
        pairs: Every two runs.
        hardest: Rows with the highest mean loss.
        subsets: Name -> ids.
    """

    set_name: str
    corpora: tuple[str, ...]
    num_rows: int
    unit: str
    num_units: int
    words: str
    label_names: tuple[str, ...]
    verdict: str
    scored_again: bool
    runs: tuple[RunPart, ...]
    slices: tuple[SlicePart, ...]
    pairs: tuple[Disagreement, ...]
    hardest: tuple[dict[str, Any], ...]
    subsets: dict[str, list[str]]

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers, lists and dicts."""
        apart = {
            "runs": [asdict(run) for run in self.runs],
            "slices": [part.as_dict() for part in self.slices],
            "pairs": [asdict(pair) for pair in self.pairs],
            "subsets": {name: len(ids) for name, ids in self.subsets.items()},
        }
        return {one.name: apart.get(one.name, getattr(self, one.name)) for one in fields(self)}


def analyze_runs(
    folders: Sequence[Path], *, set_name: str = "test", words: str = "syllables", score_again: bool = False
) -> RunsAnalysis:
    """Analyze runs that scored the same rows.

    Args:
        folders: Run folders, finished.
        set_name: Name of the scored set (`predictions/NAME.parquet`).
        words: What overlap counts as a word (`words.WORDS`).
        score_again: Ask the models for their answers under changed premises; takes as long as scoring the set up to
            five times.

    Raises:
        UserError: a run is not there, has no such set, or scored other rows than the first.
    """
    configs = [read_run_config(folder) for folder in folders]
    one_set = read_set(configs[0], set_name, words)
    runs = [
        read_answers(folder, name, config, one_set)
        for folder, name, config in zip(folders, run_names(folders), configs, strict=True)
    ]
    slices = cut_rows(one_set.rows, one_set.scheme)
    slices += [one for run in runs if (one := _truncation(run, one_set)) is not None]
    judge = Judge.of(one_set.rows.select(one_set.raw.columns), one_set.scheme)
    parts = [_part(run, runs, one_set, score_again) for run in runs]
    return RunsAnalysis(
        set_name=set_name,
        corpora=tuple(one_set.rows["corpus"].unique().sort()),
        num_rows=one_set.rows.height,
        unit=one_set.unit,
        num_units=one_set.rows[one_set.unit].n_unique(),
        words=words,
        label_names=tuple(one_set.scheme.names),
        verdict=_verdict(runs, parts, one_set),
        scored_again=score_again,
        runs=tuple(parts),
        slices=tuple(_slice_part(one, runs, one_set.scheme) for one in slices),
        pairs=tuple(disagreement(first, second) for first, second in combinations(runs, 2)),
        hardest=tuple(hardest_rows(runs, one_set.rows, one_set.scheme)),
        subsets=_subsets(runs, judge),
    )


def _part(run: RunAnswers, runs: Sequence[RunAnswers], one_set: SetRows, score_again: bool) -> RunPart:
    scheme = one_set.scheme
    (whole,) = score_bins(whole_slice(one_set.rows), run.table, scheme)
    assert whole.macro_f1 is not None
    found = _scored_changes(run, one_set) if score_again else stored_changes(run, scheme)
    return RunPart(
        name=run.name,
        source=", ".join(run.config.sources),
        method=run.method,
        premise=premise_figures(run, find_twin(run, runs), whole.accuracy, whole.macro_f1, scheme),
        changes=tuple(found),
        confusion=confusion(run, scheme),
        errors=tuple(error_types(run, one_set.rows, scheme)),
        leanings=tuple(leanings(run, scheme)),
        calibration=calibration(run),
    )


def _scored_changes(run: RunAnswers, one_set: SetRows) -> list[Change]:
    """The answers of the run's model under every changed premise."""
    texts = one_set.raw if run.config.text.normalize == "none" else one_set.rows.select(one_set.raw.columns)
    frames = changed_premises(texts, one_set.scheme)
    predictor = _open_predictor(run) if run.reads_premise else None
    places = {name: place for place, name in enumerate(one_set.scheme.names)}
    found: list[Change] = []
    for condition, frame in frames.items():
        if predictor is None:  # blind to the premise, its answer is the same by definition
            answers = run.table.select("example_id", after="answer").join(frame, on="example_id", how="semi")
        else:
            log.info("%s: %d rows with the premise changed (%s)", run.name, frame.height, condition)
            after = pl.col("predicted").cast(pl.String).replace_strict(places, return_dtype=pl.Int64)
            answers = predictor.predictions(frame).select("example_id", after=after)
        found += changes(run, condition, answers, one_set.scheme)
    return found


def _open_predictor(run: RunAnswers) -> Predictor:
    """The run's model, ready to answer; a baseline is trained again on the run's training rows."""
    from lightning_nli.training.baseline import BaselinePredictor
    from lightning_nli.training.trained import open_run

    if run.config.method in ("finetune", "setfit"):
        return open_run(run.folder).scorer
    return BaselinePredictor.of(run.config, load_run_data(run.config))


def _truncation(run: RunAnswers, one_set: SetRows) -> Slice | None:
    """Which rows the run's encoder saw cut; None: it has no tokenizer, or cut none."""
    if not (run.folder / "encoder" / "meta.json").exists():
        return None
    from transformers import AutoTokenizer

    from lightning_nli.data.tokenization import EncoderSpec, tokenize_split
    from lightning_nli.training.trained import read_meta

    meta, text = read_meta(run.folder), run.config.text
    spec = EncoderSpec(
        tokenizer=AutoTokenizer.from_pretrained(run.folder / "encoder"),
        segments=meta.segments,
        max_length=_NO_LIMIT,
        normalize=text.normalize == "nfc",
        segmenter=meta.segmenter,
    )
    lengths = tokenize_split(one_set.raw, spec, one_set.scheme, cache=cache_root()).lengths.tolist()
    found = truncation_slice(run.name, lengths, one_set.rows["example_id"], text.max_length)
    return found if len(found.bins) > 1 else None


def _slice_part(one: Slice, runs: Sequence[RunAnswers], scheme: LabelScheme) -> SlicePart:
    meant = [run for run in runs if one.run in ("", run.name)]
    return SlicePart(one, {run.name: tuple(score_bins(one, run.table, scheme)) for run in meant})


def _verdict(runs: Sequence[RunAnswers], parts: Sequence[RunPart], one_set: SetRows) -> str:
    """The sentence about the most accurate run that reads premises (or, if none does, the most accurate)."""
    accuracy = {part.name: part.premise.accuracy.value or 0.0 for part in parts}
    blind = {run.name: accuracy[run.name] for run in runs if not run.reads_premise}
    readers = {run.name: accuracy[run.name] for run in runs if run.reads_premise}
    best = max(readers or blind, key=lambda name: accuracy[name])
    linear = [part.premise.hypothesis_only for part in parts if part.premise.hypothesis_only is not None]
    blind |= {"hyponly-v1": max(linear)} if linear else {}
    counts = one_set.rows["label"].cast(pl.String).value_counts().sort("count", "label", descending=[True, False])
    constant = (str(counts["label"][0]), counts["count"][0] / one_set.rows.height)
    blindest = max(blind.items(), key=lambda item: item[1], default=constant)
    return no_premise_sentence(best, accuracy[best], blindest, constant)


def _subsets(runs: Sequence[RunAnswers], judge: Judge) -> dict[str, list[str]]:
    """Ids of rows that deserve a look of their own, for `lnli test --subset`."""
    swapped = {kind: judge.swaps.filter(pl.col("kind") == kind)["example_id"] for kind in ("hard", "random")}
    found = {
        "hard": sorted(judge.hard_ids),
        "swap-same-law": swapped["hard"].to_list(),
        "swap-same-field": swapped["random"].to_list(),
        "wrong-in-every-run": wrong_everywhere(runs),
    }
    return {name: ids for name, ids in found.items() if ids}
