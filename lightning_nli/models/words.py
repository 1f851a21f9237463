"""Which word segmentation an encoder reads, and whether the texts come with it already."""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Iterable, Sequence
from typing import Any

import polars as pl

from lightning_nli.data.text import JOINED_TOKEN
from lightning_nli.models.registry import model_card
from lightning_nli.types import UserError

log = logging.getLogger(__name__)

_TAKEN_BY_AUTO = ("pyvi", "underthesea")
_TOKENIZERS_OF_WORDS = ("PhobertTokenizer", "PhobertTokenizerFast")


def expects_words(name: str, tokenizer: Any) -> bool:
    """Whether an encoder was trained on Vietnamese text with the syllables of a word joined by `_`.

    Args:
        name: `--model`: the registry knows PhoBERT by alias and hub id.
        tokenizer: Its class tells of a folder or of a model fine-tuned from PhoBERT.
    """
    card = model_card(name)
    return (card is not None and card.word_segmented) or type(tokenizer).__name__ in _TOKENIZERS_OF_WORDS


def resolve_segmenter(asked: str, name: str, tokenizer: Any) -> str:
    """The segmenter that `--segmenter` means for an encoder: `auto` segments for those that expect it.

    Raises:
        UserError: the encoder needs a segmenter and none is installed.
    """
    if not expects_words(name, tokenizer):
        return "none" if asked == "auto" else asked
    if asked == "none":
        log.warning("'%s' was trained on word-segmented text; --segmenter none feeds it the texts as they are", name)
    if asked != "auto":
        return asked
    found = next((package for package in _TAKEN_BY_AUTO if importlib.util.find_spec(package)), None)
    if found is None:
        raise UserError(
            f"'{name}' reads word-segmented text and no segmenter is installed: pip install "
            "'lightning-nli[vietnamese]' (or give text that is segmented already, with --segmenter none)"
        )
    log.info("'%s' reads word-segmented text: segmenting with %s (--segmenter)", name, found)
    return found


def count_joined_rows(frames: Iterable[pl.DataFrame], columns: Sequence[str]) -> tuple[int, int]:
    """Rows in which a token of some text is joined by `_`, and rows in all."""
    has_joined = pl.any_horizontal(pl.col(name).str.contains(JOINED_TOKEN) for name in columns)
    counts = [(int(frame.select(has_joined.fill_null(False).sum()).item()), frame.height) for frame in frames]
    return sum(joined for joined, _ in counts), sum(rows for _, rows in counts)


def warn_mixed_words(
    name: str, tokenizer: Any, segmenter: str, frames: Iterable[pl.DataFrame], columns: Sequence[str]
) -> None:
    """Say so where some rows come word-segmented and some do not, to an encoder that expects segmented text."""
    if not expects_words(name, tokenizer):
        return
    joined, rows = count_joined_rows(frames, columns)
    if not 0 < joined < rows:
        return
    if segmenter == "none":
        log.warning("%d of %d rows have no '_' joins, which '%s' expects (--segmenter)", rows - joined, rows, name)
    else:
        log.warning(
            "%d of %d rows have no '_' joins and are segmented with %s; the other %d are left as they came",
            rows - joined,
            rows,
            segmenter,
            joined,
        )
