"""The pictures of `tractable`, from its data alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from coset.plot.palette import HUES
from coset_papers.drawing import FAINT, INK, legend, panels, style
from coset_papers.gelberg2024.tractable import BETWEEN
from coset_papers.gelberg2024.tractable_exact import Posterior

GRID = 161  # points an axis
LEVELS = 8
Values = NDArray[np.float64]


def draw_fig4(data: Any) -> Figure:
    """A row for each alpha: the exact posterior, and q or q_G after training and at the optimum."""
    rows = data["rows"]
    figure, grid = panels(
        len(rows),
        5,
        "The posterior of relu(w1 x) + relu(w2 x), and its approximations; + where the data come from",
        2.7,
    )
    for axes, row in zip(grid, rows, strict=True):
        posterior = Posterior(**row["posterior"])
        edge = 1.6 * posterior.alpha + 0.08
        line = torch.linspace(-edge, edge, GRID, dtype=torch.float64)
        w = torch.stack(torch.meshgrid(line, line, indexing="xy"), -1)
        exact = posterior.log_joint(w)
        first = {name: runs[0] for name, runs in row["methods"].items()}
        names = list(first)
        _density(axes[0], line, (exact - exact.max()).exp().numpy(), f"exact, alpha = {posterior.alpha:g}")
        _density(axes[1], line, _normal(w, first[names[0]], False), "mean-field, trained")
        _density(axes[2], line, _normal(w, first[names[1]], True), f"symmetrized, trained ({names[1]})")
        _density(axes[3], line, _normal(w, row["optimum"]["elbo"], False), "mean-field, optimum")
        _density(axes[4], line, _normal(w, row["optimum"]["symmetrized"], True), "symmetrized, optimum")
        for panel in axes:
            modes = posterior.alpha * np.array([[1, -1], [-1, 1]])
            panel.plot(*modes.T, "+", color=HUES[3], markersize=7)
        axes[0].set_ylabel("w2", color=INK, fontsize=9)
    return figure


def draw_table2(data: Any) -> Figure:
    """Left the MSE by alpha; right where mean-field VI interpolates, by noise and prior variance."""
    figure, ((left, right),) = panels(1, 2, "Test MSE of the mean prediction", 3.2)
    style(left, "alpha", "MSE")
    _runs(left, data["rows"], "mse")
    for name, colour in zip(data["published"], HUES, strict=False):
        alphas = [row["alpha"] for row in data["rows"]]
        left.plot(alphas, data["published"][name], "x:", color=colour, linewidth=1, label=f"{name}, published")
    style(right, "mean-field, optimum", "symmetrized, optimum", "other noises and prior variances")
    cells = [cell for choice in data["sensitivity"] for cell in choice["cells"]]
    for between, label in ((True, "mean-field VI interpolates"), (False, "it does not")):
        pairs = [cell["mse"] for cell in cells if (cell["share"][0] < BETWEEN) == between]
        face = HUES[4] if between else "none"
        right.plot(
            *np.array(pairs).reshape(-1, 2).T, "o", markersize=4, color=HUES[4], markerfacecolor=face, label=label
        )
    ends = [min(min(cell["mse"]) for cell in cells), max(max(cell["mse"]) for cell in cells)]
    right.plot(ends, ends, color=FAINT, linewidth=1)
    right.set_xscale("log")
    right.set_yscale("log")
    right.legend(fontsize=7, frameon=False)
    legend(figure, left, 4)
    return figure


def draw_table3(data: Any) -> Figure:
    """The bound and the symmetrized bound by alpha."""
    figure, (row,) = panels(1, 2, "Bounds per training point, without the constant of the likelihood", 3.2)
    for axes, key, title in zip(row, ("elbo", "symmetrized"), ("ELBO", "symmetrized ELBO"), strict=True):
        style(axes, "alpha", title)
        _runs(axes, data["rows"], key)
        alphas = [cell["alpha"] for cell in data["rows"]]
        best = [cell["optimum"][key][key] for cell in data["rows"]]
        axes.plot(alphas, best, "_", color=INK, markersize=14, label="largest of any Gaussian")
        axes.plot(alphas, [cell["evidence"] for cell in data["rows"]], color=INK, linewidth=1, label="log evidence")
        for name, colour in zip(data["published"][key], HUES, strict=False):
            axes.plot(alphas, data["published"][key][name], "x:", color=colour, linewidth=1, label=f"{name}, published")
    legend(figure, row[0], 3)
    return figure


def _runs(axes: Axes, rows: Any, key: str) -> None:
    """Mean and standard deviation over the runs of each method."""
    for k, name in enumerate(rows[0]["methods"]):
        values = np.array([[run[key] for run in row["methods"][name]] for row in rows])
        x = np.array([row["alpha"] for row in rows]) + (k - 2) * 0.002
        axes.errorbar(x, values.mean(1), values.std(1, ddof=1), fmt="o", markersize=3.5, color=HUES[k], label=name)


def _normal(w: torch.Tensor, q: Any, symmetrize: bool) -> Values:
    mean, std = (torch.tensor(q[key], dtype=torch.float64) for key in ("mean", "std"))
    places = (w, w.flip(-1)) if symmetrize else (w,)
    total = sum((torch.exp(-((x - mean) / std).square().sum(-1) / 2) for x in places), torch.zeros(()))
    found: Values = total.numpy()
    return found


def _density(axes: Axes, line: torch.Tensor, density: Values, title: str) -> None:
    axes.contourf(line, line, density / density.max(), levels=LEVELS, cmap="Blues")
    style(axes, "w1", "", title)
    axes.set_aspect("equal")
