"""Suite -> cells -> records -> board, with baselines that train in a moment; killed runners and poisoned rows."""

from __future__ import annotations

import json
import os
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import yaml

from lightning_nli.cli.main import main
from lightning_nli.crossdomain.leaderboard import COLUMNS, build_leaderboard
from lightning_nli.crossdomain.records import STALE_S, lease, open_board, read_records, write_json
from lightning_nli.crossdomain.runner import fold_data, make_board, reopen_board, run_cells
from lightning_nli.crossdomain.suite import check_suite, load_suite, plan_cells
from lightning_nli.types import UserError

ROOT = Path(__file__).resolve().parents[1]
DOMAINS = ["administrative_organization", "culture_society"]
SUITE = {"name": "t", "version": 1, "data": "sample:1200", "domains": DOMAINS, "reference_folds": 2}
BASELINES = ["hyponly-v1", "overlap-v1"]


@pytest.fixture(scope="module")
def board(tmp_path_factory):
    made = make_board(tmp_path_factory.mktemp("boards") / "t", check_suite(SUITE, "test"))
    assert run_cells(made, made.cells([*BASELINES, "majority"])) == 0
    return made


# Suite


@pytest.mark.parametrize("path", sorted((ROOT / "benchmarks" / "suites").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_suite_loads_and_its_models_have_settings(path):
    suite = load_suite(path)
    assert path.stem == suite.name
    from lightning_nli.crossdomain.suite import model_config

    for model in [*suite.models, *BASELINES]:
        assert model_config(suite, model, 1).seed == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sceme": "disjoint"}, "did you mean 'scheme'"),
        ({"scheme": "leave-one"}, "none of leave-one-domain-out"),
        ({"seeds": [1, 1]}, "different whole numbers"),
        ({"recipe": {"seed": 3}}, "may not set seed"),
        ({"models": {"a": {"data": "x"}}}, "may not set data"),
    ],
)
def test_a_suite_with_a_mistake_is_refused_by_name(changes, message):
    with pytest.raises(UserError, match=message):
        check_suite(SUITE | changes, "x.yaml")


def test_other_data_than_the_fingerprint_are_refused(tmp_path):
    with pytest.raises(UserError, match="is for the data 0123"):
        make_board(tmp_path / "b", check_suite(SUITE | {"fingerprint": "0123"}, "x"))


def test_cells_have_one_id_whatever_the_folder_and_another_for_every_change(board):
    folds = list(board.folds.values())
    ids = {cell.cell_id for cell in board.cells(BASELINES)}
    assert len(ids) == 2 * len(folds)
    again = plan_cells(board.suite, board.pool, folds, BASELINES)
    assert {cell.cell_id for cell in again} == ids
    other = plan_cells(replace(board.suite, version=2), board.pool, folds, BASELINES)
    assert not {cell.cell_id for cell in other} & ids
    deeper = replace(board.suite, models={"x": {"model": "tiny", "epochs": 2}, "y": {"model": "tiny", "epochs": 3}})
    x, y = (plan_cells(deeper, board.pool, folds, [name]) for name in "xy")
    assert not {cell.cell_id for cell in x} & {cell.cell_id for cell in y}


# Records and runners


def test_records_say_what_ran_and_are_not_run_again(board):
    records = read_records(board.folder)
    assert len(records) == 3 * len(board.folds) and {record["status"] for record in records} == {"finished"}
    out = next(r for r in records if r["fold"] == "out:culture_society" and r["model"] == "hyponly-v1")
    assert set(out["domains"]) == {"culture_society"} and out["held_out"] == ["culture_society"]
    assert out["result"]["scores"]["test"]["num_examples"] == len(board.folds["out:culture_society"].test)
    times = {path: path.stat().st_mtime_ns for path in board.folder.glob("cells/*/record.json")}
    told: list[str] = []
    assert run_cells(board, board.cells(BASELINES), on_cell=lambda cell, status: told.append(status)) == 0
    assert not told and times == {path: path.stat().st_mtime_ns for path in board.folder.glob("cells/*/record.json")}
    assert not list(board.folder.glob("cells/*/run-*")) and not list(board.folder.glob("cells/*/lease.json"))


def test_a_failed_cell_is_a_record_and_blanks_its_model(board, tmp_path):
    suite = replace(board.suite, models={"broken": {"model": str(tmp_path / "no-such-folder")}}, references=False)
    made = make_board(tmp_path / "b", suite)
    assert run_cells(made, made.cells(["broken"])) == len(made.folds)
    assert run_cells(made, made.cells(["hyponly-v1"])) == 0
    records = read_records(made.folder)
    failed = [record for record in records if record["status"] == "failed"]
    assert len(failed) == 2 and "cannot be loaded" in failed[0]["error"]
    assert [row.model for row in build_leaderboard(made.folder, made.pool, made.folds, [1]).rows] == ["hyponly-v1"]


def test_boards_of_two_suites_never_mix(board, tmp_path):
    with pytest.raises(UserError, match="is the board of"):
        make_board(board.folder, replace(board.suite, version=2))
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "file").touch()
    with pytest.raises(UserError, match="holds no board"):
        open_board(tmp_path / "x", {}, {})
    copied = tmp_path / "copy"
    open_board(copied, {"suite": "t", "version": 9, "data": "z"}, {})
    (copied / "cells" / "a").mkdir(parents=True)
    write_json(copied / "cells" / "a" / "record.json", read_records(board.folder)[0])
    with pytest.raises(UserError, match="never mix"):
        read_records(copied)


def test_a_lease_is_held_by_one_and_taken_over_when_its_heart_stops(board, tmp_path):
    open_board(tmp_path / "b", {"suite": "t"}, {})
    (tmp_path / "b" / "cells" / "c").mkdir(parents=True)
    with lease(tmp_path / "b", "c") as first:
        with lease(tmp_path / "b", "c") as second:
            assert first and not second
        old = time.time() - STALE_S - 1
        os.utime(tmp_path / "b" / "cells" / "c" / "lease.json", (old, old))
        with lease(tmp_path / "b", "c") as third:
            assert third
    assert not (tmp_path / "b" / "cells" / "c" / "lease.json").exists()


def test_d10_nothing_of_the_held_out_rows_reaches_what_trains_or_chooses(board):
    """Poison every held-out row; the rows that train and choose do not change."""
    fold = board.folds["out:culture_society"]
    cell = next(cell for cell in board.cells(["hyponly-v1"]) if cell.fold == fold.name)
    cell = replace(cell, config=replace(cell.config, augment="premise_swap=1+1"))
    poison = pl.col("domains").list.contains("culture_society")
    frame = board.pool.frame.with_columns(
        pl.when(poison).then(pl.lit("POISON")).otherwise(pl.col(name)).alias(name) for name in ("premise", "hypothesis")
    )
    poisoned = replace(board, pool=replace(board.pool, frame=frame))
    clean, dirty = fold_data(board, cell), fold_data(poisoned, cell)
    assert clean.train.equals(dirty.train) and clean.scored["id_val"].equals(dirty.scored["id_val"])
    assert "POISON" in set(dirty.scored["test"]["premise"]) and clean.train.height > len(fold.train)


# Board


def test_the_board_orders_blanks_and_compares(board):
    made = build_leaderboard(board.folder, board.pool, board.folds, board.suite.seeds)
    values = [row.figures["macro_f1"].value for row in made.rows]
    assert values == sorted(values, reverse=True) and set(made.rows[0].figures) == set(COLUMNS)
    by_name = {row.model: row for row in made.rows}
    blind = by_name["hyponly-v1"]
    assert blind.figures["discrimination"].value == 0 and blind.figures["premise_gain"] is None
    table = pl.read_parquet(
        next(
            board.folder / "cells" / record["cell_id"] / "predictions" / "test.parquet"
            for record in read_records(board.folder)
            if (record["model"], record["fold"]) == ("overlap-v1", "out:administrative_organization")
        )
    )
    accuracy = (table["predicted"] == table["label"].cast(pl.String)).mean()
    figure = by_name["overlap-v1"].domains["administrative_organization"].accuracy
    assert figure.value == pytest.approx(accuracy) and (figure.low is None) == (figure.num_laws < 5)
    out = np.mean([by_name["overlap-v1"].domains[d].accuracy.value for d in made.core])
    assert by_name["overlap-v1"].figures["accuracy"].value == pytest.approx(out)
    for row in made.rows:
        assert row.figures["law_effect"] is not None and not row.missing


def test_a_missing_cell_blanks_its_averages_and_says_why(board, tmp_path):
    suite = replace(board.suite, references=False)
    made = make_board(tmp_path / "b", suite)
    cells = made.cells(["hyponly-v1"])
    assert run_cells(made, cells[:1]) == 0
    (row,) = build_leaderboard(made.folder, made.pool, made.folds, suite.seeds).rows
    assert row.figures["accuracy"] is None and row.figures["pooled"] is None and row.rank is None and row.worst is None
    assert row.missing == (f"{cells[1].fold}, seed 1: not run",)
    assert row.domains[cells[0].fold.removeprefix("out:")].accuracy is not None


def test_the_commands_check_plan_run_and_run_again(tmp_path, capsys):
    file = tmp_path / "s.yaml"
    file.write_text(yaml.safe_dump(SUITE | {"references": False}), encoding="utf-8")
    assert main(["cross-domain", "check", "--suite", str(file), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert [fold["fold"] for fold in report["folds"]] == ["out:administrative_organization", "out:culture_society"]
    assert main(["cross-domain", "plan", "--suite", str(file), "--models", "hyponly-v1"]) == 0
    run = ["cross-domain", "run", "--suite", str(file), "--models", "hyponly-v1", "--board", str(tmp_path / "b")]
    assert main(run) == 0 and "2 of 2 cells are finished" in capsys.readouterr().out
    assert main(run) == 0 and "0 of 2 cells to run" in capsys.readouterr().out
    assert main([*run[:5], "a,a"]) == 2
    assert main(["cross-domain", "check", "--suite", str(tmp_path / "none.yaml")]) == 2
    assert reopen_board(tmp_path / "b").suite.name == "t"


@pytest.mark.parametrize(
    "changes",
    [
        {"scheme": "leave-domain-group-out", "groups": {"public": DOMAINS, "private": ["enterprise", "civil_rights"]}},
        {"scheme": "disjoint", "parts": {"train": [DOMAINS[0]], "dev": [DOMAINS[1]], "test": ["procedural_law"]}},
        {"scheme": "leave-law-out"},
        {"scheme": "in-domain"},
    ],
    ids=lambda changes: changes["scheme"],
)
def test_every_scheme_gives_a_board(changes, tmp_path):
    made = make_board(tmp_path / "b", check_suite(SUITE | {"domains": "all", "references": False} | changes, "x"))
    assert run_cells(made, made.cells(["majority"])) == 0
    (row,) = build_leaderboard(made.folder, made.pool, made.folds, [1]).rows
    figures = [domain.accuracy for domain in row.domains.values()]
    assert figures and all(figure is not None for figure in figures) and row.figures["pooled"] is not None
    assert main(["leaderboard", str(made.folder), "--html", str(tmp_path / "b.html")]) == 0


def test_a_pairwise_board_is_a_transfer_matrix(tmp_path, monkeypatch):
    from lightning_nli.crossdomain import folds

    monkeypatch.setattr(folds, "MIN_PAIRWISE_ROWS", 60)
    made = make_board(tmp_path / "b", check_suite(SUITE | {"scheme": "pairwise"}, "x"))
    assert len(made.folds) >= 2 and run_cells(made, made.cells(["majority"])) == 0
    (row,) = build_leaderboard(made.folder, made.pool, made.folds, [1]).rows
    assert row.figures["accuracy"] is None
    assert main(["leaderboard", str(made.folder), "--html", str(tmp_path / "b.html"), "--format", "json"]) == 0
    assert next(iter(made.folds)).removeprefix("from:") in (tmp_path / "b.html").read_text(encoding="utf-8")


def test_a_model_and_its_twin_are_one_recipe_whatever_objective_swaps_and_seed_say():
    from dataclasses import asdict

    from lightning_nli.config import hypothesis_only_twin, parse_config
    from lightning_nli.crossdomain.leaderboard import _twin_key

    flags = ["--model", "tiny", "--augment", "premise_swap=1+1", "--objective", "reweight", "--seed", "7"]
    config = parse_config(flags)
    assert _twin_key(asdict(config)) == _twin_key(asdict(hypothesis_only_twin(config)))
    assert _twin_key(asdict(config)) != _twin_key(asdict(parse_config([*flags, "--epochs", "9"])))
