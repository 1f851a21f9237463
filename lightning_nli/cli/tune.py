"""`lnli tune`: search for settings, as one command that may be stopped and started again at any time."""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from lightning_nli.cli.logs import set_up_logging, silence_libraries
from lightning_nli.types import UserError

if TYPE_CHECKING:
    from lightning_nli.tuning.plan import Request
    from lightning_nli.tuning.search import Resources
    from lightning_nli.tuning.sweep import Sweep

_EPILOG = """\
A space (experiments/tune/*.yaml) names settings and what to draw them from: choice, uniform, loguniform, randint,
lograndint. Every trial is an ordinary run of `lnli fit` in DIR/trials/NAME; it is scored on id_val alone, after every
epoch. The best is the best report of all, not the last. With two metrics the first one steers, and the trials that no
other beats under both are shown.

With --suite and --held-out each trial is scored by its mean over inner folds, whole laws of the other domains: no row
of the held-out domain is read by any trial.

examples:
  lnli tune --config experiments/demo.yaml --space experiments/tune/rates.yaml --num-samples 12
  lnli tune --config B.yaml --space S.yaml --search optuna --metric macro_f1,premise.discrimination --scheduler none
  lnli tune --config B.yaml --space S.yaml --suite benchmarks/suites/sample-lodo.yaml --held-out tax_fees
  lnli tune --resume --tune-dir runs/tune/demo-rates
  lnli fit --config runs/tune/demo-rates/best.yaml

Exit codes: 0 done, 2 usage or bad input (or no trial with a score), 75 stopped: --resume goes on, 1 a fault of ours.
"""


def main(argv: list[str]) -> int:
    """Run `lnli tune ARGV` and return its exit code.

    Raises:
        UserError: settings, space or sweep cannot be used.
    """
    if argv[:1] in (["work"], ["check"]) and len(argv) == 2:
        return _work(Path(argv[1])) if argv[0] == "work" else _check(Path(argv[1]))
    args = _parser().parse_args(argv)
    set_up_logging(quiet=args.quiet)
    if args.resume and not _is_first_launch(args):
        return _resume(args)
    if args.config is None or args.space is None:
        raise UserError("lnli tune needs --config BASE.yaml and --space SPACE.yaml (or --resume --tune-dir DIR)")
    return _start(args)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "lnli tune",
        description="Search for settings with Ray Tune, here or on a cluster.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--config", type=Path, metavar="FILE", help="settings that every trial starts from")
    add("--space", type=Path, metavar="FILE", help="which settings vary, and over what")
    add("--tune-dir", type=Path, metavar="DIR", help="folder of the sweep; default: runs/tune/CONFIG-SPACE")
    add(
        "--resume",
        action="store_true",
        help="go on with the sweep in --tune-dir, failed trials again (begin it with --config and --space, if there "
        "is none)",
    )
    add("--num-samples", type=int, metavar="N", help="trials; default: 12, or all of the grid")
    add("--search", choices=("random", "grid", "optuna"), default="random", help="where settings come from")
    add(
        "--scheduler",
        choices=("asha", "hyperband", "pbt", "none"),
        default="asha",
        help="who goes on training; epochs count, and the rate's schedule spans the whole budget",
    )
    add("--metric", default="id_val/macro_f1", metavar="A[,B]", help="score of id_val, or two (default: %(default)s)")
    add("--grace-epochs", type=int, default=1, metavar="N", help="epochs before a trial may be stopped (default: 1)")
    add("--reduction-factor", type=float, default=3.0, metavar="X", help="one in X goes on at a rung (default: 3)")
    add("--seed", type=int, default=1, metavar="N", help="of the draws (default: 1)")
    add("--max-concurrent", type=int, metavar="N", help="trials at once; default: as many as fit, on CPU one")
    add("--cpus-per-trial", type=float, metavar="N", help="CPU cores a trial; default: an even share of the cores")
    add("--gpus-per-trial", type=float, metavar="X", help="GPUs a trial, or a share of one; default: 0")
    add("--keep-checkpoints-num", type=int, default=1, metavar="N", help="trials whose weights stay (default: 1)")
    add("--suite", type=Path, metavar="FILE", help="suite whose training domains are searched on (with --held-out)")
    add("--held-out", metavar="DOMAIN", help="domain of the suite that no trial may see")
    add("--inner-folds", type=int, default=3, metavar="N", help="folds by law inside the training domains (default: 3)")
    add(
        "--ray-address", metavar="HOST:PORT", help="a Ray cluster; default: one on this machine, ended with the command"
    )
    add("--dry-run", action="store_true", help="check everything and show the trials; train nothing, write nothing")
    add("--quiet", action="store_true", help="only warnings and the final table")
    return parser


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _resources(args: argparse.Namespace, devices: int, scheduler: str) -> Resources:
    from lightning_nli.tuning.search import Resources

    gpus = args.gpus_per_trial or 0
    concurrent = args.max_concurrent if args.max_concurrent is not None else (0 if gpus else 1)
    if concurrent < 0 or gpus < 0:
        raise UserError("--max-concurrent and --gpus-per-trial must not be below 0")
    if gpus and gpus < devices and devices > 1:
        raise UserError(f"--gpus-per-trial {gpus:g}, but a trial trains on {devices} devices (engine.devices)")
    share = max(devices, _cores() // max(1, concurrent))
    cpus = args.cpus_per_trial if args.cpus_per_trial is not None else float(share)
    if cpus < 1:
        raise UserError(f"--cpus-per-trial must be at least 1, got {cpus:g}")
    if scheduler in ("pbt", "hyperband") and args.max_concurrent:  # their paused trials must not count
        if args.ray_address:
            raise UserError(
                f"--max-concurrent with --scheduler {scheduler} on a cluster: give --cpus-per-trial instead"
            )
        cpus = max(cpus, float(_cores() // concurrent))
    return Resources(cpus=cpus, gpus=gpus, max_concurrent=concurrent, ray_address=args.ray_address)


def _request(args: argparse.Namespace, threads: int) -> Request:
    from lightning_nli.tuning.plan import Request

    return Request(
        config=args.config,
        space=args.space,
        metric=args.metric,
        num_samples=args.num_samples,
        search=args.search,
        scheduler=args.scheduler,
        seed=args.seed,
        grace_epochs=args.grace_epochs,
        reduction_factor=args.reduction_factor,
        keep=args.keep_checkpoints_num,
        threads=threads,
        suite=args.suite,
        held_out=args.held_out,
        inner_folds=args.inner_folds,
    )


def _start(args: argparse.Namespace) -> int:
    from lightning_nli.config import load_config
    from lightning_nli.tuning.plan import plan_sweep
    from lightning_nli.tuning.sweep import Sweep, create_sweep

    devices = load_config(args.config).engine.devices
    resources = _resources(args, devices, args.scheduler)
    spec = plan_sweep(_request(args, max(1, int(resources.cpus // devices))))
    folder = args.tune_dir or Path("runs") / "tune" / f"{args.config.stem}-{args.space.stem}"
    if args.dry_run:
        return _dry_run(Sweep(folder, spec), resources)
    sweep = create_sweep(folder, spec)
    with _only_driver(folder):
        if spec.suite:
            from lightning_nli.tuning.inner import prepare_folds

            scheme = prepare_folds(folder / "folds", Path(spec.suite), str(spec.held_out), spec.inner_folds)
            sweep = _rewrite(replace(sweep, spec=replace(spec, scheme=scheme)))
        return _run(sweep, resources, quiet=args.quiet)


def _is_first_launch(args: argparse.Namespace) -> bool:
    """Whether `--resume` stands in a command that a batch script repeats, and this is its first time."""
    folder = args.tune_dir
    return folder is not None and args.config is not None and args.space is not None and not folder.exists()


def _rewrite(sweep: Sweep) -> Sweep:
    from lightning_nli.tuning.sweep import save_spec

    save_spec(sweep)
    return sweep


def _resume(args: argparse.Namespace) -> int:
    from lightning_nli.tuning.plan import plan_sweep
    from lightning_nli.tuning.sweep import open_sweep

    if args.tune_dir is None:
        raise UserError("--resume needs --tune-dir DIR, the folder of the sweep")
    sweep = open_sweep(args.tune_dir)
    devices = sweep.spec.config.engine.devices
    resources = _resources(args, devices, sweep.spec.scheduler)
    if (args.config is None) != (args.space is None):
        raise UserError("--resume takes --config and --space together, to compare them with the sweep's, or neither")
    if args.config is not None:
        asked = plan_sweep(_request(args, sweep.spec.config.engine.threads or 1))
        changed = sweep.spec.differences(asked)
        if changed:
            raise UserError(
                f"{args.tune_dir} was begun with other settings: {'; '.join(changed)}; give another --tune-dir"
            )
    if args.num_samples is not None and args.num_samples != sweep.spec.num_samples:
        if args.num_samples < sweep.spec.num_samples or sweep.spec.search == "grid":
            raise UserError(f"the sweep has {sweep.spec.num_samples} trials; --resume can only add to a drawn sweep")
        sweep = _rewrite(replace(sweep, spec=replace(sweep.spec, num_samples=args.num_samples)))
    with _only_driver(args.tune_dir):
        return _run(sweep, resources, quiet=args.quiet)


@contextmanager
def _only_driver(folder: Path) -> Iterator[None]:
    with (folder / "driver.lock").open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"another lnli tune works on {folder}; wait for it, or stop it") from None
        yield


def _dry_run(sweep: Sweep, resources: Resources) -> int:
    from lightning_nli.tuning.plan import drawn_settings
    from lightning_nli.tuning.report import show_settings

    spec = sweep.spec
    lines = [
        f"folder: {sweep.folder}",
        f"{spec.num_samples} trials, {spec.search} search, scheduler {spec.scheduler}, {spec.max_epochs} epochs",
        f"chosen by {' and '.join(spec.metrics)}"
        + (f", mean over {spec.inner_folds} inner folds" if spec.suite else ""),
        f"a trial takes {resources.cpus:g} CPUs and {resources.gpus:g} GPUs; "
        f"{spec.config.engine.threads} threads a process",
    ]
    lines += [f"{number:03d}  {show_settings(settings)}" for number, settings in enumerate(drawn_settings(spec), 1)]
    sys.stdout.write("\n".join([*lines, "dry run: nothing was trained", ""]))
    return 0


def _run(sweep: Sweep, resources: Resources, *, quiet: bool) -> int:
    from lightning_nli.cli.main import EXIT_SAVED
    from lightning_nli.tuning.disk import BYTES_PER_PARAMETER, check_disk
    from lightning_nli.tuning.plan import check_once
    from lightning_nli.tuning.report import best_line, write_results
    from lightning_nli.tuning.search import run_search

    def tell(line: str) -> None:
        if not quiet:
            sys.stderr.write(line + "\n")

    def prepare() -> int:
        found = check_once(sweep) if sweep.spec.worker is None else {"parameters": 0, "train_rows": 0, "val_rows": 0}
        checkpoint_bytes = BYTES_PER_PARAMETER * int(found["parameters"])
        tell(
            f"rows: train {found['train_rows']}, id_val {found['val_rows']}; "
            f"{found['parameters'] / 1e6:.1f}M trained parameters"
        )
        tell(check_disk(sweep, checkpoint_bytes, resources.max_concurrent or max(1, int(_cores() // resources.cpus))))
        return checkpoint_bytes

    reason = run_search(sweep, resources, prepare=prepare, tell=tell) if sweep.is_unfinished else None
    if reason:
        sys.stderr.write(f"lnli: stopped ({reason}); {best_line(sweep)}\n")
        sys.stderr.write(f"lnli: lnli tune --resume --tune-dir {sweep.folder} goes on\n")
        return EXIT_SAVED
    sys.stdout.write(write_results(sweep))
    return 0


def _work(ledger: Path) -> int:
    set_up_logging()
    from lightning_nli.cli.main import EXIT_SAVED
    from lightning_nli.training.signals import Stopped
    from lightning_nli.tuning.worker import run_task

    silence_libraries()
    try:
        run_task(ledger)
    except Stopped as stopped:
        sys.stderr.write(f"lnli: stopped ({stopped})\n")
        return EXIT_SAVED
    return 0


def _check(ledger: Path) -> int:
    set_up_logging(quiet=True)
    from lightning_nli.tuning.worker import check_task

    silence_libraries()
    sys.stdout.write(json.dumps(check_task(ledger)) + "\n")
    return 0
