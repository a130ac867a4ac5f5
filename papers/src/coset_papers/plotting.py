"""What the pictures of papers have in common."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from coset.plot.figure import canvas

Array = NDArray[np.float64]
PANEL, HEIGHT = 3.6, 2.9  # inches
GRID, INK, FAINT = "#e4e4e4", "#222222", "#8c8c8c"


def panels(rows: int, columns: int, title: str, height: float = HEIGHT) -> tuple[Figure, Sequence[Sequence[Axes]]]:
    """A figure with a title and a grid of panels [rows][columns]; its legend may lie outside, below."""
    figure = canvas(columns * PANEL, rows * height + 0.6)
    figure.set_layout_engine("constrained")
    figure.suptitle(title, fontsize=11, color=INK)
    return figure, figure.subplots(rows, columns, squeeze=False).tolist()


def style(axes: Axes, x: str, y: str, title: str = "") -> None:
    """Labels, a light grid behind, and no box."""
    axes.set_xlabel(x, color=INK, fontsize=9)
    axes.set_ylabel(y, color=INK, fontsize=9)
    axes.set_title(title, color=INK, fontsize=9)
    axes.grid(color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(colors=INK, labelsize=8)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def legend(figure: Figure, axes: Axes, columns: int) -> None:
    """One legend below for all panels, from the labels of one."""
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False, fontsize=8)
