"""`--augment` for a run: swapped premises from its training rows, or those that another run is taken in by."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl

from lightning_nli.config import ExperimentConfig, cache_root
from lightning_nli.config_augment import augment_spec
from lightning_nli.config_setfit import ENCODER_METHODS, SETFIT
from lightning_nli.data.readers import fingerprint
from lightning_nli.swaps import SwapChooser, rows_to_add
from lightning_nli.training.run_folder import read_run_config
from lightning_nli.types import LabelScheme, UserError

if TYPE_CHECKING:
    from lightning_nli.training.result import Predictor

log = logging.getLogger(__name__)


def augmented(
    config: ExperimentConfig, train: pl.DataFrame, scored: Sequence[pl.DataFrame], scheme: LabelScheme
) -> pl.DataFrame:
    """The training rows, and behind them what `--augment` adds.

    Args:
        config: Of the run.
        train: Its training rows.
        scored: Every set that it scores; no premise of theirs is taken.
        scheme: Labels.

    Raises:
        UserError: as `augment_spec` and `rows_to_add`; the run whose mistakes are asked for is not there, has other
            labels or reads no premise.
    """
    spec = augment_spec(config.augment)
    if spec is None:
        return train
    choose = None if spec.run is None else mistakes_of(Path(spec.run))
    added = rows_to_add(train, scored, scheme, spec, choose=choose)
    num_swaps = int(added["example_id"].str.contains(r"~swap\d+$").sum())
    repeated = "" if num_swaps == added.height else f" and {added.height - num_swaps} repeated rows"
    log.info("added %d training rows with swapped premises%s (%s)", num_swaps, repeated, config.augment)
    return pl.concat([train, added])


def mistakes_of(folder: Path) -> SwapChooser:
    """Chooses the swaps that a finished run still calls entailed, the most probable first.

    Its answers are kept in the cache by the rows' fingerprint and the checksums of its checkpoint: an encoder takes
    minutes for them.
    """

    def choose(train: pl.DataFrame, candidates: pl.DataFrame, num: int) -> pl.DataFrame:
        if candidates.is_empty():
            return candidates
        rows = _under_swaps(train, candidates)
        probabilities = _entailment_probabilities(folder, rows)
        assert probabilities["example_id"].equals(rows["example_id"])
        answered = candidates.with_columns(probabilities.drop("example_id"))
        ranked = answered.filter("entailed").sort("example_id", "probability", "order", descending=[False, True, False])
        taken = ranked.with_columns(order=pl.int_range(pl.len()).over("example_id")).filter(pl.col("order") < num)
        counts = ranked.height, rows.height, taken.height
        log.info("%s calls %d of %d candidate swaps entailed; %d are taken", folder, *counts)
        return taken.select(candidates.columns)

    return choose


def _under_swaps(train: pl.DataFrame, candidates: pl.DataFrame) -> pl.DataFrame:
    """A training row for each candidate, in their order, under its premise and an id of its own."""
    new = candidates.select("example_id", "order", swapped="premise", swapped_id="premise_id")
    rows = new.join(train, on="example_id", how="left", maintain_order="left")
    named = rows.with_columns(
        example_id=pl.format("{}~swap{}", "example_id", "order"), premise="swapped", premise_id="swapped_id"
    )
    return named.select(train.columns)


def _entailment_probabilities(folder: Path, rows: pl.DataFrame) -> pl.DataFrame:
    """`example_id probability entailed` of the rows."""
    from lightning_nli.training.manifest import measure_files
    from lightning_nli.training.trained import checkpoint_path

    config = read_run_config(folder)
    if config.method not in ENCODER_METHODS:
        raise UserError(f"--augment run={folder} is a run of --method {config.method}; give one of an encoder")
    weights = folder / SETFIT if config.method == SETFIT else checkpoint_path(folder)
    checksums = sorted((name, file.sha256) for name, file in measure_files(weights).items())
    key = hashlib.blake2b(json.dumps([fingerprint(rows), checksums]).encode(), digest_size=16).hexdigest()
    path = cache_root() / "swaps" / f"mistakes-{key}.parquet"
    if not path.exists():
        table = _answers(folder, rows)
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f".{path.name}.{os.getpid()}")
        table.write_parquet(partial)
        partial.replace(path)
    return pl.read_parquet(path)


def _answers(folder: Path, rows: pl.DataFrame) -> pl.DataFrame:
    from lightning_nli.training.trained import open_run

    opened = open_run(folder)
    scheme = opened.scheme
    predictor: Predictor = opened.scorer
    if not predictor.reads_premise:
        raise UserError(f"--augment run={folder} reads no premise, so every swap takes it in; give another run")
    foreign = set(rows["label"].cast(pl.String).unique()) - set(scheme.names)
    if foreign:
        raise UserError(f"--augment run={folder} has labels {scheme.names}, the training rows have {sorted(foreign)}")
    log.info("%s answers %d candidate swaps", folder, rows.height)
    table = predictor.predictions(rows)
    entailed = scheme.entailed.value
    return table.select(
        "example_id",
        probability=pl.col(f"prob_{entailed}").cast(pl.Float64),
        entailed=pl.col("predicted").cast(pl.String) == entailed,
    )
