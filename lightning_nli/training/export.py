"""A run -> a folder that Hugging Face pipelines load, with label names and our text normalization inside."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from lightning_nli.data.segments import MARKERS, Joining
from lightning_nli.data.text import LOOKALIKE_LETTERS, REMOVED_CHARACTERS, SPACE_CHARACTERS
from lightning_nli.models.encoder import PackedEncoder
from lightning_nli.models.offline import CBOW
from lightning_nli.models.padded import PaddedEncoder
from lightning_nli.training.scoring import Scorer
from lightning_nli.training.setfit import SetFitScorer, separator, store
from lightning_nli.training.trained import OpenedRun, open_run
from lightning_nli.types import UserError

log = logging.getLogger(__name__)

_MOST_TEXTS = 2


def export_run(folder: Path, target: Path, *, checkpoint: str = "best") -> Path:
    """Write model (fp32, every vocabulary row) and tokenizer of a run to `target`, whole or not at all.

    `pipeline("text-classification", target)` with `{"text": premise, "text_pair": hypothesis}` then answers label
    names. Pass `truncation=True` for long pairs.

    Raises:
        UserError: the target exists, or the run cannot be opened.
    """
    if target.exists() and (target.is_file() or any(target.iterdir())):
        raise UserError(f"{target} exists and is not empty; give another folder")
    opened = open_run(folder, checkpoint=checkpoint, precision="fp32")
    if isinstance(opened.scorer, SetFitScorer):
        return _export_setfit(opened.scorer, target)
    if opened.scorer.model.config.model_type == CBOW:
        raise UserError(f"{folder} holds a {CBOW} model, which Hugging Face pipelines do not know; use `lnli predict`")
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        _save(opened, partial)
        if target.exists():
            target.rmdir()
        os.chmod(partial, 0o755)
        partial.rename(target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return target


def _export_setfit(scorer: SetFitScorer, target: Path) -> Path:
    target.parent.mkdir(parents=True, exist_ok=True)
    store(scorer, target)
    log.info(
        "setfit.SetFitModel.from_pretrained reads it; give it normalized texts with %s between them, in the order %s",
        repr(separator(scorer.spec)),
        ", ".join(scorer.spec.segments),
    )
    return target


def _save(opened: OpenedRun, folder: Path) -> None:
    assert isinstance(opened.scorer, Scorer)
    model, tokenizer = opened.scorer.model, opened.scorer.spec.tokenizer
    encoder = opened.scorer.encoder
    chunks = encoder.chunks if isinstance(encoder, PackedEncoder | PaddedEncoder) else None
    _say_how_to_call(opened.scorer, None if chunks is None else chunks.length)
    config = model.config
    config._attn_implementation = None  # ours is known to this package only
    config.id2label = dict(enumerate(opened.scheme.names))
    config.label2id = {name: index for index, name in enumerate(opened.scheme.names)}
    config.problem_type = "single_label_classification"
    model.float().save_pretrained(folder)
    if opened.config.text.normalize == "nfc":
        _add_normalizer(tokenizer)
    tokenizer.model_max_length = opened.config.text.max_length if chunks is None else chunks.length
    tokenizer.save_pretrained(folder)


def _say_how_to_call(scorer: Scorer, chunk_length: int | None) -> None:
    """What a pipeline, which hands over one text or two, must be given to answer as this run does."""
    spec = scorer.spec
    if spec.joining == Joining.MARKERS:
        joined = " ".join(f"{MARKERS[name]} {name.upper()}" for name in spec.segments)
        log.warning('the exported folder reads one text with the markers in it: classify("%s")', joined)
    elif len(spec.segments) > _MOST_TEXTS:
        log.warning(
            "the model reads %d texts, a pipeline hands over two: the exported folder cannot answer as the run does; "
            "use `lnli predict`, or train with --template markers",
            len(spec.segments),
        )
    if chunk_length is not None:
        log.warning(
            "the exported folder reads no chunks: of longer inputs it sees %d tokens; use `lnli predict`", chunk_length
        )


def _add_normalizer(tokenizer: Any) -> None:
    """What `normalize_text` does, in its order, put before the tokenizer's own normalization."""
    from tokenizers import Regex, normalizers

    if getattr(tokenizer, "backend_tokenizer", None) is None:
        log.warning(
            "%s is a slow tokenizer: the exported folder does not normalize texts; give it text in NFC, word-segmented "
            "as the model was trained",
            type(tokenizer).__name__,
        )
        return
    steps = [
        normalizers.Replace(Regex(f"[{REMOVED_CHARACTERS}]"), ""),
        normalizers.Replace(Regex(f"[{SPACE_CHARACTERS}]"), " "),
        *(normalizers.Replace(seen, meant) for seen, meant in LOOKALIKE_LETTERS.items()),
        normalizers.NFC(),
        normalizers.Strip(),
    ]
    own = tokenizer.backend_tokenizer.normalizer
    tokenizer.backend_tokenizer.normalizer = normalizers.Sequence([*steps, *([] if own is None else [own])])
