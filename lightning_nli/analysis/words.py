"""The words of a text, in the ways that overlap, lengths and artifacts count them."""

from __future__ import annotations

from functools import partial

import polars as pl

from lightning_nli.analysis.text_cache import cached_texts
from lightning_nli.data.text import WordSegmenter, normalize_expr, normalize_text
from lightning_nli.types import UserError

WORDS = ("syllables", "pyvi", "underthesea")
"""Ways to cut a text into words: syllables (runs of letters and digits, in lower case), or the words of a Vietnamese
segmenter as it gives them: case kept, and a punctuation mark counts as a word, as the paper of ViLegalNLI counts."""

SYLLABLE = r"[\p{L}\p{M}\p{N}_]+"
"""A syllable of Vietnamese, a word of English: a run of letters and digits."""


def check_words(words: str) -> str:
    """Return `words` if it can be used here.

    Raises:
        UserError: it is none of `WORDS`, or its package is not installed.
    """
    if words not in WORDS:
        raise UserError(f"unknown words '{words}'; choose one of {', '.join(WORDS)}")
    if words != "syllables":
        WordSegmenter(words)
    return words


def word_lists(texts: pl.Series, words: str) -> pl.Series:
    """List of words of each text in its order, repeats kept; null stays null.

    A segmenter's words are kept on disk (`text_cache`), their syllables joined by `_`.

    Args:
        texts: Texts; each is normalized first.
        words: One of `WORDS`.

    Raises:
        UserError: `words` cannot be used, or the cache cannot.
    """
    check_words(words)
    text = pl.col(texts.name)
    if words == "syllables":
        return texts.to_frame().select(normalize_expr(text).str.to_lowercase().str.extract_all(SYLLABLE)).to_series()
    segmented = cached_texts(texts, f"words-{words}-{WordSegmenter(words).version}", partial(_segment, words))
    return segmented.alias(texts.name).to_frame().select(text.str.extract_all(r"\S+")).to_series()


def _segment(words: str, text: str) -> str:
    return " ".join(WordSegmenter(words)(normalize_text(text)).split())
