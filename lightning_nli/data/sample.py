"""The embedded corpus: invented Vietnamese statutes and premise-hypothesis pairs of our own grammar.

Synthetic through and through: no sentence comes from a law or from another corpus, no duty in it exists. It is there so
that a demo, a tutorial and the tests have a corpus to train on without a download. **Report no results on it**: a score
says that the machinery works, nothing about a model's grasp of law.

How a pair comes about. A law draws its own words from its fields. A premise states two facts (who, may or must or must
not, which act, which detail). It yields one entailed and one not entailed hypothesis in the same form: the first
restates a fact, the second a fact of another article or one with a changed slot. Changed slots are drawn as the
originals were, so the hypothesis alone tells nothing about the label, nor does the premise, which always stands once
under each label.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date
from typing import Any

import polars as pl

from lightning_nli.data.sample_draw import Draw
from lightning_nli.data.sample_grammar import (
    CASES,
    LONGER,
    MODALS,
    MONEY_UNITS,
    NUMBERS,
    PASSIVE_MODALS,
    TIME_UNITS,
    VERBS,
    WORDS,
    Name,
)
from lightning_nli.data.schema import EXAMPLE_SCHEMA
from lightning_nli.types import DOMAINS, Label, Split

DEFAULT_NUM_EXAMPLES = 3600
MULTI_DOMAIN_LAWS = 7  # of every 27 laws in a row: 26%
TRAIN_FRACTION, DEV_FRACTION = 0.70, 0.15
SECOND_NAME_PERCENT = 15  # how often an actor goes by the second of its two names

DEADLINE, FEE, AFTER, UNLESS, REQUEST, BEFORE = range(6)
NUM_KINDS = 6
VOICE, CONDITION, LONG, CASE = range(4)
STYLES = (VOICE, VOICE, CONDITION, LONG, CASE)

INDEPENDENT, CHANGED_SLOT, ASSUMED, SPECIAL = range(4)
CHANGES = (INDEPENDENT,) * 9 + (CHANGED_SLOT,) * 5 + (ASSUMED,) * 3 + (SPECIAL,) * 3


@dataclass(frozen=True, slots=True)
class Detail:
    """When, for how much, unless what, or at whose request: its kind, its number and its words."""

    kind: int
    number: int = 0
    words: Name = ("", "")  # unit or event and ""; the two names of who requests; verb and object of the later act


@dataclass(frozen=True, slots=True)
class Fact:
    """One duty, prohibition or permission; `modal` is its place in `MODALS`."""

    actor: Name
    modal: int
    verb: str
    thing: str
    detail: Detail

    @property
    def actors(self) -> list[Name]:
        return [self.actor, self.detail.words] if self.detail.kind == REQUEST else [self.actor]

    @property
    def things(self) -> list[str]:
        return [self.thing, self.detail.words[1]] if self.detail.kind == BEFORE else [self.thing]


@dataclass(frozen=True, slots=True)
class Surface:
    """Everything about a sentence that its meaning leaves open. Drawn before, and whatever, the label."""

    passive: bool
    detail_first: bool
    name: int  # which of an actor's two names
    modal: int  # which of a modal's two words
    digits: bool
    style: int = VOICE
    frame: int = 0  # which wording of a long sentence, which case


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The words one law draws on."""

    actors: list[Name]
    things: list[str]
    events: list[str]


@dataclass(frozen=True, slots=True)
class Provision:
    """Where a premise stands, what it states and how."""

    article: int
    clause: int
    point: str | None
    facts: tuple[Fact, Fact]
    surfaces: tuple[Surface, Surface]

    @property
    def actors(self) -> list[Name]:
        return [actor for fact in self.facts for actor in fact.actors]

    @property
    def things(self) -> list[str]:
        return [thing for fact in self.facts for thing in fact.things]


def sample_corpus(num_examples: int | None = None, seed: int = 0) -> pl.DataFrame:
    """The synthetic sample corpus: for demos and tests only, nobody should report results on it.

    Law after law is drawn, each from `seed` and its own number alone, until there are enough rows: a larger corpus
    begins with the rows of a smaller one. A premise has two rows, one under each label, and stands in one split.

    Args:
        num_examples: Number of rows; 3,600 by default.
        seed: Another seed gives other laws; the ids stay.

    Returns:
        A frame of `EXAMPLE_SCHEMA` with binary labels, `split` drawn 70/15/15 by premise, and all 27 domains from 27
        laws (about 540 rows) on.

    Raises:
        ValueError: `num_examples` is not positive.
    """
    wanted = DEFAULT_NUM_EXAMPLES if num_examples is None else num_examples
    if wanted < 1:
        raise ValueError(f"{num_examples=} must be positive")
    rows: list[dict[str, Any]] = []
    law = 0
    while len(rows) < wanted:
        rows.extend(_law_rows(law, seed))
        law += 1
    return pl.DataFrame(rows[:wanted], schema=EXAMPLE_SCHEMA)


def _law_rows(law: int, seed: int) -> Iterator[dict[str, Any]]:
    draw = Draw("law", seed, law)
    domains = _law_domains(law, seed, draw)
    vocabulary = _law_vocabulary(domains, draw)
    provisions = _provisions(vocabulary, draw)
    year = 2031 + draw.below(9)
    shared = {
        "corpus": "sample",
        "law_id": f"M-{law + 1:03d}/{year}/QS",
        "law_name": f"Luật mẫu số {law + 1} về {' và '.join(draw.sample(vocabulary.things, 2))}",
        "law_date": date(year, 1 + draw.below(12), 1 + draw.below(28)),
        "domains": domains,
    }
    ranks = draw.sample(range(len(provisions)), len(provisions))
    for index, (provision, rank) in enumerate(zip(provisions, ranks, strict=True)):
        premise_id = f"sample-{law + 1:04d}-{index + 1:02d}"
        place = {
            "premise": ". ".join(map(_sentence, provision.facts, provision.surfaces)) + ".",
            "premise_id": premise_id,
            "chapter": f"Chương {'I' * (1 + index * 3 // len(provisions))}",
            "section": f"Mục {1 + index % 2}" if index * 3 // len(provisions) == 1 else None,
            "article": f"Điều {provision.article}",
            "clause": f"Khoản {provision.clause}",
            "point": provision.point and f"Điểm {provision.point}",
            "split": _split((rank + draw.unit()) / len(provisions)),
        }
        pairs = _pairs(provision, provisions, vocabulary, draw)
        for number, (hypothesis, label, rule) in enumerate(draw.sample(pairs, len(pairs))):
            pair = {"hypothesis": hypothesis, "label": label.value, "rule": rule}
            yield shared | place | pair | {"example_id": f"{premise_id}-{number + 1}"}


def _split(place: float) -> str:
    if place < TRAIN_FRACTION:
        return Split.TRAIN.value
    return Split.DEV.value if place < TRAIN_FRACTION + DEV_FRACTION else Split.TEST.value


def _law_domains(law: int, seed: int, draw: Draw) -> list[str]:
    """Every 27 laws in a row go once through all domains; 7 of them add a second one."""
    block, place = divmod(law, len(DOMAINS))
    order = Draw("domains", seed, block).sample(list(DOMAINS), len(DOMAINS))
    if place * MULTI_DOMAIN_LAWS % len(DOMAINS) >= MULTI_DOMAIN_LAWS:
        return [order[place]]
    return [order[place], draw.pick([domain for domain in DOMAINS if domain != order[place]])]


def _law_vocabulary(domains: Sequence[str], draw: Draw) -> Vocabulary:
    words = [WORDS[domain] for domain in domains]
    share = len(words)
    return Vocabulary(
        actors=[actor for part in words for actor in draw.sample(part.actors, 6 // share)],
        things=[thing for part in words for thing in draw.sample(part.objects, 8 // share)],
        events=[event for part in words for event in draw.sample(part.events, 6 // share)],
    )


def _provisions(vocabulary: Vocabulary, draw: Draw) -> list[Provision]:
    """8 to 12 premises, one or two to an article; no two facts of a law share verb and object."""
    taken: set[tuple[str, str]] = set()
    out: list[Provision] = []
    article, clause = 1 + draw.below(3), 0
    for _ in range(8 + draw.below(5)):
        if clause == 2 or (clause == 1 and draw.chance(60)):
            article, clause = article + 1 + draw.below(2), 0
        clause += 1
        actors = draw.sample(vocabulary.actors, 2)
        things = draw.sample(vocabulary.things, 2)
        first, second = (
            _fact(actor, thing, vocabulary, taken, draw) for actor, thing in zip(actors, things, strict=True)
        )
        surfaces = (_surface(draw), _surface(draw))
        point = draw.pick((None, None, "a", "b", "c"))
        out.append(Provision(article, clause, point, (first, second), surfaces))
    return out


def _fact(actor: Name, thing: str, vocabulary: Vocabulary, taken: set[tuple[str, str]], draw: Draw) -> Fact:
    verb = draw.pick([verb for verb in VERBS if (verb, thing) not in taken])
    taken.add((verb, thing))
    detail = _detail(draw.below(NUM_KINDS), [actor], [thing], vocabulary, draw)
    return Fact(actor, draw.below(len(MODALS)), verb, thing, detail)


def _detail(
    kind: int, not_actors: Sequence[Name], not_things: Sequence[str], vocabulary: Vocabulary, draw: Draw
) -> Detail:
    if kind in (DEADLINE, FEE):
        unit = draw.pick(TIME_UNITS if kind == DEADLINE else MONEY_UNITS)
        return Detail(kind, draw.pick(list(NUMBERS)), (unit, ""))
    if kind == REQUEST:
        return Detail(kind, 0, draw.pick([actor for actor in vocabulary.actors if actor not in not_actors]))
    if kind == BEFORE:
        thing = draw.pick([thing for thing in vocabulary.things if thing not in not_things])
        return Detail(kind, 0, (draw.pick(VERBS), thing))
    return Detail(kind, 0, (draw.pick(vocabulary.events), ""))


def _surface(draw: Draw) -> Surface:
    return Surface(
        passive=draw.chance(50),
        detail_first=draw.chance(50),
        name=int(draw.chance(SECOND_NAME_PERCENT)),
        modal=draw.below(2),
        digits=draw.chance(50),
    )


def _detail_text(detail: Detail, surface: Surface) -> str:
    number = f"{detail.number:02d}" if surface.digits else NUMBERS.get(detail.number, "")
    return {
        DEADLINE: f"trong thời hạn {number} {detail.words[0]}",
        FEE: f"với mức phí {number} {detail.words[0]}",
        AFTER: f"sau khi {detail.words[0]}",
        UNLESS: f"trừ khi {detail.words[0]}",
        REQUEST: f"theo yêu cầu của {detail.words[surface.name]}",
        BEFORE: f"trước khi {' '.join(detail.words)}",
    }[detail.kind]


def _sentence(fact: Fact, surface: Surface) -> str:
    """The fact in words, from a capital letter to before the full stop."""
    actor, modal = fact.actor[surface.name], MODALS[fact.modal][surface.modal]
    act, detail = f"{fact.verb} {fact.thing}", _detail_text(fact.detail, surface)
    if surface.style == CONDITION:
        text = f"nếu là {actor} thì {modal} {act} {detail}"
    elif surface.style == LONG:
        text = f"{LONGER[surface.frame % len(LONGER)].format(actor)} {modal} {act} {detail}"
    elif surface.style == CASE:
        text = f"{CASES[surface.frame % len(CASES)]} là {actor} nên {modal} {act} {detail}"
    else:
        core = f"{actor} {modal} {act}"
        if surface.passive:
            core = f"{fact.thing} {PASSIVE_MODALS[fact.modal]} {actor} {fact.verb}"
        text = f"{detail}, {core}" if surface.detail_first else f"{core} {detail}"
    return text[0].upper() + text[1:]


def _pairs(
    provision: Provision, provisions: Sequence[Provision], vocabulary: Vocabulary, draw: Draw
) -> list[tuple[str, Label, list[int]]]:
    """One entailed and one not entailed hypothesis: text, label, rules. Both wear the same surface."""
    told = draw.below(2)
    surface = replace(
        _surface(draw),
        style=draw.pick(STYLES),
        passive=not provision.surfaces[told].passive,
        frame=draw.below(len(LONGER) * len(CASES)),
    )
    fact = provision.facts[told]
    false_fact, rule = _false_fact(provision, provisions, vocabulary, draw)
    return [
        (_sentence(fact, surface) + ".", Label.ENTAILMENT, _entailment_rules(fact, provision.surfaces[told], surface)),
        (_sentence(false_fact, surface) + ".", Label.NON_ENTAILMENT, [rule]),
    ]


def _entailment_rules(fact: Fact, premise: Surface, hypothesis: Surface) -> list[int]:
    """Rules of Table 6 that lead from the premise's sentence to the hypothesis."""
    rules = [{VOICE: 1, CONDITION: 4, LONG: 6, CASE: 8}[hypothesis.style]]
    if premise.name != hypothesis.name:
        rules.append(2)
    if fact.detail.kind in (DEADLINE, FEE) and premise.digits != hypothesis.digits:
        rules.append(5)
    return sorted(rules)


def _false_fact(
    provision: Provision, provisions: Sequence[Provision], vocabulary: Vocabulary, draw: Draw
) -> tuple[Fact, int]:
    """A fact that does not follow from the provision, and its non-entailment rule in Table 6."""
    fact = provision.facts[draw.below(2)]
    change = draw.pick(CHANGES)
    if change == INDEPENDENT:
        others = [
            other
            for place in provisions
            if place.article != provision.article
            for other in place.facts
            if other.thing not in provision.things
        ]
        if others:
            return draw.pick(others), 10
        change = CHANGED_SLOT
    if change == CHANGED_SLOT:
        return _change_slot(fact, provision, vocabulary, draw), 2
    if change == ASSUMED:
        kind = (fact.detail.kind + 1 + draw.below(NUM_KINDS - 1)) % NUM_KINDS
        return replace(fact, detail=_detail(kind, provision.actors, provision.things, vocabulary, draw)), 7
    special, rule = _SPECIAL[fact.detail.kind]
    return special(fact, draw), rule


def _change_slot(fact: Fact, provision: Provision, vocabulary: Vocabulary, draw: Draw) -> Fact:
    """Another actor, another object or another verb, foreign to the premise."""
    slot = draw.below(20)
    if slot < 9:
        return replace(fact, actor=draw.pick([a for a in vocabulary.actors if a not in provision.actors]))
    if slot < 17:
        return replace(fact, thing=draw.pick([t for t in vocabulary.things if t not in provision.things]))
    used = {other.verb for other in provision.facts}
    return replace(fact, verb=draw.pick([verb for verb in VERBS if verb not in used]))


def _change_number(fact: Fact, draw: Draw) -> Fact:
    number = draw.pick([number for number in NUMBERS if number != fact.detail.number])
    return replace(fact, detail=replace(fact.detail, number=number))


def _change_modal(fact: Fact, draw: Draw) -> Fact:
    return replace(fact, modal=(fact.modal + 1) % len(MODALS))


def _swap_actors(fact: Fact, draw: Draw) -> Fact:
    return replace(fact, actor=fact.detail.words, detail=replace(fact.detail, words=fact.actor))


def _swap_acts(fact: Fact, draw: Draw) -> Fact:
    verb, thing = fact.detail.words
    return replace(fact, verb=verb, thing=thing, detail=replace(fact.detail, words=(fact.verb, fact.thing)))


_SPECIAL: dict[int, tuple[Callable[[Fact, Draw], Fact], int]] = {
    DEADLINE: (_change_number, 5),
    FEE: (_change_number, 5),
    AFTER: (_change_modal, 3),
    UNLESS: (_change_modal, 3),
    REQUEST: (_swap_actors, 1),
    BEFORE: (_swap_acts, 1),
}
"""The subtle change that fits each kind of detail; all kinds equally likely, so none marks a label."""
