"""What chooses checkpoints: a training domain left out, or an oracle that is never ranked."""

from __future__ import annotations

import csv
import io
import json
import time
from dataclasses import replace

import polars as pl
import pytest
from boards import Page
from pools import NEAR, pool_of, row
from rich.console import Console

from lightning_nli.cli.main import main
from lightning_nli.crossdomain import board_text, render
from lightning_nli.crossdomain.check import fold_problems
from lightning_nli.crossdomain.folds import Removal, leave_domains_out, leave_one_domain_out
from lightning_nli.crossdomain.leaderboard import build_leaderboard
from lightning_nli.crossdomain.page import board_page
from lightning_nli.crossdomain.pool import Pool, build_pool
from lightning_nli.crossdomain.records import read_records
from lightning_nli.crossdomain.runner import Board, fold_data, make_board, run_cells
from lightning_nli.crossdomain.selection import select
from lightning_nli.crossdomain.suite import build_folds, check_suite
from lightning_nli.data.sample import sample_corpus
from lightning_nli.training.signals import REQUEST
from lightning_nli.types import BINARY, UserError

DOMAINS = ["insurance", "culture_society"]
SUITE = {"name": "t", "version": 1, "data": "sample", "domains": DOMAINS, "reference_folds": 2, "train_rows": 200}
SMALL = SUITE | {"data": "sample:1200", "domains": ["administrative_organization", "culture_society"]}
LEFT_OUT, ORACLE = {"selection": "leave_one_out"}, {"selection": "oracle"}


@pytest.fixture(scope="module")
def sample() -> Pool:
    return build_pool(sample_corpus(3600), BINARY)


@pytest.fixture
def drawn() -> Pool:
    """`education` alone is large enough to choose; a row of its laws and one near its premises carry other domains."""
    education = [row(f"e{n}", f"E{n % 4}", ["education"]) for n in range(110)]
    transport = [row(f"t{n}", f"T{n}", ["transportation"]) for n in range(60)]
    return pool_of(
        row("i1", "A", ["insurance"]),
        row("law of i1", "A", ["education"]),
        row("law", "E1", ["transportation"]),
        row("e-near", "E2", ["education"], NEAR.format("one")),
        row("near", "T99", ["transportation"], NEAR.format("two")),
        *education,
        *transport,
    )


def test_one_training_domain_chooses_and_leaves_training_with_all_guards(drawn):
    before = leave_domains_out(drawn, {"insurance": ["insurance"]}, seed=1)
    (fold,) = select(drawn, before, "leave_one_out", seed=1)
    assert fold.choosers == ("education",) and fold.test == ("i1",)
    assert set(fold.id_val) == {"e-near", *(f"e{n}" for n in range(110))}
    assert set(fold.train) == {f"t{n}" for n in range(60)}
    assert set(fold.removed[Removal.LAW]) == {"law of i1"} and set(fold.removed[Removal.CHOOSES_LAW]) == {"law"}
    assert set(fold.removed[Removal.CHOOSES_PREMISE]) == {"near"}
    assert not fold_problems(drawn, fold)
    for planted, problem in {
        "law": "laws that choose",
        "near": "ones that choose",
        "e1": "domain that chooses",
    }.items():
        assert any(problem in text for text in fold_problems(drawn, replace(fold, train=(*fold.train, planted))))
    assert select(drawn, before, "oracle", seed=1) == before == select(drawn, before, "id_val", seed=1)


def test_d10_the_domain_that_chooses_is_no_held_out_one_and_folds_do_not_depend_on_row_order(sample):
    groups = {"a": ["insurance", "education"], "b": ["culture_society"], "c": ["securities"]}
    shuffled = Pool(sample.frame.sample(fraction=1, shuffle=True, seed=3), BINARY, 0)
    folds, others = (
        select(pool, leave_domains_out(pool, groups, seed=1), "leave_one_out", seed=1) for pool in (sample, shuffled)
    )
    for fold, other in zip(folds, others, strict=True):
        assert fold.train == other.train and set(fold.id_val) == set(other.id_val) and fold.choosers == other.choosers
        rows = sample.compared_rows(fold.id_val)
        assert not set(rows["names"].explode()) & set(fold.held_out) and rows.height >= 100
        assert rows["names"].list.contains(fold.choosers[0]).all() and not fold_problems(sample, fold)
    drawn = {
        select(sample, leave_domains_out(sample, {"c": ["securities"]}, seed=seed), "leave_one_out", seed=seed)[
            0
        ].choosers
        for seed in range(6)
    }
    assert len(drawn) > 1


def test_every_training_set_is_cut_to_the_smallest_that_the_selection_leaves(sample):
    sizes = {}
    for selection in ("id_val", "leave_one_out", "oracle"):
        suite = check_suite(SUITE | {"train_rows": None, "selection": selection}, "x")
        folds = build_folds(suite, sample)
        assert {fold.name.partition(":")[0] for fold in folds} == {"out", "premise", "law"}
        (sizes[selection],) = {len(fold.train) for fold in folds}
        assert [bool(fold.choosers) for fold in folds] == [
            selection == "leave_one_out" and bool(f.held_out) for f in folds
        ]
    whole = select(sample, leave_one_domain_out(sample, seed=1, domains=DOMAINS), "leave_one_out", seed=1)
    assert sizes["leave_one_out"] == min(len(fold.train) for fold in whole) < sizes["id_val"] == sizes["oracle"]


def test_disjoint_keeps_its_own_dev_rows_and_other_schemes_are_refused(sample):
    parts = {"train": ["education", "investment", "enterprise"], "dev": ["insurance"], "test": ["real_estate"]}
    made = SUITE | {"scheme": "disjoint", "parts": parts, "train_rows": None}
    (usual,), (left_out,) = (build_folds(check_suite(made | more, "x"), sample) for more in ({}, LEFT_OUT))
    assert usual == left_out and usual.choosers == ("insurance",) and not fold_problems(sample, usual)
    for scheme in ("pairwise", "leave-law-out", "in-domain"):
        with pytest.raises(UserError, match=f"x.yaml: selection leave_one_out .* {scheme} has none"):
            check_suite(SUITE | LEFT_OUT | {"scheme": scheme}, "x.yaml")
    with pytest.raises(UserError, match="selection 'best' is none of id_val, last, leave_one_out, oracle"):
        check_suite(SUITE | {"selection": "best"}, "x.yaml")
    small = pool_of(*(row(f"r{n}", f"L{n}", [("insurance", "education")[n % 2]]) for n in range(40)))
    with pytest.raises(UserError, match="no training domain with 100 rows and 3 laws"):
        build_folds(check_suite(SUITE | LEFT_OUT | {"domains": ["insurance"]}, "x"), small)


def test_held_out_rows_choose_under_an_oracle_alone(sample, tmp_path):
    """D10: poison every held-out row and look at what chooses."""
    poison = pl.col("domains").list.contains("insurance")
    frame = sample.frame.with_columns(hypothesis=pl.when(poison).then(pl.lit("POISON")).otherwise("hypothesis"))
    for selection, sees in {"id_val": False, "leave_one_out": False, "oracle": True}.items():
        suite = check_suite(SUITE | {"selection": selection, "references": False}, "x")
        made = Board(tmp_path, suite, sample, {fold.name: fold for fold in build_folds(suite, sample)})
        poisoned = replace(made, pool=replace(sample, frame=frame))
        cell = next(cell for cell in made.cells(["hyponly-v1"]) if cell.fold == "out:insurance")
        data = fold_data(poisoned, cell)
        assert ("POISON" in set(data.scored["id_val"]["hypothesis"])) is sees
        assert "POISON" not in set(data.train["hypothesis"]) and "POISON" in set(data.scored["test"]["hypothesis"])


def test_a_record_says_which_domains_chose_and_a_cells_time_limit_is_its_own(tmp_path, monkeypatch):
    monkeypatch.setattr(REQUEST, "started", time.monotonic() - 10_000)  # a runner that began long ago
    models = {"tiny": {"model": "tiny", "max_length": 32, "epochs": 1, "max_time": "5000"}}
    small = {"data": "sample:600", "domains": ["culture_society"], "references": False, "train_rows": 64}
    made = make_board(tmp_path / "b", check_suite(SUITE | ORACLE | small | {"models": models}, "x"))
    assert run_cells(made, made.cells(["tiny"])) == 0
    (record,) = read_records(made.folder)
    rows = made.pool.compared_rows(made.folds["out:culture_society"].test)
    assert record["selection_domains"] == sorted(rows["names"].explode().unique())
    assert record["held_out"] == ["culture_society"]
    scores, selection = record["result"]["scores"], record["result"]["selection"]
    assert selection["split"] == "id_val" and selection["value"] == pytest.approx(scores["test"]["macro_f1"], abs=1e-6)
    assert scores["id_val"]["confusion"] == scores["test"]["confusion"]


@pytest.fixture(scope="module")
def boards(tmp_path_factory):
    """The same two models under `id_val` and under an oracle."""
    made = {}
    for selection in ("id_val", "oracle"):
        suite = check_suite(SMALL | {"selection": selection, "references": False}, "x")
        board = make_board(tmp_path_factory.mktemp("boards") / selection, suite)
        assert run_cells(board, board.cells(["overlap-v1", "hyponly-v1"])) == 0
        made[selection] = board
    return made


def built(board):
    return build_leaderboard(board.folder, board.pool, board.folds, board.suite.seeds)


def test_an_oracles_board_says_so_and_ranks_nobody(boards):
    usual, oracle = built(boards["id_val"]), built(boards["oracle"])
    assert all(row.rank for row in usual.rows) and usual.comparisons  # the same models can be ranked
    assert [row.model for row in oracle.rows] == ["hyponly-v1", "overlap-v1"] and not oracle.comparisons
    assert all(row.rank is None and row.figures["macro_f1"] is not None for row in oracle.rows)
    warning = board_text.ORACLE_WARNING
    values = render.board_json(oracle)
    assert values["warning"] == warning and not values["comparisons"] and render.board_json(usual)["warning"] is None
    assert [model["rank"] for model in values["models"]] == [None, None]
    lines = list(csv.DictReader(io.StringIO(render.board_csv(oracle))))
    assert all(
        not line["rank_best"] and not line["rank_worst"] and f"rank: {warning}" in line["notes"] for line in lines
    )
    printed = io.StringIO()
    Console(file=printed, width=400).print(render.board_table(oracle, 400))
    page = board_page(oracle, published=None)
    for text in (printed.getvalue(), render.board_markdown(oracle), page):
        shown = " ".join(text.split())
        assert warning in shown and "selection oracle" in shown and "never ranked" in shown
    for text in (render.board_markdown(usual), board_page(usual, published=None)):
        assert warning not in text
    assert page.index(warning) < page.index('id="ours"') and 'class="alarm"' in page
    table = Page(page).tables
    assert all(cells[1].startswith("–") for cells in table["ours"]) and "Significantly" not in page


def test_boards_of_two_selections_never_mix(boards, tmp_path, capsys):
    with pytest.raises(UserError, match="is the board of"):
        make_board(boards["id_val"].folder, boards["oracle"].suite)
    file = tmp_path / "s.yaml"
    file.write_text(json.dumps(SMALL | {"references": False}), encoding="utf-8")
    run = ["cross-domain", "run", "--suite", str(file), "--models", "overlap-v1,hyponly-v1"]
    assert main([*run, "--board", str(boards["oracle"].folder), "--selection", "oracle"]) == 0
    assert "0 of 4 cells to run" in capsys.readouterr().out
    assert main([*run, "--board", str(boards["oracle"].folder)]) == 2
    assert main([*run, "--selection", "best"]) == 2
    assert "is none of id_val, last, leave_one_out, oracle" in capsys.readouterr().err
    assert "--selection oracle" in board_text.rerun_command(built(boards["oracle"]), built(boards["oracle"]).rows[0])


def test_the_check_command_names_the_domain_that_chooses_and_an_oracle(tmp_path, capsys):
    file = tmp_path / "s.yaml"
    file.write_text(json.dumps(SUITE | {"references": False}), encoding="utf-8")
    check = ["cross-domain", "check", "--suite", str(file)]
    assert main([*check, "--selection", "leave_one_out", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["selection"] == "leave_one_out" and not report["problems"]
    for fold in report["folds"]:
        (domain,) = fold["chosen_by"]
        assert domain != fold["fold"].removeprefix("out:") and fold["removed"]["its law chooses"] > 0
    assert main([*check, "--selection", "oracle"]) == 0
    assert "the tested rows choose the checkpoints" in " ".join(capsys.readouterr().out.split())
