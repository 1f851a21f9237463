"""Held-out domains: what a fold tests, what its guards take out, and that nothing is shared."""

from __future__ import annotations

import json
import unicodedata
from pathlib import Path

import polars as pl
import pytest
from pools import NEAR, pool_of, row

from lightning_nli.crossdomain.check import fold_problems, lacking_labels
from lightning_nli.crossdomain.folds import (
    Fold,
    Removal,
    disjoint,
    k_folds,
    leave_domains_out,
    leave_one_domain_out,
    pairwise,
    smallest_training_set,
)
from lightning_nli.crossdomain.pool import Pool, build_pool, near_pairs
from lightning_nli.data.readers import read_source
from lightning_nli.data.sample import sample_corpus
from lightning_nli.data.schema import EXAMPLE_SCHEMA
from lightning_nli.types import BINARY, UserError


@pytest.fixture(scope="module")
def small() -> Pool:
    others = [row(f"o{n}", f"O{n}", ["education"]) for n in range(20)]
    return pool_of(
        row("t1", "A", ["insurance"]),
        row("t2", "A", ["insurance", "education"]),
        row("law", "A", ["education"]),
        row("near", "B", ["education"], NEAR.format("one")),
        row("t3", "C", ["insurance"], NEAR.format("two")),
        row("unknown", "D", []),
        *others,
    )


def test_every_rule_takes_out_what_it_names(small):
    (fold,) = leave_domains_out(small, {"insurance": ["insurance"]}, seed=1)
    assert set(fold.test) == {"t1", "t2", "t3"}
    assert {reason: set(ids) for reason, ids in fold.removed.items()} == {
        Removal.UNKNOWN_DOMAIN: {"unknown"},
        Removal.LAW: {"law"},
        Removal.PREMISE: {"near"},
    }
    assert len(fold.id_val) == 2 and set(fold.train) | set(fold.id_val) == {f"o{n}" for n in range(20)}
    assert not fold_problems(small, fold)


@pytest.mark.parametrize(
    ("planted", "problem"),
    [
        ("law", "laws"),
        ("near", "premises"),
        ("unknown", "unknown domain"),
        ("t2", "held-out domain"),
        ("t1", "rows both "),
    ],
)
def test_the_check_sees_a_planted_leak_of_each_kind(small, planted, problem):
    from dataclasses import replace

    (fold,) = leave_domains_out(small, {"insurance": ["insurance"]}, seed=1)
    for leaky in (replace(fold, train=(*fold.train, planted)), replace(fold, id_val=(*fold.id_val, planted))):
        assert any(problem in text for text in fold_problems(small, leaky)), fold_problems(small, leaky)


def test_the_check_sees_the_same_pair_under_two_ids(small):
    twin = small.frame.filter(pl.col("example_id") == "t1").with_columns(
        example_id=pl.lit("copy"), law_id=pl.lit("Z"), domains=pl.lit(["education"], EXAMPLE_SCHEMA["domains"])
    )
    leaky = Pool(pl.concat([small.frame, twin]), BINARY, 0)  # as no pool of ours is built
    fold = Fold("f", "s", ("insurance",), ("copy", "o1"), (), {"test": ("t1", "t2", "t3")})
    assert any("pairs" in text for text in fold_problems(leaky, fold))


def test_near_pairs_by_hand():
    assert near_pairs(["a b c d", "a b c d", "a b c x", "a"]) == ([0], [1])
    assert near_pairs(["a b c d e", "b c d"]) == ([0], [1])  # contained
    assert near_pairs(["a b", "a b", "b a"]) == ([0], [1])  # shorter than a shingle
    words = " ".join(map(str, range(30)))
    assert near_pairs([words, words + " 31"]) == ([0], [1]) and near_pairs([]) == ([], [])


def test_laws_are_needed():
    with pytest.raises(UserError, match="1 rows have no law_id"):
        pool_of(row("a", "L", ["insurance"]) | {"law_id": None})


def test_names_and_sizes_are_checked(small):
    with pytest.raises(UserError, match="never held out"):
        leave_domains_out(pool_of(row("a", "L", ["other"])), {"other": ["other"]}, seed=1)
    with pytest.raises(UserError, match="no rows of the domains"):
        leave_one_domain_out(small, seed=1, domains=["securities"])
    (fold,) = leave_domains_out(small, {"insurance": ["insurance"]}, seed=1)
    assert fold.take(5).train == fold.train[:5]
    with pytest.raises(UserError, match="fewer than 500"):
        fold.take(500)


@pytest.fixture(scope="module")
def sample() -> Pool:
    return build_pool(sample_corpus(3600), BINARY)


def test_d10_every_domain_of_the_embedded_corpus_is_held_out_without_a_leak(sample):
    folds = leave_one_domain_out(sample, seed=1)
    assert len(folds) == 26 and {fold.held_out[0] for fold in folds} == {size.domain for size in sample.domains} - {
        "other"
    }
    memberships = sample.frame.select(
        pl.col("domains").list.set_difference(pl.lit(["other"]).cast(EXAMPLE_SCHEMA["domains"])).list.len().sum()
    ).item()
    assert sum(len(fold.test) for fold in folds) == memberships  # a row is tested once a domain
    assert not [problem for fold in folds for problem in fold_problems(sample, fold)]
    assert sum(len(fold.removed[Removal.LAW]) for fold in folds) > 0


def test_near_copies_in_other_laws_leave_training_when_laws_are_held_out(sample):
    assert sum(len(fold.removed[Removal.PREMISE]) for fold in k_folds(sample, "law_id", seed=1)) > 0


def test_d10_folds_do_not_depend_on_row_order_and_selection_never_sees_the_domain(sample):
    shuffled = Pool(sample.frame.sample(fraction=1, shuffle=True, seed=3), BINARY, 0)
    for one, other in zip(leave_one_domain_out(sample, seed=1), leave_one_domain_out(shuffled, seed=1), strict=True):
        assert one.train == other.train and set(one.id_val) == set(other.id_val) and set(one.test) == set(other.test)
        domains = sample.frame.filter(pl.col("example_id").is_in(list(one.id_val)))["domains"].explode()
        assert one.held_out[0] not in set(domains)


@pytest.mark.parametrize("unit", ["law_id", "premise_id"])
def test_reference_folds_test_every_known_row_once(sample, unit):
    folds = k_folds(sample, unit, seed=1)
    tested = [id_ for fold in folds for id_ in fold.test]
    assert len(tested) == len(set(tested)) == sample.frame.filter(pl.col("domains").list.len() > 0).height
    sizes = [len(fold.test) for fold in folds]
    assert max(sizes) - min(sizes) <= sample.frame.group_by(unit).len()["len"].max()
    assert not [problem for fold in folds for problem in fold_problems(sample, fold)]
    with pytest.raises(UserError, match="cannot fill"):
        k_folds(pool_of(row("a", "L", ["insurance"])), unit, seed=1)


def test_disjoint_parts_share_no_domain_and_count_what_straddles(sample):
    parts = {"train": ["education", "investment", "enterprise"], "dev": ["insurance"], "test": ["real_estate"]}
    (fold,) = disjoint(sample, parts, seed=1)
    domains = {
        name: set(sample.frame.filter(pl.col("example_id").is_in(list(ids)))["domains"].explode())
        for name, ids in (("train", fold.train), ("dev", fold.id_val), ("test", fold.test))
    }
    assert (
        domains["train"] == set(parts["train"])
        and domains["dev"] == {"insurance"}
        and domains["test"] == {"real_estate"}
    )
    assert fold.removed[Removal.STRADDLES] and fold.removed[Removal.OTHER_DOMAIN]
    assert not fold_problems(sample, fold)
    with pytest.raises(UserError, match="stand in two parts"):
        disjoint(sample, parts | {"dev": ["education"]}, seed=1)


def write_pairs(path: Path, domains: list[str]) -> Path:
    lines = [
        {"premise": f"premise {n}", "hypothesis": f"h {n}", "label": "entailment", "domains": name, "law_id": f"L{n}"}
        for n, name in enumerate(domains)
    ]
    path.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines), encoding="utf-8")
    return path


def test_d11_a_domain_written_in_several_ways_is_one_and_an_unknown_name_is_refused(tmp_path):
    name = "Lao động - Tiền lương"
    spellings = [
        name,
        unicodedata.normalize("NFD", name),
        name.upper(),
        "lao  động -  tiền lương ",
        "labor_wages",
        "Văn hóa - Xã hội",
        "Văn hoá - Xã hội",
    ]
    assert len(set(spellings)) == len(spellings)
    corpus = read_source(str(write_pairs(tmp_path / "known.jsonl", spellings)))
    pool = build_pool(corpus.frame, corpus.scheme)
    assert {size.domain: size.rows for size in pool.domains} == {"labor_wages": 5, "culture_society": 2}
    folds = leave_one_domain_out(pool, seed=1)
    assert {fold.name: len(fold.test) for fold in folds} == {"out:labor_wages": 5, "out:culture_society": 2}
    with pytest.raises(UserError, match="unknown field of law 'lao động'; nearest is 'labor_wages'"):
        read_source(str(write_pairs(tmp_path / "unknown.jsonl", ["lao động", "hoà giải"])))


def test_d12_folds_without_a_label_are_named_with_their_counts_and_none_is_empty():
    """One domain has most rows, four have one: 40 test rows and 4 x 1, of one label each."""
    rows = [row(f"a{n}", f"A{n % 8}", ["labor_wages"]) | {"label": label(n)} for n in range(40)]
    small = ("education", "insurance", "securities", "investment")
    rows += [row(f"b{n}", f"B{n}", [domain]) | {"label": label(n)} for n, domain in enumerate(small)]
    pool = pool_of(*rows)
    folds = leave_one_domain_out(pool, seed=1)
    assert sorted(len(fold.test) for fold in folds) == [1, 1, 1, 1, 40]
    assert all(fold.train and fold.id_val and fold.test for fold in folds)
    warned = [line for fold in folds for line in lacking_labels(pool, fold)]
    assert {line.split(":")[1] for line in warned if ": test has" in line} == set(small)
    assert "out:insurance: test has 1 non_entailment, 0 entailment" in warned
    with pytest.raises(UserError, match="0 training rows"):
        leave_one_domain_out(pool_of(*rows[:40]), seed=1)
    with pytest.raises(UserError, match="cannot fill 10 folds"):
        k_folds(pool_of(*rows[:40]), "law_id", seed=1)


def label(number: int) -> str:
    return "non_entailment" if number % 2 else "entailment"


def test_published_pool_and_fold_sizes(shared: Path):
    corpus = read_source(f"vilegalnli:{shared}/data/vilegalnli", on_bad_row="drop")
    pool = build_pool(corpus.frame, corpus.scheme)
    assert (pool.frame.height, pool.num_duplicates) == (8793, 151)
    assert (pool.frame["law_id"].n_unique(), pool.frame["premise_id"].n_unique()) == (166, 4950)
    assert len(pool.core_domains) == 19
    sizes = {size.domain: (size.rows, size.laws) for size in pool.domains}
    assert sizes["culture_society"] == (1365, 21) and sizes["administrative_organization"] == (1353, 43)
    assert sizes["natural_resources_environment"] == (1330, 15) and sizes["procedural_law"] == (858, 11)
    assert sizes["securities"] == (6, 1)
    folds = leave_one_domain_out(pool, seed=1)
    assert {len(fold.removed[Removal.UNKNOWN_DOMAIN]) for fold in folds} == {66}
    assert sum(len(fold.removed[Removal.PREMISE]) for fold in folds) == 9
    assert sum(len(fold.removed[Removal.LAW]) for fold in folds) == 0
    assert {fold.name: len(fold.test) for fold in folds}["out:culture_society"] == 1365
    assert smallest_training_set(folds) > 6000
    assert not [problem for fold in folds for problem in fold_problems(pool, fold)]
    one, *rest = pairwise(pool, seed=1)
    assert len({len(fold.train) for fold in (one, *rest)}) == 1 and not fold_problems(pool, one)
