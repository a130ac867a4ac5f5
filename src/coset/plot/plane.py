"""The picture of a plane: contours of the posterior, the loss or the accuracy with the three networks and a path."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import BoundaryNorm
from matplotlib.contour import QuadContourSet
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from coset.core.errors import CosetError
from coset.plot.figure import canvas
from coset.plot.palette import HUES

if TYPE_CHECKING:
    from coset.paths.plane import Grid, Plane, What

Values = NDArray[np.float64]
WIDTH, HEIGHT, BAR = 4.0, 3.6, 0.9  # inches of a panel, and of the colour bar
INK = "#222222"
DEPTHS = (1, 2, 5)  # in every power of ten
FAINTEST = 1e-3  # nats per example
STEPS = 15  # of loss; of accuracy, at most


def contours(plane: Plane, labels: Sequence[str], title: str = "", what: What = "posterior") -> Figure:
    """One value at each place of the plane; brighter is better.

    posterior
        how far each place lies below the best of the grid, in nats per example: one panel for the likelihood; with a
        prior also one for the prior and one for the posterior, in the same colours
    loss
        in steps that grow with the distance from the least loss, up to the greatest loss inside the triangle
    accuracy
        in equal steps
    """
    if len(labels) != len(plane.points):
        raise CosetError(
            f"A plane goes through {len(plane.points)} networks, so {len(labels)} labels do not name them."
        )
    if what not in SHADINGS:
        raise CosetError(f"There is no picture of {what!r}; choose from {', '.join(SHADINGS)}.")
    shading = SHADINGS[what](plane)
    figure = canvas(WIDTH * len(shading.panels) + BAR, HEIGHT)
    figure.set_layout_engine("constrained")
    found = figure.subplots(1, len(shading.panels), squeeze=False, sharey=True)[0]
    for axes, (name, values) in zip(found, shading.panels.items(), strict=True):
        filled = _panel(axes, plane, values, shading, labels)
        axes.set_title(name, fontsize=10, color=INK)
    bar = figure.colorbar(filled, ax=found, shrink=0.8, ticks=shading.levels)
    if shading.colours.endswith("_r"):
        bar.ax.invert_yaxis()  # the best on top
    bar.ax.set_yticklabels(shading.ticks, fontsize=7, color=INK)
    bar.set_label(shading.unit, fontsize=8, color=INK)
    if title:
        figure.suptitle(title, fontsize=11, color=INK)
    return figure


@dataclass(frozen=True, eq=False)
class _Shading:
    """Named grids, and the levels that part their colours, with a text for each."""

    panels: dict[str, Values]
    levels: list[float]
    ticks: list[str]
    colours: str
    unit: str


def _posterior(plane: Plane) -> _Shading:
    panels = {"log-likelihood": plane.log_likelihood}
    if plane.log_prior is not None and plane.log_posterior is not None:
        panels |= {"log-prior": plane.log_prior, "log-posterior": plane.log_posterior}
    depths = {name: _depth(grid, plane.examples) for name, grid in panels.items()}
    levels = _levels(np.stack([*depths.values()]))
    return _Shading(depths, levels, [f"{level:g}" for level in levels], "viridis_r", "nats per example below the best")


def _loss(plane: Plane) -> _Shading:
    """Far outside losses are huge, so the scale ends at the greatest one inside, if a coarse grid has places there."""
    loss, excess = np.array(plane.loss), _depth(plane.log_likelihood, plane.examples)
    finite = np.isfinite(excess)
    inside = _triangle(plane) & finite
    top = max(float(excess[inside if inside.any() else finite].max(initial=0.0)), FAINTEST)
    levels = [0.0, *np.geomspace(top / 100, top, STEPS).tolist()]
    least = loss[np.isfinite(loss)].min(initial=math.inf)
    digits = max(2, -math.floor(math.log10(levels[1])))
    ticks = [f"{least + level:.{digits}f}" for level in levels]
    if excess.max() > levels[-1]:
        ticks[-1] = f"≥ {ticks[-1]}"
    return _Shading({"loss": excess}, levels, ticks, "viridis_r", "nats per example")


def _accuracy(plane: Plane) -> _Shading:
    if plane.accuracy is None:
        raise CosetError("The targets of this plane are values, so it has no accuracy: ask for the loss.")
    share = 100 * np.array(plane.accuracy)
    locator = MaxNLocator(STEPS, steps=[1, 2, 5, 10])
    levels = [float(level) for level in locator.tick_values(share.min(), share.max())]
    return _Shading({"accuracy": share}, levels, [f"{level:g}" for level in levels], "viridis", "% of targets")


SHADINGS: dict[What, Callable[[Plane], _Shading]] = {"posterior": _posterior, "loss": _loss, "accuracy": _accuracy}


def _panel(axes: Axes, plane: Plane, values: Values, shading: _Shading, labels: Sequence[str]) -> QuadContourSet:
    levels, values = shading.levels, values.clip(shading.levels[0], shading.levels[-1])
    filled = axes.contourf(plane.x, plane.y, values, levels, cmap=shading.colours, norm=BoundaryNorm(levels, 256))
    axes.contour(plane.x, plane.y, values, levels, colors="white", linewidths=0.3, alpha=0.5)
    if plane.track:
        halo = [withStroke(linewidth=3.5, foreground="white")]
        axes.plot(*zip(*plane.track, strict=True), color=HUES[3], linewidth=1.8, path_effects=halo)
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


def _triangle(plane: Plane) -> NDArray[np.bool_]:
    """Which places lie between the three networks."""
    _, (length, _), (shift, height) = plane.points
    x, y = np.meshgrid(plane.x, plane.y)
    beta = y / height
    alpha = (x - beta * shift) / length
    found: NDArray[np.bool_] = (alpha >= 0) & (beta >= 0) & (alpha + beta <= 1)
    return found


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
