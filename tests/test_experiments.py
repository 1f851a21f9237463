"""Every recipe loads, says what the paper's row says, and trains: on stand-ins of its encoder and of its corpora."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import polars as pl
import pytest
import torch
from tiny_models import stand_in

from lightning_nli.config import ExperimentConfig, load_config
from lightning_nli.data.sample import sample_corpus
from lightning_nli.models.registry import model_card, model_cards
from lightning_nli.published import published_figures
from lightning_nli.training.corpora import RunData, load_run_data
from lightning_nli.training.run import build_run

ROOT = Path(__file__).resolve().parents[1] / "experiments"
FILES = sorted(path for path in ROOT.rglob("*.yaml") if path.parent.name != "tune")  # these are search spaces
NAMES = [path.relative_to(ROOT).with_suffix("").as_posix() for path in FILES]
OWN = "vilegalnli/reads-the-law"  # no published row: tests/test_reading.py
RECIPES = [name for name in NAMES if name.startswith(("vilegalnli/", "vianli/")) and name != OWN]
THREE_WAY = ("entailment", "neutral", "contradiction")
SOURCES = {
    "ViNLI": "plain:data/vinli",
    "XNLI": "xnli:data/xnli#dev=train",
    "ViA1": "vianli:data/vianli/round1",
    "ViA2": "vianli:data/vianli/round2",
    "ViA3": "vianli:data/vianli/round3",
    "ViANLI": "vianli:data/vianli",
    "VLSP2021": "plain:data/vlsp2021#train",
    "VnNewsNLI": "plain:data/vnnewsnli#dev=train",
}


@cache
def recipe(name: str) -> ExperimentConfig:
    return load_config(ROOT / f"{name}.yaml")


def published_row(name: str) -> pl.DataFrame:
    """The figures that a recipe's first lines must give."""
    paper, stem = name.split("/")
    if paper == "vilegalnli":
        return published_figures(paper).filter(pl.col("table") == 14, pl.col("hub_id") == model_card(stem).hub_id)
    pattern = r"table(\d+)-(.+?)(?:-(\d))?(?:-(syllables|words))?(-vinli)?"
    table, model, row, unit, on_vinli = re.fullmatch(pattern, stem).groups()
    figures = published_figures(paper).filter(pl.col("table") == int(table), pl.col("unit") == "percent")
    if table == "11":  # the paper names no sizes
        names = {"mbert": "mBERT", "xlmr-large": "XLM-R", "infoxlm-large": "InfoXLM", "phobert-large": "PhoBERT"}
        return figures.filter(pl.col("system") == names[model])
    figures = figures.filter(pl.col("hub_id") == model_card(model).hub_id)
    if table == "10":
        of_corpus = figures.filter(pl.col("test_set").str.starts_with("ViNLI" if on_vinli else "ViANLI"))
        return of_corpus.filter(pl.col("setting") == unit) if unit else of_corpus
    settings = figures["setting"].unique(maintain_order=True)
    return figures.filter(pl.col("setting") == settings[int(row) - 1])


def test_there_is_a_recipe_for_every_published_row():
    encoders = {card.alias for card in model_cards() if "ViLegalNLI 14" in card.tables}
    assert {name.partition("/")[2] for name in RECIPES if name.startswith("vilegalnli/")} == encoders
    assert len(encoders) == 11
    tables = [name.partition("/")[2].partition("-")[0] for name in RECIPES if name.startswith("vianli/")]
    assert {table: tables.count(table) for table in tables} == {"table8": 17, "table9": 3, "table10": 18, "table11": 4}


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_is_that_of_its_row(name):
    """Figures in the comment, model, training data and test sets against the package's data."""
    config, row = recipe(name), published_row(name)
    assert row.height >= 2
    comment = " ".join(
        line.removeprefix("#")
        for line in (ROOT / f"{name}.yaml").read_text(encoding="utf-8").splitlines()
        if line[0] == "#"
    )
    for value in row["value"]:
        assert f"{value:.2f}" in comment, value
    hub_id = row["hub_id"][0]
    assert hub_id is None or model_card(config.model).hub_id == hub_id
    assert (config.text.segmenter == "pyvi") == (model_card(config.model).word_segmented or "words" in name)
    assert config.text.max_length <= model_card(config.model).max_tokens
    assert config.packing.batch_size == 16 and config.optim.lr == (1e-3 if config.model == "cbow" else 1e-5)
    assert config.text.max_length == 256
    if name.startswith("vilegalnli/"):
        assert (config.optim.epochs, config.optim.accumulate, config.optim.weight_decay) == (5, 2, 0.01)
        assert config.sources == ["vilegalnli:data/vilegalnli"]
        return
    assert (config.optim.epochs, config.optim.accumulate, config.optim.weight_decay) == (7, 1, 0.0)
    assert config.checkpoints.every == 400 and config.checkpoints.monitor == "id_val/accuracy"
    assert (config.segments == "hypothesis") == ("table11" in name)
    assert config.test_split == "none"
    table = row["table"][0]
    corpora = {10: row["test_set"][0].split()[0], 11: "ViANLI"}.get(table, row["setting"][0]).split(" + ")
    assert config.sources == [SOURCES[corpus] for corpus in corpora]
    assert [test.replace("-", " ") for test in config.test_sources] == row["test_set"].to_list()
    for test, source in config.test_sources.items():
        corpus, _, split = test.partition("-")
        assert source == f"{SOURCES[corpus].partition('#')[0]}#{split or 'test'}"


@pytest.fixture(scope="module")
def corpora(tmp_path_factory) -> Path:
    """A folder with `data/` as experiments/README.md lays it out: invented pairs in the layout of each corpus."""
    folder = tmp_path_factory.mktemp("corpora")
    pairs = sample_corpus(400).select("premise", "hypothesis")
    used = 0

    def write(path: str, num_rows: int, change: Callable[[pl.DataFrame], pl.DataFrame], separator: str = ",") -> None:
        nonlocal used
        rows = pl.concat([pairs, pairs])[used : used + num_rows].with_row_index("n", offset=used)
        used = (used + num_rows) % pairs.height
        (folder / "data" / path).parent.mkdir(parents=True, exist_ok=True)
        change(rows).write_csv(folder / "data" / path, separator=separator)

    def plain(rows: pl.DataFrame) -> pl.DataFrame:
        labels = [THREE_WAY[number % 3] for number in rows["n"]]
        return rows.select(pl.format("id-{}", "n").alias("uid"), "premise", "hypothesis", pl.Series("label", labels))

    def xnli(rows: pl.DataFrame) -> pl.DataFrame:
        languages = ["en" if number % 4 == 0 else "vi" for number in rows["n"]]
        names = {"premise": "sentence1", "hypothesis": "sentence2", "label": "gold_label"}
        numbered = plain(rows).drop("uid").rename(names).hstack(rows.select(promptID="n", pairID="n"))
        return numbered.with_columns(pl.Series("language", languages), genre=pl.lit("letters"))

    def vilegalnli(rows: pl.DataFrame) -> pl.DataFrame:
        return rows.select(
            pl.col("premise").alias("Premise"),
            pl.col("hypothesis").alias("Hypothesis"),
            (pl.col("n") % 2).alias("Label"),
            pl.lit("1/2030/QH").alias("Law ID"),
            pl.lit("[]").alias("Field of Law"),
            pl.lit("F").alias("Tag Point"),
        )

    for split, num_rows in {"train": 64, "dev": 8, "test": 8}.items():
        write(f"vilegalnli/{split}.csv", num_rows, vilegalnli)
        for part in ("vinli", "vianli", "vianli/round1", "vianli/round2", "vianli/round3"):
            write(f"{part}/{split}.csv", num_rows if split != "train" else 32, plain)
    for part in ("vlsp2021/train", "vlsp2021/test", "vnnewsnli/dev", "vnnewsnli/test"):
        write(f"{part}.csv", 24, plain)
    for split in ("dev", "test"):
        write(f"xnli/xnli.{split}.tsv", 24, xnli, separator="\t")
    return folder


@pytest.fixture(scope="module")
def encoder(tmp_path_factory) -> Callable[[str], str]:
    """Folder of the stand-in of a model: one for each architecture and tokenizer."""
    known: dict[tuple[str, bool], str] = {}

    def folder_of(alias: str) -> str:
        card = model_card(alias)
        if card is None or card.architecture.model_type == "cbow":
            return alias
        kind = (card.architecture.model_type, card.word_segmented)
        if kind not in known:
            known[kind] = str(stand_in(alias, tmp_path_factory.mktemp("encoder") / alias))
        return known[kind]

    return folder_of


@pytest.fixture(scope="module")
def run_data() -> Callable[[ExperimentConfig], RunData]:
    """The rows of a run, read once for all recipes that differ in the encoder and its training alone."""
    known: dict[str, RunData] = {}
    plain = ExperimentConfig()

    def rows(config: ExperimentConfig) -> RunData:
        data = replace(config, model="", text=plain.text, optim=plain.optim, engine=plain.engine, packing=plain.packing)
        if repr(data) not in known:
            known[repr(data)] = load_run_data(config)
        return known[repr(data)]

    return rows


def shortened(config: ExperimentConfig, model: str) -> ExperimentConfig:
    """The recipe on as many rows as make two optimizer steps, once."""
    step = config.packing.batch_size * config.optim.accumulate
    text = config.text
    if importlib.util.find_spec("pyvi") is None:  # of the extra `vietnamese`; the other settings are tried all the same
        text = replace(text, segmenter="none")
    return replace(
        config,
        model=model,
        subset=2 * step,
        text=text,
        optim=replace(config.optim, epochs=1, accumulate=config.optim.accumulate),
        engine=replace(config.engine, accelerator="cpu"),
    )


@pytest.fixture(scope="module")
def trained() -> set[tuple[object, ...]]:
    """Combinations of settings that have taken their steps: recipes alike in all of them are built only."""
    return set()


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_is_built_and_trains(name, corpora, encoder, run_data, trained, tmp_path, monkeypatch):
    monkeypatch.chdir(corpora)
    full = recipe(name)
    config = shortened(full, encoder(full.model))
    data = run_data(config)
    assert set(data.scored) == {"id_val", *(full.test_sources or ["test"])}
    assert data.segments == (("hypothesis",) if full.segments == "hypothesis" else ("premise", "hypothesis"))
    assert data.scheme.name == ("binary" if name.startswith("vilegalnli/") else "three_way")
    built = build_run(config, data, tmp_path, quiet=True)
    combination = (config.model, full.text, full.segments, full.packing, full.optim, full.engine, data.scheme)
    if combination in trained:
        return
    trained.add(combination)
    before = {key: value.detach().clone() for key, value in built.module.named_parameters()}
    built.trainer.fit(built.module, built.datamodule)
    assert built.trainer.global_step == 2
    moved = [key for key, value in built.module.named_parameters() if not torch.equal(value, before[key])]
    assert any("classifier" in key for key in moved) and len(moved) > 2
    assert torch.isfinite(built.trainer.callback_metrics[config.checkpoints.monitor])


@pytest.mark.parametrize("name", [name for name in NAMES if "/" not in name])
def test_the_others_load(name):
    assert recipe(name).sources == ["sample"]
