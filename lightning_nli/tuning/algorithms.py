"""Ray Tune's schedulers and searchers for a sweep. Time is counted in epochs."""

from __future__ import annotations

from typing import Any

from ray.tune.schedulers import (
    AsyncHyperBandScheduler,
    FIFOScheduler,
    HyperBandScheduler,
    PopulationBasedTraining,
    TrialScheduler,
)
from ray.tune.search import BasicVariantGenerator

from lightning_nli.tuning.sweep import SweepSpec, lower_is_better
from lightning_nli.tuning.trial import BEST_SCORE, EPOCH, SCORE
from lightning_nli.types import UserError

PAUSING = ("pbt", "hyperband")
"""Schedulers that pause trials and let them go on later."""


def mode_of(metric: str) -> str:
    """`min` or `max`."""
    return "min" if lower_is_better(metric) else "max"


class EvenPopulation(PopulationBasedTraining):  # type: ignore[misc]
    """Compares trials at the same epoch, whatever the number of slots, and does not wait for one that is gone.

    With fewer slots than trials Ray's own default compares scores of different epochs: a trial that is ahead loses by
    chance, takes over what is behind, and does so again and again. The synchronous kind waits for every trial's report,
    and for ever where the last one to report fails: the others then go on without a comparison this once.
    """

    def choose_trial_to_run(self, tune_controller: Any) -> Any:
        chosen = super().choose_trial_to_run(tune_controller)
        trials = tune_controller.get_trials()
        waiting = [self._trial_state[trial].last_train_time for trial in trials if trial.status == trial.PAUSED]
        if chosen is None and waiting and not any(trial.status == trial.RUNNING for trial in trials):
            self._next_perturbation_sync = min(waiting) + self._perturbation_interval
            return super().choose_trial_to_run(tune_controller)
        return chosen


def build_scheduler(spec: SweepSpec) -> TrialScheduler:
    """The scheduler; the first metric steers it."""
    steers = {"time_attr": EPOCH, "metric": SCORE, "mode": mode_of(spec.metrics[0])}
    if spec.scheduler == "asha":
        return AsyncHyperBandScheduler(
            **steers, max_t=spec.max_epochs, grace_period=spec.grace_epochs, reduction_factor=spec.reduction_factor
        )
    if spec.scheduler == "hyperband":
        return HyperBandScheduler(**steers, max_t=spec.max_epochs, reduction_factor=spec.reduction_factor)
    if spec.scheduler == "pbt":
        mutations = {name: spec.search_space.domains[name].as_mutation() for name in spec.space}
        return EvenPopulation(
            **steers, perturbation_interval=spec.grace_epochs, hyperparam_mutations=mutations, synch=True
        )
    return FIFOScheduler()


def build_search(spec: SweepSpec, points: list[dict[str, Any]], max_concurrent: int) -> Any:
    """The searcher; `points` are tried first, in their order.

    Paused trials count as running ones here, so a scheduler that pauses is held back by the resources alone.

    Raises:
        UserError: Optuna is not installed.
    """
    if spec.search != "optuna":
        limit = 0 if spec.scheduler in PAUSING else max_concurrent
        return BasicVariantGenerator(points_to_evaluate=points, max_concurrent=limit)
    try:
        import optuna
        from ray.tune.search.optuna import OptunaSearch

        optuna.logging.set_verbosity(optuna.logging.ERROR)

        seed = spec.seed + len(points)  # the draws of a sweep that goes on must not repeat those of its beginning
        names = [BEST_SCORE, *(f"{SCORE}_{place}" for place in range(1, len(spec.metrics)))]
        modes = [mode_of(metric) for metric in spec.metrics]
        metric: Any = names if len(names) > 1 else names[0]
        mode: Any = modes if len(modes) > 1 else modes[0]
        return OptunaSearch(metric=metric, mode=mode, points_to_evaluate=points or None, seed=seed)
    except (ImportError, AssertionError):
        raise UserError("--search optuna needs the package optuna: pip install 'lightning-nli[tune]'") from None
