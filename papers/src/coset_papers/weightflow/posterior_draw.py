"""The picture of `posterior`, from its data alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from coset.plot.palette import HUES
from coset_papers.drawing import FAINT, INK, panels, style
from coset_papers.weightflow.posterior_cases import EUCLIDEAN, GEOMETRIC
from coset_papers.weightflow.posterior_claims import HELD, OTHERS, PRIOR

COLOURS = {
    HELD: INK,
    OTHERS: FAINT,
    EUCLIDEAN: HUES[0],
    GEOMETRIC: HUES[2],
    PRIOR: FAINT,
    "VI": HUES[1],
    "symmetrized VI": HUES[3],
    "deep ensemble": HUES[4],
}
DEVIATIONS = 2


def draw_posterior(data: Any) -> Figure:
    """A row for each posterior: predictions, test loss, distance to held-out chains, both after some gradients, and
    importance weights.
    """
    rows = data["rows"]
    figure, grid = panels(len(rows), 5, "Posteriors by transport, beside chains that the flows have not seen", 3.1)
    for axes, row in zip(grid, rows, strict=True):
        _predictions(axes[0], row)
        _bars(axes[1], row, "nll", "test nll (nats)")
        _bars(axes[2], row, "sliced", "distance to held-out chains")
        _moved(axes[3], row)
        _weights(axes[4], row)
    return figure


def _predictions(axes: Axes, row: Any) -> None:
    axes.plot(row["x"], row["y"], ".", color=FAINT, markersize=3)
    shown = [name for name in row["kinds"] if name in (HELD, "VI") or "flow" in name]
    for name in shown:
        one, colour = row["kinds"][name], COLOURS[name]
        mean, width = np.array(one["mean"]), DEVIATIONS * np.array(one["deviation"])
        axes.plot(row["grid"], mean, color=colour, linewidth=1.2, label=name)
        for edge in (mean - width, mean + width):
            axes.plot(row["grid"], edge, ":", color=colour, linewidth=0.9)
    axes.set_ylim(min(row["y"]) - 1, max(row["y"]) + 1)
    axes.legend(fontsize=6, frameon=False)
    style(axes, "x", "f(x), two deviations", f"{row['title']}: {row['weights']} weights, {row['points'][0]} points")


def _bars(axes: Axes, row: Any, key: str, title: str) -> None:
    names = [name for name in row["kinds"] if key != "sliced" or name != HELD]
    values = [row["kinds"][name][key] for name in names]
    axes.barh(range(len(names)), values, color=[COLOURS[name] for name in names], height=0.6)
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    floor = row["kinds"][HELD if key == "nll" else OTHERS][key]
    axes.axvline(floor, color=INK, linewidth=0.8)
    _numbers(axes, values)
    style(axes, title, "")


def _numbers(axes: Axes, values: Sequence[float]) -> None:
    axes.set_xlim(right=1.3 * max(values))
    for k, value in enumerate(values):
        place = (max(value, 0), k)
        label = axes.annotate(f"{value:.3g}", place, (4, 0), textcoords="offset points", fontsize=7, va="center")
        label.set_bbox({"facecolor": "white", "edgecolor": "none", "pad": 0.8})  # over the line of the chains


def _moved(axes: Axes, row: Any) -> None:
    """Test loss of draws that go on as chains do, by the number of gradients."""
    flows = {name: one["moved"] for name, one in row["kinds"].items() if "moved" in one}
    for name, found in {**flows, PRIOR: row["moved"]}.items():
        counts = [int(count) for count in found]
        losses = [one["nll"] for one in found.values()]
        axes.plot(range(len(counts)), losses, "o-", color=COLOURS[name], markersize=4, linewidth=1.4, label=name)
        axes.set_xticks(range(len(counts)), [str(count) for count in counts])
    axes.axhline(row["kinds"][HELD]["nll"], color=INK, linewidth=0.8, label=HELD)
    axes.legend(fontsize=7, frameon=False)
    style(axes, "gradients of each draw", "test nll (nats)", "going on by Hamiltonian dynamics")


def _weights(axes: Axes, row: Any) -> None:
    """log w - log Z of draws of the flows, solid, and of held-out chains, dashed: all zero for the posterior itself."""
    centre = row["evidence"]["log"]
    words = []
    for name, one in row["kinds"].items():
        if "weights" not in one:
            continue
        for key, line in (("logs", "-"), ("held_logs", "--")):
            logs = np.sort(np.array(one["weights"][key])) - centre
            axes.plot(logs, (np.arange(len(logs)) + 0.5) / len(logs), line, color=COLOURS[name], linewidth=1.4)
        words.append(f"{name}: ESS {one['weights']['ess']:.3g} of {one['weights']['count']}")
    axes.axvline(0, color=FAINT, linewidth=0.8)
    axes.set_xscale("symlog", linthresh=10)
    style(axes, "log w - log Z (solid: flow, dashed: chains)", "share below", "\n".join(words))
