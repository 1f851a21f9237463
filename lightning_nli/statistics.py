"""Intervals and comparisons over laws: rows of one law are not independent, laws are.

One estimator for everything: the delete-one-law jackknife of a figure that is a function of sums over laws. Where a
corpus has no laws, its split unit takes their place.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
Statistic = Callable[[FloatArray], FloatArray]
"""Sums (..., K) -> figure (...); NaN where it is not defined."""

MIN_LAWS = 5
LEVEL = 0.95


@dataclass(frozen=True)
class SeedSpread:
    """Variance between trainings that differ in the seed alone.

    Attributes:
        variance: Pooled over models.
        degrees_of_freedom: Sum over models of seeds minus 1; 0: one seed a model, nothing is known.
        num_seeds: Seeds behind each figure.
    """

    variance: float
    degrees_of_freedom: int
    num_seeds: int


@dataclass(frozen=True)
class Estimate:
    """A figure and what is known of its error; null is "not known", never 0.

    Attributes:
        value: The figure over all laws.
        standard_error: Of laws and, where known, of seeds.
        low: Lower end of the 95% interval.
        high: Upper end.
        num_laws: Laws behind it.
        degrees_of_freedom: Of the t distribution that the interval is taken from.
        note: Why there is no interval, or what it leaves out; empty otherwise.
    """

    value: float | None
    standard_error: float | None
    low: float | None
    high: float | None
    num_laws: int
    degrees_of_freedom: float | None
    note: str = ""

    @property
    def p_value(self) -> float | None:
        """Two-sided, of the figure being 0."""
        if self.value is None or self.standard_error is None or self.degrees_of_freedom is None:
            return None
        if self.standard_error == 0:
            return None
        from scipy import stats

        return float(2 * stats.t.sf(abs(self.value) / self.standard_error, self.degrees_of_freedom))

    def within(self, lowest: float, highest: float) -> Estimate:
        """The same with its interval cut to where the figure can lie; a share lies between 0 and 1."""
        if self.low is None or self.high is None:
            return self
        return replace(self, low=max(self.low, lowest), high=min(self.high, highest))


def effective_laws(sizes: Sequence[float] | FloatArray) -> float:
    """(sum n)^2 / sum n^2 over the rows n of each law: how many laws of one size would weigh the same."""
    rows = np.asarray(sizes, np.float64)
    return float(rows.sum() ** 2 / (rows**2).sum())


def jackknife(
    sums: FloatArray,
    statistic: Statistic,
    *,
    sizes: FloatArray,
    freedom: Literal["effective", "laws"] = "effective",
    seeds: SeedSpread | None = None,
) -> Estimate:
    """Figure, standard error and t interval by leaving out one law at a time.

    The standard error is sqrt((G - 1) / G * sum (t_g - mean t)^2), t_g the figure without law g (Efron, Stein, 1981).

    Args:
        sums: (G, K), for each of G laws its sums, for instance right answers and rows.
        statistic: The figure as a function of the sums over laws.
        sizes: (G,) rows of each law, for the degrees of freedom.
        freedom: `effective`: `effective_laws` - 1 (a domain, the pool); `laws`: G - 1 (a mean over domains).
        seeds: Adds the variance between seeds (Satterthwaite's degrees of freedom).

    Raises:
        ValueError: the shapes do not fit, or a sum is not finite.
    """
    sums = np.asarray(sums, np.float64)
    sizes = np.asarray(sizes, np.float64)
    if sums.ndim != 2 or len(sums) != len(sizes) or not np.isfinite(sums).all():
        raise ValueError(f"sums of shape {sums.shape} for {len(sizes)} laws; all must be finite")
    num_laws = len(sums)
    value = float(statistic(sums.sum(axis=0))) if num_laws else math.nan
    if math.isnan(value):
        return Estimate(None, None, None, None, num_laws, None, "not defined")
    if num_laws < MIN_LAWS:
        return Estimate(value, None, None, None, num_laws, None, f"{num_laws} laws")
    without = statistic(sums.sum(axis=0) - sums)
    if np.isnan(without).any():
        return Estimate(value, None, None, None, num_laws, None, "hangs on one law")
    variance = float((num_laws - 1) / num_laws * ((without - without.mean()) ** 2).sum())
    df = (num_laws if freedom == "laws" else effective_laws(sizes)) - 1
    return _with_seeds(Estimate(value, None, None, None, num_laws, df), variance, seeds)


def _with_seeds(estimate: Estimate, variance: float, seeds: SeedSpread | None) -> Estimate:
    assert estimate.value is not None and estimate.degrees_of_freedom is not None
    df, note = estimate.degrees_of_freedom, ""
    if seeds is None or seeds.degrees_of_freedom == 0:
        note = "training variance not included"
    else:
        of_seeds = seeds.variance / seeds.num_seeds
        total = variance + of_seeds
        if total > 0:
            df = total**2 / (variance**2 / df + of_seeds**2 / seeds.degrees_of_freedom)
        variance = total
    from scipy import stats

    error = math.sqrt(variance)
    reach = float(stats.t.ppf((1 + LEVEL) / 2, df)) * error
    low, high = estimate.value - reach, estimate.value + reach
    return replace(estimate, standard_error=error, low=low, high=high, degrees_of_freedom=df, note=note)


def pooled_seed_spread(figures: Sequence[Sequence[float]]) -> SeedSpread:
    """Variance between seeds, pooled over models.

    Args:
        figures: For each model its figure under each seed.

    Raises:
        ValueError: models have different numbers of seeds.
    """
    counts = {len(seeds) for seeds in figures}
    if len(counts) != 1:
        raise ValueError(f"models have {sorted(counts)} seeds; compare equal numbers")
    num_seeds = counts.pop()
    freedom = len(figures) * (num_seeds - 1)
    squares = sum(float(((np.asarray(seeds) - np.mean(seeds)) ** 2).sum()) for seeds in figures)
    return SeedSpread(squares / freedom if freedom else math.nan, freedom, num_seeds)


def ratio(sums: FloatArray) -> FloatArray:
    """Sums (..., 2) of numerator and denominator -> their ratio, NaN over nothing: accuracy, discrimination."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(sums[..., 1] > 0, sums[..., 0] / sums[..., 1], np.nan)


def macro_f1(sums: FloatArray) -> FloatArray:
    """Confusion counts (..., C * C), rows gold -> mean F1 over the labels in gold or predictions."""
    size = math.isqrt(sums.shape[-1])
    counts = sums.reshape(*sums.shape[:-1], size, size)
    right = np.diagonal(counts, axis1=-2, axis2=-1)
    either = counts.sum(-1) + counts.sum(-2)
    with np.errstate(divide="ignore", invalid="ignore"):
        f1 = np.where(either > 0, 2 * right / either, np.nan)
    present = either > 0
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(present.any(-1), np.nansum(f1, -1) / present.sum(-1), np.nan)


def mean_of(statistic: Statistic, parts: int) -> Statistic:
    """The mean of one figure over `parts` parts (seeds, domains) whose sums lie side by side; NaN if one is NaN."""

    def mean(sums: FloatArray) -> FloatArray:
        values: FloatArray = statistic(sums.reshape(*sums.shape[:-1], parts, -1)).mean(-1)
        return values

    return mean


def difference_of(first: Statistic, second: Statistic, *, width: int) -> Statistic:
    """One figure minus another whose sums lie beside its own, from `width` on: two models on the same rows."""

    def difference(sums: FloatArray) -> FloatArray:
        return first(sums[..., :width]) - second(sums[..., width:])

    return difference


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusted p values in the order given (Holm, 1979)."""
    order = sorted(range(len(p_values)), key=lambda index: p_values[index])
    adjusted = [0.0] * len(p_values)
    running = 0.0
    for place, index in enumerate(order):
        running = max(running, min(1.0, (len(order) - place) * p_values[index]))
        adjusted[index] = running
    return adjusted


def rank_intervals(
    names: Sequence[str], comparisons: dict[tuple[str, str], tuple[float, float]], alpha: float = 1 - LEVEL
) -> dict[str, tuple[int, int]]:
    """Best and worst rank each model can have: 1 + models significantly better, M - models significantly worse.

    Args:
        names: Models.
        comparisons: (first, second) -> difference of their figures, adjusted p value. A missing pair tells nothing.
        alpha: Level at which a difference counts.
    """
    better = dict.fromkeys(names, 0)
    worse = dict.fromkeys(names, 0)
    for (first, second), (difference, p_value) in comparisons.items():
        if p_value < alpha and difference != 0:
            winner, loser = (first, second) if difference > 0 else (second, first)
            better[loser] += 1
            worse[winner] += 1
    return {name: (1 + better[name], len(names) - worse[name]) for name in names}


def mcnemar(first_only: int, second_only: int) -> float:
    """Exact two-sided p value of McNemar's test; rows of one law count as independent here, so only a description.

    Args:
        first_only: Rows that only the first model gets right.
        second_only: Rows that only the second gets right.
    """
    from scipy import stats

    both = first_only + second_only
    return float(stats.binomtest(min(first_only, second_only), both).pvalue) if both else 1.0


def expected_calibration_error(confidence: FloatArray, is_right: FloatArray, num_bins: int = 15) -> float | None:
    """Mean distance of confidence and accuracy over equal-width bins, weighted by rows (Naeini et al., 2015).

    Args:
        confidence: (N,) probability of the answer given.
        is_right: (N,) 1 where the answer is right.
        num_bins: Bins between 0 and 1.
    """
    if not len(confidence):
        return None
    bins = np.minimum((np.asarray(confidence) * num_bins).astype(int), num_bins - 1)
    gaps = np.bincount(bins, np.asarray(confidence) - np.asarray(is_right, np.float64), num_bins)
    return float(np.abs(gaps).sum() / len(bins))
