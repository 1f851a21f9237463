"""A finished (or stopped) run, opened again: its checkpoint as a full-vocabulary fp32 model with its tokenizer."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from lightning_nli.config import ExperimentConfig, TextConfig, cache_root
from lightning_nli.config_setfit import SETFIT
from lightning_nli.config_text import resolve_truncation
from lightning_nli.data.segments import MARKERS, Joining, Truncation
from lightning_nli.data.text import WordSegmenter
from lightning_nli.data.tokenization import EncoderSpec, TokenizedSplit
from lightning_nli.models.chunks import ChunkPooling
from lightning_nli.models.encoder import LoadedEncoder, PackedEncoder, wrap_encoder
from lightning_nli.models.heads import prepare_transformers
from lightning_nli.models.native import use_native_kernels
from lightning_nli.models.offline import resolve_model
from lightning_nli.models.padded import LongformerEncoder, PaddedEncoder
from lightning_nli.models.registry import Road, architecture_of
from lightning_nli.models.vocabulary import restore_vocabulary, vocabulary_size
from lightning_nli.training.checkpoint import CheckpointIndex, read_weights
from lightning_nli.training.run_folder import read_run_config
from lightning_nli.training.scoring import Scorer
from lightning_nli.training.setfit import SetFitScorer, load_setfit
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
        truncation: What goes of a longer example (what `auto` stood for).
        ratio: Weights that proportional truncation shares the room by, one a segment; None for other rules.
        chunk_length: Longest chunk in tokens, where longer examples are read in chunks.
    """

    scheme: str
    segments: tuple[str, ...]
    architecture: str
    road: Road
    segmenter: str = "none"
    segmenter_version: str = ""
    num_tokens: int | None = None
    truncation: Truncation = Truncation.LONGEST_FIRST
    ratio: tuple[int, ...] | None = None
    chunk_length: int | None = None

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
        names = ("architecture", "road", "segmenter", "segmenter_version", "chunk_length")
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
    values |= {"segments": tuple(values["segments"]), "road": Road(values["road"])}
    if "truncation" not in values:  # a run of an earlier version
        values |= {"truncation": resolve_truncation(read_run_config(folder).text, len(values["segments"]))}
    ratio = values.get("ratio")
    values |= {"truncation": Truncation(values["truncation"]), "ratio": None if ratio is None else tuple(ratio)}
    return RunMeta(**values)


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
    scorer: Scorer | SetFitScorer


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
    if config.method == SETFIT:
        is_as_stored = checkpoint == "best" and max_tokens is None
        return _open_setfit(folder, config, is_as_stored=is_as_stored, precision=precision)
    meta = read_meta(folder)
    scheme = SCHEMES[meta.scheme]
    path = checkpoint_path(folder, checkpoint)
    model = load_model(folder, path, config)
    tokenizer = AutoTokenizer.from_pretrained(folder / "encoder")
    _check_tokenizer(folder, tokenizer, model, meta)
    engine = config.engine
    use_native_kernels(engine.native_kernels == "auto")
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
    spec = encoder_spec(config, loaded, meta)
    point_out_specials(loaded, spec, config.text, meta.chunk_length)
    scorer = Scorer(
        encoder=loaded.encoder,
        spec=spec,
        scheme=scheme,
        first_position=loaded.first_position,
        max_tokens=max_tokens or config.packing.eval_max_tokens,
        device=device,
        cache=cache_root(),
    )
    return OpenedRun(folder, config, scheme, path, scorer)


def _open_setfit(folder: Path, config: ExperimentConfig, *, is_as_stored: bool, precision: str | None) -> OpenedRun:
    if not is_as_stored or precision not in (None, "fp32"):
        raise UserError(
            f"{folder} is a SetFit run: one stored model, in fp32, that reads batches of rows; leave out --checkpoint, "
            "--precision and --eval-max-tokens"
        )
    scorer = load_setfit(folder, config)
    return OpenedRun(folder, config, scorer.scheme, folder / SETFIT, scorer)


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
        joining=Joining(config.text.template),
        truncation=meta.truncation,
        ratio=meta.ratio,
        normalize=config.text.normalize == "nfc",
        segmenter=meta.segmenter,
        num_token_types=loaded.num_token_types,
    )


def describe_truncation(meta: RunMeta, tokens: dict[str, TokenizedSplit]) -> dict[str, Any]:
    """What `--max-length` did to each set, for `result.json`: the rule, shares in percent, examples and tokens cut."""
    cut = {
        name: {"num_examples": len(split), "num_truncated": split.num_truncated, "num_cut_tokens": split.num_cut_tokens}
        for name, split in tokens.items()
    }
    shares: dict[str, float] | None = None
    if meta.ratio is not None:
        percent = [round(100 * weight / sum(meta.ratio), 1) for weight in meta.ratio]
        shares = dict(zip(meta.segments, percent, strict=True))
    return {"rule": meta.truncation, "shares": shares, "sets": cut}


def point_out_specials(
    loaded: LoadedEncoder,
    spec: EncoderSpec,
    text: TextConfig,
    chunk_length: int | None,
    remap: npt.NDArray[np.int64] | None = None,
) -> None:
    """Tell an encoder which ids of its batches are markers (Longformer looks at them) and where texts end (chunks).

    Args:
        loaded: Encoder, changed in place.
        spec: How text becomes ids.
        text: Settings.
        chunk_length: Longest chunk in tokens; None: examples are read whole.
        remap: New id of every token id, where the vocabulary is trimmed.
    """

    def in_batch(ids: Iterable[int]) -> tuple[int, ...]:
        return tuple(ids) if remap is None else tuple(int(remap[token]) for token in ids)

    encoder = loaded.encoder
    assert isinstance(encoder, PackedEncoder | PaddedEncoder), type(encoder)
    if isinstance(encoder, LongformerEncoder) and spec.joining == Joining.MARKERS:
        known = spec.tokenizer.get_vocab()
        encoder.global_token_ids = in_batch(known[MARKERS[name]] for name in spec.segments)
    if chunk_length is not None:
        encoder.chunks = ChunkPooling(
            length=chunk_length,
            how=text.chunk_pool,
            special_ids=in_batch(spec.template.special_ids),
            first_position=loaded.first_position,
        )
