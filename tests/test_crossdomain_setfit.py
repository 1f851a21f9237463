"""SetFit on a board: a cell a seed, training variance in the intervals, premise gain against its twin on hypotheses."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest
from tiny_models import stand_in

from lightning_nli.analysis.answers import RunAnswers, find_twin
from lightning_nli.config import ExperimentConfig
from lightning_nli.crossdomain import board_text
from lightning_nli.crossdomain.leaderboard import build_leaderboard
from lightning_nli.crossdomain.records import read_records
from lightning_nli.crossdomain.runner import Board, make_board, run_cells
from lightning_nli.crossdomain.suite import check_suite
from lightning_nli.crossdomain.transfer import transfer_matrices

pytest.importorskip("setfit", reason="setfit is not installed")

SUITE = {
    "name": "t",
    "version": 1,
    "data": "sample:1200",
    "domains": ["culture_society"],
    "references": False,
    "train_rows": 32,
    "seeds": [1, 2],
}


@pytest.fixture(scope="module")
def board(tmp_path_factory) -> Board:
    folder = tmp_path_factory.mktemp("setfit")
    own = {"method": "setfit", "model": str(stand_in("all-minilm-l12", folder / "model")), "accelerator": "cpu"}
    own |= {"max_length": 24, "num_iterations": 1, "batch_size": 16, "lr": 1e-3}
    models = {"few": own, "few-h": own | {"segments": "hypothesis"}}
    made = make_board(folder / "board", check_suite(SUITE | {"models": models}, "x"))
    assert run_cells(made, made.cells(["few", "few-h", "hyponly-v1"])) == 0
    return made


@pytest.mark.slow
def test_setfit_has_a_cell_a_seed_and_its_twin_is_found(board):
    records = read_records(board.folder)
    cells = [(record["model"], record["seed"]) for record in records]
    assert sorted(cells) == [("few", 1), ("few", 2), ("few-h", 1), ("few-h", 2), ("hyponly-v1", 1)]
    assert all(record["result"]["selection"] is None and not record["selection_domains"] for record in records)
    rows = {row.model: row for row in build_leaderboard(board.folder, board.pool, board.folds, [1, 2]).rows}
    assert not any(row.missing for row in rows.values())
    gain, seeds = rows["few"].figures["premise_gain"], [0.0, 0.0]
    for record in records:
        if record["model"] != "hyponly-v1":
            sign = 1 if record["model"] == "few" else -1
            seeds[record["seed"] - 1] += sign * record["result"]["scores"]["test"]["accuracy"]
    assert gain.value == pytest.approx(sum(seeds) / 2)
    assert {row.figures["accuracy"].note for row in rows.values()} == {""}  # training variance is in, or there is none
    assert rows["few-h"].figures["premise_gain"] is None
    assert [board_text.kind(rows[name]) for name in ("few", "few-h", "hyponly-v1")] == list(board_text.KINDS)


@pytest.mark.slow
def test_a_missing_seed_of_setfit_blanks_its_figures(board):
    made = build_leaderboard(board.folder, board.pool, board.folds, [1, 2, 3])
    rows = {row.model: row for row in made.rows}
    assert rows["few"].missing == ("out:culture_society, seed 3: not run",) and rows["few"].figures["accuracy"] is None
    assert rows["hyponly-v1"].figures["accuracy"] is not None and not rows["hyponly-v1"].missing
    lacks_twin = board_text.why_blank(made, replace(rows["few"], missing=()), "premise_gain")
    assert lacks_twin == "the board has no complete run of the same encoder and recipe on hypotheses only"


def test_transfer_of_setfit_averages_its_seeds():
    def record(seed: int, accuracy: float) -> dict[str, object]:
        result = {"config": {"method": "setfit"}}
        head = {"model": "few", "fold": "from:insurance", "seed": seed, "status": "finished"}
        return head | {"domains": {"tax_fees": {"accuracy": accuracy}}, "result": result}

    (matrix,) = transfer_matrices([record(1, 0.8), record(2, 0.9)], [1, 2])
    assert matrix.accuracy["insurance", "tax_fees"] == pytest.approx(0.85)
    (matrix,) = transfer_matrices([record(1, 0.8)], [1, 2])
    assert matrix.accuracy["insurance", "tax_fees"] is None


def test_a_report_finds_the_twin_of_a_setfit_run_and_names_both_apart():
    def run(**settings: object) -> RunAnswers:
        return RunAnswers("r", Path("r"), ExperimentConfig(method="setfit", **settings), {}, pl.DataFrame())

    full, twin, other = run(), run(segments="hypothesis", run_dir="x"), run(segments="hypothesis", seed=2)
    assert find_twin(full, [full, other, twin]) is twin
    assert find_twin(full, [full, other]) is None and find_twin(twin, [full, twin]) is None
    assert full.method == "e5-small by SetFit" and twin.method == "e5-small by SetFit, hypothesis only"
