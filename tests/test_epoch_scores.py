"""`--monitor` with scores that take a whole scoring after every epoch, on a vocabulary that is trimmed."""

from __future__ import annotations

import json

import pytest
from tiny_models import roberta_tokenizer, save_roberta_encoder
from tokenizers import models, pre_tokenizers

from lightning_nli.cli.main import main
from lightning_nli.config import ExperimentConfig, check_config
from lightning_nli.config_monitor import check_monitor
from lightning_nli.data.readers import read_source
from lightning_nli.data.tokenization import EncoderSpec, tokenize_split
from lightning_nli.training.corpora import RunData
from lightning_nli.training.epoch_scores import RunWatch, find_score, swapped_tokens
from lightning_nli.training.index import CheckpointIndex
from lightning_nli.training.result import read_result
from lightning_nli.types import BINARY, UserError

METRIC = "id_val/premise.discrimination"


def word_tokenizer(frame):
    """Every word of a corpus is a token, and three times as many tokens are in no text."""
    words = sorted({word for name in ("premise", "hypothesis") for text in frame[name] for word in text.split()})
    tokenizer = roberta_tokenizer()
    vocabulary = {token: index for index, token in enumerate(["<s>", "<pad>", "</s>", "<unk>", "<mask>", *words])}
    vocabulary |= {f"unused{index}": index for index in range(len(vocabulary), 4 * len(vocabulary))}
    tokenizer.backend_tokenizer.model = models.WordLevel(vocabulary, unk_token="<unk>")
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return tokenizer


def test_the_best_epoch_by_premise_discrimination_is_kept_and_scored_alike(tmp_path):
    """On a vocabulary of which the texts use less than half."""
    model = save_roberta_encoder(tmp_path / "model", word_tokenizer(read_source("sample:160").frame))
    run = tmp_path / "run"
    words = [
        "fit",
        "--data",
        "sample:160",
        "--model",
        str(model),
        "--max-length",
        "24",
        "--precision",
        "fp32",
        "--quiet",
    ]
    words += ["--lr", "3e-3", "--epochs", "2", "--monitor", METRIC, "--keep", "2", "--run-dir", str(run)]
    assert main(words) == 0
    assert (run / "encoder" / "kept_tokens.npy").exists()
    result = read_result(run)
    index = CheckpointIndex.read(run / "checkpoints")
    assert index.monitor == METRIC == result["selection"]["metric"]
    assert result["selection"]["value"] == max(entry.score for entry in index.saved)
    found = result["scores"]["id_val"]["premise"]
    assert found["num_rows"] > 0 and found["discrimination"] == pytest.approx(result["selection"]["value"], abs=1e-6)


def test_a_trimmed_vocabulary_has_the_words_that_only_a_swapped_premise_shows(tmp_path):
    """Premises of 16 words: the pair's own long hypothesis cuts their end off, another row's short one does not."""
    premises = [" ".join(f"p{number}w{word}" for word in range(16)) for number in range(8)]
    long, short = " ".join(f"h{word}" for word in range(20)), [f"p{number ^ 1}w1" for number in range(8)]
    rows = [
        {"premise": premise, "hypothesis": long if number % 2 else short[number], "label": "entailment", "law_id": "L"}
        for number, premise in enumerate(premises)
    ]
    rows.append({"premise": "q", "hypothesis": "r", "label": "non_entailment", "law_id": "M"})
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    frame = read_source(str(path)).frame
    config = ExperimentConfig()
    data = RunData(frame, {"id_val": frame}, frame, BINARY, ("premise", "hypothesis"), (), [], "", {})
    spec = EncoderSpec(word_tokenizer(frame), ("premise", "hypothesis"), max_length=24)
    own = set(tokenize_split(frame, spec, BINARY).token_ids.tolist())
    assert swapped_tokens(config, data, spec, None) == []
    watched = swapped_tokens(config, data, spec, RunWatch(metrics=(METRIC,)))
    more = {token for split in watched for token in split.token_ids.tolist()} - own
    assert any(word.endswith("w15") for word in spec.tokenizer.convert_ids_to_tokens(sorted(more)))


@pytest.mark.parametrize("name", ["macro_f1", "test/macro_f1", "id_val/premise", "id_val/f1", "id_val/per_class.f1"])
def test_what_is_no_score_is_refused_with_those_that_are(name):
    with pytest.raises(UserError, match=f"--monitor '{name}' is no score of id_val; take id_val/ and one of macro_f1"):
        check_monitor(name)


def test_every_path_that_is_taken_is_one_in_the_scores():
    scores = {"macro_f1": 0.5, "premise": {"rank": 0.25}, "per_class": {"entailment": {"f1": None}}}
    assert find_score(scores, "id_val/premise.rank") == 0.25 and find_score(scores, "id_val/macro_f1") == 0.5
    assert find_score(scores, check_monitor("id_val/per_class.entailment.f1")) is None
    assert find_score(scores, "id_val/hard.balanced") is None


def test_a_mistyped_score_is_found_before_the_data_are_read():
    from dataclasses import replace

    config = ExperimentConfig()
    with pytest.raises(UserError, match="--monitor 'id_val/f1'"):
        check_config(replace(config, checkpoints=replace(config.checkpoints, monitor="id_val/f1")))


def test_weights_in_parts_cannot_be_scored_after_an_epoch(tmp_path, capsys):
    words = ["fit", "--data", "sample:60", "--model", "tiny", "--monitor", METRIC, "--strategy", "deepspeed_stage_3"]
    assert main([*words, "--accelerator", "cpu", "--run-dir", str(tmp_path / "r")]) == 2
    assert "take deepspeed_stage_2" in capsys.readouterr().err
