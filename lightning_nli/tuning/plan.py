"""From what a user asks for to a checked `SweepSpec`: everything that can be wrong is found before anything starts."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from lightning_nli.config import ExperimentConfig, load_config
from lightning_nli.config_monitor import MONITOR_PREFIX, check_monitor
from lightning_nli.tuning.process import Task, trial_environment, write_task
from lightning_nli.tuning.space import SearchSpace, load_space, with_settings
from lightning_nli.tuning.sweep import Sweep, SweepSpec, Trial, write_json
from lightning_nli.types import UserError

PBT_SETTINGS = ("optim.lr", "optim.weight_decay")
"""What may change in the middle of a run without making it another model or another budget."""

DEFAULT_SAMPLES = 12


@dataclass(frozen=True, kw_only=True)
class Request:
    """What a user asks for.

    Attributes:
        config: File of settings that trials start from.
        space: File of distributions.
        metric: One or two scores of `id_val`, separated by a comma.
        num_samples: Trials; None: 12, or the whole grid.
        search: `random`, `grid` or `optuna`.
        scheduler: `asha`, `hyperband`, `pbt` or `none`.
        seed: Of the draws.
        grace_epochs: Epochs before a trial may be stopped.
        reduction_factor: A rung lets one in so many go on.
        keep: Trials whose checkpoint stays.
        threads: CPU threads of each process of a trial.
        suite: Suite file; None for an ordinary run.
        held_out: Domain of the suite that is held out of the search.
        inner_folds: Folds by law inside the training domains.
    """

    config: Path
    space: Path
    metric: str = "id_val/macro_f1"
    num_samples: int | None = None
    search: str = "random"
    scheduler: str = "asha"
    seed: int = 1
    grace_epochs: int = 1
    reduction_factor: float = 3.0
    keep: int = 1
    threads: int = 1
    suite: Path | None = None
    held_out: str | None = None
    inner_folds: int = 3


def parse_metrics(text: str) -> list[str]:
    """Names in `--metric A[,B]`; `id_val/` may be left out.

    Raises:
        UserError: a name is no score of `id_val`, or there are more than two.
    """
    names = [name.strip() for name in text.split(",") if name.strip()]
    metrics = [name if "/" in name else f"{MONITOR_PREFIX}{name}" for name in names]
    if not 1 <= len(metrics) <= 2 or len(set(metrics)) != len(metrics):
        raise UserError(f"--metric '{text}': name one score, or two different ones separated by a comma")
    return [check_monitor(name, "--metric") for name in metrics]


def plan_sweep(request: Request) -> SweepSpec:
    """Check a request.

    Raises:
        UserError: names file, setting or option, and the mend.
    """
    metrics = parse_metrics(request.metric)
    config = load_config(request.config)
    _check_config(config, request)
    base = _base(config, request, metrics)
    space = load_space(request.space, base)
    spec = SweepSpec(
        base=asdict(base),
        space=space.as_dict(),
        metrics=metrics,
        num_samples=_num_samples(request, space),
        search=request.search,
        scheduler=request.scheduler,
        seed=request.seed,
        grace_epochs=request.grace_epochs,
        reduction_factor=request.reduction_factor,
        keep=request.keep,
        cwd=str(Path.cwd()),
        suite=None if request.suite is None else str(request.suite.resolve()),
        held_out=request.held_out,
        inner_folds=request.inner_folds if request.suite else 0,
    )
    _check_rules(spec)
    for settings in drawn_settings(spec):
        with_settings(base, settings)
    return spec


def _base(config: ExperimentConfig, request: Request, metrics: list[str]) -> ExperimentConfig:
    checkpoints = replace(config.checkpoints, monitor=metrics[0], keep=1)
    engine = replace(config.engine, threads=config.engine.threads or request.threads)
    return replace(config, checkpoints=checkpoints, engine=engine, run_dir=None, resume="never")


def _check_config(config: ExperimentConfig, request: Request) -> None:
    where = f"--config {request.config}"
    if config.method != "finetune":
        raise UserError(f"{where}: method {config.method} has no epochs to report; a sweep needs finetune")
    if config.val_split == "none":
        raise UserError(f"{where}: val_split none leaves no rows to choose by; a sweep needs id_val")
    if config.engine.num_nodes > 1:
        raise UserError(f"{where}: num_nodes {config.engine.num_nodes}; a trial runs on one machine, with many devices")
    if (request.suite is None) != (request.held_out is None):
        raise UserError("--suite and --held-out go together: a suite, and the domain that no trial may see")
    if request.suite is not None:
        from lightning_nli.tuning.inner import check_base

        check_base(config, request.suite)
        if request.inner_folds < 2:
            raise UserError(f"--inner-folds must be at least 2, got {request.inner_folds}")


def _num_samples(request: Request, space: SearchSpace) -> int:
    if request.search == "grid":
        combinations = len(space.grid())
        if request.num_samples not in (None, combinations):
            raise UserError(f"--num-samples {request.num_samples}, but the grid has {combinations} combinations")
        return combinations
    samples = DEFAULT_SAMPLES if request.num_samples is None else request.num_samples
    if samples < 1:
        raise UserError(f"--num-samples must be at least 1, got {samples}")
    return samples


def _check_rules(spec: SweepSpec) -> None:
    if spec.keep < 0:
        raise UserError(f"--keep-checkpoints-num must not be below 0, got {spec.keep}")
    if not 1 <= spec.grace_epochs <= spec.max_epochs:
        raise UserError(f"--grace-epochs must lie between 1 and the {spec.max_epochs} epochs, got {spec.grace_epochs}")
    if spec.reduction_factor <= 1:
        raise UserError(f"--reduction-factor must be above 1, got {spec.reduction_factor:g}")
    if spec.scheduler == "pbt":
        _check_pbt(spec)


def _check_pbt(spec: SweepSpec) -> None:
    others = [name for name in spec.space if name not in PBT_SETTINGS]
    if others:
        raise UserError(
            f"--scheduler pbt changes settings in the middle of a run, which only {' and '.join(PBT_SETTINGS)} can be; "
            f"take {', '.join(others)} out of the space, or another scheduler"
        )
    if spec.search != "random":
        raise UserError(f"--scheduler pbt draws by itself; leave out --search {spec.search}")
    if spec.inner_folds or spec.config.engine.strategy.startswith("deepspeed"):
        raise UserError("--scheduler pbt goes with one run of one file a trial: no --suite, no --strategy deepspeed")
    if spec.num_samples < 2:
        raise UserError("--scheduler pbt needs a population: --num-samples 4 or more")


def drawn_settings(spec: SweepSpec) -> list[dict[str, Any]]:
    """Settings of the trials that are drawn beforehand: all but Optuna's."""
    if spec.search == "optuna":
        return []
    return spec.search_space.grid() if spec.search == "grid" else spec.search_space.draw(spec.num_samples, spec.seed)


def check_once(sweep: Sweep) -> dict[str, Any]:
    """Read the data and build the model in a process of its own, when the sweep begins; later what was found then.

    Returns:
        `parameters`, `train_rows`, `val_rows`.

    Raises:
        UserError: what a trial would fail with.
    """
    path = sweep.folder / "check.json"
    if path.exists():
        known: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return known
    spec, member = sweep.spec, sweep.spec.members[0]
    with tempfile.TemporaryDirectory() as scratch:
        rows = str(sweep.folder.resolve() / "folds" / f"{member}.parquet") if member else None
        task = Task(metrics=spec.metrics, rows=rows, scheme=spec.scheme)
        write_task(Path(scratch), sweep.config(Trial("check", {}), member), task)
        done = subprocess.run(
            [sys.executable, "-m", "lightning_nli", "tune", "check", scratch],
            cwd=spec.cwd,
            env=trial_environment(spec.config.engine.threads or 1),
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()] or [f"exit code {done.returncode}"]
        told = next((line for line in reversed(lines) if line.startswith("lnli: ")), lines[-1])
        raise UserError(told.removeprefix("lnli: "))
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    write_json(path, found)
    return found
