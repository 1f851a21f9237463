"""A model of what gradient exchange costs at 8 to 512 GPUs, with the vocabulary trimmed and whole.

Nothing here is measured; every assumption is a field of `Assumptions`. `docs/SCALING.md` holds the tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

from report import table


@dataclass(frozen=True)
class Architecture:
    """Sizes of a BERT or XLM-R classifier.

    Attributes:
        name: For people.
        rows: Vocabulary rows.
        hidden: Width.
        layers: Number of layers.
        inner: Width inside the feed-forward part.
        positions: Rows of the position table.
        token_types: Rows of the token type table.
    """

    name: str
    rows: int
    hidden: int
    layers: int
    inner: int
    positions: int
    token_types: int

    def embedding(self, kept_rows: int | None = None) -> int:
        """Parameters of the word embedding, of `kept_rows` of its rows where it is trimmed."""
        return (self.rows if kept_rows is None else kept_rows) * self.hidden

    def others(self, labels: int = 2) -> int:
        """Parameters of all else: positions, token types, layers, pooler (or dense layer of the head) and head."""
        hidden, inner = self.hidden, self.inner
        tables = (self.positions + self.token_types + 2) * hidden  # 2: the normalization
        attention = 4 * (hidden * hidden + hidden)
        feed_forward = 2 * hidden * inner + inner + hidden
        head = hidden * hidden + hidden + labels * hidden + labels
        return tables + self.layers * (attention + feed_forward + 4 * hidden) + head

    def flops_a_token(self, tokens: int) -> int:
        """Forward and backward, of each token of an example of `tokens` tokens (as `flops.training_flops`)."""
        matrices = self.layers * (4 * self.hidden**2 + 2 * self.hidden * self.inner)
        return 6 * matrices + 12 * self.layers * self.hidden * tokens


ARCHITECTURES = (
    Architecture("e5-small", 250_037, 384, 12, 1536, 512, 2),
    Architecture("xlm-r-base", 250_002, 768, 12, 3072, 514, 1),
    Architecture("xlm-r-large", 250_002, 1024, 24, 4096, 514, 1),
)
KEPT_ROWS = 3_947
"""Vocabulary rows that the dev and test splits of ViLegalNLI touch, as a run of `lnli fit --model e5-small` says."""
GPUS = (8, 16, 32, 64, 128, 256, 512)


@dataclass(frozen=True)
class Assumptions:
    """What the model takes for granted.

    Attributes:
        tokens_a_gpu: Tokens of a step on each GPU.
        tokens_an_example: Mean length.
        useful_tflops: TFLOP/s that a GPU does on real tokens.
        backward_share: Share of a step's computing that the backward pass is.
        gradient_bytes: Bytes of a gradient that is sent: 4 under `ddp` (fp32), 2 under DeepSpeed (bf16).
        gpus_a_node: GPUs of a node.
        in_node_gb_s: GB/s of each GPU inside a node.
        network_gb_s: GB/s of a whole node's network.
    """

    tokens_a_gpu: int = 16_384
    tokens_an_example: int = 128
    useful_tflops: float = 150.0
    backward_share: float = 2 / 3
    gradient_bytes: int = 4
    gpus_a_node: int = 8
    in_node_gb_s: float = 300.0
    network_gb_s: float = 25.0


SLOW, FAST = Assumptions(), Assumptions(network_gb_s=400.0)


@dataclass(frozen=True)
class StepCost:
    """What a step costs one GPU.

    Attributes:
        compute_s: Seconds of forward and backward.
        sent_bytes: Bytes that it sends (and receives).
        exposed_s: Seconds of sending that no computing hides.
    """

    compute_s: float
    sent_bytes: float
    exposed_s: float

    @property
    def efficiency(self) -> float:
        """Share of the speed that as many GPUs without any exchange would have."""
        return self.compute_s / (self.compute_s + self.exposed_s)


def ring_bytes(held_bytes: float, gpus: int) -> float:
    """Bytes that each member of a ring of `gpus` sends to sum `held_bytes` over all: 2 (p - 1) / p of them."""
    return 2 * (gpus - 1) / gpus * held_bytes


def step_cost(architecture: Architecture, gpus: int, assumed: Assumptions, kept_rows: int | None = None) -> StepCost:
    """A step under data parallelism by ring all-reduce.

    The gradients of layers are sent while the backward pass goes on, and cost what it does not hide. The word
    embedding's gradient is the last to be finished, so nothing hides it.

    Args:
        architecture: Sizes.
        gpus: Members of the ring, in whole nodes where there is more than one.
        assumed: Speeds and sizes.
        kept_rows: Vocabulary rows that are trained; None: all.
    """
    speed = assumed.in_node_gb_s if gpus <= assumed.gpus_a_node else min(assumed.in_node_gb_s, assumed.network_gb_s)
    flops = architecture.flops_a_token(assumed.tokens_an_example) * assumed.tokens_a_gpu
    compute_s = flops / (assumed.useful_tflops * 1e12)
    last, others = (
        ring_bytes(assumed.gradient_bytes * held, gpus)
        for held in (architecture.embedding(kept_rows), architecture.others())
    )
    hidden_s = compute_s * assumed.backward_share
    exposed_s = max(0.0, others / (speed * 1e9) - hidden_s) + last / (speed * 1e9)
    return StepCost(compute_s, last + others, exposed_s)


def size_table() -> str:
    """Parameters, and MB of gradients that each of 512 GPUs sends in a step, before and after trimming."""
    header = ("", "parameters", f"with {KEPT_ROWS:,} rows", "sent a step, MB", f"with {KEPT_ROWS:,} rows", "share")
    rows = []
    for one in ARCHITECTURES:
        counts = [one.embedding(kept) + one.others() for kept in (None, KEPT_ROWS)]
        sent = [ring_bytes(SLOW.gradient_bytes * count, GPUS[-1]) / 1e6 for count in counts]
        cells = [f"{counts[0] / 1e6:.1f}M", f"{counts[1] / 1e6:.1f}M", f"{sent[0]:,.0f}", f"{sent[1]:,.0f}"]
        rows.append((one.name, *cells, f"{100 * counts[1] / counts[0]:.0f}%"))
    return table(header, rows)


def efficiency_table(assumed: Assumptions, gpus: Sequence[int] = GPUS) -> str:
    """Efficiency of every encoder at these numbers of GPUs, the whole vocabulary beside the trimmed one."""
    header = ("", "vocabulary", "compute ms", *(f"{number} GPUs" for number in gpus))
    rows = []
    for one in ARCHITECTURES:
        for word, kept in (("whole", None), ("trimmed", KEPT_ROWS)):
            costs = [step_cost(one, number, assumed, kept) for number in gpus]
            shares = [f"{100 * cost.efficiency:.0f}%" for cost in costs]
            rows.append((one.name, word, f"{1000 * costs[0].compute_s:.0f}", *shares))
    return table(header, rows)


def assumption_table() -> str:
    """Every assumption with its value on the slow and on the fast network."""
    about = {
        "tokens_a_gpu": "tokens a GPU and step",
        "tokens_an_example": "mean tokens of an example",
        "useful_tflops": "TFLOP/s a GPU does on real tokens",
        "backward_share": "share of computing that is backward",
        "gradient_bytes": "bytes of a gradient sent (`ddp`; DeepSpeed in bf16: 2)",
        "gpus_a_node": "GPUs a node",
        "in_node_gb_s": "GB/s of a GPU inside a node",
        "network_gb_s": "GB/s of a node's network",
    }
    rows = [
        (about[item.name], f"{round(getattr(SLOW, item.name), 2):,}", f"{round(getattr(FAST, item.name), 2):,}")
        for item in fields(Assumptions)
    ]
    return table(("assumed", "slow network", "fast network"), rows)


def document_tables() -> str:
    """All tables of `docs/SCALING.md`."""
    return "\n".join(
        [
            assumption_table(),
            size_table(),
            f"Efficiency on the slow network ({SLOW.network_gb_s:g} GB/s a node):\n",
            efficiency_table(SLOW),
            f"Efficiency on the fast network ({FAST.network_gb_s:g} GB/s a node):\n",
            efficiency_table(FAST),
        ]
    )
