"""Exit codes, help with examples, and one-line errors."""

from __future__ import annotations

import subprocess
import sys

import pytest

from lightning_nli.cli.main import main


def run(*arguments: str, **options) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "lightning_nli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, **options)


def test_help_names_every_command_and_gives_examples(capsys):
    for arguments in ([], ["--help"], ["help"]):
        assert main(arguments) == 0
        text = capsys.readouterr().out
        for word in ("fit", "test", "predict", "export", "data", "stage", "examples:", "75"):
            assert word in text


@pytest.mark.parametrize("command", ["fit", "test", "predict", "export", "stage", "data"])
def test_every_command_has_help_with_examples(command, capsys):
    try:
        assert main([command, "--help"]) == 0
    except SystemExit as leave:
        assert leave.code == 0  # argparse leaves by itself
    assert f"lnli {command}" in (text := capsys.readouterr().out)
    assert "examples" in text


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("lightning-nli ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["fot"], "did you mean 'lnli fit'"),
        (["fit", "--epoch", "2"], "did you mean 'optim.epochs'"),
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


def test_an_ascii_locale_does_not_stop_vietnamese_output(tmp_path):
    source = tmp_path / "mine.jsonl"
    source.write_text(
        '{"premise": "Điều 1 có hiệu lực.", "hypothesis": "Đúng.", "label": "entailment"}\n', encoding="utf-8"
    )
    environment = {"LC_ALL": "C", "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0", "PATH": ""}
    done = run("data", "check", str(source), env=environment)
    assert done.returncode == 0, done.stderr
