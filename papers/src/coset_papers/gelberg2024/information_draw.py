"""The picture of `information`, from its data alone."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from coset.plot.palette import HUES
from coset_papers.drawing import INK, legend, panels, style

LEAST = 1e-4  # of a relative error that is shown


def draw_information(data: Any) -> Figure:
    """Above the share of log n! that each estimator finds, below its relative error; a column for each separation."""
    separations = data["sizes"]["separations"]
    figure, (above, below) = panels(2, len(separations), "Mutual information of a permutation and the weights", 2.5)
    for column, separation in enumerate(separations):
        rows = [row for row in data["layers"] if row["separation"] == separation]
        first = f"separation {separation:g}"
        style(above[column], "", "I / log n!" if column == 0 else "", first)
        style(below[column], "units n", "|estimate - I| / I" if column == 0 else "")
        for k, name in enumerate(rows[0]["estimates"]):
            colour = INK if name == "exact" else HUES[k - 1]
            shown = [row for row in rows if name in row["estimates"]]
            n = [row["units"] for row in shown]
            share, error = (
                [row["estimates"][name][key] / row["log_order"] for row in shown] for key in ("information", "error")
            )
            if name == "exact":
                above[column].plot(n, share, "+", color=INK, markersize=5, zorder=3, label=name)
                continue
            above[column].errorbar(n, share, error, fmt=".-", markersize=3, linewidth=1, color=colour, label=name)
            known = [row for row in shown if row["exact"]]
            truth = np.array([row["estimates"]["exact"]["information"] for row in known])
            bias = np.array([row["estimates"][name]["bias"] for row in known])
            relative = np.maximum(np.abs(bias) / np.maximum(truth, 1e-12), LEAST)
            below[column].plot([row["units"] for row in known], relative, ".-", markersize=3, linewidth=1, color=colour)
        above[column].set_xscale("log")
        below[column].set_yscale("log")
    legend(figure, above[0], 4)
    return figure
