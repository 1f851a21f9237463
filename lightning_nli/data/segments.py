"""How the texts of an example are joined, and which tokens go when they are too long."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from lightning_nli.types import UserError

Ids = npt.NDArray[np.int32]
Types = npt.NDArray[np.int8]


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
    if budget < len(lengths):
        raise UserError(f"--max-length leaves {budget} tokens for {len(lengths)} texts; raise it")
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
