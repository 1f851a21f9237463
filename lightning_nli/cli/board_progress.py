"""A board being run, as it stands in its folder: what each runner works on, and how many cells are done."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from lightning_nli.crossdomain.records import held_cells, missing_cells

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from lightning_nli.crossdomain.suite import Cell

_REFRESHES_PER_S = 1.0


class BoardView:
    """Renders a board's folder anew each time: a line a runner, wherever it runs, and a bar.

    Args:
        folder: Of the board.
        cells: All that are to be run.
    """

    def __init__(self, folder: Path, cells: Sequence[Cell]) -> None:
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )

        self.folder = folder
        self.cells = {cell.cell_id: cell for cell in cells}
        columns = (TextColumn("cells"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
        self._progress = Progress(*columns)
        self._task = self._progress.add_task("cells", total=len(self.cells), completed=self._done())

    def _done(self) -> int:
        return len(self.cells) - len(missing_cells(self.folder, list(self.cells)))

    def __rich__(self) -> RenderableType:
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        self._progress.update(self._task, completed=self._done())
        table = Table("runner", "model", "fold", "seed", "for", box=None, pad_edge=False)
        for held in held_cells(self.folder):
            cell = self.cells.get(held.cell_id)  # None: a runner of other models on the same board
            if cell is not None:
                minutes, seconds = divmod(max(0, round(time.time() - held.started)), 60)
                texts = (held.runner, cell.model, cell.fold, str(cell.seed), f"{minutes}:{seconds:02d}")
                table.add_row(*map(Text, texts))
        return Group(table, self._progress)


@contextmanager
def board_progress(
    folder: Path, cells: Sequence[Cell], *, quiet: bool, console: Console | None = None
) -> Iterator[None]:
    """Show a board while the block runs it; nothing where standard error is no terminal.

    Args:
        folder: Of the board.
        cells: All that are to be run.
        quiet: Show nothing.
        console: Where to; None: standard error.
    """
    from rich.console import Console
    from rich.live import Live

    console = console or Console(stderr=True)
    if quiet or not console.is_terminal:
        yield
        return
    with Live(BoardView(folder, cells), console=console, refresh_per_second=_REFRESHES_PER_S, transient=True):
        yield
