"""Settings of how texts become tokens: what `--truncation` and `--truncation-ratio` mean, and what fits together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

from lightning_nli.config_schema import TextConfig
from lightning_nli.types import UserError

_MANY_SEGMENTS = 3  # from here on `auto` shares the room in a ratio


def parse_ratio(text: str) -> tuple[int, ...]:
    """`26.3,7.6,66.1` as the smallest whole numbers in that ratio.

    Raises:
        UserError: a part is not a number above 0.
    """
    try:
        parts = [Fraction(part.strip()) for part in text.split(",")]
    except (ValueError, ZeroDivisionError):
        parts = []
    if not parts or min(parts) <= 0:
        raise UserError(
            f"--truncation-ratio takes auto, or a number above 0 for each segment, as 26,8,66; got '{text}'"
        )
    scale = math.lcm(*(part.denominator for part in parts))
    whole = [int(part * scale) for part in parts]
    return tuple(number // math.gcd(*whole) for number in whole)


def resolve_truncation(text: TextConfig, num_segments: int) -> str:
    """The rule that `--truncation` stands for: `auto` is `longest_first` up to two segments, `proportional` from three.

    Raises:
        UserError: a ratio is given to another rule, or not for each segment.
    """
    rule = text.truncation
    if rule == "auto":
        rule = "proportional" if num_segments >= _MANY_SEGMENTS else "longest_first"
    if text.truncation_ratio != "auto":
        given = parse_ratio(text.truncation_ratio)
        if rule != "proportional":
            raise UserError(f"--truncation-ratio is for --truncation proportional, not {rule}")
        if len(given) != num_segments:
            raise UserError(
                f"--truncation-ratio {text.truncation_ratio} has {len(given)} parts, an example has {num_segments} "
                "segments; give one part for each of --segments, in their order"
            )
    return rule


def check_text(text: TextConfig, segments: Sequence[str] | None) -> None:
    """Refuse settings of the group `text` that cannot go together.

    Args:
        text: Settings.
        segments: Those that --segments names; None: the corpus decides.

    Raises:
        UserError: as `parse_ratio` and `resolve_truncation`.
    """
    if text.truncation_ratio != "auto":
        parse_ratio(text.truncation_ratio)
    if segments is not None:
        resolve_truncation(text, len(segments))
    elif text.truncation_ratio != "auto" and text.truncation not in ("auto", "proportional"):
        raise UserError(f"--truncation-ratio is for --truncation proportional, not {text.truncation}")
