"""What runs answered to a set whose rows are read again from their sources."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import polars as pl

from lightning_nli.analysis.overlap import add_overlap
from lightning_nli.analysis.slices import describe_rows, scored_unit, unicode_form
from lightning_nli.config import ExperimentConfig, config_hash, hypothesis_only_twin
from lightning_nli.config_setfit import ENCODER_METHODS, SETFIT
from lightning_nli.data.text import normalize_expr
from lightning_nli.metrics import SMALLEST_PROBABILITY, label_indices
from lightning_nli.training.corpora import RunData, load_run_data
from lightning_nli.training.result import read_result
from lightning_nli.types import LabelScheme, UserError

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SetRows:
    """The scored set, read again.

    Attributes:
        name: Its name in the runs.
        rows: `EXAMPLE_SCHEMA` in normal form, with what slices are cut by.
        raw: The same texts as they stand in the source.
        data: All rows of the first run.
        unit: Column whose values count as independent.
    """

    name: str
    rows: pl.DataFrame
    raw: pl.DataFrame
    data: RunData
    unit: str

    @property
    def scheme(self) -> LabelScheme:
        return self.data.scheme


@dataclass(frozen=True)
class RunAnswers:
    """What a run answered on the set.

    Attributes:
        name: How the report calls it.
        folder: Run folder.
        config: Its settings.
        scores: The set's entry in its `result.json`.
        table: In the order of the set: `example_id gold answer right confidence loss unit`, `prob_<label>...`, and
            where they are known `hard_answer random_answer` (class indices under a swapped premise, null: no swap),
            `hard_score random_score` (probability of entailment there).
    """

    name: str
    folder: Path
    config: ExperimentConfig
    scores: dict[str, Any]
    table: pl.DataFrame

    @property
    def method(self) -> str:
        """Encoder and what it sees, or the baseline."""
        config = self.config
        names = {"finetune": config.model, SETFIT: f"{config.model} by SetFit", "linear-v1": config.method}
        if config.method not in names:
            return config.method
        name = names[config.method]
        seen = "" if config.segments == "auto" else f", {config.segments} only"
        return f"{name}{seen}{'' if config.augment == 'none' else f', {config.augment}'}"

    @property
    def reads_premise(self) -> bool:
        if self.config.method in ("majority", "hyponly-v1"):
            return False
        return self.config.segments == "auto" or "premise" in self.config.segments.split(",")


def run_names(folders: Sequence[Path]) -> list[str]:
    """Short names of runs: the folders' own, as many of their parents before as tell them apart.

    Raises:
        UserError: a run is given twice.
    """
    full = [folder.resolve() for folder in folders]
    if len(set(full)) < len(full):
        repeated = next(folder for place, folder in enumerate(folders) if full[place] in full[:place])
        raise UserError(f"{repeated} is given twice; compare different runs")
    depth = 1
    while len(set(names := ["-".join(path.parts[-depth:]).strip("/") for path in full])) < len(full):
        depth += 1
    return names


def read_set(config: ExperimentConfig, set_name: str, words: str) -> SetRows:
    """Read the rows of a scored set again from the sources of a run.

    Raises:
        UserError: a source is not there, or the run scored no such set.
    """
    data = load_run_data(_data_settings(config))
    if set_name not in data.scored:
        raise UserError(f"--set {set_name}: the first run scores {', '.join(data.scored) or 'no set'}")
    raw = data.scored[set_name]
    rows = raw.with_columns(normalize_expr(pl.col("premise", "hypothesis", "condition")))
    log.info("%s: %d rows of %s", set_name, rows.height, ", ".join(data.sources))
    measured = describe_rows(add_overlap(rows, words)).with_columns(unicode_form=unicode_form(raw))
    return SetRows(set_name, measured, raw, data, scored_unit(rows))


def read_answers(folder: Path, name: str, config: ExperimentConfig, one_set: SetRows) -> RunAnswers:
    """What a run answered, in the order of the set.

    Raises:
        UserError: it has no predictions of the set, or of other rows.
    """
    result = read_result(folder)
    path = folder / "predictions" / f"{one_set.name}.parquet"
    if one_set.name not in result["scores"] or not path.exists():
        sets = ", ".join(result["scores"]) or "none"
        raise UserError(f"{folder} has no predictions of a set '{one_set.name}' (it scored: {sets}); choose with --set")
    scheme = one_set.scheme
    if result["label_names"] != scheme.names:
        raise UserError(f"{folder} answers {result['label_names']}, the first run {scheme.names}; analyze them apart")
    stored = pl.read_parquet(path)
    wanted = one_set.rows.select("example_id", gold_label=pl.col("label").cast(pl.String), unit=one_set.unit)
    table = wanted.join(stored, on="example_id", how="inner", maintain_order="left")
    same_labels = table["gold_label"].equals(table["label"].cast(pl.String).alias("gold_label"))
    if not table.height == wanted.height == stored.height or not same_labels:
        raise UserError(
            f"{folder} scored {stored.height} rows as '{one_set.name}', of which {table.height} are among the "
            f"{wanted.height} rows that the first run's sources give (and labels must be the same): analyze runs "
            "on different rows apart; if the sources have changed, `lnli test` scores them again"
        )
    return RunAnswers(name, folder, config, result["scores"][one_set.name], _answer_table(table, scheme))


def _answer_table(table: pl.DataFrame, scheme: LabelScheme) -> pl.DataFrame:
    gold, answer = (pl.Series(one, label_indices(table, one, scheme)) for one in ("label", "predicted"))
    probabilities = [f"prob_{name}" for name in scheme.names]
    gold_probability = pl.coalesce(
        pl.when(pl.col("gold") == place).then(pl.col(name).cast(pl.Float64)) for place, name in enumerate(probabilities)
    )
    answers = table.with_columns(gold.alias("gold"), answer.alias("answer")).with_columns(
        right=pl.col("gold") == pl.col("answer"),
        confidence=pl.max_horizontal(probabilities).cast(pl.Float64),
        loss=pl.col("loss") if "loss" in table.columns else -gold_probability.clip(SMALLEST_PROBABILITY, 1.0).log(),
    )
    columns = ["example_id", "gold", "answer", "right", "confidence", "loss", "unit", *probabilities]
    swapped = [part for kind in ("hard", "random") for part in _swapped_answers(answers, kind, scheme)]
    return answers.select(*columns, *swapped)


def _swapped_answers(table: pl.DataFrame, kind: str, scheme: LabelScheme) -> list[pl.Expr]:
    """Score and answer under a stored swap; runs of earlier versions kept only the score."""
    entailed = scheme.entailed.value
    score, answer = f"{kind}_swap_prob_{entailed}", f"{kind}_swap_predicted"
    if score not in table.columns:
        return []
    found = [pl.col(score).alias(f"{kind}_score")]
    if answer in table.columns:
        places = {name: place for place, name in enumerate(scheme.names)}
        found.append(pl.col(answer).replace_strict(places, return_dtype=pl.Int64).alias(f"{kind}_answer"))
    elif len(scheme.names) == 2:
        yes, no = scheme.index(scheme.entailed), scheme.index(scheme.unsupported)
        asked = pl.when(pl.col(score) > 0.5).then(yes).when(pl.col(score).is_not_null()).then(no)
        found.append(asked.cast(pl.Int64).alias(f"{kind}_answer"))
    return found


def _data_settings(config: ExperimentConfig) -> ExperimentConfig:
    """What decides the rows of a run and nothing else, with texts as they stand in the source."""
    return replace(
        ExperimentConfig(),
        data=config.data,
        train_split=config.train_split,
        val_split=config.val_split,
        test_split=config.test_split,
        val_fraction=config.val_fraction,
        test_data=config.test_data,
        subset=config.subset,
        label_scheme=config.label_scheme,
        split_seed=config.split_seed,
        on_bad_row=config.on_bad_row,
        text=replace(config.text, normalize="none"),
    )


def find_twin(run: RunAnswers, others: Sequence[RunAnswers]) -> RunAnswers | None:
    """The run among `others` that is the same recipe on hypotheses alone."""
    if run.config.method not in ENCODER_METHODS or not run.reads_premise:
        return None
    wanted = config_hash(hypothesis_only_twin(run.config))
    return next((one for one in others if config_hash(one.config) == wanted), None)
