"""Text as it is compared, tokenized and counted: normal form, white space, optional Vietnamese word segmentation."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import logging
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

LOOKALIKE_LETTERS = {"\u00d0": "\u0110", "\u00f0": "\u0111"}
"""Eth, which texts from old fonts hold in place of `Đ` and `đ`. Plain `d` is another letter and stays."""

SEGMENTERS = ("none", "pyvi", "underthesea", "vncorenlp")

_log = logging.getLogger(__name__)
_REPLACED = LOOKALIKE_LETTERS | dict.fromkeys(SPACE_CHARACTERS, " ") | dict.fromkeys(REMOVED_CHARACTERS, "")
_TRANSLATION = {ord(character): replacement for character, replacement in _REPLACED.items()}
_WORD = re.compile(r"(?u)\b\w+\b")
JOINED_TOKEN = r"[^\W_]_[^\W_]"
"""Two syllables of a word joined by `_`, as a pattern for Python and polars alike."""
_TONES = "\u0300\u0301\u0303\u0309\u0323"  # grave, acute, tilde, hook, dot below
_TONE_PLACES = {  # "oà " -> "òa ": a rhyme that ends its word, the tone on its second vowel or on its first
    unicodedata.normalize("NFC", f"{first}{second}{tone} "): unicodedata.normalize("NFC", f"{first}{tone}{second} ")
    for first, second in ("oa", "oe", "uy")
    for tone in _TONES
}


def normalize_text(text: str) -> str:
    """Return `text` without invisible marks, with plain spaces and no eth, in NFC, stripped.

    Inner white space and the place of tone marks stay as they are. Marks go before NFC is taken: a soft hyphen between
    a letter and its accent would keep the two apart.
    """
    return unicodedata.normalize("NFC", text.translate(_TRANSLATION)).strip(STRIPPED_CHARACTERS)


def normalize_expr(expr: pl.Expr) -> pl.Expr:
    """`normalize_text` as a polars expression; null stays null."""
    plain = expr.str.replace_all(f"[{REMOVED_CHARACTERS}]", "").str.replace_all(f"[{SPACE_CHARACTERS}]", " ")
    letters = plain.str.replace_many(LOOKALIKE_LETTERS)
    return letters.str.normalize("NFC").str.strip_chars(STRIPPED_CHARACTERS)


def comparison_expr(expr: pl.Expr) -> pl.Expr:
    """Text as duplicates and leaks are compared: normalized, lower case, each run of other than letters one space.

    Both ways to place a tone mark become the older one (`hoà` and `hòa`, `khoẻ` and `khỏe`, `thuỷ` and `thủy`), only
    where `oa`, `oe` or `uy` ends the word: elsewhere (`hoàn`, `của`) spelling leaves no choice. `quý` becomes a form
    that nobody writes, but one form.
    """
    letters = normalize_expr(expr).str.to_lowercase().str.normalize("NFC")
    words = letters.str.replace_all(r"[^\p{L}\p{M}\p{N}]+", " ")
    return (words + " ").str.replace_many(_TONE_PLACES).str.strip_chars(" ")


def comparison_key(text: str) -> str:
    """`comparison_expr` of one text, by the same engine so that the two never part."""
    return cast(str, pl.select(comparison_expr(pl.lit(text, dtype=pl.String))).item())


def word_set(text: str) -> set[str]:
    r"""The distinct words (`\b\w+\b`) of the normalized text in lower case."""
    return set(_WORD.findall(normalize_text(text).lower()))


def is_segmented(text: str) -> bool:
    """Whether a token of `text` is joined by `_`, as word segmenters join the syllables of a word."""
    return re.search(JOINED_TOKEN, text) is not None


@dataclass(frozen=True, slots=True)
class WordSegmenter:
    """Joins the syllables of Vietnamese words with `_`, as PhoBERT and its kin were trained to read.

    Attributes:
        name: `none` leaves text alone; `pyvi` and `underthesea` are packages of the extra `vietnamese`; `vncorenlp`
            is the package `py_vncorenlp`, which needs Java and the model folder that `LNLI_VNCORENLP` names.

    Raises:
        UserError: the name is unknown, or the package or what it needs is not there.
    """

    name: str = "none"

    def __post_init__(self) -> None:
        if self.name not in SEGMENTERS:
            raise UserError(f"unknown segmenter '{self.name}'; choose one of {', '.join(SEGMENTERS)}")
        if self.name == "vncorenlp":
            from lightning_nli.data.vncorenlp import check_vncorenlp

            check_vncorenlp()
        elif self.name != "none" and importlib.util.find_spec(self.name) is None:
            raise UserError(
                f"the segmenter '{self.name}' is not installed: pip install 'lightning-nli[vietnamese]' "
                "(or choose the segmenter 'none')"
            )

    def __call__(self, text: str) -> str:
        """Return `text` word-segmented, tokens one space apart; text in which a token is joined already is left alone.

        A text on which the segmenter fails is left as it is too, and a warning says which.
        """
        if self.name == "none" or is_segmented(text):
            return text
        segment = _segment_function(self.name)
        try:
            words = segment(text).split()
        except (KeyboardInterrupt, SystemExit, GeneratorExit, MemoryError):
            raise
        except BaseException as error:  # a panic of Rust code is no `Exception`
            reason = str(error).strip().split("\n")[0] or type(error).__name__
            _log.warning("%s failed, text left unsegmented: '%s' (%s)", self.name, _beginning(text), reason)
            return text
        return " ".join(words) or text

    def locate_words(self, text: str) -> list[tuple[int, int]]:
        """Start and end in `text`, as it stands, of each word that the segmenter finds in its normal form.

        Raises:
            UserError: the segmenter did more than move tone marks and spaces.
        """
        return align_words(text, self(normalize_text(text)))

    @property
    def version(self) -> str:
        """Version of what segments, for cache keys and run folders; empty for `none`."""
        if self.name == "vncorenlp":
            from lightning_nli.data.vncorenlp import vncorenlp_version

            return vncorenlp_version()
        return "" if self.name == "none" else importlib.metadata.version(self.name)


def align_words(source: str, segmented: str) -> list[tuple[int, int]]:
    """Start and end in `source` of each token (between white space) of `segmented`.

    Letters are compared without case, tone marks and accents; white space, `_` and invisible marks do not count. So a
    word is found where the segmenter wrote `hòa` for `hoà`, and in a source that is not in normal form. A token of
    underscores alone gets an empty span.

    Raises:
        UserError: `segmented` has other letters than `source`; the message says where they part.
    """
    letters, places = _bare_letters(source)
    spans: list[tuple[int, int]] = []
    used = end = 0
    for word in segmented.split():
        wanted, _ = _bare_letters(word)
        if letters[used : used + len(wanted)] != wanted:
            raise _misaligned(source, [*places, len(source)][used], word)
        used += len(wanted)
        start = places[used - len(wanted)] if wanted else end
        end = places[used - 1] + 1 if wanted else end
        while wanted and end < len(source) and unicodedata.combining(source[end]):
            end += 1
        spans.append((start, end))
    if used != len(letters):
        raise _misaligned(source, places[used], "")
    return spans


def _bare_letters(text: str) -> tuple[list[str], list[int]]:
    """What is left of `text` when case, marks, white space and `_` are gone, and the place of each such letter."""
    letters: list[str] = []
    places: list[int] = []
    for place, character in enumerate(text):
        for letter in unicodedata.normalize("NFKD", LOOKALIKE_LETTERS.get(character, character).casefold()):
            if letter != "_" and not letter.isspace() and unicodedata.category(letter) not in ("Mn", "Cf"):
                letters.append(letter)
                places.append(place)
    return letters, places


def _misaligned(source: str, place: int, word: str) -> UserError:
    found = f"stands '{word}'" if word else "it ends"
    return UserError(
        f"the segmented text is not the source's: from character {place} on the source reads "
        f"'{_beginning(source[place:])}', where the segmented text {found}; take another segmenter"
    )


def _beginning(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:40]}..."


@cache
def _segment_function(name: str) -> Callable[[str], str]:
    if name == "pyvi":
        from pyvi import ViTokenizer

        return cast(Callable[[str], str], ViTokenizer.tokenize)
    if name == "vncorenlp":
        from lightning_nli.data.vncorenlp import load_vncorenlp

        return load_vncorenlp()
    from underthesea import word_tokenize

    return lambda text: cast(str, word_tokenize(text, format="text"))
