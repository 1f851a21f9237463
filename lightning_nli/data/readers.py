"""Sources to checked corpora. The only place where the label spellings and column names of the world's files stand.

A new corpus is one more `SourceSpec` in `READERS`, with a small `audit` function where its files need one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import polars as pl

from lightning_nli.data.identity import IdMeaning, assign_ids, fingerprint
from lightning_nli.data.schema import EXAMPLE_SCHEMA, LABEL_DTYPE, BadRow, Corpus, check_examples
from lightning_nli.data.sources import SourceRequest, corpus_name, find_files, parse_source
from lightning_nli.data.tables import ROW, iter_rows, match_columns, read_table, require_columns
from lightning_nli.data.text import REMOVED_CHARACTERS, SPACE_CHARACTERS, normalize_expr, normalize_text
from lightning_nli.data.values import (
    ParsedColumn,
    Parser,
    nearest,
    parse_chapter,
    parse_column,
    parse_date,
    parse_domains,
    parse_point,
    parse_rule,
    parse_split,
    ratings_parser,
)
from lightning_nli.types import BINARY, SCHEMES, SEGMENT_NAMES, THREE_WAY, WILLS, Label, LabelScheme, Split, UserError

__all__ = ["READERS", "SourceSpec", "fingerprint", "iter_rows", "pick_columns", "read_source"]

FILE = "__file__"
EXTRA = "extra:"  # prefix, while reading, of columns that the schema does not hold
MAX_ROWS_SHOWN = 10

NO_GOLD_LABEL = frozenset({"", "-", "-1", "-1.0"})

SPELLINGS: dict[str, Label] = {
    spelling: label
    for label, spellings in {
        Label.ENTAILMENT: "entailment entailed entails entail",
        Label.NON_ENTAILMENT: "non_entailment not_entailment nonentailment notentailment not_entailed non_entailed "
        "no_entailment",
        Label.NEUTRAL: "neutral",
        Label.CONTRADICTION: "contradiction contradictory contradicts contradict contradicted",
        Label.REFUTE: "refute refutes refuted",
        Label.SUPPORT: "support supports supported",
        Label.UNRELATED: "unrelated",
    }.items()
    for spelling in spellings.split()
}
"""Spellings of label names, compared in lower case with `_` for each run of spaces, hyphens and underscores."""


@dataclass(frozen=True)
class SourceSpec:
    """How the files of one corpus are read.

    Attributes:
        reader: Name in `READER:PATH`.
        columns: Schema column (and `id`, the given id) -> names in the files; the first found is read, case ignored.
        scheme: The corpus' label scheme; None: the one that fits the labels found.
        spellings: Raw label -> label.
        split_unit: Column whose values never straddle a drawn split.
        ids: What the files' ids stand for.
        raters: Rater -> column with the rater's label.
        parsers: Column -> parser that replaces the usual one.
        audit: Looks at the raw text columns once more and notes what is odd.
    """

    reader: str
    columns: Mapping[str, tuple[str, ...]]
    scheme: LabelScheme | None = None
    spellings: Mapping[str, Label] = field(default_factory=lambda: SPELLINGS)
    split_unit: str = "premise_id"
    ids: IdMeaning = IdMeaning.EXAMPLE
    raters: Mapping[str, str] = field(default_factory=dict)
    parsers: Mapping[str, Parser] = field(default_factory=dict)
    audit: Callable[[pl.DataFrame], list[str]] | None = None


def _audit_vilegalnli(table: pl.DataFrame) -> list[str]:
    """`Agreements` counts the models that agree with `Label`; `FF` stands for `F` in `Tag Point`."""
    notes = []
    raters = [name for name in table.columns if name.startswith("rating:")]
    if f"{EXTRA}Agreements" in table.columns and raters:
        agreeing = pl.sum_horizontal((pl.col(name) == pl.col("label")).fill_null(False) for name in raters)
        stated = pl.col(f"{EXTRA}Agreements").cast(pl.Float64, strict=False)
        wrong = table.select((stated.ne_missing(agreeing)).sum()).item()
        notes += [f"'Agreements' is not the number of raters who agree with the label in {wrong} rows"] * (wrong > 0)
    if "point" in table.columns:
        stray = table["point"].drop_nulls()
        stray = stray.filter(~stray.str.contains(r"^(F|T_.+)$"))
        notes += [f"'Tag Point' had {len(stray)} stray values {stray.unique().sort().to_list()}"] * (len(stray) > 0)
    return notes


_PLAIN_COLUMNS = {name: (name,) for name in EXAMPLE_SCHEMA if name != "example_id"} | {
    "id": ("id", "example_id", "uid"),
    "premise": ("premise", "sentence1", "context", "law", "text"),
    "hypothesis": ("hypothesis", "sentence2", "statement", "text_pair"),
    "condition": ("condition", "conditions"),
    "label": ("label", "gold_label", "gold", "classification"),
    "domains": ("domain", "domains"),
}

READERS: dict[str, SourceSpec] = {
    spec.reader: spec
    for spec in (
        SourceSpec(reader="plain", columns=_PLAIN_COLUMNS),
        SourceSpec(reader="sample", columns={}, scheme=BINARY),
        SourceSpec(  # its `Law Field` repeats the name of the law and is never a domain
            reader="vilegalnli",
            columns={
                "premise": ("Premise",),
                "hypothesis": ("Hypothesis",),
                "label": ("Label",),
                "law_id": ("Law ID",),
                "law_name": ("Law Name",),
                "law_date": ("Law Date",),
                "chapter": ("Chapter",),
                "section": ("Section",),
                "article": ("Article",),
                "clause": ("Clause",),
                "point": ("Tag Point",),
                "rule": ("Rule",),
                "domains": ("Field of Law",),
            },
            scheme=BINARY,
            spellings={"0": Label.NON_ENTAILMENT, "1": Label.ENTAILMENT},
            raters={"gpt": "GPT Label", "deepseek": "Deepseek Label", "llama": "Llama Label"},
            parsers={"point": parse_point},
            audit=_audit_vilegalnli,
        ),
    )
}


def read_source(
    source: str,
    *,
    on_bad_row: Literal["error", "drop"] = "error",
    labelled: bool = True,
    normalize: bool = True,
    scheme: str | None = None,
) -> Corpus:
    """Read `READER:PATH[#SPLIT]`, `sample[:N][#SPLIT]` or a bare path into a checked corpus.

    Args:
        source: What to read.
        on_bad_row: `error` refuses a source with unusable rows; `drop` leaves them out and lists them in the corpus.
        labelled: False: labels may be absent, and those that cannot be read are null.
        normalize: Keep texts in normal form; False: as they stand in the file.
        scheme: Name of the label scheme, where the labels found should not decide.

    Raises:
        UserError: the source, a column, the scheme or (`on_bad_row="error"`) a row is at fault.
    """
    if scheme is not None and scheme not in SCHEMES:
        raise UserError(f"unknown label scheme '{scheme}'{nearest(scheme, SCHEMES)} Schemes: {', '.join(SCHEMES)}")
    request = parse_source(source, READERS)
    spec = READERS[request.reader]
    wanted = SCHEMES[scheme] if scheme else None
    if spec.scheme and wanted not in (None, spec.scheme):
        raise UserError(f"source '{source}': the labels of {spec.reader} are of the scheme '{spec.scheme.name}'")
    if request.path is None:
        return _read_sample(request, source)
    table = _read_files(request.path, request.split, spec, labelled=labelled)
    chosen = spec.scheme or _choose_scheme(table, spec, wanted, source, labelled=labelled)
    examples, problems = _convert(table, spec, chosen, labelled=labelled)
    notes = _repairs(table) if normalize else []
    notes += spec.audit(table) if spec.audit else []
    examples = _with_ids(examples, table, spec, request.path)
    if normalize:
        examples = examples.with_columns(normalize_expr(pl.col("premise", "hypothesis", "condition")))
    bad_rows = _bad_rows(table, problems)
    if bad_rows and on_bad_row == "error":
        raise UserError(_refusal(source, bad_rows))
    usable = examples.filter(pl.all_horizontal(reasons.is_null() for reasons in problems.values()))
    return Corpus(
        frame=check_examples(usable, chosen, labelled=labelled),
        scheme=chosen,
        source=source,
        split_unit=spec.split_unit,
        bad_rows=tuple(bad_rows),
        extra_columns=_extra_columns(table),
        notes=tuple(notes),
    )


def pick_columns(frame: pl.DataFrame) -> dict[str, str]:
    """Map `premise`, `hypothesis` and, where present, `condition` and `id` to the raw columns that hold them.

    Raises:
        UserError: there is no column for the premise or the hypothesis.
    """
    wanted = {name: _PLAIN_COLUMNS[name] for name in ("premise", "hypothesis", "condition", "id")}
    picked = match_columns(frame.columns, wanted)
    require_columns(picked, ("premise", "hypothesis"), wanted, frame.columns, "the input")
    return picked


def _read_sample(request: SourceRequest, source: str) -> Corpus:
    from lightning_nli.data.sample import sample_corpus  # the grammar is only needed here

    frame = sample_corpus(request.num_examples)
    if request.split:
        frame = frame.filter(pl.col("split") == request.split.value)
    return Corpus(frame=check_examples(frame, BINARY), scheme=BINARY, source=source)


def _read_files(path: Path, split: Split | None, spec: SourceSpec, *, labelled: bool) -> pl.DataFrame:
    """Raw text columns under schema names, with `FILE`, `ROW` and `split`; only rows of the split asked for."""
    files = find_files(path)
    if path.is_dir() and split:
        there = [name.value for _, name in files if name]
        files = [(file, name) for file, name in files if name is split]
        if not files:
            raise UserError(f"{path} has no split '{split.value}'; it has {', '.join(there)}")
    tables = [_read_file(file, name, spec, labelled=labelled) for file, name in files]
    table = pl.concat(tables, how="diagonal")
    if split:
        parsed = parse_column(table["split"], parse_split, pl.String())
        chosen = table.filter((parsed.values == split.value).fill_null(False))
        if chosen.is_empty():
            there = parsed.values.drop_nulls().unique().sort().to_list()
            raise UserError(f"{path} has no rows of the split '{split.value}'; it has {there or 'no splits'}")
        table = chosen
    return table


def _read_file(file: Path, split: Split | None, spec: SourceSpec, *, labelled: bool) -> pl.DataFrame:
    raw = read_table(file)
    names = [name for name in raw.columns if name != ROW]
    wanted = {**spec.columns, **{f"rating:{rater}": (column,) for rater, column in spec.raters.items()}}
    picked = match_columns(names, wanted)
    require_columns(picked, ("premise", "hypothesis", *(("label",) if labelled else ())), wanted, names, str(file))
    used = {raw_name: name for name, raw_name in picked.items()}
    table = raw.rename({name: used.get(name, EXTRA + name) for name in names})
    given_split = pl.col("split") if "split" in picked else pl.lit(None, pl.String)
    absent = [pl.lit(None, pl.String).alias(name) for name in wanted if name not in picked]
    published = pl.lit(split.value if split else None, pl.String)
    return table.with_columns(absent).with_columns(
        pl.lit(str(file)).alias(FILE),
        pl.coalesce(pl.when(given_split.str.strip_chars() != "").then(given_split), published).alias("split"),
    )


def _label_key(text: str) -> str:
    return re.sub(r"[\s_-]+", "_", re.sub(r"\.0+$", "", normalize_text(text).casefold()))


def _is_gold(label: pl.Expr) -> pl.Expr:
    return label.is_not_null() & ~label.str.strip_chars().is_in(sorted(NO_GOLD_LABEL))


def _choose_scheme(
    table: pl.DataFrame, spec: SourceSpec, wanted: LabelScheme | None, source: str, *, labelled: bool
) -> LabelScheme:
    """Return the scheme wanted, or else the first that holds every label name found (without labels: binary).

    Raises:
        UserError: labels are bare numbers, or of two schemes.
    """
    if not labelled:
        return wanted or BINARY
    raw = table.filter(_is_gold(pl.col("label")))["label"].unique().sort().to_list()
    if raw and all(re.fullmatch(r"\s*[+-]?\d+(\.0+)?\s*", text) for text in raw):
        raise UserError(
            f"source '{source}': labels are bare numbers {raw[:5]}; corpora disagree on the order of the classes, so "
            "it is not guessed: write names (entailment, neutral, contradiction ...) or use the corpus' own reader"
        )
    found = {spec.spellings[key] for key in map(_label_key, raw) if key in spec.spellings}
    fitting = [scheme for scheme in (BINARY, THREE_WAY, WILLS) if found <= set(scheme.labels)]
    if not (wanted or fitting):
        names = sorted(label.value for label in found)
        raise UserError(f"source '{source}': the labels {names} are of no one scheme; split the file or mend them")
    return wanted or fitting[0]


def _label_parser(spec: SourceSpec, scheme: LabelScheme) -> Parser:
    def parse(text: str) -> str | None:
        if text.strip() in NO_GOLD_LABEL:
            return None
        label = spec.spellings.get(_label_key(text))
        if label is None:
            raise ValueError(f"unknown label '{text}'{nearest(_label_key(text), spec.spellings)}")
        if label not in scheme.labels:
            raise ValueError(f"the label '{label.value}' is not of the scheme '{scheme.name}' {scheme.names}")
        return label.value

    return parse


def _convert(
    table: pl.DataFrame, spec: SourceSpec, scheme: LabelScheme, *, labelled: bool
) -> tuple[pl.DataFrame, dict[str, pl.Series]]:
    """Typed columns of the schema, and for each column that can be at fault the reasons row by row."""
    parse_label = _label_parser(spec, scheme)
    parsers: dict[str, Parser] = {
        "label": parse_label,
        "domains": parse_domains,
        "rule": parse_rule,
        "ratings": ratings_parser(parse_label),
        "law_date": parse_date,
        "chapter": parse_chapter,
        "split": parse_split,
        **spec.parsers,
        **{f"rating:{rater}": parse_label for rater in spec.raters},
    }
    given = table.with_columns(pl.lit(None, pl.String).alias(n) for n in EXAMPLE_SCHEMA if n not in table.columns)
    tidy = given.with_columns(_blank_to_null(normalize_expr(pl.all().exclude(ROW, "id", *SEGMENT_NAMES))))
    dtypes = EXAMPLE_SCHEMA | {f"rating:{rater}": LABEL_DTYPE for rater in spec.raters}
    parsed = {name: parse_column(tidy[name], parse, dtypes[name]) for name, parse in parsers.items()}
    examples = tidy.with_columns(column.values.alias(name) for name, column in parsed.items())
    if spec.raters:
        rated = [pl.struct(rater=pl.lit(rater), label=pl.col(f"rating:{rater}")) for rater in spec.raters]
        examples = examples.with_columns(ratings=pl.concat_list(rated).cast(EXAMPLE_SCHEMA["ratings"]))
    examples = examples.with_columns(
        _blank_to_null(pl.col("condition"), normalize_expr(pl.col("condition"))),
        pl.col("domains", "rule", "ratings").fill_null([]),
    )
    problems = {name: given.select(_text_problem(name)).to_series() for name in ("premise", "hypothesis")}
    problems |= {name: column.reasons for name, column in parsed.items()}
    if labelled:
        problems["label"] = _with_no_gold(parsed["label"])
    else:
        del problems["label"]
    return examples, problems


def _with_no_gold(label: ParsedColumn) -> pl.Series:
    no_gold = pl.when(pl.col("value").is_null()).then(pl.lit("no gold label"))
    frame = pl.DataFrame({"value": label.values, "reason": label.reasons})
    return frame.select(pl.coalesce("reason", no_gold)).to_series()


def _text_problem(name: str) -> pl.Expr:
    text = pl.col(name)
    empty = pl.when(normalize_expr(text) == "").then(pl.lit(f"the {name} is empty text"))
    return pl.when(text.is_null()).then(pl.lit(f"the {name} is missing")).otherwise(empty).alias(name)


def _blank_to_null(text: pl.Expr, judged: pl.Expr | None = None) -> pl.Expr:
    return pl.when((text if judged is None else judged) != "").then(text)


def _with_ids(examples: pl.DataFrame, table: pl.DataFrame, spec: SourceSpec, path: Path) -> pl.DataFrame:
    given = table["id"] if "id" in table.columns else pl.Series([None] * table.height, dtype=pl.String)
    part = table.select(pl.concat_str(FILE, pl.col("split").fill_null(""), separator="#")).to_series()
    name = spec.reader if spec.reader != "plain" else corpus_name(path)
    return assign_ids(examples, given, part, spec.ids).with_columns(pl.col("corpus").fill_null(name))


def _bad_rows(table: pl.DataFrame, problems: Mapping[str, pl.Series]) -> list[BadRow]:
    """The first fault of each faulty row, in source order, with the row's own id where it has one."""
    columns = [pl.when(reasons.is_not_null()).then(pl.lit(name)) for name, reasons in problems.items()]
    id_ = pl.col("id") if "id" in table.columns else pl.lit(None, pl.String)
    faults = table.select(
        FILE,
        ROW,
        id_.str.strip_chars().alias("id"),
        pl.coalesce(columns).alias("column"),
        pl.coalesce(problems.values()).alias("reason"),
    )
    return [
        BadRow(file, row, column, reason if given is None else f"{reason} (id {given})")
        for file, row, given, column, reason in faults.filter(pl.col("reason").is_not_null()).iter_rows()
    ]


def _refusal(source: str, bad_rows: list[BadRow]) -> str:
    shown = "\n".join(f"  {bad_row}" for bad_row in bad_rows[:MAX_ROWS_SHOWN])
    more = f"\n  and {len(bad_rows) - MAX_ROWS_SHOWN} more" if len(bad_rows) > MAX_ROWS_SHOWN else ""
    return f"source '{source}': {len(bad_rows)} unusable rows\n{shown}{more}\nuse --on-bad-row drop to leave them out"


def _repairs(table: pl.DataFrame) -> list[str]:
    """What normalizing the texts will change, counted by rows."""
    notes = []
    for name in (name for name in SEGMENT_NAMES if name in table.columns):
        text = pl.col(name)
        counts = table.select(
            (text != text.str.normalize("NFC")).sum().alias("is not in NFC"),
            text.str.contains(f"[{REMOVED_CHARACTERS}]").sum().alias("holds soft hyphens or zero-width marks"),
            text.str.contains(f"[{SPACE_CHARACTERS}]").sum().alias("holds no-break spaces"),
        ).row(0, named=True)
        notes += [f"{count} rows: the {name} {what}; repaired" for what, count in counts.items() if count]
    return notes


def _extra_columns(table: pl.DataFrame) -> dict[str, int]:
    return {name.removeprefix(EXTRA): table[name].count() for name in table.columns if name.startswith(EXTRA)}
