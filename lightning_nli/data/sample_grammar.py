"""Facts of the synthetic statutes and how they are put in words (`data/sample.py`).

A fact says who must, must not or may do what, and one detail of it: a deadline, a fee, a day, another article, an act
it precedes, who asks for it, or an event it follows, precedes, is excepted by or depends on.
"""

from __future__ import annotations

from dataclasses import dataclass

from lightning_nli.data.sample_words import MONTHS, NUMBERS, Name

DEADLINE, FEE, DAY, LINK, BEFORE, REQUEST, AFTER, UNTIL, UNLESS, IF = range(10)
NUM_KINDS = 10
WITH_NUMBER, WITH_ACT = (DEADLINE, FEE, DAY), (LINK, BEFORE)

DUTY, BAN, PERMISSION = range(3)
NUM_MODALS = 3

VOICE, NOUN, CONDITION, LONG, CASE = range(5)
"""Forms of a sentence: active or passive clause, noun phrase, condition, longer sentence, case at hand."""

WORDINGS: tuple[tuple[str, ...], ...] = (
    ("trong thời hạn {} {}", "trong vòng {} {}"),
    ("với mức phí {} {}", "với lệ phí {} {}"),
    ("vào ngày {}", "đúng ngày {}"),
    ("theo quy định tại Điều {} về {}", "căn cứ Điều {} về {}"),
    ("trước khi {}", "trước lúc {}"),
    ("theo yêu cầu của {}", "khi {} yêu cầu"),
    ("sau khi {}", "kể từ khi {}"),
    ("trước khi {}", "trước lúc {}"),
    ("trừ khi {}", "trừ trường hợp {}", "nếu không xảy ra việc {}"),
    ("nếu {}", "trong trường hợp {}"),
)
"""Wordings of each kind of detail that mean the same."""
NUM_WORDINGS = 6  # a multiple of the number of wordings of every kind
NEGATED_CONDITION = 2  # the wording of an exception as a condition

MODALS: tuple[Name, ...] = (("phải", "có nghĩa vụ"), ("không được", "bị cấm"), ("được phép", "có quyền"))
PASSIVE_MODALS = ("phải do", "không được do", "có thể do")
NOUN_MODALS: tuple[Name, ...] = (
    ("nghĩa vụ của", "trách nhiệm của"),
    ("điều cấm đối với", "việc cấm đối với"),
    ("quyền của", "quyền hạn của"),
)
LONGER = (
    "Theo quy định của luật này thì {}",
    "Cần hiểu nội dung này là {}",
    "Luật này nêu rõ {} là bên",
)
CASES = (
    "Sao Mai", "Lá Biếc", "Mây Trắng", "Cầu Vồng", "Gió Nồm", "Suối Ngọc", "Đồi Thông", "Hạt Sương",
    "Nắng Sớm", "Trăng Khuyết", "Cánh Diều", "Sóng Xanh", "Bến Lặng", "Hoa Gạo", "Đá Cuội", "Rừng Già",
)  # fmt: skip
NUM_FRAMES = len(LONGER) * len(CASES)


@dataclass(frozen=True, slots=True)
class Detail:
    """The detail of a fact: its kind, number and words.

    Attributes:
        kind: `DEADLINE` and so on.
        number: Of units, the day of the month, or of the article linked to; 0: none.
        words: Unit, month or event and ""; the two names of who requests; verb and object of the other act.
    """

    kind: int
    number: int
    words: Name


NO_DETAIL = Detail(IF, 0, ("", ""))


@dataclass(frozen=True, slots=True)
class Fact:
    """One duty, ban or permission.

    Attributes:
        field: The domain whose words it is made of.
        actor: Who.
        modal: `DUTY`, `BAN` or `PERMISSION`.
        act: Verb and object.
        detail: Its detail.
        partner: Who else has the same duty; None: nobody.
    """

    field: str
    actor: Name
    modal: int
    act: Name
    detail: Detail
    partner: Name | None = None

    @property
    def actors(self) -> list[Name]:
        named = [self.actor] if self.partner is None else [self.actor, self.partner]
        return [*named, self.detail.words] if self.detail.kind == REQUEST else named

    @property
    def things(self) -> list[str]:
        return [self.act[1], self.detail.words[1]] if self.detail.kind in WITH_ACT else [self.act[1]]


@dataclass(frozen=True, slots=True)
class Surface:
    """Everything about a sentence that its meaning leaves open.

    Attributes:
        style: `VOICE` and so on.
        passive: Passive instead of active; of `VOICE` only.
        detail_first: The detail opens the sentence; of `VOICE` and `NOUN` only.
        name: Which of an actor's two names.
        modal: Which of a modal's two words.
        digits: Numbers in digits instead of words.
        wording: Which wording of the detail.
        frame: Which wording of a longer sentence, which name of a case.
    """

    style: int
    passive: bool
    detail_first: bool
    name: int
    modal: int
    digits: bool
    wording: int
    frame: int = 0


def wording_of(detail: Detail, surface: Surface) -> int:
    """Place of the detail's wording in `WORDINGS[detail.kind]`."""
    return surface.wording % len(WORDINGS[detail.kind])


def sentence(fact: Fact, surface: Surface) -> str:
    """The fact in words, from a capital letter to the full stop."""
    text = _SENTENCES[surface.style](fact, surface)
    return f"{text[0].upper()}{text[1:]}."


def detail_text(detail: Detail, surface: Surface) -> str:
    """The detail in words, as a part of a sentence."""
    kind, wording = detail.kind, WORDINGS[detail.kind][wording_of(detail, surface)]
    if kind == DAY:
        return wording.format(_day_text(detail.number, int(detail.words[0]), surface.digits))
    if kind in WITH_NUMBER:
        return wording.format(f"{detail.number:02d}" if surface.digits else NUMBERS[detail.number], detail.words[0])
    if kind == REQUEST:
        return wording.format(detail.words[surface.name])
    if kind == LINK:
        return wording.format(detail.number, " ".join(detail.words))
    return wording.format(" ".join(detail.words).rstrip())


def _day_text(day: int, month: int, digits: bool) -> str:
    if digits:
        return f"{day:02d}/{month:02d}"
    return f"{'mùng ' if day <= 10 else ''}{NUMBERS[day]} tháng {MONTHS[month]}"


def _actor_text(fact: Fact, surface: Surface) -> str:
    if fact.partner is None:
        return fact.actor[surface.name]
    return f"{fact.actor[surface.name]} và {fact.partner[surface.name]}"


def _act_text(fact: Fact, surface: Surface) -> str:
    """What follows the actor: modal, act, detail."""
    return f"{MODALS[fact.modal][surface.modal]} {' '.join(fact.act)} {detail_text(fact.detail, surface)}"


def _voice_sentence(fact: Fact, surface: Surface) -> str:
    verb, thing = fact.act
    actor = _actor_text(fact, surface)
    if surface.passive:
        core = f"{thing} {PASSIVE_MODALS[fact.modal]} {actor} {verb}"
    else:
        core = f"{actor} {MODALS[fact.modal][surface.modal]} {verb} {thing}"
    detail = detail_text(fact.detail, surface)
    return f"{detail}, {core}" if surface.detail_first else f"{core} {detail}"


def _noun_sentence(fact: Fact, surface: Surface) -> str:
    act, holder = " ".join(fact.act), f"{NOUN_MODALS[fact.modal][surface.modal]} {_actor_text(fact, surface)}"
    detail = detail_text(fact.detail, surface)
    return f"{detail}, việc {act} là {holder}" if surface.detail_first else f"việc {act} {detail} là {holder}"


def _condition_sentence(fact: Fact, surface: Surface) -> str:
    return f"nếu là {_actor_text(fact, surface)} thì {_act_text(fact, surface)}"


def _long_sentence(fact: Fact, surface: Surface) -> str:
    opening = LONGER[surface.frame % len(LONGER)].format(_actor_text(fact, surface))
    return f"{opening} {_act_text(fact, surface)}"


def _case_sentence(fact: Fact, surface: Surface) -> str:
    return f"{CASES[surface.frame % len(CASES)]} là {_actor_text(fact, surface)} nên {_act_text(fact, surface)}"


_SENTENCES = (_voice_sentence, _noun_sentence, _condition_sentence, _long_sentence, _case_sentence)
