"""The encoder of a new run: its weights, its road, its word segmentation, and the engine that its family allows."""

from __future__ import annotations

import torch

from lightning_nli.config import ExperimentConfig
from lightning_nli.data.text import WordSegmenter
from lightning_nli.models.encoder import LoadedEncoder, check_length, load_encoder
from lightning_nli.models.offline import resolve_model
from lightning_nli.models.words import resolve_segmenter, warn_mixed_words
from lightning_nli.training.corpora import RunData
from lightning_nli.training.strategy import (
    Engine,
    build_strategy,
    resolve_accelerator,
    resolve_attention,
    resolve_precision,
)
from lightning_nli.training.trained import RunMeta
from lightning_nli.types import UserError


def load_run_encoder(config: ExperimentConfig, data: RunData) -> tuple[LoadedEncoder, Engine, RunMeta]:
    """Encoder, engine, and what the run must remember of its encoder.

    Raises:
        UserError: a setting that the encoder or the machine cannot serve.
    """
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
    check_length(config.model, loaded.model.config, config.text.max_length)
    if config.engine.activation_checkpointing and not loaded.model.supports_gradient_checkpointing:
        raise UserError(f"--activation-checkpointing: {type(loaded.model).__name__} cannot recompute its layers")
    engine = build_strategy(config.engine, family=loaded.model.config.model_type, clip=config.optim.clip)
    segmenter = resolve_segmenter(config.text.segmenter, config.model, loaded.tokenizer)
    frames = [data.train, *data.scored.values()]
    warn_mixed_words(config.model, loaded.tokenizer, segmenter, frames, data.segments)
    return loaded, engine, RunMeta.of(loaded, data.scheme, data.segments, segmenter)


def _training_texts(config: ExperimentConfig, data: RunData) -> list[str]:
    """Texts as the tokenizer will see them, for the models whose vocabulary is made of them."""
    segment = WordSegmenter("none" if config.text.segmenter == "auto" else config.text.segmenter)
    columns = [data.train[name].to_list() for name in data.segments]
    segmented = {text: segment(text) for column in columns for text in set(column)}
    return [segmented[text] for column in columns for text in column]
