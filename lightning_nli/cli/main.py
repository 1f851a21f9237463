"""`lnli`: finds the subcommand's module, runs it, turns errors into exit codes."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence

from lightning_nli import __version__
from lightning_nli.types import UserError

EXIT_OUR_FAULT, EXIT_USAGE, EXIT_SAVED = 1, 2, 75

_COMMANDS = {
    "fit": "train a model, score it, write a run folder",
    "test": "score a run's model again, or on other data",
    "predict": "label pairs from a file or standard input",
    "export": "write a folder that Hugging Face pipelines load",
    "consolidate": "write a (sharded) checkpoint as one fp32 file",
    "score": "score any file of predictions",
    "analyze": "report on a corpus, or on what runs answered",
    "explain": "which words an answer rests on (LIME)",
    "data": "check, convert or split a corpus",
    "cross-domain": "train and test across fields of law",
    "leaderboard": "show what models reach on held-out fields of law",
    "tune": "search for settings with Ray Tune",
    "submit": "run a command as a SLURM job",
    "stage": "fetch and convert an offline encoder into the cache",
    "doctor": "what this machine has for a run, and how to get what is missing",
}

_HELP = """\
usage: lnli COMMAND [OPTIONS]

Train and compare natural language inference models on legal texts.

commands:
{commands}

examples:
  lnli fit                                        train e5-small on the embedded corpus
  lnli fit --data my.csv --model xlm-roberta-base --lr 2e-5 --epochs 3
  lnli fit --data vilegalnli:DIR --strategy deepspeed --devices 8
  lnli test runs/RUN --data other=my_test.csv
  lnli predict runs/RUN pairs.jsonl labels.jsonl
  lnli export runs/RUN model/
  lnli analyze runs runs/RUN --out report
  lnli tune --config BASE.yaml --space experiments/tune/rates.yaml

`lnli COMMAND --help` tells each command's options.
Exit codes: 0 done, 2 usage or bad input, 75 saved and to be run again, 1 a fault of ours.
"""


def _help() -> str:
    return _HELP.format(commands="\n".join(f"  {name:<13} {text}" for name, text in _COMMANDS.items()))


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line; returns the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        sys.stdout.write(_help())
        return 0
    if arguments[0] == "--version":
        sys.stdout.write(f"lightning-nli {__version__}\n")
        return 0
    name = arguments[0]
    if name not in _COMMANDS:
        import difflib

        near = difflib.get_close_matches(name, _COMMANDS, n=1)
        hint = f"; did you mean 'lnli {near[0]}'?" if near else ""
        return _fail(f"unknown command '{name}'{hint} (lnli --help lists them)")
    return _run(name, arguments[1:])


def _run(name: str, arguments: list[str]) -> int:
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # an ASCII locale must not stop a run over Vietnamese text
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")
    try:
        command = importlib.import_module(f"lightning_nli.cli.{name.replace('-', '_')}")
        return int(command.main(arguments))
    except UserError as error:
        return _fail(str(error))
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return _fail("interrupted", 130)


def _fail(message: str, code: int = EXIT_USAGE) -> int:
    sys.stderr.write(f"lnli: {message}\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
