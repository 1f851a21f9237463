"""The report of a corpus: what hypotheses give away first, then rows, lengths, overlap, agreement, parts of speech."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import polars as pl

from lightning_nli.analysis.agreement import Agreement, Kappa
from lightning_nli.analysis.corpus import SIGNIFICANT, CorpusAnalysis
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
    percent,
    plain,
)
from lightning_nli.analysis.figures import Bar, Histogram, Panel, bar_figure, histogram_figure
from lightning_nli.analysis.lengths import UNITS
from lightning_nli.analysis.overlap import MEASURES
from lightning_nli.analysis.rules import rule_name
from lightning_nli.analysis.run_pages import paper_notes
from lightning_nli.analysis.slice_pages import domain_name
from lightning_nli.published import published_figures

_SHOWN_TOKENS = 25  # a label, on the page; the file has all
_SHARE = {"share", "weighted", "jaccard", "new_word_rate", "lcs", "vianli_overlap"}


def corpus_document(analysis: CorpusAnalysis, corpora: Sequence[str]) -> Document:
    """Lay the analysis out as a report.

    Args:
        analysis: Of the corpus.
        corpora: Names of the corpora it is of, for the papers' figures and notes.
    """
    published = published_figures("vilegalnli") if list(corpora) == ["vilegalnli"] else None
    sections = [
        Section("What hypotheses give away", tuple(_artifact_page(analysis, published))),
        Section("Rows", tuple(_row_page(analysis, corpora))),
        Section("Lengths", tuple(_length_page(analysis))),
        Section("Overlap of premise and hypothesis", tuple(_overlap_page(analysis, published))),
    ]
    if analysis.agreement is not None:
        sections.append(Section("Agreement of the validators", tuple(_agreement_page(analysis.agreement, published))))
    if analysis.pos is not None:
        sections.append(Section("Parts of speech", tuple(_pos_page(analysis.pos, published))))
    sections.append(Section("Notes", (Bullets(tuple(_notes(analysis, corpora))),)))
    attached = (
        _frame_table("rows-by-split-domain-label-rule", "", analysis.cells),
        _frame_table("tokens-all", "", analysis.tokens),
        _frame_table("length-histogram", "", analysis.length_histogram),
        _frame_table("overlap-histogram", "", analysis.overlap_histogram),
    )
    title = f"Corpus {analysis.source}: {analysis.num_rows:,} rows"
    return Document(title, tuple(sections), analysis.as_dict(), attached=attached)


def _artifact_page(analysis: CorpusAnalysis, published: pl.DataFrame | None) -> Iterator[Block]:
    blind = analysis.blind
    if blind is None:
        yield Paragraph("The corpus is too small for a model that reads the hypothesis alone.", is_lead=True)
    else:
        yield Paragraph(blind.verdict, is_lead=True)
        named = {
            "commonest label": blind.majority,
            "hypothesis only (hyponly-v1)": blind.hypothesis_only,
            "premise only": blind.premise_only,
        }
        rows = tuple((name, percent(one.accuracy), percent(one.macro_f1)) for name, one in named.items())
        caption = (
            f"Models that read one text only, trained on {blind.train} ({blind.num_train:,} rows), scored on "
            f"{blind.test} ({blind.majority.num_examples:,} rows), in percent."
        )
        yield Table("blind-models", caption, ("model", "accuracy", "macro-F1"), rows)
    yield _token_table(analysis)
    if analysis.published_tokens is not None:
        yield _published_token_table(analysis.published_tokens, published)
    yield _trigger_table(analysis.triggers)


def _token_cells(row: dict[str, Any]) -> tuple[Cell, ...]:
    """The cells that every table of tokens begins with."""
    return row["token"], row["label"], row["label_rows"], row["rows"], percent(row["p_label_given_token"])


def _token_table(analysis: CorpusAnalysis) -> Table:
    shown = analysis.tokens.group_by("label", maintain_order=True).head(_SHOWN_TOKENS)
    rows = tuple(
        (
            *_token_cells(row),
            *(plain(row[name], 2) for name in ("pmi_bits", "pmi_nats", "log_odds", "z")),
            _p_value(row["p_adjusted"]),
        )
        for row in shown.iter_rows(named=True)
    )
    heads = ("token", "label", "rows of the label", "rows", "P(label | token), percent", "PMI, bits", "PMI, nats")
    caption = (
        f"Tokens that go with a label, the strongest {_SHOWN_TOKENS} of each by the log-odds' z (informative prior), "
        f"of {analysis.num_tokens:,} above the floor; adjusted p (Fisher, false discovery rate) below {SIGNIFICANT}. "
        "It takes hypotheses for independent, which those of one law are not: a description."
    )
    return Table("tokens", caption, (*heads, "log-odds", "z", "adjusted p"), rows)


def _published_token_table(tokens: pl.DataFrame, published: pl.DataFrame | None) -> Table:
    printed = _printed(published, 13, "pmi")
    rows = tuple(
        (
            *_token_cells(row),
            plain(row["pmi_bits"], 2),
            plain(row["pmi_nats"], 2),
            plain(row["highest_pmi_bits"], 2),
            *([] if published is None else [plain(printed.get(row["token"]), 2)]),
        )
        for row in tokens.iter_rows(named=True)
    )
    heads = ["token", "label, as published", "rows of the label", "rows", "P(label | token), percent", "PMI, bits"]
    heads += ["PMI, nats", "highest possible, bits", *([] if published is None else ["published as PMI"])]
    caption = "The tokens of ViLegalNLI's Table 13. What the paper prints as PMI looks like P(label | token)."
    return Table("vilegalnli-table-13-tokens", caption, tuple(heads), rows)


def _trigger_table(triggers: pl.DataFrame) -> Table:
    rows = tuple(
        (
            row["token"],
            row["stands_for"],
            row["label"],
            row["label_rows"],
            row["rows"],
            row["rows_any_case"],
            percent(row["p_label_given_token"]),
            plain(row["pmi_bits"], 2),
        )
        for row in triggers.iter_rows(named=True)
    )
    heads = ("token", "stands for", "label, as published", "rows of the label", "rows", "rows, any case")
    caption = "The triggers of ViLegalNLI's Table 9 and their substitutes, by name; finer labels folded into two."
    return Table("vilegalnli-table-9-triggers", caption, (*heads, "P(label | token), percent", "PMI, bits"), rows)


def _row_page(analysis: CorpusAnalysis, corpora: Sequence[str]) -> Iterator[Block]:
    yield _frame_table("splits", "Rows, distinct premises and laws by split and label.", analysis.splits)
    domains = analysis.domains.drop_nulls("domain")
    if domains.height:
        yield _domain_figure(domains)
        yield _domain_table(analysis)
    rules = analysis.rules.drop_nulls("rule")
    if rules.height:
        yield _rule_figure(analysis, rules, "vilegalnli" in corpora)
        yield _frame_table("rules", "By generation rule; a row counts in each of its rules.", analysis.rules)


def _domain_figure(domains: pl.DataFrame) -> Figure:
    sums = domains.group_by("domain", "label").agg(pl.col("rows").sum())
    order = sums.group_by("domain").agg(pl.col("rows").sum()).sort("rows", "domain", descending=[True, False])
    counts = {(domain, label): rows for domain, label, rows in sums.iter_rows()}
    labels = sorted({label for _, label in counts})
    series = {
        label: tuple(Bar(float(counts.get((domain, label), 0))) for domain in order["domain"]) for label in labels
    }
    panel = Panel("rows by field of law", tuple(map(domain_name, order["domain"])), series)
    caption = "Rows by field of law and label; a row counts in each of its fields."
    return bar_figure("domains", caption, [panel], axis="rows", is_share=False)


def _domain_table(analysis: CorpusAnalysis) -> Table:
    """One row a field, one column a split and label."""
    counts: dict[str | None, dict[str, int]] = {}
    weighted: dict[str | None, float] = {}
    for split, domain, label, rows, weight in analysis.domains.iter_rows():
        counts.setdefault(domain, {})[f"{split or 'no split'}, {label}"] = rows
        weighted[domain] = weighted.get(domain, 0.0) + weight
    heads = list(dict.fromkeys(head for part in counts.values() for head in part))
    order = sorted(counts, key=lambda domain: (domain is None, -sum(counts[domain].values()), domain))
    rows = tuple(
        (
            domain_name(domain) if domain else "no field given",
            *(counts[domain].get(head, 0) for head in heads),
            sum(counts[domain].values()),
            plain(weighted[domain], 1),
        )
        for domain in order
    )
    caption = (
        "By field of law in both ways of counting: a row counts in each of its fields (rows), or 1/k in each of its k "
        "fields (weighted rows, which add up to the rows)."
    )
    return Table("domains", caption, ("field of law", *heads, "rows", "weighted rows"), rows)


def _rule_figure(analysis: CorpusAnalysis, rules: pl.DataFrame, is_published: bool) -> Figure:
    totals = {(split, label): rows for split, label, rows, *_ in analysis.splits.iter_rows()}
    panels = []
    for label in analysis.labels:
        mine = rules.filter(pl.col("label") == label)
        if mine.is_empty():
            continue
        numbers = mine["rule"].unique().sort().to_list()
        counts = {(split, rule): rows for split, _, rule, rows, *_ in mine.iter_rows()}
        series = {
            split or "no split": tuple(Bar(counts.get((split, rule), 0) / totals[split, label]) for rule in numbers)
            for split in mine["split"].unique(maintain_order=True)
        }
        panels.append(Panel(label, tuple(rule_name(label, rule) for rule in numbers), series))
    name = "vilegalnli-figure-6-rules" if is_published else "rules"
    figure = " Corresponds to ViLegalNLI's Figure 6." if is_published else ""
    caption = f"Share of the label's rows that carry each generation rule; a row may carry several.{figure}"
    return bar_figure(name, caption, panels, axis="rows of the label (percent)")


def _length_page(analysis: CorpusAnalysis) -> Iterator[Block]:
    units = list(dict.fromkeys(name.rpartition("_")[2] for name in analysis.lengths["measure"]))
    for unit in units:
        histograms = analysis.length_histogram.filter(pl.col("measure").str.ends_with(f"_{unit}"))
        caption = f"Lengths in {unit} ({UNITS[unit]}) by label; the last bin holds all longer texts."
        yield histogram_figure(f"lengths-{unit}", caption, _histograms(histograms, 1), axis="texts (percent)")
    yield _summary_table("lengths", "Lengths of the texts; a dash stands for all.", analysis.lengths, None)


def _overlap_page(analysis: CorpusAnalysis, published: pl.DataFrame | None) -> Iterator[Block]:
    kinds = analysis.overlap["words"].unique(maintain_order=True).to_list()
    yield Bullets(tuple(MEASURES.values()))
    for kind in kinds:
        part = analysis.overlap_histogram.filter(pl.col("words") == kind).drop("words")
        caption = f"Overlap of premise and hypothesis by label, words: {kind}."
        yield histogram_figure(f"overlap-{kind}", caption, _histograms(part, 100), axis="rows (percent)")
        summary = analysis.overlap.filter(pl.col("words") == kind).drop("words")
        yield _summary_table(f"overlap-{kind}", f"Overlap, words: {kind}, in percent.", summary, 100)
    if published is not None:
        yield _table_12(analysis.overlap, published)


def _table_12(overlap: pl.DataFrame, published: pl.DataFrame) -> Table:
    """Means over all rows of a label beside the paper's."""
    whole = overlap.filter(pl.col("split").is_null() & pl.col("label").is_not_null())
    rows = []
    for row in whole.iter_rows(named=True):
        printed = _printed(published, 12, row["measure"]).get(row["label"])
        if printed is not None:
            off = plain(100 * row["mean"] - printed, 2)
            rows.append((row["words"], row["measure"], row["label"], percent(row["mean"], 2), plain(printed, 2), off))
    heads = ("words", "measure", "label", "here", "published", "difference")
    caption = (
        "Beside ViLegalNLI's Table 12, in percent. Its words are pyvi's (--words pyvi); its rows include the train "
        "split, which cannot be had."
    )
    return Table("vilegalnli-table-12-overlap", caption, heads, tuple(rows))


def _agreement_page(agreement: Agreement, published: pl.DataFrame | None) -> Iterator[Block]:
    kappas = [("Fleiss", agreement.fleiss), *(("Cohen", one) for one in agreement.cohen)]
    rows = tuple((name, ", ".join(one.raters), *_kappa_cells(one)) for name, one in kappas)
    heads = (
        "kappa",
        "raters",
        "value",
        "observed agreement, percent",
        "by chance, percent",
        "items",
        "ratings missing",
    )
    caption = (
        "Agreement beyond chance, with 95% intervals over laws. Undefined where all ratings are one label. Rows "
        f"without a rating: {agreement.num_unrated:,}; rated rows without a majority: {agreement.num_undecided:,}."
    )
    yield Table("kappa", caption, heads, rows)
    yield _table_7(agreement, published)


def _kappa_cells(one: Kappa) -> tuple[Cell, ...]:
    return (plain(one.estimate), percent(one.observed), percent(one.expected), one.num_items, one.num_missing)


def _table_7(agreement: Agreement, published: pl.DataFrame | None) -> Table:
    names = {3: "three_agree", 2: "two_or_more_agree"} if len(agreement.raters) == 3 else {}
    rows = []
    for row in agreement.with_label.iter_rows(named=True):
        label = row["label"] or "all"
        printed = _printed(published, 7, names.get(row["num_agreeing"], "")).get(label)
        cells = (percent(row["share"], 2), percent(row["share_or_more"], 2))
        beside = [] if published is None else [plain(printed, 2)]
        rows.append((label, row["num_agreeing"], row["rows"], *cells, *beside))
    heads = ["label", "validators who agree", "rows", "share, percent", "so many or more, percent"]
    heads += [] if published is None else ["published, so many or more"]
    caption = "How many validators gave a row its label. ViLegalNLI's Table 7 is of its test split."
    return Table(
        "vilegalnli-table-7-agreement" if published is not None else "agreement", caption, tuple(heads), tuple(rows)
    )


def _pos_page(shares: pl.DataFrame, published: pl.DataFrame | None) -> Iterator[Block]:
    for grouping in shares["grouping"].unique(maintain_order=True):
        part = shares.filter(pl.col("grouping") == grouping).drop("grouping")
        caption = f"Parts of speech of hypotheses and of their new words, grouped as {grouping}; a dash: all labels."
        yield _frame_table(f"parts-of-speech-{grouping}", caption, part)
    if published is not None:
        rows = []
        for label in ("entailment", "non_entailment"):
            for metric in ("noun", "verb", "adj", "pron", "adv", "other"):
                rows.append((label, metric, plain(_printed(published, 12, metric).get(label), 2)))
        caption = "As printed in ViLegalNLI's Table 12, in percent; the shares add up to 67.9 and 66.8."
        yield Table("vilegalnli-table-12-parts-of-speech", caption, ("label", "group", "published"), tuple(rows))


def _notes(analysis: CorpusAnalysis, corpora: Iterable[str]) -> Iterator[str]:
    yield from analysis.notes
    if analysis.num_bad_rows:
        yield f"{analysis.num_bad_rows} unusable rows were left out."
    yield (
        "PMI is log(P(label | token) / P(label)) over hypotheses, in base 2 (bits) and natural (nats); a token counts "
        "once a hypothesis. Log-odds: informative Dirichlet prior (Monroe, Colaresi, Quinn 2008)."
    )
    yield "Beside this page in tables/: all counts by split, field, label and rule, all tokens, all histograms."
    yield from paper_notes(list(corpora))


def _histograms(table: pl.DataFrame, scale: float) -> list[Histogram]:
    """One panel a measure: shares of each label's rows."""
    panels = []
    for measure in table["measure"].unique(maintain_order=True):
        mine = table.filter(pl.col("measure") == measure)
        lows = mine["low"].unique().sort().to_list()
        step = lows[1] - lows[0] if len(lows) > 1 else 1
        series = {}
        for (label,), part in mine.partition_by("label", as_dict=True, maintain_order=True).items():
            total = part["rows"].sum()
            series[str(label)] = tuple(count / total if total else 0.0 for count in part.sort("low")["rows"])
        edges = tuple(scale * low for low in (*lows, lows[-1] + step))
        panels.append(Histogram(str(measure).replace("_", " "), edges, series))
    return panels


def _summary_table(name: str, caption: str, table: pl.DataFrame, scale: float | None) -> Table:
    heads = table.columns
    rows = []
    for row in table.iter_rows(named=True):
        texts = [row["measure"].replace("_", " "), row["split"], row["label"], row["rows"]]
        numbers = [Number(row[one], scale=scale or 1.0, digits=1) for one in heads[4:]]
        rows.append((*texts, *numbers))
    return Table(
        name, caption, tuple(head.replace("q", "quantile ") if head[0] == "q" else head for head in heads), tuple(rows)
    )


def _frame_table(name: str, caption: str, frame: pl.DataFrame) -> Table:
    """A frame as it is; shares in percent."""
    heads = tuple(column.replace("_", " ") for column in frame.columns)
    rows = tuple(
        tuple(_frame_cell(column, value) for column, value in row.items()) for row in frame.iter_rows(named=True)
    )
    return Table(name, caption, heads, rows)


def _frame_cell(column: str, value: Any) -> Cell:
    if isinstance(value, float):
        return percent(value, 2) if column == "share" else plain(value, 3)
    return value if value is None or isinstance(value, int) else str(value)


def _printed(published: pl.DataFrame | None, table: int, metric: str) -> dict[str, float]:
    """What a table of the paper prints: row -> figure."""
    if published is None:
        return {}
    rows = published.filter((pl.col("table") == table) & (pl.col("metric") == metric))
    return dict(rows.select("system", "value").iter_rows())


def _p_value(value: float) -> Cell:
    return "< 0.001" if value < 0.001 else Number(value, digits=3)
