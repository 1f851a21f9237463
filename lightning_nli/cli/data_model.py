"""`lnli data check --model`: what an encoder would make of a corpus, before a run is spent on it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from lightning_nli.data.schema import Corpus
from lightning_nli.types import UserError


def describe_for_model(name: str, corpora: Sequence[Corpus]) -> dict[str, Any]:
    """Tokens a pair, pairs longer than the encoder reads, and whether the texts are word-segmented as it expects.

    Args:
        name: As `--model` of `lnli fit`.
        corpora: What was read.

    Returns:
        `model`, `longest_input` (tokens, null where unknown), `segmenter`, `expects_words`, `joined_rows`, `rows`, and
        by source `tokens` {mean, p95, max} and `too_long` (rows over the longest input).

    Raises:
        UserError: the encoder's tokenizer is not there, or a segmenter is missing.
    """
    from transformers import AutoTokenizer

    from lightning_nli.data.tokenization import EncoderSpec, tokenize_split
    from lightning_nli.models.heads import hub_errors, prepare_transformers
    from lightning_nli.models.offline import is_built_here, resolve_model
    from lightning_nli.models.registry import model_card
    from lightning_nli.models.words import count_joined_rows, expects_words, resolve_segmenter
    from lightning_nli.training.corpora import segments_of

    if is_built_here(name):
        raise UserError(f"--model {name}: it is built from a run's own texts; there is nothing to check")
    prepare_transformers()
    source = resolve_model(name, list)
    with hub_errors(source):
        tokenizer = AutoTokenizer.from_pretrained(str(source))
    segmenter = resolve_segmenter("auto", name, tokenizer)
    card = model_card(name)
    longest = card.max_tokens if card else _sane(getattr(tokenizer, "model_max_length", None))
    frames = [corpus.frame for corpus in corpora]
    joined, rows = count_joined_rows(frames, ("premise", "hypothesis"))
    sources = {}
    for corpus in corpora:
        spec = EncoderSpec(tokenizer, segments_of(corpus.frame), max_length=1_000_000, segmenter=segmenter)
        lengths = tokenize_split(corpus.frame, spec, corpus.scheme).lengths
        sources[corpus.source] = {
            "tokens": {
                "mean": round(float(lengths.mean()), 1),
                "p95": int(np.quantile(lengths, 0.95, method="higher")),
                "max": int(lengths.max()),
            },
            "too_long": None if longest is None else int((lengths > longest).sum()),
        }
    return {
        "model": name,
        "longest_input": longest,
        "expects_words": expects_words(name, tokenizer),
        "segmenter": segmenter,
        "joined_rows": joined,
        "rows": rows,
        "sources": sources,
    }


def model_lines(report: dict[str, Any]) -> list[str]:
    """The report in words."""
    limit = report["longest_input"]
    lines = [f"{report['model']}: reads {limit or 'an unknown number of'} tokens, word segmenter {report['segmenter']}"]
    for source, found in report["sources"].items():
        tokens = found["tokens"]
        over = "" if limit is None else f"; {found['too_long']} longer than it reads"
        lines.append(f"  {source}: mean {tokens['mean']}, p95 {tokens['p95']}, max {tokens['max']} tokens{over}")
    if report["expects_words"] and report["joined_rows"] < report["rows"]:
        missing = report["rows"] - report["joined_rows"]
        lines.append(
            f"  {missing} of {report['rows']} rows have no '_' joins, which it expects: they will be segmented"
        )
    return lines


def _sane(length: int | None) -> int | None:
    """Tokenizers without a limit give a number of 31 digits."""
    return length if length is not None and length < 10**6 else None
