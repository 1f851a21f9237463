"""A split of one's own: units stay whole, shares are kept, and nothing but rows and seed decides."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest

from lightning_nli.cli.main import main
from lightning_nli.data.readers import read_source
from lightning_nli.data.sample import sample_corpus
from lightning_nli.data.splits import find_leaks
from lightning_nli.data.stratified import Share, stratified_split
from lightning_nli.types import Split, UserError

PARTS = {Split.TRAIN: 0.8, Split.DEV: 0.1, Split.TEST: 0.1}


def too_far(frame: pl.DataFrame, shares: list[Share]) -> list[Share]:
    """Shares more than 1 point and more than one unit's rows off."""
    sizes = {part: int((frame["split"] == part.value).sum()) for part in PARTS}
    return [
        share
        for share in shares
        if abs(share.off_points) > 1 and abs(share.off_points) / 100 * sizes[share.split] > share.largest_unit
    ]


def test_labels_and_domains_have_their_shares_in_every_part():
    frame, shares = stratified_split(sample_corpus(3600), unit="premise_id", fractions=PARTS, seed=1)
    assert not too_far(frame, shares)
    assert {share.feature.partition(":")[0] for share in shares} == {"rows", "label", "domain"}
    parts = [frame.filter(pl.col("split") == part.value) for part in PARTS]
    assert sum(part.height for part in parts) == frame.height == 3600
    assert not find_leaks(parts[0], parts[1]) and not find_leaks(parts[0], parts[2])


def test_row_order_does_not_matter_and_the_seed_does():
    corpus = sample_corpus(600)
    frame, _ = stratified_split(corpus, unit="premise_id", fractions=PARTS, seed=1)
    shuffled, _ = stratified_split(
        corpus.sample(fraction=1, shuffle=True, seed=5), unit="premise_id", fractions=PARTS, seed=1
    )
    columns = ["example_id", "split"]
    assert frame.select(columns).sort("example_id").equals(shuffled.select(columns).sort("example_id"))
    other, _ = stratified_split(corpus, unit="premise_id", fractions=PARTS, seed=2)
    assert not other["split"].equals(frame["split"])


def test_units_with_one_premise_under_two_spellings_stay_together(tmp_path: Path):
    rows = [
        {"premise": f"Tiền đề {n}", "hypothesis": "h", "label": "neutral", "premise_id": f"p{n}"} for n in range(30)
    ]
    rows += [row | {"premise": row["premise"].upper() + " !", "premise_id": f"q{n}"} for n, row in enumerate(rows)]
    path = tmp_path / "x.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    frame, _ = stratified_split(read_source(str(path)).frame, unit="premise_id", fractions=PARTS, seed=1)
    split_of = dict(frame.select("premise_id", pl.col("split").cast(pl.String)).rows())
    assert all(split_of[f"p{n}"] == split_of[f"q{n}"] for n in range(30))
    assert set(split_of.values()) == {"train", "dev", "test"}


def test_d12_a_part_is_never_empty_without_a_word(tmp_path: Path, capsys):
    """40 rows of one law and one row of each of four others: no 8:1:1 by law, and a missing label is named."""
    rows = [
        {"premise": f"p{n}", "hypothesis": "h", "label": "neutral", "law_id": "big" if n < 40 else f"l{n}"}
        for n in range(44)
    ]
    rows[-1]["label"] = "contradiction"
    path = tmp_path / "x.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert main(["data", "split", str(path), str(tmp_path / "out"), "--unit", "law_id"]) == 0
    shown = capsys.readouterr().out
    assert "warning" in shown and "has no row of label:contradiction" in shown
    only = read_source(str(path)).frame.filter(pl.col("law_id") == "big")
    with pytest.raises(UserError, match="leave nothing for dev, test"):
        stratified_split(only, unit="law_id", fractions=PARTS, seed=1)


def test_the_command_writes_a_corpus_that_reads_again(tmp_path: Path, capsys):
    out = tmp_path / "mine"
    assert main(["data", "split", "sample:400", str(out), "--seed", "3"]) == 0
    corpus = read_source(str(out))
    record = json.loads((out / "split.json").read_text(encoding="utf-8"))
    assert corpus.frame.height == 400 and record["rows"] == {
        part.value: int((corpus.frame["split"] == part.value).sum()) for part in Split
    }
    assert main(["data", "split", "sample:400", str(out)]) == 2
    assert "never overwritten" in capsys.readouterr().err
    assert main(["data", "split", "sample:400", str(tmp_path / "b"), "--parts", "8:2"]) == 2
    assert main(["data", "split", "sample:400", str(tmp_path / "b"), "--parts", "9:0:1", "--to", "parquet"]) == 0
    assert sorted(path.name for path in (tmp_path / "b").iterdir()) == ["split.json", "test.parquet", "train.parquet"]


@pytest.mark.parametrize(("name", "unit"), [("vilegalnli", "premise_id"), ("visnli", "premise_id")])
def test_published_corpora_are_shared_out_within_a_point(shared: Path, name: str, unit: str):
    corpus = read_source(f"{name}:{shared}/data/{name}", on_bad_row="drop")
    frame, shares = stratified_split(corpus.frame, unit=unit, fractions=PARTS, seed=1)
    assert max(abs(share.off_points) for share in shares) < 1 and not too_far(frame, shares)
