"""The kill matrix: every signal, at every moment, in every setup; the table goes into docs/RELIABILITY.md.

python tests/reliability/kill_matrix.py [--write] [SETUP NUMBER ...]
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from ranks import MOMENTS, SETUPS, SIGNALS, fit, run_cell, write_part

MOMENT_WORDS = {"step": "in a step", "validation": "in validation", "write": "in a checkpoint write"}


def run_setup(setup: str, folder: Path) -> list[dict[str, Any]]:
    """All cells of a setup, after one undisturbed run."""
    plain = folder / "undisturbed"
    outcome = fit(plain, setup)
    assert set(outcome.codes) == {0}, outcome.errors
    cells = []
    for signal_name in SIGNALS:
        for moment in MOMENTS:
            cell = run_cell(folder / f"{signal_name}-{moment}", plain, setup, signal_name, moment)
            cells.append(cell)
            shown = {name: value for name, value in cell.items() if name != "log"}
            sys.stderr.write(json.dumps(shown) + "\n" + ("" if cell["is_as_wanted"] else cell["log"] + "\n"))
    return cells


def render(cells: list[dict[str, Any]], minutes: float) -> str:
    """The table, in Markdown."""
    lines = [
        "| setup | signal | moment | exit codes | goes on from step | largest difference of a weight | |",
        "|---|---|---|---|---|---|---|",
    ]
    for cell in cells:
        difference = "-" if cell["difference"] is None else f"{cell['difference']:.1e}" if cell["difference"] else "0"
        values = [
            cell["setup"],
            f"SIG{cell['signal']}",
            MOMENT_WORDS[cell["moment"]],
            ", ".join(map(str, cell["codes"])),
            "-" if cell["resumed_from_step"] is None else str(cell["resumed_from_step"]),
            difference,
            "as undisturbed" if cell["is_as_wanted"] else "**differs**",
        ]
        lines.append(f"| {' | '.join(values)} |")
    good = sum(cell["is_as_wanted"] for cell in cells)
    lines += ["", f"{good} of {len(cells)} cells end as the undisturbed run ({minutes:.0f} minutes)."]
    return "\n".join(lines)


def main() -> int:
    chosen = [int(word) for word in sys.argv[1:] if word.isdigit()]
    setups = [setup for number, setup in enumerate(SETUPS) if not chosen or number in chosen]
    started = time.monotonic()
    cells: list[dict[str, Any]] = []
    for setup in setups:
        with tempfile.TemporaryDirectory() as scratch:
            cells += run_setup(setup, Path(scratch))
    table = render(cells, (time.monotonic() - started) / 60)
    sys.stdout.write(table + "\n")
    if "--write" in sys.argv:
        write_part("kill matrix", table)
    return 0 if all(cell["is_as_wanted"] for cell in cells) else 1


if __name__ == "__main__":
    sys.exit(main())
