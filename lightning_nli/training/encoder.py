"""The encoder of a new run: its weights, its road, its word segmentation, and the engine that its family allows."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch

from lightning_nli.config import ExperimentConfig, cache_root
from lightning_nli.config_text import parse_ratio, resolve_truncation
from lightning_nli.data.segments import Joining, Truncation, add_markers
from lightning_nli.data.text import WordSegmenter
from lightning_nli.data.tokenization import count_segment_tokens
from lightning_nli.models.dropout import set_dropout
from lightning_nli.models.encoder import LoadedEncoder, check_length, load_encoder, longest_input
from lightning_nli.models.native import use_native_kernels
from lightning_nli.models.offline import CBOW, is_built_here, resolve_model
from lightning_nli.models.vocabulary import grow_vocabulary, trim_to_texts, vocabulary_size
from lightning_nli.models.words import resolve_segmenter, warn_mixed_words
from lightning_nli.training.corpora import RunData
from lightning_nli.training.strategy import (
    Engine,
    build_strategy,
    resolve_accelerator,
    resolve_attention,
    resolve_precision,
)
from lightning_nli.training.trained import RunMeta, encoder_spec
from lightning_nli.types import UserError

log = logging.getLogger(__name__)


def load_run_encoder(config: ExperimentConfig, data: RunData) -> tuple[LoadedEncoder, Engine, RunMeta]:
    """Encoder, engine, and what the run must remember of its encoder.

    Raises:
        UserError: a setting that the encoder or the machine cannot serve.
    """
    use_native_kernels(config.engine.native_kernels == "auto")
    accelerator = resolve_accelerator(config.engine)
    attention = resolve_attention(config.engine, accelerator, resolve_precision(config.engine, accelerator))
    loaded = load_encoder(
        resolve_model(config.model, lambda: _training_texts(config, data)),
        data.scheme,
        head=config.head,
        attention=config.engine.attention,
        packed_attention=attention,
        device=torch.device("cuda" if accelerator == "gpu" else "cpu"),
        seed=config.seed,
    )
    if config.optim.dropout is not None:
        set_dropout(loaded.model, config.optim.dropout)
    chunk_length = _chunk_length(config, loaded)
    if config.engine.activation_checkpointing and not loaded.model.supports_gradient_checkpointing:
        raise UserError(f"--activation-checkpointing: {type(loaded.model).__name__} cannot recompute its layers")
    engine = build_strategy(config, family=loaded.model.config.model_type)
    segmenter = resolve_segmenter(config.text.segmenter, config.model, loaded.tokenizer)
    frames = [data.train, *data.scored.values()]
    warn_mixed_words(config.model, loaded.tokenizer, segmenter, frames, data.segments)
    if Joining(config.text.template) is Joining.MARKERS:
        _add_markers(loaded, data)
    meta = RunMeta.of(loaded, data.scheme, data.segments, segmenter)
    meta = replace(meta, truncation=Truncation(resolve_truncation(config.text, len(data.segments))))
    meta = replace(meta, ratio=_ratio(config, data, loaded, meta), chunk_length=chunk_length)
    return loaded, engine, meta


def trim_run_encoder(
    config: ExperimentConfig, loaded: LoadedEncoder, texts: Iterable[npt.NDArray[np.int32]]
) -> tuple[npt.NDArray[np.int64] | None, npt.NDArray[np.int64] | None]:
    """`trim_to_texts`, where the settings allow it and there is a pretrained table to go back to."""
    if config.engine.trim_vocab == "off" or is_built_here(config.model):
        return None, None
    return trim_to_texts(loaded.model, loaded.tokenizer, texts)


def _add_markers(loaded: LoadedEncoder, data: RunData) -> None:
    """The tokens of `--template markers`, in tokenizer and embedding table."""
    if loaded.model.config.model_type == CBOW:
        raise UserError(f"--template markers: {CBOW} tells two texts apart by token types; take separators")
    texts = (text for name in data.segments for text in data.published_train[name])
    new = add_markers(loaded.tokenizer, data.segments, texts)
    grow_vocabulary(loaded.model, vocabulary_size(loaded.tokenizer))
    log.info("tokens of our own: %s", ", ".join(new) or "all there already")


def _ratio(config: ExperimentConfig, data: RunData, loaded: LoadedEncoder, meta: RunMeta) -> tuple[int, ...] | None:
    """Weights of proportional truncation: as given, else the tokens of each text over the training split."""
    if meta.truncation is not Truncation.PROPORTIONAL:
        return None
    if config.text.truncation_ratio != "auto":
        return parse_ratio(config.text.truncation_ratio)
    return count_segment_tokens(data.published_train, encoder_spec(config, loaded, meta), cache=cache_root())


def _chunk_length(config: ExperimentConfig, loaded: LoadedEncoder) -> int | None:
    """Longest chunk where examples may be longer than the encoder reads; None where it reads them whole."""
    if config.text.chunk_pool == "none":
        check_length(config.model, loaded.model.config, config.text.max_length)
        return None
    limit = longest_input(config.model, loaded.model.config)
    if limit is None or limit >= config.text.max_length:
        reads = "any length" if limit is None else f"{limit} tokens"
        raise UserError(
            f"--chunk-pool {config.text.chunk_pool}: '{config.model}' reads {reads}, --max-length "
            f"{config.text.max_length} needs no chunks; leave --chunk-pool out, or raise --max-length"
        )
    return limit


def _training_texts(config: ExperimentConfig, data: RunData) -> list[str]:
    """Texts as the tokenizer will see them, for the models whose vocabulary is made of them."""
    segment = WordSegmenter("none" if config.text.segmenter == "auto" else config.text.segmenter)
    columns = [data.train[name].to_list() for name in data.segments]
    segmented = {text: segment(text) for column in columns for text in set(column)}
    return [segmented[text] for column in columns for text in column]
