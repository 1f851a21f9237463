"""What the generation rules of ViLegalNLI (Table 6) say, in our words; the embedded corpus uses the same numbers."""

from __future__ import annotations

RULES: dict[str, dict[int, str]] = {
    "entailment": {
        1: "active or passive instead",
        2: "equivalent legal reference",
        3: "noun phrase or clause instead",
        4: "rephrased as a condition",
        5: "number in another form",
        6: "longer, same meaning",
        7: "logical consequence",
        8: "rule applied to a case",
        9: "linked to a related clause",
    },
    "non_entailment": {
        1: "re-ordered, contradicts",
        2: "entity, time or action changed",
        3: "meaning made inconsistent",
        4: "contradicting condition added",
        5: "number changed",
        6: "invalid reasoning step",
        7: "unsupported assumption",
        8: "rule misapplied to a case",
        9: "linked to an unrelated clause",
        10: "independent statement",
    },
}
"""Label -> rule number -> what it does; a number means another thing under the other label."""


def rule_name(label: str, rule: int | str) -> str:
    """`7: logical consequence`; the number alone where the paper has no such rule."""
    meaning = RULES.get(label, {}).get(int(rule))
    return f"{rule}: {meaning}" if meaning else str(rule)
