"""Pretrained weights -> encoder over flat tokens, with the model's own pooling and head.

Shape suffixes: S segments, T tokens, D hidden, C labels.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lightning_nli.batch import PackedBatch
from lightning_nli.models.attention import (
    HOOK_NAME,
    AttentionBackend,
    AttentionLayout,
    choose_backend,
    register_attention_hook,
)
from lightning_nli.models.chunks import ChunkPooling
from lightning_nli.models.dropout import speed_up_dropout
from lightning_nli.models.fused import fuse_layers
from lightning_nli.models.heads import hub_errors, load_classifier, prepare_transformers
from lightning_nli.models.linear import speed_up_linear
from lightning_nli.models.padded import LongformerEncoder, PaddedEncoder
from lightning_nli.models.registry import Road, architecture_of, model_card
from lightning_nli.models.vocabulary import grow_vocabulary, vocabulary_size
from lightning_nli.types import IGNORE_INDEX, LabelScheme, UserError

log = logging.getLogger(__name__)

_ROWS = 64  # tokens: what a pack is filled up to a multiple of, in bf16 on a CPU


class PackedEncoder(nn.Module):
    """A Hugging Face sequence classifier that reads a pack of segments in one row without padding.

    The layers run over all T tokens at once, attention stays inside segments through the registered hook, and the
    first token of every segment (ModernBERT with mean pooling: the mean of its tokens) is handed to the model's own
    pooler and head.
    """

    def __init__(self, model: Any, backend: AttentionBackend) -> None:
        super().__init__()
        register_attention_hook()
        self._hook = _layer_stack(model).register_forward_hook(self._keep_one_state)
        self.model = model
        self.backend = backend
        self._own_attention = model.config._attn_implementation
        model.config._attn_implementation = HOOK_NAME
        self._layout: AttentionLayout | None = None
        self.chunks: ChunkPooling | None = None
        self._takes_mean = getattr(model.config, "classifier_pooling", "cls") == "mean"

    def release(self) -> Any:
        """The model as it came, with the library's own attention."""
        self._hook.remove()
        self.model.config._attn_implementation = self._own_attention
        return self.model

    def _keep_one_state(self, _module: nn.Module, _inputs: Any, output: Any) -> Any:
        """(1, T, D) -> (S, 1, D): what follows pools a row of one place, as it would a row of a padded batch."""
        if self._layout is None:  # the library's own, padded road (`_probe`)
            return output
        cu_seqlens = self._layout.cu_seqlens.long()
        states_TD = output.last_hidden_state[0, : self._layout.num_tokens]
        if self._takes_mean:
            states_SD = torch.segment_reduce(states_TD, "mean", lengths=cu_seqlens.diff())
        else:
            states_SD = states_TD[cu_seqlens[:-1]]
        output.last_hidden_state = states_SD.unsqueeze(1)
        return output

    def forward(self, batch: PackedBatch) -> Tensor:
        """(S, C) logits."""
        return self._logits(batch) if self.chunks is None else self.chunks.logits(self._logits, batch)

    def _logits(self, batch: PackedBatch) -> Tensor:
        self._layout = AttentionLayout.of(batch.cu_seqlens, batch.max_seqlen, self.backend)
        inputs = {"input_ids": batch.input_ids[None], "position_ids": batch.position_ids[None]}
        if batch.token_type_ids is not None:
            inputs["token_type_ids"] = batch.token_type_ids[None]
        try:
            if self._wants_whole_rows():
                inputs = {name: _fill_rows(values) for name, values in inputs.items()}
            logits: Tensor = self.model(**inputs, packed_layout=self._layout).logits
        finally:
            self.last_num_calls = self._layout.num_calls
            self._layout = None
        return logits

    def _wants_whole_rows(self) -> bool:
        """Whether every number of tokens would cost a compilation: oneDNN's products in bf16 are made for one shape."""
        weight = next(self.model.parameters())
        is_compiled = weight.dtype is torch.bfloat16 and weight.device.type == "cpu"
        return is_compiled and self.backend is AttentionBackend.BUCKETED


def _fill_rows(values: Tensor) -> Tensor:
    """(1, T) -> (1, T rounded up), the last value repeated; no segment holds these places, so nothing comes of them."""
    missing = -values.shape[1] % _ROWS
    return torch.cat([values, values[:, -1:].expand(1, missing)], dim=1) if missing else values


def _layer_stack(model: Any) -> nn.Module:
    """The module whose output is the last hidden states, which are pooled next.

    Raises:
        UserError: the architecture names it otherwise.
    """
    base = model.base_model
    for name in ("encoder", "transformer"):
        if isinstance(getattr(base, name, None), nn.Module):
            return getattr(base, name)  # type: ignore[no-any-return]
    if model.config.model_type == "modernbert":  # its layers stand in the base model itself, which pools nothing
        return base  # type: ignore[no-any-return]
    raise _NotPackableError(f"{type(model).__name__} has no layer stack that packing knows; take --attention padded")


def first_position(model: Any) -> int:
    """Position id of a segment's first token: `pad_id + 1` in the RoBERTa family, else 0."""
    for name, module in model.named_modules():
        if name.endswith("position_embeddings") and isinstance(module, nn.Embedding):
            return 0 if module.padding_idx is None else module.padding_idx + 1
    return 0


def longest_segment(config: Any) -> int | None:
    """Longest segment in tokens that the position table holds, or None where there is no table."""
    positions = getattr(config, "max_position_embeddings", None)
    if positions is None:
        return None
    offset = config.pad_token_id + 1 if architecture_of(config.model_type).positions_after_pad else 0
    return int(positions) - offset


def longest_input(name: str, config: Any) -> int | None:
    """Longest segment in tokens that `--model NAME` reads: what its position table and its publication allow."""
    card = model_card(name)
    limits = [longest_segment(config), None if card is None else card.max_tokens]
    return min((number for number in limits if number is not None), default=None)


def check_length(name: str, config: Any, max_length: int) -> None:
    """Make sure that a model reads segments as long as `--max-length` says.

    Args:
        name: `--model`.
        config: The model's configuration.
        max_length: Longest segment in tokens.

    Raises:
        UserError: its position table, or what it was published with, is shorter.
    """
    limit = longest_input(name, config)
    if limit is not None and max_length > limit:
        raise UserError(f"--max-length {max_length}: '{name}' reads at most {limit} tokens; take --max-length {limit}")


@dataclass
class LoadedEncoder:
    """An encoder ready to train or score.

    Attributes:
        encoder: `PackedEncoder` or `PaddedEncoder`; its `.model` is the Hugging Face model.
        tokenizer: The tokenizer that goes with it.
        head_is_new: Whether the classification head starts from random weights.
    """

    encoder: nn.Module
    tokenizer: Any
    head_is_new: bool

    @property
    def model(self) -> Any:
        return self.encoder.model

    @property
    def road(self) -> Road:
        if isinstance(self.encoder, PackedEncoder):
            return Road.PACKED
        return Road.LONGFORMER if isinstance(self.encoder, LongformerEncoder) else Road.PADDED

    @property
    def first_position(self) -> int:
        return first_position(self.model) if isinstance(self.encoder, PackedEncoder) else 0

    @property
    def num_token_types(self) -> int:
        return int(getattr(self.model.config, "type_vocab_size", 0) or 0)


def load_encoder(
    folder: Path | str,
    scheme: LabelScheme,
    *,
    head: str = "auto",
    attention: str = "auto",
    packed_attention: str = "auto",
    device: torch.device | None = None,
    seed: int = 1,
) -> LoadedEncoder:
    """Load a sequence classifier and its tokenizer; a published NLI head is matched by label name.

    Args:
        folder: Hugging Face name or folder.
        scheme: The task's labels; the returned logits are in its order.
        head: `auto`, `new`, or `LABEL_0=entailment,...` for a head without label names.
        attention: `--attention`; `auto` takes the padded road for a model that cannot be packed, and says so.
        packed_attention: Which backend `auto` means for a model that can be packed.
        device: Where it will run (chooses the kernel).
        seed: Of a new head and of new embedding rows.

    Raises:
        UserError: the model is not there, has another number of labels, a head without names, or cannot run under the
            attention asked for.
    """
    from transformers import AutoTokenizer

    prepare_transformers()
    with hub_errors(folder):
        tokenizer = AutoTokenizer.from_pretrained(str(folder))
    torch.manual_seed(seed)
    model, head_is_new = load_classifier(folder, scheme, head)
    speed_up_dropout(model)
    speed_up_linear(model)
    grow_vocabulary(model, vocabulary_size(tokenizer))
    model.config.id2label = dict(enumerate(scheme.names))
    model.config.label2id = {name: index for index, name in enumerate(scheme.names)}
    encoder = _choose_road(model, tokenizer, attention, packed_attention, device or torch.device("cpu"))
    if getattr(encoder, "backend", None) is AttentionBackend.VARLEN and _attention_dropout(model.config) > 0:
        log.warning("torch's own flash kernel has no attention dropout: trained without (--attention flash has it)")
    return LoadedEncoder(encoder, tokenizer, head_is_new)


def _choose_road(model: Any, tokenizer: Any, attention: str, packed_attention: str, device: torch.device) -> nn.Module:
    """As `wrap_encoder`, probed; under `auto` a model that turns out not to run packed is padded, with a warning."""
    if attention != "auto" or _is_padded(model):
        encoder = wrap_encoder(model, attention, device)
        if isinstance(encoder, PackedEncoder):
            _probe(encoder, tokenizer)
        return encoder
    try:
        encoder = wrap_encoder(model, packed_attention, device)
        assert isinstance(encoder, PackedEncoder)
        _probe(encoder, tokenizer)
    except _NotPackableError as error:
        log.warning("%s runs padded: %s", model.config.model_type, error)
        return PaddedEncoder(model)
    return encoder


class _NotPackableError(UserError):
    """A model that turned out not to run packed; it is left as it came."""


def _is_padded(model: Any) -> bool:
    return architecture_of(model.config.model_type).road is not Road.PACKED


def wrap_encoder(model: Any, attention: str, device: torch.device) -> nn.Module:
    """Fuse the known layers of a Hugging Face classifier; put it on the road of `--attention` and its architecture.

    Raises:
        UserError: a packed backend for an architecture that cannot be packed, or one that the device does not have.
    """
    fuse_layers(model)
    known = architecture_of(model.config.model_type)
    if known.road is not Road.PACKED and attention not in ("auto", "padded"):
        raise UserError(
            f"--attention {attention}: {known.model_type} cannot be packed, {known.why}; take --attention auto "
            "(or padded)"
        )
    if known.road is not Road.PACKED and attention == "auto":
        log.info("%s runs padded: %s", known.model_type, known.why)
    if known.road is Road.LONGFORMER:
        return LongformerEncoder(model)
    if known.road is Road.PADDED or attention == "padded":
        return PaddedEncoder(model)
    return PackedEncoder(model, choose_backend(attention, device))


def _attention_dropout(config: Any) -> float:
    names = ("attention_probs_dropout_prob", "attention_dropout")
    return max(float(getattr(config, name, None) or 0) for name in names)


@torch.no_grad()
def _probe(encoder: PackedEncoder, tokenizer: Any) -> None:
    """Refuse a model whose packed logits are not those of the library's own padded run (fp32, CPU, two segments).

    A model that takes the hook's argument and ignores it would let neighbours leak into each other without an error.
    The longer segment reaches beyond a local attention window, where the model has one.

    Raises:
        UserError: the model does not run packed; its own attention is put back.
    """
    model = encoder.model
    batch = _probe_batch(model, tokenizer, [3, 7 + (getattr(model.config, "sliding_window", None) or 0)])
    training, backend = model.training, encoder.backend
    model.eval()
    encoder.backend = AttentionBackend.BUCKETED
    fault: str | None = None
    try:
        packed = encoder(batch)
        model.config._attn_implementation = "eager"
        padded = PaddedEncoder(model)(batch)
        layers = model.config.num_hidden_layers
        if encoder.last_num_calls != layers or not torch.allclose(packed, padded, rtol=1e-3, atol=1e-4):
            fault = (
                f"its {layers} layers called our attention {encoder.last_num_calls} times, "
                f"logits differ by {(packed - padded).abs().max():.1e}"
            )
    except TypeError as error:  # it does not take the hook's argument
        fault = str(error)
    finally:
        model.config._attn_implementation, encoder.backend = HOOK_NAME, backend
        model.train(training)
    if fault is not None:
        encoder.release()
        raise _NotPackableError(f"{type(model).__name__} does not run packed ({fault}); take --attention padded")


def _probe_batch(model: Any, tokenizer: Any, lengths: list[int]) -> PackedBatch:
    usable = [i for i in range(min(len(tokenizer), 64)) if i not in tokenizer.all_special_ids] or [0]
    ids = torch.tensor([usable[i % len(usable)] for i in range(sum(lengths))])
    start = first_position(model)
    uses_types = (getattr(model.config, "type_vocab_size", 0) or 0) > 1
    return PackedBatch(
        input_ids=ids,
        position_ids=torch.cat([torch.arange(n) + start for n in lengths]),
        token_type_ids=torch.zeros_like(ids) if uses_types else None,
        cu_seqlens=torch.tensor([0, lengths[0], sum(lengths)], dtype=torch.int32),
        max_seqlen=max(lengths),
        labels=torch.full((len(lengths),), IGNORE_INDEX),
        example_ids=torch.arange(len(lengths)),
        step_num_segments=1,
    )
