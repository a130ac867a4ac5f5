"""The picture of a plane: contours of the posterior, the loss or the accuracy with the three networks and a path."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from coset.core.errors import CosetError
from coset.core.extras import require
from coset.plot.figure import canvas
from coset.plot.palette import HUES, INK

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.contour import QuadContourSet
    from matplotlib.figure import Figure

What = Literal["posterior", "loss", "accuracy"]
Rows = Sequence[Sequence[float]]
Floats = NDArray[np.float64]
WIDTH, HEIGHT, BAR = 4.0, 3.6, 0.9  # inches of a panel, and of the colour bar
DEPTHS = (1, 2, 5)  # in every power of ten
FAINTEST = 1e-3  # nats per example
STEPS = 15  # of loss; of accuracy, at most


class LossPlane(Protocol):
    """What is drawn of a `coset.Plane`, which says what each means."""

    @property
    def x(self) -> Sequence[float]: ...
    @property
    def y(self) -> Sequence[float]: ...
    @property
    def points(self) -> Sequence[tuple[float, float]]: ...
    @property
    def track(self) -> Sequence[tuple[float, float]]: ...
    @property
    def examples(self) -> int: ...
    @property
    def log_likelihood(self) -> Rows: ...
    @property
    def log_prior(self) -> Rows | None: ...
    @property
    def log_posterior(self) -> Rows | None: ...
    @property
    def loss(self) -> Rows: ...
    @property
    def accuracy(self) -> Rows | None: ...


def contours(plane: LossPlane, labels: Sequence[str], title: str = "", what: What = "posterior") -> Figure:
    """Filled contours of one value at each place of a plane; brighter is better.

    Args:
        plane: of `coset.plane`.
        labels: a name for each of the three networks.
        title: above the picture.
        what: "posterior" is how far each place lies below the best of the grid, in nats per example: one panel for the
            likelihood; with a prior also one for the prior and one for the posterior, in the same colours. "loss" has
            steps that grow with the distance from the least loss, up to the greatest loss inside the triangle.
            "accuracy" has equal steps.

    Returns:
        The figure.

    Raises:
        CosetError: the labels are not as many as the networks, a regression has no accuracy, or matplotlib is not
            installed.

    Example:
        >>> p = coset.plane(a, b, sym.act(sym.random(), b), model, digits.test, points=3)
        >>> figure = coset.plot.contours(p, ("a", "b", "b moved"), what="loss")
    """
    if len(labels) != len(plane.points):
        raise CosetError(
            f"A plane goes through {len(plane.points)} networks, so {len(labels)} labels do not name them."
        )
    if what not in SHADINGS:
        raise CosetError(f"There is no picture of {what!r}; choose from {', '.join(SHADINGS)}.")
    require("matplotlib", "plot")
    shading = SHADINGS[what](plane)
    figure = canvas(WIDTH * len(shading.panels) + BAR, HEIGHT)
    figure.set_layout_engine("constrained")
    row = figure.subplots(1, len(shading.panels), squeeze=False, sharey=True)[0]
    for axes, (name, values) in zip(row, shading.panels.items(), strict=True):
        filled = _panel(axes, plane, values, shading, labels)
        axes.set_title(name, fontsize=10, color=INK)
    bar = figure.colorbar(filled, ax=row, shrink=0.8, ticks=shading.levels)
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

    panels: dict[str, Floats]
    levels: list[float]
    ticks: list[str]
    colours: str
    unit: str


def _posterior(plane: LossPlane) -> _Shading:
    panels = {"log-likelihood": plane.log_likelihood}
    if plane.log_prior is not None and plane.log_posterior is not None:
        panels |= {"log-prior": plane.log_prior, "log-posterior": plane.log_posterior}
    depths = {name: _depth(grid, plane.examples) for name, grid in panels.items()}
    levels = _levels(np.stack([*depths.values()]))
    return _Shading(depths, levels, [f"{level:g}" for level in levels], "viridis_r", "nats per example below the best")


def _loss(plane: LossPlane) -> _Shading:
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


def _accuracy(plane: LossPlane) -> _Shading:
    if plane.accuracy is None:
        raise CosetError("The targets of this plane are values, so it has no accuracy: ask for the loss.")
    from matplotlib.ticker import MaxNLocator

    share = 100 * np.array(plane.accuracy)
    locator = MaxNLocator(STEPS, steps=[1, 2, 5, 10])
    levels = [float(level) for level in locator.tick_values(share.min(), share.max())]
    return _Shading({"accuracy": share}, levels, [f"{level:g}" for level in levels], "viridis", "% of targets")


SHADINGS: dict[What, Callable[[LossPlane], _Shading]] = {"posterior": _posterior, "loss": _loss, "accuracy": _accuracy}


def _panel(axes: Axes, plane: LossPlane, values: Floats, shading: _Shading, labels: Sequence[str]) -> QuadContourSet:
    from matplotlib.colors import BoundaryNorm
    from matplotlib.patheffects import withStroke

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


def _triangle(plane: LossPlane) -> NDArray[np.bool_]:
    """Which places lie between the three networks."""
    _, (length, _), (shift, height) = plane.points
    x, y = np.meshgrid(plane.x, plane.y)
    beta = y / height
    alpha = (x - beta * shift) / length
    inside: NDArray[np.bool_] = (alpha >= 0) & (beta >= 0) & (alpha + beta <= 1)
    return inside


def _depth(grid: Rows, examples: int) -> Floats:
    """(best - value) / examples; infinite where the value is."""
    values = np.array(grid)
    depth: Floats = (values[np.isfinite(values)].max(initial=-math.inf) - values) / examples
    return np.nan_to_num(depth, nan=math.inf, posinf=math.inf)


def _levels(depth: Floats) -> list[float]:
    """0 and 1, 2, 5 times powers of ten up to the greatest finite depth, not below a three-hundredth of it."""
    top = max(float(depth[np.isfinite(depth)].max(initial=0.0)), FAINTEST)
    low = max(top / 300, FAINTEST / 2)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(top)) + 1)
    steps = [step * 10.0**power for power in powers for step in DEPTHS]
    inside = [step for step in steps if low <= step < top]
    return [0.0, *inside, next(step for step in steps if step >= top)]
