"""Rows cut into bins by what they are, and the scores of every bin with its interval."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import polars as pl

from lightning_nli.analysis.document import file_name
from lightning_nli.data.text import LOOKALIKE_LETTERS, REMOVED_CHARACTERS, SPACE_CHARACTERS
from lightning_nli.statistics import MIN_LAWS, Estimate, Statistic, jackknife, macro_f1, ratio
from lightning_nli.types import DOMAINS, Label, LabelScheme

FEW_ROWS = 50
"""A bin of fewer rows is marked: one row moves its accuracy by more than two points."""

NUM_QUANTILES = 5

PAPER, QUANTILES, VALUES = "paper", "quantiles", "values"
"""How a slice is cut: at a paper's edges (ViANLI's for ViANLI, ViLegalNLI's for all others), into bins of equal size,
by the value itself."""

_LENGTHS_LEGAL, _LENGTHS_VIANLI = (20, 40, 60), (5, 10, 15, 20, 25, 30)
_TENS, _FIFTHS = tuple(range(10, 90, 10)), (20, 40, 60, 80)
_AGES = (5, 10, 15, 20)
_UNICODE_FORMS = ("NFC", "NFC, with invisible marks or look-alike letters", "not NFC")
_DAYS_PER_YEAR = 365.25
_FIGURES = {"vilegalnli": "ViLegalNLI, section 7", "vianli": "ViANLI, section 7"}


@dataclass(frozen=True)
class Slice:
    """One way to cut the rows.

    Attributes:
        name: For file names.
        title: For people, with the unit.
        cut: `paper`, `quantiles` or `values`.
        bins: Names of the bins in order.
        rows: `example_id`, `bin`; a row may stand in several bins (its domains), or in none.
        num_without: Rows without a value.
        source: What of the corpus' own paper it corresponds to; empty: nothing.
        one_label: Whether each bin holds rows of one gold label: its accuracy is that label's recall.
        run: The only run it is for (its own tokenizer); empty: all.
    """

    name: str
    title: str
    cut: str
    bins: tuple[str, ...]
    rows: pl.DataFrame
    num_without: int
    source: str = ""
    one_label: bool = False
    run: str = ""


@dataclass(frozen=True)
class BinScore:
    """Scores of one run on one bin.

    Attributes:
        bin: Name of the bin.
        num_rows: Rows of it.
        accuracy: Over laws (`scored_unit`).
        macro_f1: None where the bin holds rows of one gold label.
    """

    bin: str
    num_rows: int
    accuracy: Estimate
    macro_f1: Estimate | None

    @property
    def is_few(self) -> bool:
        return self.num_rows < FEW_ROWS or self.accuracy.num_laws < MIN_LAWS


def scored_unit(frame: pl.DataFrame) -> str:
    """The column whose values count as independent: `law_id` if every row has one, else `group_id`, `premise_id`."""
    return next((name for name in ("law_id", "group_id") if not frame[name].null_count()), "premise_id")


def describe_rows(rows: pl.DataFrame) -> pl.DataFrame:
    """Add what rows are cut by, as far as the corpus tells; null: not known.

    Args:
        rows: `EXAMPLE_SCHEMA`.

    Returns:
        With `hypothesis_syllables`, `premise_syllables` (words between white space), `agreement` ("2 of 3": known
        ratings that are the gold label), `law_age` (years before the newest law of `rows`) beside.
    """
    rated = pl.col("ratings").list.eval(pl.element().struct.field("label").cast(pl.String)).list.drop_nulls()
    known = rated.list.len()
    gold = pl.col("label").cast(pl.String)
    agree = pl.sum_horizontal((gold == name.value) * rated.list.count_matches(name.value) for name in Label)
    age = (pl.col("law_date").max() - pl.col("law_date")).dt.total_days() / _DAYS_PER_YEAR
    return rows.with_columns(
        hypothesis_syllables=pl.col("hypothesis").str.count_matches(r"\S+").cast(pl.Float64),
        premise_syllables=pl.col("premise").str.count_matches(r"\S+").cast(pl.Float64),
        agreement=pl.when(known > 0).then(pl.format("{} of {}", agree, known)),
        law_age=age,
    )


def unicode_form(raw: pl.DataFrame) -> pl.Series:
    """How each row's texts are encoded in the source (`raw`: as they stand there)."""
    marks = f"[{REMOVED_CHARACTERS}{SPACE_CHARACTERS}{''.join(LOOKALIKE_LETTERS)}]"
    texts = [pl.col(name).fill_null("") for name in ("premise", "hypothesis", "condition")]
    is_nfc = pl.all_horizontal(text == text.str.normalize("NFC") for text in texts)
    has_marks = pl.any_horizontal(text.str.contains(marks) for text in texts)
    plain, marked, other = (pl.lit(name) for name in _UNICODE_FORMS)
    return raw.select(pl.when(~is_nfc).then(other).when(has_marks).then(marked).otherwise(plain)).to_series()


def cut_rows(rows: pl.DataFrame, scheme: LabelScheme) -> list[Slice]:
    """Every slice that the rows have values for.

    Args:
        rows: Of `describe_rows`; with `jaccard new_word_rate lcs vianli_overlap` (shares) and `unicode_form` where
            they were measured.
        scheme: Labels, for the slices by label.
    """
    corpora = rows["corpus"].unique().to_list()
    is_vianli = corpora == ["vianli"]
    figure = _FIGURES.get(corpora[0], "") if len(corpora) == 1 else ""
    lengths = _LENGTHS_VIANLI if is_vianli else _LENGTHS_LEGAL
    shares = _TENS if is_vianli else None
    jaccard = shares or (10, 20, 30, 40)
    numeric: list[tuple[str, str, tuple[int, ...], float]] = [
        ("hypothesis_syllables", "hypothesis length (syllables)", lengths, 1),
        ("premise_syllables", "premise length (syllables)", lengths if is_vianli else (), 1),
        ("jaccard", "Jaccard index of the words (percent)", jaccard, 100),
        ("vianli_overlap", "word overlap by ViANLI's formula (1) (percent)", _TENS if is_vianli else (), 100),
        ("lcs", "longest common subsequence (percent of the longer text)", () if is_vianli else _FIFTHS, 100),
        ("new_word_rate", "new words of the hypothesis (percent)", shares or _FIFTHS, 100),
        ("law_age", "age of the law (years before the newest of the set)", _AGES, 1),
    ]
    found: list[Slice] = []
    for column, title, edges, scale in numeric:
        if column in rows.columns:
            values = rows.select("example_id", value=pl.col(column) * scale)
            cut = VALUES if column == "law_age" else PAPER
            source = figure if cut == PAPER else ""
            found += [_cut_at(column, title, values, edges, cut, source)] if edges else []
            found += _cut_evenly(column, title, values)
    found += [_by_value("label", "gold label", rows, pl.col("label").cast(pl.String), scheme.names, one_label=True)]
    found += [_by_value("domain", "field of law", rows, pl.col("domains").cast(pl.List(pl.String)), list(DOMAINS))]
    found += _by_rule(rows, scheme)
    found += [_by_value("agreement", "validators who gave the gold label", rows, pl.col("agreement"))]
    if "unicode_form" in rows.columns:
        form = pl.col("unicode_form")
        found += [_by_value("unicode_form", "Unicode form in the source", rows, form, list(_UNICODE_FORMS))]
    return [one for one in found if one.bins]


def whole_slice(rows: pl.DataFrame) -> Slice:
    """All rows as one bin."""
    return _by_value("all", "all rows", rows, pl.lit("all rows"))


def truncation_slice(run: str, lengths: Sequence[int], ids: pl.Series, max_length: int) -> Slice:
    """Rows that a run's model saw in full, and those it did not.

    Args:
        run: Its name.
        lengths: (N,) tokens of each row before truncation, special tokens included.
        ids: Of the rows.
        max_length: Of the run.
    """
    names = (f"up to {max_length} tokens", f"truncated at {max_length} tokens")
    values = pl.Series([names[int(length > max_length)] for length in lengths], dtype=pl.String)
    rows = pl.DataFrame({"example_id": ids, "bin": values})
    return Slice(f"truncation-{file_name(run)}", f"truncation ({run})", VALUES, _present(names, rows), rows, 0, run=run)


def score_bins(one: Slice, answers: pl.DataFrame, scheme: LabelScheme, *, floor_rows: int = 1) -> list[BinScore]:
    """Scores of every bin of a slice that holds at least `floor_rows` rows.

    Args:
        one: The slice.
        answers: `example_id`, `gold`, `answer` (class indices), `unit` (law).
        scheme: Labels.
        floor_rows: Smaller bins are left out.
    """
    size = len(scheme.labels)
    joined = one.rows.join(answers, on="example_id", how="inner").with_columns(
        right=(pl.col("gold") == pl.col("answer")).cast(pl.Float64)
    )
    cells = [
        ((pl.col("gold") == gold) & (pl.col("answer") == answer)).sum().cast(pl.Float64).alias(f"{gold}-{answer}")
        for gold in range(size)
        for answer in range(size)
    ]
    sums = joined.group_by("bin", "unit").agg(pl.col("right").sum(), pl.len().cast(pl.Float64).alias("rows"), *cells)
    counts = {key[0]: part.sort("unit") for key, part in sums.partition_by("bin", as_dict=True).items()}
    scores = []
    for name in one.bins:
        part = counts.get(name)
        if part is None or part["rows"].sum() < floor_rows:
            continue
        laws = part["rows"].to_numpy()
        accuracy = jackknife(part.select("right", "rows").to_numpy(), ratio, sizes=laws).within(0, 1)
        f1 = (
            None
            if one.one_label
            else jackknife(part.select(pl.nth(range(4, 4 + size**2))).to_numpy(), macro_f1, sizes=laws).within(0, 1)
        )
        scores.append(BinScore(name, int(laws.sum()), accuracy, f1))
    return scores


def estimate_over(frame: pl.DataFrame, columns: Sequence[str], statistic: Statistic = ratio) -> Estimate:
    """A figure of sums of `columns`, with its interval over the values of `unit`.

    Args:
        frame: One row an example: `unit` and `columns`.
        columns: Of the sums, in the order that `statistic` takes them; `rows` counts the rows.
        statistic: The figure.
    """
    sums = (
        frame.with_columns(rows=pl.lit(1.0))
        .group_by("unit")
        .agg(pl.col(list({*columns, "rows"})).cast(pl.Float64).sum())
        .sort("unit")
    )
    return jackknife(sums.select(columns).to_numpy(), statistic, sizes=sums["rows"].to_numpy())


def _cut_at(column: str, title: str, values: pl.DataFrame, edges: Sequence[float], cut: str, source: str = "") -> Slice:
    """Bins that end at the edges, each edge inside the lower bin; named as whole numbers as the papers do."""
    lower = [0, *(edge + 1 for edge in edges[:-1])]
    names = [f"{start:g}-{end:g}" for start, end in zip(lower, edges, strict=True)] + [f"> {edges[-1]:g}"]
    rows = _binned(values, edges, names)
    missing = values["value"].null_count()
    return Slice(_file_name(column, cut), title, cut, _present(names, rows), rows, missing, source)


def _cut_evenly(column: str, title: str, values: pl.DataFrame) -> list[Slice]:
    """Fifths of the rows; equal values stay together, so there may be fewer bins. None if all values are one."""
    known = values["value"].drop_nulls()
    if known.n_unique() < 2:
        return []
    shares = [step / NUM_QUANTILES for step in range(1, NUM_QUANTILES)]
    edges = sorted({float(known.quantile(share, "nearest") or 0) for share in shares} - {float(known.max())})  # type: ignore[arg-type]
    if not edges:
        return []
    ends = [float(known.min()), *edges, float(known.max())]  # type: ignore[arg-type]
    names = [f"{_short(low)} to {_short(high)}" for low, high in pairwise(ends)]
    names = [name if place == 0 else f"over {name}" for place, name in enumerate(names)]
    rows = _binned(values, edges, names)
    missing = values["value"].null_count()
    return [Slice(_file_name(column, QUANTILES), title, QUANTILES, _present(names, rows), rows, missing)]


def _binned(values: pl.DataFrame, edges: Sequence[float], names: Sequence[str]) -> pl.DataFrame:
    known = values.drop_nulls()
    places = np.searchsorted(np.asarray(edges, np.float64), known["value"].to_numpy(), side="left")
    return known.select("example_id", bin=pl.Series([names[place] for place in places], dtype=pl.String))


def _by_rule(rows: pl.DataFrame, scheme: LabelScheme) -> list[Slice]:
    """By rule and by number of rules, each label apart: a rule id means another thing under another label."""
    found = []
    for label in scheme.names:
        mine = rows.filter((pl.col("label").cast(pl.String) == label) & (pl.col("rule").list.len() > 0))
        if mine.is_empty():
            continue
        words = label.replace("_", "-")
        makers: list[tuple[str, str, Callable[[], pl.Expr]]] = [
            ("rule", f"{words} rule", lambda: pl.col("rule").list.unique().cast(pl.List(pl.String))),
            ("num_rules", f"number of {words} rules", lambda: pl.col("rule").list.n_unique().cast(pl.String)),
        ]
        for name, title, make in makers:
            one = _by_value(f"{name}-{words}", title, mine, make(), one_label=True)
            found.append(one)
    return found


def _by_value(
    name: str, title: str, rows: pl.DataFrame, value: pl.Expr, order: Sequence[str] = (), *, one_label: bool = False
) -> Slice:
    """One bin a value, in the order given, else sorted (numbers by size); a list puts its row into several bins."""
    table = rows.select("example_id", bin=value)
    if isinstance(table.schema["bin"], pl.List):
        table = table.explode("bin", empty_as_null=True)
    missing = table["bin"].null_count()
    table = table.drop_nulls()
    names = list(order) or sorted(table["bin"].unique(), key=lambda text: (not text.isdigit(), text.zfill(9)))
    return Slice(_file_name(name, VALUES), title, VALUES, _present(names, table), table, missing, one_label=one_label)


def _present(names: Sequence[str], rows: pl.DataFrame) -> tuple[str, ...]:
    found = set(rows["bin"].unique())
    return tuple(name for name in names if name in found)


def _file_name(column: str, cut: str) -> str:
    name = column.replace("_", "-")
    return name if cut == VALUES else f"{name}-{cut}"


def _short(value: float) -> str:
    return f"{value:.0f}" if value == int(value) else f"{value:.1f}"
