"""How the texts of an example are joined, and which tokens go when they are too long."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from lightning_nli.types import UserError

Ids = npt.NDArray[np.int32]
Types = npt.NDArray[np.int8]

MARKERS = {"hypothesis": "[STATE]", "condition": "[COND]", "premise": "[LAW]"}
"""Token before each text under `--template markers`."""

# What anonymised corpora write for a name: `[Person-1]`, `[Address-2]`, `[SSN]`, `[NO_COND]`; not `[Amended in 2021.]`.
_PLACEHOLDER = re.compile(r"\[(?:[A-Za-z]+ ?-?\d+|[A-Z][A-Z_]*[A-Z])\]")


class Joining(StrEnum):
    """How the texts of an example are joined (`--template`)."""

    SEPARATORS = "separators"  # the tokenizer's own, as for a pair
    MARKERS = "markers"  # one sequence, a marker token before each text


class Truncation(StrEnum):
    """Which tokens go when an example is too long (`--truncation`)."""

    LONGEST_FIRST = "longest_first"
    PROPORTIONAL = "proportional"
    PREMISE_FIRST = "premise_first"
    HEAD = "head"
    TAIL = "tail"
    HEAD_TAIL = "head_tail"


class Cut(NamedTuple):
    """What is kept of a text: its first `head` and its last `tail` tokens."""

    head: int
    tail: int = 0

    @property
    def num_kept(self) -> int:
        return self.head + self.tail

    def apply(self, text: Ids) -> Ids:
        """The kept tokens."""
        return np.concatenate([text[: self.head], text[len(text) - self.tail :]]) if self.tail else text[: self.head]


def find_placeholders(texts: Iterable[str]) -> list[str]:
    """Every distinct anonymisation token (`[Person-1]`) of the texts, sorted."""
    return sorted({found for text in set(texts) for found in _PLACEHOLDER.findall(text)})


def add_markers(tokenizer: Any, segments: Sequence[str], texts: Iterable[str]) -> list[str]:
    """Give a tokenizer the markers of the segments and the placeholders of the texts as tokens of their own, in place.

    White space beside a marker is not a token: `[STATE] a [LAW] b` as one text has the ids of the texts `a` and `b`.

    Returns:
        The tokens that are new to it.
    """
    from transformers import AddedToken

    known = tokenizer.get_vocab()
    markers = [MARKERS[name] for name in segments]
    placeholders = [text for text in find_placeholders(texts) if text not in markers]
    new = [token for token in (*markers, *placeholders) if token not in known]
    tokenizer.add_tokens(
        [
            AddedToken(token, lstrip=token in markers, rstrip=token in markers, normalized=False, special=False)
            for token in new
        ]
    )
    return new


@dataclass(frozen=True)
class Template:
    """Special tokens and token types around and between the texts, as the tokenizer itself sets them for a pair.

    A third text follows the second with the same separator and the second's token type (0, 1, 1): pretrained encoders
    have at most two token types.

    Attributes:
        specials: Special token ids before the first text, between texts, and after the last; one more than texts.
        special_types: Their token types.
        text_types: Token type of each text.
    """

    specials: tuple[tuple[int, ...], ...]
    special_types: tuple[tuple[int, ...], ...]
    text_types: tuple[int, ...]

    @classmethod
    def of_tokenizer(cls, tokenizer: Any, num_texts: int) -> Template:
        """Learn the layout from what the tokenizer does with one text and with a pair."""
        ids, types, texts = _encode_sample(tokenizer, is_pair=num_texts > 1)
        specials: list[list[int]] = [[]]
        special_types: list[list[int]] = [[]]
        text_types: list[int] = []
        previous: int | None = None
        for token, token_type, text in zip(ids, types, texts, strict=True):
            if text is None:
                specials[-1].append(token)
                special_types[-1].append(token_type)
            elif text != previous:
                specials.append([])
                special_types.append([])
                text_types.append(token_type)
            previous = text
        while len(text_types) < num_texts:
            specials.insert(-1, list(specials[1]))
            special_types.insert(-1, [text_types[-1]] * len(specials[1]))
            text_types.append(text_types[-1])
        return cls(tuple(map(tuple, specials)), tuple(map(tuple, special_types)), tuple(text_types))

    @classmethod
    def with_markers(cls, tokenizer: Any, segments: Sequence[str]) -> Template:
        """One sequence as the tokenizer lays out a single text, the segment's marker before each text.

        Raises:
            ValueError: the tokenizer lacks a marker (`add_markers`).
        """
        known = tokenizer.get_vocab()
        absent = [MARKERS[name] for name in segments if MARKERS[name] not in known]
        if absent:
            raise ValueError(f"the tokenizer has no {', '.join(absent)}")
        single = cls.of_tokenizer(tokenizer, 1)
        first, last = single.specials
        markers = [(known[MARKERS[name]],) for name in segments]
        (text_type,) = single.text_types
        return cls(
            specials=(first + markers[0], *markers[1:], last),
            special_types=(
                single.special_types[0] + (text_type,),
                *((text_type,) for _ in segments[1:]),
                single.special_types[1],
            ),
            text_types=(text_type,) * len(segments),
        )

    @property
    def special_ids(self) -> tuple[int, ...]:
        """Distinct ids of everything that is no text, markers included, ascending."""
        return tuple(sorted({token for part in self.specials for token in part}))

    @property
    def num_special_tokens(self) -> int:
        return sum(len(part) for part in self.specials)

    def join(self, texts: Sequence[Ids]) -> tuple[Ids, Types]:
        """Ids and token types of one example whose texts are already short enough."""
        ids: list[Ids] = [np.asarray(self.specials[0], np.int32)]
        types: list[Types] = [np.asarray(self.special_types[0], np.int8)]
        for index, text in enumerate(texts):
            ids += [text, np.asarray(self.specials[index + 1], np.int32)]
            types += [
                np.full(len(text), self.text_types[index], np.int8),
                np.asarray(self.special_types[index + 1], np.int8),
            ]
        return np.concatenate(ids), np.concatenate(types)


def _encode_sample(tokenizer: Any, *, is_pair: bool) -> tuple[list[int], list[int], list[int | None]]:
    """Ids and token types of one or two texts of one token, and which text a token belongs to (None: to no text)."""
    if getattr(tokenizer, "is_fast", False):
        encoded = tokenizer("a", "a") if is_pair else tokenizer("a")
        ids = encoded["input_ids"]
        return ids, encoded.get("token_type_ids") or [0] * len(ids), encoded.sequence_ids(0)
    # A slow tokenizer does not say where a token is from: lay out two ids that are no special tokens.
    special = set(tokenizer.all_special_ids)
    plain = [token for token in range(len(special) + 2) if token not in special][:2]
    texts = [[token] for token in plain[: 1 + is_pair]]
    ids = tokenizer.build_inputs_with_special_tokens(*texts)
    types = [0] * len(ids)
    if "token_type_ids" in tokenizer.model_input_names:
        types = tokenizer.create_token_type_ids_from_sequences(*texts)
    return ids, types, [plain.index(token) if token in plain else None for token in ids]


def truncate_segments(lengths: Sequence[int], budget: int, *, first: int | None = None) -> list[int]:
    """Tokens kept of each text; heads are kept.

    The default cuts the longest text first, token by token: the outcome is an even share for the texts that are too
    long, the rest whole; an odd token goes to the longer one (the later one of equals), as the Hugging Face
    fast tokenizers have it (slow ones give it to the first text). With `first`, that text is cut before any other.

    Args:
        lengths: Tokens of each text.
        budget: Tokens there is room for.
        first: Index of the text to cut first.

    Raises:
        UserError: there is no room for one token of every text.
    """
    _check_room(lengths, budget)
    kept = list(lengths)
    if first is not None and sum(kept) > budget:
        kept[first] = min(kept[first], max(1, budget - (sum(kept) - kept[first])))
    left = budget
    order = sorted(range(len(kept)), key=lambda index: (kept[index], index))
    for place, index in enumerate(order):
        share = left // (len(order) - place)
        kept[index] = min(kept[index], share)
        left -= kept[index]
    return kept


def plan_cuts(
    lengths: Sequence[int],
    budget: int,
    truncation: Truncation,
    *,
    premise: int = 0,
    ratio: Sequence[int] | None = None,
) -> list[Cut]:
    """What is kept of each text of one example; every text keeps a token, and the budget is used up.

    `longest_first` and `premise_first` are those of `truncate_segments`, `proportional` is `share_in_ratio`; all three
    keep heads. `head`, `tail` and `head_tail` take the texts for one: its beginning, its end, or half of the budget
    from either (the odd token from the beginning) is kept, and one token of every text that would be gone.

    Args:
        lengths: Tokens of each text.
        budget: Tokens there is room for.
        truncation: Rule.
        premise: Index of the text that `premise_first` cuts before any other.
        ratio: Weights of `proportional`, one a text.

    Raises:
        UserError: there is no room for one token of every text.
        ValueError: `proportional` without a ratio.
    """
    if truncation in (Truncation.HEAD, Truncation.TAIL, Truncation.HEAD_TAIL):
        return _cut_ends(lengths, budget, truncation)
    if truncation is not Truncation.PROPORTIONAL:
        first = premise if truncation is Truncation.PREMISE_FIRST else None
        return [Cut(kept) for kept in truncate_segments(lengths, budget, first=first)]
    if ratio is None:
        raise ValueError("proportional truncation needs a ratio")
    return [Cut(kept) for kept in share_in_ratio(lengths, budget, ratio)]


def share_in_ratio(lengths: Sequence[int], budget: int, ratio: Sequence[int]) -> list[int]:
    """Tokens kept of each text when a budget is shared in a ratio.

    A text shorter than its quota leaves the rest to the others, in the same ratio, until nothing is left over or all
    texts are whole; a quota below one token is one. Quotas are exact fractions: they are rounded once, at the end and
    down, and the tokens left over go to the largest remainders, of equal ones to the earlier text. The search for the
    texts that stand at a bound is that of flexible lengths in the CSS Flexible Box Layout, section 9.7.

    Args:
        lengths: Tokens of each text.
        budget: Tokens there is room for.
        ratio: Weight of each text, above 0.

    Raises:
        UserError: there is no room for one token of every text.
    """
    _check_room(lengths, budget)
    if sum(lengths) <= budget:
        return list(lengths)
    kept = [0] * len(lengths)
    free = list(range(len(lengths)))
    left = budget
    while free:
        weight = sum(ratio[index] for index in free)
        quotas = {index: left * ratio[index] for index in free}  # in units of 1 / weight
        short = {index: quotas[index] - lengths[index] * weight for index in free}
        scarce = {index: min(1, lengths[index]) * weight - quotas[index] for index in free}
        excess = sum(max(0, lack) for lack in scarce.values()) - sum(max(0, rest) for rest in short.values())
        at_bound = {index: min(1, lengths[index]) for index in free if scarce[index] > 0 and excess >= 0}
        at_bound |= {index: lengths[index] for index in free if short[index] > 0 and excess <= 0}
        if not at_bound:
            break
        for index, count in at_bound.items():
            kept[index] = count
            left -= count
        free = [index for index in free if index not in at_bound]
    if free:
        for index in free:
            kept[index] = quotas[index] // weight
        left -= sum(kept[index] for index in free)
        by_remainder = sorted(free, key=lambda index: (-(quotas[index] % weight), index))
        for index in by_remainder[:left]:
            kept[index] += 1
    return kept


def _check_room(lengths: Sequence[int], budget: int) -> None:
    if budget < len(lengths):
        raise UserError(f"--max-length leaves {budget} tokens for {len(lengths)} texts; raise it")


def _cut_ends(lengths: Sequence[int], budget: int, truncation: Truncation) -> list[Cut]:
    _check_room(lengths, budget)
    if sum(lengths) <= budget:
        return [Cut(length) for length in lengths]
    heads = [min(1, length) for length in lengths]
    tails = [0] * len(lengths)
    left = budget - sum(heads)
    back = {Truncation.HEAD: 0, Truncation.TAIL: left, Truncation.HEAD_TAIL: left // 2}[truncation]
    front = left - back
    for index, length in enumerate(lengths):
        taken = min(front, length - heads[index])
        heads[index] += taken
        front -= taken
    for index in reversed(range(len(lengths))):
        tails[index] = min(back, lengths[index] - heads[index])
        back -= tails[index]
    if truncation is Truncation.TAIL:  # the one token that every text keeps is then its last
        return [Cut(0, head + tail) for head, tail in zip(heads, tails, strict=True)]
    return [Cut(head, tail) for head, tail in zip(heads, tails, strict=True)]
