"""Figures to files."""

from __future__ import annotations

from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from coset.core.files import atomic_write

FORMATS = (".png", ".pdf", ".svg")


def canvas(width: float, height: float) -> Figure:
    """An empty white figure of so many inches, apart from pyplot and its global state."""
    figure = Figure(figsize=(width, height), facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def save(figure: Figure, path: str | Path, dpi: int = 160) -> None:
    """Write a figure in the format of the file's name, one of FORMATS, atomically."""
    with atomic_write(path) as temporary:
        figure.savefig(temporary, dpi=dpi)
