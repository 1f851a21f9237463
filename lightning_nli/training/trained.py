"""A finished (or stopped) run, opened again: its checkpoint as a full-vocabulary fp32 model with its tokenizer."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from lightning_nli.config import ExperimentConfig, cache_root, load_config
from lightning_nli.data.tokenization import EncoderSpec
from lightning_nli.models.attention import choose_backend
from lightning_nli.models.encoder import LoadedEncoder, PackedEncoder, quiet_transformers
from lightning_nli.models.offline import resolve_model
from lightning_nli.models.padded import PaddedEncoder
from lightning_nli.models.vocabulary import restore_vocabulary
from lightning_nli.training.checkpoint import CheckpointIndex, read_weights
from lightning_nli.training.scoring import Scorer
from lightning_nli.training.strategy import resolve_accelerator, resolve_precision
from lightning_nli.types import SCHEMES, LabelScheme, UserError


@dataclass(frozen=True)
class RunMeta:
    """What a run must remember beside its settings to be opened again; `encoder/meta.json`.

    Attributes:
        scheme: Name of the label scheme.
        segments: Text columns of one example, in order.
    """

    scheme: str
    segments: tuple[str, ...]


def save_encoder(folder: Path, loaded: LoadedEncoder, meta: RunMeta, kept: npt.NDArray[np.int64] | None) -> None:
    """Keep the encoder's architecture, tokenizer and kept vocabulary rows in `encoder/` of a run folder."""
    target = folder / "encoder"
    target.mkdir(exist_ok=True)
    loaded.tokenizer.save_pretrained(target)
    loaded.model.config.save_pretrained(target)
    if kept is not None:
        np.save(target / "kept_tokens.npy", kept)
    values = {"scheme": meta.scheme, "segments": list(meta.segments)}
    (target / "meta.json").write_text(json.dumps(values), encoding="utf-8")


def read_meta(folder: Path) -> RunMeta:
    """Scheme and segments of a run.

    Raises:
        UserError: the folder holds no trained encoder.
    """
    path = folder / "encoder" / "meta.json"
    if not path.exists():
        raise UserError(f"{folder} is not a folder of a trained encoder (no encoder/meta.json)")
    values = json.loads(path.read_text(encoding="utf-8"))
    return RunMeta(values["scheme"], tuple(values["segments"]))


def checkpoint_path(folder: Path, choice: str = "best") -> Path:
    """Path of the checkpoint `best` (the last one where nothing chose), `last`, or one given as a path.

    Raises:
        UserError: it is not there.
    """
    if choice not in ("best", "last"):
        return Path(choice)
    index = CheckpointIndex.read(folder / "checkpoints")
    entry = index.chosen() if choice == "best" else index.last
    if entry is None:
        raise UserError(f"{folder} has no checkpoint yet")
    return folder / "checkpoints" / entry.name


def load_model(folder: Path, checkpoint: Path, config: ExperimentConfig) -> Any:
    """The Hugging Face classifier with the checkpoint's fp32 weights and every vocabulary row.

    Raises:
        UserError: the weights do not fit the run's encoder.
    """
    from transformers import AutoConfig, AutoModelForSequenceClassification

    quiet_transformers()
    model = AutoModelForSequenceClassification.from_config(AutoConfig.from_pretrained(folder / "encoder"))
    weights = read_weights(checkpoint)
    kept_file = folder / "encoder" / "kept_tokens.npy"
    name = next(name for name, value in model.named_parameters() if value is model.get_input_embeddings().weight)
    if kept_file.exists():
        kept = torch.from_numpy(np.load(kept_file))
        pretrained = _pretrained_embedding(config.model)
        if len(kept) != len(weights[name]) or len(pretrained) != len(model.get_input_embeddings().weight):
            raise UserError(f"{checkpoint} has {len(weights[name])} vocabulary rows, {kept_file} names {len(kept)}")
        weights[name] = restore_vocabulary(pretrained, weights[name], kept)
    missing, unexpected = model.load_state_dict({k: v.float() for k, v in weights.items()}, strict=False)
    missing = [name for name in missing if name in dict(model.named_parameters())]
    if missing or unexpected:
        raise UserError(f"{checkpoint} does not fit {folder / 'encoder'}: missing {missing}, unexpected {unexpected}")
    return model.eval()


def _pretrained_embedding(name: str) -> torch.Tensor:
    from transformers import AutoModel

    source = resolve_model(name, list)
    try:
        model = AutoModel.from_pretrained(str(source), dtype=torch.float32)
    except OSError as error:
        raise UserError(
            f"the run trained part of the vocabulary of '{name}', whose rest cannot be found: {error}"
        ) from None
    return model.get_input_embeddings().weight.detach()  # type: ignore[no-any-return]


@dataclass(frozen=True)
class OpenedRun:
    """A run with its trained model.

    Attributes:
        folder: Run folder.
        config: Its settings.
        scheme: Labels in logit order.
        checkpoint: Where the weights are from.
        scorer: The model, ready to score rows.
    """

    folder: Path
    config: ExperimentConfig
    scheme: LabelScheme
    checkpoint: Path
    scorer: Scorer


def read_run_config(folder: Path) -> ExperimentConfig:
    """Settings of the run in `folder`.

    Raises:
        UserError: it holds no run.
    """
    if not (folder / "config.yaml").exists():
        raise UserError(f"{folder} is not a run folder (no config.yaml)")
    return load_config(folder / "config.yaml")


def open_run(
    folder: Path, *, checkpoint: str = "best", precision: str | None = None, max_tokens: int | None = None
) -> OpenedRun:
    """Load a run's model for scoring.

    Args:
        folder: Run folder.
        checkpoint: `best`, `last` or a path.
        precision: Other than the run's own.
        max_tokens: Tokens per pack, other than the run's own.

    Raises:
        UserError: the run or its checkpoint is not there or damaged.
    """
    from transformers import AutoTokenizer

    config = read_run_config(folder)
    meta = read_meta(folder)
    scheme = SCHEMES[meta.scheme]
    path = checkpoint_path(folder, checkpoint)
    model = load_model(folder, path, config)
    engine = config.engine
    accelerator = resolve_accelerator(engine)
    word = precision or resolve_precision(engine, accelerator, family=model.config.model_type)
    device = torch.device("cuda" if accelerator == "gpu" else "cpu")
    if word in ("bf16", "bf16-autocast"):
        model = model.to(torch.bfloat16)
    elif word == "fp16":
        model = model.half()
    padded = engine.attention == "padded"
    attention = "bucketed" if word == "fp32" and engine.attention != "sdpa" else engine.attention  # flash: half only
    encoder = PaddedEncoder(model) if padded else PackedEncoder(model, choose_backend(attention, device))
    tokenizer = AutoTokenizer.from_pretrained(folder / "encoder")
    loaded = LoadedEncoder(encoder.to(device).eval(), tokenizer, head_is_new=False)
    scorer = Scorer(
        encoder=loaded.encoder,
        spec=encoder_spec(config, loaded, meta.segments),
        scheme=scheme,
        first_position=loaded.first_position,
        max_tokens=max_tokens or config.packing.eval_max_tokens,
        device=device,
        cache=cache_root(),
    )
    return OpenedRun(folder, config, scheme, path, scorer)


def encoder_spec(config: ExperimentConfig, loaded: LoadedEncoder, segments: tuple[str, ...]) -> EncoderSpec:
    """How this run turns text into ids."""
    return EncoderSpec(
        tokenizer=loaded.tokenizer,
        segments=segments,
        max_length=config.text.max_length,
        truncation=config.text.truncation,
        normalize=config.text.normalize == "nfc",
        segmenter=config.text.segmenter,
        num_token_types=loaded.num_token_types,
    )
