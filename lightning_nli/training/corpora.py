"""The rows of a run: sources read, splits chosen or drawn, leaks reported, swapped premises added."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

import polars as pl

from lightning_nli.config import ExperimentConfig
from lightning_nli.data.readers import fingerprint, read_source
from lightning_nli.data.schema import BadRow, Corpus
from lightning_nli.data.splits import draw_split, find_duplicates, find_leaks, take_subset
from lightning_nli.swaps import augment_with_swaps, parse_augment
from lightning_nli.types import LabelScheme, Split, UserError

log = logging.getLogger(__name__)

VAL_NAME = "id_val"
TEST_NAME = "test"


@dataclass(frozen=True)
class RunData:
    """What a run trains on and scores.

    Attributes:
        train: Training rows, swapped premises included.
        scored: Rows to score by name: `id_val` chooses the checkpoint, `test` and further test sets are reported.
        published_train: Training rows without swapped premises (baselines train on these).
        scheme: Labels in class order.
        segments: Text columns of one example, in order.
        bad_rows: Rows left out by option.
        sources: As the user wrote them.
        fingerprint: Hash over all rows.
        duplicates: Repeated pairs by split.
    """

    train: pl.DataFrame
    scored: dict[str, pl.DataFrame]
    published_train: pl.DataFrame
    scheme: LabelScheme
    segments: tuple[str, ...]
    bad_rows: tuple[BadRow, ...]
    sources: list[str]
    fingerprint: str
    duplicates: dict[str, int]

    @property
    def has_val(self) -> bool:
        return VAL_NAME in self.scored


def read_corpora(config: ExperimentConfig, sources: list[str]) -> Corpus:
    """Read one or several sources into one corpus.

    Raises:
        UserError: a source cannot be read, or two of them have different labels.
    """
    scheme = None if config.label_scheme == "auto" else config.label_scheme
    corpora = [
        read_source(source, on_bad_row=config.on_bad_row, normalize=config.text.normalize == "nfc", scheme=scheme)
        for source in sources
    ]
    first = corpora[0]
    if len(corpora) == 1:
        return first
    for corpus in corpora[1:]:
        if corpus.scheme != first.scheme:
            raise UserError(
                f"'{first.source}' has labels {first.scheme.names}, '{corpus.source}' has {corpus.scheme.names}; "
                "a mixture needs one scheme (--label-scheme)"
            )
    frame = pl.concat([corpus.frame for corpus in corpora])
    if frame["example_id"].is_duplicated().any():
        frame = pl.concat(
            corpus.frame.with_columns(example_id=pl.format("{}:{}", pl.lit(str(index)), "example_id"))
            for index, corpus in enumerate(corpora)
        )
    bad_rows = tuple(row for corpus in corpora for row in corpus.bad_rows)
    return replace(first, frame=frame, source=", ".join(sources), bad_rows=bad_rows)


def load_run_data(config: ExperimentConfig) -> RunData:
    """Read, split and check everything a run needs; the same rows for the same settings, on any machine.

    Raises:
        UserError: a source, split or augmentation is not there or makes no sense.
    """
    corpus = read_corpora(config, config.sources)
    unit = corpus.split_unit
    train = _rows_of(corpus, config.train_split, "--train-split")
    scored: dict[str, pl.DataFrame] = {}
    train, val = _validation_rows(corpus, train, config)
    if val is not None:
        scored[VAL_NAME] = val
    test = _test_rows(corpus, config)
    if test is not None:
        scored[TEST_NAME] = test
    bad_rows = list(corpus.bad_rows)
    for name, source in config.test_sources.items():
        if name in scored:
            raise UserError(f"--test-data {name}=...: '{name}' is a split of the corpus already; take another name")
        further = read_corpora(config, [source])
        if further.scheme != corpus.scheme:
            raise UserError(f"--test-data {name} has labels {further.scheme.names}, training has {corpus.scheme.names}")
        scored[name] = further.frame
        bad_rows += further.bad_rows
    if config.subset is not None:
        train = take_subset(train, config.subset, unit, config.split_seed)
        scored = {name: take_subset(rows, config.subset, unit, config.split_seed) for name, rows in scored.items()}
    _report_leaks(train, scored)
    published_train = train
    swaps = parse_augment(config.augment)
    if swaps is not None:
        added = augment_with_swaps(train, list(scored.values()), corpus.scheme, hard=swaps[0], random=swaps[1])
        log.info("added %d training rows with swapped premises (%s)", added.height, config.augment)
        train = pl.concat([train, added])
    rows = pl.concat([train, *scored.values()])
    duplicates = {
        name: find_duplicates(part).rows.height for name, part in {"train": published_train, **scored}.items()
    }
    return RunData(
        train=train,
        scored=scored,
        published_train=published_train,
        scheme=corpus.scheme,
        segments=_segments(config, rows),
        bad_rows=tuple(bad_rows),
        sources=config.sources,
        fingerprint=fingerprint(rows),
        duplicates=duplicates,
    )


def _available(corpus: Corpus) -> str:
    counts = corpus.frame.group_by("split", maintain_order=True).len()
    return ", ".join(f"{split or 'no split'}: {rows} rows" for split, rows in counts.iter_rows())


def _rows_of(corpus: Corpus, name: str, option: str) -> pl.DataFrame:
    if name not in list(Split):
        raise UserError(f"{option} '{name}': splits are {', '.join(Split)}")
    frame = corpus.frame
    if frame["split"].null_count() == frame.height and name == Split.TRAIN:
        return frame
    rows = frame.filter(pl.col("split") == name)
    if rows.is_empty():
        raise UserError(f"{option} '{name}': '{corpus.source}' has no such split ({_available(corpus)})")
    return rows


def _validation_rows(
    corpus: Corpus, train: pl.DataFrame, config: ExperimentConfig
) -> tuple[pl.DataFrame, pl.DataFrame | None]:
    """Training rows without the drawn ones, and the validation rows."""
    choice = config.val_split
    if choice == "none":
        return train, None
    if choice == config.train_split:
        raise UserError(f"--val-split {choice} is the training split: the same rows would train and choose")
    has_dev = (corpus.frame["split"] == Split.DEV).any()
    if choice == "auto" and has_dev and Split.DEV not in (config.train_split, config.test_split):
        choice = Split.DEV
    if choice not in ("auto", "drawn"):
        return train, _rows_of(corpus, choice, "--val-split")
    kept, drawn = draw_split(train, fraction=config.val_fraction, unit=corpus.split_unit, seed=config.split_seed)
    if kept.is_empty() or drawn.is_empty():
        raise UserError(
            f"{train.height} rows in {train[corpus.split_unit].n_unique()} units of '{corpus.split_unit}' cannot be "
            f"split by --val-fraction {config.val_fraction}; --val-split none trains without selection"
        )
    return kept, drawn


def _test_rows(corpus: Corpus, config: ExperimentConfig) -> pl.DataFrame | None:
    choice = config.test_split
    if choice == "none":
        return None
    if choice == "auto":
        has_test = (corpus.frame["split"] == Split.TEST).any()
        if not has_test or Split.TEST in (config.train_split, config.val_split):
            return None
        choice = Split.TEST
    if choice == config.train_split:
        raise UserError(f"--test-split {choice} is the training split: the same rows would train and score")
    return _rows_of(corpus, choice, "--test-split")


def _segments(config: ExperimentConfig, rows: pl.DataFrame) -> tuple[str, ...]:
    if config.segments != "auto":
        segments = tuple(config.segments.split(","))
        for name in segments:
            if rows[name].null_count():
                raise UserError(f"--segments {config.segments}: {rows[name].null_count()} rows have no '{name}'")
        return segments
    if rows["condition"].null_count() == 0:
        return ("hypothesis", "condition", "premise")
    return ("premise", "hypothesis")


def _report_leaks(train: pl.DataFrame, scored: dict[str, pl.DataFrame]) -> None:
    for name, rows in scored.items():
        leaks = find_leaks(train, rows)
        if leaks:
            log.warning(
                "%s: %d pairs stand in training too, and the premises of %d more rows (`lnli data check` lists them)",
                name,
                leaks.pairs.height,
                leaks.premises.height,
            )
