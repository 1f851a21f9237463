"""The recipes of legal will statements: one a published row, with its figures, and they train on stand-ins."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import polars as pl
import pytest
import torch
from tiny_models import TEXTS, stand_in

from lightning_nli.config import ExperimentConfig, load_config
from lightning_nli.models.registry import model_card, model_cards
from lightning_nli.published import published_figures
from lightning_nli.training.corpora import load_run_data
from lightning_nli.training.run import build_run

ROOT = Path(__file__).resolve().parents[1] / "experiments" / "wills"
NAMES = sorted(path.stem for path in ROOT.glob("*.yaml"))
TABLES = [name for name in NAMES if name.startswith("table")]
# Texts of a row of Table 4: what the recipe reads, and the published setting (None: a row that the table lacks).
TEXTS_OF = {
    "statement-law": ("hypothesis,premise", "statement + law"),
    "statement-condition": ("hypothesis,condition", "statement + condition"),
    "statement": ("hypothesis", "statement only"),
    "law": ("premise", None),
    "condition-law": ("condition,premise", None),
}
ABLATED = ("roberta-large-mnli", "longformer-base", "all-mpnet-base")


@cache
def recipe(name: str) -> ExperimentConfig:
    return load_config(ROOT / f"{name}.yaml")


def texts_of(name: str) -> str | None:
    if name.startswith("table2"):
        return None
    return next(texts for texts in TEXTS_OF if any(name == f"table4-{model}-{texts}" for model in ABLATED))


def test_there_is_a_recipe_for_every_row_and_for_those_that_table_4_lacks():
    encoders = {f"table2-{card.alias}" for card in model_cards() if "Wills 2" in card.tables}
    ablations = {f"table4-{model}-{texts}" for model in ABLATED for texts in TEXTS_OF}
    assert set(NAMES) == encoders | ablations | {"e5-small"}
    assert (len(encoders), len(ablations)) == (8, 15)


@pytest.mark.parametrize("name", TABLES)
def test_a_recipe_is_that_of_its_row(name):
    config, texts = recipe(name), texts_of(name)
    card = model_card(config.model)
    assert config.model in name and config.sources == ["wills:data/wills"]
    is_sentence_encoder = card.hub_id.startswith("sentence-transformers/")
    assert (config.method == "setfit") == is_sentence_encoder
    assert config.text.max_length == min(card.max_tokens, 512)  # 384 and 256 for two of the sentence encoders
    assert config.text.truncation == "proportional" and config.text.truncation_ratio == "auto"
    assert config.segments == ("auto" if texts is None else TEXTS_OF[texts][0])
    if not is_sentence_encoder:
        assert (config.optim.lr, config.optim.epochs, config.optim.weight_decay) == (2e-5, 5, 0.05)
        assert config.packing.batch_size == 4 and config.text.template == "markers"
    lines = (ROOT / f"{name}.yaml").read_text(encoding="utf-8").splitlines()
    comment = " ".join(line.removeprefix("# ") for line in lines if line.startswith("#"))
    figures = published_figures("wills").filter(pl.col("hub_id") == card.hub_id, pl.col("table") == int(name[5]))
    if texts is not None:
        figures = figures.filter(pl.col("setting") == (TEXTS_OF[texts][1] or "none"))
    assert figures.height == (0 if texts in ("law", "condition-law") else 5)
    for metric, value in figures.select("metric", "value").iter_rows():
        assert f"{metric.replace('_', ' ')} {value:.2f}".replace("macro f1", "macro F1") in comment


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Path:
    """A folder with `data/wills/`: three groups of five a split."""
    folder = tmp_path_factory.mktemp("corpus")
    (folder / "data" / "wills").mkdir(parents=True)
    for number, split in enumerate(("train", "dev", "test")):
        rows = [
            (
                f"G{number}{group}",
                f"{TEXTS[group]} [Person-1]",
                TEXTS[row % 4],
                f"{TEXTS[row % 3]} {split} {row}",
                row % 3,
            )
            for group in range(3)
            for row in range(5)
        ]
        names = ["ID", "statement", "conditions", "law", "classification"]
        pl.DataFrame(rows, schema=names, orient="row").write_csv(folder / "data" / "wills" / f"{split}.csv")
    return folder


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    return cache(lambda alias: str(stand_in(alias, tmp_path_factory.mktemp("encoder") / alias)))


@pytest.mark.parametrize("name", [name for name in TABLES if recipe(name).method == "finetune"])
def test_a_recipe_is_built_and_trains(name, corpus, encoder, tmp_path, monkeypatch):
    monkeypatch.chdir(corpus)
    full = recipe(name)
    config = replace(full, model=encoder(full.model), optim=replace(full.optim, epochs=1))
    config = replace(config, engine=replace(config.engine, accelerator="cpu"))
    data = load_run_data(config)
    wanted = ("hypothesis", "condition", "premise") if full.segments == "auto" else tuple(full.segments.split(","))
    assert data.segments == wanted and data.scheme.name == "wills" and set(data.scored) == {"id_val", "test"}
    built = build_run(config, data, tmp_path, quiet=True)
    assert built.meta.truncation == "proportional" and len(built.meta.ratio) == len(wanted)
    assert "[Person-1]" in built.loaded.tokenizer.get_vocab() or "hypothesis" not in wanted
    if texts_of(name) not in (None, "law"):
        return  # built only: they differ from the others in their texts alone
    before = {key: value.detach().clone() for key, value in built.module.named_parameters()}
    built.trainer.fit(built.module, built.datamodule)
    assert built.trainer.global_step == 4
    assert sum(not torch.equal(value, before[key]) for key, value in built.module.named_parameters()) > 2
    logged = built.trainer.callback_metrics
    assert torch.isfinite(logged["id_val/macro_f1"]) and logged["id_val/num_groups"] == 3
