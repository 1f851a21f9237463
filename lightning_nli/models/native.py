"""The C kernels of `kernels.c`, compiled for this processor at first use and kept in the cache folder.

They serve bf16 on a CPU only; where they cannot be had (`--native-kernels off`, no C compiler), the same formulas run
as torch's own operations.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import logging
import os
import platform
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lightning_nli.config import cache_root

log = logging.getLogger(__name__)

_SOURCE = Path(__file__).with_name("kernels.c")
_FLAGS = ["-O3", "-march=native", "-fopenmp", "-shared", "-fPIC"]
_FLAGS += ["-mprefer-vector-width=512"] * (platform.machine() == "x86_64")
_FLAGS += ["-fno-math-errno", "-fno-trapping-math", "-fno-signed-zeros", "-fassociative-math"]  # NaN stays NaN
_COMPILERS = ("cc", "gcc", "clang")
_TYPES: dict[str, Any] = {
    "p": ctypes.c_void_p,  # a tensor, or None
    "i": ctypes.c_int64,
    "f": ctypes.c_float,
    "u": ctypes.c_uint32,
    "s": ctypes.c_uint64,
}
_ARGUMENTS = {  # of each function, without the number of threads that comes last
    "transpose": "ppii",
    "bias_gelu": "pppii",
    "bias_gelu_backward": "ppppppii",
    "bias_dropout_add_norm": "ppppppppiifufs",
    "bias_dropout_add_norm_backward": "pppppppppiiufs",
    "gather_rows": "pippppiiiif",
    "scatter_rows": "ppippiiiif",
    "masked_softmax": "pppiiiiufs",
    "masked_softmax_backward": "ppppiiiufs",
}


class Kernels:
    """The compiled functions by their names in `kernels.c`; tensors are passed as they are and must be contiguous."""

    def __init__(self, library: ctypes.CDLL) -> None:
        for name, letters in _ARGUMENTS.items():
            function = getattr(library, name)
            function.argtypes = [*(_TYPES[letter] for letter in letters), ctypes.c_int]
            function.restype = None
            setattr(self, name, self._taking_tensors(function))

    @staticmethod
    def _taking_tensors(function: Any) -> Callable[..., None]:
        def call(*values: Any) -> None:
            given = (value.data_ptr() if isinstance(value, Tensor) else value for value in values)
            function(*given, torch.get_num_threads())

        return call

    def __getattr__(self, name: str) -> Callable[..., None]:
        raise AttributeError(name)  # for the type checker: every function is set in `__init__`


class _Switch:
    """Whether the kernels may be used at all in this process."""

    is_on = True


def use_native_kernels(wanted: bool) -> None:
    """Turn the kernels on or off for this process."""
    _Switch.is_on = wanted


def kernels_for(*tensors: Tensor) -> Kernels | None:
    """The kernels, if these tensors are all bf16 on a CPU and they can be had here."""
    if not _Switch.is_on or any(x.dtype is not torch.bfloat16 or x.device.type != "cpu" for x in tensors):
        return None
    return load_kernels()


@functools.cache
def load_kernels() -> Kernels | None:
    """Compile the kernels, or find them compiled; None (and a line in the log) where that fails."""
    try:
        return Kernels(ctypes.CDLL(str(compiled_kernels())))
    except (OSError, subprocess.SubprocessError) as error:
        log.warning("bf16 on this CPU runs without compiled kernels, slower: %s", error)
        return None


def compiled_kernels() -> Path:
    """The library, compiled if this processor and compiler have not had it yet.

    Raises:
        OSError: there is no compiler or no room.
        subprocess.SubprocessError: the compiler fails.
    """
    compiler = find_compiler()
    if compiler is None:
        raise FileNotFoundError("no C compiler was found (apt-get install gcc, or set CC)")
    target = cache_root() / "kernels" / f"{_fingerprint(compiler)}.so"
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_suffix(f".{os.getpid()}.partial")
    try:
        done = subprocess.run(
            [compiler, *_FLAGS, "-o", str(partial), str(_SOURCE), "-lm"], capture_output=True, text=True
        )
        if done.returncode:
            raise OSError(f"{compiler} failed: {(done.stderr.strip().splitlines() or ['no message'])[-1]}")
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
    return target


def find_compiler() -> str | None:
    """`CC` or the first C compiler on the path."""
    names = (os.environ["CC"],) if os.environ.get("CC") else _COMPILERS
    return next((found for name in names if (found := shutil.which(name))), None)


def _fingerprint(compiler: str) -> str:
    """Of all that the library depends on: source, flags, compiler, instruction set."""
    version = subprocess.run([compiler, "--version"], capture_output=True, text=True).stdout
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        processor = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    except OSError:
        processor = platform.processor()
    parts = (_SOURCE.read_text(encoding="utf-8"), *_FLAGS, version, platform.machine(), processor)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def dropout_arguments(p: float) -> tuple[int, float, int]:
    """(threshold, scale, seed) of a mask that drops a share of `p`; torch's generator seeds it."""
    if p == 0:
        return 0, 1.0, 0
    return min(round(p * 2**32), 2**32 - 1), 1 / (1 - p), int(torch.randint(2**62, ()))
