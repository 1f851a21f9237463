"""The parts of `gpu.py`: each takes a task file and returns what it measured."""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

OURS, TRAINER = "lightning-nli", "Trainer"
COMPILED = "lightning-nli, --compile"

_ROWS = 250_002  # of the published vocabulary
_PACK_STEP = 4_096
_EXACT = 1e-4  # of the largest value, packed against padded in fp32
_SLACK = 2.0  # packed bf16 may be so many times as far from fp32 as padded bf16 is,
_FLOOR = 1e-3  # and differences below this are rounding


def worker(part: str) -> Callable[[Path], dict[str, Any]]:
    """The function of a part: `exact`, `peak`, `train:CONTESTANT`, `COMPILED` or `pack`."""
    kind, _, name = part.partition(":")
    if kind == "train":
        return lambda file: train_contestant(name, file)
    return {"exact": compare_roads, "peak": measure_peak, COMPILED: train_compiled, "pack": find_largest_pack}[kind]


def write_task(folder: Path, shape: dict[str, int], args: argparse.Namespace, *, dry_run: bool) -> Path:
    """A random encoder of this shape, its tokenizer, rows of the embedded corpus and the task; the task's file."""
    import torch
    from preparation import prepare
    from transformers import AutoTokenizer, XLMRobertaConfig, XLMRobertaModel

    from lightning_nli.data.sample import sample_corpus
    from lightning_nli.models.offline import TINY as TINY_MODEL
    from lightning_nli.models.offline import resolve_model

    batch_size, steps = (4, 4) if dry_run else (args.batch_size, args.steps)
    corpus = sample_corpus(400)
    texts = [*corpus["premise"].to_list(), *corpus["hypothesis"].to_list()]
    tokenizer = AutoTokenizer.from_pretrained(str(resolve_model(TINY_MODEL, lambda: texts)))
    config = XLMRobertaConfig(
        vocab_size=3 * len(tokenizer) if dry_run else _ROWS,
        max_position_embeddings=514,
        type_vocab_size=2,  # the tokenizer's layout
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.cls_token_id,
        eos_token_id=tokenizer.sep_token_id,
        **shape,
    )
    torch.manual_seed(0)
    XLMRobertaModel(config).save_pretrained(folder / "random")
    tokenizer.save_pretrained(folder / "random")
    prepare(
        folder,
        data=f"sample:{2 * batch_size * steps}",
        model=str(folder / "random"),
        num_rows=batch_size * steps,
        batch_size=batch_size,
        max_length=64 if dry_run else args.max_length,
        precision="bf16",
    )
    settings = {"warm_up": 1 if dry_run else args.warm_up, "on_gpu": not dry_run}
    (folder / "settings.json").write_text(json.dumps(settings), encoding="utf-8")
    return folder / "task.json"


def _read(file: Path) -> tuple[Any, Any, dict[str, Any], Any]:
    """Task, rows, settings and device of a part."""
    import polars as pl
    import torch
    from contestants import Task

    task = Task.read(file)
    settings = json.loads((file.parent / "settings.json").read_text(encoding="utf-8"))
    device = torch.device("cuda" if settings["on_gpu"] else "cpu")
    return task, pl.read_parquet(task.table), settings, device


def compare_roads(file: Path) -> dict[str, Any]:
    """Logits and gradients, packed and padded, of the same weights and rows.

    fp32: packed (batched products) against padded. bf16: how far the real kernel and the padded road are from fp32.

    Raises:
        ValueError: packed is not as good as padded.
    """
    import torch
    from contestants import run_data

    from lightning_nli.data.packing import MicroStep, collate_pack
    from lightning_nli.data.tokenization import EncoderSpec, tokenize_split
    from lightning_nli.models.encoder import load_encoder

    task, rows, _, device = _read(file)
    data = run_data(task, rows.head(4 * task.batch_size))

    def results(attention: str, dtype: Any) -> list[Any]:
        """(S, C) logits, and the gradients of the first layer's query weights, in fp32 on the CPU."""
        loaded = load_encoder(task.model, data.scheme, attention=attention, device=device)
        spec = EncoderSpec(loaded.tokenizer, task.segments, task.max_length, num_token_types=loaded.num_token_types)
        split = tokenize_split(data.train, spec, data.scheme)
        step = MicroStep(tuple(range(len(split))), len(split))
        batch = collate_pack(split, step, first_position=loaded.first_position).to(device)
        encoder = loaded.encoder.to(device, dtype).eval()
        logits = encoder(batch).float()
        torch.nn.functional.cross_entropy(logits, batch.labels).backward()
        query = next(
            value for name, value in encoder.named_parameters() if name.endswith("layer.0.attention.self.query.weight")
        )
        return [logits.detach().cpu(), query.grad.float().cpu()]

    exact = results("padded", torch.float32)
    packed32 = results("bucketed", torch.float32)
    found = {"logits_spread": float(exact[0].std(0).min()), "rows": len(exact[0])}
    half = {road: results(road, torch.bfloat16) for road in ("padded", "auto")}
    for place, what in enumerate(("logits", "gradient")):
        scale = exact[place].abs().max()

        def away(values: list[Any], place: int = place, scale: Any = scale) -> float:
            return float((values[place] - exact[place]).abs().max() / scale)

        found |= {f"{what}_fp32": away(packed32)}
        found |= {f"{what}_bf16_padded": away(half["padded"]), f"{what}_bf16_packed": away(half["auto"])}
    return check_exactness(found)


def check_exactness(found: dict[str, Any]) -> dict[str, Any]:
    """The differences (relative to the largest value), if packed is as near to fp32 as it must be.

    Raises:
        ValueError: it is not.
    """
    for what in ("logits", "gradient"):
        limit = _SLACK * found[f"{what}_bf16_padded"] + _FLOOR
        if not (found[f"{what}_fp32"] <= _EXACT and found[f"{what}_bf16_packed"] <= limit):
            raise ValueError(f"packed and padded {what} differ: {found}")
    return found


def measure_peak(file: Path) -> dict[str, Any]:
    """bf16 matmul peak at the model's shape, and useful FLOPs and tokens of an example."""
    import torch
    from flops import matmul_peak, training_flops
    from transformers import AutoConfig, AutoTokenizer

    task, rows, _, device = _read(file)
    config, tokenizer = AutoConfig.from_pretrained(task.model), AutoTokenizer.from_pretrained(task.model)
    texts = [rows[name].to_list() for name in task.segments]
    ids = tokenizer(*texts, truncation=True, max_length=task.max_length)["input_ids"]
    lengths = [len(one) for one in ids]
    on_gpu = device.type == "cuda"
    return {
        "device": torch.cuda.get_device_name(0) if on_gpu else "cpu",
        "flops_s": matmul_peak(
            config.hidden_size,
            config.intermediate_size,
            "bf16",
            device=device.type,
            tokens=16_384 if on_gpu else 256,
        ),
        "flops_an_example": training_flops(config, lengths) / len(lengths),
        "tokens_an_example": sum(lengths) / len(lengths),
    }


def _rates(measured: dict[str, Any], file: Path) -> dict[str, Any]:
    """Examples a second after the warm-up, memory and losses; every step waits for its loss, so its time is whole."""
    import torch

    task, _, settings, device = _read(file)
    timed = measured["step_s"][settings["warm_up"] :]
    on_gpu = device.type == "cuda"
    peak = torch.cuda.max_memory_allocated() if on_gpu else None
    if on_gpu and not peak:
        raise ValueError("it did not run on the GPU")
    return {
        "examples_s": len(timed) * task.batch_size / sum(timed),
        "peak_gpu_gib": None if peak is None else peak / 1024**3,
        "first_loss": measured["losses"][0],
        "last_loss": measured["losses"][-1],
        "parameters": measured["parameters"],
    }


def train_contestant(name: str, file: Path) -> dict[str, Any]:
    """A contestant of `contestants.py`."""
    import torch
    from contestants import CONTESTANTS

    torch.manual_seed(1)
    return _rates(CONTESTANTS[name](_read(file)[0]), file)


def train_compiled(file: Path) -> dict[str, Any]:
    """Ours with `--compile` (in a dry run without it: a compiler takes its time)."""
    from our_runs import StepWatch, build

    task, rows, settings, _ = _read(file)
    watch = StepWatch()
    flags = ["--compile", "true", "--accelerator", "gpu"] if settings["on_gpu"] else ["--accelerator", "cpu"]
    with tempfile.TemporaryDirectory() as folder:
        built = build(task, rows, Path(folder), *flags)
        built.trainer.callbacks = [watch]
        built.trainer.fit(built.module, built.datamodule)
    return _rates(watch.measured(), file)


def find_largest_pack(file: Path) -> dict[str, Any]:
    """Tokens of the largest pack whose forward, backward and optimizer state fit, in segments of `max_length`."""
    import torch
    from our_runs import build

    from lightning_nli.models.optim import build_optimizer

    task, rows, settings, device = _read(file)
    on_gpu = settings["on_gpu"]
    with tempfile.TemporaryDirectory() as folder:
        built = build(task, rows, Path(folder), "--accelerator", "gpu" if on_gpu else "cpu")
    module = built.module.to(device).train()
    optimizer = build_optimizer(module, module.optim)
    first_position = built.loaded.first_position

    def fits(num_tokens: int) -> bool:
        batch = make_pack(num_tokens, task.max_length, first_position).to(device)
        try:
            torch.nn.functional.cross_entropy(module(batch), batch.labels).backward()
            optimizer.step()
        except torch.OutOfMemoryError:
            return False
        finally:
            optimizer.zero_grad()
            torch.cuda.empty_cache()
        return True

    step, limit = (_PACK_STEP, 2**22) if on_gpu else (task.max_length, 8 * task.max_length)
    found = largest_that_fits(fits, step=step, limit=limit)
    return {"max_tokens": found, "step": step, "is_at_the_limit": found + step > limit}


def make_pack(num_tokens: int, length: int, first_position: int) -> Any:
    """A pack of `num_tokens` tokens in segments of `length`, of the first ids of the vocabulary."""
    import torch

    from lightning_nli.batch import PackedBatch

    segments = num_tokens // length
    ids = torch.arange(segments * length) % 16 + 5
    return PackedBatch(
        input_ids=ids,
        position_ids=torch.arange(length).repeat(segments) + first_position,
        token_type_ids=torch.zeros_like(ids),
        cu_seqlens=torch.arange(0, (segments + 1) * length, length, dtype=torch.int32),
        max_seqlen=length,
        labels=torch.arange(segments) % 2,
        example_ids=torch.arange(segments),
        step_num_segments=segments,
    )


def largest_that_fits(fits: Callable[[int], bool], *, step: int, limit: int) -> int:
    """Largest multiple of `step`, at most `limit`, for which `fits` holds, by doubling and then halving; 0: none."""
    good, bad = 0, limit // step + 1
    trial = 1
    while bad - good > 1:
        if fits(trial * step):
            good = trial
            trial = min(2 * trial, bad - 1) if bad == limit // step + 1 else (good + bad) // 2
        else:
            bad = trial
            trial = (good + bad) // 2
    return good * step
