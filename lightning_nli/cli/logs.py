"""Quiet libraries, readable lines."""

from __future__ import annotations

import logging
import os
import sys
import warnings


def set_up_logging(*, quiet: bool = False) -> None:
    """Our own lines at INFO in the first process (warnings only with `quiet`), errors only in the others.

    Warnings of the libraries underneath are dropped: what a user must know, we say ourselves.
    """
    first = os.environ.get("LOCAL_RANK", "0") == "0" and os.environ.get("SLURM_PROCID", "0") == "0"
    level = logging.ERROR if not first else logging.WARNING if quiet else logging.INFO
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
    ours = logging.getLogger("lightning_nli")
    ours.handlers[:] = [handler]
    ours.setLevel(level)
    ours.propagate = False
    warnings.filterwarnings("ignore")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    os.environ.setdefault("DS_LOG_LEVEL", "error")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")


def silence_libraries() -> None:
    """Errors only from the libraries underneath; to be called once they are imported (they set their own levels)."""
    for name in (
        "pytorch_lightning",
        "lightning_fabric",
        "lightning",
        "transformers",
        "DeepSpeed",
        "torch.distributed",
    ):
        logging.getLogger(name).setLevel(logging.ERROR)
        for known in list(logging.root.manager.loggerDict):
            if known.startswith(f"{name}."):
                logging.getLogger(known).setLevel(logging.ERROR)
