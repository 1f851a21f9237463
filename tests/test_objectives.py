"""`--objective`: each loss equals its published formula, groups are what they say, experts see no law twice."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest
import pytorch_lightning as lightning
import torch
from test_module import LENGTHS, make_encoder, make_split, make_trainer

from lightning_nli.baselines import cross_fitted
from lightning_nli.batch import PackedBatch
from lightning_nli.cli.main import main
from lightning_nli.config import ExperimentConfig, OptimConfig, config_help, hypothesis_only_twin, parse_config
from lightning_nli.config_augment import AugmentSpec
from lightning_nli.config_objective import OBJECTIVES, ObjectiveSpec, parse_objective
from lightning_nli.data.datamodule import NLIDataModule
from lightning_nli.data.groups import MIN_GROUP_ROWS, RowGroups, grouped_order
from lightning_nli.data.packing import MicroStep, PackPlan, collate_pack, count_micro_steps, plan_steps
from lightning_nli.data.sample import sample_corpus
from lightning_nli.data.schema import EXAMPLE_SCHEMA
from lightning_nli.models.module import NLIModule
from lightning_nli.models.objectives import GroupDRO, Objective, ProductOfExperts, Ranking, Reweight, VREx
from lightning_nli.swaps import augment_with_swaps, rows_to_add
from lightning_nli.training.corpora import RunData
from lightning_nli.training.objective_data import (
    SMALL_DOMAINS,
    bias_groups,
    build_objective,
    domain_groups,
    expert_log_probabilities,
    label_weights,
    row_bundles,
    swap_sources,
)
from lightning_nli.types import BINARY, IGNORE_INDEX, UserError

YES, NO = "entailment", "non_entailment"
ALONE = torch.Tensor.clone  # the sum over one rank


# Settings


def test_an_objective_is_one_text():
    assert parse_objective("cross_entropy") == ObjectiveSpec("cross_entropy")
    assert parse_objective("group_dro:domain") == ObjectiveSpec("group_dro", "domain", 0.01)
    assert parse_objective("group_dro:bias=0.5") == ObjectiveSpec("group_dro", "bias", 0.5)
    assert parse_objective("vrex=1e-3") == ObjectiveSpec("vrex", "domain", 0.001)
    assert parse_objective("ranking=0.5") == ObjectiveSpec("ranking", None, 0.5)
    assert parse_objective("ranking:margin") == ObjectiveSpec("ranking", None, 1.0, 1.0)
    assert parse_config(["--objective", "vrex=10", "--batch-size", "64"]).objective == "vrex=10"


@pytest.mark.parametrize(
    "text",
    "- erm vrex= vrex=x vrex=0 vrex=-1 vrex=nan vrex=1.2.3 vrex=1e999 reweight=1 group_dro group_dro:law "
    "group_dro:bias= VREX".split(),
)
def test_an_unknown_objective_is_refused_with_the_choices(text):
    with pytest.raises(UserError) as caught:
        parse_objective(text)
    assert f"--objective '{text}'" in str(caught.value)
    for name in OBJECTIVES:
        assert name in str(caught.value)


def test_the_help_names_every_objective_and_its_default(capsys):
    shown = " ".join(config_help().split())
    for name, spec in OBJECTIVES.items():
        assert f"`{name}" in shown
        if spec.strength is not None:
            assert f"by default {spec.strength:g}" in shown
    assert main(["fit", "--data", "sample:40", "--objective", "irm"]) == 2
    assert "group_dro:domain[=ETA] (ETA above 0, by default 0.01)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("--objective ranking", "compares rows with their swaps, and --augment is none"),
        ("--objective ranking --augment premise_swap=1+1 --segments hypothesis", "are the same text; add premise"),
        (
            "--objective ranking --augment premise_swap=2+2 --batch-size 4",
            "are 5 rows of one pack; take --batch-size 5",
        ),
        ("--objective ranking --augment premise_swap=2+2 --max-tokens 512", "5 segments of .* take --max-tokens 1280"),
        ("--augment premise_swap=1+1,balance=weight --objective reweight", "take balance=sample"),
        ("--augment premise_swap=1+1,balance=weight --objective vrex", "weighs or draws rows in a way of its own"),
        ("--augment premise_swap=1+1,balance=weight --method setfit", "which weighs no rows"),
        ("--augment premise_swap=1+x", r"premise_swap=H\+R"),
        ("--objective vrex --accumulate 2", "--accumulate 2: the weight of each group follows from all rows"),
        ("--objective group_dro:bias --max-tokens 512", "--max-tokens 512: every optimizer step must hold rows"),
        ("--objective domain_balanced --max-tokens 512", "give --batch-size instead"),
        ("--objective vrex --method majority", "objective"),
    ],
)
def test_what_cannot_go_with_an_objective_is_refused(flags, said):
    with pytest.raises(UserError, match=said):
        parse_config(flags.split())


def test_the_rest_goes_with_an_objective():
    parse_config("--objective domain_balanced --accumulate 2".split())
    parse_config("--objective product_of_experts --accumulate 2 --max-tokens 512".split())
    parse_config(
        "--objective ranking --augment premise_swap=1+0,balance=weight --accumulate 2 --max-tokens 512".split()
    )
    twin = hypothesis_only_twin(ExperimentConfig(objective="reweight"))
    assert twin == hypothesis_only_twin(ExperimentConfig())  # premise gain has one measure


# Formulas


def make_batch(labels: list[int], rows: list[int] | None = None, total: int | None = None) -> PackedBatch:
    scored = sum(label != IGNORE_INDEX for label in labels)
    return PackedBatch(
        input_ids=torch.zeros(len(labels), dtype=torch.int64),
        position_ids=torch.zeros(len(labels), dtype=torch.int64),
        token_type_ids=None,
        cu_seqlens=torch.arange(len(labels) + 1, dtype=torch.int32),
        max_seqlen=1,
        labels=torch.tensor(labels),
        example_ids=torch.tensor(list(range(len(labels))) if rows is None else rows),
        step_num_segments=scored if total is None else total,
    )


def logits_of(losses: list[float]) -> torch.Tensor:
    """Logits whose cross-entropies at label 0 are `losses`."""
    right = torch.exp(-torch.tensor(losses, dtype=torch.float64))
    return torch.stack([right.log(), (1 - right).log()], -1).float()


def test_product_of_experts_by_hand():
    """p = (1/2, 1/2) leaves the expert's answer; p = (3/4, 1/4) with b = (1/4, 3/4) gives (1/2, 1/2)."""
    logits = torch.tensor([[7.0, 7.0], [3.0, 1.0]])
    logits[1] = torch.tensor([0.75, 0.25]).log() + 5  # a constant changes nothing
    loss = ProductOfExperts(np.log([[0.9, 0.1], [0.25, 0.75]]))
    found = loss.share(logits, make_batch([1, 0]), ALONE)
    assert float(found) == pytest.approx((-math.log(0.1) - math.log(0.5)) / 2, rel=1e-6)


def test_reweight_by_hand():
    """Weights 1 - b(label) = 0.1, 0.9, 0.5, whose mean is 0.5: a row's loss counts 0.2, 1.8, 1 times."""
    loss = Reweight(np.log([[0.9, 0.1], [0.1, 0.9], [0.5, 0.5]]), np.array([0, 0, 1]))
    logits = logits_of([1.0, 2.0, 0.5])
    logits[2] = logits[2].flip(-1)  # its label is 1
    found = loss.share(logits, make_batch([0, 0, 1]), ALONE)
    assert float(found) == pytest.approx((0.2 * 1.0 + 1.8 * 2.0 + 1.0 * 0.5) / 3, rel=1e-6)
    second = loss.share(logits[1:2], make_batch([0], rows=[1]), ALONE)
    assert float(second) == pytest.approx(1.8 * 2.0, rel=1e-6)  # the same weight in another batch


# Row 3 belongs half to the first and half to the second group. Risks with the losses below: (0.1 + 0.4 + 0.15) / 2.5 =
# 0.26, (0.9 + 0.15) / 1.5 = 0.7, and 0.5.
WEIGHTS = np.array([[1, 0, 0], [1, 0, 0], [0, 1, 0], [0.5, 0.5, 0], [0, 0, 1]], np.float32)
LOSSES = [0.1, 0.4, 0.9, 0.3, 0.5]


def test_vrex_by_hand():
    """Risks 0.26, 0.7, 0.5: their mean is 1.46 / 3; distances from it -0.68 / 3, 0.64 / 3, 0.04 / 3; beta 2."""
    found = VREx(WEIGHTS, 2.0).share(logits_of(LOSSES), make_batch([0] * 5), ALONE)
    assert float(found) == pytest.approx(1.46 / 3 + 2 * (0.68**2 + 0.64**2 + 0.04**2) / 27, rel=1e-6)


def test_group_dro_by_hand_over_two_steps():
    """Risks 1 and 1/2, eta = 2 ln 2: exp(eta R) = 4 and 2. q: (1, 1)/2 -> (4, 2)/6 -> (16, 4)/20."""
    loss = GroupDRO(np.eye(2, dtype=np.float32), 2 * math.log(2))
    first = loss.share(logits_of([1.0, 0.5]), make_batch([0, 0]), ALONE)
    assert float(first) == pytest.approx(2 / 3 * 1 + 1 / 3 * 0.5, rel=1e-6)
    second = loss.share(logits_of([1.0, 0.5]), make_batch([0, 0]), ALONE)
    assert float(second) == pytest.approx(0.8 * 1 + 0.2 * 0.5, rel=1e-6)
    assert loss.state()["group_weights"] == pytest.approx([0.8, 0.2], rel=1e-6)


def direct_vrex(risks: torch.Tensor) -> torch.Tensor:
    return risks.mean() + 2.0 * ((risks - risks.mean()) ** 2).mean()


def direct_group_dro(risks: torch.Tensor) -> torch.Tensor:
    q = torch.exp(0.7 * risks.detach())
    return ((q / q.sum()) * risks).sum()


def log_odds(*values: float) -> torch.Tensor:
    """Logits of two labels whose log-odds of label 1 are `values`."""
    return torch.tensor([[0.3, 0.3 + value] for value in values])


# Rows 2 and 3 were made from row 0, row 4 from row 1; row 5 is alone.
SOURCES = np.array([-1, -1, 0, 0, 1, -1])


@pytest.mark.parametrize(
    ("margin", "pairs"),
    [
        # Row 0 stands 1.5 above row 2 and 0.5 below row 3; row 1 stands 2 above row 4.
        (None, [math.log(1 + math.exp(-1.5)), math.log(1 + math.exp(0.5)), math.log(1 + math.exp(-2))]),
        (1.0, [0, 1.5, 0]),
        (2.0, [0.5, 2.5, 0]),
    ],
)
def test_ranking_by_hand(margin, pairs):
    """Six rows and three pairs: the mean of the rows' losses, plus a half times the mean of the pairs'."""
    scores, labels = [1.0, 0.5, -0.5, 1.5, -1.5, 0.0], [1, 1, 0, 0, 0, 0]
    rows = [math.log(1 + math.exp(-s if label else s)) for s, label in zip(scores, labels, strict=True)]
    loss = Ranking(SOURCES, 1, 0.5, margin=margin)
    found = loss.share(log_odds(*scores), make_batch(labels), ALONE)
    assert float(found) == pytest.approx(sum(rows) / 6 + 0.5 * sum(pairs) / 3, rel=1e-6)
    shuffled = [4, 3, 0, 5, 2, 1]
    batch = make_batch([labels[row] for row in shuffled], shuffled)
    again = loss.share(log_odds(*(scores[row] for row in shuffled)), batch, ALONE)
    assert float(again) == pytest.approx(float(found), rel=1e-6)


def test_the_score_that_is_ranked_is_the_log_odds_of_entailment():
    """Three labels, entailment in the middle: log(e^2 / (e^1 + e^0.5)) above log(e^0 / (e^1 + e^3))."""
    logits = torch.tensor([[1.0, 2.0, 0.5], [1.0, 0.0, 3.0]])
    own, swapped = 2 - math.log(math.e + math.exp(0.5)), -math.log(math.e + math.exp(3))
    loss = Ranking(np.array([-1, 0]), 1, 1.0)
    plain = Objective().share(logits, make_batch([1, 0]), ALONE)
    found = loss.share(logits, make_batch([1, 0]), ALONE)
    # one pair and two rows: weighed 2 / 1, divided by the two segments
    assert float(found - plain) == pytest.approx(math.log(1 + math.exp(-(own - swapped))), rel=1e-5)


def test_a_pair_weighs_the_same_in_every_step_and_ghosts_cost_nothing():
    """The shares of two ranks, a ghost and two micro-steps have the value and gradient of one batch."""
    torch.manual_seed(2)
    logits = torch.randn(6, 2).requires_grad_()
    labels = [1, 1, 0, 0, 0, 0]
    loss = Ranking(SOURCES, 1, 0.7, weights_N=np.array([1.5, 1.5, 0.75, 0.75, 0.75, 0.75]))
    whole = loss.share(logits, make_batch(labels), ALONE)
    parts = [[5, 3, 0, 2], [], [4, 1]]
    shares = []
    for rows in parts:
        batch = make_batch([labels[row] for row in rows] or [IGNORE_INDEX], rows or [-1], total=6)
        shares.append(loss.share(logits[rows] if rows else torch.ones(1, 2), batch, ALONE))
    assert float(shares[1]) == 0
    assert float(sum(shares)) == pytest.approx(float(whole), rel=1e-6)
    gradients = [torch.autograd.grad(value, logits)[0] for value in (whole, sum(shares))]
    torch.testing.assert_close(*gradients)
    assert gradients[0].abs().min() > 1e-4


def test_row_weights_scale_the_cross_entropy():
    weights = np.array([0.5, 2.0, 0.5])
    for loss in (Objective(weights), ProductOfExperts(np.log(np.full((3, 2), 0.5)), weights)):
        found = loss.share(logits_of([1.0, 2.0, 0.4]), make_batch([0, 0, 0]), ALONE)
        assert float(found) == pytest.approx((0.5 * 1 + 2 * 2 + 0.5 * 0.4) / 3, rel=1e-5)


@pytest.mark.parametrize(
    ("make", "direct"),
    [(lambda: VREx(WEIGHTS, 2.0), direct_vrex), (lambda: GroupDRO(WEIGHTS, 0.7), direct_group_dro)],
)
def test_the_shares_of_two_ranks_have_the_value_and_gradient_of_the_formula(make, direct):
    torch.manual_seed(1)
    logits = torch.randn(5, 2, dtype=torch.float64).float().requires_grad_()
    labels = torch.tensor([0, 1, 1, 0, 1])
    losses = torch.nn.functional.cross_entropy(logits, labels, reduction="none")
    weights = torch.from_numpy(WEIGHTS)
    expected = direct((losses[:, None] * weights).sum(0) / weights.sum(0))
    (expected_gradient,) = torch.autograd.grad(expected, logits)

    ranks = [[0, 3], [1, 2, 4, -1]]  # the second ends with a segment that is not scored
    batches, answers = [], []
    for rows in ranks:
        batches.append(make_batch([int(labels[row]) if row >= 0 else IGNORE_INDEX for row in rows], rows, total=5))
        answers.append(torch.stack([logits[row] if row >= 0 else torch.ones(2) for row in rows]))
    parts: list[torch.Tensor] = []
    for batch, answer in zip(batches, answers, strict=True):
        make().share(answer, batch, lambda values: parts.append(values) or values)
    total = sum(parts)
    assert not total.requires_grad
    shares = [make().share(answer, batch, lambda _: total) for batch, answer in zip(batches, answers, strict=True)]
    assert float(sum(shares)) == pytest.approx(float(expected), rel=1e-6)
    (gradient,) = torch.autograd.grad(sum(shares), logits)
    torch.testing.assert_close(gradient, expected_gradient, rtol=1e-5, atol=1e-7)
    assert expected_gradient.abs().max() > 0.01


def make_objectives(num_rows: int) -> dict[str, Objective]:
    groups = np.eye(2, dtype=np.float32)[np.arange(num_rows) % 2]
    expert = np.log(np.tile([0.8, 0.2], (num_rows, 1)))
    labels = np.arange(num_rows) % 2
    return {
        "cross_entropy": Objective(),
        "vrex": VREx(groups, 3.0),
        "group_dro": GroupDRO(groups, 0.5),
        "product_of_experts": ProductOfExperts(expert),
        "reweight": Reweight(expert, labels),
        "ranking": Ranking(np.where(np.arange(num_rows) % 3 == 2, np.arange(num_rows) - 1, -1), 1, 2.0),
        "ranking:margin": Ranking(
            np.where(np.arange(num_rows) % 3 == 2, np.arange(num_rows) - 1, -1), 1, 2.0, margin=9.0
        ),
    }


def gradients(objective: Objective, *, padded: bool) -> dict[str, torch.Tensor]:
    module = NLIModule(make_encoder(padded=padded), BINARY, OptimConfig(), objective=objective).train()
    module._trainer = SimpleNamespace(
        world_size=1,
        accumulate_grad_batches=1,
        num_training_batches=1,
        current_epoch=0,
        global_rank=0,
        strategy=SimpleNamespace(reduce=lambda values, reduce_op: values),
    )
    rows = tuple(range(len(LENGTHS)))
    module.training_step(collate_pack(make_split(), MicroStep(rows, len(rows))), 0).backward()
    return {name: p.grad for name, p in module.named_parameters() if p.grad is not None}


def test_packed_and_padded_give_the_same_gradient_and_each_objective_its_own():
    found = {name: gradients(loss, padded=False) for name, loss in make_objectives(len(LENGTHS)).items()}
    for name, loss in make_objectives(len(LENGTHS)).items():
        padded = gradients(loss, padded=True)
        assert padded.keys() == found[name].keys()
        for key, gradient in padded.items():
            torch.testing.assert_close(found[name][key], gradient, rtol=1e-4, atol=1e-6)
    heads = [next(value for key, value in one.items() if key.endswith("classifier.weight")) for one in found.values()]
    for number, head in enumerate(heads):
        assert all((head - other).abs().max() > 1e-4 for other in heads[number + 1 :])


# Groups and their order


def make_frame(rows: list[tuple[int, list[str]]], **columns: object) -> pl.DataFrame:
    """(count, domains): so many rows with these domains; ids, premises and laws of their own."""
    domains = [names for count, names in rows for _ in range(count)]
    entries = [
        {"example_id": f"{i:04}", "premise": f"p{i}", "premise_id": f"p{i}", "law_id": f"L{i // 4}", "domains": names}
        | {"hypothesis": f"phải {i}" if i % 2 else f"không {i}", "label": YES if i % 2 else NO}
        for i, names in enumerate(domains)
    ]
    return pl.DataFrame(entries, schema=EXAMPLE_SCHEMA).with_columns(**columns)


def make_data(published: pl.DataFrame, added: pl.DataFrame | None = None) -> RunData:
    return RunData(
        train=published if added is None else pl.concat([published, added]),
        scored={},
        published_train=published,
        scheme=BINARY,
        segments=("premise", "hypothesis"),
        bad_rows=(),
        sources=["test"],
        fingerprint="",
        duplicates={},
    )


MIXED = [
    (90, ["education"]),
    (10, ["education", "tax_fees"]),
    (95, ["investment"]),  # 99 rows: too few
    (4, ["education", "tax_fees", "investment"]),
    (90, ["tax_fees"]),
    (200, ["other"]),
    (3, []),
]


def test_domain_groups_by_hand():
    groups = domain_groups(make_frame(MIXED))
    assert groups.names == ("education", "tax_fees", SMALL_DOMAINS)
    third = 1 / 3
    expected = [[1, 0, 0]] * 90 + [[0.5, 0.5, 0]] * 10 + [[0, 0, 1]] * 95 + [[third] * 3] * 4
    expected += [[0, 1, 0]] * 90 + [[0, 0, 1]] * 203
    np.testing.assert_allclose(groups.weights, expected, rtol=1e-6)
    np.testing.assert_allclose(groups.sizes, [90 + 5 + 4 / 3, 90 + 5 + 4 / 3, 95 + 4 / 3 + 203], rtol=1e-6)
    assert domain_groups(make_frame([(100, ["education"])])).names == ("education",)  # no empty group


def order_of(groups: RowGroups, **changes) -> list[int]:
    return grouped_order(groups, **({"width": 30, "num_steps": 16, "seed": 1, "epoch": 0} | changes))


@pytest.mark.parametrize("equal_shares", [False, True])
def test_every_step_holds_rows_of_every_group(equal_shares):
    groups = replace(domain_groups(make_frame(MIXED)), equal_shares=equal_shares)
    for epoch in range(3):
        order = order_of(groups, epoch=epoch)
        assert len(order) == 30 * 16
        for start in range(0, len(order), 30):
            held = (groups.weights[order[start : start + 30]] > 0).sum(axis=0)
            assert held.min() >= MIN_GROUP_ROWS
        shares = groups.weights[order].sum(axis=0) / len(order)
        parts = np.full(3, 1 / 3) if equal_shares else groups.sizes / groups.sizes.sum()
        np.testing.assert_allclose(shares, parts, atol=0.03)
    assert order_of(groups) == order_of(groups)
    assert order_of(groups) != order_of(groups, epoch=1)
    assert order_of(groups) != order_of(groups, seed=2)


def test_the_order_by_hand():
    """Groups of 9 rows and of 1, 10 rows a step: 4 and 4, then 2 more for the large one, which is behind its part."""
    groups = RowGroups(("a", "b"), np.array([[1, 0]] * 9 + [[0, 1]], np.float32))
    first, second = order_of(groups, width=10, num_steps=2)[:10], order_of(groups, width=10, num_steps=2)[10:]
    assert first[1:8:2] == [9] * 4 == second[1:8:2]
    large = [row for row in first + second if row != 9]
    assert sorted(large[:9]) == list(range(9))  # all of them before one comes again
    assert large[9:] == large[:3]
    assert first + second == [3, 9, 5, 9, 2, 9, 7, 9, 0, 8, 6, 9, 1, 9, 4, 9, 3, 9, 5, 2]  # on any machine
    with pytest.raises(ValueError, match="7 rows a step for 2 groups"):
        order_of(groups, width=7)


def test_a_row_of_several_groups_stands_for_one_of_them_in_an_epoch():
    """Else it would come twice as often as its neighbours. A group whose rows all went elsewhere takes them still."""
    weights = np.array([[1, 0]] * 40 + [[0.5, 0.5]] * 40 + [[0, 1]] * 40, np.float32)
    order = order_of(RowGroups(("a", "b"), weights, equal_shares=True), width=12, num_steps=10)
    counts = np.bincount(order, minlength=120)
    assert counts.max() <= 2
    assert counts[:40].sum() + counts[80:].sum() == pytest.approx(2 * counts[40:80].sum(), abs=14)
    shared = RowGroups(("a", "b"), np.array([[1, 0]] * 20 + [[0.999, 0.001]], np.float32))
    assert order_of(shared, width=8, num_steps=1)[1::2] == [20] * 4


@pytest.mark.parametrize(("batch_size", "accumulate"), [(12, 1), (6, 2)])
def test_a_plan_with_groups_has_the_steps_of_a_plain_one_for_any_number_of_ranks(batch_size, accumulate):
    groups = domain_groups(make_frame(MIXED))
    lengths = np.arange(len(groups.weights)) % 50 + 5
    plan = PackPlan(batch_size, None, world_size=2, accumulate=accumulate, groups=groups)
    count = count_micro_steps(lengths, plan, epochs=2)
    assert count == count_micro_steps(lengths, replace(plan, groups=None), epochs=2)
    steps = plan_steps(lengths, plan, epoch=1, num_micro_steps=count)
    order = order_of(groups, width=24, num_steps=count // accumulate, epoch=1)
    for number in range(count // accumulate):
        ranks = [rank for step in steps[number * accumulate :][:accumulate] for rank in step]
        assert {len(rank.rows) for rank in ranks} == {batch_size}
        assert {rank.step_num_segments for rank in ranks} == {24}
        held = sorted(row for rank in ranks for row in rank.rows)
        assert held == sorted(order[number * 24 : (number + 1) * 24])
        assert (groups.weights[held] > 0).sum(axis=0).min() >= MIN_GROUP_ROWS


# Experts


def flipped(frame: pl.DataFrame, chosen: pl.Expr) -> pl.DataFrame:
    other = pl.when(pl.col("label") == YES).then(pl.lit(NO)).otherwise(pl.lit(YES))
    label = pl.when(chosen).then(other).otherwise(pl.col("label").cast(pl.String))
    return frame.with_columns(label=label.cast(EXAMPLE_SCHEMA["label"]))


@pytest.mark.parametrize("unit", ["law_id", "premise_id"])
def test_cross_fitting_never_sees_the_rows_own_law(unit):
    """Other labels for one law: its own answers stay as they are, to the last digit, those of others move."""
    frame = sample_corpus(200, seed=0)
    if unit == "premise_id":
        frame = frame.with_columns(law_id=pl.lit(None, pl.String))
    before = cross_fitted(frame, BINARY)
    name = frame[unit][0]
    after = cross_fitted(flipped(frame, pl.col(unit) == name), BINARY)
    own = (frame[unit] == name).to_numpy()
    assert own.sum() > 1
    assert np.array_equal(before[own], after[own])
    assert not np.array_equal(before[~own], after[~own])
    np.testing.assert_allclose(before.sum(axis=1), 1, rtol=1e-6)


def test_the_order_of_the_rows_changes_no_answer():
    frame = sample_corpus(200, seed=0)
    answers = cross_fitted(frame, BINARY)
    assert np.array_equal(cross_fitted(frame.reverse(), BINARY), answers[::-1])


def test_an_added_row_has_its_hypothesis_answer_and_its_rows_domains():
    published = sample_corpus(200, seed=0)
    added = augment_with_swaps(published, [], BINARY, hard=1, random=1)
    data = make_data(published, added)
    expert = expert_log_probabilities(data)
    assert np.array_equal(expert[: published.height], np.log(np.maximum(cross_fitted(published, BINARY), 1e-6)))
    weights = domain_groups(pl.concat([published] * 12)).weights[: published.height]  # enough rows for many groups
    places = {example_id: row for row, example_id in enumerate(published["example_id"])}
    assert added.height > 50
    for row, example_id in enumerate(added["example_id"], published.height):
        source = places[example_id.rpartition("~swap")[0]]
        assert np.array_equal(expert[row], expert[source])
        assert data.train["hypothesis"][row] == published["hypothesis"][source]
    repeated = domain_groups(pl.concat([*[published] * 12, added])).weights[12 * published.height :]
    assert repeated.shape[1] == weights.shape[1] > 4
    sources = [places[example_id.rpartition("~swap")[0]] for example_id in added["example_id"]]
    assert np.array_equal(repeated, weights[sources])


def augmented_data(spec: AugmentSpec) -> RunData:
    published = sample_corpus(200, seed=0)
    return make_data(published, rows_to_add(published, [], BINARY, spec))


def test_a_row_and_its_swaps_are_a_bundle_and_copies_stand_alone():
    data = augmented_data(AugmentSpec(1, 1, balance="sample"))
    sources, ids = swap_sources(data), data.train["example_id"].to_list()
    assert (sources >= 0).sum() > 50
    for row, source in enumerate(sources):
        if source >= 0:
            assert ids[row].rpartition("~swap")[0] == ids[source]
            assert data.train["hypothesis"][row] == data.train["hypothesis"][int(source)]
            assert (data.train["label"][row], data.train["label"][int(source)]) == (NO, YES)
        else:
            assert "~swap" not in ids[row]
    config = ExperimentConfig(objective="ranking", augment="premise_swap=1+1,balance=sample")
    bundles = row_bundles(config, data)
    assert sorted(row for bundle in bundles for row in bundle) == list(range(len(ids)))
    assert {len(bundle) for bundle in bundles} == {1, 2, 3} or {len(bundle) for bundle in bundles} == {1, 3}
    assert all(sources[row] == bundle[0] for bundle in bundles for row in bundle[1:])
    assert row_bundles(replace(config, objective="cross_entropy"), data) is None
    shares = data.train["label"].value_counts(normalize=True).sort("label")["proportion"]
    before = data.published_train["label"].value_counts(normalize=True).sort("label")["proportion"]
    np.testing.assert_allclose(shares, before, atol=0.005)


def test_label_weights_give_labels_their_shares_back():
    config = ExperimentConfig(augment="premise_swap=1+1,balance=weight")
    data = augmented_data(AugmentSpec(1, 1))
    weights = label_weights(config, data)
    assert weights.mean() == pytest.approx(1)
    is_entailed = (data.train["label"] == YES).to_numpy()
    published = (data.published_train["label"] == YES).mean()
    assert weights[is_entailed].sum() / weights.sum() == pytest.approx(published)
    assert weights[is_entailed].min() > 1 > weights[~is_entailed].max()
    assert label_weights(replace(config, augment="premise_swap=1+1"), data) is None
    built, _ = build_objective(config, data)
    assert np.allclose(built.row_weights.rows(make_batch([0, 0], [0, 1])).numpy(), weights[:2])


def test_ranking_is_built_with_its_pairs_and_weights():
    data = augmented_data(AugmentSpec(1, 0))
    config = ExperimentConfig(objective="ranking:margin=0.5", augment="premise_swap=1+0,balance=weight")
    loss, groups = build_objective(config, data)
    assert (type(loss), loss.margin, groups, loss.row_weights is None) == (Ranking, 1.0, None, False)
    num_pairs = data.train.height - data.published_train.height
    assert loss.pair_weight == pytest.approx(0.5 * data.train.height / num_pairs)
    with pytest.raises(UserError, match="none has a swap"):
        build_objective(config, make_data(make_frame([(8, ["education"])])))


def test_bias_groups_are_label_by_right_or_wrong():
    """Every hypothesis with "phải" is entailed, save the two rows of each label that mislead the expert."""
    frame = flipped(make_frame([(40, ["education"])]), pl.col("example_id").is_in(["0004", "0011", "0020", "0031"]))
    groups = bias_groups(make_data(frame))
    assert groups.names == (
        f"{NO}, hyponly-v1 right",
        f"{NO}, hyponly-v1 wrong",
        f"{YES}, hyponly-v1 right",
        f"{YES}, hyponly-v1 wrong",
    )
    place = {0: (NO, True), 1: (NO, False), 2: (YES, True), 3: (YES, False)}
    for row, group in enumerate(groups.weights.argmax(axis=1)):
        misleads = row in (4, 11, 20, 31)
        assert place[int(group)] == (frame["label"][row], not misleads)
    assert groups.weights.sum(axis=0).tolist() == [18, 2, 18, 2]


def test_build_objective_gives_each_its_tables():
    data = make_data(make_frame(MIXED))

    def build(objective: str, **packing):
        config = ExperimentConfig(objective=objective)
        return build_objective(replace(config, packing=replace(config.packing, **packing)), data)

    plain, groups = build("cross_entropy")
    assert (type(plain), groups) == (Objective, None)
    balanced, groups = build("domain_balanced")
    assert (type(balanced), groups.equal_shares) == (Objective, True)
    dro, groups = build("group_dro:domain=0.3")
    assert (type(dro), dro.eta, groups.equal_shares) == (GroupDRO, 0.3, False)
    assert (type(build("vrex")[0]), build("vrex")[0].beta) == (VREx, 1.0)
    assert type(build("product_of_experts")[0]) is ProductOfExperts
    assert type(build("reweight")[0]) is Reweight
    with pytest.raises(
        UserError, match=r"3 groups and needs 12 rows .* 4 of each; --batch-size 8 .* gives 8: take .*12"
    ):
        build("vrex", batch_size=8)


def test_rows_that_make_no_groups_are_refused():
    few = make_data(make_frame([(40, ["education"])]))
    with pytest.raises(UserError, match=r"needs two groups .* there is one \(other domains 40\)"):
        build_objective(ExperimentConfig(objective="vrex"), few)
    one_law = make_data(make_frame([(40, ["education"])], law_id=pl.lit("L")))
    with pytest.raises(UserError, match="of one law"):
        build_objective(ExperimentConfig(objective="reweight"), one_law)


# Resume


class Keep(lightning.Callback):
    """Notes the rows of every step and saves a checkpoint after one of them."""

    def __init__(self, path=None, step: int = 0) -> None:
        self.path, self.step = path, step
        self.rows: list[list[int]] = []

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx) -> None:
        self.rows.append(batch.example_ids.tolist())
        if self.path is not None and trainer.global_step == self.step:
            trainer.save_checkpoint(self.path)


def test_a_resumed_run_goes_on_with_the_group_weights(tmp_path):
    groups = RowGroups(("a", "b"), np.eye(2, dtype=np.float32)[np.arange(len(LENGTHS)) % 3 % 2])

    def fit(callback: Keep, checkpoint=None):
        loss = GroupDRO(groups.weights, 0.5)
        module = NLIModule(make_encoder(), BINARY, OptimConfig(lr=1e-3), objective=loss)
        data = NLIDataModule(train=make_split(), plan=PackPlan(8, None, groups=groups), epochs=3)
        trainer = make_trainer(max_epochs=3, callbacks=[callback])
        trainer.fit(module, data, ckpt_path=checkpoint, weights_only=True)
        return loss.state()["group_weights"], module.state_dict()

    whole = Keep(tmp_path / "third.ckpt", 3)  # in the middle of the second epoch
    q, weights = fit(whole)
    rest = Keep()
    resumed_q, resumed_weights = fit(rest, tmp_path / "third.ckpt")
    assert len(whole.rows) == 6
    assert rest.rows == whole.rows[3:]
    assert resumed_q == q != [0.5, 0.5]
    assert all(torch.equal(resumed_weights[name], value) for name, value in weights.items())
    saved = torch.load(tmp_path / "third.ckpt", weights_only=True)
    assert not any("objective" in name for name in saved["state_dict"])  # tables stay out of the weights
    with pytest.raises(UserError, match="weights of 2 groups, the training rows make 3"):
        GroupDRO(WEIGHTS, 0.5).load_state(saved["lightning_nli"]["objective"])
