"""The picture of one or several barriers: loss and accuracy along the path."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from coset.plot.figure import canvas
from coset.plot.palette import HUES

if TYPE_CHECKING:
    from coset.paths.barrier import Barrier

PANEL, HEIGHT, LINE = 4.4, 3.1, 0.18  # inches
GRID, INK = "#e4e4e4", "#222222"
BAND = 0.18


def barriers(named: Mapping[str, Barrier], title: str = "") -> Figure:
    """Named barriers in one picture: the loss, the chord between its ends (dashed), and the accuracy if there is one.

    A band shows two standard errors around a loss, and the legend one after each barrier. A single barrier may be
    named by the empty string.
    """
    accurate = [barrier for barrier in named.values() if barrier.accuracy is not None]
    panels = 2 if accurate else 1
    figure = canvas(panels * PANEL, HEIGHT + LINE * math.ceil(len(named) / panels))
    figure.set_layout_engine("constrained")
    found = figure.subplots(1, panels, squeeze=False)[0]
    _style(found[0], "loss (nats per example)")
    if accurate:
        _style(found[1], "accuracy")
        found[1].yaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{100 * share:.4g}%"))
    for number, (name, barrier) in enumerate(named.items()):
        colour = HUES[number % len(HUES)]
        height = f"barrier {barrier.height:.3g}"
        if barrier.height_error:
            height += f" ± {barrier.height_error:.1g}"
        _loss(found[0], barrier, f"{name} ({height})" if name else height, colour)
        if barrier.accuracy is not None:
            found[1].plot(barrier.t, barrier.accuracy, color=colour, linewidth=1.8)
    # Outside, since inside there is no place that no curve may cross.
    figure.legend(loc="outside lower center", ncols=panels, frameon=False, fontsize=8)
    if title:
        figure.suptitle(title, fontsize=11, color=INK)
    return figure


def _loss(axes: Axes, barrier: Barrier, label: str, colour: str) -> None:
    axes.plot((0, 1), barrier.endpoints, color=colour, linewidth=1.0, linestyle=(0, (4, 3)), alpha=0.7)
    axes.plot(barrier.t, barrier.loss, color=colour, linewidth=1.8, label=label)
    if barrier.loss_error is not None and any(barrier.loss_error):
        low = [loss - 2 * error for loss, error in zip(barrier.loss, barrier.loss_error, strict=True)]
        high = [loss + 2 * error for loss, error in zip(barrier.loss, barrier.loss_error, strict=True)]
        axes.fill_between(barrier.t, low, high, color=colour, alpha=BAND, linewidth=0)


def _style(axes: Axes, label: str) -> None:
    axes.set_xlabel("t", color=INK, fontsize=9)
    axes.set_ylabel(label, color=INK, fontsize=9)
    axes.set_xlim(0, 1)
    axes.grid(color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(colors=INK, labelsize=8)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
