"""What the files of each known corpus look like: column names, label spellings, ids, split files, oddities.

With `readers.py` the only place where the world's label spellings and column names stand. A new corpus is one more
`SourceSpec` in `READERS`, with a small `load` or `audit` function where its files need one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import polars as pl

from lightning_nli.data.identity import IdMeaning
from lightning_nli.data.schema import EXAMPLE_SCHEMA
from lightning_nli.data.tables import ROW
from lightning_nli.data.values import Parser, annotators_parser, parse_point
from lightning_nli.types import BINARY, THREE_WAY, WILLS, Label, LabelScheme, Split, UserError

EXTRA = "extra:"  # prefix, while reading, of columns that the schema does not hold

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

_NUMBERED = SPELLINGS | {"0": Label.ENTAILMENT, "1": Label.NEUTRAL, "2": Label.CONTRADICTION}
"""SNLI, MultiNLI, XNLI and ANLI as data sets on the hub number their labels in this order."""


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
        files: Split -> file names (with `*`) in a folder, the first that matches counts; several files of one name
            belong together; where none matches, a split's file is `train`, `dev`, `test`.
        keep: Column -> the one value whose rows are read; rows of other values are counted in the notes.
        signature: Columns by which a file without a reader's name is known for this corpus; empty: never.
        load: Reads a file that is no table; None: by its suffix.
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
    files: Mapping[Split, tuple[str, ...]] = field(default_factory=dict)
    keep: Mapping[str, str] = field(default_factory=dict)
    signature: frozenset[str] = frozenset()
    load: Callable[[Path], pl.DataFrame] | None = None
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


def _audit_wills(table: pl.DataFrame) -> list[str]:
    """A group is five rows under one id, the fifth written with a trailing space."""
    given = table["id"].drop_nulls()
    padded = int((given != given.str.strip_chars()).sum())
    notes = [f"{padded} ids end in a space; stripped, an id is a group"] * (padded > 0)
    units = table.select("split", id=pl.col("id").str.strip_chars()).drop_nulls("id")
    sizes = units.group_by("split", "id").len()["len"].value_counts().sort("len")
    odd = {size: count for size, count in sizes.iter_rows() if size != 5}
    return [*notes, *[f"{count} groups have {size} rows instead of 5" for size, count in odd.items()]]


def load_contract_nli(path: Path) -> pl.DataFrame:
    """ContractNLI's JSON: every hypothesis of `labels` under every document, with the annotator's choice.

    Raises:
        UserError: the file is of another layout, or a document has other than one annotation.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8-sig"))
        hypotheses = {name: entry["hypothesis"] for name, entry in content["labels"].items()}
        documents = content["documents"]
        rows = []
        for document in documents:
            (annotation,) = document["annotation_sets"]
            for name, answer in annotation["annotations"].items():
                rows.append(
                    {
                        "premise": document["text"],
                        "hypothesis": hypotheses[name],
                        "label": answer["choice"],
                        "id": f"{document['id']}-{name}",
                        "premise_id": str(document["id"]),
                        "document_type": document.get("document_type"),
                        "evidence_spans": json.dumps(answer["spans"]) if answer["spans"] else None,
                    }
                )
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not valid JSON: {error}") from error
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserError(
            f"{path} is not laid out as ContractNLI ('documents' with 'text' and one annotation set each, 'labels'): "
            f"{type(error).__name__} {error}"
        ) from error
    if not rows:
        raise UserError(f"{path} has no rows")
    return pl.DataFrame(rows, schema=dict.fromkeys(rows[0], pl.String)).with_row_index(ROW, offset=1)


PLAIN_COLUMNS: dict[str, tuple[str, ...]] = {name: (name,) for name in EXAMPLE_SCHEMA if name != "example_id"} | {
    "id": ("id", "example_id", "uid"),
    "premise": ("premise", "sentence1", "context", "law", "text"),
    "hypothesis": ("hypothesis", "sentence2", "statement", "text_pair"),
    "condition": ("condition", "conditions"),
    "label": ("label", "gold_label", "gold", "classification"),
    "domains": ("domain", "domains"),
}

_PAIR_COLUMNS: dict[str, tuple[str, ...]] = {
    "premise": ("sentence1", "premise"),
    "hypothesis": ("sentence2", "hypothesis", "hypo"),
    "label": ("gold_label", "label"),
}

_NAMED = {Split.TRAIN: ("train-*",), Split.DEV: ("validation-*", "dev-*"), Split.TEST: ("test-*",)}
"""How a data set's Parquet shards are called on the hub."""

_LABEL_NAMES = annotators_parser({spelling: label.value for spelling, label in SPELLINGS.items()})

_SPECS = (
    SourceSpec(reader="plain", columns=PLAIN_COLUMNS),
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
        signature=frozenset({"premise", "hypothesis", "law id", "field of law", "tag point"}),
        audit=_audit_vilegalnli,
    ),
    SourceSpec(
        reader="vianli",
        columns={"id": ("uid", "id"), "premise": ("premise",), "hypothesis": ("hypothesis",), "label": ("label",)},
        scheme=THREE_WAY,
        files={split: (f"vianli_{split.value}*",) for split in Split},
    ),
    SourceSpec(  # `ID` is one a premise: its hypotheses share it
        reader="visnli",
        columns={"id": ("ID",), "premise": ("Premise",), "hypothesis": ("Hypothesis",), "label": ("Label",)},
        scheme=THREE_WAY,
        spellings=SPELLINGS | {"0": Label.ENTAILMENT, "1": Label.CONTRADICTION, "2": Label.NEUTRAL},
        ids=IdMeaning.PREMISE,
        signature=frozenset({"id", "genre", "premise", "hypothesis", "label"}),
    ),
    SourceSpec(
        reader="wills",
        columns={
            "id": ("ID",),
            "premise": ("law",),
            "hypothesis": ("statement",),
            "condition": ("conditions",),
            "label": ("classification",),
        },
        scheme=WILLS,
        spellings=SPELLINGS | {"0": Label.REFUTE, "1": Label.SUPPORT, "2": Label.UNRELATED},
        split_unit="group_id",
        ids=IdMeaning.GROUP,
        signature=frozenset({"id", "statement", "conditions", "law", "classification"}),
        audit=_audit_wills,
    ),
    SourceSpec(
        reader="contractnli",
        columns={name: (name,) for name in ("id", "premise", "hypothesis", "label", "premise_id")},
        scheme=THREE_WAY,
        spellings=SPELLINGS | {"notmentioned": Label.NEUTRAL, "not_mentioned": Label.NEUTRAL},
        load=load_contract_nli,
    ),
    SourceSpec(
        reader="xnli",
        columns=_PAIR_COLUMNS | {"id": ("pairID",), "premise_id": ("promptID",), "language": ("language",)},
        scheme=THREE_WAY,
        spellings=_NUMBERED,
        files={
            Split.TRAIN: ("multinli.train.vi.tsv", "train-*"),
            Split.DEV: ("xnli.dev.tsv", "xnli.dev.jsonl", "validation-*"),
            Split.TEST: ("xnli.test.tsv", "xnli.test.jsonl", "test-*"),
        },
        keep={"language": "vi"},
        signature=frozenset({"language", "gold_label", "sentence1", "sentence2", "promptid", "pairid", "genre"}),
    ),
    SourceSpec(
        reader="snli",
        columns=_PAIR_COLUMNS | {"id": ("pairID",), "premise_id": ("captionID",), "ratings": ("annotator_labels",)},
        scheme=THREE_WAY,
        spellings=_NUMBERED,
        parsers={"ratings": _LABEL_NAMES},
        files={split: (f"snli_1.0_{split.value}.jsonl", *names) for split, names in _NAMED.items()},
        signature=frozenset({"captionid", "pairid", "sentence1", "sentence2", "gold_label"}),
    ),
    SourceSpec(
        reader="mnli",
        columns=_PAIR_COLUMNS | {"id": ("pairID",), "premise_id": ("promptID",), "ratings": ("annotator_labels",)},
        scheme=THREE_WAY,
        spellings=_NUMBERED,
        parsers={"ratings": _LABEL_NAMES},
        files={
            Split.TRAIN: ("multinli_1.0_train.jsonl", "train.tsv", "train-*"),
            Split.DEV: ("multinli_1.0_dev_*matched.jsonl", "dev_*matched.tsv", "validation_*matched-*"),
        },
        signature=frozenset({"promptid", "pairid", "genre", "sentence1", "sentence2", "gold_label"}),
    ),
    SourceSpec(
        reader="anli",
        columns={
            "id": ("uid",),
            "premise": ("context", "premise"),
            "hypothesis": ("hypothesis",),
            "label": ("label",),
        },
        scheme=THREE_WAY,
        spellings=_NUMBERED | {"e": Label.ENTAILMENT, "n": Label.NEUTRAL, "c": Label.CONTRADICTION},
        files={split: (f"R[123]/{split.value}.jsonl", *names) for split, names in _NAMED.items()},
        signature=frozenset({"uid", "context", "hypothesis", "label", "reason"}),
    ),
)

READERS: dict[str, SourceSpec] = {spec.reader: spec for spec in _SPECS}
"""Reader's name -> how it reads."""


def sniff(columns: Sequence[str]) -> SourceSpec:
    """The corpus that a file without a reader's name looks like; `plain` if it looks like none."""
    names = {name.strip().casefold() for name in columns}
    fitting = [spec for spec in _SPECS if spec.signature and spec.signature <= names]
    return max(fitting, key=lambda spec: len(spec.signature), default=READERS["plain"])


def looks_like_contract_nli(path: Path) -> bool:
    """Whether a JSON file holds one object with `documents` and `labels`."""
    if path.suffix.lower() != ".json":
        return False
    try:
        content = json.loads(path.read_text(encoding="utf-8-sig"))
    except (json.JSONDecodeError, UnicodeDecodeError):
        return False
    return isinstance(content, dict) and {"documents", "labels"} <= set(content)
