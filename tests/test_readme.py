"""Every command in README.md runs: the two make targets are CI's own, hardware commands run with --dry-run."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import polars as pl
import pytest
import yaml

from lightning_nli.cli.main import main
from lightning_nli.data.readers import read_source

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"


def readme_commands() -> list[str]:
    blocks = re.findall(r"```sh\n(.*?)```", README.read_text(encoding="utf-8"), flags=re.DOTALL)
    return [line.strip() for block in blocks for line in block.splitlines() if line.strip()]


def small_copies() -> None:
    """The suite and the recipe that the README names, on the small files."""
    suite = yaml.safe_load((ROOT / "benchmarks" / "suites" / "sample-lodo.yaml").read_text(encoding="utf-8"))
    suite |= {"data": "sample:600", "domains": ["administrative_organization"], "references": False}
    Path("benchmarks/suites").mkdir(parents=True)
    Path("benchmarks/suites/sample-lodo.yaml").write_text(yaml.safe_dump(suite), encoding="utf-8")
    recipe = yaml.safe_load((ROOT / "experiments" / "vilegalnli" / "xlmr-large.yaml").read_text(encoding="utf-8"))
    recipe |= {"data": "vilegalnli:DIR", "model": "tiny"}
    Path("experiments/vilegalnli").mkdir(parents=True)
    Path("experiments/vilegalnli/xlmr-large.yaml").write_text(yaml.safe_dump(recipe), encoding="utf-8")


def test_the_two_set_up_commands_come_first():
    assert readme_commands()[:2] == ["make demo", "make test"]


@pytest.mark.slow
def test_the_readmes_commands_run(tmp_path, monkeypatch):
    """On small files of the same shape, with `tiny` in the place of the pretrained encoders."""
    monkeypatch.chdir(tmp_path)
    rows = read_source("sample:60").frame
    table = rows.select("premise", "hypothesis", "label", "law_id")
    table.write_csv("my.csv")
    table.write_csv("other.csv")
    table.select("premise", "hypothesis").write_ndjson("pairs.jsonl")
    Path("DIR").mkdir()
    for name in ("train", "dev", "test"):
        part = rows.filter(pl.col("split") == name)
        labels = (part["label"].cast(pl.String) == "entailment").cast(pl.Int64).cast(pl.String)
        columns = {"Premise": part["premise"], "Hypothesis": part["hypothesis"], "Label": labels}
        published = pl.DataFrame(columns).with_columns(
            pl.lit("1/2030/QH").alias("Law ID"),
            pl.lit("[]").alias("Field of Law"),
            pl.lit(None, pl.String).alias("Rule"),
        )
        published.write_csv(f"DIR/{name}.csv")
    visnli = [f"P_{n},News,Trời {n} mưa.,Có mưa {k}.,{k}" for n in range(12) for k in range(3)]
    Path("VISNLI").mkdir()
    Path("VISNLI/train.csv").write_text("\n".join(["ID,Genre,Premise,Hypothesis,Label", *visnli]), encoding="utf-8")
    Path("data").mkdir()
    small_copies()
    ran = 0
    for command in readme_commands():
        words = shlex.split(command)
        if words[0] != "lnli":
            continue
        words = ["tiny" if word in ("e5-small", "xlm-roberta-large") else word for word in words]
        if "--devices" in words:
            words.append("--dry-run")
        assert main(words[1:]) == 0, command
        ran += 1
    assert ran >= 15
    assert Path("labels.jsonl").exists()
    assert Path("model/config.json").exists()
