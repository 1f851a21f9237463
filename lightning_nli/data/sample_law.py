"""The provisions of one synthetic law (`data/sample.py`): where they stand, what they state and in which split."""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

from lightning_nli.data.sample_draw import Draw
from lightning_nli.data.sample_grammar import (
    AFTER,
    BEFORE,
    DAY,
    DEADLINE,
    DUTY,
    FEE,
    IF,
    LINK,
    NO_DETAIL,
    NOUN,
    NUM_FRAMES,
    NUM_KINDS,
    NUM_MODALS,
    NUM_WORDINGS,
    REQUEST,
    UNLESS,
    UNTIL,
    VOICE,
    WITH_NUMBER,
    Detail,
    Fact,
    Surface,
    sentence,
)
from lightning_nli.data.sample_plan import LawPlan
from lightning_nli.data.sample_words import DAYS, MONEY_UNITS, MONTHS, NUMBERS, TIME_UNITS, VERBS, WORDS, Name
from lightning_nli.types import Split

TRAIN_FRACTION, DEV_FRACTION = 0.70, 0.15
SECOND_NAME_PERCENT = 15  # how often an actor goes by the second of its two names
NOUN_PERCENT = 12  # how often a premise is a noun phrase
NEAR_COPY_PER_MILLE = 35  # of the provisions; the few for which no original is at hand are written anew
MIN_RESEMBLANCE = 0.7  # of a near copy and its original

NUMBER_VALUES = tuple(NUMBERS)

PLAIN, DEADLINES, JOINT, MEMBER = range(4)
"""What a provision is a case of: nothing further; two deadlines to compare; a duty of two that stays one of two; a duty
of two of which each has its own."""
SCENARIOS = (PLAIN,) * 92 + (DEADLINES,) * 3 + (JOINT,) * 2 + (MEMBER,) * 3

_MONTHS = tuple(MONTHS)
_WORD = re.compile(r"\w+")


@dataclass(frozen=True, slots=True)
class Provision:
    """Where a premise stands, what it states and how.

    Attributes:
        article: Its number.
        clause: Its number.
        point: Its letter or None.
        domains: Fields of law, one or two; each is the field of one of the facts.
        split: Where its rows go.
        scenario: `PLAIN` and so on.
        told: Which of the two facts the entailed hypothesis restates.
        facts: The two facts.
        surfaces: How each is worded.
        is_copy: It is a near copy of a provision of an earlier law.
    """

    article: int
    clause: int
    point: str | None
    domains: tuple[str, ...]
    split: Split
    scenario: int
    told: int
    facts: tuple[Fact, Fact]
    surfaces: tuple[Surface, Surface]
    is_copy: bool = False

    @property
    def actors(self) -> list[Name]:
        return [actor for fact in self.facts for actor in fact.actors]

    @property
    def things(self) -> list[str]:
        return [thing for fact in self.facts for thing in fact.things]

    @property
    def text(self) -> str:
        """The premise."""
        return " ".join(map(sentence, self.facts, self.surfaces))


@dataclass(frozen=True, slots=True)
class Law:
    """The provisions of a law.

    Attributes:
        provisions: In order.
        acts: Article and act of each fact: what a reference to an article may restate.
        taken: The acts alone.
    """

    provisions: list[Provision]
    acts: list[tuple[int, Name]]
    taken: set[Name]


class Originals:
    """Provisions of earlier laws that a later law may copy: the last one of each set of domains and split.

    Their number is bounded by that of the pairs of domains, however long the corpus is.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[tuple[str, ...], Split], Provision] = {}

    def remember(self, law: Law) -> None:
        """Keep what later laws may copy.

        No copy, or a copy of it might be the original again; no reference to an article, it means nothing elsewhere.
        """
        for place in law.provisions:
            linked = any(fact.detail.kind == LINK for fact in place.facts)
            if place.scenario == PLAIN and not place.is_copy and not linked:
                self._known[place.domains, place.split] = place

    def take(self, domains: tuple[str, ...], split: Split) -> Provision | None:
        """A provision that no law has copied yet, or None."""
        return self._known.pop((domains, split), None)


def split_of_acts(first: Name, second: Name) -> Split:
    """The split of every premise, in any law, that speaks of these two acts.

    So equal premises are never parted, nor are near copies, which change a number or an actor and no act; and nothing
    need be remembered. Premises of other acts that are alike by chance may be parted.
    """
    key = "|".join(sorted(map(" ".join, (first, second))))
    return _split_at(zlib.crc32(key.encode()) / 2**32)


def build_law(plan: LawPlan, originals: Originals, draw: Draw) -> Law:
    """Write the provisions of a law; no two facts of it share verb and object.

    Args:
        plan: Which domains its provisions belong to.
        originals: Provisions of earlier laws: copied now and then, and changed by what is taken from them.
        draw: The draws of this law.
    """
    size = len(plan.provisions)
    ranks, places = draw.shuffled(range(size)), _places(size, draw)
    taken: set[Name] = set()
    drafts: list[Provision] = []
    for domains, rank, place in zip(plan.provisions, ranks, places, strict=True):
        split = _split_at((rank + draw.unit()) / size)
        draft = None
        if draw.below(1000) < NEAR_COPY_PER_MILLE:
            draft = _copied(originals.take(domains, split), place, taken, draw)
        drafts.append(draft or _drafted(domains, split, place, taken, draw))
        taken.update(fact.act for fact in drafts[-1].facts)
    acts = [(draft.article, fact.act) for draft in drafts for fact in draft.facts]
    return Law([_detailed(draft, acts, draw) for draft in drafts], acts, taken)


def draw_act(field: str, draw: Draw) -> Name:
    """A verb and an object of this field."""
    return draw.pick(VERBS), draw.pick(WORDS[field].things)


def draw_detail(
    kind: int, field: str, facts: Sequence[Fact], article: int, acts: Sequence[tuple[int, Name]], draw: Draw
) -> Detail:
    """A detail of this kind, about nobody and nothing that `facts` name.

    Args:
        kind: `DEADLINE` and so on.
        field: The domain whose words it is made of.
        facts: What names may not be used.
        article: Where the fact stands: no reference leads there.
        acts: What a reference may restate, with its article.
        draw: Where the draws come from.
    """
    if kind in (DEADLINE, FEE):
        return Detail(kind, draw.pick(NUMBER_VALUES), (draw.pick(TIME_UNITS if kind == DEADLINE else MONEY_UNITS), ""))
    if kind == DAY:
        return Detail(kind, draw.pick(DAYS), (str(draw.pick(_MONTHS)), ""))
    if kind == REQUEST:
        return Detail(kind, 0, draw_actor(field, [actor for fact in facts for actor in fact.actors], draw))
    if kind in (AFTER, UNTIL, UNLESS, IF):
        return Detail(kind, 0, (draw.pick(WORDS[field].events), ""))
    things = [thing for fact in facts for thing in fact.things]
    if kind == BEFORE:
        return Detail(kind, 0, (draw.pick(VERBS), draw_thing(field, things, draw)))
    others = [other for other in acts if other[0] != article]
    number, act = draw.pick([other for other in others if other[1][1] not in things] or others)
    return Detail(kind, number, act)


def draw_actor(field: str, barred: Sequence[Name], draw: Draw) -> Name:
    """An actor of this field that is not one of `barred`."""
    return draw.pick([actor for actor in WORDS[field].actors if actor not in barred])


def draw_thing(field: str, barred: Sequence[str], draw: Draw) -> str:
    """An object of this field that is not one of `barred`."""
    return draw.pick([thing for thing in WORDS[field].things if thing not in barred])


def draw_surface(style: int, draw: Draw) -> Surface:
    """A wording in this form."""
    return Surface(
        style=style,
        passive=draw.chance(50),
        detail_first=draw.chance(50),
        name=int(draw.chance(SECOND_NAME_PERCENT)),
        modal=draw.below(2),
        digits=draw.chance(50),
        wording=draw.below(NUM_WORDINGS),
        frame=draw.below(NUM_FRAMES),
    )


def change_number(detail: Detail, draw: Draw) -> Detail:
    """The detail, one of `WITH_NUMBER`, with another number; of a day, day or month or both are others."""
    if detail.kind != DAY:
        return replace(detail, number=draw.pick([number for number in NUMBER_VALUES if number != detail.number]))
    while True:
        changed = Detail(DAY, draw.pick(DAYS), (str(draw.pick(_MONTHS)), ""))
        if changed != detail:
            return changed


def resemblance(first: str, second: str) -> float:
    """Jaccard index of the sets of three words in a row, in lower case."""
    one, other = _word_triples(first), _word_triples(second)
    return len(one & other) / max(len(one | other), 1)


def _word_triples(text: str) -> set[tuple[str, ...]]:
    words = _WORD.findall(text.lower())
    return set(zip(words, words[1:], words[2:], strict=False))


def _split_at(place: float) -> Split:
    if place < TRAIN_FRACTION:
        return Split.TRAIN
    return Split.DEV if place < TRAIN_FRACTION + DEV_FRACTION else Split.TEST


def _places(size: int, draw: Draw) -> list[tuple[int, int, str | None]]:
    """Article, clause and point of each provision; one or two to an article."""
    article, clause = 1 + draw.below(3), 0
    places: list[tuple[int, int, str | None]] = []
    for _ in range(size):
        if clause == 2 or (clause == 1 and draw.chance(60)):
            article, clause = article + 1 + draw.below(2), 0
        clause += 1
        places.append((article, clause, draw.pick((None, None, "a", "b", "c"))))
    return places


def _drafted(
    domains: tuple[str, ...], split: Split, place: tuple[int, int, str | None], taken: set[Name], draw: Draw
) -> Provision:
    """A provision whose facts have no details yet."""
    fields = draw.shuffled(domains) if len(domains) == 2 else [domains[0], domains[0]]
    acts = _acts_of_split(fields, split, taken, draw)
    first = draw.pick(WORDS[fields[0]].actors)
    actors = [first, draw_actor(fields[1], [first], draw)]
    scenario, told = draw.pick(SCENARIOS), draw.below(2)
    partners: list[Name | None] = [None, None]
    if scenario in (JOINT, MEMBER):
        partners[told] = draw_actor(fields[told], actors, draw)
    facts = [
        Fact(field, actor, draw.below(NUM_MODALS), act, NO_DETAIL, partner)
        for field, actor, act, partner in zip(fields, actors, acts, partners, strict=True)
    ]
    surfaces = [draw_surface(NOUN if draw.chance(NOUN_PERCENT) else VOICE, draw) for _ in facts]
    return Provision(*place, domains, split, scenario, told, (facts[0], facts[1]), (surfaces[0], surfaces[1]))


def _acts_of_split(fields: Sequence[str], split: Split, taken: set[Name], draw: Draw) -> tuple[Name, Name]:
    while True:
        first, second = draw_act(fields[0], draw), draw_act(fields[1], draw)
        is_new = first[1] != second[1] and first not in taken and second not in taken
        if is_new and split_of_acts(first, second) == split:
            return first, second


def _detailed(draft: Provision, acts: Sequence[tuple[int, Name]], draw: Draw) -> Provision:
    """The provision with the details of its facts; a copy has them already."""
    if draft.is_copy:
        return draft
    if draft.scenario == DEADLINES:
        return _with_two_deadlines(draft, draw)
    first, second = draft.facts
    kinds = draw.below(NUM_KINDS), draw.below(NUM_KINDS)
    detail = draw_detail(kinds[0], first.field, draft.facts, draft.article, acts, draw)
    first = replace(first, detail=detail)
    detail = draw_detail(kinds[1], second.field, (first, second), draft.article, acts, draw)
    return replace(draft, facts=(first, replace(second, detail=detail)))


def _with_two_deadlines(draft: Provision, draw: Draw) -> Provision:
    """Both facts with the same modal and unit; told is the one with the deadline from which more follows.

    Who must act within five days must within ten; who may, or must not, within ten days may, or must not, within five.
    """
    numbers, unit = draw.sample(NUMBER_VALUES, 2), draw.pick(TIME_UNITS)
    modal = draft.facts[0].modal
    first, second = (
        replace(fact, modal=modal, detail=Detail(DEADLINE, number, (unit, "")))
        for fact, number in zip(draft.facts, numbers, strict=True)
    )
    told = numbers.index(min(numbers) if modal == DUTY else max(numbers))
    return replace(draft, told=told, facts=(first, second))


def _copied(
    original: Provision | None, place: tuple[int, int, str | None], taken: set[Name], draw: Draw
) -> Provision | None:
    """The original at another place with one number or one actor changed; None if that cannot be, or is too much."""
    if original is None or any(fact.act in taken for fact in original.facts):
        return None
    changes = [(index, False) for index in range(2)]
    changes += [(index, True) for index, fact in enumerate(original.facts) if fact.detail.kind in WITH_NUMBER]
    for index, of_number in draw.shuffled(changes):
        fact = original.facts[index]
        if of_number:
            fact = replace(fact, detail=change_number(fact.detail, draw))
        else:
            fact = replace(fact, actor=draw_actor(fact.field, original.actors, draw))
        facts = (fact, original.facts[1]) if index == 0 else (original.facts[0], fact)
        article, clause, point = place
        copy = replace(
            original, article=article, clause=clause, point=point, told=draw.below(2), facts=facts, is_copy=True
        )
        if resemblance(copy.text, original.text) >= MIN_RESEMBLANCE:
            return copy
    return None
