"""Which fields of law the laws of the embedded corpus are about, law by law and provision by provision.

The shares are those of ViLegalNLI. They are not drawn but kept up with: whatever lies furthest behind its share comes
next, so that a corpus of any size is about as near to them as its laws allow.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count

from lightning_nli.data.sample_draw import Draw
from lightning_nli.types import DOMAINS

PAPER_TOTALS = dict(
    zip(
        DOMAINS,
        (
            7042, 2294, 4374, 4182, 2504, 1585, 3096, 1151, 1020, 721, 1497, 1673, 1369, 1008,
            2797, 619, 2361, 1059, 370, 1131, 2767, 364, 720, 1031, 207, 472, 1672,
        ),
        strict=True,
    )
)  # fmt: skip
"""Examples of each field of law: ViLegalNLI, Table 11, column Total. An example counts once for each of its fields."""

MIN_PROVISIONS, MAX_PROVISIONS = 8, 12
TWO_FIELDS, ALSO_OTHER, OTHER_INSTEAD = 0.10, 0.20, 0.24
"""Share of laws about two fields; of provisions of the other laws that touch a second field too (0.1 x 0.8 + 0.9 x 0.2
= 26% of provisions with several); of provisions that belong to another field than their law."""
BOTH_FIELDS = 0.80
"""Share of provisions of a law about two fields that belong to both."""


@dataclass(frozen=True, slots=True)
class LawPlan:
    """One law before a word of it is written.

    Attributes:
        number: 0 for the first law.
        fields: The one or two domains the law is about.
        provisions: The domains of each provision, one or two, in order.
    """

    number: int
    fields: tuple[str, ...]
    provisions: tuple[tuple[str, ...], ...]


def plan_laws(seed: int) -> Iterator[LawPlan]:
    """Plan law after law, without end; the first laws are the same however many are taken."""
    draw = Draw("plan", seed)
    of_laws, of_provisions = _Shares(draw), _Shares(draw)
    two_fields, instead = _Quota(TWO_FIELDS, draw), _Quota(OTHER_INSTEAD, draw)
    several = {1: _Quota(ALSO_OTHER, draw), 2: _Quota(BOTH_FIELDS, draw)}
    for number in count():
        fields = [of_laws.take()]
        if two_fields.of(1):
            fields.append(of_laws.take(barred=fields))
        size = MIN_PROVISIONS + draw.below(MAX_PROVISIONS - MIN_PROVISIONS + 1)
        num_several = several[len(fields)].of(size)
        num_other = min(instead.of(size), size - num_several)
        provisions: list[tuple[str | None, ...]] = [(None,)] * num_other
        provisions += [(fields[0], fields[1] if len(fields) == 2 else None)] * num_several
        provisions += [(draw.pick(fields),) for _ in range(size - len(provisions))]
        yield LawPlan(number, tuple(fields), _fill(draw.shuffled(provisions), fields, of_provisions))


def _fill(
    provisions: Sequence[tuple[str | None, ...]], fields: Sequence[str], shares: _Shares
) -> tuple[tuple[str, ...], ...]:
    """Put the domain that lies furthest behind in every place that is None, after counting the places that are not."""
    for place in provisions:
        for domain in place:
            if domain is not None:
                shares.add(domain)
    return tuple(tuple(domain or shares.take(barred=fields) for domain in place) for place in provisions)


class _Shares:
    """Counts how often each domain came; the start of the count is drawn, so that equals do not keep one order."""

    def __init__(self, draw: Draw) -> None:
        total = sum(PAPER_TOTALS.values())
        self._shares = {domain: number / total for domain, number in PAPER_TOTALS.items()}
        self._scales = {domain: math.sqrt(share) for domain, share in self._shares.items()}
        self._behind = {domain: share * draw.unit() for domain, share in self._shares.items()}

    def add(self, domain: str) -> None:
        for name, share in self._shares.items():
            self._behind[name] += share
        self._behind[domain] -= 1.0

    def take(self, barred: Sequence[str] = ()) -> str:
        """The domain, not one of `barred`, that lies furthest behind its share; it counts as come.

        Measured by the square root of the share, as chance would scatter: small fields come early, not last.
        """
        open_domains = [name for name in self._behind if name not in barred]
        furthest = max(open_domains, key=lambda name: self._behind[name] / self._scales[name])
        self.add(furthest)
        return furthest


class _Quota:
    """How many of so many things are of a kind, so that the share of the kind is kept at all times."""

    def __init__(self, share: float, draw: Draw) -> None:
        self._share, self._owed = share, draw.unit()

    def of(self, number: int) -> int:
        self._owed += self._share * number
        whole = int(self._owed)
        self._owed -= whole
        return whole
