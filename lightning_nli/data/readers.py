"""Sources to checked corpora. What each corpus' files look like stands in `source_specs.py`."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Literal

import polars as pl

from lightning_nli.data.identity import assign_ids, fingerprint
from lightning_nli.data.schema import EXAMPLE_SCHEMA, LABEL_DTYPE, SPLIT_DTYPE, BadRow, Corpus, check_examples
from lightning_nli.data.source_specs import (
    EXTRA,
    NO_GOLD_LABEL,
    PLAIN_COLUMNS,
    READERS,
    SPELLINGS,
    SourceSpec,
    looks_like_contract_nli,
    sniff,
)
from lightning_nli.data.sources import SourceRequest, corpus_name, find_files, parse_source
from lightning_nli.data.tables import ROW, iter_rows, match_columns, read_table, require_columns
from lightning_nli.data.text import (
    LOOKALIKE_LETTERS,
    REMOVED_CHARACTERS,
    SPACE_CHARACTERS,
    normalize_expr,
    normalize_text,
)
from lightning_nli.data.values import (
    ParsedColumn,
    Parser,
    nearest,
    parse_chapter,
    parse_column,
    parse_date,
    parse_domains,
    parse_rule,
    parse_split,
    ratings_parser,
)
from lightning_nli.types import (
    BINARY,
    SCHEMES,
    SEGMENT_NAMES,
    THREE_WAY,
    WILLS,
    LabelScheme,
    Split,
    UserError,
    fold_labels,
)

__all__ = ["READERS", "SPELLINGS", "SourceSpec", "fingerprint", "iter_rows", "pick_columns", "read_source"]

log = logging.getLogger(__name__)

FILE = "__file__"
MAX_ROWS_SHOWN = 10
REPAIRED = "; repaired"


def read_source(
    source: str,
    *,
    on_bad_row: Literal["error", "drop"] = "error",
    labelled: bool = True,
    normalize: bool = True,
    scheme: str | None = None,
    in_mixture: bool = False,
) -> Corpus:
    """Read a source (`data/sources.py` has the grammar) into a checked corpus.

    Args:
        source: What to read.
        on_bad_row: `error` refuses a source with unusable rows; `drop` leaves them out and lists them in the corpus.
        labelled: False: labels may be absent, and those that cannot be read are null.
        normalize: Keep texts in normal form; False: as they stand in the file.
        scheme: Name of the label scheme wanted; labels of a finer one are folded into it, and noted.
        in_mixture: Whether a share (`@2000`, `@0.5`) makes sense here.

    Raises:
        UserError: the source, a column, the scheme or (`on_bad_row="error"`) a row is at fault.
    """
    if scheme is not None and scheme not in SCHEMES:
        raise UserError(f"unknown label scheme '{scheme}'{nearest(scheme, SCHEMES)} Schemes: {', '.join(SCHEMES)}")
    request = parse_source(source, READERS)
    if (request.mix_rows or request.mix_weight) and not in_mixture:
        raise UserError(f"source '{source}': a share after '@' is for training rows (--data of `lnli fit`)")
    corpus = (
        _read_sample(request, source) if request.path is None else _read(request, source, on_bad_row, labelled, scheme)
    )
    if normalize:
        texts = normalize_expr(pl.col("premise", "hypothesis", "condition"))
        corpus = replace(corpus, frame=corpus.frame.with_columns(texts))
    else:
        corpus = replace(corpus, notes=tuple(note for note in corpus.notes if not note.endswith(REPAIRED)))
    if scheme is not None:
        corpus = _fold(corpus, SCHEMES[scheme])
    frame = check_examples(_under_split(corpus.frame, request.as_split), corpus.scheme, labelled=labelled)
    return replace(corpus, frame=frame, mix_rows=request.mix_rows, mix_weight=request.mix_weight)


def _read(request: SourceRequest, source: str, on_bad_row: str, labelled: bool, wanted: str | None) -> Corpus:
    assert request.path is not None
    spec = _spec_of(request)
    if request.labels:
        spec = replace(spec, spellings={_label_key(raw): label for raw, label in request.labels.items()}, scheme=None)
    table, notes = _read_files(request, spec, labelled=labelled)
    scheme = spec.scheme or _choose_scheme(table, spec, source, wanted, labelled=labelled)
    examples, problems = _convert(table, spec, scheme, labelled=labelled)
    notes += _repairs(table)
    notes += spec.audit(table) if spec.audit else []
    if request.reader is None and spec.reader != "plain":
        notes.insert(0, f"read as {spec.reader}, by its columns; {spec.reader}:PATH says so, plain:PATH overrules it")
        log.info("%s: %s", source, notes[0])
    examples = _with_ids(examples, table, spec, request.path)
    bad_rows = _bad_rows(table, problems)
    if bad_rows and on_bad_row == "error":
        raise UserError(_refusal(source, bad_rows))
    usable = examples.filter(pl.all_horizontal(reasons.is_null() for reasons in problems.values()))
    return Corpus(
        frame=usable,
        scheme=scheme,
        source=source,
        split_unit=spec.split_unit,
        bad_rows=tuple(bad_rows),
        extra_columns=_extra_columns(table),
        notes=tuple(notes),
    )


def _spec_of(request: SourceRequest) -> SourceSpec:
    """The reader named, or the one that the columns of the (first) file speak for."""
    assert request.path is not None
    if request.reader is not None:
        return READERS[request.reader]
    file = find_files(request.path)[0][0]
    if looks_like_contract_nli(file):
        return READERS["contractnli"]
    first_rows = next(iter_rows(file, chunk_rows=1), None)
    return sniff([] if first_rows is None else first_rows.columns)


def _under_split(frame: pl.DataFrame, split: Split | None) -> pl.DataFrame:
    return frame if split is None else frame.with_columns(split=pl.lit(split.value).cast(SPLIT_DTYPE))


def _fold(corpus: Corpus, scheme: LabelScheme) -> Corpus:
    """The corpus under another scheme, with a note of what was folded.

    Raises:
        UserError: the wanted scheme is finer than the corpus' own.
    """
    if corpus.scheme == scheme:
        return corpus
    try:
        folds = fold_labels(corpus.scheme, scheme)
    except UserError as error:
        raise UserError(f"source '{corpus.source}': {error}") from error
    names = {old.value: new.value for old, new in folds.items()}
    fold = pl.element().struct.with_fields(pl.field("label").cast(pl.String).replace(names).cast(LABEL_DTYPE))
    frame = corpus.frame.with_columns(
        pl.col("label").cast(pl.String).replace(names).cast(LABEL_DTYPE), pl.col("ratings").list.eval(fold)
    )
    text = ", ".join(f"{old} -> {new}" for old, new in names.items())
    return replace(corpus, frame=frame, scheme=scheme, notes=(*corpus.notes, f"labels folded: {text}"))


def pick_columns(frame: pl.DataFrame) -> dict[str, str]:
    """Map `premise`, `hypothesis` and, where present, `condition` and `id` to the raw columns that hold them.

    Raises:
        UserError: there is no column for the premise or the hypothesis.
    """
    wanted = {name: PLAIN_COLUMNS[name] for name in ("premise", "hypothesis", "condition", "id")}
    picked = match_columns(frame.columns, wanted)
    require_columns(picked, ("premise", "hypothesis"), wanted, frame.columns, "the input")
    return picked


def _read_sample(request: SourceRequest, source: str) -> Corpus:
    from lightning_nli.data.sample import sample_corpus  # the grammar is only needed here

    if request.labels:
        raise UserError(f"source '{source}': the embedded corpus' labels have names; leave out what follows '::'")
    frame = sample_corpus(request.num_examples)
    if request.split:
        frame = frame.filter(pl.col("split") == request.split.value)
    return Corpus(frame=frame, scheme=BINARY, source=source)


def _read_files(request: SourceRequest, spec: SourceSpec, *, labelled: bool) -> tuple[pl.DataFrame, list[str]]:
    """Raw text columns under schema names, with `FILE`, `ROW` and `split`; only rows of the split asked for."""
    path, split = request.path, request.split
    assert path is not None
    files = find_files(path, spec.files)
    if path.is_dir() and split:
        there = [name.value for _, name in files if name]
        files = [(file, name) for file, name in files if name is split]
        if not files:
            raise UserError(f"{path} has no split '{split.value}'; it has {', '.join(dict.fromkeys(there))}")
    table = pl.concat([_read_file(file, name, spec, labelled=labelled) for file, name in files], how="diagonal")
    notes = []
    for column, value in spec.keep.items():
        if column in table.columns and table[column].count():
            kept = table.filter(pl.col(column).str.strip_chars().str.to_lowercase() == value)
            notes += [f"{table.height - kept.height} rows of another {column} than '{value}' left aside"] * (
                kept.height < table.height
            )
            table = kept
    if table.is_empty():
        raise UserError(f"{path} has no rows of the {', '.join(spec.keep)} {', '.join(spec.keep.values())}")
    if split:
        parsed = parse_column(table["split"], parse_split, pl.String())
        chosen = table.filter((parsed.values == split.value).fill_null(False))
        if chosen.is_empty():
            there = parsed.values.drop_nulls().unique().sort().to_list()
            raise UserError(f"{path} has no rows of the split '{split.value}'; it has {there or 'no splits'}")
        table = chosen
    return table, notes


def _read_file(file: Path, split: Split | None, spec: SourceSpec, *, labelled: bool) -> pl.DataFrame:
    raw = spec.load(file) if spec.load else read_table(file)
    names = [name for name in raw.columns if name != ROW]
    wanted = {**spec.columns, **{f"rating:{rater}": (column,) for rater, column in spec.raters.items()}}
    picked = match_columns(names, wanted)
    require_columns(picked, ("premise", "hypothesis", *(("label",) if labelled else ())), wanted, names, str(file))
    used = {raw_name: name for name, raw_name in picked.items()}
    table = raw.rename({name: used.get(name, EXTRA + name) for name in names}).with_columns(pl.col(ROW).cast(pl.Int64))
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
    table: pl.DataFrame, spec: SourceSpec, source: str, wanted: str | None, *, labelled: bool
) -> LabelScheme:
    """The scheme wanted or else the first one that holds every label name found (without labels: binary).

    Raises:
        UserError: labels are bare numbers, or of two schemes.
    """
    schemes = [*([SCHEMES[wanted]] if wanted else []), BINARY, THREE_WAY, WILLS]
    if not labelled:
        return schemes[0]
    raw = table.filter(_is_gold(pl.col("label")))["label"].unique().sort().to_list()
    keys = set(map(_label_key, raw))
    if raw and not keys & set(spec.spellings) and all(re.fullmatch(r"[+-]?\d+", key) for key in keys):
        raise UserError(
            f"source '{source}': labels are bare numbers {raw[:5]}; corpora disagree on the order of the classes, so "
            f"it is not guessed: say what they mean, {source}::0=entailment,1=neutral,2=contradiction (an example), "
            "or use the corpus' own reader"
        )
    found = {spec.spellings[key] for key in keys if key in spec.spellings}
    fitting = [scheme for scheme in schemes if found <= set(scheme.labels)]
    if not fitting:
        names = sorted(label.value for label in found)
        raise UserError(f"source '{source}': the labels {names} are of no one scheme; split the file or mend them")
    return fitting[0]


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
            text.str.contains(f"[{''.join(LOOKALIKE_LETTERS)}]").sum().alias("holds eth in place of đ"),
        ).row(0, named=True)
        notes += [f"{count} rows: the {name} {what}{REPAIRED}" for what, count in counts.items() if count]
    return notes


def _extra_columns(table: pl.DataFrame) -> dict[str, int]:
    return {name.removeprefix(EXTRA): table[name].count() for name in table.columns if name.startswith(EXTRA)}
