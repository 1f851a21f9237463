"""Tables of a corpus, the whole analysis, parts of speech: hand-made rows, the embedded corpus, ViLegalNLI."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

from lightning_nli.analysis.corpus import CorpusAnalysis, analyze_corpus, count_rows
from lightning_nli.analysis.pos import TAGS, pos_shares, tag_words
from lightning_nli.data.readers import read_source
from lightning_nli.data.schema import EXAMPLE_SCHEMA, Corpus
from lightning_nli.types import BINARY, THREE_WAY, UserError

YES, NO = "entailment", "non_entailment"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LNLI_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "analysis"


def rows_of(*rows: dict) -> pl.DataFrame:
    defaults = {"premise": "p", "hypothesis": "h", "label": YES, "domains": [], "rule": [], "ratings": []}
    made = [{"example_id": str(number), "premise_id": "p", **defaults, **row} for number, row in enumerate(rows)]
    return pl.DataFrame(made, schema=EXAMPLE_SCHEMA)


def test_a_row_of_two_domains_counts_in_both_ways():
    frame = rows_of(
        {"domains": ["tax_fees", "education"], "rule": [7, 3]},
        {"domains": ["tax_fees"], "rule": [7, 7]},
        {"label": NO},
    )
    by_domain = count_rows(frame, ("domain",))
    assert by_domain.rows() == [("education", 1, 0.5), ("tax_fees", 2, 1.5), (None, 1, 1.0)]
    cells = count_rows(frame, ("split", "domain", "label", "rule"))
    assert cells.columns == ["split", "domain", "label", "rule", "rows", "weighted_rows"]
    assert cells["weighted_rows"].sum() == 3.0 and cells["rows"].sum() == 4 + 1 + 1
    assert (None, "tax_fees", YES, 7, 2, 1.25) in cells.rows()
    assert count_rows(frame, ("label",)).rows() == [(NO, 1, 1.0), (YES, 2, 2.0)]


def test_the_embedded_corpus_is_analyzed_whole():
    corpus = read_source("sample:200")
    given_away = pl.when(pl.col("label") == NO).then(pl.lit("Tuy vậy, ")).otherwise(pl.lit("Khi đó, "))
    corpus = replace(corpus, frame=corpus.frame.with_columns(hypothesis=given_away + pl.col("hypothesis")))
    analysis = analyze_corpus(corpus, top=5, min_rows=4)
    assert analysis.num_rows == 200 and analysis.labels == (NO, YES)
    assert analysis.splits["rows"].sum() == 200
    assert analysis.cells["weighted_rows"].sum() == pytest.approx(200)
    by_label = {label: part["token"].to_list() for (label,), part in analysis.tokens.group_by("label")}
    assert set(by_label) == {YES, NO} and set(by_label[YES]) >= {"Khi", "đó", "Khi đó"} and "Tuy vậy" in by_label[NO]
    assert max(map(len, by_label.values())) <= 5
    assert analysis.tokens["p_adjusted"].max() < 0.05 and analysis.num_tokens > 50
    assert set(analysis.lengths["measure"]) == {"premise_syllables", "hypothesis_syllables"}
    assert set(analysis.overlap["words"]) == {"syllables"}
    assert analysis.agreement is None and analysis.pos is None and analysis.blind is not None
    plain = analysis.as_dict()
    assert json.loads(json.dumps(plain, allow_nan=False)) == plain
    assert plain["verdict"] == analysis.blind.verdict
    assert plain["splits"][0].keys() == {"split", "label", "rows", "premises", "laws"}
    again = analyze_corpus(corpus, top=5, min_rows=4).as_dict()
    assert again | {"seconds": None} == plain | {"seconds": None}


def test_what_cannot_be_computed_is_null_and_said():
    rating = [{"rater": "a", "label": YES}, {"rater": "b", "label": YES}]
    analysis = analyze_corpus(Corpus(rows_of({"ratings": rating}, {"ratings": rating}), BINARY, "mine"))
    assert analysis.blind is None and "nothing to hold out" in analysis.notes[-1]
    assert analysis.agreement.fleiss.estimate.value is None
    plain = analysis.as_dict()
    assert plain["verdict"] is None and plain["agreement"]["fleiss"]["estimate"]["value"] is None
    json.dumps(plain, allow_nan=False)
    three = analyze_corpus(Corpus(rows_of({}, {"label": "neutral", "premise_id": "q"}), THREE_WAY, "mine"))
    assert three.published_tokens is None and three.triggers.height == 19


def test_unlabelled_and_unknown_are_refused():
    frame = rows_of({}, {"label": None})
    with pytest.raises(UserError, match="'mine': 1 of 2 rows lack a label"):
        analyze_corpus(Corpus(frame, BINARY, "mine"))
    with pytest.raises(UserError, match="unknown words 'bpe'"):
        analyze_corpus(Corpus(frame, BINARY, "mine"), words="bpe")
    with pytest.raises(UserError, match="unknown tagger 'spacy'"):
        pos_shares(frame, "spacy")


@pytest.fixture(scope="module")
def vilegalnli(shared: Path) -> CorpusAnalysis:
    corpus = read_source(f"vilegalnli:{shared / 'data' / 'vilegalnli'}", on_bad_row="drop")
    return analyze_corpus(corpus, max_n=1)


def test_vilegalnli_has_the_lengths_rows_and_verdict_we_know(vilegalnli: CorpusAnalysis):
    whole = vilegalnli.lengths.filter(pl.col("label").is_null(), pl.col("measure") == "hypothesis_syllables")
    means = dict(whole.select("split", "mean").iter_rows())
    assert (round(means["dev"], 1), round(means["test"], 1)) == (64.0, 63.0)
    assert vilegalnli.blind.verdict == (
        "A linear model that never reads the premise gets 90.2% of test right (trained on dev); the commonest label "
        "alone gets 54.7%, a model that reads the premise alone 52.4%."
    )
    assert (vilegalnli.num_rows, vilegalnli.num_bad_rows) == (8944, 5)
    domains = vilegalnli.domains.filter(pl.col("split") == "test")
    assert domains["rows"].sum() > 4288 and domains["weighted_rows"].sum() == pytest.approx(4288)
    assert domains.filter(pl.col("domain").is_null())["rows"].sum() == 36
    entailed = vilegalnli.rules.filter(pl.col("label") == YES, pl.col("split") == "dev")["rule"]
    assert entailed.drop_nulls().to_list() == list(range(1, 10))


def test_vilegalnlis_tokens_have_the_pmi_we_know(vilegalnli: CorpusAnalysis):
    strongest = vilegalnli.tokens.group_by("label", maintain_order=True).first()
    assert set(strongest["token"]) == {"thì", "vì"} and strongest["rows"].min() > 2000
    found = vilegalnli.published_tokens
    assert found.filter(pl.col("label") == NO)["highest_pmi_bits"].to_list() == pytest.approx([0.871] * 5, abs=1e-3)
    shares = dict(found.select("token", "p_label_given_token").iter_rows())
    known = {"không cần": 0.946, "Dù": 0.989, "bất kể": 0.795, "chỉ cần": 0.989, "tự do": 0.888, "Khi": 0.581}
    known |= {"Theo quy định": 0.013, "đồng thời": 0.481, "Những": 0.0, "thiết lập": 0.161}
    assert shares == pytest.approx(known, abs=1e-3)
    need_not = found.row(by_predicate=pl.col("token") == "không cần", named=True)
    assert need_not["pmi_bits"] == pytest.approx(0.791, abs=1e-3)
    assert need_not["pmi_nats"] == pytest.approx(0.548, abs=1e-3)


POS_ROWS = rows_of(
    {"premise": "Người lao động nộp thuế.", "hypothesis": "Người lao động nộp thuế rất chậm."},
    {"premise": "Công ty", "hypothesis": "Nó không nộp.", "label": NO},
)


def test_parts_of_speech_by_both_papers(cache: Path):
    pytest.importorskip("pyvi")
    tagged = tag_words(POS_ROWS["hypothesis"], "pyvi")
    assert tagged["words"].to_list()[1] == ["Nó", "không", "nộp", "."]
    assert tagged["tags"].to_list()[1] == ["P", "R", "V", "F"]
    table = pos_shares(POS_ROWS, "pyvi")
    found = {(row[0], row[1], row[2], row[3]): row[4:] for row in table.iter_rows()}
    assert found["vilegalnli", "hypothesis", NO, "pronoun"] == (1, pytest.approx(1 / 3))
    assert found["vilegalnli", "hypothesis", NO, "adverb"] == (1, pytest.approx(1 / 3))
    assert found["vianli", "hypothesis", NO, "adjunct"] == (1, pytest.approx(1 / 3))
    assert found["vianli", "hypothesis", NO, "other"] == (1, pytest.approx(1 / 3))  # its grouping has no pronouns
    assert found[TAGS, "hypothesis", NO, "F"] == (1, pytest.approx(1 / 4))
    new = {key[3]: words for key, (words, _) in found.items() if key[:3] == ("vilegalnli", "new_words", YES)}
    assert sum(new.values()) == 2  # rất, chậm: the rest stands in the premise
    sums = table.group_by("grouping", "scope", "label").agg(pl.col("share").sum())["share"]
    assert len(sums) == 18 and sums.to_list() == pytest.approx([1.0] * 18)
    assert found["vilegalnli", "hypothesis", None, "verb"][0] == sum(
        found["vilegalnli", "hypothesis", label, "verb"][0] for label in (YES, NO)
    )
    files = sorted(cache.rglob("*.parquet"))
    assert pos_shares(POS_ROWS, "pyvi").equals(table)
    assert sorted(cache.rglob("*.parquet")) == files  # the second time nothing is tagged


def test_underthesea_has_its_own_mark_and_the_same_groups(cache: Path):
    pytest.importorskip("underthesea")
    table = pos_shares(POS_ROWS, "underthesea")
    marks = table.filter(pl.col("grouping") == TAGS, pl.col("group") == "CH", pl.col("label").is_null())
    assert marks["words"].to_list() == [2, 1]  # the first one's is in its premise, too
    words = table.filter(pl.col("grouping") == "vilegalnli", pl.col("label") == NO, pl.col("scope") == "hypothesis")
    assert words["words"].sum() == 3
    assert tag_words(pl.Series(["", "Nó nộp"]), "underthesea")["words"].to_list() == [[], ["Nó", "nộp"]]
