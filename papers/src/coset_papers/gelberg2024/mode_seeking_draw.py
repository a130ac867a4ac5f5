"""The pictures of `mode_seeking`, from its data alone."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from coset.plot.palette import HUES
from coset_papers.drawing import FAINT, INK, legend, panels, style

FITTED, STEPS, LIMIT, OPTIMUM = HUES[1], HUES[2], HUES[0], HUES[3]
DASHED, DOTTED = (0, (4, 3)), (0, (1, 2))
Dashes = str | tuple[int, tuple[int, int]]
Look = tuple[str, str, str, Dashes]  # the key of a curve, its label, colour and dashes


def draw_fig2(data: Any) -> Figure:
    """A panel for each distance."""
    figure, (row,) = panels(1, len(data["alpha"]), "Reverse KL from one Gaussian to two, on a line", 2.4)
    for k, (axes, alpha) in enumerate(zip(row, data["alpha"], strict=True)):
        x = np.linspace(-4, alpha + 4, 400)
        target = (_normal(x, 0, 1) + _normal(x, alpha, 1)) / 2
        axes.fill_between(x, target, color=FAINT, alpha=0.35, linewidth=0, label="target")
        looks: tuple[Look, ...] = (
            ("fitted", "fitted on samples, from the left mode", FITTED, "solid"),
            ("from_mode", "exact descent from the left mode", LIMIT, DASHED),
            ("optimum", "the best Gaussian", OPTIMUM, DOTTED),
        )
        for name, label, colour, dashes in looks:
            density = _normal(x, data[name]["mean"][k], data[name]["std"][k])
            axes.plot(x, density, color=colour, linewidth=1.8, linestyle=dashes, label=label)
        style(axes, "x", "density" if k == 0 else "", f"alpha = {alpha:g}")
        axes.set_ylim(bottom=0)
    legend(figure, row[0], 4)
    return figure


def draw_fig3(data: Any) -> Figure:
    """Interpolation, determinant and KL against alpha."""
    figure, (row,) = panels(1, 3, "The Gaussian of least reverse KL to two standard normals at distance alpha")
    labels = {"interpolation": "||mean|| / alpha", "determinant": "det Sigma", "kl": "KL (nats)"}
    for axes, (key, label) in zip(row, labels.items(), strict=True):
        style(axes, "alpha", label)
        _exact(axes, data["exact"], key)
        axes.plot(data["alpha"], data["fitted"][key], ".", color=FITTED, markersize=4, label=_sampled(data, "SGD"))
        _thresholds(axes, data["exact"], published=5.0)
    legend(figure, row[0], 3)
    return figure


def draw_fig5(data: Any) -> Figure:
    """Interpolation above, KL below, a column for each sigma."""
    figure, grid = panels(2, len(data["rows"]), "The threshold scales with the deviation sigma of the modes", 2.4)
    for column, row in enumerate(data["rows"]):
        for axes, key, label in (
            (grid[0][column], "interpolation", "||mean|| / alpha"),
            (grid[1][column], "kl", "KL (nats)"),
        ):
            title = f"sigma = {row['sigma']:g}" if key == "interpolation" else ""
            style(axes, "alpha", label if column == 0 else "", title)
            _exact(axes, row["exact"], key)
            axes.plot(row["alpha"], row["sgd"][key], ".", color=FITTED, markersize=4, label=_sampled(data, "SGD"))
            axes.plot(row["alpha"], row["adam"][key], "x", color=INK, markersize=3.5, label=_sampled(data, "Adam"))
            _thresholds(axes, row["exact"], published=5 * row["sigma"])
        grid[0][column].set_ylim(-0.04, 0.74)  # the smallest alpha is all noise
    legend(figure, grid[0][0], 4)
    return figure


def _exact(axes: Axes, data: Any, key: str) -> None:
    looks: tuple[Look, ...] = (
        ("same_steps", "as many steps of SGD, without noise", STEPS, "solid"),
        ("from_mode", "descent from a mode to its end, without noise", LIMIT, "solid"),
        ("optimum", "the best Gaussian", OPTIMUM, DASHED),
    )
    for name, label, colour, dashes in looks:
        axes.plot(data["alpha"], data[name][key], color=colour, linewidth=1.4, linestyle=dashes, label=label)


def _thresholds(axes: Axes, data: Any, published: float) -> None:
    for x, colour, dashes, label in (
        (published, INK, "solid", "published threshold"),
        (data["fold"], LIMIT, DOTTED, "exact threshold of descent from a mode"),
        (data["crossing"], OPTIMUM, DOTTED, "exact threshold of the optimum"),
    ):
        axes.axvline(x, color=colour, linewidth=0.9, linestyle=dashes, label=label, zorder=1)


def _sampled(data: Any, optimizer: str) -> str:
    return f"{optimizer}, {data['descent']['steps']} steps of {data['descent']['samples']} samples"


def _normal(x: NDArray[np.float64], mean: float, std: float) -> NDArray[np.float64]:
    density: NDArray[np.float64] = np.exp(-(((x - mean) / std) ** 2) / 2) / (std * np.sqrt(2 * np.pi))
    return density
