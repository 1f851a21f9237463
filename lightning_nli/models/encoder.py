"""Pretrained weights -> encoder over flat tokens, with the model's own pooling and head.

Shape suffixes: S segments, T tokens, D hidden, C labels.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
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
from lightning_nli.models.padded import PaddedEncoder
from lightning_nli.types import IGNORE_INDEX, LabelScheme, UserError

log = logging.getLogger(__name__)

# What published NLI heads call our labels, lower case.
_HEAD_NAMES = {
    "entailment": ("entailment", "entailed", "support", "supports", "entail"),
    "neutral": ("neutral", "unrelated", "not mentioned", "notmentioned"),
    "contradiction": ("contradiction", "contradictory", "refute", "refutes", "contradict"),
    "non_entailment": ("non_entailment", "non-entailment", "not_entailment", "not-entailment", "not entailment"),
}
_SAME_MEANING = {"support": "entailment", "refute": "contradiction", "unrelated": "neutral"}


class PackedEncoder(nn.Module):
    """A Hugging Face sequence classifier that reads a pack of segments in one row without padding.

    The layers run over all T tokens at once, attention stays inside segments through the registered hook, and the
    first token of every segment is handed to the model's own pooler and head.
    """

    def __init__(self, model: Any, backend: AttentionBackend) -> None:
        super().__init__()
        register_attention_hook()
        self.model = model
        self.backend = backend
        model.config._attn_implementation = HOOK_NAME
        self._layout: AttentionLayout | None = None
        _layer_stack(model).register_forward_hook(self._keep_first_tokens)

    def _keep_first_tokens(self, _module: nn.Module, _inputs: Any, output: Any) -> Any:
        """(1, T, D) -> (S, 1, D): what follows pools place 0 of every row, as it would of a padded batch."""
        if self._layout is None:  # the library's own, padded road (`_probe`)
            return output
        first_S = self._layout.cu_seqlens[:-1].long()
        output.last_hidden_state = output.last_hidden_state[0, first_S].unsqueeze(1)
        return output

    def forward(self, batch: PackedBatch) -> Tensor:
        """(S, C) logits."""
        self._layout = AttentionLayout.of(batch.cu_seqlens, batch.max_seqlen, self.backend)
        try:
            inputs = {"input_ids": batch.input_ids[None], "position_ids": batch.position_ids[None]}
            if batch.token_type_ids is not None:
                inputs["token_type_ids"] = batch.token_type_ids[None]
            logits: Tensor = self.model(**inputs, packed_layout=self._layout).logits
        finally:
            self.last_num_calls = self._layout.num_calls
            self._layout = None
        return logits


def _layer_stack(model: Any) -> nn.Module:
    """The module that turns embeddings into the last hidden states (its output is pooled next).

    Raises:
        UserError: the architecture names it otherwise.
    """
    base = model.base_model
    for name in ("encoder", "transformer"):
        if isinstance(getattr(base, name, None), nn.Module):
            return getattr(base, name)  # type: ignore[no-any-return]
    raise UserError(f"{type(model).__name__} has no layer stack that packing knows; take --attention padded")


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
    offset = config.pad_token_id + 1 if config.model_type in _ROBERTA_LIKE else 0
    return int(positions) - offset


_ROBERTA_LIKE = ("roberta", "xlm-roberta", "camembert", "longformer", "xlm-roberta-xl", "xmod", "data2vec-text")


@dataclass
class LoadedEncoder:
    """An encoder ready to train or score.

    Attributes:
        encoder: `PackedEncoder` or `PaddedEncoder`; its `.model` is the Hugging Face model.
        tokenizer: The fast tokenizer that goes with it.
        head_is_new: Whether the classification head starts from random weights.
    """

    encoder: nn.Module
    tokenizer: Any
    head_is_new: bool

    @property
    def model(self) -> Any:
        return self.encoder.model

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
    device: torch.device | None = None,
    seed: int = 1,
) -> LoadedEncoder:
    """Load a sequence classifier and its tokenizer; a published NLI head is matched by label name.

    Args:
        folder: Hugging Face name or folder.
        scheme: The task's labels; the returned logits are in its order.
        head: `auto`, `new`, or `LABEL_0=entailment,...` for a head without label names.
        attention: `--attention`.
        device: Where it will run (chooses the kernel).
        seed: Of a new head.

    Raises:
        UserError: the model is not there, has another number of labels, a head without names, or ignores the hook.
    """
    from transformers import AutoTokenizer

    quiet_transformers()
    with _hub_errors(folder):
        tokenizer = AutoTokenizer.from_pretrained(str(folder))
    torch.manual_seed(seed)
    model, head_is_new = _load_classifier(folder, scheme, head)
    model.config.id2label = dict(enumerate(scheme.names))
    model.config.label2id = {name: index for index, name in enumerate(scheme.names)}
    if attention == "padded":
        return LoadedEncoder(PaddedEncoder(model), tokenizer, head_is_new)
    backend = choose_backend(attention, device or torch.device("cpu"))
    if (
        backend is AttentionBackend.VARLEN
        and float(getattr(model.config, "attention_probs_dropout_prob", None) or 0) > 0
    ):
        log.warning("torch's own flash kernel has no attention dropout: trained without (--attention flash has it)")
    encoder = PackedEncoder(model, backend)
    _probe(encoder, tokenizer)
    return LoadedEncoder(encoder, tokenizer, head_is_new)


def quiet_transformers() -> None:
    """No progress bars and load reports from the library: what a user must know of a load, we say ourselves."""
    from transformers.utils import logging as hf_logging

    hf_logging.set_verbosity_error()
    hf_logging.disable_progress_bar()


@contextlib.contextmanager
def _hub_errors(folder: Path | str) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:
        first_line = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise UserError(
            f"model '{folder}' cannot be loaded: {first_line} (without a network, give a folder, or `e5-small`)"
        ) from error


def _load_classifier(folder: Path | str, scheme: LabelScheme, head: str) -> tuple[Any, bool]:
    from transformers import AutoConfig, AutoModelForSequenceClassification

    with _hub_errors(folder):
        config = AutoConfig.from_pretrained(str(folder))
        model, info = AutoModelForSequenceClassification.from_pretrained(
            str(folder), output_loading_info=True, dtype=torch.float32
        )
    missing = set(info["missing_keys"])
    output = _output_layer(model)
    has_head = f"{output}.weight" not in missing
    if has_head and head != "new":
        mapping = None if head == "auto" else _parse_mapping(head)
        order = _match_head({int(i): name for i, name in config.id2label.items()}, scheme, mapping, str(folder))
        layer = model.get_submodule(output)
        with torch.no_grad():
            layer.weight.copy_(layer.weight[order].clone())
            if layer.bias is not None:
                layer.bias.copy_(layer.bias[order].clone())
        return model, False
    if head not in ("auto", "new"):
        raise UserError(f"--head {head}: '{folder}' has no trained head to map; leave --head at auto")
    if has_head:
        log.warning("the trained head of %s is put aside: a new one starts from random weights (--head new)", folder)
    _replace_output(model, output, len(scheme.labels))
    return model, True


def _output_layer(model: Any) -> str:
    """Name of the last linear layer outside the base model: the one that makes the logits."""
    prefix = f"{model.base_model_prefix}."
    names: list[str] = [
        name
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear)
        and not name.startswith(prefix)
        and module.out_features == model.config.num_labels
    ]
    if not names:
        raise UserError(f"{type(model).__name__} has no classification layer that we know")
    return names[-1]


def _replace_output(model: Any, name: str, num_labels: int) -> None:
    parent, _, leaf = name.rpartition(".")
    old = model.get_submodule(name)
    new = nn.Linear(old.in_features, num_labels, bias=old.bias is not None)
    nn.init.normal_(new.weight, std=getattr(model.config, "initializer_range", 0.02))
    if new.bias is not None:
        nn.init.zeros_(new.bias)
    setattr(model.get_submodule(parent) if parent else model, leaf, new)
    model.num_labels = model.config.num_labels = num_labels


def _parse_mapping(head: str) -> dict[str, str]:
    mapping = {}
    for entry in head.split(","):
        name, found, label = (part.strip() for part in entry.partition("="))
        if not found or not name or not label:
            raise UserError(f"--head takes auto, new, or LABEL_0=entailment,LABEL_1=...; got '{head}'")
        mapping[name] = label
    return mapping


def _meaning(name: str) -> str | None:
    plain = name.strip().lower()
    return next((label for label, spellings in _HEAD_NAMES.items() if plain in spellings), None)


def _match_head(
    published: dict[int, str], scheme: LabelScheme, mapping: dict[str, str] | None, folder: str
) -> list[int]:
    """Row of the published head for each label of the scheme.

    Raises:
        UserError: another number of labels, names that say nothing, or names that do not fit the scheme.
    """
    if len(published) != len(scheme.labels):
        merge = " (a three-way head cannot answer two labels: to merge neutral and contradiction, train a new head)"
        raise UserError(
            f"the head of '{folder}' has {len(published)} labels {list(published.values())}, the data has "
            f"{len(scheme.labels)} {scheme.names}{merge if len(published) > len(scheme.labels) else ''}; "
            "--head new starts a new head"
        )
    rows: dict[str, int] = {}
    for row, name in published.items():
        label = _meaning((mapping or {}).get(name, name))
        if label is None:
            raise UserError(
                f"the head of '{folder}' names label {row} '{name}', which says nothing: give its meaning as "
                f"--head {','.join(f'{known}=...' for known in published.values())}, or --head new"
            )
        rows[label] = row
    wanted = [_SAME_MEANING.get(label.value, label.value) for label in scheme.labels]
    if set(wanted) != set(rows):
        raise UserError(f"the head of '{folder}' answers {sorted(rows)}, the data asks {sorted(wanted)}; --head new")
    return [rows[label] for label in wanted]


@torch.no_grad()
def _probe(encoder: PackedEncoder, tokenizer: Any) -> None:
    """Refuse a model whose packed logits are not those of the library's own padded run (fp32, CPU, two segments).

    A model that takes the hook's argument and ignores it would let neighbours leak into each other without an error.
    """
    model = encoder.model
    usable = [i for i in range(min(len(tokenizer), 64)) if i not in tokenizer.all_special_ids] or [0]
    lengths = [3, 7]
    ids = torch.tensor([usable[i % len(usable)] for i in range(sum(lengths))])
    start = first_position(model)
    uses_types = (getattr(model.config, "type_vocab_size", 0) or 0) > 1
    batch = PackedBatch(
        input_ids=ids,
        position_ids=torch.cat([torch.arange(n) + start for n in lengths]),
        token_type_ids=torch.zeros_like(ids) if uses_types else None,
        cu_seqlens=torch.tensor([0, 3, 10], dtype=torch.int32),
        max_seqlen=7,
        labels=torch.full((2,), IGNORE_INDEX),
        example_ids=torch.arange(2),
        step_num_segments=1,
    )
    training, backend = model.training, encoder.backend
    model.eval()
    encoder.backend = AttentionBackend.BUCKETED
    try:
        packed = encoder(batch)
        model.config._attn_implementation = "eager"
        padded = PaddedEncoder(model)(batch)
    finally:
        model.config._attn_implementation, encoder.backend = HOOK_NAME, backend
        model.train(training)
    layers = model.config.num_hidden_layers
    if encoder.last_num_calls != layers or not torch.allclose(packed, padded, rtol=1e-3, atol=1e-4):
        raise UserError(
            f"{type(model).__name__} does not run packed (its {layers} layers called our attention "
            f"{encoder.last_num_calls} times, logits differ by {(packed - padded).abs().max():.1e}); "
            "take --attention padded"
        )
