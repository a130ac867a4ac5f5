"""The picture of one or several barriers: loss and accuracy along the path."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from coset.plot.figure import canvas
from coset.plot.palette import GRID, HUES, INK

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PANEL, HEIGHT, LINE = 4.4, 3.1, 0.18  # inches
BAND = 0.18


class LossCurve(Protocol):
    """What is drawn of a `coset.Barrier`, which says what each means."""

    @property
    def t(self) -> Sequence[float]: ...
    @property
    def loss(self) -> Sequence[float]: ...
    @property
    def accuracy(self) -> Sequence[float] | None: ...
    @property
    def loss_error(self) -> Sequence[float] | None: ...
    @property
    def endpoints(self) -> tuple[float, float]: ...
    @property
    def height(self) -> float: ...
    @property
    def height_error(self) -> float | None: ...


def barriers(curves: Mapping[str, LossCurve], title: str = "") -> Figure:
    """Barriers in one picture: the loss, the chord between its ends (dashed), and the accuracy if there is one.

    A band shows two standard errors around a loss, and the legend one after each barrier.

    Args:
        curves: a `coset.Barrier` by name; the name of a single one may be empty.
        title: above the picture.

    Returns:
        The figure, with a second panel if some barrier has an accuracy.

    Raises:
        CosetError: matplotlib is not installed.

    Example:
        >>> r = coset.barrier(coset.geodesic(a, b), model, digits.test, points=3)
        >>> len(coset.plot.barriers({"straight": r}).axes)
        2
    """
    accurate = any(curve.accuracy is not None for curve in curves.values())
    panels = 2 if accurate else 1
    figure = canvas(panels * PANEL, HEIGHT + LINE * math.ceil(len(curves) / panels))
    figure.set_layout_engine("constrained")
    axes = figure.subplots(1, panels, squeeze=False)[0]
    _style(axes[0], "loss (nats per example)")
    if accurate:
        _style(axes[1], "accuracy")
        axes[1].yaxis.set_major_formatter(lambda share, _: f"{100 * share:.4g}%")
    for number, (name, curve) in enumerate(curves.items()):
        colour = HUES[number % len(HUES)]
        height = f"barrier {curve.height:.3g}"
        if curve.height_error:
            height += f" ± {curve.height_error:.1g}"
        _loss(axes[0], curve, f"{name} ({height})" if name else height, colour)
        if curve.accuracy is not None:
            axes[1].plot(curve.t, curve.accuracy, color=colour, linewidth=1.8)
    # Outside, since inside there is no place that no curve may cross.
    figure.legend(loc="outside lower center", ncols=panels, frameon=False, fontsize=8)
    if title:
        figure.suptitle(title, fontsize=11, color=INK)
    return figure


def _loss(axes: Axes, curve: LossCurve, label: str, colour: str) -> None:
    axes.plot((0, 1), curve.endpoints, color=colour, linewidth=1.0, linestyle=(0, (4, 3)), alpha=0.7)
    axes.plot(curve.t, curve.loss, color=colour, linewidth=1.8, label=label)
    if curve.loss_error is not None and any(curve.loss_error):
        low = [loss - 2 * error for loss, error in zip(curve.loss, curve.loss_error, strict=True)]
        high = [loss + 2 * error for loss, error in zip(curve.loss, curve.loss_error, strict=True)]
        axes.fill_between(curve.t, low, high, color=colour, alpha=BAND, linewidth=0)


def _style(axes: Axes, label: str) -> None:
    axes.set_xlabel("t", color=INK, fontsize=9)
    axes.set_ylabel(label, color=INK, fontsize=9)
    axes.set_xlim(0, 1)
    axes.grid(color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(colors=INK, labelsize=8)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
