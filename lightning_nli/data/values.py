"""Single values of a corpus' columns: each parser takes text, gives a value, and refuses with a reason."""

from __future__ import annotations

import ast
import datetime
import difflib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache

import polars as pl

from lightning_nli.data.text import comparison_key
from lightning_nli.types import DOMAINS, Split

Parser = Callable[[str], object]
"""Text -> value, or None for "nothing here"; raises ValueError with the reason and the mend."""

SPLIT_NAMES = {
    "train": Split.TRAIN,
    "training": Split.TRAIN,
    "dev": Split.DEV,
    "val": Split.DEV,
    "valid": Split.DEV,
    "validation": Split.DEV,
    "test": Split.TEST,
}

_ROMAN: dict[str, int] = {"M": 1000, "CM": 900, "D": 500, "CD": 400, "C": 100, "XC": 90, "L": 50, "XL": 40}
_ROMAN |= {"X": 10, "IX": 9, "V": 5, "IV": 4, "I": 1}
_DATE = re.compile(r"(\d{4}-\d{2}-\d{2})(?:[ T][\d:.]+Z?)?")
_EXCEL_EPOCH = datetime.date(1899, 12, 30)


@dataclass(frozen=True)
class ParsedColumn:
    """The values of a column, and for each row the reason why its text was refused (null: it was not)."""

    values: pl.Series
    reasons: pl.Series


def parse_column(column: pl.Series, parse: Parser, dtype: pl.DataType) -> ParsedColumn:
    """Parse each distinct text once and spread the result over the rows."""
    texts = column.drop_nulls().unique(maintain_order=True)
    values: list[object] = []
    reasons: list[str | None] = []
    for text in texts:
        try:
            values.append(parse(text))
            reasons.append(None)
        except ValueError as error:
            values.append(None)
            reasons.append(str(error))
    table = pl.DataFrame(
        {"text": texts, "value": pl.Series(values, dtype=dtype), "reason": pl.Series(reasons, dtype=pl.String)}
    )
    rows = pl.DataFrame({"text": column}).join(table, on="text", how="left", maintain_order="left")
    return ParsedColumn(rows["value"], rows["reason"])


def nearest(text: str, known: Iterable[str]) -> str:
    """Return a hint naming the known spelling nearest to `text`, or nothing."""
    close = difflib.get_close_matches(text, list(known), n=1, cutoff=0.5)
    return f"; did you mean '{close[0]}'?" if close else ""


def parse_split(text: str) -> str:
    """`Validation` -> `dev`."""
    name = text.strip().lower()
    if name not in SPLIT_NAMES:
        raise ValueError(f"unknown split '{text}'; known are {', '.join(SPLIT_NAMES)}")
    return SPLIT_NAMES[name].value


def parse_date(text: str) -> datetime.date:
    """`2015-11-26`, the same with a time, or the day number of an unformatted Excel cell."""
    if match := _DATE.fullmatch(text):
        return datetime.date.fromisoformat(match[1])
    if re.fullmatch(r"\d{5}(\.0+)?", text):
        return _EXCEL_EPOCH + datetime.timedelta(days=int(text[:5]))
    raise ValueError(f"'{text}' is no date; write YYYY-MM-DD")


def parse_chapter(text: str) -> str:
    """`3` and `iii` -> `III`; anything else stays as it is."""
    if re.fullmatch(r"[1-9]\d{0,2}(\.0+)?", text):
        number = int(float(text))
        roman = ""
        for letters, value in _ROMAN.items():
            roman += letters * (number // value)
            number %= value
        return roman
    return text.upper() if re.fullmatch(r"[IVXLCDM]+", text, re.IGNORECASE) else text


def parse_rule(text: str) -> list[int]:
    """`7_3` or `[7, 3]` -> `[7, 3]`."""
    numbers = re.split(r"[_,\s]+", text.strip("[] "))
    if text in ("[]", ""):
        return []
    if not all(re.fullmatch(r"\d+(\.0+)?", number) for number in numbers):
        raise ValueError(f"'{text}' is no list of rule numbers; write them as 7_3")
    return [int(float(number)) for number in numbers]


def parse_point(text: str) -> str | None:
    """ViLegalNLI's tag of a point (điểm): `T_a` -> `a`; `F` and its slips such as `FF` -> nothing."""
    return None if re.fullmatch(r"F+", text) else text.removeprefix("T_")


def parse_domains(text: str) -> list[str]:
    """A field of law or a list of them (JSON or Python), by slug or Vietnamese name, as distinct slugs, in order."""
    names = parse_list(text) if text.startswith("[") else [text]
    slugs = []
    for name in names:
        key = comparison_key(str(name))
        if key not in _domain_keys():
            close = difflib.get_close_matches(key, list(_domain_keys()), n=1, cutoff=0.4)
            slug = _domain_keys()[close[0]] if close else ""
            hint = f"; nearest is '{slug}' ({DOMAINS[slug]})" if slug else ""
            raise ValueError(f"unknown field of law '{name}'{hint}; the 27 known are in lightning_nli.types.DOMAINS")
        slugs.append(_domain_keys()[key])
    return list(dict.fromkeys(slugs))


def parse_list(text: str) -> list[object]:
    """A list written as JSON or as a Python literal."""
    try:
        value = json.loads(text)
    except json.JSONDecodeError:
        try:
            value = ast.literal_eval(text)
        except (ValueError, SyntaxError) as error:
            raise ValueError(f"'{text[:60]}' is not a list") from error
    if not isinstance(value, list):
        raise ValueError(f"'{text[:60]}' is not a list")
    return value


def ratings_parser(parse_label: Parser) -> Parser:
    """Build the parser of a JSON list of ratings, given the one of their labels."""

    def parse(text: str) -> list[dict[str, object]]:
        entries = parse_list(text)
        ratings: list[dict[str, object]] = []
        for entry in entries:
            if not isinstance(entry, dict) or "rater" not in entry:
                raise ValueError(f'\'{entry}\' is no rating; write {{"rater": NAME, "label": LABEL}}')
            label = entry.get("label")
            ratings.append({"rater": str(entry["rater"]), "label": None if label is None else parse_label(str(label))})
        return ratings

    return parse


def annotators_parser(spellings: Mapping[str, str]) -> Parser:
    """Build the parser of a list of labels, one an annotator; an empty one is a rating that was not given."""

    def parse(text: str) -> list[dict[str, object]]:
        names = [str(name).strip().lower() for name in parse_list(text)]
        foreign = sorted({name for name in names if name and name not in spellings})
        if foreign:
            raise ValueError(f"unknown annotator labels {foreign}")
        return [{"rater": f"annotator_{i}", "label": spellings.get(name)} for i, name in enumerate(names, start=1)]

    return parse


@cache
def _domain_keys() -> dict[str, str]:
    keys = {comparison_key(slug): slug for slug in DOMAINS}  # "tax fees": an underscore counts as a space
    return keys | {comparison_key(name): slug for slug, name in DOMAINS.items()}
