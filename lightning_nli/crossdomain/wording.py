"""What the board calls its columns, domains and terms; one place for terminal, files and page."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from lightning_nli.crossdomain.leaderboard import COLUMNS, MIN_SINGLE_ROWS
from lightning_nli.crossdomain.pool import MIN_CORE_LAWS, MIN_CORE_ROWS
from lightning_nli.statistics import MIN_LAWS
from lightning_nli.types import DOMAINS


@dataclass(frozen=True)
class Column:
    """A figure of the board.

    Attributes:
        key: Its name in `BoardRow.figures`.
        heading: As shown.
        unit: `percent` (a share, 0 to 100) or `points` (a difference of shares, shown with its sign).
        meaning: One or two sentences.
    """

    key: str
    heading: str
    unit: Literal["percent", "points"]
    meaning: str


_COLUMNS = (
    Column(
        "discrimination",
        "Premise discrimination",
        "percent",
        "Share of entailed rows that are answered entailed with their own premise and not entailed with a swapped "
        "one. The swapped premise is of the same law: the one that covers most words of the hypothesis, at most 1.5 "
        "times as long as the true one plus 10 words, with a word Jaccard index below 0.5 and a containment below "
        "0.8. Rows without such a premise are left out. A model that never reads the premise scores 0, whatever its "
        "accuracy.",
    ),
    Column(
        "random_swap",
        "Random swap",
        "percent",
        "The same with an easier swap: a premise of the same domain from another law, drawn by hash.",
    ),
    Column(
        "premise_gain",
        "Premise gain",
        "points",
        "Accuracy minus that of the same encoder, recipe and rows trained and tested on hypotheses only, paired by "
        "row. About 0: the premise adds nothing to what the hypothesis gives away.",
    ),
    Column(
        "accuracy",
        "Accuracy",
        "percent",
        "Mean over core domains of the share of right answers when the domain is held out. A row of several core "
        "domains counts once in each.",
    ),
    Column(
        "macro_f1",
        "Macro-F1",
        "percent",
        "Mean over core domains of the mean F1 over labels when the domain is held out. The headline figure: order "
        "and ranks come from it.",
    ),
    Column(
        "pooled",
        "Pooled accuracy",
        "percent",
        "Share of right answers over all held-out rows, core or not. A row that several folds test has weight 1 / "
        "number of those folds in each, so that every row counts once.",
    ),
    Column(
        "law_effect",
        "Law effect",
        "points",
        "Accuracy with the law seen in training (10 folds by premise) minus accuracy with the law new and its domain "
        "seen (10 folds by law), on the same rows of the core domains, with equally many training rows, paired by "
        "row.",
    ),
    Column(
        "domain_effect",
        "Domain effect",
        "points",
        "Accuracy with the law new and its domain seen minus accuracy with the domain held out, on the same rows, "
        "with equally many training rows, paired by row.",
    ),
)
BOARD_COLUMNS: dict[str, Column] = {column.key: column for column in _COLUMNS}
"""By key, in the order of `COLUMNS`."""
assert tuple(BOARD_COLUMNS) == COLUMNS

WORST, CALIBRATION, COST, RANK = "Worst domain", "Calibration error", "Cost", "Rank"

_TERMS = (
    (
        WORST,
        "Core domain with the lowest accuracy, with its rows and laws. Never ranked: the lowest of many figures is "
        "mostly that of a small domain.",
    ),
    (
        CALIBRATION,
        "Expected calibration error over held-out rows in points: mean distance between the probability of the "
        "answer given and the share of right answers, over 15 bins of equal width, weighted by rows.",
    ),
    (COST, "Wall time of all cells of the model, added up, on the machines they ran on."),
    (
        RANK,
        "Interval of the ranks a model can have: from 1 + number of models significantly better to M - number of "
        "models significantly worse, among M models with a macro-F1. Differences of macro-F1 are paired by row; p "
        "values are Holm-adjusted over all pairs, two-sided, 5% level. Where the training variance is not known, no "
        "difference counts as significant, and the interval is as wide as can be.",
    ),
    (
        "Interval",
        "95% interval in brackets, drawn as a bar with a tick at the figure: delete-one-law jackknife of the figure "
        "averaged over seeds, since rows of one law are not independent. Student's t with laws - 1 degrees of "
        "freedom for means over domains, and effective laws - 1 for one domain and the pool. Shown as far as the "
        f"figure can reach (0 to 100, or -100 to 100 for differences). With fewer than {MIN_LAWS} laws there is none; "
        "the number of laws stands in its place.",
    ),
    (
        "Training variance",
        "Variance between trainings that differ in the seed alone, pooled over the models of the board and added to "
        "that of the laws. With one seed it is not known: the interval then leaves it out and is too narrow, which "
        "the notes below the table say. Models that draw nothing in training have none.",
    ),
    (
        "Core domain",
        f"A domain with at least {MIN_CORE_ROWS} rows and {MIN_CORE_LAWS} laws in the pool, and not the domain "
        "`other`. Only core domains enter means.",
    ),
    (
        "Single-domain rows",
        f"Rows whose only domain is the one held out; a figure on them is given where there are {MIN_SINGLE_ROWS} or "
        "more.",
    ),
    (
        "Held out",
        "No training row carries the domain, is of a law that is tested, or has a premise nearly equal to a tested "
        "one.",
    ),
    (
        "Selection",
        "What chooses the checkpoint. `id_val`: best on whole laws of the training rows. `last`: none, the last "
        "checkpoint counts. `leave_one_out`: best on one training domain, drawn by hash, that trains nothing, nor do "
        "its laws. None of them ever sees the held-out domain. `oracle`: best on the tested rows themselves; such "
        "figures are shown apart and never ranked.",
    ),
    (
        "Cell",
        "One training: a model, a fold, a seed. A cell that is missing or failed blanks every figure it enters; the "
        "notes say which.",
    ),
)

GLOSSARY: dict[str, str] = {column.heading: column.meaning for column in _COLUMNS} | dict(_TERMS)
"""Term -> meaning; backquotes mark code."""

_ENGLISH = {
    "administrative_organization": "Administrative Organization",
    "state_finance": "State Finance",
    "culture_society": "Culture - Society",
    "natural_resources_environment": "Natural Resources - Environment",
    "real_estate": "Real Estate",
    "construction_urban_planning": "Construction - Urban Planning",
    "commercial_law": "Commercial Law",
    "sports_health": "Sports - Health",
    "education": "Education",
    "tax_fees": "Tax - Fees",
    "transportation": "Transportation",
    "labor_wages": "Labor - Wages",
    "information_technology": "Information Technology",
    "investment": "Investment",
    "enterprise": "Enterprise",
    "import_export": "Import - Export",
    "civil_rights": "Civil Rights",
    "banking_monetary": "Banking - Monetary",
    "legal_services": "Legal Services",
    "insurance": "Insurance",
    "procedural_law": "Procedural Law",
    "administrative_violations": "Administrative Violations",
    "accounting_auditing": "Accounting - Auditing",
    "criminal_liability": "Criminal Liability",
    "intellectual_property": "Intellectual Property",
    "securities": "Securities",
    "other": "Other Domains",
}


def english_name(domain: str) -> str:
    """As ViLegalNLI's Table 10 has it; a name that is no slug (a group of domains) stays as it is."""
    return _ENGLISH.get(domain, domain)


def vietnamese_name(domain: str) -> str:
    """As the published files have it; empty for a name that is no slug."""
    return DOMAINS.get(domain, "")
