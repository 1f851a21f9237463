"""Whole boards: every fold of the embedded corpus, parts of a board run apart, and rows that must not be seen."""

from __future__ import annotations

import json
import random
import shutil
from dataclasses import asdict, replace
from pathlib import Path

import polars as pl
import pytest
from boards import board_row, leaderboard, small_board

from lightning_nli.cli.main import main
from lightning_nli.crossdomain import board_text, render
from lightning_nli.crossdomain.leaderboard import build_leaderboard
from lightning_nli.crossdomain.page import board_page
from lightning_nli.crossdomain.records import read_boards, read_json, read_records, write_json
from lightning_nli.crossdomain.runner import Board, make_board, run_cells
from lightning_nli.crossdomain.suite import check_judge, check_suite
from lightning_nli.types import DOMAINS, UserError

SUITE = {"name": "t", "version": 1, "data": "sample:1200", "references": False, "train_rows": 64}
TINY = {"model": "tiny", "max_length": 32, "epochs": 2, "lr": 1e-3}
PAIR = ["administrative_organization", "culture_society"]


@pytest.mark.slow
def test_all_folds_of_the_embedded_corpus_with_a_small_model(tmp_path):
    suite = check_suite(SUITE | {"models": {"tiny": TINY | {"epochs": 1}}}, "x")
    made = make_board(tmp_path / "b", suite)
    assert len(made.folds) == len(DOMAINS) - 1  # all but `other`
    assert run_cells(made, made.cells(["tiny"])) == 0
    (row,) = build_leaderboard(made.folder, made.pool, made.folds, suite.seeds).rows
    assert not row.missing and set(row.domains) == set(DOMAINS) - {"other"}
    for name in ("discrimination", "random_swap", "accuracy", "macro_f1", "pooled"):
        assert row.figures[name].value is not None, name
    records = read_records(made.folder)
    memberships = made.pool.frame.explode("domains").filter(pl.col("domains") != "other").height
    assert sum(record["result"]["scores"]["test"]["num_examples"] for record in records) == memberships
    page = tmp_path / "board.html"
    assert main(["leaderboard", str(made.folder), "--html", str(page)]) == 0
    assert "Baselines not on this board: majority" in page.read_text(encoding="utf-8")


@pytest.mark.slow
def test_d10_training_and_choosing_are_the_same_whatever_stands_in_the_held_out_rows(tmp_path):
    """Texts and labels of every held-out row are replaced: all that is trained and chosen stays bit for bit."""
    suite = check_suite(SUITE | {"domains": ["culture_society"], "models": {"tiny": TINY}}, "x")
    made = make_board(tmp_path / "clean", suite)
    is_out = pl.col("domains").list.contains("culture_society")
    other = pl.col("label").cast(pl.String).replace({"entailment": "non_entailment", "non_entailment": "entailment"})
    frame = made.pool.frame.with_columns(
        *(
            pl.when(is_out).then(pl.format("POISON {}", name)).otherwise(pl.col(name)).alias(name)
            for name in ("premise", "hypothesis")
        ),
        label=pl.when(is_out)
        .then(other)
        .otherwise(pl.col("label").cast(pl.String))
        .cast(made.pool.frame["label"].dtype),
    )
    (tmp_path / "poisoned" / "cells").mkdir(parents=True)
    poisoned = Board(tmp_path / "poisoned", suite, replace(made.pool, frame=frame), made.folds)
    (cell,) = made.cells(["tiny"])
    results = []
    for board in (made, poisoned):
        write_json(board.folder / "suite.json", {"key": suite.key(board.pool), "suite": asdict(suite)})
        assert run_cells(board, [cell]) == 0
        (record,) = read_records(board.folder)
        results.append(record["result"])
    clean, dirty = results
    assert clean["scores"]["test"] != dirty["scores"]["test"]  # the poison is there
    assert clean["selection"] == dirty["selection"] and clean["selection"]["split"] == "id_val"
    for name in ("accuracy", "macro_f1", "loss", "confusion", "hypothesis_only"):
        assert clean["scores"]["id_val"][name] == dirty["scores"]["id_val"][name], name
    first, second = (
        pl.read_parquet(board.folder / "cells" / cell.cell_id / "predictions" / "id_val.parquet").select("^prob_.*$")
        for board in (made, poisoned)
    )
    assert first.equals(second)


# Boards that are parts of one


@pytest.fixture(scope="module")
def halves(tmp_path_factory) -> list[Board]:
    """The cells of one suite, each on one of two boards."""
    folder = tmp_path_factory.mktemp("halves")
    suite = check_suite(SUITE | {"domains": PAIR}, "x")
    boards = [make_board(folder / name, suite) for name in ("one", "two")]
    for board, cells in zip(boards, (slice(0, 1), slice(1, 2)), strict=True):
        assert run_cells(board, board.cells(["hyponly-v1"])[cells]) == 0
    return boards


def test_parts_of_a_board_are_one_board(halves, tmp_path, capsys):
    one, two = halves
    whole = make_board(tmp_path / "whole", one.suite)
    assert run_cells(whole, whole.cells(["hyponly-v1"])) == 0
    folds, seeds = whole.folds, whole.suite.seeds
    (wanted,) = build_leaderboard(whole.folder, whole.pool, folds, seeds).rows
    (half,) = build_leaderboard(one.folder, one.pool, folds, seeds).rows
    (both,) = build_leaderboard(one.folder, one.pool, folds, seeds, parts=[two.folder, whole.folder]).rows
    assert half.missing and half.figures["accuracy"] is None
    assert both.figures == wanted.figures and both.domains == wanted.domains and not both.missing
    assert main(["leaderboard", str(one.folder), str(two.folder), "--format", "jsonl"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert lines == [*read_records(one.folder), *read_records(two.folder)]


def test_a_finished_cell_of_another_part_counts_before_a_failed_one(halves, tmp_path):
    failed = tmp_path / "failed"
    shutil.copytree(halves[0].folder, failed)
    (record,) = read_records(failed)
    file = failed / "cells" / record["cell_id"] / "record.json"
    write_json(file, {**record, "status": "failed", "error": "x"})
    (found,) = read_boards([failed, halves[0].folder])
    assert found["status"] == "finished" and Path(found["home"]).is_relative_to(halves[0].folder)


def test_parts_of_other_suites_and_models_under_two_recipes_are_refused(halves, tmp_path):
    one, two = (board.folder for board in halves)
    for change, message in (({"version": 2}, "is the board of"), ({"split_seed": 2}, "one version, but other split_")):
        other = make_board(tmp_path / message[:4], check_suite(SUITE | {"domains": PAIR} | change, "x"))
        with pytest.raises(UserError, match=message):
            read_boards([one, other.folder])
        assert main(["leaderboard", str(one), str(other.folder)]) == 2
    changed = tmp_path / "changed"
    shutil.copytree(two, changed)
    (record,), (second,) = read_records(one), read_records(two)
    (changed / "cells" / "0ther").mkdir()
    write_json(changed / "cells" / "0ther" / "record.json", {**second, "cell_id": "0ther"})
    with pytest.raises(UserError, match=f"two finished cells for {second['fold']}, seed 1"):
        read_boards([one, changed])
    assert record["fold"] != second["fold"]


def test_what_each_rule_took_out_is_listed_and_kept(halves, tmp_path, capsys):
    board = halves[0]
    stored = read_json(board.folder / "folds.json")
    assert [fold["fold"] for fold in stored] == list(board.folds)
    for entry, fold in zip(stored, board.folds.values(), strict=True):
        listed = {reason.value: list(ids) for reason, ids in fold.removed.items() if ids}
        assert entry["removed_ids"] == listed and listed
        assert entry["removed"] == {reason.value: len(ids) for reason, ids in fold.removed.items()}
    file = tmp_path / "s.yaml"
    file.write_text(json.dumps(SUITE | {"domains": PAIR}), encoding="utf-8")
    assert main(["cross-domain", "check", "--suite", str(file), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["folds"] == stored


def test_a_suite_names_the_swaps_and_hard_rows_it_is_scored_under(halves, tmp_path, capsys):
    board = halves[0]
    found = check_judge(board.suite, board.judge)
    swaps = board.judge.swaps
    other = replace(board.judge, swaps=swaps.head(swaps.height - 1), hard_ids=frozenset(list(board.judge.hard_ids)[1:]))
    changed = check_judge(board.suite, other)
    assert set(found) == {"swap_ids", "hard_ids"} and not set(found.values()) & set(changed.values())
    assert check_judge(replace(board.suite, **found), board.judge) == found
    for name in found:
        suite = replace(board.suite, **(found | {name: changed[name]}))
        file = tmp_path / f"{name}.yaml"
        file.write_text(json.dumps(asdict(suite)), encoding="utf-8")
        made = make_board(tmp_path / name, suite)
        with pytest.raises(UserError, match=f"is for the {name} {changed[name]}, here they are {found[name]}"):
            run_cells(made, made.cells(["hyponly-v1"]))
        assert not read_records(made.folder) and not list(made.folder.glob("cells/*/lease.json"))
        assert main(["cross-domain", "check", "--suite", str(file)]) == 2
        assert found[name] in capsys.readouterr().err


# What a board says beside its figures


def test_a_board_names_the_baselines_it_lacks_and_how_rows_count():
    draw = random.Random(1)
    encoder = leaderboard([board_row("a", draw)])
    said = board_text.missing_baselines(encoder)
    assert "majority, hyponly-v1, overlap-v1, an encoder on hypotheses only (lnli" in said
    assert "--models majority,hyponly-v1,overlap-v1)" in said
    some = small_board(draw)
    assert board_text.missing_baselines(some).startswith("Baselines not on this board: majority, overlap-v1 (lnli")
    linear = [board_row(name, draw, settings={"method": name}) for name in ("majority", "hyponly-v1", "overlap-v1")]
    assert board_text.missing_baselines(leaderboard(linear)) == ""
    for text in (render.board_markdown(encoder).replace("\\", ""), board_page(encoder, published=None)):
        assert said in text and board_text.COUNTING in text
    assert render.board_json(encoder)["missing_baselines"] == said
    assert render.board_json(leaderboard(linear))["missing_baselines"] is None
