"""Pictures of losses along paths and of barriers against a setting, from their data alone."""

from __future__ import annotations

from typing import Any

from matplotlib.axes import Axes

from coset.plot.palette import HUES
from coset_papers.rossi2023.barriers import ALIGNED as BEST, NAIVE as NOT_MOVED, heights

NAIVE, ALIGNED = "#7a7a7a", HUES[1]
DASHED = (0, (4, 3))
LINES: dict[str, Any] = {"train": DASHED, "test": "solid"}


def curve(axes: Axes, row: dict[str, Any], colour: str, label: str, dashes: Any = "solid") -> None:
    """The loss along a path, with a band of two standard errors where they are known."""
    axes.plot(row["t"], row["loss"], color=colour, linewidth=1.7, linestyle=dashes, label=label)
    if row["loss_error"] is not None and any(row["loss_error"]):
        low = [loss - 2 * error for loss, error in zip(row["loss"], row["loss_error"], strict=True)]
        high = [loss + 2 * error for loss, error in zip(row["loss"], row["loss_error"], strict=True)]
        axes.fill_between(row["t"], low, high, color=colour, alpha=0.15, linewidth=0)


def both(axes: Axes, naive: dict[str, Any], aligned: dict[str, Any]) -> None:
    """Naive and aligned curves of a pair on both splits."""
    for row, colour, name in ((naive, NAIVE, "naive"), (aligned, ALIGNED, "aligned")):
        for split, dashes in LINES.items():
            curve(axes, row[split], colour, f"{name}, {split}", dashes)


def trend(axes: Axes, x: list[float], rows: list[list[float]], colour: str, label: str, dashes: Any = "solid") -> None:
    """Means against a setting, with each pair as a dot."""
    axes.plot(x, [sum(row) / len(row) for row in rows], color=colour, linewidth=1.7, linestyle=dashes, label=label)
    for at, row in zip(x, rows, strict=True):
        axes.plot([at] * len(row), row, ".", color=colour, markersize=4, alpha=0.7)


def barriers_by(axes: Axes, x: list[float], rows: dict[str, Any]) -> None:
    """Naive and aligned barriers of both splits against a setting; `rows` has those of all pairs by cost."""
    for cost, colour, words in ((NOT_MOVED, NAIVE, "naive"), (BEST, ALIGNED, "aligned")):
        for split, dashes in LINES.items():
            values = [heights(pairs, split) for pairs in rows[cost]]
            trend(axes, x, values, colour, f"{words}, {split}", dashes)
    settings_axis(axes, x)
    axes.set_ylim(bottom=0)


def settings_axis(axes: Axes, x: list[float]) -> None:
    """A logarithmic axis that names the values that were tried."""
    axes.set_xscale("log")
    axes.set_xticks(x, [f"{value:g}" for value in x])
    axes.minorticks_off()
