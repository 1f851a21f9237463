"""The report of runs: the premise page first, then slices, errors, comparisons, calibration, hard rows and notes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from lightning_nli.analysis.document import (
    Block,
    Bullets,
    Cell,
    Document,
    Figure,
    Number,
    Paragraph,
    Section,
    Table,
    file_name,
    percent,
    plain,
)
from lightning_nli.analysis.errors import NUM_HARDEST, UNSURE_SHARE
from lightning_nli.analysis.figures import Bar, Curve, Panel, bar_figure, curve_figure
from lightning_nli.analysis.overlap import MEASURES
from lightning_nli.analysis.premise import CONDITIONS, Change
from lightning_nli.analysis.rules import rule_name
from lightning_nli.analysis.runs import RunPart, RunsAnalysis
from lightning_nli.analysis.slice_pages import bar_of, rests_on_few, slice_page, units_of
from lightning_nli.published import published_tables
from lightning_nli.statistics import MIN_LAWS

_NO_MARKUP = {ord("*"): None, ord("`"): None}  # the notes on published tables are Markdown


def runs_document(analysis: RunsAnalysis) -> Document:
    """Lay the analysis out as a report."""
    sections = [
        Section("Does the model read the premise?", tuple(_premise_page(analysis))),
        Section("Accuracy by slice", tuple(slice_page(analysis))),
        Section("Errors", tuple(_error_page(analysis))),
        Section("Calibration", tuple(_calibration_page(analysis))),
        Section("Hardest rows", tuple(_hardest_page(analysis))),
        Section("Subsets", tuple(_subset_page(analysis))),
        Section("Notes", (Bullets(tuple(_notes(analysis))),)),
    ]
    if analysis.pairs:
        sections.insert(3, Section("Runs against each other", tuple(_pair_page(analysis))))
    title = f"Runs on {', '.join(analysis.corpora)}, set {analysis.set_name}: {analysis.num_rows:,} rows"
    return Document(title, tuple(sections), analysis.as_dict(), analysis.subsets)


def paper_notes(corpora: Sequence[str]) -> Iterator[str]:
    """What does not add up in the published tables about these corpora."""
    for table in published_tables():
        if table.paper in corpora:
            yield from (f"{table.source}: {note.translate(_NO_MARKUP)}" for note in table.notes)


def _premise_page(analysis: RunsAnalysis) -> Iterator[Block]:
    yield Paragraph(analysis.verdict, is_lead=True)
    yield Paragraph(
        "Premise discrimination comes before accuracy: a model that never looks at the premise has 0, and its accuracy "
        "does not tell it from one that does where hypotheses give their label away."
    )
    yield _premise_table(analysis)
    yield _blind_table(analysis)
    yield Bullets(
        (
            "Premise discrimination: share of the entailed rows answered entailed with their own premise and not with "
            "the premise of the same law that covers most of the hypothesis' words. Random swap: the same with a "
            "premise of the same field from another law. Rank: how often the own premise gets more probability of "
            "entailment than the swapped one; blind is 50.",
            "Premise gain: accuracy minus that of the same recipe on hypotheses alone, row by row; it needs that run "
            "(--segments hypothesis) beside, or among the runs given here.",
            "Hard rows: those that a linear model of the hypothesis, cross-fitted over laws, gets wrong; the mean of "
            "the recalls, never raw accuracy, which a constant can win.",
        )
    )
    if any(run.premise.unit == "corpus" for run in analysis.runs):
        yield Paragraph("No row of the set names a law: the whole set counts as one law where premises are swapped.")
    shown = [(run, change) for run in analysis.runs for change in run.changes]
    if shown:
        yield _change_table(shown, analysis)
        yield from _change_figures(analysis)


def _premise_table(analysis: RunsAnalysis) -> Table:
    rows = []
    for run in analysis.runs:
        figures = run.premise
        trained = {None: None, True: "yes", False: "no"}[figures.trained_on_swaps]
        first = [percent(one) for one in (figures.discrimination, figures.random_swap, figures.rank)]
        rest = [percent(one) for one in (figures.gain, figures.accuracy, figures.macro_f1)]
        rows.append((run.name, run.method, *first, trained, *rest))
    heads = ("run", "model", "premise discrimination", "random swap", "rank", "trained on swaps", "premise gain")
    caption = f"Every run on set {analysis.set_name}, in percent; 95% intervals over {units_of(analysis)}."
    return Table("premise", caption, (*heads, "accuracy", "macro-F1"), tuple(rows))


def _blind_table(analysis: RunsAnalysis) -> Table:
    rows = []
    for run in analysis.runs:
        hard = run.premise.hard
        recalls = [percent(hard.get("recall", {}).get(name)) for name in analysis.label_names]
        shares = [percent(hard.get(name)) for name in ("balanced", "baseline")]
        counts = (hard.get("num_examples"), run.premise.left_out)
        rows.append((run.name, percent(run.premise.hypothesis_only), *shares, *recalls, *counts))
    heads = ["run", "hyponly-v1, accuracy", "hard rows, balanced", "hard rows, hyponly-v1"]
    heads += [
        *(f"hard rows, recall of {name}" for name in analysis.label_names),
        "hard rows",
        "entailed without a swap",
    ]
    caption = "What needs no premise, in percent: a linear model of the hypothesis alone, and the rows that defeat it."
    return Table("hard-rows", caption, tuple(heads), tuple(rows))


def _change_table(shown: Sequence[tuple[RunPart, Change]], analysis: RunsAnalysis) -> Table:
    rows = tuple(
        (
            run.name,
            CONDITIONS[change.condition],
            change.label,
            change.num_rows,
            percent(change.changed),
            percent(change.before),
            percent(change.after),
            percent(change.fall),
        )
        for run, change in shown
    )
    heads = (
        "run",
        "premise",
        "gold label",
        "rows",
        "answer changes",
        "gold answer, own premise",
        "gold answer still",
        "fall",
    )
    whose = "" if analysis.scored_again else " Only the stored swaps of entailed rows; --score asks for all rows."
    caption = (
        "The premise removed or swapped, in percent: how often the answer changes, and how often it is the gold label "
        "with the own premise and still. Under another premise an unchanged answer is right where the gold label is "
        f"not entailment, and wrong where it is.{whose}"
    )
    few = frozenset(place for place, (_, change) in enumerate(shown) if rests_on_few(change.num_rows, change.changed))
    return Table("premise-changed", caption, heads, rows, few)


def _change_figures(analysis: RunsAnalysis) -> Iterator[Figure]:
    labels = list(dict.fromkeys(change.label for run in analysis.runs for change in run.changes))
    conditions = list(dict.fromkeys(change.condition for run in analysis.runs for change in run.changes))
    panels = []
    for label in labels:
        series: dict[str, tuple[Bar, ...]] = {}
        for run in analysis.runs:
            known = {change.condition: change for change in run.changes if change.label == label}
            bars = [
                bar_of(known[one].changed, known[one].num_rows) if one in known else Bar(None) for one in conditions
            ]
            if known:
                series[run.name] = tuple(bars)
        panels.append(Panel(f"gold label: {label}", tuple(CONDITIONS[one] for one in conditions), series))
    caption = "How often the answer changes when the premise is changed, by gold label. A blind model stays at 0."
    yield bar_figure("premise-changed", caption, panels, axis="answers that change (percent)")


def _error_page(analysis: RunsAnalysis) -> Iterator[Block]:
    yield from (_confusion_table(run, analysis.label_names) for run in analysis.runs)
    yield _error_table(analysis)
    yield _leaning_table(analysis)


def _confusion_table(run: RunPart, names: Sequence[str]) -> Table:
    rows: list[tuple[Cell, ...]] = [(name, *counts) for name, counts in zip(names, run.confusion, strict=True)]
    caption = f"Confusion matrix of {run.name}: rows are gold labels, columns answers."
    heads = ("gold", *(f"answered {name}" for name in names))
    return Table(f"confusion-{file_name(run.name)}", caption, heads, tuple(rows))


def _leaning_table(analysis: RunsAnalysis) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for run in analysis.runs:
        for one in run.leanings:
            whole = percent(one.gold), percent(one.answered), percent(one.lean)
            rows.append((run.name, one.label, *whole, percent(one.unsure_gold), percent(one.unsure_answered)))
    heads = ("run", "label", "of the gold labels", "of the answers", "lean", "of the gold labels, unsure")
    caption = (
        "Bias to one label, in percent: its share of the answers against its share of the gold labels, over all rows "
        f"and over the {100 * UNSURE_SHARE:.0f}% of which the run is least sure."
    )
    return Table("leaning", caption, (*heads, "of the answers, unsure"), tuple(rows))


def _error_table(analysis: RunsAnalysis) -> Table:
    rows: list[tuple[Cell, ...]] = []
    few = set()
    for run in analysis.runs:
        for one in run.errors:
            if rests_on_few(one.num_rows, one.rate):
                few.add(len(rows))
            shares = percent(one.share), percent(one.published)
            rows.append((run.name, one.title, one.num_errors, *shares, one.num_rows, percent(one.rate)))
    has_published = any(one.published is not None for run in analysis.runs for one in run.errors)
    beside = " Beside it ViLegalNLI's Table 16, whose shares add up to 87." if has_published else ""
    caption = (
        "Errors by type, shares in percent. An error may be of several types (a row carries several rules), so shares "
        f"do not add up to 100.{beside} The rate is over the rows on which the error can be made."
    )
    heads = ("run", "error", "errors", "of all errors", "published share", "rows", "rate")
    return Table("errors", caption, heads, tuple(rows), frozenset(few))


def _pair_page(analysis: RunsAnalysis) -> Iterator[Block]:
    rows = tuple(
        (
            pair.first,
            pair.second,
            pair.both_right,
            pair.first_only,
            pair.second_only,
            pair.both_wrong,
            percent(pair.same_answer),
            percent(pair.difference),
            _p_value(pair.mcnemar_p),
        )
        for pair in analysis.pairs
    )
    heads = ("first", "second", "both right", "first only", "second only", "both wrong", "same answer")
    caption = (
        "Every two runs: rows that both, one or none gets right; share of equal answers; accuracy of the first minus "
        f"that of the second with its interval over {units_of(analysis)} (one training each: training variance not "
        "included). "
        "McNemar's p treats rows of one law as independent, which they are not: a description, no test."
    )
    yield Table("pairs", caption, (*heads, "accuracy difference", "McNemar's p"), rows)


def _calibration_page(analysis: RunsAnalysis) -> Iterator[Block]:
    curves = [
        Curve(
            run.name,
            tuple(one.confidence for one in run.calibration.bins),
            tuple(bar_of(one.accuracy, one.num_rows) for one in run.calibration.bins),
        )
        for run in analysis.runs
    ]
    caption = (
        "How often answers of about one confidence are right, with 95% intervals; below the diagonal a run is too sure "
        "of itself. A cross marks points of few rows."
    )
    axes = {"x_axis": "probability of the answer given (percent)", "y_axis": "accuracy (percent)"}
    yield curve_figure("calibration", caption, curves, **axes)
    rows = tuple((run.name, percent(run.calibration.error, 2)) for run in analysis.runs)
    yield Table("calibration-error", "Expected calibration error over 15 bins, in percent.", ("run", "error"), rows)
    points = [(run, one) for run in analysis.runs for one in run.calibration.bins]
    heads = ("run", "from", "to", "answers", "mean confidence", "accuracy")
    shown = tuple(
        (run.name, percent(one.low), percent(one.high), one.num_rows, percent(one.confidence), percent(one.accuracy))
        for run, one in points
    )
    few = frozenset(place for place, (_, one) in enumerate(points) if rests_on_few(one.num_rows, one.accuracy))
    yield Table("calibration", "The points of the curve, in percent.", heads, shown, few)


def _hardest_page(analysis: RunsAnalysis) -> Iterator[Block]:
    rows = tuple(
        (
            plain(row["mean_loss"], 2),
            row["label"],
            _answers(row["answers"]),
            _origin(row),
            row["premise"],
            row["hypothesis"],
        )
        for row in analysis.hardest
    )
    heads = ("mean loss", "gold label", "answers", "where it is from", "premise", "hypothesis")
    caption = (
        f"The {NUM_HARDEST} rows with the highest loss (nats, mean over the runs). Confident and wrong in every run "
        "often means a doubtful gold label: read the law."
    )
    yield Table("hardest", caption, heads, rows)


def _answers(answers: dict[str, str]) -> str:
    given = set(answers.values())
    return f"all: {given.pop()}" if len(given) == 1 else "; ".join(f"{run}: {one}" for run, one in answers.items())


def _origin(row: dict[str, Any]) -> str:
    rules = ", ".join(rule_name(row["label"], rule) for rule in row["rule"] or [])
    return "; ".join(filter(None, (provenance(row), rules and f"rules {rules}", f"id {row['example_id']}")))


def provenance(row: dict[str, Any]) -> str:
    """Law, article, clause and point of a row, as far as the corpus tells."""
    law = " ".join(filter(None, (row["law_id"], f"({row['law_name']})" if row["law_name"] else "")))
    names = {"article": "article", "clause": "clause", "point": "point"}
    places = [f"{names[name]} {row[name]}" for name in names if row[name]]
    return ", ".join(filter(None, (law, *places))) or "not told"


def _subset_page(analysis: RunsAnalysis) -> Iterator[Block]:
    yield Paragraph(
        "Ids of the rows behind these figures, one a line in subsets/NAME.txt. lnli test RUN --subset FILE scores a "
        "run on them alone."
    )
    rows = tuple((name, len(ids)) for name, ids in analysis.subsets.items())
    yield Table("subsets", "Exported subsets.", ("subset", "rows"), rows)


def _notes(analysis: RunsAnalysis) -> Iterator[str]:
    yield (
        f"Intervals: 95%, delete-one jackknife over {units_of(analysis)}, t distribution with the effective number "
        f"minus 1 as degrees of freedom; under {MIN_LAWS} none is given. Each run is one training: training variance "
        "is not included, so no significance is marked. Where every law has the same figure the jackknife sees no "
        "variance and the interval is a point: in a bin of few rows it means little."
    )
    yield f"Overlap measures (words: {analysis.words}): {'; '.join(MEASURES.values())}."
    yield "Syllables are what stands between white space. A law's age is counted back from the newest law of the set."
    yield from (f"{run.name} was run on {run.source}" for run in analysis.runs)
    yield from paper_notes(analysis.corpora)


def _p_value(value: float) -> Cell:
    return "< 0.001" if value < 0.001 else Number(value, digits=3)
