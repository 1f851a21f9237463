"""Figures by matplotlib: readable in grey, intervals on every bar, Vietnamese text as outlines.

The same data give the same bytes. matplotlib is imported where something is drawn; no window system is needed.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from lightning_nli.analysis.document import Figure

_MAX_UPRIGHT_BINS = 10
_MAX_UPRIGHT_CHARACTERS = 16
_BAR_SHARE = 0.8  # of the room of a bin
_DOTS_PER_INCH = 150  # of the PNG
_MARKERS = "osD^vPX*"
_STYLES = ("-", "--", "-.", ":")
_SETTINGS = {
    "font.family": "DejaVu Sans",  # comes with matplotlib and has every Vietnamese letter
    "font.size": 9.0,
    "svg.fonttype": "path",
    "svg.hashsalt": "lightning-nli",
    "hatch.linewidth": 0.7,
    "text.parse_math": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
}


@dataclass(frozen=True)
class Bar:
    """A bar.

    Attributes:
        value: Its height; None: no bar.
        low: Lower end of the interval; None: no interval.
        high: Upper end.
        is_few: Rests on few rows: hatched.
    """

    value: float | None
    low: float | None = None
    high: float | None = None
    is_few: bool = False


@dataclass(frozen=True)
class Panel:
    """One set of axes.

    Attributes:
        title: Above it.
        bins: Names along the axis; a second line may say how many rows.
        series: Name -> bars, one a bin.
    """

    title: str
    bins: tuple[str, ...]
    series: dict[str, tuple[Bar, ...]]


@dataclass(frozen=True)
class Histogram:
    """One set of axes.

    Attributes:
        title: Above it.
        edges: Ends of the bins, one more than there are bins.
        series: Name -> height of each bin.
    """

    title: str
    edges: tuple[float, ...]
    series: dict[str, tuple[float, ...]]


@dataclass(frozen=True)
class Curve:
    """Points joined by a line, each with an interval.

    Attributes:
        name: In the legend.
        x: Places.
        bars: Heights.
    """

    name: str
    x: tuple[float, ...]
    bars: tuple[Bar, ...]


def bar_figure(
    name: str, caption: str, panels: Sequence[Panel], *, axis: str, is_share: bool = True, line: float | None = None
) -> Figure:
    """Grouped bars in panels side by side; lying where bins are many or have long names.

    Args:
        name: Of the files.
        caption: Shown below the figure.
        panels: At least one.
        axis: What the height of a bar is.
        is_share: Heights are shares (0 to 1), shown in percent up to 100.
        line: A height to compare with.
    """
    lying = any(
        len(panel.bins) > _MAX_UPRIGHT_BINS or max(map(_width, panel.bins)) > _MAX_UPRIGHT_CHARACTERS
        for panel in panels
    )
    with _drawing(_size(panels, lying)) as figure:
        shape = (len(panels), 1) if lying else (1, len(panels))
        heights = [max(2, len(panel.bins)) for panel in panels]
        ratios = {"height_ratios": heights} if lying else {"width_ratios": heights}
        axes = figure.subplots(*shape, squeeze=False, gridspec_kw=ratios).ravel()
        for panel, one in zip(panels, axes, strict=True):
            _draw_bars(one, panel, lying, 100.0 if is_share else 1.0)
            _finish_axes(one, panel, lying, axis, is_share, line)
        if len(panels[0].series) > 1:
            handles, labels = axes[0].get_legend_handles_labels()
            columns = int(figure.get_figwidth() / (0.6 + 0.08 * max(map(len, labels))))
            figure.legend(handles, labels, loc="outside upper left", ncols=max(1, columns), frameon=False)
        return _save(figure, name, caption)


def histogram_figure(name: str, caption: str, panels: Sequence[Histogram], *, axis: str) -> Figure:
    """Outlines of histograms, two panels beside each other; heights are shares (0 to 1), shown in percent.

    Args:
        name: Of the files.
        caption: Shown below the figure.
        panels: At least one.
        axis: What the heights are.
    """
    rows, columns = math.ceil(len(panels) / 2), min(2, len(panels))
    with _drawing((5.2 * columns, 0.5 + 2.7 * rows)) as figure:
        every = figure.subplots(rows, columns, squeeze=False).ravel()
        for panel, axes in zip(panels, every, strict=False):
            for place, (series, heights) in enumerate(panel.series.items()):
                axes.stairs(
                    [100 * height for height in heights],
                    panel.edges,
                    label=series,
                    color=_color(place, len(panel.series)),
                    linestyle=_STYLES[place % len(_STYLES)],
                    linewidth=1.6,
                )
            axes.set_ylim(bottom=0)
            axes.set_xlim(panel.edges[0], panel.edges[-1])
            axes.grid(color="0.9")
            axes.set_title(panel.title, loc="left", fontsize=9.5)
            axes.set_ylabel(axis)
        for axes in every[len(panels) :]:
            axes.set_visible(False)
        handles, labels = every[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper left", ncols=3, frameon=False)
        return _save(figure, name, caption)


def curve_figure(name: str, caption: str, curves: Sequence[Curve], *, x_axis: str, y_axis: str) -> Figure:
    """Curves of shares over shares, with the diagonal."""
    with _drawing((5.6, 4.8)) as figure:
        axes = figure.subplots()
        axes.plot([0, 100], [0, 100], color="0.6", linewidth=1, linestyle=(0, (1, 2)), label="perfect")
        for place, curve in enumerate(curves):
            heights = [100 * (bar.value or 0.0) for bar in curve.bars]
            reach = [_reach(bar, 100.0) for bar in curve.bars]
            axes.errorbar(
                [100 * x for x in curve.x],
                heights,
                yerr=[[low for low, _ in reach], [high for _, high in reach]],
                color=_color(place, len(curves)),
                marker=_MARKERS[place % len(_MARKERS)],
                linestyle=_STYLES[place % len(_STYLES)],
                linewidth=1.2,
                elinewidth=0.8,
                capsize=2,
                markersize=5,
                markeredgecolor="black",
                label=curve.name,
            )
            few = [(100 * x, height) for x, height, bar in zip(curve.x, heights, curve.bars, strict=True) if bar.is_few]
            if few:
                axes.plot(*zip(*few, strict=True), linestyle="", marker="x", markersize=9, color="black")
        axes.set(xlim=(0, 100), ylim=(0, 100), xlabel=x_axis, ylabel=y_axis)
        axes.grid(color="0.9")
        axes.legend(loc="upper left", frameon=False)
        return _save(figure, name, caption)


@contextmanager
def _drawing(size: tuple[float, float]) -> Iterator[Any]:
    """An empty figure (inches), drawn under our settings whatever the user's are."""
    import matplotlib
    from matplotlib.figure import Figure as Canvas

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_SETTINGS)
        yield Canvas(figsize=size, dpi=_DOTS_PER_INCH, layout="constrained", facecolor="white")


def _size(panels: Sequence[Panel], lying: bool) -> tuple[float, float]:
    bars = [len(panel.bins) * (1 + 0.55 * len(panel.series)) for panel in panels]
    if lying:
        return 8.6, min(60.0, 1.1 * len(panels) + 0.16 * sum(bars))
    return max(5.0, min(11.0, 1.4 * len(panels) + 0.33 * sum(bars))), 3.7


def _draw_bars(axes: Any, panel: Panel, lying: bool, scale: float) -> None:
    thickness = _BAR_SHARE / len(panel.series)
    for number, (name, bars) in enumerate(panel.series.items()):
        offset = (number - (len(panel.series) - 1) / 2) * thickness
        color = _color(number, len(panel.series))
        shown = [(place + offset, bar) for place, bar in enumerate(bars) if bar.value is not None]
        draw = axes.barh if lying else axes.bar
        draw(
            [where for where, _ in shown],
            [bar.value * scale for _, bar in shown if bar.value is not None],
            thickness,
            color=[_pale(color) if bar.is_few else color for _, bar in shown],
            hatch=["////" if bar.is_few else "" for _, bar in shown],
            edgecolor="black",
            linewidth=0.6,
        )
        draw([0], [math.nan], thickness, color=color, edgecolor="black", linewidth=0.6, label=name)
        _draw_intervals(axes, [(where, bar) for where, bar in shown if bar.low is not None], lying, scale)


def _draw_intervals(axes: Any, bars: Sequence[tuple[float, Bar]], lying: bool, scale: float) -> None:
    """Whiskers with a white rim, so that they show on dark bars too."""
    from matplotlib import patheffects

    if not bars:
        return
    places, heights = [where for where, _ in bars], [(bar.value or 0.0) * scale for _, bar in bars]
    reach = list(zip(*(_reach(bar, scale) for _, bar in bars), strict=True))
    at = (heights, places) if lying else (places, heights)
    ranges = {"xerr": reach} if lying else {"yerr": reach}
    mark = axes.errorbar(*at, **ranges, fmt="none", ecolor="black", elinewidth=0.9, capsize=2.2, capthick=0.9)
    for line in (*mark[1], *mark[2]):
        line.set_path_effects([patheffects.withStroke(linewidth=2.4, foreground="white")])


def _finish_axes(axes: Any, panel: Panel, lying: bool, axis: str, is_share: bool, line: float | None) -> None:
    places = range(len(panel.bins))
    along, across = (axes.yaxis, axes.xaxis) if lying else (axes.xaxis, axes.yaxis)
    along.set_ticks(list(places), list(panel.bins))
    along.set_tick_params(length=0)
    across.grid(color="0.88")
    across.set_label_text(axis)
    axes.set_title(panel.title, loc="left", fontsize=9.5)
    ends = (-0.6, len(panel.bins) - 0.4)
    if lying:
        axes.set_ylim(*reversed(ends))
    else:
        axes.set_xlim(*ends)
    if is_share:
        (axes.set_xlim if lying else axes.set_ylim)(0, 100)
    if line is not None:
        (axes.axvline if lying else axes.axhline)(
            100 * line if is_share else line, color="black", linestyle=":", lw=1.2
        )


def _reach(bar: Bar, scale: float) -> tuple[float, float]:
    """How far the interval reaches below and above, inside what a share can be."""
    if bar.value is None or bar.low is None or bar.high is None:
        return 0.0, 0.0
    low, high = max(0.0, bar.low), min(1.0, bar.high) if scale == 100.0 else bar.high
    return max(0.0, bar.value - low) * scale, max(0.0, high - bar.value) * scale


def _color(place: int, number: int) -> str:
    """Dark to light, so that series stay apart in grey."""
    import matplotlib

    share = 0.08 + 0.84 * place / max(1, number - 1) if number > 1 else 0.35
    red, green, blue, _ = matplotlib.colormaps["cividis"](share)
    return f"#{int(red * 255):02x}{int(green * 255):02x}{int(blue * 255):02x}"


def _pale(color: str) -> tuple[float, ...]:
    """The color mixed with two parts of white, so that black hatching shows on it."""
    from matplotlib.colors import to_rgb

    return tuple((part + 2) / 3 for part in to_rgb(color))


def _width(text: str) -> int:
    return max(map(len, text.split("\n")))


def _save(figure: Any, name: str, caption: str) -> Figure:
    """Both pictures of one layout; `savefig` would draw everything twice more."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    svg, png = io.BytesIO(), io.BytesIO()
    FigureCanvasAgg(figure).print_png(png, metadata={"Software": None})
    figure.set_layout_engine("none")  # the layout stays as it is
    FigureCanvasSVG(figure).print_svg(svg, metadata={"Date": None, "Creator": None})  # changes the figure's resolution
    return Figure(name, caption, svg.getvalue(), png.getvalue())
