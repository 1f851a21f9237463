"""The rows of a run: sources read, splits chosen or drawn, leaks reported, swapped premises added."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

import polars as pl

from lightning_nli.config import ExperimentConfig
from lightning_nli.data.readers import fingerprint, read_source
from lightning_nli.data.schema import BadRow, Corpus
from lightning_nli.data.splits import draw_split, find_duplicates, find_leaks, take_subset
from lightning_nli.training.augment import augmented
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


def read_corpora(config: ExperimentConfig, sources: list[str], *, in_mixture: bool = False) -> list[Corpus]:
    """Read sources under one label scheme (`--label-scheme`, else their own).

    Raises:
        UserError: a source cannot be read, or two of them have different labels.
    """
    scheme = None if config.label_scheme == "auto" else config.label_scheme
    corpora = [
        read_source(
            source,
            on_bad_row=config.on_bad_row,
            normalize=config.text.normalize == "nfc",
            scheme=scheme,
            in_mixture=in_mixture,
        )
        for source in sources
    ]
    first = corpora[0]
    for corpus in corpora[1:]:
        if corpus.scheme != first.scheme:
            raise UserError(
                f"'{first.source}' has labels {first.scheme.names}, '{corpus.source}' has {corpus.scheme.names}; "
                "a mixture needs one scheme: --label-scheme binary folds finer labels into entailment or not"
            )
    return _with_distinct_ids(corpora)


def load_run_data(config: ExperimentConfig) -> RunData:
    """Read, split and check everything a run needs; the same rows for the same settings, on any machine.

    Raises:
        UserError: a source, split or augmentation is not there or makes no sense.
    """
    corpora = read_corpora(config, config.sources, in_mixture=True)
    scheme = corpora[0].scheme
    units = {corpus.split_unit for corpus in corpora}
    unit = units.pop() if len(units) == 1 else "premise_id"
    published_train, val = _training_rows(corpora, config)
    scored = {} if val is None else {VAL_NAME: val}
    scored |= _test_sets(corpora, config)
    bad_rows = [row for corpus in corpora for row in corpus.bad_rows]
    for name, source in config.test_sources.items():
        if name in scored:
            raise UserError(f"--test-data {name}=...: '{name}' is a set of the corpus already; take another name")
        (further,) = read_corpora(config, [source])
        if further.scheme != scheme:
            raise UserError(
                f"--test-data {name} has labels {further.scheme.names}, training has {scheme.names}; "
                "--label-scheme binary folds finer labels into entailment or not"
            )
        scored[name] = further.frame
        bad_rows += further.bad_rows
    if config.subset is not None:
        published_train = take_subset(published_train, config.subset, unit, config.split_seed)
        scored = {name: take_subset(rows, config.subset, unit, config.split_seed) for name, rows in scored.items()}
    _report_leaks(published_train, scored)
    train = augmented(config, published_train, list(scored.values()), scheme)
    rows = pl.concat([train, *scored.values()])
    duplicates = {
        name: find_duplicates(part).rows.height for name, part in {"train": published_train, **scored}.items()
    }
    return RunData(
        train=train,
        scored=scored,
        published_train=published_train,
        scheme=scheme,
        segments=segments_of(rows, config.segments),
        bad_rows=tuple(bad_rows),
        sources=config.sources,
        fingerprint=fingerprint(rows),
        duplicates=duplicates,
    )


def _with_distinct_ids(corpora: list[Corpus]) -> list[Corpus]:
    """The corpora with their names before the example ids, where an id stands in two of them."""
    ids = pl.concat([corpus.frame["example_id"] for corpus in corpora])
    if not ids.is_duplicated().any():
        return corpora
    return [
        replace(corpus, frame=corpus.frame.with_columns(example_id=pl.format("{}:{}", pl.lit(name), "example_id")))
        for name, corpus in _named(corpora).items()
    ]


def _named(corpora: list[Corpus]) -> dict[str, Corpus]:
    """Each corpus under its name; the second of one name is `NAME-2`."""
    named: dict[str, Corpus] = {}
    for corpus in corpora:
        name = str(corpus.frame["corpus"][0]) if corpus.frame.height else corpus.source
        count = sum(known == name or known.startswith(f"{name}-") for known in named)
        named[f"{name}-{count + 1}" if count else name] = corpus
    return named


def _training_rows(corpora: list[Corpus], config: ExperimentConfig) -> tuple[pl.DataFrame, pl.DataFrame | None]:
    """Training and validation rows, source by source: each has its own dev split, or some of its rows are drawn."""
    trains, vals = [], []
    for corpus in corpora:
        train, val = _validation_rows(corpus, _rows_of(corpus, config.train_split, "--train-split"), config)
        trains.append(_share(corpus, train, config.split_seed))
        vals.append(val)
        if len(corpora) > 1:
            log.info(
                "mixture: %s gives %d training rows%s",
                corpus.source,
                trains[-1].height,
                "" if val is None else f" and {val.height} to choose the checkpoint by",
            )
    found = [val for val in vals if val is not None]
    return pl.concat(trains), pl.concat(found) if found else None


def _share(corpus: Corpus, rows: pl.DataFrame, seed: int) -> pl.DataFrame:
    """The share of its training rows that a source brings into a mixture: at most N, or each row so many times."""
    if corpus.mix_rows is not None:
        if corpus.mix_rows > rows.height:
            raise UserError(f"source '{corpus.source}' has {rows.height} training rows, not {corpus.mix_rows}")
        return take_subset(rows, corpus.mix_rows, corpus.split_unit, seed)
    if corpus.mix_weight is None:
        return rows
    whole, part = divmod(corpus.mix_weight, 1.0)
    copies = [rows] * int(whole)
    if part and (num_rows := round(part * rows.height)):
        copies.append(take_subset(rows, num_rows, corpus.split_unit, seed))
    if not copies:
        raise UserError(f"source '{corpus.source}': a weight of {corpus.mix_weight} leaves no row of {rows.height}")
    return pl.concat(
        copy if number == 0 else copy.with_columns(pl.col("example_id") + f"~{number + 1}")
        for number, copy in enumerate(copies)
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


def _test_sets(corpora: list[Corpus], config: ExperimentConfig) -> dict[str, pl.DataFrame]:
    """The test rows of one source as `test`; of a mixture each source's own, under its name."""
    if len(corpora) == 1:
        test = _test_rows(corpora[0], config)
        return {} if test is None else {TEST_NAME: test}
    tests = {name: _test_rows(corpus, config) for name, corpus in _named(corpora).items()}
    return {name: rows for name, rows in tests.items() if rows is not None}


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


def segments_of(rows: pl.DataFrame, asked: str = "auto") -> tuple[str, ...]:
    """Text columns that a model sees, in order (`--segments`); `auto` takes all that every row has.

    Raises:
        UserError: rows lack a column that is asked for.
    """
    if asked != "auto":
        segments = tuple(asked.split(","))
        for name in segments:
            if rows[name].null_count():
                raise UserError(f"--segments {asked}: {rows[name].null_count()} rows have no '{name}'")
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
