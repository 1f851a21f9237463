"""Training losses beside plain cross-entropy; each names the paper its formula is from.

An objective returns this rank's share of the loss of an optimizer step: the shares of all ranks and micro-steps add up
to it, and so do their gradients. What it knows of a training row it looks up by `example_ids`.

Shape suffixes: S segments, C labels, G groups, N training rows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from lightning_nli.batch import PackedBatch
from lightning_nli.types import IGNORE_INDEX, UserError

SumOverRanks = Callable[[Tensor], Tensor]
Table = npt.NDArray[np.floating[Any]]


class RowTable:
    """Values of the training rows, fetched for a batch; they move to its device once.

    It is no buffer of the module: DDP would send it to all ranks at every step, DeepSpeed would make it half precision,
    and it has no place in a checkpoint.

    Args:
        values: (N, ...) by `example_ids`.
    """

    def __init__(self, values: Table) -> None:
        self._values = torch.from_numpy(values.astype(np.float32))

    def rows(self, batch: PackedBatch) -> Tensor:
        """(S, ...) fp32; those of row 0 for a ghost."""
        self._values = self._values.to(batch.example_ids.device)
        return self._values[batch.example_ids.clamp(min=0)]


class Objective:
    """Cross-entropy, the mean over the scored segments of the optimizer step.

    Args:
        weights_N: Weight of each training row's cross-entropy, (N,), with the mean 1; None: all weigh the same.
    """

    def __init__(self, weights_N: Table | None = None) -> None:
        self.row_weights = None if weights_N is None else RowTable(weights_N)

    def share(self, logits_SC: Tensor, batch: PackedBatch, sum_over_ranks: SumOverRanks) -> Tensor:
        """This rank's and micro-step's share of the loss, a scalar.

        Args:
            logits_SC: Of the model.
            batch: What it answered.
            sum_over_ranks: Adds up a tensor over all ranks; every rank calls it equally often.
        """
        if self.row_weights is not None:
            loss_sum = (_losses(logits_SC, batch) * self.row_weights.rows(batch)).sum()
        else:
            loss_sum = F.cross_entropy(logits_SC, batch.labels, ignore_index=IGNORE_INDEX, reduction="sum")
        return loss_sum / batch.step_num_segments

    def state(self) -> dict[str, Any]:
        """Plain values to go on from, for checkpoints."""
        return {}

    def load_state(self, state: dict[str, Any]) -> None:
        """Go on from `state`.

        Raises:
            UserError: it is not of this objective.
        """


class ProductOfExperts(Objective):
    """Cross-entropy of softmax(log p + log b): the model p is trained together with a fixed expert b, and used alone.

    Clark, Yatskar, Zettlemoyer (2019), "Don't Take the Easy Way Out", "Bias Product"; He, Zha, Wang (2019), "Unlearn
    Dataset Bias in Natural Language Inference by Fitting the Residual" (DRiFt), the same loss.

    Args:
        expert_NC: log b, (N, C).
        weights_N: As `Objective`.
    """

    def __init__(self, expert_NC: Table, weights_N: Table | None = None) -> None:
        super().__init__(weights_N)
        self.expert = RowTable(expert_NC)

    def share(self, logits_SC: Tensor, batch: PackedBatch, sum_over_ranks: SumOverRanks) -> Tensor:
        return super().share(logits_SC.log_softmax(-1) + self.expert.rows(batch), batch, sum_over_ranks)


class Reweight(Objective):
    """Cross-entropy with a weight a row, summed, by the number of rows.

    Clark, Yatskar, Zettlemoyer (2019), "Don't Take the Easy Way Out", "Reweight": a row weighs 1 - b(label), b being
    the expert's probability. They divide a batch by its sum of weights; we divide the weights by their mean over the
    training rows, so that a row weighs the same in every batch.

    Args:
        expert_NC: log b, (N, C).
        labels_N: Gold class indices, (N,).
    """

    def __init__(self, expert_NC: Table, labels_N: npt.NDArray[np.int64]) -> None:
        weights_N = 1 - np.exp(expert_NC[np.arange(len(labels_N)), labels_N].astype(np.float64))
        super().__init__(weights_N / weights_N.mean())


class Ranking(Objective):
    """Cross-entropy, and a loss for each row and its swap: the own premise must have the higher entailment score.

    The score is the log-odds of entailment, s = log p / (1 - p). A pair costs log(1 + exp(-(s_own - s_swapped))):
    Burges et al. (2005), "Learning to Rank using Gradient Descent" (RankNet), its cost for the target probability 1.
    With a margin it costs max(0, margin - (s_own - s_swapped)): the slack of Joachims (2002), "Optimizing Search
    Engines using Clickthrough Data" (Ranking SVM, where the margin is 1).

    To the mean of the rows' cross-entropies comes `strength` times the mean of the pairs' losses, both means being over
    the training rows: a pair's loss is divided by the step's segments and multiplied by rows / pairs of the training
    set, so that a pair weighs the same in every step. The rows of a pair must be in one pack (`data.bundles`).

    Args:
        sources_N: For a row with a swapped premise the row that it was made from, else -1, (N,).
        entailed: Class index of entailment.
        strength: Weight of the pairs.
        margin: None for the logistic loss.
        weights_N: As `Objective`; pairs have no weights.
    """

    def __init__(
        self,
        sources_N: npt.NDArray[np.int64],
        entailed: int,
        strength: float,
        *,
        margin: float | None = None,
        weights_N: Table | None = None,
    ) -> None:
        super().__init__(weights_N)
        self.sources = torch.from_numpy(sources_N)
        self.entailed, self.margin = entailed, margin
        self.pair_weight = strength * len(sources_N) / int((sources_N >= 0).sum())

    def share(self, logits_SC: Tensor, batch: PackedBatch, sum_over_ranks: SumOverRanks) -> Tensor:
        self.sources = self.sources.to(batch.example_ids.device)
        source_S = self.sources[batch.example_ids.clamp(min=0)]
        is_swap_S = (source_S >= 0) & (batch.labels != IGNORE_INDEX)
        own_S = (source_S[:, None] == batch.example_ids[None, :]).float().argmax(1)  # 0 where there is none
        score_S = self._entailment_scores(logits_SC)
        above_S = score_S[own_S] - score_S
        losses_S = F.softplus(-above_S) if self.margin is None else F.relu(self.margin - above_S)
        pairs = (losses_S * is_swap_S).sum() * self.pair_weight / batch.step_num_segments
        return super().share(logits_SC, batch, sum_over_ranks) + pairs

    def _entailment_scores(self, logits_SC: Tensor) -> Tensor:
        """(S,) log-odds of entailment."""
        others_SC = torch.cat([logits_SC[:, : self.entailed], logits_SC[:, self.entailed + 1 :]], 1)
        return logits_SC[:, self.entailed] - others_SC.logsumexp(1)


class GroupObjective(Objective, ABC):
    """A function of the groups' risks over one optimizer step, R_g = sum_i w_ig loss_i / sum_i w_ig.

    Sums and weights are added up over the ranks first, without gradient. The returned share is linear in this rank's
    losses: its value adds up to the objective, its gradient is sum_g c_g dR_g with fixed c_g = d objective / d R_g. So
    a step is one micro-step, and must hold rows of every group (`data.groups.grouped_order`).

    Args:
        weights_NG: Share of each training row in each group, (N, G).
    """

    def __init__(self, weights_NG: Table) -> None:
        super().__init__()
        self.weights = RowTable(weights_NG)
        self.num_groups = weights_NG.shape[1]

    @abstractmethod
    def combine(self, risks_G: Tensor) -> tuple[Tensor, Tensor]:
        """The objective, a scalar, and its derivatives c_G; called once an optimizer step."""

    def share(self, logits_SC: Tensor, batch: PackedBatch, sum_over_ranks: SumOverRanks) -> Tensor:
        is_scored_S = batch.labels != IGNORE_INDEX
        weights_SG = self.weights.rows(batch) * is_scored_S[:, None]
        sums_G = (_losses(logits_SC, batch)[:, None] * weights_SG).sum(0)
        total_G, weight_G = sum_over_ranks(torch.stack([sums_G.detach(), weights_SG.sum(0)]))
        risks_G = total_G / weight_G
        value, coefficients_G = self.combine(risks_G)
        part = is_scored_S.sum() / batch.step_num_segments  # of what is not linear in the losses
        linear = (coefficients_G * sums_G / weight_G).sum()
        share: Tensor = linear + part * (value - (coefficients_G * risks_G).sum())
        return share


class VREx(GroupObjective):
    """mean_g R_g + beta Var_g(R_g), the variance being the mean squared distance from the mean.

    Krueger et al. (2021), "Out-of-Distribution Generalization via Risk Extrapolation (REx)", equation 8, has the sum of
    the risks in place of their mean; divided by the number of groups it is this one, with beta = theirs / groups, and
    the learning rate keeps its meaning.

    Args:
        weights_NG: As `GroupObjective`.
        beta: Weight of the variance.
    """

    def __init__(self, weights_NG: Table, beta: float) -> None:
        super().__init__(weights_NG)
        self.beta = beta

    def combine(self, risks_G: Tensor) -> tuple[Tensor, Tensor]:
        away_G = risks_G - risks_G.mean()
        value = risks_G.mean() + self.beta * away_G.square().mean()
        return value, (1 + 2 * self.beta * away_G) / self.num_groups


class GroupDRO(GroupObjective):
    """sum_g q_g R_g, where every step first sets q_g to q_g exp(eta R_g) / sum_h q_h exp(eta R_h), from 1/G on.

    Sagawa, Koh, Hashimoto, Liang (2020), "Distributionally Robust Neural Networks for Group Shifts", Algorithm 1, with
    a mini-batch of all groups a step in place of one group's example.

    Args:
        weights_NG: As `GroupObjective`.
        eta: Step size of q.
    """

    def __init__(self, weights_NG: Table, eta: float) -> None:
        super().__init__(weights_NG)
        self.eta = eta
        self.q_G = torch.full((self.num_groups,), 1 / self.num_groups, dtype=torch.float64)

    def combine(self, risks_G: Tensor) -> tuple[Tensor, Tensor]:
        self.q_G = (self.q_G.to(risks_G.device).log() + self.eta * risks_G.double()).softmax(0)
        q_G = self.q_G.to(risks_G.dtype)
        return (q_G * risks_G).sum(), q_G

    def state(self) -> dict[str, Any]:
        return {"group_weights": self.q_G.tolist()}

    def load_state(self, state: dict[str, Any]) -> None:
        known = state.get("group_weights", [])
        if len(known) != self.num_groups:
            raise UserError(
                f"the checkpoint has weights of {len(known)} groups, the training rows make {self.num_groups}; "
                "it is of another run: give another --run-dir"
            )
        self.q_G = torch.tensor(known, dtype=torch.float64)


def _losses(logits_SC: Tensor, batch: PackedBatch) -> Tensor:
    """(S,) cross-entropies, 0 where a segment is not scored."""
    return F.cross_entropy(logits_SC, batch.labels, ignore_index=IGNORE_INDEX, reduction="none")
