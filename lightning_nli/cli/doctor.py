"""`lnli doctor`."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

from lightning_nli.cli.logs import set_up_logging

if TYPE_CHECKING:
    from lightning_nli.cli.diagnosis import Finding

_EPILOG = """\
examples:
  lnli doctor                          the machine: packages, GPU, attention, DeepSpeed, SLURM, models, cache
  lnli doctor --model phobert-base     what that model needs besides, and whether it is here
  lnli doctor --json > machine.json    the same as one JSON object, to go with a report of a fault

States: ok; note, worth knowing; missing, some options do not run without it; broken, nothing runs without it.
Exit code 2 if anything is broken, else 0. Nothing is changed and nothing is downloaded.
"""
_COLORS = {"ok": "green", "note": "blue", "missing": "yellow", "broken": "red"}


def main(argv: list[str]) -> int:
    """Look, print, say by the exit code whether anything can run."""
    parser = argparse.ArgumentParser(
        prog="lnli doctor",
        description="Show what this machine has for a run, and the command that gets what is missing.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", metavar="NAME", help="also what this --model needs: an alias, hub name or folder")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    given = parser.parse_args(argv)
    set_up_logging(quiet=True)
    from lightning_nli.cli.diagnosis import State, diagnose
    from lightning_nli.cli.diagnosis_model import diagnose_model

    findings, machine = diagnose()
    if given.model is not None:
        findings += diagnose_model(given.model, machine)
    broken = any(finding.state is State.BROKEN for finding in findings)
    if given.json:
        report = {"ok": not broken, "findings": [asdict(finding) for finding in findings]}
        sys.stdout.write(json.dumps(report, ensure_ascii=False, indent=1) + "\n")
    else:
        _print(findings)
    return 2 if broken else 0


def _print(findings: list[Finding]) -> None:
    """The table, a line between parts, and below it the commands that mend."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console(highlight=False)
    table = Table("part", "what", "state")
    table.add_column("detail", overflow="fold")
    shown = ""
    for finding in findings:
        if finding.part != shown and shown:
            table.add_section()
        color = _COLORS[finding.state]
        part = "" if finding.part == shown else escape(finding.part)
        table.add_row(part, escape(finding.name), f"[{color}]{finding.state}[/]", escape(finding.detail))
        shown = finding.part
    console.print(table)
    for finding in findings:
        if finding.mend:
            console.print(
                f"{escape(finding.part)}, {escape(finding.name)}: [bold]{escape(finding.mend)}[/]", soft_wrap=True
            )
