"""Another probability of entailment than 0.5 from which a row is answered entailed, chosen on `id_val`.

Swapped rows shift the balance of labels in training, and the probabilities with it; the order of the rows suffers less.
Everything here reads the predictions table: no row is scored again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from lightning_nli.metrics import score
from lightning_nli.training.corpora import VAL_NAME
from lightning_nli.types import LabelScheme, UserError

DEFAULT_MIX = 1 / 3
"""Weight of swapped rows: where half of the rows are entailed, each of these once more under its swap."""

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Threshold:
    """When a row is answered entailed: its probability is above `value`.

    Attributes:
        value: Between 0 and 1.
        mix: Weight of the swapped rows among those it was chosen for; None: it was given.
        chosen_on: Set that chose it; None: it was given.
    """

    value: float
    mix: float | None = None
    chosen_on: str | None = None


def parse_threshold(text: str) -> Threshold | float:
    """`0.7` -> that threshold; `mix=0.25` -> 0.25, the mix to choose one for.

    Raises:
        UserError: it is neither, or not between 0 and 1.
    """
    name, is_mix, number = text.rpartition("=")
    try:
        value = float(number)
    except ValueError:
        value = -1.0
    if name != ("mix" if is_mix else "") or not 0 <= value <= 1:
        raise UserError(
            f"--threshold '{text}': write a probability between 0 and 1, or mix=SHARE (weight of the swapped rows)"
        )
    return value if is_mix else Threshold(value)


def choose_threshold(table: pl.DataFrame, scheme: LabelScheme, mix: float = DEFAULT_MIX) -> Threshold | None:
    """The threshold with the highest accuracy over plain rows and hard swaps, which count as not entailed.

    Plain rows have the weight 1 - mix in all, swapped rows mix. Of equally good ones the nearest to 0.5.

    Args:
        table: Predictions of `id_val` with the answers under hard swaps (`SplitScores.predictions`).
        scheme: Labels.
        mix: Weight of the swapped rows, 0 to 1.

    Returns:
        None where there are more than two labels, or no rows of a kind that the mix asks for.
    """
    entailed = f"prob_{scheme.entailed.value}"
    if len(scheme.labels) != 2 or f"hard_swap_{entailed}" not in table.columns:
        return None
    plain = table[entailed].cast(pl.Float64).to_numpy()
    swapped = table[f"hard_swap_{entailed}"].drop_nulls().cast(pl.Float64).to_numpy()
    if (mix < 1 and not len(plain)) or (mix > 0 and not len(swapped)):
        return None
    gold = (table["label"].cast(pl.String) == scheme.entailed.value).to_numpy()
    values = np.unique(np.concatenate([plain, swapped]))
    candidates = np.concatenate([[0.0, 0.5, 1.0], (values[1:] + values[:-1]) / 2])
    accuracy = np.zeros(len(candidates))
    if mix < 1:
        right = _num_above(plain[gold], candidates) + (~gold).sum() - _num_above(plain[~gold], candidates)
        accuracy += (1 - mix) * right / len(plain)
    if mix > 0:
        accuracy += mix * (1 - _num_above(swapped, candidates) / len(swapped))
    best = candidates[accuracy >= accuracy.max() - 1e-12]
    return Threshold(float(best[np.abs(best - 0.5).argmin()]), mix, VAL_NAME)


def _num_above(values: Floats, thresholds: Floats) -> npt.NDArray[np.int64]:
    return len(values) - np.searchsorted(np.sort(values), thresholds, side="right")


def calibrated_scores(table: pl.DataFrame, scheme: LabelScheme, threshold: Threshold) -> dict[str, Any]:
    """Scores of a set at a threshold, as `result.json` holds them under `calibrated`.

    Args:
        table: Predictions with the answers under swaps.
        scheme: Two labels.
        threshold: Of `choose_threshold`, or given.
    """
    entailed = f"prob_{scheme.entailed.value}"
    answers_entailed = pl.col(entailed) > threshold.value
    answers = pl.when(answers_entailed).then(pl.lit(scheme.entailed.value)).otherwise(pl.lit(scheme.unsupported.value))
    scores = score(table.with_columns(predicted=answers), scheme)
    is_gold = pl.col("label").cast(pl.String) == scheme.entailed.value

    def discrimination(kind: str) -> float | None:
        column = f"{kind}_swap_{entailed}"
        if column not in table.columns:
            return None
        pairs = table.filter(is_gold & pl.col(column).is_not_null())
        turned: float | None = pairs.select((answers_entailed & (pl.col(column) <= threshold.value)).mean()).item()
        return turned

    premise = {"discrimination": discrimination("hard"), "random_swap": discrimination("random")}
    if f"other_law_swap_{entailed}" in table.columns:
        premise["other_law"] = discrimination("other_law")
    return {
        "threshold": threshold.value,
        "mix": threshold.mix,
        "chosen_on": threshold.chosen_on,
        "accuracy": scores.accuracy,
        "macro_f1": scores.macro_f1,
        "premise": premise,
    }
