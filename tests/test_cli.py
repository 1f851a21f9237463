"""Exit codes, help with examples, and one-line errors."""

from __future__ import annotations

import subprocess
import sys

import pytest

from lightning_nli.cli.main import main
from lightning_nli.config import leaf_names


def run(*arguments: str, **options) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "lightning_nli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, **options)


def test_help_names_every_command_and_gives_examples(capsys):
    for arguments in ([], ["--help"], ["help"]):
        assert main(arguments) == 0
        text = capsys.readouterr().out
        for word in ("fit", "test", "predict", "export", "data", "stage", "examples:", "75"):
            assert word in text


COMMANDS = [
    *"fit test predict export consolidate stage score doctor data cross-domain leaderboard tune".split(),
    *"submit analyze explain".split(),
    "data check",
    "data convert",
    "data split",
    "analyze data",
    "analyze runs",
]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_examples(command, capsys):
    try:
        assert main([*command.split(), "--help"]) == 0
    except SystemExit as leave:
        assert leave.code == 0  # argparse leaves by itself
    usage, _, examples = capsys.readouterr().out.partition("examples:")
    assert f"usage: lnli {command}" in usage
    assert f"lnli {command}" in examples


def test_every_command_is_tested_here(capsys):
    main(["--help"])
    listed = capsys.readouterr().out.partition("commands:\n")[2].partition("\n\n")[0]
    assert {line.split()[0] for line in listed.splitlines()} == {command.split()[0] for command in COMMANDS}


def test_fit_help_names_every_setting(capsys):
    assert main(["fit", "--help"]) == 0
    words = set(capsys.readouterr().out.split())
    assert {f"--{leaf.replace('_', '-')}" for leaf in leaf_names()} | {"--config", "--quiet", "--dry-run"} <= words


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("lightning-nli ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["fot"], "did you mean 'lnli fit'"),
        (["frobnicate"], "unknown command 'frobnicate' (lnli --help lists them)"),
        (["fit", "--epoch", "2"], "did you mean 'optim.epochs'"),
        (["fit", "--unknown", "1"], "command line: unknown setting '--unknown'"),
        (["fit", "--precision", "bf17"], "--precision: expected one of auto, fp32, bf16, bf16-autocast, fp16, got"),
        (["fit", "--max-time", "soon", "--model", "tiny", "--data", "sample:60"], "soon"),
        (["fit", "--augment", "foo", "--model", "tiny", "--data", "sample:60"], "foo"),
        (["fit", "--test-data", "foo", "--model", "tiny", "--data", "sample:60"], "--test-data takes NAME=SOURCE"),
        (["fit", "--data", "absent.csv"], "absent.csv"),
        (["fit", "--data", "vilegalnly:x"], "vilegalnli"),
        (["fit", "--model", "absent/model", "--data", "sample:60"], "absent/model"),
        (["test", "absent-run"], "absent-run is not a run folder"),
        (["predict", "absent-run", "-", "-"], "absent-run is not a run folder"),
        (["export", "absent-run", "out"], "absent-run is not a run folder"),
        (["data", "check", "absent.csv"], "absent.csv"),
    ],
)
def test_a_users_mistake_is_one_line_and_exit_code_2(arguments, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error
    assert len([line for line in error.splitlines() if line.startswith("lnli: ")]) == 1
    assert not list(tmp_path.iterdir())  # nothing half-made is left behind


def test_the_console_command_leaves_with_the_code(tmp_path):
    done = run("fit", "--data", "absent.csv", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("lnli: ")
    assert run("--help").returncode == 0


def test_q05_an_ascii_locale_does_not_stop_vietnamese_output(tmp_path):
    source = tmp_path / "mine.jsonl"
    source.write_text(
        '{"premise": "Điều 1 có hiệu lực.", "hypothesis": "Đúng.", "label": "entailment"}\n', encoding="utf-8"
    )
    environment = {"LC_ALL": "C", "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0", "PATH": ""}
    done = run("data", "check", str(source), env=environment)
    assert done.returncode == 0, done.stderr
