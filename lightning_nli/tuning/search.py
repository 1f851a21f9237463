"""Runs a sweep's trials under Ray Tune, and goes on with them after anything.

Ray schedules, searches and stops; what a trial is and how far it came lies in the sweep's own folder. A sweep that goes
on starts Ray anew: ended trials report again what they reported, so that schedulers and searchers know all of it.
"""

from __future__ import annotations

import logging
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any

from lightning_nli.tuning.disk import DiskWatch, prune_checkpoints
from lightning_nli.tuning.plan import drawn_settings
from lightning_nli.tuning.space import settings_key
from lightning_nli.tuning.sweep import STOP_FILE, Status, Sweep, Trial
from lightning_nli.types import UserError

log = logging.getLogger(__name__)

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
_OBJECT_STORE_BYTES = 128 * 1024**2
_LEAVE_PATIENCE_S = 90.0
_CONNECT_PATIENCE_S = 150.0


@dataclass(frozen=True, kw_only=True)
class Resources:
    """What a trial takes, and how many run at once.

    Attributes:
        cpus: CPU cores a trial.
        gpus: GPUs a trial; a share of one where trials share it.
        max_concurrent: Trials at once; 0 for as many as fit.
        ray_address: Of a cluster; None for this machine alone.
    """

    cpus: float = 1
    gpus: float = 0
    max_concurrent: int = 0
    ray_address: str | None = None


@contextmanager
def ray_session(resources: Resources) -> Iterator[Any]:
    """Ray on this machine (bound to loopback, no dashboard, no usage reports), or a cluster's; ended with the block.

    Raises:
        UserError: the cluster cannot be reached.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("TUNE_DISABLE_AUTO_CALLBACK_LOGGERS", "1")
    os.environ.setdefault("TUNE_DISABLE_SIGINT_HANDLER", "1")
    os.environ.setdefault("TUNE_PRINT_ALL_TRIAL_ERRORS", "0")
    os.environ.setdefault("RAY_AIR_NEW_OUTPUT", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    import ray

    if ray.is_initialized():
        yield ray
        return
    options: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
    if resources.ray_address is None:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        options |= {"num_cpus": cores, "include_dashboard": False, "_node_ip_address": "127.0.0.1"}
        options |= {"object_store_memory": _OBJECT_STORE_BYTES}
    _connect(ray, resources.ray_address, options)
    try:
        yield ray
    finally:
        ray.shutdown()


def _connect(ray: Any, address: str | None, options: dict[str, Any]) -> None:
    """`ray.init`, tried again for a while: a new cluster may not take drivers yet, and on a busy machine Ray gives up.

    (Its raylet ends itself if its Python helpers are not up within 16 s, which no option changes.)
    """
    deadline = time.monotonic() + _CONNECT_PATIENCE_S
    while True:
        try:
            ray.init(address=address or "local", **options)
            return
        except Exception as error:  # Ray raises bare ones
            if isinstance(error, ValueError) or time.monotonic() > deadline:
                where = "Ray does not start on this machine" if address is None else f"--ray-address {address}"
                raise UserError(f"{where}: {' '.join(str(error).split())}") from error
            time.sleep(1.0)


def check_resources(ray: Any, resources: Resources) -> None:
    """Refuse at once what no machine of the cluster can ever give.

    Raises:
        UserError: what was asked for and what is there.
    """
    there = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    fits = any(node.get("CPU", 0) >= resources.cpus and node.get("GPU", 0) >= resources.gpus for node in there)
    if not fits:
        found = "; ".join(f"{node.get('CPU', 0):g} CPUs and {node.get('GPU', 0):g} GPUs" for node in there)
        raise UserError(
            f"a trial asks for {resources.cpus:g} CPUs and {resources.gpus:g} GPUs on one machine "
            f"(--cpus-per-trial, --gpus-per-trial, --devices); found {found}"
        )


class Interruption:
    """Remembers that the sweep is to be stopped, and tells every trial through a file in the sweep's folder."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / STOP_FILE
        self.path.unlink(missing_ok=True)
        self.reason: str | None = None

    def stop(self, reason: str) -> None:
        self.reason = self.reason or reason
        self.path.touch()

    @contextmanager
    def on_signals(self) -> Iterator[None]:
        """Stop on INT, TERM, USR1 and USR2 inside the block."""
        before = {number: signal.getsignal(number) for number in _SIGNALS}
        for number in _SIGNALS:
            signal.signal(number, self._note)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.stop(signal.Signals(number).name)


def draw_trials(sweep: Sweep) -> list[Trial]:
    """Register the trials that are drawn beforehand (all but Optuna's); those that are there stay as they are."""
    drawn = drawn_settings(sweep.spec)
    if len(drawn) < sweep.spec.num_samples and sweep.spec.search == "random":
        log.warning("the space has few values: %d different trials instead of %d", len(drawn), sweep.spec.num_samples)
    for settings in drawn[len(sweep.names) :]:
        sweep.add(settings)
    return sweep.trials()


def run_search(
    sweep: Sweep,
    resources: Resources,
    *,
    prepare: Callable[[], int] = lambda: 0,
    tell: Callable[[str], None] = lambda line: None,
) -> str | None:
    """Run every trial that has not ended, failed ones again; returns why the sweep was stopped early, if it was.

    Args:
        sweep: What to run.
        resources: Of a trial.
        prepare: Called once the resources are known to be there; returns the bytes of a checkpoint.
        tell: Called with a line for every report and every end.

    Raises:
        UserError: the resources are not there, or `prepare` finds what trials would fail with.
    """
    interruption = Interruption(sweep.folder)
    for trial in sweep.trials():
        if trial.status in (Status.RUNNING, Status.FAILED):
            sweep.write(replace(trial, status=Status.PENDING, error=None))
    with ray_session(resources) as ray, interruption.on_signals():
        check_resources(ray, resources)
        disk = DiskWatch(sweep.folder, prepare())
        _fit(sweep, resources, interruption, disk, tell)
        _wait_for_trials(sweep)
    ended = [trial for trial in sweep.trials() if trial.status.has_ended]
    return interruption.reason if len(ended) < sweep.spec.num_samples else None


def _fit(
    sweep: Sweep, resources: Resources, interruption: Interruption, disk: DiskWatch, tell: Callable[[str], None]
) -> None:
    from ray import tune

    from lightning_nli.tuning.algorithms import build_scheduler, build_search
    from lightning_nli.tuning.trial import CPUS_KEY, GPUS_KEY, SWEEP_KEY, TrialRun
    from lightning_nli.tuning.watch import StopWhenTold, SweepCallback

    for library in ("ray", "ray.tune"):
        logging.getLogger(library).setLevel(logging.CRITICAL)
    storage = sweep.folder.resolve() / ".ray"
    shutil.rmtree(storage, ignore_errors=True)
    trials = draw_trials(sweep)
    space: dict[str, Any] = {name: domain.as_tune() for name, domain in sweep.spec.search_space.domains.items()}
    constants = {SWEEP_KEY: str(sweep.folder.resolve()), CPUS_KEY: resources.cpus, GPUS_KEY: resources.gpus}
    spec = sweep.spec
    tuner = tune.Tuner(
        TrialRun,
        param_space=space | constants,
        tune_config=tune.TuneConfig(
            num_samples=len(trials) if spec.search != "optuna" else spec.num_samples,
            search_alg=build_search(spec, [trial.settings for trial in trials], resources.max_concurrent),
            scheduler=build_scheduler(spec),
            max_concurrent_trials=resources.max_concurrent or None if spec.search == "optuna" else None,
            reuse_actors=True,
            trial_name_creator=_namer(sweep, trials),
        ),
        run_config=tune.RunConfig(
            name="ray",
            storage_path=str(storage),
            verbose=0,
            stop=StopWhenTold(interruption),
            callbacks=[SweepCallback(sweep, interruption, disk, tell)],
            failure_config=tune.FailureConfig(max_failures=0),
        ),
    )
    try:
        tuner.fit()
    finally:
        shutil.rmtree(storage, ignore_errors=True)
        if spec.scheduler == "pbt" and interruption.reason is None:
            shutil.rmtree(sweep.folder / "snapshots", ignore_errors=True)
    prune_checkpoints(sweep)


def _namer(sweep: Sweep, trials: list[Trial]) -> Callable[[Any], str]:
    """Ray's trial -> ours with the same settings, registered if it is new."""
    from lightning_nli.tuning.trial import plain_settings

    free: dict[str, list[str]] = {}
    for trial in trials:
        free.setdefault(settings_key(trial.settings), []).append(trial.name)

    def name(ray_trial: Any) -> str:
        settings = plain_settings(ray_trial.config, sweep.spec)
        names = free.setdefault(settings_key(settings), [])
        if not names:
            names.append(sweep.add(settings).name)
        return names.pop(0) if len(names) > 1 else names[0]

    return name


def _wait_for_trials(sweep: Sweep) -> None:
    """Until the processes of all trials have left, so that the next command finds everything at rest."""
    from lightning_nli.tuning.process import is_locked

    deadline = time.monotonic() + _LEAVE_PATIENCE_S
    ledgers = [ledger for name in sweep.names for ledger in sweep.member_ledgers(name)]
    while any(is_locked(ledger) for ledger in ledgers) and time.monotonic() < deadline:
        time.sleep(0.2)
