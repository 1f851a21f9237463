"""VnCoreNLP, a word segmenter that runs in a Java machine inside this process, through the package `py_vncorenlp`."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from lightning_nli.types import UserError

FOLDER_VARIABLE = "LNLI_VNCORENLP"
OLDEST_JAVA = 8

_PACKAGE = "py_vncorenlp"
_FILES = ("VnCoreNLP-1.2.jar", "models/wordsegmenter/vi-vocab", "models/wordsegmenter/wordsegmenter.rdr")
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2)
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')  # "1.8.0_292" is Java 8, "17.0.15" is Java 17
_INSTEAD = "or take the segmenter 'pyvi', which is pure Python: pip install 'lightning-nli[vietnamese]'"


@dataclass(frozen=True)
class Java:
    """A Java runtime: its command, and its main version (8, 17); None where the command does not tell."""

    path: str
    version: int | None


def find_java() -> Java | None:
    """The Java runtime of `JAVA_HOME`, else the one on `PATH`; None where there is none."""
    home = os.environ.get("JAVA_HOME")
    path = shutil.which("java", path=f"{home}/bin") if home else None
    path = path or shutil.which("java")
    return Java(path, _java_version(path)) if path else None


@cache
def _java_version(path: str) -> int | None:
    try:
        done = subprocess.run([path, "-version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = _VERSION.search(done.stderr + done.stdout)
    return int(found[1]) if found else None


def check_vncorenlp() -> Path:
    """The model folder, made sure that Java, the package and the folder's files are there; nothing is loaded yet.

    Raises:
        UserError: names what is missing and the mend.
    """
    java = find_java()
    if java is None or java.version is None or java.version < OLDEST_JAVA:
        stands = "" if java is None else f" ({java.path} is of version {java.version or 'unknown'})"
        raise UserError(
            f"segmenter 'vncorenlp': Java {OLDEST_JAVA} or newer not found{stands}; install one, {_INSTEAD}"
        )
    if importlib.util.find_spec(_PACKAGE) is None:
        raise UserError(f"segmenter 'vncorenlp' is not installed: pip install {_PACKAGE}, {_INSTEAD}")
    folder = os.environ.get(FOLDER_VARIABLE)
    if not folder:
        raise UserError(
            f"segmenter 'vncorenlp': set {FOLDER_VARIABLE} to the folder that holds {_FILES[0]}, {_INSTEAD}"
        )
    for name in _FILES:
        if not (Path(folder) / name).is_file():
            raise UserError(f"segmenter 'vncorenlp': {FOLDER_VARIABLE}={folder} holds no {name}, {_INSTEAD}")
    return Path(folder).resolve()


def vncorenlp_version() -> str:
    """Version of the package and sizes of the segmenter's files, for cache keys."""
    folder = check_vncorenlp()
    sizes = [str((folder / name).stat().st_size) for name in _FILES]
    return "-".join([importlib.metadata.version(_PACKAGE), *sizes])


def load_vncorenlp() -> Callable[[str], str]:
    """Start Java and load the word segmenter; the current folder and the signal handlers are as before afterwards.

    Raises:
        UserError: something is missing, or Java does not start.
    """
    folder, before = check_vncorenlp(), Path.cwd()
    handlers = {number: signal.getsignal(number) for number in _SIGNALS}
    try:
        import jnius_config  # type: ignore[import-not-found,import-untyped]
        from py_vncorenlp import VnCoreNLP  # type: ignore[import-not-found,import-untyped]

        if not jnius_config.vm_running:
            jnius_config.add_options("-Xrs")  # TERM and INT do not end Java, and Python with it
        model = VnCoreNLP(annotators=["wseg"], save_dir=str(folder))  # makes `folder` the current one
    except Exception as error:
        reason = str(error).strip().split("\n")[0]
        raise UserError(f"segmenter 'vncorenlp' could not be started ({reason}); mend that, {_INSTEAD}") from error
    finally:
        os.chdir(before)
        _restore(handlers)
    return lambda text: " ".join(model.word_segment(text))


def _restore(handlers: dict[signal.Signals, Any]) -> None:
    """Java takes USR2 for itself, `-Xrs` or not; without this it would no longer stop a run."""
    if threading.current_thread() is threading.main_thread():
        for number, handler in handlers.items():
            if handler is not None:
                signal.signal(number, handler)
