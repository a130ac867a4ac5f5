"""Pictures of what makes flows over networks work."""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from coset.plot.palette import HUES
from coset_papers.drawing import INK, legend, panels, style
from coset_papers.weightflow.draw import SAMPLES, TRAINED, names, reach


def draw_ablation(data: Any) -> Figure:
    """Accuracy and loss of each variation, with lines at those of the chosen flow and of fresh networks."""
    rows = data["rows"]
    figure, (row,) = panels(1, 2, f"One thing changed at a time: {data['title']}", 4.2)
    factors = list(dict.fromkeys(each["factor"] for each in rows))
    for axes, key, average, factor, words in zip(
        row, ("accuracy", "loss"), ("accuracy", "nll"), (100, 1), ("test accuracy (%)", "test loss (nats)"), strict=True
    ):
        for at, colour in ((data["trained"], TRAINED), (rows[0], SAMPLES)):
            axes.axvline(factor * at[key]["mean"], color=colour, linewidth=1, linestyle=(0, (4, 3)))
        for y, each in enumerate(rows):
            colour = SAMPLES if y == 0 else HUES[2 + factors.index(each["factor"]) % 7]
            reach(axes, y, each[key], colour, factor)
            axes.plot(
                factor * each["average"][average], y, "D", color=colour, markerfacecolor="white", markersize=5, zorder=3
            )
        style(axes, words, "")
    names(row[0], [f"{each['factor']}: {each['name']}" if each["name"] else each["factor"] for each in rows])
    names(row[1], [""] * len(rows))
    plain: dict[str, Any] = {"color": INK, "linestyle": "none"}
    handles = [
        Line2D([], [], marker="o", label="mean, nine tenths", **plain),
        Line2D([], [], marker="D", markerfacecolor="white", label="averaged predictions", **plain),
        Line2D([], [], color=TRAINED, linestyle=(0, (4, 3)), label="fresh networks"),
        Line2D([], [], color=SAMPLES, linestyle=(0, (4, 3)), label="chosen"),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=4, frameon=False, fontsize=8)
    return figure


def draw_scaling(data: Any) -> Figure:
    """By width, with fresh networks as a line."""
    figure, (row,) = panels(1, 2, f"Samples by the width of the transformer: {data['title']}")
    widths = [each["width"] for each in data["rows"]]
    for axes, key, factor, words in zip(
        row, ("accuracy", "loss"), (100, 1), ("test accuracy (%)", "test loss (nats)"), strict=True
    ):
        axes.axhline(
            factor * data["trained"][key]["mean"], color=TRAINED, linestyle=(0, (4, 3)), label="fresh networks"
        )
        means = [factor * each[key]["mean"] for each in data["rows"]]
        axes.plot(widths, means, "o-", color=SAMPLES, label="samples, mean")
        low, high = ([factor * each[key]["quantiles"][level] for each in data["rows"]] for level in ("0.05", "0.95"))
        axes.fill_between(widths, low, high, color=SAMPLES, alpha=0.15, linewidth=0, label="nine tenths of them")
        axes.set_xscale("log", base=2)
        axes.set_xticks(widths, [str(width) for width in widths])
        style(axes, "width", words)
    legend(figure, row[0], 3)
    return figure
