"""The benchmark scripts: what they compute from measurements, their help, and their parts on tiny inputs."""

from __future__ import annotations

import importlib
import json
import os
import time
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[1]
BENCHMARKS = ROOT / "benchmarks"
SCRIPTS = ("throughput", "inference", "loader", "startup", "memory", "scaling", "gpu")

WORKER = """
import sys
from report import make_parser, serve

def hold(task):
    return {"read": task.read_text(), "held": len(bytearray(8 * 2**20))}

def fail(task):
    raise ValueError("of no use")

args = make_parser("a worker", "worker", repeats=1).parse_args()
assert serve(args, {"hold": hold, "fail": fail, "wait": lambda task: __import__("time").sleep(60)})
"""


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    """Scripts import each other by name, as when they are run."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.setenv("PYTHONPATH", str(BENCHMARKS))


def load(name: str):
    return importlib.import_module(name)


@pytest.fixture(scope="module")
def tiny_task(tmp_path_factory) -> Path:
    """Task file of a tiny random encoder whose vocabulary is three times what its texts use."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        gpu, parts = load("gpu"), load("gpu_parts")
        args = gpu._parser().parse_args(["--dry-run"])
        return parts.write_task(tmp_path_factory.mktemp("task"), gpu.TINY, args, dry_run=True)


# What all share


@pytest.mark.parametrize("name", SCRIPTS)
def test_every_script_says_how_to_use_it(name, capsys):
    with pytest.raises(SystemExit) as ended:
        load(name).main(["--help"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    assert f"python benchmarks/{name}.py" in text
    assert "--repeats" in text and "--worker" not in text


def test_a_workers_peak_memory_is_its_own(tmp_path):
    """A process that starts another hands its `ru_maxrss` on."""
    report, held = load("report"), b"x" * (200 * 2**20)
    script, task = tmp_path / "worker.py", tmp_path / "task.json"
    script.write_text(WORKER, encoding="utf-8")
    task.write_text("a task", encoding="utf-8")
    found = report.run_worker(str(script), "hold", task, threads=1)
    assert found["read"] == "a task"
    assert 0.005 < found["peak_rss_gib"] < 0.12 < len(held) / 2**30 < report.peak_rss_gib()


def test_a_worker_that_fails_or_takes_too_long_ends_the_benchmark_and_says_why(tmp_path):
    report = load("report")
    script, task = tmp_path / "worker.py", tmp_path / "task.json"
    script.write_text(WORKER, encoding="utf-8")
    task.touch()
    with pytest.raises(report.WorkerError, match="of no use"):
        report.run_worker(str(script), "fail", task, threads=1)
    with pytest.raises(SystemExit, match="longer than 0 s"):
        report.run_worker(str(script), "wait", task, threads=1, timeout_s=0.2)


def test_contestants_alternate(capsys):
    order = []
    runs = {name: lambda name=name: order.append(name) or {"value": len(order)} for name in ("one", "two")}
    found = load("report").alternate(runs, 2, lambda run: f"value {run['value']}")
    assert order == ["one", "two", "one", "two"]
    assert [run["value"] for run in found["two"]] == [2, 4]
    assert "two, run 2: value 4" in capsys.readouterr().out


def test_medians_ratios_and_tables():
    report = load("report")
    assert report.spread([4.0, 1.0, 2.0]) == {"median": 2.0, "min": 1.0, "max": 4.0, "spread": 1.5, "all": [4, 1, 2]}
    found = report.ratio([8.0, 9.0, 12.0], [2.0, 3.0, 2.0])
    assert found == {"median": 4.5, "min": 3.0, "max": 6.0}
    assert report.as_ratio(found) == "4.50x (3.00 to 6.00)"
    assert report.table(("", "x"), [("a", "1")]) == "|  | x |\n|---|---|\n| a | 1 |\n"
    with pytest.raises(ValueError):
        report.ratio([1.0], [1.0, 2.0])
    assert report.versions()["torch"] and "flash-attn" in report.versions()


def test_results_are_written_once_as_json_and_as_a_table(tmp_path, capsys):
    report = load("report")
    args = report.make_parser("x", "mine", repeats=1).parse_args(["--results", str(tmp_path / "new")])
    report.write(args, {"facts": report.describe("benchmarks/x.py", args, ["--repeats", "1"])}, "a table\n")
    facts = json.loads((tmp_path / "new" / "mine.json").read_text())["facts"]
    assert facts["command"] == "python benchmarks/x.py --repeats 1"
    assert facts["settings"] == {"name": "mine", "repeats": 1, "threads": os.cpu_count()}
    assert (tmp_path / "new" / "mine.md").read_text() == "a table\n"
    with pytest.raises(ValueError):
        report.write(args, {"value": float("nan")}, "")


def test_flops_count_real_tokens_only():
    from transformers import BertConfig

    flops = load("flops")
    config = BertConfig(hidden_size=4, num_hidden_layers=2, num_attention_heads=1, intermediate_size=8)
    weights = 2 * (4 * 4 * 4 + 2 * 4 * 8)
    assert flops.training_flops(config, [3, 5]) == 6 * weights * 8 + 12 * 2 * 4 * (9 + 25)
    assert flops.matmul_peak(8, 16, "fp32", tokens=4) > 0


# The cost of many GPUs


def test_parameters_of_the_model_are_those_of_the_library():
    import torch
    from transformers import (
        BertConfig,
        BertForSequenceClassification,
        XLMRobertaConfig,
        XLMRobertaForSequenceClassification,
    )

    for one in load("cost_model").ARCHITECTURES:
        is_bert = one.token_types == 2
        config = (BertConfig if is_bert else XLMRobertaConfig)(
            vocab_size=one.rows,
            hidden_size=one.hidden,
            num_hidden_layers=one.layers,
            num_attention_heads=12 if one.hidden % 12 == 0 else 16,
            intermediate_size=one.inner,
            max_position_embeddings=one.positions,
            type_vocab_size=one.token_types,
        )
        with torch.device("meta"):
            model = (BertForSequenceClassification if is_bert else XLMRobertaForSequenceClassification)(config)
        assert one.embedding() == model.get_input_embeddings().weight.numel()
        assert one.embedding() + one.others() == sum(parameter.numel() for parameter in model.parameters())
        assert one.embedding(10) == 10 * one.hidden


def test_a_step_costs_what_the_backward_pass_does_not_hide():
    model = load("cost_model")
    one = model.Architecture("small", rows=1000, hidden=8, layers=1, inner=16, positions=10, token_types=1)
    assert model.ring_bytes(100, 1) == 0 and model.ring_bytes(100, 4) == 150
    assumed = model.Assumptions(tokens_a_gpu=100, tokens_an_example=10, useful_tflops=1e-6, in_node_gb_s=1e-3)
    cost = model.step_cost(one, 2, assumed)
    assert cost.compute_s == pytest.approx(100 * (6 * (4 * 64 + 2 * 128) + 12 * 8 * 10) / 1e6)
    assert cost.sent_bytes == 4 * (one.embedding() + one.others())
    hidden_s = min(4 * one.others() / 1e6, cost.compute_s * 2 / 3)
    assert cost.exposed_s == pytest.approx(4 * (one.embedding() + one.others()) / 1e6 - hidden_s)
    assert cost.efficiency == pytest.approx(cost.compute_s / (cost.compute_s + cost.exposed_s))
    trimmed = model.step_cost(one, 2, assumed, kept_rows=10)
    assert trimmed.exposed_s < cost.exposed_s and trimmed.compute_s == cost.compute_s
    assert model.step_cost(one, 16, assumed).exposed_s > cost.exposed_s


def test_the_document_holds_the_tables_of_the_model():
    scaling, model = load("scaling"), load("cost_model")
    text = scaling.DOCUMENT.read_text(encoding="utf-8")
    assert scaling.with_tables(text, model.document_tables()) == text
    assert scaling.with_tables(text, "other") != text
    with pytest.raises(ValueError, match="the document has no"):
        scaling.with_tables("no marks", "x")


# Two processes


def test_efficiency_is_over_one_process_and_over_two_that_stay_apart():
    scaling = load("scaling")
    ranks = [
        {"step_s": [9.0, 1.0, 1.0], "step_tokens": [50, 10, 20], "peak_rss_gib": 1.0},
        {"step_s": [9.0, 2.0, 2.0], "step_tokens": [50, 15, 15], "peak_rss_gib": 2.0},
    ]
    same = {"parameters": 5, "gradient_bytes": 20, "losses": [], "loopback_bytes_a_step": 44.0}
    joint = scaling.join_ranks([rank | same | {"reduced_bytes_a_step": 20.0} for rank in ranks], warm_up=1)
    assert (joint["tokens_s"], joint["peak_rss_gib"]) == (15.0, 2.0)
    runs = {
        f"{kind}, {word}": [joint | {"tokens_s": rate}]
        for word in scaling.VOCABULARIES
        for kind, rate in ((scaling.ALONE, 10.0), (scaling.APART, 16.0), (scaling.TOGETHER, 12.0))
    }
    found = scaling.summarize(runs)
    one = found[f"{scaling.TOGETHER}, trimmed"]
    assert (one["efficiency"]["median"], one["efficiency_beside_apart"]["median"]) == (0.6, 0.75)
    assert found[f"{scaling.ALONE}, whole"]["efficiency"] is None
    settings = {"model": "m", "precision": "fp32", "batch_size": 4, "threads": 1, "repeats": 1}
    facts = {"command": "c", "processor": "p", "cores": 2, "settings": settings}
    assert "| 2 processes, ddp, whole | 12 | 60% | 75% |" in scaling.as_markdown({"facts": facts, "runs": found})


def test_loopback_bytes_are_those_sent():
    text = "head |\n  eth0: 1 2 3 4 5 6 7 8 9\n    lo: 100 2 3 4 5 6 7 8 700 10 11\n"
    scaling = load("scaling")
    assert scaling.loopback_bytes(text) == 700
    assert scaling.loopback_bytes("") == 0


def test_a_process_alone_exchanges_nothing(tiny_task, tmp_path):
    scaling = load("scaling")
    arm = tiny_task.parent / "arm.json"
    arm.write_text(json.dumps({"trim": "off", "steps": 3, "warm_up": 1, "connected": False}), encoding="utf-8")
    found = scaling.train(arm)
    assert len(found["losses"]) == 3 and found["reduced_bytes_a_step"] == 0
    assert found["gradient_bytes"] == 4 * found["parameters"]


# Memory, inference, loader, start


def test_trimming_takes_gradients_and_optimizer_with_it(tiny_task):
    memory = load("memory")
    trimmed, whole = (memory._ours(trim)(tiny_task) for trim in ("auto", "off"))
    assert trimmed["parameters"] < 0.6 * whole["parameters"]
    for one in (trimmed, whole):
        assert one["gradient_bytes"] == 4 * one["parameters"]
        assert 8 * one["parameters"] <= one["optimizer_bytes"] < 8.1 * one["parameters"] + 1000
    np.testing.assert_allclose(trimmed["losses"], whole["losses"], atol=5e-3)
    runs = {memory.TRIMMED: [trimmed | {"peak_rss_gib": 1.0}], memory.WHOLE: [whole | {"peak_rss_gib": 1.5}]}
    found = memory.summarize(runs | {memory.TRAINER: [{"parameters": 9, "peak_rss_gib": 2.0}]})
    assert found[memory.TRIMMED]["share_of_trainer"] == 0.5 and found[memory.TRAINER]["gradient_bytes"] is None


def test_logits_are_compared_row_by_row(capsys):
    inference = load("inference")
    logits = np.random.default_rng(0).normal(size=(6, 2))
    runs = {name: [{"logits": logits.tolist()}] for name in (inference.OURS, inference.TRAINER)}
    assert inference.compare(runs, exact=True)["largest_difference"] == 0
    runs[inference.OURS][0]["logits"] = np.roll(logits, 1, axis=0).tolist()
    assert inference.compare(runs, exact=False)["same_label_fraction"] < 1
    with pytest.raises(SystemExit, match="do not agree row by row"):
        inference.compare(runs, exact=True)
    runs[inference.OURS][0]["logits"] = runs[inference.TRAINER][0]["logits"] = [[0.5, 0.2]] * 6
    with pytest.raises(SystemExit):  # rows that do not differ prove nothing of their order
        inference.compare(runs, exact=True)


def test_both_sides_score_the_same_rows_in_fp32(tiny_task, tmp_path):
    from dataclasses import replace

    inference, task_class = load("inference"), load("contestants").Task
    task = tmp_path / "task.json"
    replace(task_class.read(tiny_task), precision="fp32").write(task)
    runs = {inference.OURS: [inference._ours(task)], inference.TRAINER: [inference._trainer(full=False)(task)]}
    found = inference.compare(runs, exact=True)
    assert found["largest_difference"] < 1e-5
    summary = inference.summarize(runs)
    assert summary[inference.OURS]["ours_is"]["from_texts"]["median"] == 1.0
    assert summary[inference.TRAINER]["examples_s"]["from_tokens"]["median"] > 0


def test_both_loaders_end_with_the_same_ids(tmp_path):
    loader = load("loader")
    texts = loader.prepare_rows(tmp_path, data="sample:60", model="tiny", max_length=48)
    assert texts["texts"] == 2 * texts["rows"] > texts["distinct"]
    task = tmp_path / "task.json"
    task.write_text(json.dumps(json.loads(task.read_text()) | {"cache": str(tmp_path)}), encoding="utf-8")
    first, second, other = loader.ours(task), loader.ours(task), loader.theirs(task)
    assert first["ids"] == second["ids"] == other["ids"]
    run = {"first_s": 2.0, "second_s": 1.0, "ids": [first["ids"]], "peak_rss_gib": 1.0}
    runs = {loader.OURS: [run], loader.THEIRS: [run | {"first_s": 4.0, "second_s": 3.0}]}
    loader.check_same_ids(runs)
    found = loader.summarize(runs, 100)
    assert found[loader.OURS]["texts_s"]["median"] == 50
    assert found[loader.THEIRS]["ours_is"]["median"] == 2.0
    assert found[loader.THEIRS]["second_start_ours_is"]["median"] == 3.0
    with pytest.raises(SystemExit, match="other token ids"):
        loader.check_same_ids(runs | {"more": [run | {"ids": ["x"]}]})


def test_a_start_ends_with_the_first_step_and_many_pairs_are_mapped(tmp_path, monkeypatch):
    startup = load("startup")
    settings = {"data": "sample:60", "model": "tiny", "precision": "fp32", "batch_size": 4, "max_length": 64}
    settings |= {"max_tokens": 256, "rows": 500, "modules": ["json", "no.such.module"]}
    task = tmp_path / "task.json"
    task.write_text(json.dumps(settings), encoding="utf-8")
    monkeypatch.setenv(load("report").STARTED, repr(time.time()))
    found = startup.start(task)
    assert 0 < found["data_s"] < found["build_s"] < found["ready_s"] < found["first_step_s"]
    assert found["beyond_imports_s"] == pytest.approx(found["first_step_s"] - found["imports_s"])
    assert "torch" in found["modules"]
    walked = startup.walk(task)
    assert walked["pairs"] == 500 and 0.8 < walked["pack_fill"] <= 1
    assert abs(walked["own_growth_gib"]) < 0.1


def test_a_shared_cache_has_encoders_and_no_tokens(tmp_path, monkeypatch):
    (tmp_path / "user" / "encoders").mkdir(parents=True)
    (tmp_path / "user" / "tokens").mkdir()
    monkeypatch.setenv("LNLI_CACHE", str(tmp_path / "user"))
    cache = load("startup").share_cache(tmp_path)
    assert [path.name for path in cache.iterdir()] == ["encoders"]


# A CUDA machine


def test_the_gpu_script_goes_through_every_part_without_a_gpu(capsys):
    load("gpu").main(["--dry-run"])
    text = capsys.readouterr().out
    assert "no figure below means anything" in text
    for row in ("| lightning-nli |", "| Trainer |", "| lightning-nli, --compile |"):
        assert row in text
    assert "failed" not in text and "no time left" not in text
    assert "Largest pack: 512 tokens (the limit of the search)" in text and "gradient fp32" in text


def test_the_gpu_script_needs_a_gpu(capsys):
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is one")
    with pytest.raises(SystemExit, match="no CUDA device"):
        load("gpu").main([])


def test_a_part_without_time_left_is_null(capsys, tmp_path):
    gpu = load("gpu")
    session = gpu.Session(gpu._parser().parse_args([]), deadline=time.monotonic() + 1)
    assert session.run("peak", tmp_path / "task.json") is None


@pytest.mark.parametrize("limit", [8, 13, 64])
def test_the_largest_pack_is_found_in_few_trials(limit):
    parts = load("gpu_parts")
    for largest in range(limit + 1):
        trials = []
        found = parts.largest_that_fits(
            lambda size, largest=largest, trials=trials: trials.append(size) or size <= 10 * largest,
            step=10,
            limit=10 * limit,
        )
        assert found == 10 * largest
        assert len(trials) <= 14 and len(set(trials)) == len(trials)


def test_packed_that_is_further_from_fp32_than_padded_fails():
    check = load("gpu_parts").check_exactness
    good = {"fp32": 1e-6, "bf16_padded": 4e-3, "bf16_packed": 5e-3}
    found = {f"{what}_{name}": value for what in ("logits", "gradient") for name, value in good.items()}
    assert check(found) == found
    for bad in ({"logits_bf16_packed": 1e-2}, {"gradient_fp32": 1e-3}, {"logits_fp32": float("nan")}):
        with pytest.raises(ValueError, match="differ"):
            check(found | bad)


# Training speed


def test_throughput_counts_the_steps_after_the_warm_up():
    throughput = load("throughput")
    facts = {"warm_up": 1, "timed_examples": 20, "useful_flops": 4000, "matmul_peak_flops_s": 10_000.0}
    run = {"step_s": [9.0, 1.0, 1.0], "losses": [0.7, 0.6], "peak_rss_gib": 1.5, "parameters": 7}
    found = throughput.summarize([run, run | {"scored": 6, "scoring_s": 2.0}], facts)
    assert (found["examples_s"], found["scored_examples_s"], found["useful_flops_share"]) == (10.0, 3.0, 0.2)
