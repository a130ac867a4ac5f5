"""The picture of a plane: contours of the posterior with the three networks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import BoundaryNorm
from matplotlib.contour import QuadContourSet
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from numpy.typing import NDArray

from coset.errors import CosetError
from coset.report.figure import canvas

if TYPE_CHECKING:
    from coset.paths.plane import Grid, Plane

Values = NDArray[np.float64]
WIDTH, HEIGHT, BAR = 4.0, 3.6, 0.9  # inches of a panel, and of the colour bar
INK = "#222222"
DEPTHS = (1, 2, 5)  # in every power of ten
FAINTEST = 1e-3  # nats per example


def contours(plane: Plane, labels: Sequence[str], title: str = "") -> Figure:
    """How far each place lies below the best of the grid, in nats per example; brighter is better.

    One panel for the likelihood; with a prior also one for the prior and one for the posterior, in the same colours.
    """
    if len(labels) != len(plane.points):
        raise CosetError(
            f"A plane goes through {len(plane.points)} networks, so {len(labels)} labels do not name them."
        )
    panels = {"log-likelihood": plane.log_likelihood}
    if plane.log_prior is not None and plane.log_posterior is not None:
        panels |= {"log-prior": plane.log_prior, "log-posterior": plane.log_posterior}
    depths = {name: _depth(grid, plane.examples) for name, grid in panels.items()}
    levels = _levels(np.stack([*depths.values()]))
    figure = canvas(WIDTH * len(panels) + BAR, HEIGHT)
    figure.set_layout_engine("constrained")
    found = figure.subplots(1, len(panels), squeeze=False, sharey=True)[0]
    for axes, (name, depth) in zip(found, depths.items(), strict=True):
        filled = _panel(axes, plane, depth.clip(0.0, levels[-1]), levels, labels)
        axes.set_title(name, fontsize=10, color=INK)
    bar = figure.colorbar(filled, ax=found, shrink=0.8, ticks=levels)
    bar.ax.invert_yaxis()  # the best on top
    bar.ax.set_yticklabels([f"{level:g}" for level in levels], fontsize=7, color=INK)
    bar.set_label("nats per example below the best", fontsize=8, color=INK)
    if title:
        figure.suptitle(title, fontsize=11, color=INK)
    return figure


def _panel(axes: Axes, plane: Plane, depth: Values, levels: list[float], labels: Sequence[str]) -> QuadContourSet:
    filled = axes.contourf(plane.x, plane.y, depth, levels, cmap="viridis_r", norm=BoundaryNorm(levels, 256))
    axes.contour(plane.x, plane.y, depth, levels, colors="white", linewidths=0.3, alpha=0.5)
    outline = [withStroke(linewidth=2.5, foreground="white")]
    for (x, y), label in zip(plane.points, labels, strict=True):
        axes.plot(x, y, "o", color=INK, markeredgecolor="white", markersize=6)
        axes.annotate(
            label, (x, y), (0, 7), textcoords="offset points", ha="center", fontsize=9, color=INK, path_effects=outline
        )
    axes.set_aspect("equal")
    axes.set_xlabel("distance of parameters", fontsize=8, color=INK)
    axes.tick_params(colors=INK, labelsize=8)
    return filled


def _depth(grid: Grid, examples: int) -> Values:
    """(best - value) / examples; infinite where the value is."""
    values = np.array(grid)
    depth: Values = (values[np.isfinite(values)].max(initial=-math.inf) - values) / examples
    return np.nan_to_num(depth, nan=math.inf, posinf=math.inf)


def _levels(depth: Values) -> list[float]:
    """0 and 1, 2, 5 times powers of ten up to the greatest finite depth, not below a three-hundredth of it."""
    top = max(float(depth[np.isfinite(depth)].max(initial=0.0)), FAINTEST)
    low = max(top / 300, FAINTEST / 2)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(top)) + 1)
    steps = [step * 10.0**power for power in powers for step in DEPTHS]
    inside = [step for step in steps if low <= step < top]
    return [0.0, *inside, next(step for step in steps if step >= top)]
