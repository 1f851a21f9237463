"""Training on several sources at once: shares, splits source by source, one label scheme, a test set each."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest

from lightning_nli.config import ExperimentConfig, parse_config
from lightning_nli.training.corpora import load_run_data
from lightning_nli.types import BINARY, UserError


def corpus(path: Path, prefix: str, sizes: dict[str, int], label: str = "neutral") -> str:
    """Two hypotheses a premise; a file with a split column."""
    rows = [
        {"id": n, "premise": f"{prefix} {split} {n // 2}", "hypothesis": f"h{n}", "label": label, "split": split}
        for split, size in sizes.items()
        for n in range(size)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def config_of(*data: str, **more: str) -> ExperimentConfig:
    flags = [flag for source in data for flag in ("--data", source)]
    return parse_config([*flags, *(part for name, value in more.items() for part in (f"--{name}", value))])


@pytest.fixture
def two(tmp_path: Path) -> tuple[str, str]:
    a = corpus(tmp_path / "alpha.jsonl", "A", {"train": 100, "dev": 20, "test": 10})
    return a, corpus(tmp_path / "beta.jsonl", "B", {"train": 60, "test": 8})


def by_corpus(frame: pl.DataFrame) -> dict[str, int]:
    return dict(frame.group_by("corpus").len().rows())


def test_each_source_keeps_its_dev_split_or_has_rows_drawn_from_it(two):
    data = load_run_data(config_of(*two))
    assert by_corpus(data.scored["id_val"]) == {"alpha": 20, "beta": 6}
    assert by_corpus(data.train) == {"alpha": 100, "beta": 54}
    assert {name: rows.height for name, rows in data.scored.items() if name != "id_val"} == {"alpha": 10, "beta": 8}
    assert data.train["example_id"].is_unique().all()
    premises = {name: set(rows["premise_id"]) for name, rows in {"train": data.train, **data.scored}.items()}
    assert not premises["train"] & premises["id_val"]


def test_rows_and_weights_apply_to_training_rows_only(two):
    alpha, beta = two
    data = load_run_data(config_of(f"{alpha}@30", f"{beta}@2.5", **{"val-split": "none"}))
    assert by_corpus(data.train) == {"alpha": 30, "beta": 150}
    assert data.train["example_id"].is_unique().all()
    assert data.train.filter(pl.col("corpus") == "beta")["hypothesis"].n_unique() == 60
    assert data.scored["beta"].height == 8
    again = load_run_data(config_of(f"{alpha}@30", f"{beta}@2.5", **{"val-split": "none"}))
    assert again.train.equals(data.train)
    smaller = load_run_data(config_of(f"{alpha}@20", f"{beta}@0.5", **{"val-split": "none"}))
    assert set(smaller.train["example_id"]) <= set(data.train["example_id"])
    with pytest.raises(UserError, match="has 100 training rows, not 500"):
        load_run_data(config_of(f"{alpha}@500", beta, **{"val-split": "none"}))


def test_a_published_dev_split_can_train_while_a_tenth_of_it_chooses(two):
    """ViANLI's cuts: 90% of a dev split to train, 10% to tune."""
    alpha, beta = two
    data = load_run_data(config_of(f"{alpha}#dev=train", f"{beta}#train"))
    assert by_corpus(data.train) == {"alpha": 18, "beta": 54} and by_corpus(data.scored["id_val"]) == {
        "alpha": 2,
        "beta": 6,
    }
    assert set(data.scored) == {"id_val"}


def test_a_mixture_has_one_scheme_folded_only_when_asked(tmp_path: Path, two):
    binary = corpus(tmp_path / "bin.jsonl", "C", {"train": 20}, label="non_entailment")
    with pytest.raises(UserError, match="--label-scheme binary folds"):
        load_run_data(config_of(two[0], binary))
    data = load_run_data(config_of(two[0], binary, **{"label-scheme": "binary"}))
    assert data.scheme is BINARY and data.train["label"].unique().to_list() == ["non_entailment"]


def test_sources_of_one_name_are_told_apart(tmp_path: Path):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
    sources = [corpus(tmp_path / name / "same.jsonl", name, {"train": 10, "test": 4}) for name in ("a", "b")]
    data = load_run_data(config_of(*sources, **{"val-split": "none"}))
    assert set(data.scored) == {"same", "same-2"}
    assert data.train["example_id"].is_unique().all()
