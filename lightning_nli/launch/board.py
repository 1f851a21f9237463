"""The jobs of a board: an array of runners, and the leaderboard once they have ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from lightning_nli.launch.slurm import JobSpec
from lightning_nli.types import UserError

_PAGE_MINUTES = "30"


def board_jobs(
    common: JobSpec, board: Path, models: Sequence[str], *, runners: int, retry_failed: bool = False
) -> list[JobSpec]:
    """An array of `runners` on one board, each taking cells until none is missing; then the board as a page.

    Args:
        common: Resources of a runner; its command and array are set here.
        board: Folder that every node sees.
        models: What to run.
        runners: Tasks of the array.
        retry_failed: Run failed cells again.

    Raises:
        UserError: there is no runner, or a runner is to be more than one process.
    """
    if runners < 1:
        raise UserError(f"a board needs at least 1 runner, got {runners}")
    if common.nodes != 1 or common.tasks_per_node != 1:
        raise UserError(
            "a cell of a board runs in one process: leave --nodes and --tasks-per-node at 1, give a runner one GPU, "
            "and take more runners (--array N)"
        )
    work = ("lnli", "cross-domain", "work", str(board), "--models", ",".join(models))
    page = ("lnli", "leaderboard", str(board), "--html", str(board / "board.html"), "--force")
    return [
        replace(common, command=(*work, *(("--retry-failed",) if retry_failed else ())), array=f"0-{runners - 1}"),
        replace(common, name=f"{common.name}-board", command=page, gpus_per_node=0, requeue=False, time=_PAGE_MINUTES),
    ]
