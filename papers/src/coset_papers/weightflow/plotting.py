"""What the pictures of the image exhibits have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from coset.plot.palette import HUES
from coset_papers.plotting import INK

SAMPLES_COLOUR, TRAINED_COLOUR, PUBLISHED_COLOUR = HUES[1], HUES[0], INK
KINDS = {
    "noisy": ("copies with a tenth of noise", HUES[3]),
    "midpoints": ("midpoints of two, aligned", HUES[4]),
    "among": ("training networks to the others", "#9a9a9a"),
    "fresh": ("fresh runs", TRAINED_COLOUR),
    "samples": ("samples", SAMPLES_COLOUR),
}
BINS = 40


def reach(axes: Axes, y: float, spread: Mapping[str, Any], colour: str, factor: float = 1.0) -> None:
    """The mean as a dot on a line that holds nine tenths of the networks."""
    low, high = (factor * spread["quantiles"][level] for level in ("0.05", "0.95"))
    axes.plot([low, high], [y, y], color=colour, linewidth=4, alpha=0.35, solid_capstyle="butt")
    axes.plot(factor * spread["mean"], y, "o", color=colour, markersize=6)


def histograms(axes: Axes, kinds: Mapping[str, Any], key: str = "distance") -> None:
    """Of each kind of network, on common bins, each with the same area."""
    values = {kind: np.asarray(kinds[kind][key], dtype=float) for kind in KINDS if kind in kinds}
    ends = min(x.min() for x in values.values()), max(x.max() for x in values.values())
    edges = np.linspace(*ends, BINS + 1).tolist()
    for kind, x in values.items():
        words, colour = KINDS[kind]
        share = np.full(len(x), 1 / len(x))
        axes.hist(x, edges, weights=share, color=colour, alpha=0.25)
        axes.hist(x, edges, weights=share, histtype="step", color=colour, linewidth=1.6, label=words)
    axes.set_ylim(bottom=0)


def names(axes: Axes, labels: Sequence[str]) -> None:
    """One row for each, the first on top."""
    axes.set_yticks(range(len(labels)), labels)
    axes.set_ylim(len(labels) - 0.5, -0.5)
