"""The picture of `symmetrization`, from its data alone."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from coset.plot.figure import canvas
from coset.plot.palette import HUES
from coset_papers.drawing import FAINT, INK, style
from coset_papers.gelberg2024.comparison import WAYS

LEVEL = 0.05
COLOURS = dict(zip(WAYS, HUES, strict=False))


def draw_symmetrization(data: Any) -> Figure:
    """Left the gains on data sets; then the map: overlap index above, gain below, a column for each prior variance."""
    variances = data["sizes"]["variances"]
    figure = canvas(5.2 + 2.6 * len(variances), 5.6)
    figure.set_layout_engine("constrained")
    figure.suptitle("Symmetrized VI less mean-field VI", fontsize=11, color=INK)
    grid = figure.add_gridspec(2, 1 + len(variances), width_ratios=[2.0, *[1.0] * len(variances)])
    _gains(figure.add_subplot(grid[:, 0]), data["sets"])
    largest = max(abs(gain["gain"]) for cell in data["map"] for gain in cell["gain"].values()) or 1.0
    for column, variance in enumerate(variances, 1):
        cells = [cell for cell in data["map"] if cell["variance"] == variance]
        upper, lower = (figure.add_subplot(grid[row, column]) for row in (0, 1))
        _heat(upper, data["sizes"], cells, f"overlap index, prior {variance:g}", "Blues", (0.0, 1.0))
        _heat(lower, data["sizes"], cells, "gain in NLL (*: p < 0.05)", "RdBu", (-largest, largest))
    return figure


def _gains(axes: Axes, rows: Any) -> None:
    style(axes, "gain in test NLL, nats; bars: standard error", "")
    labels = []
    for place, row in enumerate(reversed(rows)):
        labels.append(f"{row['name']}\nindex {row['index']:.2g}")
        for k, (name, gain) in enumerate(row["gain"].items()):
            axes.errorbar(
                gain["gain"],
                place + 0.2 * (1 - k),
                xerr=gain["error"],
                fmt="o",
                markersize=4,
                color=COLOURS[name],
                markerfacecolor=COLOURS[name] if gain["corrected"] < LEVEL else "white",
                label=name,
            )
    axes.set_yticks(range(len(labels)), labels, fontsize=7)
    axes.axvline(0, color=FAINT, linewidth=1)
    axes.set_xscale("symlog", linthresh=1e-3)
    found = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    axes.legend(found.values(), found.keys(), fontsize=7, frameon=False, title="filled: p < 0.05", title_fontsize=7)


def _heat(axes: Axes, sizes: Any, cells: Any, title: str, colours: str, limits: tuple[float, float]) -> None:
    dimensions, widths = sizes["dimensions"], sizes["widths"]
    values = np.zeros((len(widths), len(dimensions)))
    axes.set_title(title, fontsize=8, color=INK)
    for cell in cells:
        i, j = widths.index(cell["width"]), dimensions.index(cell["dimension"])
        (gain,) = cell["gain"].values()
        is_index = title.startswith("overlap")
        values[i, j] = cell["index"] if is_index else gain["gain"]
        text = f"{values[i, j]:.2g}" + ("*" if not is_index and gain["corrected"] < LEVEL else "")
        axes.text(j, i, text, ha="center", va="center", fontsize=7, color=INK)
    axes.imshow(values, cmap=colours, vmin=limits[0], vmax=limits[1], aspect="auto", origin="lower", alpha=0.7)
    axes.set_xticks(range(len(dimensions)), [str(d) for d in dimensions], fontsize=7)
    axes.set_yticks(range(len(widths)), [str(w) for w in widths], fontsize=7)
    axes.set_xlabel("inputs", fontsize=8, color=INK)
    axes.set_ylabel("units", fontsize=8, color=INK)
