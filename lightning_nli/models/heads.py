"""A pretrained sequence classifier and its head: a published NLI head is matched by label name, never by position."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from lightning_nli.models.registry import near_alias
from lightning_nli.types import LabelScheme, UserError

log = logging.getLogger(__name__)

# What published NLI heads call our labels, lower case.
_HEAD_NAMES = {
    "entailment": ("entailment", "entailed", "support", "supports", "entail"),
    "neutral": ("neutral", "unrelated", "not mentioned", "notmentioned"),
    "contradiction": ("contradiction", "contradictory", "refute", "refutes", "contradict"),
    "non_entailment": ("non_entailment", "non-entailment", "not_entailment", "not-entailment", "not entailment"),
}
_SAME_MEANING = {"support": "entailment", "refute": "contradiction", "unrelated": "neutral"}


def prepare_transformers() -> None:
    """Our own model type made known, no progress bars, no load reports: what a user must know of a load, we say."""
    from transformers.utils import logging as hf_logging

    from lightning_nli.models.cbow import register_cbow

    register_cbow()
    hf_logging.set_verbosity_error()
    hf_logging.disable_progress_bar()


@contextlib.contextmanager
def hub_errors(folder: Path | str) -> Iterator[None]:
    """Turn the library's error for a model that is not there into one line, with the alias that was likely meant."""
    try:
        yield
    except (OSError, ValueError) as error:
        if "tiktoken" in str(error) or "sentencepiece" in str(error):  # the library tries the one, then asks for both
            raise UserError(
                f"the tokenizer of '{folder}' is a sentencepiece model (no tokenizer.json): pip install sentencepiece"
            ) from error
        first_line = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        near = near_alias(str(folder))
        hint = f"did you mean --model {near}? " if near else ""
        raise UserError(
            f"model '{folder}' cannot be loaded: {first_line} ({hint}without a network, give a folder, or `e5-small`)"
        ) from error


def load_classifier(folder: Path | str, scheme: LabelScheme, head: str) -> tuple[Any, bool]:
    """The Hugging Face classifier in fp32 with its head in the scheme's order, and whether that head is new.

    Args:
        folder: Hugging Face name or folder.
        scheme: The task's labels.
        head: `auto`, `new`, or `LABEL_0=entailment,...`.

    Raises:
        UserError: the model is not there, or its head does not fit the scheme.
    """
    from transformers import AutoConfig, AutoModelForSequenceClassification

    with hub_errors(folder):
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
