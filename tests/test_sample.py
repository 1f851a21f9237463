"""The embedded corpus: deterministic, balanced, true to its rules, and not to be solved from one side of the pair."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from itertools import islice, pairwise

import numpy as np
import polars as pl
import pytest
from sklearn.feature_extraction.text import CountVectorizer, TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from threadpoolctl import threadpool_limits

from lightning_nli.baselines import hypothesis_only
from lightning_nli.data.sample import iter_sample, sample_corpus
from lightning_nli.data.sample_draw import Draw
from lightning_nli.data.sample_grammar import BAN, DEADLINE, DUTY, LINK, PERMISSION, WITH_NUMBER, Fact
from lightning_nli.data.sample_law import Originals, Provision, build_law
from lightning_nli.data.sample_pairs import Pair, build_pairs
from lightning_nli.data.sample_plan import PAPER_TOTALS, plan_laws
from lightning_nli.data.sample_words import VERBS
from lightning_nli.data.schema import check_examples
from lightning_nli.data.splits import find_duplicates
from lightning_nli.types import BINARY, DOMAINS, Label

NUM_LAWS = 400
LARGE = 9000


@pytest.fixture(scope="module")
def large() -> pl.DataFrame:
    return sample_corpus(LARGE)


@pytest.fixture(scope="module")
def corpus(large) -> pl.DataFrame:
    """The default corpus (that it is the beginning of the larger one is tested below)."""
    return large.head(3600)


@pytest.fixture(scope="module")
def provisions() -> list[tuple[Provision, list[Pair]]]:
    """Provisions and their hypotheses before they are rows."""
    originals, out = Originals(), []
    for plan in islice(plan_laws(seed=5), NUM_LAWS):
        draw = Draw("test", plan.number)
        law = build_law(plan, originals, draw)
        originals.remember(law)
        out += [(place, build_pairs(place, law, draw)) for place in law.provisions]
    return out


def texts_hash(frame: pl.DataFrame, rows: int) -> str:
    columns = (
        pl.col("premise", "hypothesis", "label"),
        pl.col("domains", "rule").cast(pl.List(pl.String)).list.join("+"),
    )
    text = "\n".join("|".join(row) for row in frame.head(rows).select(*columns).cast(pl.String).rows())
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def shares_of_domains(frame: pl.DataFrame) -> dict[str, float]:
    counts = Counter(frame["domains"].cast(pl.List(pl.String)).explode())
    return {domain: counts[domain] / counts.total() for domain in DOMAINS}


def distance_to_the_paper(frame: pl.DataFrame) -> float:
    """Total variation distance: 0 the same shares, 1 no domain in common."""
    shares, total = shares_of_domains(frame), sum(PAPER_TOTALS.values())
    return sum(abs(shares[domain] - number / total) for domain, number in PAPER_TOTALS.items()) / 2


def test_it_is_the_same_everywhere(corpus):
    assert sample_corpus().equals(corpus)
    assert texts_hash(corpus, 300) == "14727184e837d0cf"
    assert not sample_corpus(200, seed=1)["premise"].equals(sample_corpus(200)["premise"])


def test_it_keeps_the_schema(corpus):
    check_examples(corpus, BINARY)
    assert corpus.columns == check_examples(corpus, BINARY).columns
    for column in ("law_id", "law_name", "law_date", "article", "premise_id", "split"):
        assert corpus[column].null_count() == 0
    assert corpus["law_date"].min().year > 2030  # no law of today
    assert corpus["law_name"].str.starts_with("Luật mẫu số ").all()


def test_fields_of_law_have_the_shares_of_the_paper(large, corpus):
    assert sum(PAPER_TOTALS.values()) == 49086
    assert distance_to_the_paper(corpus.head(200)) < 0.25
    assert distance_to_the_paper(corpus.head(600)) < 0.12
    assert distance_to_the_paper(corpus) < 0.025
    assert distance_to_the_paper(large) < 0.012
    assert min(shares_of_domains(corpus.head(600)).values()) > 0
    for rows, slack in ((200, 0.06), (3600, 0.02), (LARGE, 0.01)):
        assert (large.head(rows)["domains"].list.len() > 1).mean() == pytest.approx(0.26, abs=slack)


def test_rows_of_a_law_differ_in_their_fields(corpus):
    """Most rows carry the main field of their law; some carry another one too, some another one instead."""
    by_law = corpus.with_columns(pl.col("domains").cast(pl.List(pl.String))).group_by("law_id").agg("domains")
    carried, too, laws_that_mix = 0, 0, 0
    for rows in by_law["domains"].to_list():
        main = Counter(domain for domains in rows for domain in domains).most_common(1)[0][0]
        carried += sum(main in domains for domains in rows)
        too += sum(main in domains and len(domains) > 1 for domains in rows)
        laws_that_mix += any(main not in domains for domains in rows)
    assert 0.70 < carried / corpus.height < 0.90
    assert too > 0.15 * corpus.height
    assert laws_that_mix > 0.8 * by_law.height


def test_splits_are_balanced_and_premises_never_straddle(corpus):
    shares = dict(corpus["split"].cast(pl.String).value_counts(normalize=True).iter_rows())
    assert shares == pytest.approx({"train": 0.70, "dev": 0.15, "test": 0.15}, abs=0.015)
    for _, part in corpus.group_by("split"):
        assert (part["label"].cast(pl.String) == "entailment").mean() == 0.5
    for name in ("premise_id", "premise"):
        assert corpus.group_by(name).agg(pl.col("split").n_unique())["split"].max() == 1


def test_near_copies_stand_in_the_split_of_their_original(large):
    """Found as a guard would find them, by three words in a row, not by how they were made."""
    premises = large.unique("premise_id", maintain_order=True)
    triples = CountVectorizer(ngram_range=(3, 3), token_pattern=r"(?u)\b\w+\b", binary=True, dtype=np.int32)
    matrix = triples.fit_transform(premises["premise"])
    sizes = np.asarray(matrix.sum(axis=1)).ravel()
    shared = (matrix @ matrix.T).tocoo()
    union = sizes[shared.row] + sizes[shared.col] - shared.data
    near = (shared.data >= 0.7 * union) & (shared.row > shared.col)
    copies, originals = shared.row[near], shared.col[near]
    laws, splits, texts = (premises[name].to_numpy() for name in ("law_id", "split", "premise"))
    assert 0.02 < len(set(copies)) / premises.height < 0.03
    assert (laws[copies] != laws[originals]).all()
    assert (texts[copies] != texts[originals]).all()
    assert (splits[copies] == splits[originals]).all()
    assert set(splits[copies]) == {"train", "dev", "test"}


def test_pairs_do_not_repeat_and_every_rule_occurs(large, corpus):
    assert find_duplicates(large).height == 0
    assert corpus["rule"].list.len().min() >= 1
    counts = Counter(zip(*corpus.explode("rule").select(pl.col("label").cast(pl.String), "rule"), strict=True))
    assert {rule for label, rule in counts if label == "entailment"} == set(range(1, 10))
    assert {rule for label, rule in counts if label == "non_entailment"} == set(range(1, 11))
    assert min(counts.values()) >= 10
    several = corpus.filter(pl.col("rule").list.len() > 1)["label"].cast(pl.String).value_counts()
    assert min(several["count"]) > 100


def test_premises_have_what_statutes_have(corpus):
    premises = corpus["premise"].unique()
    for pattern in (
        r"(?i)\bnếu ",
        r"(?i)trừ khi ",
        r"(?i)trừ trường hợp ",
        r"ngày \d\d/\d\d",
        r"ngày (mùng|mười|hai) ",
    ):
        assert premises.str.contains(pattern).mean() > 0.015, pattern
    assert premises.str.contains(r"(?i)(trong thời hạn|với mức phí) \d\d ").mean() > 0.03
    assert premises.str.contains(r"(?i)(trong thời hạn|với mức phí) [^\d\s]+ ").mean() > 0.03
    assert premises.str.contains(r"(?i)theo quy định tại điều \d+ về ").mean() > 0.05


def test_cross_references_restate_the_article_they_cite(corpus):
    last = corpus["law_id"][-1]  # perhaps cut off
    premises = corpus.filter(pl.col("law_id") != last).unique("premise_id", maintain_order=True)
    articles: dict[tuple[str, str], str] = {}
    for law, article, premise in premises.select("law_id", "article", "premise").rows():
        articles[law, article] = articles.get((law, article), "") + premise.lower()
    verbs = "|".join(VERBS)
    found = 0
    for law, own, premise in premises.select("law_id", "article", "premise").rows():
        for article, verb, thing in re.findall(rf"(Điều \d+) về ({verbs}) ([^.,]+?)(?=[.,]| là )", premise):
            assert article != own
            assert thing in articles[law, article] and verb in articles[law, article]
            found += 1
    assert found > 100


def follows(fact: Fact, premise: Fact) -> bool:
    """Whether `fact` follows from `premise`: our reading of the grammar, written apart from what draws the pairs."""
    actors, told = ({fact.actor, fact.partner} - {None} for fact in (fact, premise))
    if fact.act != premise.act or not actors <= told:
        return False
    if fact.modal != premise.modal and (premise.modal, fact.modal) != (DUTY, PERMISSION):
        return False
    own, given = fact.detail, premise.detail
    if own.kind == given.kind == DEADLINE and own.words == given.words and fact.modal == premise.modal:
        return own.number >= given.number if fact.modal == DUTY else own.number <= given.number
    return own == given


def test_labels_are_true(provisions):
    """Every entailed hypothesis follows from a fact of its premise, every other from none."""
    for place, pairs in provisions:
        assert Counter(pair.label for pair in pairs) == {Label.ENTAILMENT: 1, Label.NON_ENTAILMENT: 1}
        for pair in pairs:
            is_entailed = any(follows(pair.fact, fact) for fact in place.facts)
            assert is_entailed == (pair.label is Label.ENTAILMENT), (place.text, pair.hypothesis)


def test_rules_say_what_was_done(provisions):
    seen: Counter[tuple[Label, int]] = Counter()
    for place, pairs in provisions:
        told = place.facts[place.told]
        for pair in pairs:
            seen.update((pair.label, rule) for rule in pair.rules)
            if pair.label is Label.ENTAILMENT:
                assert (7 in pair.rules) == (pair.fact != told)  # a consequence, not the fact itself
                assert 5 not in pair.rules or told.detail.kind in WITH_NUMBER
                assert (9 in pair.rules) == (told.detail.kind == LINK)
                continue
            nearest = [fact for fact in place.facts if fact.act == pair.fact.act]
            if 5 in pair.rules:
                assert nearest[0].detail.number != pair.fact.detail.number or "ngày" in pair.hypothesis
            if 3 in pair.rules:
                assert {nearest[0].modal, pair.fact.modal} in ({DUTY, BAN}, {BAN, PERMISSION})
            if 8 in pair.rules:
                assert " nên " in pair.hypothesis and pair.fact.actor not in place.actors
            if 9 in pair.rules:
                number = re.search(r"Điều (\d+)", pair.hypothesis)
                assert number and (number[0] not in place.text or nearest[0].detail != pair.fact.detail)
            if 10 in pair.rules:
                assert not nearest
    assert len(seen) == 19


def test_a_size_is_honoured_and_a_larger_corpus_begins_with_the_smaller(large):
    for size in (1, 200, 201):
        assert sample_corpus(size).equals(large.head(size))


def test_it_streams(large):
    chunks = list(iter_sample(2500, chunk_rows=1000))
    assert [chunk.height for chunk in chunks] == [1000, 1000, 500]
    assert pl.concat(chunks).equals(large.head(2500))
    endless = iter_sample(10**12, chunk_rows=50)  # nothing is written before it is asked for
    assert next(endless).equals(large.head(50)) and next(endless).equals(large.slice(50, 50))


@pytest.mark.parametrize("sizes", [(0, 10), (10, 0), (-1, 10)])
def test_sizes_that_make_no_sense_are_refused(sizes):
    with pytest.raises(ValueError, match="must be positive"):
        iter_sample(sizes[0], chunk_rows=sizes[1])


@pytest.mark.parametrize("seen", ["hypothesis", "premise"])
def test_one_side_alone_does_not_give_the_label_away(corpus, seen):
    """hyponly-v1 stays under 0.65; the same on premises alone under 0.55."""
    frame = corpus.with_columns(hypothesis=pl.col(seen))
    train, test = (frame.filter(pl.col("split") == name) for name in ("train", "test"))
    answers = hypothesis_only(train, test, BINARY)
    accuracy = (answers["predicted"] == answers["label"].cast(pl.String)).mean()
    assert accuracy < (0.65 if seen == "hypothesis" else 0.55)


def test_letters_lengths_and_counts_do_not_give_it_away_either(corpus):
    from scipy.sparse import csr_array, hstack

    train, test = (corpus.filter(pl.col("split") == name) for name in ("train", "test"))
    letters = TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 4), min_df=3, sublinear_tf=True)
    letters.fit(train["hypothesis"])
    parts = [
        hstack([letters.transform(part["hypothesis"]), csr_array(surface_counts(part) / 10)]) for part in (train, test)
    ]
    with threadpool_limits(limits=1):
        model = LogisticRegression(C=4, max_iter=200).fit(parts[0], train["label"].cast(pl.String))
    assert (model.predict(parts[1]) == test["label"].cast(pl.String).to_numpy()).mean() < 0.60


def surface_counts(frame: pl.DataFrame) -> np.ndarray:
    """Length in letters and words, commas, digits, and the words of conditions, exceptions, references, modals."""
    text = frame["hypothesis"]
    patterns = (r".", r" ", r",", r"\d", *SURFACE_WORDS)
    return np.stack([text.str.count_matches(f"(?i){pattern}").to_numpy() for pattern in patterns], axis=1)


SURFACE_WORDS = (
    "nếu ", "trừ ", "khi ", "trước ", "sau ", "điều ", "yêu cầu", " và ", "phải ", "không ", "cấm ", "được phép ",
    "quyền ", "việc ", " nên ", "ngày ", "đồng", r"\d", "mùng", "căn cứ ",
)  # fmt: skip


def test_every_surface_form_is_as_frequent_under_either_label(large):
    by_label = [large.filter(pl.col("label") == label) for label in ("entailment", "non_entailment")]
    for pattern in SURFACE_WORDS:
        one, other = (part["hypothesis"].str.contains(f"(?i){pattern}").mean() for part in by_label)
        assert one == pytest.approx(other, abs=0.03), pattern  # 3 standard errors


def test_draws_are_even_and_never_the_same_twice():
    draw = Draw("even")
    counts = Counter(draw.below(7) for _ in range(7000))
    assert set(counts) == set(range(7)) and max(abs(count - 1000) for count in counts.values()) < 120
    assert all(one != other for one, other in pairwise([Draw("law", 0, number).below(2**32) for number in range(50)]))
    assert sorted(draw.shuffled(range(9))) == list(range(9))
