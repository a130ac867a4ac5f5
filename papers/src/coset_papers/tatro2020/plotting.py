"""What the pictures of this paper have in common: a colour for each kind of curve, lines along curves, planes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import BoundaryNorm
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from coset.plot.palette import HUES
from coset_papers.plotting import INK, style
from coset_papers.tatro2020.curve_kinds import ALIGNED, KINDS, PAM_ALIGNED, PAM_UNALIGNED, UNALIGNED

COLOURS = {
    UNALIGNED: "#7a7a7a",
    PAM_UNALIGNED: HUES[4],
    PAM_ALIGNED: HUES[0],
    ALIGNED: HUES[1],
    "pre_l2": HUES[3],
    "pre_correlation": HUES[0],
    "post_l2": HUES[2],
}
DASHED = (0, (4, 3))
SHADES = 14


def line(axes: Axes, rows: Sequence[Any], key: str, kind: str, label: str = "", dashes: Any = "solid") -> None:
    """The mean over pairs of the loss, or of the accuracy in percent, along curves; each pair faintly."""
    factor = 100 if key == "accuracy" else 1
    values: NDArray[np.float64] = factor * np.array([row[key] for row in rows], dtype=float)
    if len(values) > 1:
        axes.plot(rows[0]["t"], values.T, color=COLOURS[kind], linewidth=0.7, linestyle=dashes, alpha=0.4)
    name = label or KINDS[kind].title
    axes.plot(rows[0]["t"], values.mean(0), color=COLOURS[kind], linewidth=1.8, linestyle=dashes, label=name)


def traces(axes: Axes, losses: Any) -> None:
    """Training losses by epoch, of each kind, over pairs."""
    for kind, rows in losses.items():
        values = np.array(rows, dtype=float)
        epochs = range(1, values.shape[1] + 1)
        axes.plot(epochs, values.mean(0), color=COLOURS[kind], linewidth=1.8, label=KINDS[kind].title)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def contours(figure: Figure, axes: Axes, plane: Any, key: str, title: str, losses: tuple[float, float]) -> None:
    """A plane with its points and track; brighter is better. `losses` are the ends of the scale of a loss."""
    values: NDArray[np.float64] = np.array(plane[key], dtype=float)
    if key == "accuracy":
        levels = np.linspace(100 * values.min(), 100 * values.max(), SHADES)
        values, colours, unit = 100 * values, "viridis", "%"
    else:
        levels = np.geomspace(*losses, SHADES)
        values, colours, unit = np.nan_to_num(values, nan=np.inf).clip(*losses), "viridis_r", "nats"
    filled = axes.contourf(plane["x"], plane["y"], values, levels, cmap=colours, norm=BoundaryNorm(levels, 256))
    outline = [withStroke(linewidth=2.5, foreground="white")]
    if plane["track"]:
        axes.plot(*zip(*plane["track"], strict=True), color=HUES[3], linewidth=1.8, path_effects=outline)
    for (x, y), label in zip(plane["points"], plane["labels"], strict=True):
        axes.plot(x, y, "o", color=INK, markeredgecolor="white", markersize=5)
        axes.annotate(
            label, (x, y), (0, 6), textcoords="offset points", ha="center", fontsize=9, color=INK, path_effects=outline
        )
    style(axes, "distance of parameters", "", f"{title} ({unit})")
    axes.grid(visible=False)
    axes.set_aspect("equal")
    beside = axes.inset_axes((1.03, 0.0, 0.05, 1.0))  # as high as the panel, whose aspect is that of the plane
    figure.colorbar(filled, cax=beside, format="%.3g", ticks=levels[::2])
    beside.tick_params(labelsize=7)
    beside.minorticks_off()


def losses_of(planes: Sequence[Any]) -> tuple[float, float]:
    """A scale for the losses of planes: from the least up to the greatest on the lines between their points.

    Far outside they are huge.
    """
    finite = [value for plane in planes for row in plane["loss"] for value in row if value is not None]
    low = max(min(finite), 1e-3)
    return low, max(max(plane["highest"] for plane in planes), 1.1 * low)
