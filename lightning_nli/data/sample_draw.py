"""Random draws of the embedded corpus, the same on every machine."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TypeVar

import numpy as np

T = TypeVar("T")

_BLOCK = 128  # raw numbers fetched at a time
_RANGE = 2**32


class Draw:
    """Draws from Philox raw bits: the same on every machine and numpy version, unlike `Generator`'s methods."""

    def __init__(self, *key: object) -> None:
        digest = hashlib.blake2b(":".join(map(str, key)).encode(), digest_size=16).digest()
        self._bits = np.random.Philox(key=int.from_bytes(digest, "little"))
        self._raws: list[int] = []  # 32 bits each, taken from the end

    def below(self, stop: int) -> int:
        """A whole number from 0 to `stop - 1`, each equally likely (the uneven tail is redrawn); `stop` <= 2**32."""
        while True:
            if not self._raws:
                self._raws = (self._bits.random_raw(_BLOCK) >> np.uint64(32)).tolist()
            raw = self._raws.pop()
            if raw < _RANGE - _RANGE % stop:
                return raw % stop

    def unit(self) -> float:
        """A number in [0, 1)."""
        return self.below(_RANGE) / _RANGE

    def chance(self, percent: int) -> bool:
        return self.below(100) < percent

    def pick(self, items: Sequence[T]) -> T:
        return items[self.below(len(items))]

    def sample(self, items: Sequence[T], count: int) -> list[T]:
        """`count` different places of `items`, in random order."""
        pool = list(items)
        return [pool.pop(self.below(len(pool))) for _ in range(count)]

    def shuffled(self, items: Sequence[T]) -> list[T]:
        return self.sample(items, len(items))
