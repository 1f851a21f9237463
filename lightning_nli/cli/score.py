"""`lnli score`: metrics of any predictions file, by the arithmetic that scores our own runs."""

from __future__ import annotations

import argparse
import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from lightning_nli.analysis.length_classes import LENGTH, NUM_DRAWS, parse_edges, score_length_classes
from lightning_nli.data.source_specs import NO_GOLD_LABEL, SPELLINGS
from lightning_nli.data.tables import ROW, match_columns, read_table, require_columns
from lightning_nli.data.text import normalize_text
from lightning_nli.data.values import ParsedColumn, nearest, parse_column, parse_domains, parse_list
from lightning_nli.metrics import LabelNames, Labels, MacroOver, Scores, score
from lightning_nli.types import DOMAINS, SCHEMES, THREE_WAY, UserError

_GOLD, _PREDICTED = "gold label", "predicted label"
_COLUMNS = {
    _GOLD: ("gold", "gold_label", "label"),
    _PREDICTED: ("predicted", "prediction", "pred", "predicted_label"),
    "group_id": ("group_id",),
    "domains": ("domains", "domain"),
    "loss": ("loss",),
    LENGTH: (LENGTH,),
}
_FOURTH = "other"  # of the four-way sets: the three labels, and pairs that are none of them
_LABEL_SETS: tuple[Labels, ...] = (*SCHEMES.values(), LabelNames([*THREE_WAY.names, _FOURTH]))
_PROBABILITY = "prob_"
_NO_DOMAIN = "none"
_MAX_SUGGESTED = 12
_CONVENTIONS = {
    MacroOver.PRESENT: "labels in gold or predictions",
    MacroOver.GOLD: "labels in gold only",
}

_EPILOG = """\
examples:
  lnli score runs/RUN/predictions/test.parquet
  lnli score mine.jsonl theirs.csv --json
  lnli score answers.tsv --labels yes,no,maybe
  lnli score answers.tsv --labels 0,1 --macro-over gold
  lnli score runs/RUN/predictions/test.parquet --length-classes 256,512

A file (.jsonl .json .csv .tsv .parquet .xlsx) has a column of gold labels (gold, gold_label or label) and one of
predicted labels (predicted, prediction, pred or predicted_label). Read where they are there: prob_LABEL for every
label, group_id, and domain or domains (one name, or a JSON list of them). Rows without a gold label are counted, not
scored. Label names are read in any spelling that `lnli data check` reads, and `other`; those of another label set, and
numbers, are named with --labels, exactly.

The macro means are taken over the labels in gold or predictions, as scikit-learn does it: a label that is predicted and
never right counts with F1 0. With --macro-over gold it does not count.

--length-classes cuts the rows by `num_tokens`, tokens before truncation, which a run's predictions have: each class
in full, over 1,000 draws of as many rows as the smallest class has (mean and standard deviation), and with the labels'
shares of the whole file.
"""


@dataclass(frozen=True)
class Predictions:
    """The scored rows of one file.

    Attributes:
        frame: `label`, `predicted`, and where the file has them `prob_<label>`, `loss`, `group_id`, `domains` (list).
        labels: The label set.
        rows_without_gold: Rows left out of `frame`.
        notes: What is odd about the file.
    """

    frame: pl.DataFrame
    labels: Labels
    rows_without_gold: int
    notes: tuple[str, ...]


def main(argv: list[str]) -> int:
    """Run `lnli score ARGV` and return its exit code.

    Raises:
        UserError: a file, a column or a label cannot be used.
    """
    parser = argparse.ArgumentParser(
        "lnli score",
        description="Score files of predictions: accuracy, macro means, loss, per label, per domain, confusion matrix.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="predictions with gold labels")
    parser.add_argument("--labels", metavar="A,B,...", help="exact names of a label set that is not one of ours")
    parser.add_argument(
        "--macro-over",
        choices=[over.value for over in MacroOver],
        default=MacroOver.PRESENT.value,
        help="labels of the macro means: in gold or predictions (present, the default) or in gold only (gold)",
    )
    parser.add_argument(
        "--length-classes", metavar="A,B,...", help="also score by length: up to A tokens, up to B, ..."
    )
    parser.add_argument("--json", action="store_true", help="one JSON object instead of tables")
    given = parser.parse_args(argv)
    labels = _label_names(given.labels) if given.labels is not None else None
    over = MacroOver(given.macro_over)
    edges = parse_edges(given.length_classes) if given.length_classes is not None else []
    reports = [_report(file, read_predictions(file, labels), over, edges) for file in given.files]
    if given.json:
        text = json.dumps({"macro_over": over.value, "files": reports}, ensure_ascii=False, indent=1, allow_nan=False)
        sys.stdout.write(text + "\n")
    else:
        _print_reports(reports, over)
    return 0


def _label_names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    if len(names) < 2 or len(set(names)) < len(names) or "" in names:
        raise UserError(f"--labels {text}: give two or more different names, with commas between them")
    return names


def read_predictions(path: Path, labels: list[str] | None = None) -> Predictions:
    """Read and check one file.

    Args:
        path: A table of any kind that `read_table` reads.
        labels: Exact label names; None: those of our schemes, in any spelling.

    Raises:
        UserError: a column is missing, a label unknown, a prediction missing, or no row has a gold label.
    """
    table = read_table(path)
    names = [name for name in table.columns if name != ROW]
    columns = match_columns(names, _COLUMNS)
    require_columns(columns, (_GOLD, _PREDICTED), _COLUMNS, names, str(path))
    gold = parse_column(table[columns[_GOLD]], lambda text: _parse_label(text, labels), pl.String())
    _check_labels(path, table, columns[_GOLD], gold, columns)
    scored = table.filter(gold.values.is_not_null())
    if scored.is_empty():
        raise UserError(f"{path}: no row has a gold label in its column '{columns[_GOLD]}'")
    predicted = parse_column(scored[columns[_PREDICTED]], lambda text: _parse_label(text, labels), pl.String())
    _check_labels(path, scored, columns[_PREDICTED], predicted, columns)
    _check_answered(path, scored, columns[_PREDICTED], predicted.values)
    frame = pl.DataFrame({"label": gold.values.drop_nulls(), "predicted": predicted.values})
    chosen = LabelNames(labels) if labels else _choose_scheme(path, frame)
    probabilities = _probabilities(scored, names, chosen, exact=labels is not None)
    frame = frame.with_columns(*probabilities, *_further_columns(scored, columns, has_loss=bool(probabilities)))
    return Predictions(frame, chosen, table.height - scored.height, _notes(frame, columns, probabilities))


def _parse_label(text: str, labels: list[str] | None) -> str | None:
    if labels is not None and text.strip() in labels:
        return text.strip()
    if text.strip() in NO_GOLD_LABEL:
        return None
    if labels is not None:
        raise ValueError(f"label '{text}' is not in --labels {','.join(labels)}{nearest(text, labels)}")
    label = _spelled(text)
    if label is None:
        raise ValueError(f"unknown label '{text}'{nearest(text, [*SPELLINGS, _FOURTH])}")
    return label


def _spelled(text: str) -> str | None:
    key = re.sub(r"[\s_-]+", "_", normalize_text(text).casefold())
    return _FOURTH if key == _FOURTH else SPELLINGS.get(key)


def _check_labels(path: Path, table: pl.DataFrame, column: str, parsed: ParsedColumn, columns: dict[str, str]) -> None:
    bad = table.select(ROW).with_columns(reason=parsed.reasons).filter(pl.col("reason").is_not_null())
    if bad.is_empty():
        return
    row, reason = bad.row(0)
    more = f" (and {bad.height - 1} more rows)" if bad.height > 1 else ""
    found = pl.concat([table[columns[_GOLD]], table[columns[_PREDICTED]]]).str.strip_chars().drop_nulls().unique()
    found = found.filter(~found.is_in(sorted(NO_GOLD_LABEL))).sort()
    mend = ""
    if reason.startswith("unknown") and len(found) <= _MAX_SUGGESTED:
        mend = f"; if it is of another label set: --labels {','.join(found)}"
    raise UserError(f"{path}, row {row}, column '{column}': {reason}{more}{mend}")


def _check_answered(path: Path, scored: pl.DataFrame, column: str, predicted: pl.Series) -> None:
    missing = scored.filter(predicted.is_null())[ROW]
    if len(missing):
        raise UserError(
            f"{path}, row {missing[0]}, column '{column}': no prediction for a row with a gold label "
            f"({len(missing)} such rows); fill it in or take the row out"
        )


def _choose_scheme(path: Path, frame: pl.DataFrame) -> Labels:
    found = set(frame["label"]) | set(frame["predicted"])
    for labels in _LABEL_SETS:
        if found <= set(labels.names):
            return labels
    raise UserError(f"{path}: the labels {', '.join(sorted(found))} are of no one set; name yours with --labels")


def _probabilities(table: pl.DataFrame, names: list[str], labels: Labels, *, exact: bool) -> list[pl.Series]:
    """Columns `prob_<label>`, float64, of those labels that have one."""
    found: dict[str | None, str] = {}
    for name in names:
        if name.startswith(_PROBABILITY):
            label = name.removeprefix(_PROBABILITY)
            found[label if exact else _spelled(label)] = name
    return [
        table[found[label]].cast(pl.Float64, strict=False).alias(f"{_PROBABILITY}{label}")
        for label in labels.names
        if label in found
    ]


def _further_columns(table: pl.DataFrame, columns: dict[str, str], *, has_loss: bool) -> list[pl.Series]:
    """`group_id` and `domains`; `loss` only beside probabilities, which say that it is the cross-entropy."""
    further = []
    if has_loss and "loss" in columns:
        further.append(table[columns["loss"]].cast(pl.Float64, strict=False).alias("loss"))
    if LENGTH in columns:
        further.append(table[columns[LENGTH]].cast(pl.Int64, strict=False).alias(LENGTH))
    if "group_id" in columns:
        further.append(table[columns["group_id"]].alias("group_id"))
    if "domains" in columns:
        filled = table[columns["domains"]].fill_null("")
        further.append(parse_column(filled, _domain_names, pl.List(pl.String)).values.alias("domains"))
    return further


def _domain_names(text: str) -> list[str]:
    """Distinct names; one of our fields of law, in any spelling, by its slug."""
    given = [str(name) for name in parse_list(text)] if text.startswith("[") else [text]
    names = []
    for name in filter(None, map(normalize_text, given)):
        try:
            names += parse_domains(name)
        except ValueError:
            names.append(name)
    return list(dict.fromkeys(names)) or [_NO_DOMAIN]


def _notes(frame: pl.DataFrame, columns: dict[str, str], probabilities: list[pl.Series]) -> tuple[str, ...]:
    notes = [f"gold labels from the column '{columns[_GOLD]}', predictions from '{columns[_PREDICTED]}'"]
    if probabilities:
        names = [column.name for column in probabilities]
        chosen = pl.coalesce(
            pl.when(pl.col("predicted") == name.removeprefix(_PROBABILITY)).then(pl.col(name)) for name in names
        )
        others = frame.filter(chosen < pl.max_horizontal(names) - 1e-6).height
        notes += [f"{others} rows: the predicted label is not the most probable one"] * (others > 0)
    return tuple(notes)


def _report(file: Path, predictions: Predictions, over: MacroOver, edges: list[int]) -> dict[str, Any]:
    frame = predictions.frame
    report: dict[str, Any] = {
        "file": str(file),
        "label_names": predictions.labels.names,
        "rows_without_gold": predictions.rows_without_gold,
        **_score(file, frame, predictions.labels, over).as_dict(),
        "notes": list(predictions.notes),
    }
    if "domains" in frame.columns:
        by_domain = frame.with_columns(domain=pl.col("domains")).drop("domains").explode("domain")
        counts = by_domain["domain"].value_counts().sort("count", "domain", descending=[True, False])
        report["domains"] = {
            name: _score(file, by_domain.filter(pl.col("domain") == name), predictions.labels, over).as_dict()
            for name in counts["domain"]
        }
    if edges:
        try:
            classes = score_length_classes(frame, predictions.labels, edges)
        except UserError as error:
            raise UserError(f"{file}: {error}") from None
        report["length_classes"] = [one.as_dict() for one in classes]
    return report


def _score(file: Path, frame: pl.DataFrame, labels: Labels, over: MacroOver) -> Scores:
    try:
        return score(frame, labels, macro_over=over)
    except ValueError as error:
        raise UserError(f"{file}: {error}") from error


def _print_reports(reports: list[dict[str, Any]], over: MacroOver) -> None:
    console = Console(highlight=False)
    table = Table("", title="Scores", title_justify="left")
    names = [Path(report["file"]).name for report in reports]
    for report, name in zip(reports, names, strict=True):
        heading = name if names.count(name) == 1 else report["file"]
        table.add_column(escape(heading), justify="right", overflow="fold")
    table.add_row("rows scored", *(str(report["num_examples"]) for report in reports))
    table.add_row("rows without a gold label", *(str(report["rows_without_gold"]) for report in reports))
    headings = {
        "accuracy": "accuracy",
        "macro_f1": f"macro-F1 ({_CONVENTIONS[over]})",
        "macro_precision": "macro precision (same)",
        "macro_recall": "macro recall (same)",
        "loss": "loss in nats",
        "group_accuracy": "group accuracy",
    }
    for name, heading in headings.items():
        table.add_row(heading, *(_figure(report[name]) for report in reports))
    table.add_row(_CONVENTIONS[over], *(f"{len(r['labels_present'])} of {len(r['label_names'])}" for r in reports))
    console.print(table)
    for report in reports:
        _print_details(console, report, over)


def _print_details(console: Console, report: dict[str, Any], over: MacroOver) -> None:
    names = report["label_names"]
    labels = Table("label", title="Labels", title_justify="left")
    counts = Table("gold \\ predicted", title="Counts", title_justify="left")
    for heading in ("precision", "recall", "F1", "gold rows"):
        labels.add_column(heading, justify="right")
    for name in names:
        counts.add_column(escape(name), justify="right", overflow="fold")
    for name, row in zip(names, report["confusion"], strict=True):
        scores = report["per_class"][name]
        figures = [_figure(scores[figure]) for figure in ("precision", "recall", "f1")]
        labels.add_row(escape(name), *figures, str(scores["support"]))
        counts.add_row(escape(name), *map(str, row))
    console.print(f"\n{escape(report['file'])}", soft_wrap=True)
    console.print(labels, counts)
    if "domains" in report:
        _print_domains(console, report["domains"], over)
    if "length_classes" in report:
        _print_length_classes(console, report["length_classes"])
    for note in report["notes"]:
        console.print(f"note: {escape(note)}", soft_wrap=True)


def _print_length_classes(console: Console, classes: list[dict[str, Any]]) -> None:
    drawn = f"drawn: {classes[0]['num_drawn']} rows of the class, {NUM_DRAWS} times"
    console.print(f"By length in tokens; {drawn}; even: with the labels' shares of the whole file", soft_wrap=True)
    table = Table("n")
    for heading in ("rows", "accuracy", "F1", "drawn accuracy", "drawn F1", "even", "even F1"):
        table.add_column(heading, justify="right")
    for one in classes:
        full, even = one["scores"], one["standardized"]
        spreads = [one["drawn"].get(name) for name in ("accuracy", "macro_f1")]
        table.add_row(
            one["name"].replace("tokens", "n"),
            str(full["num_examples"]),
            *(_figure(full[name]) for name in ("accuracy", "macro_f1")),
            *("-" if spread is None else f"{spread['mean']:.3f} ± {spread['sd']:.3f}" for spread in spreads),
            *(_figure(even[name]) for name in ("accuracy", "macro_f1")),
        )
    console.print(table)


def _print_domains(console: Console, domains: dict[str, dict[str, Any]], over: MacroOver) -> None:
    console.print(f"By domain; a row counts in each of its domains; macro-F1: {_CONVENTIONS[over]}", soft_wrap=True)
    table = Table("domain", "field of law")
    for heading in ("rows", "accuracy", "macro-F1", "labels"):
        table.add_column(heading, justify="right")
    for name, scores in domains.items():
        figures = [_figure(scores["accuracy"]), _figure(scores["macro_f1"]), str(len(scores["labels_present"]))]
        table.add_row(escape(name), DOMAINS.get(name, ""), str(scores["num_examples"]), *figures)
    console.print(table)


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"
