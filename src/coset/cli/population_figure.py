"""The picture of populations: how good their networks are, and how far from those that a flow learned from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from coset.plot.barrier import HEIGHT, LINE, PANEL
from coset.plot.figure import canvas
from coset.plot.palette import GRID, HUES, INK
from coset.populations.novelty import NAMES, Novelty

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from coset.cli.population_evaluator import PopulationQuality


def spreads(qualities: Mapping[str, PopulationQuality], news: Novelty | None) -> Figure:
    """The share of networks below each accuracy, or loss of a regression, and below each distance if that is known."""
    accurate = all(one.scores.accuracy is not None for one in qualities.values())
    scores = {
        name: one.scores.loss if one.scores.accuracy is None else one.scores.accuracy for name, one in qualities.items()
    }
    panels = {"accuracy" if accurate else "loss (nats per example)": scores}
    alike = {name: NAMES[kind] for name, kind in (("samples", "samples"), ("training", "among"), ("fresh", "fresh"))}
    hues = dict(zip(NAMES.values(), HUES, strict=False))
    hues |= {name: hues[kind] for name, kind in alike.items()}
    if news is not None:
        distances = {NAMES[kind]: one.distance for kind, one in news.kinds.items()}
        panels["distance to the nearest training network"] = distances
    figure = canvas(len(panels) * PANEL, HEIGHT + LINE * max(map(len, panels.values())))
    figure.set_layout_engine("constrained")
    for axes, (label, values) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels.items(), strict=True):
        _shares(axes, label, values, hues)
    return figure


def _shares(axes: Axes, label: str, values: Mapping[str, Tensor], hues: Mapping[str, str]) -> None:
    """A step for each network."""
    for name, x in values.items():
        shares = torch.arange(len(x) + 1) / len(x)
        edges = torch.cat([x.min()[None], x.sort().values])
        axes.step(edges.tolist(), shares.tolist(), where="post", color=hues[name], label=name)
    axes.set_xlabel(label, color=INK, fontsize=9)
    axes.set_ylabel("share of networks below", color=INK, fontsize=9)
    axes.set_ylim(0, 1)
    axes.grid(color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(colors=INK, labelsize=8)
    # Outside, since inside there is no place that no curve may cross.
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.18), frameon=False, fontsize=8)
