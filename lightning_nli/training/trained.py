"""A finished (or stopped) run, opened again: its checkpoint as a full-vocabulary fp32 model with its tokenizer."""

from __future__ import annotations

import json
import logging
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from lightning_nli.config import ExperimentConfig, cache_root
from lightning_nli.data.text import WordSegmenter
from lightning_nli.data.tokenization import EncoderSpec
from lightning_nli.models.encoder import LoadedEncoder, wrap_encoder
from lightning_nli.models.heads import prepare_transformers
from lightning_nli.models.offline import resolve_model
from lightning_nli.models.registry import Road, architecture_of
from lightning_nli.models.vocabulary import restore_vocabulary, vocabulary_size
from lightning_nli.training.checkpoint import CheckpointIndex, read_weights
from lightning_nli.training.run_folder import read_run_config
from lightning_nli.training.scoring import Scorer
from lightning_nli.training.strategy import resolve_accelerator, resolve_precision
from lightning_nli.types import SCHEMES, LabelScheme, UserError

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RunMeta:
    """What a run must remember beside its settings to be opened again; `encoder/meta.json`.

    Attributes:
        scheme: Name of the label scheme.
        segments: Text columns of one example, in order.
        architecture: The encoder's `model_type`.
        road: How it reads a pack.
        segmenter: Word segmenter of its texts (what `auto` stood for).
        segmenter_version: Version of that segmenter's package; empty for `none`.
        num_tokens: Ids of its tokenizer, added tokens included; None in runs of earlier versions.
    """

    scheme: str
    segments: tuple[str, ...]
    architecture: str
    road: Road
    segmenter: str = "none"
    segmenter_version: str = ""
    num_tokens: int | None = None

    @classmethod
    def of(cls, loaded: LoadedEncoder, scheme: LabelScheme, segments: tuple[str, ...], segmenter: str) -> RunMeta:
        return cls(
            scheme=scheme.name,
            segments=segments,
            architecture=loaded.model.config.model_type,
            road=loaded.road,
            segmenter=segmenter,
            segmenter_version=WordSegmenter(segmenter).version,
            num_tokens=vocabulary_size(loaded.tokenizer),
        )

    def as_result(self) -> dict[str, Any]:
        """What `result.json` says of the encoder."""
        names = ("architecture", "road", "segmenter", "segmenter_version")
        return {name: value or None for name, value in asdict(self).items() if name in names}


def save_encoder(folder: Path, loaded: LoadedEncoder, meta: RunMeta, kept: npt.NDArray[np.int64] | None) -> None:
    """Keep the encoder's architecture, tokenizer and kept vocabulary rows in `encoder/` of a run folder."""
    target = folder / "encoder"
    target.mkdir(exist_ok=True)
    loaded.tokenizer.save_pretrained(target)
    loaded.model.config.save_pretrained(target)
    if kept is not None:
        np.save(target / "kept_tokens.npy", kept)
    (target / "meta.json").write_text(json.dumps(asdict(meta)), encoding="utf-8")


def read_meta(folder: Path) -> RunMeta:
    """What a run remembers of its encoder.

    Raises:
        UserError: the folder holds no trained encoder.
    """
    path = folder / "encoder" / "meta.json"
    if not path.exists():
        raise UserError(f"{folder} is not a folder of a trained encoder (no encoder/meta.json)")
    values = json.loads(path.read_text(encoding="utf-8"))
    if "road" not in values:  # a run of an earlier version
        config = json.loads((folder / "encoder" / "config.json").read_text(encoding="utf-8"))
        values |= {"architecture": config["model_type"], "road": architecture_of(config["model_type"]).road}
        values |= {"segmenter": read_run_config(folder).text.segmenter}
    return RunMeta(**values | {"segments": tuple(values["segments"]), "road": Road(values["road"])})


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

    prepare_transformers()
    model = AutoModelForSequenceClassification.from_config(AutoConfig.from_pretrained(folder / "encoder"))
    weights = read_weights(checkpoint)
    kept_file = folder / "encoder" / "kept_tokens.npy"
    name = next(name for name, value in model.named_parameters() if value is model.get_input_embeddings().weight)
    if kept_file.exists():
        kept = torch.from_numpy(np.load(kept_file))
        num_rows = len(model.get_input_embeddings().weight)
        weights[name] = restore_vocabulary(_pretrained_embedding(config.model), weights[name], kept, num_rows)
    elif name in weights and len(weights[name]) != len(model.get_input_embeddings().weight):
        raise UserError(
            f"{checkpoint} has {len(weights[name])} embedding rows, the model of {folder / 'encoder'} has "
            f"{len(model.get_input_embeddings().weight)}; they are not of the same run"
        )
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
    tokenizer = AutoTokenizer.from_pretrained(folder / "encoder")
    _check_tokenizer(folder, tokenizer, model, meta)
    engine = config.engine
    accelerator = resolve_accelerator(engine)
    word = precision or resolve_precision(engine, accelerator, family=model.config.model_type)
    device = torch.device("cuda" if accelerator == "gpu" else "cpu")
    if word in ("bf16", "bf16-autocast"):
        model = model.to(torch.bfloat16)
    elif word == "fp16":
        model = model.half()
    attention = "bucketed" if word == "fp32" and engine.attention != "sdpa" else engine.attention  # flash: half only
    encoder = wrap_encoder(model, attention if meta.road is Road.PACKED else "padded", device)
    loaded = LoadedEncoder(encoder.to(device).eval(), tokenizer, head_is_new=False)
    scorer = Scorer(
        encoder=loaded.encoder,
        spec=encoder_spec(config, loaded, meta),
        scheme=scheme,
        first_position=loaded.first_position,
        max_tokens=max_tokens or config.packing.eval_max_tokens,
        device=device,
        cache=cache_root(),
    )
    return OpenedRun(folder, config, scheme, path, scorer)


def _check_tokenizer(folder: Path, tokenizer: Any, model: Any, meta: RunMeta) -> None:
    """Tokenizer, embedding table and segmenter are those that the run was trained with."""
    num_tokens, num_rows = vocabulary_size(tokenizer), len(model.get_input_embeddings().weight)
    if num_tokens > num_rows or num_tokens != (meta.num_tokens or num_tokens):
        trained = "" if meta.num_tokens is None else f" and the run was trained with {meta.num_tokens}"
        raise UserError(
            f"{folder / 'encoder'}: the tokenizer has {num_tokens} tokens, the embedding table {num_rows} rows{trained}"
        )
    version = WordSegmenter(meta.segmenter).version
    if version != meta.segmenter_version:
        log.warning(
            "%s was trained on text segmented by %s %s, here is version %s: some words may be joined otherwise",
            folder,
            meta.segmenter,
            meta.segmenter_version or "(version not recorded)",
            version,
        )


def encoder_spec(config: ExperimentConfig, loaded: LoadedEncoder, meta: RunMeta) -> EncoderSpec:
    """How this run turns text into ids."""
    return EncoderSpec(
        tokenizer=loaded.tokenizer,
        segments=meta.segments,
        max_length=config.text.max_length,
        truncation=config.text.truncation,
        normalize=config.text.normalize == "nfc",
        segmenter=meta.segmenter,
        num_token_types=loaded.num_token_types,
    )
