"""The hypotheses of a synthetic premise: one that follows and one that does not (`data/sample.py`).

Rule numbers are those of ViLegalNLI, Table 6, and mean different things under the two labels. Nothing that one can see
of a hypothesis alone is drawn by the label. The form of the sentence, its wording and whether its duty is weakened to a
permission are drawn once for both. The false fact is drawn as the true ones were, or is a true one with a slot redrawn
or with parts exchanged in a way that leaves every kind of fact as frequent as it was. Where more than that has to
change, in the scenarios of `sample_law`, both hypotheses show the same number, or the same count of actors.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from lightning_nli.data.sample_draw import Draw
from lightning_nli.data.sample_grammar import (
    AFTER,
    BEFORE,
    CASE,
    CONDITION,
    DAY,
    DEADLINE,
    DUTY,
    FEE,
    IF,
    LINK,
    LONG,
    NEGATED_CONDITION,
    NO_DETAIL,
    NOUN,
    NUM_KINDS,
    NUM_MODALS,
    PERMISSION,
    REQUEST,
    UNLESS,
    UNTIL,
    VOICE,
    WITH_NUMBER,
    Fact,
    Surface,
    sentence,
    wording_of,
)
from lightning_nli.data.sample_law import (
    DEADLINES,
    JOINT,
    MEMBER,
    NUMBER_VALUES,
    PLAIN,
    Law,
    Provision,
    change_number,
    draw_act,
    draw_actor,
    draw_detail,
    draw_surface,
    draw_thing,
)
from lightning_nli.data.sample_words import VERBS, WORDS
from lightning_nli.types import Label

STYLES = (VOICE, VOICE, NOUN, CONDITION, LONG, CASE)
STYLES_OF_TWO_ACTORS = (VOICE, VOICE, NOUN, LONG)
WEAKEN_PERCENT = 12

INDEPENDENT, SLOT, DETAIL, EXCHANGE, MODAL = range(5)
CHANGES = (INDEPENDENT,) * 20 + (SLOT,) * 10 + (DETAIL,) * 4 + (EXCHANGE,) * 4 + (MODAL,) * 2
"""What makes a fact of a plain provision false, as often as it stands here."""
ARTICLE_PERCENT = 50  # how often an independent fact is one of another article, where there is one
SECOND_CHANGE_PERCENT = 30  # how often a changed slot comes with a changed detail

_RULE_OF_STYLE = {VOICE: 1, NOUN: 3, CONDITION: 4, LONG: 6, CASE: 8}


@dataclass(frozen=True, slots=True)
class Pair:
    """What a hypothesis states, how, and how it relates to the premise.

    Attributes:
        fact: What it states.
        surface: How.
        label: Entailment or not.
        rules: Rules of generation, ascending; at least one.
    """

    fact: Fact
    surface: Surface
    label: Label
    rules: list[int]

    @property
    def hypothesis(self) -> str:
        """The text."""
        return sentence(self.fact, self.surface)


@dataclass(frozen=True, slots=True)
class _Claim:
    """A fact and the rules that led to it; those of its form come later."""

    fact: Fact
    rules: tuple[int, ...] = ()


def build_pairs(place: Provision, law: Law, draw: Draw) -> list[Pair]:
    """One entailed and one not entailed hypothesis in the same form, in random order."""
    surface = _hypothesis_surface(place, draw)
    weakened = place.scenario != DEADLINES and draw.chance(WEAKEN_PERCENT)
    true, false = _SCENARIO_CLAIMS[place.scenario](place, law, weakened, draw)
    told = place.facts[place.told]
    rules = {*true.rules, *_form_rules(told, true.fact, place.surfaces[place.told], surface)}
    false_rules = set(false.rules)
    if surface.style == CASE and 2 in false_rules and false.fact.actor not in place.actors:
        false_rules.add(8)
    true_fact, false_fact = true.fact, false.fact
    if weakened:
        true_fact, false_fact = _weakened(true_fact), _weakened(false_fact)
        rules |= {7} if told.modal == DUTY else set()
    pairs = [
        Pair(true_fact, surface, Label.ENTAILMENT, sorted(rules)),
        Pair(false_fact, surface, Label.NON_ENTAILMENT, sorted(false_rules)),
    ]
    return pairs if draw.chance(50) else pairs[::-1]


def _hypothesis_surface(place: Provision, draw: Draw) -> Surface:
    """Another form than that of the sentence restated."""
    premise = place.surfaces[place.told]
    styles: tuple[int, ...] = STYLES_OF_TWO_ACTORS if place.scenario == JOINT else STYLES
    if premise.style == NOUN:
        styles = tuple(style for style in styles if style != NOUN)
    return replace(draw_surface(draw.pick(styles), draw), passive=not premise.passive)


def _form_rules(told: Fact, fact: Fact, premise: Surface, surface: Surface) -> set[int]:
    """Rules that lead from the premise's sentence to that of the hypothesis, its meaning aside."""
    rules = {3 if surface.style == VOICE and premise.style == NOUN else _RULE_OF_STYLE[surface.style]}
    kind = told.detail.kind
    if premise.name != surface.name:
        rules.add(2)
    if kind in WITH_NUMBER and premise.digits != surface.digits and fact.detail == told.detail:
        rules.add(5)
    if kind == LINK:
        rules.add(9)
    wordings = {wording_of(told.detail, premise), wording_of(told.detail, surface)}
    if len(wordings) == 2 and kind == UNLESS and NEGATED_CONDITION in wordings:
        rules.add(4)
    if len(wordings) == 2 and kind == REQUEST:
        rules.add(3)
    return rules


def _weakened(fact: Fact) -> Fact:
    """What must be done may be done."""
    return replace(fact, modal=PERMISSION) if fact.modal == DUTY else fact


def _deadline_claims(place: Provision, law: Law, weakened: bool, draw: Draw) -> tuple[_Claim, _Claim]:
    """One number for both: it follows from the deadline told and not from the other."""
    told, other = place.facts[place.told], place.facts[1 - place.told]
    ends = sorted((told.detail.number, other.detail.number))
    number = draw.pick(
        [value for value in NUMBER_VALUES if ends[0] <= value <= ends[1] and value != other.detail.number]
    )
    true, false = (replace(fact, detail=replace(fact.detail, number=number)) for fact in (told, other))
    return _Claim(true, (7,) if true != told else ()), _Claim(false, (5,))


def _joint_claims(place: Provision, law: Law, weakened: bool, draw: Draw) -> tuple[_Claim, _Claim]:
    """Two actors in both: those told, and one of another duty with somebody who does not share it."""
    other = place.facts[1 - place.told]
    stretched = replace(other, partner=draw_actor(other.field, place.actors, draw))
    return _Claim(place.facts[place.told]), _Claim(stretched, (6,))


def _member_claims(place: Provision, law: Law, weakened: bool, draw: Draw) -> tuple[_Claim, _Claim]:
    """One actor in both: either of the two told, and somebody else."""
    told = place.facts[place.told]
    assert told.partner is not None
    one = replace(told, actor=draw.pick([told.actor, told.partner]), partner=None)
    return _Claim(one, (7,)), _Claim(_with_other_actor(draw.pick(place.facts), place, draw), (2,))


def _plain_claims(place: Provision, law: Law, weakened: bool, draw: Draw) -> tuple[_Claim, _Claim]:
    return _Claim(place.facts[place.told]), _false_claim(place, law, weakened, draw)


_SCENARIO_CLAIMS: dict[int, Callable[[Provision, Law, bool, Draw], tuple[_Claim, _Claim]]] = {
    PLAIN: _plain_claims,
    DEADLINES: _deadline_claims,
    JOINT: _joint_claims,
    MEMBER: _member_claims,
}


def _false_claim(place: Provision, law: Law, weakened: bool, draw: Draw) -> _Claim:
    """A claim that does not follow from the provision, weakened or not."""
    fact, change = draw.pick(place.facts), draw.pick(CHANGES)
    if change == INDEPENDENT:
        return _Claim(_independent_fact(fact.field, place, law, draw), (10,))
    if change == DETAIL:
        return _Claim(_with_other_detail(fact, place, law, draw), (7,))
    if change == EXCHANGE and fact.detail.kind != DEADLINE:
        return _EXCHANGES[fact.detail.kind](fact, place, law, draw)
    if change in (EXCHANGE, MODAL) and not weakened:  # weakened, a duty made of a permission would be what it was
        return _with_other_modal(fact)
    changed = _with_other_slot(fact, place, draw)
    if draw.chance(SECOND_CHANGE_PERCENT):
        return _Claim(_with_other_detail(changed, place, law, draw), (2, 7))
    return _Claim(changed, (2,))


def _independent_fact(field: str, place: Provision, law: Law, draw: Draw) -> Fact:
    """A fact of another article in the same split, or one of no article.

    Were it one of another split, a test hypothesis could be known from the training rows.
    """
    things = place.things
    if draw.chance(ARTICLE_PERCENT):
        facts = [
            fact
            for other in law.provisions
            if other.split == place.split and other.article != place.article and other.scenario == PLAIN
            for fact in other.facts
            if fact.act[1] not in things
        ]
        if facts:
            return draw.pick(facts)
    act = draw_act(field, draw)
    while act in law.taken or act[1] in things:
        act = draw_act(field, draw)
    fact = Fact(field, draw.pick(WORDS[field].actors), draw.below(NUM_MODALS), act, NO_DETAIL)
    return replace(fact, detail=draw_detail(draw.below(NUM_KINDS), field, [fact], place.article, law.acts, draw))


def _with_other_slot(fact: Fact, place: Provision, draw: Draw) -> Fact:
    """Another actor, another object or another verb, foreign to the premise."""
    slot = draw.below(20)
    if slot < 9:
        return _with_other_actor(fact, place, draw)
    verb, thing = fact.act
    if slot < 17:
        return replace(fact, act=(verb, draw_thing(fact.field, place.things, draw)))
    used = {other.act[0] for other in place.facts}
    return replace(fact, act=(draw.pick([verb for verb in VERBS if verb not in used]), thing))


def _with_other_actor(fact: Fact, place: Provision, draw: Draw) -> Fact:
    return replace(fact, actor=draw_actor(fact.field, place.actors, draw), partner=None)


def _with_other_detail(fact: Fact, place: Provision, law: Law, draw: Draw) -> Fact:
    """A detail of another kind, foreign to the premise and the fact."""
    kind = (fact.detail.kind + 1 + draw.below(NUM_KINDS - 1)) % NUM_KINDS
    named = (*place.facts, fact)
    return replace(fact, detail=draw_detail(kind, fact.field, named, place.article, law.acts, draw))


def _with_other_modal(fact: Fact) -> _Claim:
    """The next modal round the circle never follows from the one before; a permission becomes a duty (rule 6)."""
    return _Claim(replace(fact, modal=(fact.modal + 1) % NUM_MODALS), (6,) if fact.modal == PERMISSION else (3,))


def _exchange_number(fact: Fact, place: Provision, law: Law, draw: Draw) -> _Claim:
    return _Claim(replace(fact, detail=change_number(fact.detail, draw)), (5,))


def _exchange_link(fact: Fact, place: Provision, law: Law, draw: Draw) -> _Claim:
    detail = draw_detail(LINK, fact.field, place.facts, place.article, law.acts, draw)
    return _Claim(replace(fact, detail=detail), (9,))


def _exchange_acts(fact: Fact, place: Provision, law: Law, draw: Draw) -> _Claim:
    return _Claim(replace(fact, act=fact.detail.words, detail=replace(fact.detail, words=fact.act)), (1,))


def _exchange_actors(fact: Fact, place: Provision, law: Law, draw: Draw) -> _Claim:
    return _Claim(replace(fact, actor=fact.detail.words, detail=replace(fact.detail, words=fact.actor)), (1,))


def _exchange_event(fact: Fact, place: Provision, law: Law, draw: Draw) -> _Claim:
    """After becomes before, an exception a condition, and the other way round."""
    kind, rule = {AFTER: (UNTIL, 2), UNTIL: (AFTER, 2), UNLESS: (IF, 4), IF: (UNLESS, 4)}[fact.detail.kind]
    return _Claim(replace(fact, detail=replace(fact.detail, kind=kind)), (rule,))


_EXCHANGES: dict[int, Callable[[Fact, Provision, Law, Draw], _Claim]] = {
    FEE: _exchange_number,
    DAY: _exchange_number,
    LINK: _exchange_link,
    BEFORE: _exchange_acts,
    REQUEST: _exchange_actors,
    AFTER: _exchange_event,
    UNTIL: _exchange_event,
    UNLESS: _exchange_event,
    IF: _exchange_event,
}
"""The subtle change that fits each kind of detail; all kinds stay equally frequent, so none marks a label."""
