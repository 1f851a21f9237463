"""`--augment`: one text that says which swapped premises join the training rows, and how labels stay in balance."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, cast

from lightning_nli.config_schema import ExperimentConfig
from lightning_nli.types import UserError

BALANCES = ("sample", "weight")

_GRAMMAR = (
    "none, or premise_swap=H+R with H hard and R random swaps a row, and after it ,cap=SHARE (of the training rows at "
    "most this share, between 0 and 1, have a swapped premise), ,balance=sample or ,balance=weight, ,run=FOLDER "
    "(hard swaps are those that this run still calls entailed)"
)


@dataclass(frozen=True)
class AugmentSpec:
    """A parsed `--augment`.

    Attributes:
        hard: Swaps a row that cover most words of its hypothesis, at most.
        random: Random ones.
        cap: Largest share of rows with a swapped premise among the training rows, or None.
        balance: What gives every label the share back that it had without swaps: rows of the others are repeated
            (`sample`), or a row's cross-entropy has the weight of its label (`weight`).
        run: Folder of the run whose mistakes are the hard swaps, or None.
    """

    hard: int
    random: int
    cap: float | None = None
    balance: Literal["none", "sample", "weight"] = "none"
    run: str | None = None

    @property
    def num_swaps(self) -> int:
        """Most swaps of one row."""
        return self.hard + self.random


def augment_spec(text: str) -> AugmentSpec | None:
    """`premise_swap=1+1,cap=0.5` -> `AugmentSpec(1, 1, cap=0.5)`; `none` -> None.

    Raises:
        UserError: it is neither, asks for no swap at all, or for hard swaps of a run without hard swaps.
    """
    if text == "none":
        return None
    first, *options = text.split(",")
    match = re.fullmatch(r"premise_swap=(\d{1,3})\+(\d{1,3})", first, flags=re.ASCII)
    given = dict(option.partition("=")[::2] for option in options)
    if match is None or int(match[1]) + int(match[2]) == 0 or len(given) != len(options):
        raise _unreadable(text)
    cap, balance, run = (given.pop(name, None) for name in ("cap", "balance", "run"))
    if given or (balance is not None and balance not in BALANCES) or run == "":
        raise _unreadable(text)
    if run is not None and int(match[1]) == 0:
        raise UserError(f"--augment '{text}': run=FOLDER chooses hard swaps, and none is asked for; take H above 0")
    return AugmentSpec(
        hard=int(match[1]),
        random=int(match[2]),
        cap=None if cap is None else _share(cap, text),
        balance=cast('Literal["none", "sample", "weight"]', balance or "none"),
        run=run,
    )


def _share(written: str, text: str) -> float:
    if not re.fullmatch(r"0?\.\d{1,6}", written, flags=re.ASCII) or float(written) == 0:
        raise _unreadable(text)
    return float(written)


def _unreadable(text: str) -> UserError:
    return UserError(f"--augment '{text}': write {_GRAMMAR}")


def check_augment(config: ExperimentConfig) -> None:
    """Refuse an `--augment` that cannot be read, or whose weights nothing would use.

    Raises:
        UserError: as `augment_spec`; `balance=weight` where the loss has weights or groups of its own, or none at all.
    """
    spec = augment_spec(config.augment)
    if spec is None or spec.balance != "weight":
        return
    if config.method != "finetune":
        raise UserError(f"--augment {config.augment} with --method {config.method}, which weighs no rows; take sample")
    if config.objective.startswith(("group_dro", "vrex", "domain_balanced", "reweight")):
        raise UserError(
            f"--augment {config.augment} with --objective {config.objective}, which weighs or draws rows in a way of "
            "its own; take balance=sample"
        )
