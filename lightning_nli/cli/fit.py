"""`lnli fit`."""

from __future__ import annotations

import os
import sys

from lightning_nli.cli.logs import set_up_logging, silence_libraries
from lightning_nli.config import config_help, parse_config, run_folder

_HELP = """\
usage: lnli fit [--config FILE] [--SETTING VALUE ...] [--quiet] [--dry-run]

Train a model and score it. Everything goes into one run folder: settings, checkpoints, predictions, result.json,
TensorBoard files. Settings come from --config FILE and from flags; flags win, in any order. Names may be given
bare (--lr 1e-4, --batch-size 16) or dotted (--optim.lr 1e-4); in YAML a setting stands under its group's name.

examples:
  lnli fit                                             e5-small on the embedded corpus
  lnli fit --data my.csv --model xlm-roberta-base      your own file: columns premise, hypothesis, label
  lnli fit --data vilegalnli:DIR --lr 1e-5 --epochs 5 --accumulate 2
  lnli fit --data vilegalnli:DIR --augment premise_swap=1+1
  lnli fit --data wills:DIR --method setfit --model e5-small --num-iterations 20
  lnli fit --data vilegalnli:DIR --strategy deepspeed --devices 8
  lnli fit --config experiments/demo.yaml --seed 2 --resume auto

  --config FILE     settings from a YAML file (repeat for several; later ones win)
  --quiet           only warnings and the final table
  --dry-run         read the data, build the model, say what would run, train nothing

"""


def main(argv: list[str]) -> int:
    """Parse, train, print."""
    if "-h" in argv or "--help" in argv:
        sys.stdout.write(_HELP + config_help())
        return 0
    quiet, dry_run = "--quiet" in argv, "--dry-run" in argv
    config = parse_config([flag for flag in argv if flag not in ("--quiet", "--dry-run")])
    set_up_logging(quiet=quiet)
    if config.engine.strategy.startswith("deepspeed") and config.engine.accelerator == "cpu":
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    from lightning_nli.cli.main import EXIT_SAVED
    from lightning_nli.cli.report import explain_scores, print_scores
    from lightning_nli.training.callbacks import Stopped
    from lightning_nli.training.run import describe_run, train
    from lightning_nli.training.signals import deafen
    from lightning_nli.training.strategy import is_first_process

    silence_libraries()
    folder = run_folder(config)
    if dry_run:
        sys.stdout.write(describe_run(config))
        return 0
    try:
        result = train(config, quiet=quiet)
    except Stopped as stopped:
        if config.engine.devices * config.engine.num_nodes > 1:
            deafen()
        if is_first_process():
            sys.stderr.write(f"lnli: stopped ({stopped}); saved in {folder}: run the same command with --resume auto\n")
        return EXIT_SAVED
    if not is_first_process():
        return 0
    print_scores(result["scores"], title=f"{folder} (percent)")
    if not quiet:
        sys.stdout.write(explain_scores(result["scores"]) + "\n")
    cost = result["cost"]
    speed = "" if cost["train_examples_per_s"] is None else f", training {cost['train_examples_per_s']:.1f} examples/s"
    sys.stdout.write(f"run folder: {folder} ({cost['wall_s']:.0f} s in all{speed})\n")
    return 0
