"""Picture of a flow that is steered."""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure

from coset.papers.drawing import FAINT, panels, style
from coset.papers.weightflow.descent import FROM_SAMPLES, STARTS, UNTRAINED, best_of
from coset.papers.weightflow.draw import SAMPLES, TRAINED
from coset.papers.weightflow.guidance import PLACES
from coset.report.palette import HUES


def draw_guidance(data: Any) -> Figure:
    """Guided samples by strength, and gradient descent by its steps."""
    figure, ((left, right),) = panels(1, 2, data["title"], 4.2)
    if data["published"] is not None:
        low, high = data["published"]
        for axes in (left, right):
            axes.axhspan(100 * low, 100 * high, color=FAINT, alpha=0.3, linewidth=0, label="guided, published")
    unguided = next(row["accuracy"] for row in data["guided"] if row["strength"] == 0.0)
    left.axhline(100 * unguided, color=FAINT, linestyle=(0, (4, 3)), label="not guided")
    batches = sorted({row["batch"] for row in data["guided"] if row["strength"]})
    for at, dashes in zip(PLACES, ("solid", (0, (3, 2))), strict=True):
        for batch, colour in zip(batches, HUES, strict=False):
            line = [
                row
                for row in data["guided"]
                if (row["batch"], row["at"], row["scale"]) == (batch, at, "velocity")
                and row["strength"]
                and row["accuracy"] is not None
            ]
            left.plot(
                [row["strength"] for row in line],
                [100 * row["accuracy"] for row in line],
                "o",
                linestyle=dashes,
                color=colour,
                markersize=4,
                label=f"at the {'end point' if at == 'endpoint' else at}, batches of {batch}",
            )
    plain = [row for row in data["guided"] if row["scale"] == "gradient" and row["accuracy"] is not None]
    left.plot(
        [row["strength"] for row in plain],
        [100 * row["accuracy"] for row in plain],
        "x:",
        color=FAINT,
        markersize=5,
        label="so many times the plain gradient",
    )
    strengths = sorted({row["strength"] for row in data["guided"]} - {0.0})
    left.set_xscale("log")
    left.set_xticks(strengths, [f"{strength:g}" for strength in strengths])
    left.minorticks_off()
    style(left, "strength of guidance", "test accuracy (%)")
    for kind, colour in ((UNTRAINED, TRAINED), (FROM_SAMPLES, SAMPLES)):
        one = best_of(data["descents"], kind, -1)
        right.plot(
            [row["step"] for row in one["trace"]],
            [100 * row["accuracy"] for row in one["trace"]],
            color=colour,
            label=f"descent from {STARTS[kind]}, rate {one['rate']:g}",
        )
    right.plot(data["calls"], 100 * data["best"]["accuracy"], "*", color=HUES[3], markersize=11, label="best guided")
    style(right, "gradients", "test accuracy (%)")
    for axes in (left, right):
        axes.set_ylim(0, 100)
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.18), frameon=False, fontsize=7)
    return figure
