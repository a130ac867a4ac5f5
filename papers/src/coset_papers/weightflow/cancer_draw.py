"""The picture of Table 1."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, NullFormatter

from coset.plot.palette import HUES
from coset_papers.drawing import FAINT, INK, panels, style
from coset_papers.weightflow.cancer import distance
from coset_papers.weightflow.draw import names, reach

# What they are called, where they stand in a row, and their colour.
SPLITS = {"test": ("test", -0.14, HUES[1]), "train": ("training", 0.14, HUES[0])}
# What stands over a column, and how the number of a row is written.
COLUMNS: tuple[tuple[str, Callable[[Any], str]], ...] = (
    ("memorised", lambda row: f"{row['novelty']['memorised']:.1%}"),
    ("to nearest", lambda row: f"{distance(row, 'samples'):.2f}"),
    ("fresh runs", lambda row: f"{distance(row, 'fresh'):.2f}"),
    ("minutes", lambda row: f"{row['minutes']:.1f}"),
    ("weights", lambda row: f"{row['parameters']:,}"),
)


def draw_table1(data: Any) -> Figure:
    """Accuracy and loss of each flow on both splits, trained networks on top, and the other columns as numbers."""
    rows = [
        ("trained", data["networks"]["kept"], data["published_trained"]),
        ("at the end of training", data["networks"]["fresh"], None),
    ]
    for geometry, flows in data["flows"].items():
        for kind, row in flows.items():
            words = data["kinds"][kind].replace(", errors", ",\nerrors")
            published = data["published"][geometry] if kind == "aligned" else None
            rows.append((f"{data['geometries'][geometry]}, {words}", row, published))
    figure, ((left, middle, table),) = panels(1, 3, f"Generated and trained networks: {data['title']}", 6.0)
    figure.set_figwidth(12.5)
    for y, (_, row, published) in enumerate(rows):
        for split, (_, aside, colour) in SPLITS.items():
            reach(left, y + aside, row[split]["accuracy"], colour, 100)
            reach(middle, y + aside, row[split]["loss"], colour)
        if published is not None:
            left.plot(100 * published[0], y, "x", color=INK, markersize=7)
            middle.plot(published[1], y, "x", color=INK, markersize=7)
    names(left, [label for label, _, _ in rows])
    names(middle, [""] * len(rows))
    style(left, "accuracy (%)", "")
    style(middle, "loss (nats)", "")
    middle.set_xscale("log")
    middle.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    middle.xaxis.set_major_formatter("{x:g}")
    middle.xaxis.set_minor_formatter(NullFormatter())
    _table(table, [row for _, row, _ in rows])
    plain: dict[str, Any] = {"linestyle": "none"}
    handles = [
        Line2D([], [], marker="o", color=colour, label=f"{words} examples: mean, and nine tenths", **plain)
        for words, _, colour in SPLITS.values()
    ]
    handles.append(Line2D([], [], marker="x", color=INK, label="published", **plain))
    figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False, fontsize=8)
    return figure


def _table(axes: Axes, rows: list[Any]) -> None:
    axes.set_axis_off()
    axes.set_xlim(0, 1)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    for k, (words, written) in enumerate(COLUMNS):
        x = (k + 1) / len(COLUMNS)
        axes.text(x, 1, words, ha="right", va="center", fontsize=8, color=FAINT)
        for y, row in enumerate(rows):
            if "novelty" in row:
                axes.text(x, y, written(row), ha="right", va="center", fontsize=8, color=INK)
