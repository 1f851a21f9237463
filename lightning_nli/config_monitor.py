"""Names of scores that may choose a checkpoint or steer a sweep: `id_val/` and the path of a score in result.json."""

from __future__ import annotations

import re

from lightning_nli.types import UserError

MONITOR_PREFIX = "id_val/"

_KNOWN = re.compile(
    r"id_val/(accuracy|macro_precision|macro_recall|macro_f1|loss|group_accuracy"
    r"|premise\.(discrimination|random_swap|rank)|hard\.balanced|per_class\.\w+\.(precision|recall|f1))"
)


def check_monitor(name: str, option: str = "--monitor") -> str:
    """Return `name` if it is a score of `id_val`.

    Raises:
        UserError: it is none.
    """
    if not _KNOWN.fullmatch(name):
        raise UserError(
            f"{option} '{name}' is no score of id_val; take id_val/ and one of macro_f1, accuracy, loss, "
            "macro_precision, macro_recall, group_accuracy, premise.discrimination, premise.random_swap, premise.rank, "
            "hard.balanced, per_class.LABEL.f1 (or precision, recall)"
        )
    return name
