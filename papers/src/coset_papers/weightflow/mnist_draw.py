"""Pictures of the MNIST networks."""

from __future__ import annotations

from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from coset.plot.palette import HUES
from coset_papers.drawing import FAINT, INK, legend, panels, style
from coset_papers.weightflow.draw import PUBLISHED, SAMPLES, TRAINED, histograms, names, reach

# What stands over a column, the name of the number, and its form.
COLUMNS = (
    ("memorised", "memorised", ".1%"),
    ("diversity", "diversity", ".3f"),
    ("minutes", "minutes", ".1f"),
    ("samples/s", "per_second", ".0f"),
    ("GiB", "memory", ".1f"),
)


def draw_table2(data: Any) -> Figure:
    """Accuracy and loss of each kind of network, the other columns as numbers, and solvers."""
    rows = data["rows"]
    figure, ((left, middle), (table, solvers)) = panels(2, 2, f"Generated and trained networks: {data['title']}", 3.2)
    figure.set_figwidth(9.6)
    for y, row in enumerate(rows):
        colour = TRAINED if y == 0 else SAMPLES if row["name"].endswith("ours") else HUES[4]
        reach(left, y, row["accuracy"], colour, 100)
        left.plot(100 * row["average"]["accuracy"], y, "D", color=colour, markerfacecolor="white", markersize=6)
        reach(middle, y, row["loss"], colour)
        middle.plot(row["average"]["nll"], y, "D", color=colour, markerfacecolor="white", markersize=6)
        if row.get("published") is not None:
            left.plot(100 * row["published"], y, "x", color=PUBLISHED, markersize=6)
    labels = [row["name"].replace(", as in the thesis", ",\nas in the thesis") for row in rows]
    names(left, labels)
    names(middle, [""] * len(rows))
    style(left, "test accuracy (%)", "")
    middle.set_xscale("log")
    style(middle, "test loss (nats)", "")
    _table(table, rows, labels)
    _solvers(solvers, data["solvers"])
    plain: dict[str, Any] = {"color": INK, "linestyle": "none"}
    handles = [
        Line2D([], [], marker="o", label="mean, and nine tenths of the networks", **plain),
        Line2D([], [], marker="D", markerfacecolor="white", label="averaged predictions of all", **plain),
        Line2D([], [], marker="x", label="published", **plain),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False, fontsize=8)
    return figure


def draw_averages(data: Any) -> Figure:
    """Accuracy on the left, loss on the right."""
    figure, (row,) = panels(1, 2, f"Averaged predictions of many networks: {data['title']}")
    for axes, key, factor, words in zip(
        row, ("accuracy", "nll"), (100, 1), ("test accuracy (%)", "test loss (nats)"), strict=True
    ):
        for name, colour, label in (("trained", TRAINED, "fresh networks"), ("samples", SAMPLES, "samples")):
            found = data[name]
            counts = [each["count"] for each in found]
            values = [factor * each[key] for each in found]
            errors = [factor * (each[f"{key}_error"] or 0.0) for each in found]
            axes.errorbar(counts, values, errors, fmt="o-", color=colour, markersize=4, capsize=2, label=label)
        axes.set_xscale("log", base=2)
        style(axes, "networks", words)
    row[0].axhline(100 * data["published"], color=FAINT, linestyle=(0, (4, 3)), label="published, many samples")
    legend(figure, row[0], 3)
    return figure


def draw_novelty(data: Any) -> Figure:
    """Histograms of distances."""
    figure, ((axes,),) = panels(1, 1, f"How new samples are: {data['title']}", 3.4)
    figure.set_figwidth(6.4)
    histograms(axes, data["kinds"])
    bound = "" if data["exact"] else ", at most"
    style(axes, f"distance to the nearest training network, modulo symmetry{bound}", "share of networks")
    legend(figure, axes, 3)
    return figure


def _table(axes: Axes, rows: list[Any], labels: list[str]) -> None:
    axes.set_axis_off()
    axes.set_xlim(0, 1)
    axes.set_ylim(len(rows) - 0.5, -1.2)
    places = [0.4 + 0.15 * k for k in range(len(COLUMNS))]
    for x, (words, _, _) in zip(places, COLUMNS, strict=True):
        axes.text(x, -0.8, words, ha="right", va="center", fontsize=7, color=FAINT)
    for y, (row, label) in enumerate(zip(rows, labels, strict=True)):
        axes.text(0, y, label, ha="left", va="center", fontsize=7, color=INK, linespacing=1.0)
        for x, (_, key, form) in zip(places, COLUMNS, strict=True):
            value = row["diversity"]["pairwise"] if key == "diversity" else row.get(key)
            axes.text(x, y, "-" if value is None else f"{value:{form}}", ha="right", va="center", fontsize=7, color=INK)


def _solvers(axes: Axes, found: list[Any]) -> None:
    for method, colour in (("heun", SAMPLES), ("euler", HUES[2])):
        line = sorted((row for row in found if row["method"] == method), key=lambda row: row["calls"])
        axes.plot(
            [row["calls"] for row in line], [100 * row["accuracy"] for row in line], "o-", color=colour, label=method
        )
    calls = sorted({row["calls"] for row in found})
    axes.set_xscale("log")
    axes.set_xticks(calls, [str(count) for count in calls])
    axes.minorticks_off()
    style(axes, "calls of the field for a sample", "test accuracy (%)", "by solver")
    axes.legend(frameon=False, fontsize=8)
