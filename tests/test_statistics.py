"""Intervals by law: hand-made figures, scipy and statsmodels' arithmetic, and coverage on simulated laws."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from scipy import stats

from lightning_nli.crossdomain.pool import build_pool
from lightning_nli.data.readers import read_source
from lightning_nli.metrics import scores_from_confusion
from lightning_nli.statistics import (
    SeedSpread,
    difference_of,
    effective_laws,
    expected_calibration_error,
    holm,
    jackknife,
    macro_f1,
    mcnemar,
    mean_of,
    pooled_seed_spread,
    rank_intervals,
    ratio,
)
from lightning_nli.types import THREE_WAY


def test_laws_of_one_row_give_the_textbook_t_interval():
    values = np.array([0.2, 0.9, 0.4, 0.7, 0.5, 0.1])
    sums = np.stack([values, np.ones(6)], axis=1)
    estimate = jackknife(sums, ratio, sizes=np.ones(6))
    expected = stats.t.interval(0.95, 5, loc=values.mean(), scale=stats.sem(values))
    assert estimate.value == pytest.approx(values.mean()) and estimate.degrees_of_freedom == pytest.approx(5)
    assert (estimate.low, estimate.high) == pytest.approx(expected)
    assert estimate.p_value == pytest.approx(stats.ttest_1samp(values, 0).pvalue)
    assert estimate.note == "training variance not included"


def test_scipys_paired_test_is_the_difference_of_two_models():
    rng = np.random.default_rng(1)
    first, second = rng.random(12), rng.random(12)
    ones = np.ones(12)
    sums = np.stack([first, ones, second, ones], axis=1)
    estimate = jackknife(sums, difference_of(ratio, ratio, width=2), sizes=ones)
    assert estimate.p_value == pytest.approx(stats.ttest_rel(first, second).pvalue)


def test_few_laws_give_a_figure_and_no_interval():
    sums = np.array([[3.0, 4], [1, 2], [5, 5], [0, 1]])
    estimate = jackknife(sums, ratio, sizes=sums[:, 1])
    assert estimate.value == pytest.approx(9 / 12)
    assert estimate.low is None and estimate.note == "4 laws" and estimate.p_value is None
    empty = jackknife(np.zeros((6, 2)), ratio, sizes=np.zeros(6))
    assert empty.value is None and empty.note == "not defined"
    lopsided = np.array([[1.0, 2], *([[0.0, 0.0]] * 5)])
    assert jackknife(lopsided, ratio, sizes=np.ones(6)).note == "hangs on one law"


def test_effective_laws_and_seeds_enter_the_degrees_of_freedom():
    sizes = np.array([10.0, 10, 10, 10, 60])
    assert effective_laws(sizes) == pytest.approx(100**2 / (4 * 100 + 3600))
    sums = np.stack([sizes * [0.5, 0.6, 0.7, 0.8, 0.9], sizes], axis=1)
    alone = jackknife(sums, ratio, sizes=sizes)
    assert alone.degrees_of_freedom == pytest.approx(effective_laws(sizes) - 1)
    spread = SeedSpread(variance=0.0012, degrees_of_freedom=4, num_seeds=3)
    both = jackknife(sums, ratio, sizes=sizes, seeds=spread)
    of_laws, of_seeds = alone.standard_error**2, 0.0012 / 3
    assert both.standard_error == pytest.approx(math.sqrt(of_laws + of_seeds))
    welch = (of_laws + of_seeds) ** 2 / (of_laws**2 / alone.degrees_of_freedom + of_seeds**2 / 4)
    assert both.degrees_of_freedom == pytest.approx(welch) and both.note == ""
    assert jackknife(sums, ratio, sizes=sizes, freedom="laws").degrees_of_freedom == 4


def test_seed_spread_is_pooled_over_models():
    spread = pooled_seed_spread([[0.1, 0.2, 0.3], [0.5, 0.5, 0.8]])
    assert spread.variance == pytest.approx((np.var([0.1, 0.2, 0.3], ddof=1) + np.var([0.5, 0.5, 0.8], ddof=1)) / 2)
    assert (spread.degrees_of_freedom, spread.num_seeds) == (4, 3)
    assert pooled_seed_spread([[0.1], [0.2]]).degrees_of_freedom == 0
    with pytest.raises(ValueError, match="equal numbers"):
        pooled_seed_spread([[0.1], [0.2, 0.3]])


def test_macro_f1_is_that_of_the_metrics():
    rng = np.random.default_rng(2)
    for _ in range(20):
        confusion = rng.integers(0, 4, (3, 3)) * (rng.random((3, 3)) < 0.6)
        expected = scores_from_confusion(confusion, THREE_WAY, None).macro_f1
        got = float(macro_f1(confusion.astype(float).reshape(-1)))
        assert math.isnan(got) if expected is None else got == pytest.approx(expected)


def test_a_mean_over_domains_is_missing_when_a_domain_is():
    mean = mean_of(ratio, 2)
    assert float(mean(np.array([1.0, 2, 3, 4]))) == pytest.approx((0.5 + 0.75) / 2)
    assert math.isnan(float(mean(np.array([1.0, 2, 0, 0]))))


def test_holm_and_rank_intervals_by_hand():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([]) == [] and holm([0.9, 0.8]) == pytest.approx([1.0, 1.0])
    comparisons = {("a", "b"): (0.1, 0.001), ("a", "c"): (0.05, 0.2), ("b", "c"): (-0.02, 0.01)}
    assert rank_intervals(["a", "b", "c"], comparisons) == {"a": (1, 2), "b": (3, 3), "c": (1, 2)}


def test_mcnemar_and_calibration_by_hand():
    assert mcnemar(0, 0) == 1.0
    assert mcnemar(1, 9) == pytest.approx(2 * sum(math.comb(10, k) for k in (0, 1)) / 2**10)
    confidence = np.array([0.9, 0.95, 0.6, 0.65])
    error = expected_calibration_error(confidence, np.array([1.0, 0, 1, 1]), num_bins=10)
    assert error == pytest.approx((abs(1.85 - 1) + abs(1.25 - 2)) / 4)
    assert expected_calibration_error(np.array([]), np.array([])) is None


def simulate(rng: np.random.Generator, sizes: np.ndarray, rate: float, correlation: float, runs: int) -> np.ndarray:
    """Right answers of each law (runs, G): beta-binomial, so that two rows of a law have the correlation."""
    strength = (1 - correlation) / correlation
    law_rates = rng.beta(rate * strength, (1 - rate) * strength, (runs, len(sizes)))
    return rng.binomial(sizes.astype(int), law_rates)


LARGE = np.array([310, 240, 180, 120, 95, 80, 66, 50, 44, 30, 25, 20, 15, 10, 8, 6, 5, 4, 3, 2, 2], float)
MIDDLE = np.array([150, 120, 90, 80, 60, 50, 45, 40, 35, 30, 20], float)
SMALL = np.array([90, 40, 30, 20, 10], float)


@pytest.mark.parametrize(("sizes", "least", "most"), [(LARGE, 0.93, 0.97), (MIDDLE, 0.93, 0.97), (SMALL, 0.93, 1.0)])
def test_intervals_cover_what_they_say(sizes, least, most):
    rng = np.random.default_rng(3)
    right = simulate(rng, sizes, 0.9, 0.015, 3000)
    hits = 0
    for run in right:
        estimate = jackknife(np.stack([run, sizes], axis=1), ratio, sizes=sizes)
        hits += estimate.low <= 0.9 <= estimate.high
    assert least <= hits / len(right) <= most


def test_equal_models_seldom_differ():
    rng = np.random.default_rng(4)
    false_alarms = 0
    for _ in range(2000):
        strength = (1 - 0.015) / 0.015
        rates = rng.beta(0.9 * strength, 0.1 * strength, len(MIDDLE))
        one, two = (rng.binomial(MIDDLE.astype(int), rates) for _ in range(2))
        sums = np.stack([one, MIDDLE, two, MIDDLE], axis=1)
        false_alarms += jackknife(sums, difference_of(ratio, ratio, width=2), sizes=MIDDLE).p_value < 0.05
    assert 0.03 <= false_alarms / 2000 <= 0.06


def test_intervals_cover_on_the_law_sizes_of_the_published_domains(shared: Path):
    """An intra-law correlation of 0.015, as the linear model's errors have on ViLegalNLI."""
    corpus = read_source(f"vilegalnli:{shared}/data/vilegalnli", on_bad_row="drop")
    pool = build_pool(corpus.frame, corpus.scheme)
    rng = np.random.default_rng(6)
    for domain in pool.core_domains:
        rows = pool.frame.filter(pl.col("domains").list.contains(domain))
        sizes = rows.group_by("law_id").len().sort("law_id")["len"].to_numpy().astype(float)
        if len(sizes) < 5:
            continue
        right = simulate(rng, sizes, 0.9, 0.015, 2000)
        estimates = [jackknife(np.stack([run, sizes], axis=1), ratio, sizes=sizes) for run in right]
        covered = np.mean([made.low <= 0.9 <= made.high for made in estimates])
        assert covered >= 0.93, (domain, covered)
        assert len(sizes) < 10 or covered <= 0.97, (domain, covered)
