"""Does the model read the law? The table and the figure of docs/READING.md, from finished run folders.

    python benchmarks/reading.py runs/a runs/b ... [--set test] [--into docs]
    python benchmarks/reading.py "as usual=runs/a" "as usual=runs/b" ranking=runs/c

Runs of one recipe (the same settings but for the seed) are one row: mean and standard deviation. A figure that one of
them lacks is left out (-). Swaps of other laws come from `lnli test RUN --swaps other-law`. Writes INTO/READING.md
between its markers, INTO/reading.csv and INTO/reading.png.
"""

from __future__ import annotations

import argparse
import csv
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import ascii_letters
from typing import Any

from lightning_nli.training.result import read_result
from lightning_nli.types import UserError

BEGIN, END = "<!-- figures: python benchmarks/reading.py RUN ... -->", "<!-- end of figures -->"
ROOT = Path(__file__).resolve().parents[1]
_MAY_DIFFER = ("seed", "run_dir", "resume")


@dataclass(frozen=True)
class Figure:
    """A column.

    Attributes:
        name: In the CSV file.
        heading: In the table.
        path: Below a set's entry in result.json.
        scale: 100 for percent.
    """

    name: str
    heading: str
    path: tuple[str, ...]
    scale: int = 100


FIGURES = (
    Figure("discrimination", "premise discrimination", ("premise", "discrimination")),
    Figure("random_swap", "random swap", ("premise", "random_swap")),
    Figure("other_law", "other law", ("held_out_swaps", "other_law", "discrimination")),
    Figure("rank", "rank", ("premise", "rank"), 1),
    Figure("gain", "premise gain", ("premise", "gain")),
    Figure("accuracy", "accuracy", ("accuracy",)),
    Figure("macro_f1", "macro-F1", ("macro_f1",)),
    Figure("hard", "hard rows, balanced", ("hard", "balanced")),
    Figure("threshold", "threshold", ("calibrated", "threshold"), 1),
    Figure("calibrated_discrimination", "premise discrimination there", ("calibrated", "premise", "discrimination")),
    Figure("calibrated_accuracy", "accuracy there", ("calibrated", "accuracy")),
)


@dataclass(frozen=True)
class Recipe:
    """Runs that differ in their seed alone.

    Attributes:
        name: As given, or of the settings.
        runs: Names of their folders.
        values: By figure: one value a run, None where it has none; percent where the figure is.
    """

    name: str
    runs: tuple[str, ...]
    values: Mapping[str, tuple[float | None, ...]]

    def mean(self, figure: str) -> float | None:
        """Over the runs; None if one of them has no value."""
        known = [value for value in self.values[figure] if value is not None]
        return statistics.mean(known) if known and len(known) == len(self.runs) else None

    def deviation(self, figure: str) -> float | None:
        """Standard deviation over the runs; None for a single one."""
        if len(self.runs) < 2 or self.mean(figure) is None:
            return None
        return statistics.stdev(value for value in self.values[figure] if value is not None)


def describe(config: Mapping[str, Any]) -> str:
    """What tells a run's recipe from that of another, in a few words."""
    words = [config["model"] if config["method"] in ("finetune", "setfit") else config["method"]]
    words += [config["method"]] if config["method"] == "setfit" else []
    words += [] if config["segments"] == "auto" else [f"{config['segments']} alone"]
    words += [value for value in (config["augment"], config["objective"]) if value not in ("none", "cross_entropy")]
    return ", ".join(words)


def read_recipes(runs: Sequence[str], set_name: str) -> list[Recipe]:
    """Recipes in the order of the arguments.

    Args:
        runs: `FOLDER` or `NAME=FOLDER`.
        set_name: Scored set.

    Raises:
        UserError: a folder holds no finished run, or one without that set; runs of one name have the same seed or
            other settings.
    """
    found: dict[str, list[tuple[str, Mapping[str, Any]]]] = {}
    for run in runs:
        given, _, path = run.rpartition("=")
        folder = Path(path)
        result = read_result(folder)
        if set_name not in result["scores"]:
            raise UserError(f"{folder} has no scores of {set_name}, only of {', '.join(result['scores'])}")
        name = given or describe(result["config"])
        found.setdefault(name, []).append((folder.name, result))
    return [_recipe(name, members, set_name) for name, members in found.items()]


def _recipe(name: str, members: Sequence[tuple[str, Mapping[str, Any]]], set_name: str) -> Recipe:
    settings = [
        {key: value for key, value in result["config"].items() if key not in _MAY_DIFFER} for _, result in members
    ]
    seeds = [result["config"]["seed"] for _, result in members]
    if len(set(seeds)) < len(seeds) or any(one != settings[0] for one in settings):
        folders = ", ".join(folder for folder, _ in members)
        raise UserError(f"'{name}': {folders} are not seeds of one recipe; tell them apart: NAME=FOLDER")
    entries = [result["scores"][set_name] for _, result in members]
    values = {figure.name: tuple(_value(entry, figure) for entry in entries) for figure in FIGURES}
    return Recipe(name, tuple(folder for folder, _ in members), values)


def _value(scores: Mapping[str, Any], figure: Figure) -> float | None:
    value: Any = scores
    for part in figure.path:
        value = None if value is None else value.get(part)
    return None if value is None else float(value) * figure.scale


def _cell(recipe: Recipe, figure: Figure) -> str:
    mean, deviation = recipe.mean(figure.name), recipe.deviation(figure.name)
    digits = 1 if figure.scale == 100 else 3
    if mean is None:
        return "-"
    return f"{mean:.{digits}f}" + ("" if deviation is None else f" ± {deviation:.{digits}f}")


def markdown(recipes: Sequence[Recipe]) -> str:
    """The table; a column that no recipe has is left out, letters are those of the figure."""
    shown = [figure for figure in FIGURES if any(recipe.mean(figure.name) is not None for recipe in recipes)]
    rows: list[Sequence[str]] = [("", "recipe", "seeds", *(figure.heading for figure in shown))]
    rows.append(("---",) * len(rows[0]))
    for letter, recipe in zip(_letters(recipes), recipes, strict=True):
        rows.append((letter, f"{recipe.name}", str(len(recipe.runs)), *(_cell(recipe, figure) for figure in shown)))
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _letters(recipes: Sequence[Recipe]) -> list[str]:
    if len(recipes) > len(ascii_letters):
        raise UserError(f"{len(recipes)} recipes; the figure tells {len(ascii_letters)} apart")
    return list(ascii_letters[: len(recipes)])


def write_csv(recipes: Iterable[Recipe], path: Path) -> None:
    """One row a recipe and figure, full precision; percent where the table has percent."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("recipe", "runs", "figure", "mean", "standard_deviation", "values"))
        for recipe in recipes:
            for figure in FIGURES:
                numbers = recipe.mean(figure.name), recipe.deviation(figure.name)
                values = " ".join("-" if value is None else f"{value:.6g}" for value in recipe.values[figure.name])
                written = ("" if number is None else f"{number:.6g}" for number in numbers)
                writer.writerow((recipe.name, " ".join(recipe.runs), figure.name, *written, values))


def draw(recipes: Sequence[Recipe], path: Path) -> None:
    """Accuracy against premise discrimination: full at 0.5, hollow at the threshold that `id_val` chose."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Canvas

    canvas = Canvas(figsize=(8.6, 0.6 + max(4.2, 0.24 * len(recipes))), dpi=150, layout="constrained")
    axes = canvas.subplots()
    for letter, recipe in zip(_letters(recipes), recipes, strict=True):
        at = recipe.mean("discrimination"), recipe.mean("accuracy")
        if at[0] is None or at[1] is None:
            continue
        spread = [recipe.deviation(name) or 0.0 for name in ("discrimination", "accuracy")]
        label = f"{letter}  {recipe.name}"
        axes.errorbar(*at, xerr=spread[0], yerr=spread[1], fmt="o", color="black", ecolor="0.6", ms=4, label=label)
        axes.annotate(letter, at, textcoords="offset points", xytext=(5, 4), fontsize=9)
        other = recipe.mean("calibrated_discrimination"), recipe.mean("calibrated_accuracy")
        if other[0] is not None and other[1] is not None:
            axes.plot((at[0], other[0]), (at[1], other[1]), color="0.7", lw=0.8, zorder=0)
            axes.plot(*other, "o", mfc="white", mec="black", ms=4)
    axes.set_xlabel("premise discrimination, percent (a model that never reads the premise has 0)")
    axes.set_ylabel("accuracy, percent")
    axes.set_xlim(-2, 102)
    low = min((value for recipe in recipes if (value := recipe.mean("accuracy")) is not None), default=50.0)
    axes.set_ylim(5 * math.floor((low - 1) / 5), 100)
    axes.grid(color="0.9")
    axes.spines[["top", "right"]].set_visible(False)
    # The letters stand beside the points: the legend needs no marks.
    legend = axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, fontsize=8, handlelength=0)
    legend.set_title("full: at 0.5; hollow: calibrated", prop={"size": 8})
    FigureCanvasAgg(canvas).print_png(path, metadata={"Software": None})


def write_page(recipes: Sequence[Recipe], page: Path, set_name: str) -> None:
    """Put the table between the page's markers.

    Raises:
        UserError: the page has no markers.
    """
    text = page.read_text(encoding="utf-8")
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        raise UserError(f"{page} must have one line '{BEGIN}' and one '{END}'")
    before, after = text.partition(BEGIN)[0], text.partition(END)[2]
    note = f"Set `{set_name}`; percent, but for rank and threshold; mean ± standard deviation over seeds."
    image = "![Accuracy against premise discrimination](reading.png)"
    page.write_text(f"{before}{BEGIN}\n{note}\n\n{markdown(recipes)}\n\n{image}\n{END}{after}", encoding="utf-8")


def main(argv: Sequence[str] | None = None) -> None:
    """Read the runs, write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", metavar="[NAME=]FOLDER", help="finished run folders")
    parser.add_argument("--set", default="test", help="scored set (default test)")
    parser.add_argument("--into", type=Path, default=ROOT / "docs", help="folder with READING.md (default docs)")
    given = parser.parse_args(argv)
    try:
        recipes = read_recipes(given.runs, given.set)
        write_page(recipes, given.into / "READING.md", given.set)
    except UserError as error:
        parser.error(str(error))
    write_csv(recipes, given.into / "reading.csv")
    draw(recipes, given.into / "reading.png")


if __name__ == "__main__":
    main()
