"""Picture of a flow that is steered."""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure

from coset.plot.palette import HUES
from coset_papers.drawing import FAINT, panels, style
from coset_papers.weightflow.descent import FROM_SAMPLES, STARTS, UNTRAINED, best_of
from coset_papers.weightflow.draw import SAMPLES, TRAINED
from coset_papers.weightflow.steered import PLACES, best_guided


def draw_guidance(data: Any) -> Figure:
    """Guided samples by strength, and gradient descent by its steps."""
    figure, ((left, right),) = panels(1, 2, data["title"], 4.2)
    if data["published"] is not None:
        low, high = data["published"]
        for axes in (left, right):
            axes.axhspan(100 * low, 100 * high, color=FAINT, alpha=0.3, linewidth=0, label="guided, published")
    unguided = next(row["accuracy"] for row in data["guided"] if row["strength"] == 0.0)
    left.axhline(100 * unguided, color=FAINT, linestyle=(0, (4, 3)), label="not guided")
    best = best_guided(data["guided"])
    for at, dashes in zip(PLACES, ("solid", (0, (3, 2))), strict=True):
        for count, colour in zip(best, HUES, strict=False):
            label = f"at the {'end point' if at == 'endpoint' else at}, {count} gradients"
            line = _by_strength(data, "velocity", count, at)
            left.plot(*line, "o", linestyle=dashes, color=colour, markersize=4, label=label)
    for count, marker in zip(best, ("x", "+"), strict=False):
        label = f"so many times the plain gradient, {count} of them"
        left.plot(*_by_strength(data, "gradient", count, "state"), f"{marker}:", color=FAINT, markersize=5, label=label)
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
    stars = [100 * row["accuracy"] for row in best.values()]
    right.plot(list(best), stars, "*", color=HUES[3], markersize=11, label="best guided")
    style(right, "gradients", "test accuracy (%)")
    for axes in (left, right):
        axes.set_ylim(0, 100)
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.18), frameon=False, fontsize=7)
    return figure


def _by_strength(data: Any, scale: str, count: int, at: str) -> tuple[list[float], list[float]]:
    """Strengths, and accuracies in percent, where guidance led to numbers."""
    rows = [
        row
        for row in data["guided"]
        if (row["scale"], row["gradients"], row["at"]) == (scale, count, at)
        and row["strength"]
        and row["accuracy"] is not None
    ]
    return [row["strength"] for row in rows], [100 * row["accuracy"] for row in rows]
