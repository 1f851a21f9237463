"""Which tokens go of an example that is too long: by hand, against a slow twin, and what holds for every case."""

from __future__ import annotations

from fractions import Fraction
from itertools import product

import numpy as np
import polars as pl
import pytest
from test_tokenization import make_frame, rows_of
from tiny_models import TEXTS, bert_tokenizer

from lightning_nli.config_schema import TextConfig
from lightning_nli.config_text import check_text, parse_ratio, resolve_truncation
from lightning_nli.data import tokenization
from lightning_nli.data.segments import Cut, Truncation, plan_cuts, share_in_ratio
from lightning_nli.data.tokenization import EncoderSpec, count_segment_tokens, tokenize_split
from lightning_nli.types import BINARY, UserError

SEGMENTS = ("hypothesis", "condition", "premise")


@pytest.mark.parametrize(
    ("lengths", "budget", "ratio", "kept"),
    [
        ([10, 10, 10], 30, (1, 1, 1), [10, 10, 10]),  # fits
        ([100, 100, 100], 100, (27, 8, 65), [27, 8, 65]),  # the ratio itself
        ([100, 100, 100], 10, (1, 1, 1), [4, 3, 3]),  # equal remainders: the earlier text
        ([100, 100, 100], 11, (1, 1, 1), [4, 4, 3]),
        ([100, 100, 100], 10, (26, 8, 66), [3, 1, 6]),  # quotas 2.6, 0.8, 6.6: 0.8 is one token, the rest 2.54, 6.46
        ([100, 100, 100], 20, (26, 8, 66), [5, 2, 13]),  # 5.2, 1.6, 13.2: floors 5, 1, 13, the largest remainder is .6
        ([5, 100, 100], 100, (27, 8, 65), [5, 10, 85]),  # 95 x 8/73 = 10.4, 95 x 65/73 = 84.6
        ([5, 3, 100], 100, (27, 8, 65), [5, 3, 92]),  # two short texts
        ([5, 100, 40], 100, (27, 8, 65), [5, 55, 40]),  # what two leave, the third takes
        ([1, 1, 500], 20, (27, 8, 65), [1, 1, 18]),  # one-token segments
        ([500, 1, 1], 20, (27, 8, 65), [18, 1, 1]),
        ([400, 10, 10], 30, (1, 1, 98), [10, 10, 10]),  # shares of 0.3: 10 x 20/2 after the short law took its 10
        ([50, 50, 50], 3, (1, 1, 98), [1, 1, 1]),  # no room for more than one token each
        ([50, 50, 50], 5, (1, 1, 98), [1, 1, 3]),
        ([4000, 5, 60], 100, (27, 8, 65), [35, 5, 60]),  # one longer than everything else
        ([0, 50, 50], 20, (1, 1, 1), [0, 10, 10]),  # a text that the tokenizer makes nothing of
        ([50, 60], 40, (1, 3), [10, 30]),
        ([50], 40, (7,), [40]),
    ],
)
def test_the_room_is_shared_in_the_ratio(lengths, budget, ratio, kept):
    assert share_in_ratio(lengths, budget, ratio) == kept


def exact_shares(lengths, budget, ratio) -> list[Fraction]:
    """The twin: every text gets w x level tokens, but at least one and at most all it has; the level that uses up all.

    Found by trying which texts stand at which bound.
    """
    for bounds in product((-1, 0, 1), repeat=len(lengths)):
        fixed = [(min(1, n), None, n)[bound + 1] for n, bound in zip(lengths, bounds, strict=True)]
        weight = sum(w for w, value in zip(ratio, fixed, strict=True) if value is None)
        left = budget - sum(value for value in fixed if value is not None)
        if not weight or left < 0:
            if left == 0:
                low = max((Fraction(v, w) for v, w, b in zip(fixed, ratio, bounds, strict=True) if b > 0), default=0)
                high = [Fraction(v, w) for v, w, b in zip(fixed, ratio, bounds, strict=True) if b < 0]
                if not weight and (not high or low <= min(high)):
                    return [Fraction(value) for value in fixed]
            continue
        level = Fraction(left, weight)
        shares = [level * w if value is None else Fraction(value) for w, value in zip(ratio, fixed, strict=True)]
        if all(share == min(n, max(min(1, n), level * w)) for share, n, w in zip(shares, lengths, ratio, strict=True)):
            return shares
    raise AssertionError((lengths, budget, ratio))


@pytest.mark.parametrize("ratio", [(1, 1, 1), (27, 8, 65), (1, 50, 2), (65, 27, 8)])
def test_every_small_case_equals_the_slow_twin(ratio):
    for lengths in product((1, 2, 5, 12), repeat=3):
        for budget in range(3, sum(lengths)):
            kept, shares = share_in_ratio(lengths, budget, ratio), exact_shares(lengths, budget, ratio)
            assert sum(kept) == budget
            over = [count - share for count, share in zip(kept, shares, strict=True)]
            assert all(-1 < part < 1 for part in over)
            rounded_up = [index for index in range(3) if over[index] > 0]
            rounded_down = [index for index in range(3) if over[index] < 0]
            for up, down in product(rounded_up, rounded_down):  # the larger remainder, of equal ones the earlier text
                assert (shares[up] % 1, -up) > (shares[down] % 1, -down), (lengths, budget)


@pytest.mark.parametrize("truncation", list(Truncation))
def test_no_rule_exceeds_the_room_empties_a_text_or_leaves_room_unused(truncation):
    random = np.random.default_rng(5)
    for _ in range(600):
        size = int(random.integers(1, 4))
        lengths = [int(n) for n in random.integers(1, random.choice([4, 40, 4000]) + 1, size)]
        budget = int(random.integers(size, sum(lengths) + 5))
        ratio = [int(w) for w in random.integers(1, 1000, size)]
        cuts = plan_cuts(lengths, budget, truncation, premise=size - 1, ratio=ratio)
        kept = [cut.num_kept for cut in cuts]
        assert sum(kept) == min(budget, sum(lengths))
        assert all(1 <= count <= length for count, length in zip(kept, lengths, strict=True))
        for cut, length in zip(cuts, lengths, strict=True):
            text = np.arange(length, dtype=np.int32)
            left = cut.apply(text)
            assert len(left) == cut.num_kept and (np.diff(left) > 0).all()  # order kept, no token twice
            if truncation not in (Truncation.TAIL, Truncation.HEAD_TAIL):
                assert left.tolist() == list(range(cut.num_kept))  # heads kept


@pytest.mark.parametrize(
    ("truncation", "cuts"),
    [
        ("head", [Cut(6), Cut(3), Cut(1)]),
        ("tail", [Cut(0, 1), Cut(0, 1), Cut(0, 8)]),
        (
            "head_tail",
            [Cut(5), Cut(1), Cut(1, 3)],
        ),  # 3 tokens are each text's own, 7 left: 4 to the front, 3 to the back
    ],
)
def test_ends_of_all_texts_taken_as_one(truncation, cuts):
    lengths = [6, 3, 20] if truncation == "head" else [9, 3, 20]
    assert plan_cuts(lengths, 10, Truncation(truncation)) == cuts
    assert plan_cuts([4, 3, 2], 10, Truncation(truncation)) == [Cut(4), Cut(3), Cut(2)]
    assert Cut(2, 1).apply(np.arange(9, dtype=np.int32)).tolist() == [0, 1, 8]


@pytest.mark.parametrize("truncation", list(Truncation))
def test_a_limit_without_room_for_a_token_of_every_text_is_refused(truncation):
    with pytest.raises(UserError, match="--max-length leaves 2 tokens for 3 texts; raise it"):
        plan_cuts([5, 5, 5], 2, truncation, ratio=(1, 1, 1))
    with pytest.raises(ValueError, match="needs a ratio"):
        plan_cuts([5, 5], 3, Truncation.PROPORTIONAL)


LONG = " ".join(TEXTS)
WILLS = make_frame([(LONG, TEXTS[0], TEXTS[2]), (TEXTS[1], LONG, TEXTS[3]), (LONG, LONG, LONG)])


def test_tokenization_shares_the_room_in_the_ratio_of_average_lengths():
    tokenizer = bert_tokenizer()
    whole = EncoderSpec(tokenizer, SEGMENTS, 512)
    counts = [tokenizer(WILLS[name].to_list(), add_special_tokens=False)["input_ids"] for name in SEGMENTS]
    totals = count_segment_tokens(WILLS, whole)
    assert totals == tuple(sum(map(len, texts)) for texts in counts)
    cut = EncoderSpec(tokenizer, SEGMENTS, 44, truncation=Truncation.PROPORTIONAL, ratio=totals)
    split = tokenize_split(WILLS, cut, BINARY)
    for place, row in enumerate(rows_of(split)):
        texts = [column[place] for column in counts]
        kept = share_in_ratio([len(text) for text in texts], 40, totals)
        expected = [text[:count] for text, count in zip(texts, kept, strict=True)]
        assert row == [2, *expected[0], 3, *expected[1], 3, *expected[2], 3]
    assert split.whole_lengths.tolist() == tokenize_split(WILLS, whole, BINARY).lengths.tolist()
    assert split.num_truncated == 3 and split.num_cut_tokens == split.whole_lengths.sum() - split.lengths.sum() > 0


def test_ratio_and_rule_have_cache_entries_of_their_own(tmp_path, monkeypatch):
    monkeypatch.setattr(tokenization, "ROWS_IN_MEMORY", 0)  # what a large split is
    base = {"truncation": Truncation.PROPORTIONAL, "ratio": (1, 1, 1)}
    for change in (base, base | {"ratio": (5, 1, 1)}, {"truncation": Truncation.HEAD}, {"truncation": Truncation.TAIL}):
        spec = EncoderSpec(bert_tokenizer(), SEGMENTS, 44, **change)
        for _ in range(2):
            assert rows_of(tokenize_split(WILLS, spec, BINARY, cache=tmp_path)) == rows_of(
                tokenize_split(WILLS, spec, BINARY)
            )
    assert len(list((tmp_path / "tokens").iterdir())) == 4


def test_auto_is_proportional_from_three_texts_on():
    text = TextConfig()
    assert [resolve_truncation(text, count) for count in (1, 2, 3)] == [
        "longest_first",
        "longest_first",
        "proportional",
    ]
    assert resolve_truncation(TextConfig(truncation="tail"), 3) == "tail"
    assert resolve_truncation(TextConfig(truncation_ratio="26,8,66"), 3) == "proportional"


def test_ratios_are_read_exactly():
    assert parse_ratio("26.3,7.6,66.1") == (263, 76, 661)
    assert parse_ratio("2, 4") == (1, 2)


@pytest.mark.parametrize(
    ("text", "segments", "message"),
    [
        ({"truncation_ratio": "1,0"}, None, "a number above 0 for each segment, as 26,8,66; got '1,0'"),
        ({"truncation_ratio": "1:2"}, None, "got '1:2'"),
        ({"truncation_ratio": "1,2", "truncation": "head"}, None, "is for --truncation proportional, not head"),
        ({"truncation_ratio": "1,2"}, ["premise", "hypothesis"], "is for --truncation proportional, not longest_first"),
        ({"truncation_ratio": "1,2"}, ["hypothesis", "condition", "premise"], "has 2 parts, an example has 3"),
    ],
)
def test_a_ratio_that_would_do_nothing_or_the_wrong_thing_is_refused(text, segments, message):
    with pytest.raises(UserError, match=message):
        check_text(TextConfig(**text), segments)


def test_wills_ratio_is_near_the_published_one(shared):
    """27.3 : 8.0 : 64.8 for BERT's tokenizer, 26.7 : 8.0 : 65.4 for XLM-R's; syllables lie near both."""
    from lightning_nli.data.readers import read_source

    frame = read_source(f"wills:{shared}/data/nli4wills#train").frame
    totals = [int(frame.select(pl.col(name).str.count_matches(r"\w+|[^\w\s]")).sum().item()) for name in SEGMENTS]
    assert [round(100 * total / sum(totals)) for total in totals] == [27, 8, 65]
