"""Figures: an empty one, and one to a file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from coset.core.extras import require
from coset.core.files import atomic_write

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = (".png", ".pdf", ".svg")


def canvas(width: float, height: float) -> Figure:
    """An empty white figure, apart from pyplot and its global state.

    Args:
        width: in inches.
        height: in inches.

    Returns:
        The figure, to be drawn on and given to `save` or `page`.

    Raises:
        CosetError: matplotlib is not installed.

    Example:
        >>> coset.plot.canvas(4, 3).get_size_inches().tolist()
        [4.0, 3.0]
    """
    require("matplotlib", "plot")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def save(figure: Figure, path: str | Path, dpi: int = 160) -> None:
    """Write a figure to a file, whole or not at all.

    Args:
        figure: of any function of `coset.plot`, or any other of matplotlib.
        path: the file, whose ending is one of `coset.plot.FORMATS`.
        dpi: dots an inch of a `.png`.

    Example:
        >>> coset.plot.save(coset.plot.canvas(4, 3), "empty.png")
    """
    with atomic_write(path) as temporary:
        figure.savefig(temporary, dpi=dpi)
