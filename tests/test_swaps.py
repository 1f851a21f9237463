from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from lightning_nli.baselines import hypothesis_only, majority
from lightning_nli.config_augment import AugmentSpec, augment_spec
from lightning_nli.data import swaps as mining
from lightning_nli.data.readers import read_source
from lightning_nli.data.schema import EXAMPLE_SCHEMA, check_examples
from lightning_nli.data.swaps import (
    evaluation_swaps,
    list_words,
    mine_swaps,
    other_law_swaps,
    random_swaps,
    swap_unit,
)
from lightning_nli.data.text import word_set
from lightning_nli.swaps import augment_with_swaps, premise_scores, rows_to_add
from lightning_nli.types import BINARY, WILLS, UserError

OWN = "a b c d e f g h i j"  # 10 words: a swap has at most 25
YES, NO = "entailment", "non_entailment"
TAX, LAND, WAGES = "tax_fees", "real_estate", "labor_wages"


def examples(*rows: dict[str, object]) -> pl.DataFrame:
    """Rows of the schema: `example_id`, `premise` and what else is given."""
    given = [
        {"corpus": "hand", "hypothesis": "a b", "law_id": "L1", "label": YES, "domains": [TAX], "rule": [6]}
        | {"premise_id": f"p-{row['example_id']}", "ratings": [], "article": "1"}
        | row
        for row in rows
    ]
    return check_examples(pl.DataFrame(given, schema=EXAMPLE_SCHEMA), BINARY, labelled=False)


def row(example_id: str, premise: str, **more: object) -> dict[str, object]:
    return {"example_id": example_id, "premise": premise, **more}


def shuffled(frame: pl.DataFrame, seed: int) -> pl.DataFrame:
    return frame.sample(fraction=1, shuffle=True, seed=seed)


def swapped(frame: pl.DataFrame, table: pl.DataFrame, kind: str) -> pl.DataFrame:
    new = table.filter(pl.col("kind") == kind).select("example_id", new="premise")
    return frame.join(new, on="example_id", maintain_order="left").with_columns(premise="new").select(frame.columns)


def test_words_are_those_of_the_text_module():
    text = "Điều 12\u00ad0, khoản 3_a:  THUẾ THUẾ thu\u1ebf\u0323 1.500 m²"
    assert set(list_words(text)) == word_set(text)
    assert len(list_words("Thuế, thuế; THUẾ")) == 3


@pytest.mark.parametrize(
    ("candidate", "is_taken"),
    [
        ("a b k l m n o p q r", True),
        (OWN, False),
        ("A, b c d e f g h i - J.", False),  # the own premise in another spelling
        ("a b c d e f k l", False),  # Jaccard 6/12
        ("a b c d e f k l m", True),  # 6/13, containment 6/9
        ("a b c d k", False),  # containment 4/5, Jaccard 4/11
        ("a b c k l", True),  # 3/5
        ("k " * 25, True),  # length counts repeats
        ("k " * 26, False),
        ("...", False),  # no words
    ],
)
def test_filters(candidate: str, is_taken: bool):
    frame = examples(row("1", OWN), row("2", candidate, label=NO))
    mined = mine_swaps(frame, frame, BINARY)
    assert mined.rows() == ([("1", "hard", 0, candidate, "p-2", "law")] if is_taken else [])
    drawn = random_swaps(frame, frame, BINARY, same="law")
    assert drawn["premise"].to_list() == ([candidate] if is_taken else [])


@pytest.fixture
def corpus() -> pl.DataFrame:
    """Row 1's hypothesis has 4 words; of them 2 covers 3, 3 and 4 cover 2, 5 none; 6 covers all in another law."""
    return examples(
        row("1", OWN, hypothesis="a k l x"),
        row("2", "k l a z", label=NO, premise_id="p9"),
        row("3", "k x t u", label=NO, premise_id="p7"),
        row("4", "k l v w", label=NO, premise_id="p8"),
        row("5", "s y", label=NO, premise_id="p1"),
        row("6", "a k l x m", label=NO, law_id="L2", domains=[LAND, TAX]),
        row("7", "K, L a z!", label=NO, premise_id="p99"),  # premise of 2 once more
        row("8", "lone", law_id="L3", domains=[]),
    )


def test_hard_swaps_cover_most_of_the_hypothesis(corpus: pl.DataFrame):
    mined = mine_swaps(corpus, corpus, BINARY, num_hard=9)
    assert mined["example_id"].unique().to_list() == ["1"]  # 8 is alone in its law
    assert mined["premise_id"].to_list() == ["p9", "p7", "p8", "p1"]  # of equals the smaller premise_id; none twice
    assert mined["order"].to_list() == [0, 1, 2, 3]
    assert mine_swaps(corpus, corpus, BINARY).rows() == [("1", "hard", 0, "k l a z", "p9", "law")]


def test_other_law_swaps_cover_most_of_the_hypothesis_in_another_law(corpus: pl.DataFrame):
    found = other_law_swaps(corpus, corpus, BINARY)
    assert found.select("example_id", "kind", "premise_id").rows() == [
        ("1", "other_law", "p-6"),  # a k l x m of law L2; p9 of its own law covers no less
        ("8", "other_law", "p-1"),
    ]
    one_law = corpus.with_columns(law_id=pl.lit("L1"))
    assert other_law_swaps(one_law, one_law, BINARY).is_empty()
    lawless = corpus.with_columns(law_id=pl.lit(None, pl.String))
    assert other_law_swaps(lawless, lawless, BINARY).is_empty()


def test_random_swaps_share_a_domain_and_not_the_law(corpus: pl.DataFrame):
    assert random_swaps(corpus, corpus, BINARY).rows() == [("1", "random", 0, "a k l x m", "p-6", "law")]
    elsewhere = corpus.with_columns(domains=pl.lit([WAGES], EXAMPLE_SCHEMA["domains"]))
    pool = corpus.filter(pl.col("example_id") == "6")
    assert random_swaps(elsewhere, pool, BINARY).is_empty()
    assert random_swaps(corpus, corpus.filter(pl.col("law_id") == "L1"), BINARY).is_empty()
    with pytest.raises(ValueError, match="shares the domain or the law"):
        random_swaps(corpus, corpus, BINARY, same="corpus")


def test_random_swaps_of_the_law_pass_over_what_is_taken(corpus: pl.DataFrame):
    mined = mine_swaps(corpus, corpus, BINARY, num_hard=2)
    drawn = random_swaps(corpus, corpus, BINARY, num=5, same="law", taken=mined)
    assert sorted(drawn["premise_id"]) == ["p1", "p8"]
    one = random_swaps(corpus, corpus, BINARY, num=1, same="law", taken=mined)
    assert one.rows() == drawn.rows()[:1]  # more draws leave the first alone


def test_random_swaps_are_spread_over_the_candidates():
    rows = [row(f"r{i}", f"own{i} a b c d e", premise_id=f"p{i}", law_id=f"L{i}") for i in range(200)]
    frame = examples(*rows)
    drawn = random_swaps(frame, frame, BINARY)
    assert drawn.height == 200
    assert drawn["premise_id"].n_unique() > 100  # about 126 of 200 at random
    assert (drawn["premise_id"] != drawn["example_id"].str.replace("r", "p")).all()


def test_swaps_depend_on_no_order_and_the_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch):
    words = np.random.default_rng(0).integers(0, 40, (60, 8))
    texts = [" ".join(f"w{word}" for word in line) for line in words]
    rows = [row(f"r{i}", text, hypothesis=texts[-i][:12], law_id=f"L{i % 3}") for i, text in enumerate(texts)]
    frame = examples(*rows)
    expected = evaluation_swaps(frame, BINARY)
    assert expected.group_by("kind").len().sort("kind").rows() == [("hard", 60), ("random", 60)]
    for seed in range(3):
        assert evaluation_swaps(shuffled(frame, seed), BINARY).equals(expected)
    monkeypatch.setattr(mining, "_CELLS_PER_BLOCK", 45)
    assert evaluation_swaps(frame, BINARY).equals(expected)


def test_hard_swaps_equal_the_plain_definition():
    words = np.random.default_rng(1).integers(0, 25, (40, 9))
    texts = [" ".join(f"w{word}" for word in line[: 4 + i % 6]) for i, line in enumerate(words)]
    frame = examples(*(row(f"{i:02}", text, hypothesis=texts[39 - i]) for i, text in enumerate(texts)))
    expected = []
    for i, own in enumerate(texts):
        a, h = set(own.split()), set(texts[39 - i].split())
        allowed = []
        for j, other in enumerate(texts):
            b = set(other.split())
            is_alike = len(a & b) / len(a | b) >= 0.5 or len(a & b) / min(len(a), len(b)) >= 0.8
            if other != own and not is_alike and len(other.split()) <= 1.5 * len(own.split()) + 10:
                allowed.append((-len(h & b) / len(h), f"p-{j:02}"))
        expected += [(f"{i:02}", premise_id) for _, premise_id in sorted(allowed)[:2]]
    mined = mine_swaps(frame, frame, BINARY, num_hard=2)
    assert mined.select("example_id", "premise_id").rows() == expected


def test_a_corpus_without_laws_is_one_law(corpus: pl.DataFrame):
    lawless = corpus.with_columns(law_id=pl.lit(None, pl.String))
    assert (swap_unit(corpus), swap_unit(lawless)) == ("law", "corpus")
    mined = mine_swaps(lawless, lawless, BINARY)
    assert mined.filter(pl.col("example_id") == "1").rows() == [("1", "hard", 0, "a k l x m", "p-6", "corpus")]
    assert mined["example_id"].to_list() == ["1", "8"]
    drawn = random_swaps(lawless, lawless, BINARY)
    assert drawn["example_id"].to_list() == ["1"]
    assert drawn["premise_id"][0] != "p-1"


def test_rows_without_a_law_are_left_out_where_others_have_one(corpus: pl.DataFrame):
    def without_law(example_id: str) -> pl.DataFrame:
        return corpus.with_columns(law_id=pl.when(pl.col("example_id") != example_id).then("law_id"))

    assert evaluation_swaps(corpus, BINARY).select("example_id", "kind").rows() == [("1", "hard"), ("1", "random")]
    assert evaluation_swaps(without_law("1"), BINARY).is_empty()
    assert random_swaps(without_law("6"), without_law("6"), BINARY).is_empty()  # nor is its premise another law's
    assert mine_swaps(without_law("2"), without_law("2"), BINARY)["premise_id"].to_list() == ["p99"]  # row 7 has it too
    assert swap_unit(without_law("1")) == "law"


def test_empty_frames_have_no_swaps(corpus: pl.DataFrame):
    assert evaluation_swaps(corpus.clear(), BINARY).schema == mining.SWAP_SCHEMA
    assert evaluation_swaps(corpus.filter(pl.col("label") == NO), BINARY).is_empty()
    assert mine_swaps(corpus, corpus.clear(), BINARY).is_empty()
    assert augment_with_swaps(corpus.clear(), [corpus], BINARY, hard=1, random=1).is_empty()


def test_augment_adds_unsupported_rows_of_the_same_law(corpus: pl.DataFrame):
    added = check_examples(augment_with_swaps(corpus, [], BINARY, hard=1, random=2), BINARY)
    assert added["example_id"].to_list() == ["1~swap0", "1~swap1", "1~swap2"]
    assert added["premise_id"][0] == "p9"
    assert sorted(added["premise_id"][1:]) in (["p1", "p7"], ["p1", "p8"], ["p7", "p8"])
    assert added["label"].unique().to_list() == [NO]
    assert added["hypothesis"].unique().to_list() == ["a k l x"]
    assert added["law_id"].unique().to_list() == ["L1"]
    assert added.select(pl.col("rule", "ratings").list.len().sum()).row(0) == (0, 0)
    assert added["article"].null_count() == 3  # that of the premise that left
    assert augment_with_swaps(shuffled(corpus, 4), [], BINARY, hard=1, random=2).equals(added)


def test_augment_takes_no_premise_of_a_scored_set(corpus: pl.DataFrame):
    dev = examples(row("d", "K l, a Z", label=NO))  # the best swap in another spelling
    test = examples(row("t", "s y"), row("t2", OWN))
    added = augment_with_swaps(corpus, [dev, test], BINARY, hard=9, random=9)
    assert added["premise_id"].to_list() == ["p7", "p8"]


def test_augment_uses_the_unsupported_label_of_the_scheme():
    frame = examples(row("1", OWN, label="support", law_id=None), row("2", "k l", label="refute", law_id=None))
    added = augment_with_swaps(frame, [], WILLS, hard=1, random=0)
    assert added.select("example_id", "premise", "label").rows() == [("1~swap0", "k l", "unrelated")]


def test_a_cap_bounds_the_share_of_swapped_rows(corpus: pl.DataFrame):
    every = augment_with_swaps(corpus, [], BINARY, hard=1, random=2)["example_id"].to_list()
    for cap, kept in ((0.11, 0), (0.2, 2), (0.25, 2), (0.28, 3), (0.9, 3)):  # of 8 + kept rows
        added = rows_to_add(corpus, [], BINARY, AugmentSpec(1, 2, cap=cap))
        assert added.height == kept
        assert kept / (corpus.height + kept) <= cap
        assert set(added["example_id"]) <= set(every)
    assert rows_to_add(corpus, [], BINARY, AugmentSpec(1, 2)).equals(
        augment_with_swaps(corpus, [], BINARY, hard=1, random=2)
    )


def test_repeated_rows_give_labels_their_shares_back(corpus: pl.DataFrame):
    """2 entailed and 6 other rows, 3 swaps: 9 others, so 3 entailed ones are wanted, one more."""
    added = check_examples(rows_to_add(corpus, [], BINARY, AugmentSpec(1, 2, balance="sample")), BINARY)
    assert added["label"].to_list() == [NO] * 3 + [YES]
    copies = added.filter(pl.col("example_id").str.ends_with("~copy0"))
    source = copies.with_columns(pl.col("example_id").str.strip_suffix("~copy0"))
    assert source.equals(corpus.filter(pl.col("example_id").is_in(source["example_id"].implode())))
    twice = pl.concat([corpus, corpus.with_columns(pl.col("example_id") + "b")])
    more = rows_to_add(twice, [], BINARY, AugmentSpec(4, 0, balance="sample"))
    assert (more["label"].to_list().count(NO), more["label"].to_list().count(YES)) == (8, 3)  # 4 x 8 / 12
    only_entailed = corpus.filter(pl.col("label") == YES).with_columns(law_id=pl.lit("L1"))
    with pytest.raises(UserError, match=r"balance=sample: no training row is 'non_entailment'"):
        rows_to_add(only_entailed, [], BINARY, AugmentSpec(1, 0, balance="sample"))


def test_a_chooser_takes_hard_swaps_from_candidates_and_random_ones_take_none_twice(corpus: pl.DataFrame):
    def last(train: pl.DataFrame, candidates: pl.DataFrame, num: int) -> pl.DataFrame:
        assert candidates["premise_id"].to_list() == ["p9", "p7", "p8", "p1"]
        return candidates.tail(num).with_columns(order=pl.int_range(pl.len()))

    added = rows_to_add(corpus, [], BINARY, AugmentSpec(1, 9), choose=last)
    assert added["premise_id"][0] == "p1"
    assert sorted(added["premise_id"][1:]) == ["p7", "p8", "p9"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("none", None),
        ("premise_swap=2+0", AugmentSpec(2, 0)),
        ("premise_swap=1+1,cap=0.4,balance=weight", AugmentSpec(1, 1, 0.4, "weight")),
        ("premise_swap=1+0,run=runs/a=b,balance=sample", AugmentSpec(1, 0, None, "sample", "runs/a=b")),
    ],
)
def test_augment_spec(text: str, expected: AugmentSpec | None):
    assert augment_spec(text) == expected


@pytest.mark.parametrize(
    "options",
    [
        "cap=",
        "cap=0",
        "cap=1",
        "cap=1.5",
        "cap=.0",
        "cap=x",
        "balance=none",
        "balance",
        "run=",
        "x=1",
        "",
        "cap=.1,cap=.2",
    ],
)
def test_augment_options_that_make_no_sense_are_refused(options: str):
    with pytest.raises(UserError, match=r"cap=SHARE"):
        augment_spec(f"premise_swap=1+1,{options}")


def test_mistakes_of_a_run_need_hard_swaps():
    with pytest.raises(UserError, match="chooses hard swaps, and none is asked for"):
        augment_spec("premise_swap=0+1,run=runs/x")


@pytest.mark.parametrize(
    ("text", "expected"), [("none", None), ("premise_swap=1+1", (1, 1)), ("premise_swap=0+12", (0, 12))]
)
def test_swaps_are_asked_for_by_number(text: str, expected: tuple[int, int] | None):
    assert augment_spec(text) == (None if expected is None else AugmentSpec(*expected))


@pytest.mark.parametrize("text", ["", "swap=1+1", "premise_swap=1", "premise_swap=-1+1", "premise_swap=0+0", "None"])
def test_swaps_in_other_words_are_refused(text: str):
    with pytest.raises(UserError, match=r"premise_swap=H\+R"):
        augment_spec(text)


def answer_table(rows: list[tuple[str, str, float]]) -> pl.DataFrame:
    """(id, gold, probability of entailment)."""
    table = pl.DataFrame(rows, schema=["example_id", "label", f"prob_{YES}"], orient="row")
    entailed = pl.col(f"prob_{YES}")
    predicted = pl.when(entailed > 0.5).then(pl.lit(YES)).otherwise(pl.lit(NO))
    return table.with_columns((1 - entailed).alias(f"prob_{NO}"), predicted=predicted)


def test_premise_scores_by_hand():
    own = answer_table(
        [("1", YES, 0.9), ("2", YES, 0.8), ("3", YES, 0.4), ("4", YES, 0.9), ("5", YES, 1), ("6", NO, 0)]
    )
    hard = answer_table([("4", NO, 0.9), ("3", NO, 0.3), ("2", NO, 0.9), ("1", NO, 0.1)])
    drawn = answer_table([("1", NO, 0.1), ("2", NO, 0.2)])
    assert premise_scores(own, hard, drawn, BINARY, unit="law") == {
        "discrimination": 1 / 4,  # 1; 3 is not entailed with its own premise
        "random_swap": 1.0,
        "rank": (1 + 0 + 1 + 0.5) / 4,
        "num_rows": 4,
        "num_rows_random": 2,
        "left_out": 1,
        "gain": None,
        "unit": "law",
    }
    nothing = premise_scores(own, hard.clear(), drawn.clear(), BINARY)
    assert (nothing["discrimination"], nothing["random_swap"], nothing["rank"]) == (None, None, None)
    assert (nothing["num_rows"], nothing["left_out"], nothing["unit"]) == (0, 5, None)


@pytest.mark.parametrize(
    ("hard", "match"),
    [
        ([("6", NO, 0.1)], "not gold-entailed: \\['6'\\]"),
        ([("1", NO, 0.1), ("1", NO, 0.2)], "repeat an example_id"),
        ([("1", NO, float("nan"))], "nulls or NaN"),
    ],
)
def test_premise_scores_refuse_answers_that_fit_no_row(hard: list[tuple[str, str, float]], match: str):
    own = answer_table([("1", YES, 0.9), ("6", NO, 0.0)])
    with pytest.raises(ValueError, match=match):
        premise_scores(own, answer_table(hard), answer_table([("1", NO, 0.5)]), BINARY)


@pytest.mark.parametrize("model", [majority, hypothesis_only])
def test_models_that_do_not_read_the_premise_discriminate_nothing(model):
    rows = [row(f"{i}", f"w{i} u{i} v{i}", hypothesis=f"{'yes' if i % 3 else 'no'} w{i}") for i in range(30)]
    frame = examples(*({**r, "label": YES if i % 3 else NO} for i, r in enumerate(rows)))
    frame = frame.with_columns(law_id=pl.format("L{}", pl.int_range(pl.len()) % 2))
    table = evaluation_swaps(frame, BINARY)
    answers = [model(frame, part, BINARY) for part in (frame, *(swapped(frame, table, k) for k in ("hard", "random")))]
    scores = premise_scores(*answers, BINARY)
    assert (scores["discrimination"], scores["random_swap"], scores["rank"]) == (0.0, 0.0, 0.5)
    assert (scores["num_rows"], scores["num_rows_random"]) == (20, 20)
    assert (answers[0]["predicted"] == YES).sum() >= 20  # not vacuous: it does answer entailment


def test_swaps_of_the_published_test_set(shared: Path):
    frame = read_source(f"vilegalnli:{shared / 'data' / 'vilegalnli'}#test", on_bad_row="drop").frame
    table = evaluation_swaps(frame, BINARY)
    num_entailed = frame.filter(pl.col("label") == YES).height
    hard, drawn = (table.filter(pl.col("kind") == kind) for kind in ("hard", "random"))
    assert (num_entailed, hard.height, drawn.height) == (1941, 1923, 1885)
    laws = frame.select("premise_id", other_law="law_id", other_domains="domains").unique("premise_id")
    both = drawn.join(frame.select("example_id", "law_id", "domains"), on="example_id").join(laws, on="premise_id")
    assert both.height == drawn.height
    assert (both["law_id"] != both["other_law"]).all()
    assert evaluation_swaps(shuffled(frame, 1), BINARY).equals(table)
