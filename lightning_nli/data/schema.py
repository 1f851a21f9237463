"""The one table every corpus becomes, and its check."""

from __future__ import annotations

from dataclasses import dataclass, field

import polars as pl

from lightning_nli.types import DOMAINS, Label, LabelScheme, Split, UserError

LABEL_DTYPE = pl.Enum([label.value for label in Label])
SPLIT_DTYPE = pl.Enum([split.value for split in Split])
DOMAIN_DTYPE = pl.Enum(list(DOMAINS))

EXAMPLE_SCHEMA: dict[str, pl.DataType] = {
    "corpus": pl.String(),
    "example_id": pl.String(),
    "premise": pl.String(),
    "hypothesis": pl.String(),
    "condition": pl.String(),  # null where the corpus has two segments
    "premise_id": pl.String(),
    "law_id": pl.String(),
    "group_id": pl.String(),
    "label": LABEL_DTYPE,  # null only in rows to predict
    "domains": pl.List(DOMAIN_DTYPE),  # empty: unknown
    "rule": pl.List(pl.Int64()),  # meaning depends on the label (ViLegalNLI, Table 6)
    "ratings": pl.List(pl.Struct({"rater": pl.String(), "label": LABEL_DTYPE})),
    "law_name": pl.String(),
    "law_date": pl.Date(),
    "chapter": pl.String(),
    "section": pl.String(),
    "article": pl.String(),
    "clause": pl.String(),
    "point": pl.String(),
    "split": SPLIT_DTYPE,  # null where the corpus publishes none
}


@dataclass(frozen=True)
class BadRow:
    """A row that cannot be used: where it stands, which column is at fault and why."""

    file: str
    row: int  # 1-based: data row of a table, line of a JSONL file
    column: str
    reason: str

    def __str__(self) -> str:
        return f"{self.file}, row {self.row}, column '{self.column}': {self.reason}"


@dataclass(frozen=True)
class Corpus:
    """A checked corpus: its table, its label scheme and what reading it dropped.

    Attributes:
        frame: Rows of `EXAMPLE_SCHEMA`, in source order.
        scheme: Fixes the class index of every label.
        source: The source as the user wrote it.
        split_unit: Column whose values never straddle a drawn split (`premise_id`; wills: `group_id`).
        bad_rows: Rows dropped by option.
        extra_columns: Columns of the source that the schema does not hold -> number of values in them.
        notes: Oddities that were repaired on reading, for people ("286 premises were not NFC").
        mix_rows: In a mixture, the most training rows to take; None: all.
        mix_weight: In a mixture, how often each training row counts; None: once.
    """

    frame: pl.DataFrame
    scheme: LabelScheme
    source: str
    split_unit: str = "premise_id"
    bad_rows: tuple[BadRow, ...] = ()
    extra_columns: dict[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    mix_rows: int | None = None
    mix_weight: float | None = None


def check_examples(frame: pl.DataFrame, scheme: LabelScheme, *, labelled: bool = True) -> pl.DataFrame:
    """Return `frame` in the column order of the schema, or raise.

    Raises:
        UserError: a column is missing or has another type, an id repeats, a text is empty, or a label is missing
            (when `labelled`) or foreign to the scheme. The message names the first offending example ids.
    """
    for name, dtype in EXAMPLE_SCHEMA.items():
        if name not in frame.columns:
            raise UserError(f"column '{name}' is missing from the example table")
        if frame.schema[name] != dtype:
            raise UserError(f"column '{name}' has type {frame.schema[name]}, expected {dtype}")
    ids = frame["example_id"]
    if ids.null_count() or ids.n_unique() != frame.height:
        repeated = ids.filter(ids.is_duplicated()).unique(maintain_order=True).head(5).to_list()
        raise UserError(f"example_id must be present and unique; repeated: {repeated}, missing: {ids.null_count()}")
    for name in ("premise", "hypothesis"):
        empty = frame.filter(pl.col(name).is_null() | (pl.col(name).str.strip_chars() == ""))["example_id"]
        if len(empty):
            raise UserError(f"{len(empty)} rows have an empty {name}: {empty.head(5).to_list()}")
    if labelled:
        allowed = pl.Series(scheme.names)
        foreign = frame.filter(pl.col("label").is_null() | ~pl.col("label").cast(pl.String).is_in(allowed.implode()))
        if foreign.height:
            raise UserError(
                f"{foreign.height} rows have no label of {scheme.names}: {foreign['example_id'].head(5).to_list()}"
            )
    return frame.select(list(EXAMPLE_SCHEMA))
