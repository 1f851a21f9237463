"""Text as it is compared, tokenized and counted: normal form, white space, optional Vietnamese word segmentation."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import cast

import polars as pl

from lightning_nli.types import UserError

REMOVED_CHARACTERS = "\u00ad\u200b\u200c\u200d\u2060\ufeff"
"""Soft hyphen and zero-width marks: taken out, they split words for a tokenizer and show on no screen."""

SPACE_CHARACTERS = "\u00a0\u2007\u202f"
"""No-break spaces: each becomes one plain space."""

STRIPPED_CHARACTERS = "\t\n\v\f\r\x1c\x1d\x1e\x1f \x85\u1680" + "".join(map(chr, range(0x2000, 0x200B)))
STRIPPED_CHARACTERS += "\u2028\u2029\u205f\u3000"
"""White space cut off at both ends, spelled out because Python and Rust disagree on the set."""

SEGMENTERS = ("none", "pyvi", "underthesea")

_TRANSLATION = str.maketrans(SPACE_CHARACTERS, " " * len(SPACE_CHARACTERS), REMOVED_CHARACTERS)
_WORD = re.compile(r"(?u)\b\w+\b")
_JOINED_TOKEN = re.compile(r"[^\W_]_[^\W_]")


def normalize_text(text: str) -> str:
    """Return `text` without invisible marks, with plain spaces, in NFC, stripped; inner white space stays as it is.

    Marks go before NFC is taken: a soft hyphen between a letter and its accent would keep the two apart.
    """
    return unicodedata.normalize("NFC", text.translate(_TRANSLATION)).strip(STRIPPED_CHARACTERS)


def normalize_expr(expr: pl.Expr) -> pl.Expr:
    """`normalize_text` as a polars expression; null stays null."""
    plain = expr.str.replace_all(f"[{REMOVED_CHARACTERS}]", "").str.replace_all(f"[{SPACE_CHARACTERS}]", " ")
    return plain.str.normalize("NFC").str.strip_chars(STRIPPED_CHARACTERS)


def comparison_expr(expr: pl.Expr) -> pl.Expr:
    """Text as duplicates and leaks are compared: normalized, lower case, each run of other than letters one space."""
    letters = normalize_expr(expr).str.to_lowercase().str.normalize("NFC")
    return letters.str.replace_all(r"[^\p{L}\p{M}\p{N}]+", " ").str.strip_chars(" ")


def comparison_key(text: str) -> str:
    """`comparison_expr` of one text, by the same engine so that the two never part."""
    return cast(str, pl.select(comparison_expr(pl.lit(text, dtype=pl.String))).item())


def word_set(text: str) -> set[str]:
    r"""The distinct words (`\b\w+\b`) of the normalized text in lower case."""
    return set(_WORD.findall(normalize_text(text).lower()))


@dataclass(frozen=True, slots=True)
class WordSegmenter:
    """Joins the syllables of Vietnamese words with `_`, as PhoBERT and its kin were trained to read.

    Attributes:
        name: `none` leaves text alone; `pyvi` and `underthesea` are packages of the extra `vietnamese`.

    Raises:
        UserError: the name is unknown or its package is not installed.
    """

    name: str = "none"

    def __post_init__(self) -> None:
        if self.name not in SEGMENTERS:
            raise UserError(f"unknown segmenter '{self.name}'; choose one of {', '.join(SEGMENTERS)}")
        if self.name != "none" and importlib.util.find_spec(self.name) is None:
            raise UserError(
                f"the segmenter '{self.name}' is not installed: pip install 'lightning-nli[vietnamese]' "
                "(or choose the segmenter 'none')"
            )

    def __call__(self, text: str) -> str:
        """Return `text` word-segmented; text in which a token is joined already is left alone."""
        if self.name == "none" or _JOINED_TOKEN.search(text):
            return text
        return _segment_function(self.name)(text)

    @property
    def version(self) -> str:
        """Version of the package that segments, for cache keys; empty for `none`."""
        return "" if self.name == "none" else importlib.metadata.version(self.name)


@cache
def _segment_function(name: str) -> Callable[[str], str]:
    if name == "pyvi":
        from pyvi import ViTokenizer

        return cast(Callable[[str], str], ViTokenizer.tokenize)
    from underthesea import word_tokenize

    return lambda text: cast(str, word_tokenize(text, format="text"))
