"""The settings as a user reads them: names, what they take, defaults and meanings, from the dataclasses themselves."""

from __future__ import annotations

import inspect
import re
import textwrap
import types
from collections.abc import Iterator
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from lightning_nli.config_schema import ExperimentConfig

_WIDTH = 110
_INDENT = 26
_WORDS = {int: ("N", "a whole number"), float: ("X", "a number"), bool: ("[true|false]", "true or false")}


@dataclass(frozen=True)
class Setting:
    """One setting, for help and errors.

    Attributes:
        name: Dotted name.
        group: Heading it stands under.
        word: What stands for the value in help.
        takes: What it takes, in words.
        default: As the user would write it.
        meaning: From the docstring.
    """

    name: str
    group: str
    word: str
    takes: str
    default: str
    meaning: str

    @property
    def flag(self) -> str:
        return "--" + self.name.rsplit(".", 1)[-1].replace("_", "-")


def settings(cls: type = ExperimentConfig, prefix: str = "") -> Iterator[Setting]:
    """Every setting, groups last."""
    hints = get_type_hints(cls)
    meanings = _meanings(cls)
    first_line = (inspect.getdoc(cls) or "").splitlines()[0].rstrip(".")
    heading = f"{prefix[:-1]}: {first_line}" if prefix else first_line
    nested = [item for item in fields(cls) if is_dataclass(hints[item.name])]
    for item in fields(cls):
        if item not in nested:
            word, takes = _value_words(hints[item.name])
            yield Setting(f"{prefix}{item.name}", heading, word, takes, _default(item), meanings[item.name])
    for item in nested:
        yield from settings(hints[item.name], f"{item.name}.")


def _meanings(cls: type) -> dict[str, str]:
    """Field -> meaning, from the `Attributes:` section of the class' docstring."""
    section = (inspect.getdoc(cls) or "").partition("Attributes:\n")[2]
    entries = re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", section, flags=re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in entries}


def _value_words(hint: Any) -> tuple[str, str]:
    if get_origin(hint) is Literal:
        choices = [str(choice) for choice in get_args(hint)]
        return "{" + ",".join(choices) + "}", f"one of {', '.join(choices)}"
    or_null = ""
    if get_origin(hint) in (Union, types.UnionType):
        or_null = " or null" if type(None) in get_args(hint) else ""
        hint = next(part for part in get_args(hint) if part is not type(None))
    word, takes = _WORDS.get(hint, ("TEXT", "a text"))
    return word, takes + or_null


def _default(item: Field[Any]) -> str:
    value = item.default
    if item.default_factory is not MISSING:
        value = item.default_factory()
    if value is None or value == []:
        return "null" if value is None else "none"
    return str(value).lower() if isinstance(value, bool) else str(value)


def config_help() -> str:
    """Every setting with its default and meaning, for `lnli fit --help`."""
    lines: list[str] = []
    group = ""
    for setting in settings():
        if setting.group != group:
            group = setting.group
            lines += ["", group]
        head = f"  {setting.flag} {setting.word}"
        text = f"{setting.meaning} (default:\N{NO-BREAK SPACE}{setting.default})"
        body = textwrap.wrap(text, _WIDTH - _INDENT, break_on_hyphens=False)
        if len(head) < _INDENT - 1:
            lines.append(head.ljust(_INDENT) + body.pop(0))
        else:
            lines += textwrap.wrap(head, _WIDTH, subsequent_indent=" " * 6, break_on_hyphens=False)
        lines += [" " * _INDENT + text for text in body]
    return "\n".join(lines[1:]).replace("\N{NO-BREAK SPACE}", " ") + "\n"
