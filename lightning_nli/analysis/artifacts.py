"""What a hypothesis gives away: tokens that go with a label, counted, scored and tested."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import polars as pl

from lightning_nli.analysis.words import SYLLABLE
from lightning_nli.data.schema import LABEL_DTYPE
from lightning_nli.data.text import normalize_expr
from lightning_nli.statistics import FloatArray, holm
from lightning_nli.types import BINARY, Label, LabelScheme, UserError, fold_labels

TRIGGERS: dict[str, tuple[Label, str]] = {
    token: (label, stem)
    for label, stem, substitutes in (
        (Label.NON_ENTAILMENT, "Dù", ("Mặc dù", "Tuy", "Dẫu", "Mặc cho", "Tuy rằng")),
        (Label.NON_ENTAILMENT, "không cần", ("Chẳng cần", "Không yêu cầu", "Không nhất thiết")),
        (Label.ENTAILMENT, "Khi", ("Một khi", "Ngay khi", "Trong khi", "Giả sử")),
        (Label.ENTAILMENT, "Căn cứ", ("Dựa theo", "Dựa vào", "Dựa trên cơ sở")),
    )
    for token in (stem, *substitutes)
}
"""ViLegalNLI's Table 9: token -> the label it is said to go with, and the trigger that it is or may stand for."""

PUBLISHED_TOKENS: dict[str, Label] = {
    **dict.fromkeys(("không cần", "Dù", "bất kể", "chỉ cần", "tự do"), Label.NON_ENTAILMENT),
    **dict.fromkeys(("Khi", "Theo quy định", "đồng thời", "Những", "thiết lập"), Label.ENTAILMENT),
}
"""ViLegalNLI's Table 13: token -> label."""

_CHUNK_ROWS = 20_000
_PIECE = rf"{SYLLABLE}|[^\p{{L}}\p{{M}}\p{{N}}_\s]+"
_SCORED_SCHEMA: dict[str, pl.DataType] = {
    "token": pl.String(),
    "n": pl.Int64(),
    "label": pl.String(),
    "label_rows": pl.Int64(),
    "rows": pl.Int64(),
    **dict.fromkeys(
        ("p_label_given_token", "pmi_bits", "pmi_nats", "log_odds", "z", "p_value", "p_adjusted"), pl.Float64()
    ),
}


@dataclass(frozen=True)
class TokenCounts:
    """In how many hypotheses of each label a token stands.

    Attributes:
        table: `token`, `n` (syllables in it) and a column of counts for each label; `n` and `token` ascending.
        rows: Label -> hypotheses, labels that do occur, in scheme order.
    """

    table: pl.DataFrame
    rows: dict[str, int]


def count_tokens(frame: pl.DataFrame, scheme: LabelScheme, *, max_n: int = 3, min_rows: int = 10) -> TokenCounts:
    """Count the hypotheses that hold each token: a syllable, or up to `max_n` neighbours without a mark between them.

    Case is kept, as in ViLegalNLI's Table 13. A token counts once a hypothesis. Memory is bounded: rows come in chunks,
    and longer tokens are only counted where both their parts (all but the last syllable, all but the first) pass the
    floor, which loses none that does itself.

    Args:
        frame: Rows with `hypothesis` and `label`.
        scheme: Labels.
        max_n: Longest token, in syllables.
        min_rows: Floor: a token in fewer hypotheses is left out.
    """
    by_label = dict(frame.group_by(pl.col("label").cast(pl.String)).len().iter_rows())
    rows = {name: by_label[name] for name in scheme.names if by_label.get(name)}
    tables: list[pl.DataFrame] = []
    for n in range(1, max_n + 1):
        passed = tables[-1]["token"] if tables and min_rows > 1 else None
        found = pl.DataFrame(schema={"token": pl.String, **dict.fromkeys(rows, pl.Int64())})
        for chunk in _pieces(frame):
            found = pl.concat([found, _ngrams(chunk, n, passed, list(rows))]).group_by("token").agg(pl.all().sum())
        kept = found.filter(pl.sum_horizontal(*rows) >= min_rows) if rows else found
        tables.append(kept.sort("token").select("token", pl.lit(n, pl.Int64).alias("n"), *rows))
    return TokenCounts(pl.concat(tables), rows)


def score_tokens(
    counts: TokenCounts,
    *,
    smoothing: float = 0.0,
    shares: Literal["rows", "table"] = "rows",
    prior: float = 1000.0,
    correction: Literal["bh", "holm"] = "bh",
) -> pl.DataFrame:
    """How far each token goes with each label, strongest first by log-odds, so that one-off words do not lead.

    - `pmi_nats`, `pmi_bits`: log(P(w, y) / (P(w) P(y))), natural and binary. `shares="rows"`: P are shares of the
      hypotheses, so PMI is log(P(y | w) / P(y)) and at most -log P(y). `shares="table"`: shares of the table of tokens
      (of one length, above the floor) by labels; labels with longer hypotheses weigh more. `smoothing` is added to each
      cell of token and label (in P(y) only with `table`). Null where token and label never meet and nothing is added.
    - `log_odds`, `z`: log-odds ratio of the label against all others with an informative Dirichlet prior, by its
      standard error (Monroe, Colaresi, Quinn 2008); the prior is the tokens' own distribution over all labels, `prior`
      pseudo-counts in all. Null where there is but one token.
    - `p_value`, `p_adjusted`: Fisher's exact test of token against label (twice the smaller tail), adjusted over all
      rows of the table. It takes hypotheses for independent, which those of one law are not: a description.

    Args:
        counts: Of `count_tokens`.
        smoothing: Pseudo-count of each cell for PMI and `p_label_given_token`.
        shares: What PMI's probabilities are shares of.
        prior: Pseudo-counts of the log-odds' prior.
        correction: `bh`: false discovery rate (Benjamini, Hochberg); `holm`: any false one at all (Holm).

    Returns:
        `token`, `n`, `label`, `label_rows` (hypotheses of the label that hold it), `rows` (of any label),
        `p_label_given_token`, `pmi_bits`, `pmi_nats`, `log_odds`, `z`, `p_value`, `p_adjusted`.

    Raises:
        ValueError: a pseudo-count is negative, the prior not positive, `shares` or `correction` unknown.
    """
    if shares not in ("rows", "table") or correction not in ("bh", "holm"):
        raise ValueError(f"shares are of 'rows' or the 'table', corrections 'bh' or 'holm': {shares=}, {correction=}")
    if smoothing < 0 or prior <= 0:
        raise ValueError(f"pseudo-counts are not negative, a prior is positive: {smoothing=}, {prior=}")
    parts = [_score_length(part, counts.rows, smoothing, shares, prior) for part in counts.table.partition_by("n")]
    if not parts:
        return pl.DataFrame(schema=_SCORED_SCHEMA)
    scored = pl.concat(parts)
    p_values = scored["p_value"].to_numpy()
    scored = scored.with_columns(p_adjusted=pl.Series(_adjust(p_values, correction), dtype=pl.Float64))
    return scored.sort("z", "token", "label", descending=[True, False, False], nulls_last=True).select(*_SCORED_SCHEMA)


def check_tokens(frame: pl.DataFrame, scheme: LabelScheme, tokens: Mapping[str, Label]) -> pl.DataFrame:
    """PMI and P(label | token) of tokens by name, each with the label that it is said to go with.

    A hypothesis holds a token if it stands there as whole words, in the case given, with no mark between them; PMI is
    over hypotheses (`score_tokens`).

    Args:
        frame: Rows with `hypothesis` and `label`.
        scheme: Labels.
        tokens: Token -> label.

    Returns:
        `token`, `label`, `label_rows`, `rows`, `rows_any_case`, `share_of_label` (hypotheses of the label that hold
        it), `p_label_given_token`, `pmi_bits`, `pmi_nats` (null: it and the label never meet), `highest_pmi_bits`
        (-log2 P(label), if all of its hypotheses had the label).

    Raises:
        UserError: a label is not of the scheme.
    """
    foreign = sorted({label.value for label in tokens.values()} - set(scheme.names))
    if foreign:
        raise UserError(f"tokens go with the labels {foreign}, the corpus has {scheme.names}; fold its labels first")
    text = frame.select(label=pl.col("label").cast(pl.String), text=_spaced(pl.col("hypothesis")))
    text = text.with_columns(lower=pl.col("text").str.to_lowercase())
    names = pl.DataFrame({"token": list(tokens), "label": [label.value for label in tokens.values()]})
    found = []
    for token, label in names.select(_spaced(pl.col("token")), "label").iter_rows():
        is_there, is_label = pl.col("text").str.contains(token, literal=True), pl.col("label") == label
        found.append(
            text.select(
                label_rows=(is_there & is_label).sum(),
                rows=is_there.sum(),
                rows_any_case=pl.col("lower").str.contains(token.lower(), literal=True).sum(),
                of_label=is_label.sum(),
                all=pl.len(),
            )
        )
    ratio = pl.when(pl.col("label_rows") > 0).then(_part("label_rows", "rows") / _part("of_label", "all"))
    return pl.concat([names, pl.concat(found)], how="horizontal").select(
        "token",
        "label",
        *(pl.col(name).cast(pl.Int64) for name in ("label_rows", "rows", "rows_any_case")),
        share_of_label=_part("label_rows", "of_label"),
        p_label_given_token=_part("label_rows", "rows"),
        pmi_bits=ratio.log(2),
        pmi_nats=ratio.log(),
        highest_pmi_bits=pl.when(pl.col("of_label") > 0).then(-_part("of_label", "all").log(2)),
    )


def check_triggers(frame: pl.DataFrame, scheme: LabelScheme) -> pl.DataFrame:
    """`check_tokens` of `TRIGGERS`, finer labels folded into entailment or not; `stands_for` names the trigger."""
    names = {old.value: new.value for old, new in fold_labels(scheme, BINARY).items()}
    folded = frame.with_columns(pl.col("label").cast(pl.String).replace(names).cast(LABEL_DTYPE))
    table = check_tokens(folded, BINARY, {token: label for token, (label, _) in TRIGGERS.items()})
    stands_for = {token: stem for token, (_, stem) in TRIGGERS.items()}
    return table.select("token", pl.col("token").replace_strict(stands_for).alias("stands_for"), pl.exclude("token"))


def _spaced(text: pl.Expr) -> pl.Expr:
    """Text with a space around each syllable and a bar for the marks between them."""
    marked = normalize_expr(text).str.replace_all(r"[^\p{L}\p{M}\p{N}_\s]+", " | ").str.replace_all(r"\s+", " ")
    return " " + marked.str.strip_chars(" ") + " "


def _part(part: str, whole: str) -> pl.Expr:
    return pl.when(pl.col(whole) > 0).then(pl.col(part) / pl.col(whole))


def _pieces(frame: pl.DataFrame) -> Iterator[pl.DataFrame]:
    """Chunks of `row`, `label`, `piece`: the syllables of each hypothesis in order, null for a mark between them."""
    for chunk in frame.select("hypothesis", "label").iter_slices(_CHUNK_ROWS):
        pieces = chunk.select(
            row=pl.int_range(pl.len(), dtype=pl.UInt32),
            label=pl.col("label").cast(pl.String),
            piece=normalize_expr(pl.col("hypothesis")).str.extract_all(_PIECE),
        ).explode("piece")
        yield pieces.with_columns(piece=pl.when(pl.col("piece").str.contains(SYLLABLE)).then("piece"))


def _ngrams(pieces: pl.DataFrame, n: int, passed: pl.Series | None, labels: list[str]) -> pl.DataFrame:
    """Hypotheses of each label that hold each run of `n` syllables: `token` and a column a label."""
    run = [pl.col("piece").shift(-place) for place in range(n)]
    tokens = pieces.select(
        "row",
        "label",
        token=pl.concat_str(run, separator=" "),
        head=pl.concat_str(run[:-1], separator=" ") if n > 1 else pl.lit(""),
        tail=pl.concat_str(run[1:], separator=" ") if n > 1 else pl.lit(""),
        is_one_row=pl.col("row") == pl.col("row").shift(1 - n),
    )
    tokens = tokens.filter(pl.col("is_one_row") & pl.col("token").is_not_null())
    if passed is not None:
        known = passed.rename("part").to_frame()
        tokens = tokens.join(known, left_on="head", right_on="part", how="semi")
        tokens = tokens.join(known, left_on="tail", right_on="part", how="semi")
    held = tokens.select("row", "label", "token").unique()
    return held.group_by("token").agg((pl.col("label") == label).sum().cast(pl.Int64).alias(label) for label in labels)


def _score_length(
    table: pl.DataFrame, label_rows: dict[str, int], smoothing: float, shares: str, prior: float
) -> pl.DataFrame:
    """Scores of the tokens of one length; all but `p_adjusted`."""
    labels = list(label_rows)
    counts = table.select(labels).to_numpy().astype(np.float64)  # (tokens, labels)
    sizes = np.array([label_rows[label] for label in labels], np.float64)
    given = _smooth_shares(counts, smoothing)
    cells = counts + smoothing
    of_label = sizes / sizes.sum() if shares == "rows" else cells.sum(axis=0) / cells.sum()
    with np.errstate(divide="ignore"):
        pmi = np.log(given / of_label)
    log_odds, z = _log_odds(counts, prior)
    p_values = _fisher(counts, sizes)
    columns = {"p_label_given_token": given, "pmi_nats": pmi, "log_odds": log_odds, "z": z, "p_value": p_values}
    tokens = table.select("token", "n", rows=pl.sum_horizontal(labels))
    parts = [
        tokens.with_columns(
            pl.lit(label).alias("label"),
            table[label].alias("label_rows"),
            *(pl.Series(name, values[:, place]) for name, values in columns.items()),
        )
        for place, label in enumerate(labels)
    ]
    finite = {name: pl.when(pl.col(name).is_finite()).then(name) for name in ("pmi_nats", "log_odds", "z")}
    return pl.concat(parts).with_columns(**finite, pmi_bits=finite["pmi_nats"] / np.log(2))


def _smooth_shares(counts: FloatArray, smoothing: float) -> FloatArray:
    """P(label | token), (tokens, labels)."""
    cells = counts + smoothing
    shares: FloatArray = cells / cells.sum(axis=1, keepdims=True)
    return shares


def _log_odds(counts: FloatArray, prior: float) -> tuple[FloatArray, FloatArray]:
    """Log-odds ratio of each label against the others, and its z score, both (tokens, labels)."""
    of_token, of_label = counts.sum(axis=1, keepdims=True), counts.sum(axis=0)
    total = of_token.sum()
    pseudo = prior * of_token / total
    inside, outside = counts + pseudo, of_token - counts + pseudo
    with np.errstate(divide="ignore", invalid="ignore"):
        odds_inside = inside / (of_label + prior - inside)
        odds_outside = outside / (total - of_label + prior - outside)
        ratio = np.log(odds_inside / odds_outside)
    return ratio, ratio / np.sqrt(1 / inside + 1 / outside)


def _fisher(counts: FloatArray, sizes: FloatArray) -> FloatArray:
    """Twice the smaller tail of the hypergeometric distribution, at most 1; (tokens, labels)."""
    from scipy.stats import hypergeom

    of_token = np.broadcast_to(counts.sum(axis=1, keepdims=True), counts.shape)
    of_label = np.broadcast_to(sizes, counts.shape)
    cases = np.stack([counts, of_token, of_label], axis=-1).reshape(-1, 3)
    distinct, place = np.unique(cases, axis=0, return_inverse=True)  # rare tokens have few different counts
    both, of_token, of_label = distinct.T
    most = hypergeom.sf(both - 1, sizes.sum(), of_token, of_label)
    least = hypergeom.cdf(both, sizes.sum(), of_token, of_label)
    tail: FloatArray = np.clip(2 * np.minimum(most, least), 0.0, 1.0)
    return tail[place.reshape(-1)].reshape(counts.shape)


def _adjust(p_values: FloatArray, correction: str) -> FloatArray:
    if correction == "holm":
        return np.array(holm(p_values.tolist()))
    from scipy.stats import false_discovery_control

    adjusted: FloatArray = false_discovery_control(p_values, method="bh")
    return adjusted
