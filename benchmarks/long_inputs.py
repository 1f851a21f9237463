"""Packed long inputs against the padded road: equal logits, speed and memory at several longest lengths.

    python benchmarks/long_inputs.py                          512, 1024 and 2048 tokens; prints a table
    python benchmarks/long_inputs.py --lengths 512 --examples 64 --threads 2

The encoder is a BERT of the size of e5-small with random weights and as many positions as the lengths need: neither
speed nor memory depend on the weights. Lengths are drawn as legal will statements have them (log-normal, median 0.45
and standard deviation 0.6 in logarithms, of which a few reach the limit), scaled to the longest. Each road runs in a
process of its own, so that its peak memory is its own; forward and backward, fp32, batches of 8 in the same order. Time
is CPU time, so that other work on the machine counts less.
"""

from __future__ import annotations

import argparse
import json
import platform
import resource
import subprocess
import sys
import time

import numpy as np
import torch
from transformers import BertConfig, BertForSequenceClassification

from lightning_nli.batch import PackedBatch
from lightning_nli.models.attention import AttentionBackend
from lightning_nli.models.encoder import PackedEncoder
from lightning_nli.models.padded import PaddedEncoder
from lightning_nli.training.run_folder import processor_name

ROADS = ("padded", "packed")
BATCH_SIZE = 8
NUM_WORDS = 1000
_KIB_PER_MIB = 1024


def draw_lengths(longest: int, examples: int) -> list[int]:
    """Lengths in tokens of `examples` inputs; the longest is `longest`."""
    drawn = np.random.default_rng(1).lognormal(np.log(0.45), 0.6, examples) * longest
    lengths = np.clip(drawn, 16, longest).astype(int)
    lengths[0] = longest
    return [int(length) for length in lengths]


def make_batch(lengths: list[int], seed: int) -> PackedBatch:
    """Random words in segments of the given lengths."""
    random = torch.Generator().manual_seed(seed)
    ids = torch.randint(5, NUM_WORDS, (sum(lengths),), generator=random)
    return PackedBatch(
        input_ids=ids,
        position_ids=torch.cat([torch.arange(length) for length in lengths]),
        token_type_ids=torch.zeros_like(ids),
        cu_seqlens=torch.tensor([0, *lengths]).cumsum(0).int(),
        max_seqlen=max(lengths),
        labels=torch.arange(len(lengths)) % 3,
        example_ids=torch.arange(len(lengths)),
        step_num_segments=len(lengths),
    )


def make_encoder(road: str, longest: int) -> torch.nn.Module:
    """The same weights on either road, without dropout."""
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=NUM_WORDS,
        hidden_size=384,
        num_hidden_layers=12,
        num_attention_heads=12,
        intermediate_size=1536,
        max_position_embeddings=longest,
        num_labels=3,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    model = BertForSequenceClassification(config)
    return PaddedEncoder(model) if road == "padded" else PackedEncoder(model, AttentionBackend.BUCKETED)


def measure(road: str, longest: int, examples: int, threads: int) -> dict[str, object]:
    """CPU seconds of forward and backward over all examples, peak memory, and the logits."""
    torch.set_num_threads(threads)
    encoder, lengths = make_encoder(road, longest), draw_lengths(longest, examples)
    batches = [make_batch(lengths[at : at + BATCH_SIZE], at) for at in range(0, examples, BATCH_SIZE)]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    logits, seconds = [], 0.0
    for batch in batches:
        started = time.process_time()
        found = encoder(batch)
        torch.nn.functional.cross_entropy(found, batch.labels).backward()
        seconds += time.process_time() - started
        logits += found.detach().tolist()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        "seconds": seconds,
        "tokens": sum(lengths),
        "padded_tokens": sum(max(lengths[at : at + BATCH_SIZE]) * BATCH_SIZE for at in range(0, examples, BATCH_SIZE)),
        "peak_mib": peak / _KIB_PER_MIB,
        "added_mib": (peak - before) / _KIB_PER_MIB,
        "logits": logits,
    }


def in_own_process(road: str, longest: int, examples: int, threads: int) -> dict[str, object]:
    """`measure` in a fresh process."""
    options = ["--road", road, "--lengths", str(longest), "--examples", str(examples), "--threads", str(threads)]
    done = subprocess.run([sys.executable, __file__, *options], capture_output=True, text=True, check=True)
    values: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return values


def main() -> None:
    """Measure and print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", default="512,1024,2048", help="longest inputs in tokens")
    parser.add_argument("--examples", type=int, default=32, help="inputs of each measurement (default 32)")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads (default 1)")
    parser.add_argument("--road", choices=ROADS, help=argparse.SUPPRESS)
    given = parser.parse_args()
    lengths = [int(length) for length in given.lengths.split(",")]
    if given.road:
        sys.stdout.write(json.dumps(measure(given.road, lengths[0], given.examples, given.threads)) + "\n")
        return
    sys.stdout.write(f"{processor_name()}, {given.threads} threads, torch {torch.__version__}, {platform.system()}\n\n")
    sys.stdout.write(
        "| longest | tokens, packed / padded | CPU s, packed | padded | ratio | added MiB, packed | padded | "
        "largest logit difference |\n|---|---|---|---|---|---|---|---|\n"
    )
    for longest in lengths:
        found = {road: in_own_process(road, longest, given.examples, given.threads) for road in ROADS}
        padded, packed = found["padded"], found["packed"]
        difference = np.abs(np.array(packed["logits"]) - np.array(padded["logits"])).max()
        sys.stdout.write(
            f"| {longest} | {packed['tokens']} / {packed['padded_tokens']} | {packed['seconds']:.1f} | "
            f"{padded['seconds']:.1f} | {padded['seconds'] / packed['seconds']:.2f} | {packed['added_mib']:.0f} | "
            f"{padded['added_mib']:.0f} | {difference:.1e} |\n"
        )


if __name__ == "__main__":
    main()
