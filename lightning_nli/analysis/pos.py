"""Parts of speech in hypotheses and in their new words. Slow: minutes a corpus the first time, then read from disk."""

from __future__ import annotations

import importlib.metadata
import logging
from collections.abc import Callable
from functools import cache

import polars as pl

from lightning_nli.analysis.text_cache import cached_texts
from lightning_nli.analysis.words import word_lists
from lightning_nli.data.text import WordSegmenter, normalize_expr
from lightning_nli.types import UserError

log = logging.getLogger(__name__)

TAGGERS = ("pyvi", "underthesea")

PUNCTUATION = frozenset({"F", "CH"})
"""Tag of marks, of pyvi and of underthesea."""

_NOUNS = dict.fromkeys(("N", "Np", "Nc", "Nu", "Ny", "Nb"), "noun")
_VERBS = dict.fromkeys(("V", "Vy", "Vb"), "verb")
GROUPINGS: dict[str, dict[str, str]] = {
    "vilegalnli": {**_NOUNS, **_VERBS, "A": "adjective", "Ab": "adjective", "P": "pronoun", "R": "adverb"},
    "vianli": {**_NOUNS, **_VERBS, "A": "adjective", "Ab": "adjective", "E": "preposition", "R": "adjunct"},
}
"""Paper -> tag -> group; tags that are not named are `other`. The tag set is the same in both: adverbs and adjuncts are
one class under two names."""

TAGS = "tags"
"""Grouping of bare tags as the tagger gives them, marks included."""

_CHUNK_ROWS = 50_000
_BETWEEN = "\t"  # words and tags of one text; neither holds white space


def pos_shares(frame: pl.DataFrame, tagger: str = "pyvi") -> pl.DataFrame:
    """Shares of the parts of speech among the words of hypotheses, and among those that the premise does not hold.

    In the groupings of the papers marks are left out, and the shares of a set of rows sum to 1. Under `tags` every tag
    has its share of all tokens, marks included: ViLegalNLI's Table 12, which sums to 67 to 68%, is within a point of
    underthesea's N, V, A, P, R and X there. New words are compared as they stand, case included. Tags stay on disk.

    Args:
        frame: Rows with `premise`, `hypothesis` and `label`.
        tagger: `pyvi` or `underthesea`.

    Returns:
        `grouping` (`vilegalnli`, `vianli`, `tags`), `scope` (`hypothesis`, `new_words`), `label` (null: all), `group`,
        `words`, `share`; largest share first.

    Raises:
        UserError: the tagger is unknown or not installed.
    """
    if tagger not in TAGGERS:
        raise UserError(f"unknown tagger '{tagger}'; choose one of {', '.join(TAGGERS)}")
    WordSegmenter(tagger)
    schema = {"label": pl.String, "tag": pl.String, "is_new": pl.Boolean, "words": pl.Int64}
    counts = pl.DataFrame(schema=schema)
    keys = ["label", "tag", "is_new"]
    for chunk in frame.select("premise", "hypothesis", "label").iter_slices(_CHUNK_ROWS):
        counts = pl.concat([counts, _count_tags(chunk, tagger)]).group_by(keys).agg(pl.col("words").sum())
    return pl.concat(
        _shares(counts.filter(pl.col("is_new")) if scope == "new_words" else counts, grouping).select(
            pl.lit(grouping).alias("grouping"), pl.lit(scope).alias("scope"), "label", "group", "words", "share"
        )
        for grouping in (*GROUPINGS, TAGS)
        for scope in ("hypothesis", "new_words")
    )


def tag_words(texts: pl.Series, tagger: str) -> pl.DataFrame:
    """Words of each text, syllables joined by `_`, and their tags.

    Args:
        texts: Texts; each is normalized first.
        tagger: One of `TAGGERS`.

    Returns:
        `words` and `tags`, lists of equal length; empty where the tagger fails (a warning says where).
    """
    normal = texts.to_frame().select(normalize_expr(pl.col(texts.name)).alias("text")).to_series()
    name = f"pos-{tagger}-{importlib.metadata.version(tagger)}"
    tagged = cached_texts(normal, name, _tag_pyvi if tagger == "pyvi" else _tag_underthesea)
    part = tagged.alias("tagged").str.split(_BETWEEN)
    return pl.DataFrame(
        [part.list.get(place).str.extract_all(r"\S+").alias(kind) for place, kind in enumerate(("words", "tags"))]
    )


def _tag_pyvi(text: str) -> str:
    words = WordSegmenter("pyvi")(text).split()
    return f"{' '.join(words)}{_BETWEEN}{' '.join(_pyvi()(words))}" if words else _BETWEEN


@cache
def _pyvi() -> Callable[[list[str]], list[str]]:
    from pyvi import ViPosTagger

    return lambda words: [str(tag) for tag in ViPosTagger.postagging_tokens(words)[1]]


def _tag_underthesea(text: str) -> str:
    from underthesea import pos_tag

    try:
        pairs = [("_".join(word.split()), tag) for word, tag in pos_tag(text)]
    except (KeyboardInterrupt, SystemExit, GeneratorExit, MemoryError):
        raise
    except BaseException as error:  # a panic of Rust code is no `Exception`
        log.warning("underthesea failed, text left untagged: '%s' (%s)", text[:40], error)
        return _BETWEEN
    return f"{' '.join(word for word, _ in pairs)}{_BETWEEN}{' '.join(tag for _, tag in pairs)}"


def _count_tags(rows: pl.DataFrame, tagger: str) -> pl.DataFrame:
    """Words of a chunk by `label`, `tag` and whether the premise lacks them (`is_new`)."""
    tagged = tag_words(rows["hypothesis"], tagger).with_columns(
        pl.int_range(pl.len(), dtype=pl.UInt32).alias("row"), rows["label"].cast(pl.String)
    )
    words = tagged.explode("words", "tags").drop_nulls("words")
    premises = word_lists(rows["premise"], tagger).alias("words").to_frame()
    known = premises.with_columns(pl.int_range(pl.len(), dtype=pl.UInt32).alias("row")).explode("words").unique()
    old = known.with_columns(is_old=pl.lit(True))
    joined = words.join(old, on=["row", "words"], how="left").with_columns(is_new=pl.col("is_old").is_null())
    counts = joined.group_by("label", pl.col("tags").alias("tag"), "is_new").len("words")
    return counts.with_columns(pl.col("words").cast(pl.Int64))


def _shares(counts: pl.DataFrame, grouping: str) -> pl.DataFrame:
    tag = pl.col("tag")
    if grouping == TAGS:
        grouped = counts.with_columns(group=tag)
    else:
        of_words = counts.filter(~tag.is_in(sorted(PUNCTUATION)))
        grouped = of_words.with_columns(group=tag.replace_strict(GROUPINGS[grouping], default="other"))
    by_label = grouped.group_by("label", "group").agg(pl.col("words").sum())
    overall = grouped.group_by("group").agg(pl.col("words").sum()).with_columns(label=pl.lit(None, pl.String))
    both = pl.concat([by_label, overall.select(by_label.columns)])
    shares = both.with_columns(share=pl.col("words") / pl.col("words").sum().over("label"))
    return shares.sort("label", "share", "group", descending=[False, True, False], nulls_last=True)
