"""Cases P05 to P07: flash kernels of other versions, in fp32, or not there."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch
from transformers import AutoConfig, AutoModelForSequenceClassification

import lightning_nli
from lightning_nli.cli.main import main
from lightning_nli.config import EngineConfig
from lightning_nli.data.readers import read_source
from lightning_nli.models import attention, fused
from lightning_nli.models.attention import AttentionBackend, choose_backend, varlen_attention
from lightning_nli.models.encoder import wrap_encoder
from lightning_nli.models.padded import PaddedEncoder
from lightning_nli.training.strategy import resolve_attention
from lightning_nli.training.trained import open_run
from lightning_nli.types import UserError

FIT = "--data sample:60 --model tiny --lr 1e-3 --epochs 1 --max-length 64 --accelerator cpu --quiet".split()


@pytest.mark.parametrize("further", [None, 1, 2])
def test_p05_flash_attn_may_return_more_than_the_output(monkeypatch, further):
    """The package is not here: a stand-in with its signature, which computes by the reference."""

    def kernel(q, k, v, cu_q, cu_k, longest_q, longest_k, *, dropout_p, softmax_scale, window_size):
        window = None if window_size == (-1, -1) else window_size[0]
        out = varlen_attention(
            q, k, v, cu_q, longest_q, backend=AttentionBackend.SDPA, scaling=softmax_scale, window=window
        )
        return out if further is None else (out, *[torch.zeros(1)] * further)

    package = ModuleType("flash_attn")
    package.flash_attn_varlen_func = kernel
    monkeypatch.setitem(sys.modules, "flash_attn", package)
    random = torch.Generator().manual_seed(0)
    q, k, v = torch.randn(3, 9, 2, 4, generator=random)
    cu_seqlens = torch.tensor([0, 3, 9], dtype=torch.int32)
    found, expected = (
        varlen_attention(q, k, v, cu_seqlens, 6, backend=backend)
        for backend in (AttentionBackend.FLASH, AttentionBackend.SDPA)
    )
    torch.testing.assert_close(found, expected)


def test_p05_no_helper_whose_values_are_counted_is_used():
    """Packs are laid out by `collate_pack`; nothing is unpadded by the package's helper."""
    for path in Path(lightning_nli.__file__).parent.rglob("*.py"):
        assert "unpad_input" not in path.read_text(encoding="utf-8"), path


@pytest.fixture(scope="module")
def half_runs(tmp_path_factory):
    """Runs trained in half precision, and the types of what reached attention in training and validation."""
    found = {}
    real, real_layer = attention.packed_attention, fused.native_self_attention
    for precision in ("bf16", "bf16-autocast"):
        seen = SimpleNamespace(training=set(), validation=set())

        def note(*tensors, seen=seen):
            kinds = {x.dtype for x in tensors}
            if torch.is_inference_mode_enabled():
                seen.validation |= kinds
            elif torch.is_grad_enabled():  # not the probe at load, which compares in fp32
                seen.training |= kinds

        def watched(q_TNH, k_TNH, v_TNH, *args, note=note, **options):
            note(q_TNH, k_TNH, v_TNH)
            return real(q_TNH, k_TNH, v_TNH, *args, **options)

        def watched_layer(attention, *tensors, note=note):
            note(*tensors)
            return real_layer(attention, *tensors)

        folder = tmp_path_factory.mktemp(precision) / "run"
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(attention, "packed_attention", watched)
            patch.setattr(fused, "native_self_attention", watched_layer)
            assert main(["fit", *FIT, "--precision", precision, "--run-dir", str(folder)]) == 0
            fitted = SimpleNamespace(training=set(seen.training), validation=set(seen.validation))
            seen.validation.clear()
            assert main(["test", str(folder), "--quiet"]) == 0
            tested = set(seen.validation)
            seen.validation.clear()
            rows = folder.parent / "rows.csv"
            read_source("sample:20").frame.select("premise", "hypothesis").write_csv(rows)
            assert main(["predict", str(folder), str(rows), str(folder.parent / "out.jsonl"), "--quiet"]) == 0
        found[precision] = SimpleNamespace(folder=folder, fitted=fitted, tested=tested, predicted=seen.validation)
    return found


@pytest.mark.parametrize("precision", ["bf16", "bf16-autocast"])
def test_p06_half_precision_reaches_attention_in_training_validation_test_and_predict(half_runs, precision):
    run = half_runs[precision]
    for kinds in (run.fitted.training, run.fitted.validation, run.tested, run.predicted):
        assert kinds == {torch.bfloat16}


@pytest.mark.parametrize("kernel", ["flash", "varlen"])
def test_p06_fp32_with_a_flash_kernel_is_refused_and_auto_takes_another(kernel):
    with pytest.raises(UserError, match=f"--attention {kernel} takes half precision only; with fp32 take bucketed"):
        resolve_attention(EngineConfig(attention=kernel), "gpu", "fp32")
    assert resolve_attention(EngineConfig(), "gpu", "fp32") == "bucketed"


@pytest.mark.parametrize("kernel", ["flash", "varlen"])
def test_p07_a_kernel_without_a_gpu_is_refused_before_anything_loads(tmp_path, capsys, kernel):
    flags = ["--data", "plain:absent.csv", "--model", "absent/model", "--accelerator", "cpu"]
    assert main(["fit", *flags, "--attention", kernel, "--run-dir", str(tmp_path / "run")]) == 2
    error = capsys.readouterr().err.strip()
    assert f"--attention {kernel} needs a GPU" in error and len(error.splitlines()) == 1
    assert not (tmp_path / "run").exists()


def test_p07_the_absent_package_and_the_architecture_are_named(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match="--attention flash needs the package flash-attn: pip install"):
        choose_backend("flash", torch.device("cuda"))
    assert choose_backend("auto", torch.device("cuda")) is AttentionBackend.VARLEN
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    deberta = AutoModelForSequenceClassification.from_config(AutoConfig.for_model("deberta-v2", vocab_size=9, **sizes))
    with pytest.raises(UserError, match="--attention flash: deberta-v2 cannot be packed"):
        wrap_encoder(deberta, "flash", torch.device("cuda"))


def test_p07_auto_writes_its_choice_and_scores_as_padded(half_runs):
    folder = half_runs["bf16"].folder
    result = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    assert (result["encoder"]["road"], result["cost"]["attention"]) == ("packed", "bucketed")
    frame = read_source("sample:40").frame
    scorer = open_run(folder, precision="fp32").scorer
    with torch.no_grad():  # a tiny random model answers all rows alike: larger weights tell them apart
        for parameter in scorer.encoder.parameters():
            parameter.mul_(10 if parameter.dim() > 1 else 1)
    packed = torch.from_numpy(scorer.logits(frame))
    scorer.encoder, scorer.first_position = PaddedEncoder(scorer.encoder.release()), 0
    padded = torch.from_numpy(scorer.logits(frame))
    assert padded.std(0).min() > 0.01
    torch.testing.assert_close(packed, padded, rtol=1e-4, atol=1e-4)
