"""What one `--model` needs, and whether this machine has it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from lightning_nli.cli.diagnosis import Finding, Machine, State, e5_small_weights
from lightning_nli.models.offline import CBOW, E5_SMALL, TINY, is_built_here
from lightning_nli.models.registry import Architecture, ModelCard, Road, architecture_of, model_card, near_alias

_WEIGHTS = ("*.safetensors", "pytorch_model*.bin")


def diagnose_model(name: str, machine: Machine) -> Iterator[Finding]:
    """Findings about one model.

    Args:
        name: `--model`: an alias or hub name of the registry, a folder, or any other hub name.
        machine: What a run on this machine takes.
    """
    part = f"model {name}"
    family, _, vectors = name.partition(":") if is_built_here(name) else (name, "", "")
    card = model_card(family)
    config = Path(name) / "config.json"
    if name in (E5_SMALL, TINY):
        what = "multilingual-e5-small" if name == E5_SMALL else "a random encoder for tests"
        yield Finding(part, "what it is", State.OK, f"{what}: up to 512 tokens")
        if name == E5_SMALL:
            yield e5_small_weights(part)
        yield from _architecture(part, architecture_of("bert"), machine)
    elif card is not None:
        yield Finding(part, "what it is", State.OK, f"{card.hub_id}: up to {card.max_tokens} tokens")
        if vectors and not Path(vectors).is_file():
            yield Finding(part, "vectors", State.MISSING, f"no file {vectors}", "lnli doctor --model cbow:FILE")
        elif family != CBOW:
            yield _weights(part, card.hub_id)
        yield from _segmentation(part, card, machine)
        yield from _architecture(part, card.architecture, machine)
    elif config.is_file():
        yield from _folder(part, config, machine)
    elif near := near_alias(name):
        detail = f"neither a folder nor in our registry; did you mean '{near}'?"
        yield Finding(part, "what it is", State.MISSING, detail, f"lnli doctor --model {near}")
    else:
        yield Finding(part, "what it is", State.NOTE, "neither a folder with a config.json nor in our registry")
        yield _weights(part, name)


def _folder(part: str, config: Path, machine: Machine) -> Iterator[Finding]:
    try:
        model_type = str(json.loads(config.read_text(encoding="utf-8")).get("model_type"))
    except (ValueError, AttributeError) as error:  # no JSON, or no object
        yield Finding(part, "what it is", State.MISSING, f"{config} cannot be read: {error}", "copy the folder again")
        return
    yield Finding(part, "what it is", State.OK, f"a folder, architecture '{model_type}'")
    yield from _architecture(part, architecture_of(model_type), machine)


def _weights(part: str, hub_id: str) -> Finding:
    from huggingface_hub import try_to_load_from_cache

    try:
        config = try_to_load_from_cache(hub_id, "config.json")
    except ValueError:  # no name that the hub could have
        return Finding(part, "weights", State.MISSING, "no such folder, and the hub has no such names")
    if isinstance(config, str) and any(any(Path(config).parent.glob(pattern)) for pattern in _WEIGHTS):
        return Finding(part, "weights", State.OK, f"in {Path(config).parent}")
    mend = f"hf download {hub_id}  # where the hub can be reached; then give --model the folder, or share HF_HOME"
    return Finding(part, "weights", State.MISSING, "not in the hub's cache on this machine", mend)


def _segmentation(part: str, card: ModelCard, machine: Machine) -> Iterator[Finding]:
    if not card.word_segmented:
        return
    if machine.segmenters:
        detail = f"trained on word-segmented Vietnamese; here: {', '.join(machine.segmenters)}"
        yield Finding(part, "segmenter", State.OK, detail)
    else:
        detail = "trained on word-segmented Vietnamese, and no segmenter is here"
        yield Finding(part, "segmenter", State.MISSING, detail, "pip install 'lightning-nli[vietnamese]'")


def _architecture(part: str, architecture: Architecture, machine: Machine) -> Iterator[Finding]:
    road = "packed without padding" if architecture.road is Road.PACKED else f"padded batches: {architecture.why}"
    yield Finding(part, "batches", State.OK, road)
    auto = "bf16" if machine.native_bf16 else "fp32"
    refused = [*architecture.refused_precisions, *(["fp16"] if machine.accelerator == "cpu" else [])]
    unfit = f"; refused: {', '.join(dict.fromkeys(refused))}" if refused else ""
    yield Finding(part, "precision", State.OK, f"auto takes {auto} here{unfit}")
