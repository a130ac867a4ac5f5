"""Does the variance of units collapse between networks? rossi2023 Figure 10, after REPAIR (Jordan et al. 2023, 3.1).

For a layer at t the ratio is sum_u V_t(u) / sum_u ((1-t) V_0(u) + t V_1(u)): V_t(u) is the variance of what enters the
activation function of unit u, over examples, positions and networks drawn from the solution at t. One means no
collapse. The paper marginalises over networks without saying how; here they count like examples.
"""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from typing import Any

import torch
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import Tensor, nn

from coset import Solution, geodesic
from coset.alignment.activation_sites import SiteKind, watch
from coset.core.functional import evaluation_mode
from coset.core.state import unstack
from coset_papers.catalogue import exhibit
from coset_papers.examples import some
from coset_papers.outcome import Claim, Outcome, without_repeated_notes
from coset_papers.plotting import FAINT, legend, panels, style
from coset_papers.rossi2023.barriers import ALIGNED as BEST, NAIVE as NOT_MOVED, PathMeasurement, mean
from coset_papers.rossi2023.criteria import TOO_SMALL
from coset_papers.rossi2023.networks import measure_of, mlp, resnet
from coset_papers.rossi2023.plotting import ALIGNED, NAIVE
from coset_papers.rossi2023.study import PosteriorStudy
from coset_papers.settings import Settings

TIMES = (0.0, 0.25, 0.5, 0.75, 1.0)
MOST = 32  # networks drawn; a variance over examples too needs few
COLLAPSED = 0.8


def fig10(settings: Settings) -> Outcome:
    """Figure 10: variance ratios of all layers, naive and aligned."""
    rows = []
    for study in (mlp(settings.scale, "mnist"), resnet(settings.scale, "cifar10")):
        measure = measure_of(settings.scale, study)
        rows.append({"title": study.title, "study": study.key(), "measure": asdict(measure), "t": TIMES})
        rows[-1] |= {cost: _variance_ratios(settings, study, measure, cost) for cost in (NOT_MOVED, BEST)}
    return Outcome(
        {"rows": rows}, without_repeated_notes([claim for row in rows for claim in _claims(settings.scale, row)])
    )


def draw_fig10(data: Any) -> Figure:
    """Above the ratio halfway by layer, below its mean over layers along the path."""
    figure, grid = panels(2, len(data["rows"]), "Variance of hidden units between two posteriors, by that at the ends")
    for column, row in enumerate(data["rows"]):
        middle = row["t"].index(0.5)
        for cost, colour, words in ((NOT_MOVED, NAIVE, "naive"), (BEST, ALIGNED, "aligned")):
            halfway = row[cost][middle]
            layers = range(1, len(halfway) + 1)
            grid[0][column].xaxis.set_major_locator(MaxNLocator(integer=True))
            grid[0][column].plot(layers, halfway, ".-", color=colour, linewidth=1.6, label=words)
            grid[1][column].plot(row["t"], [mean(ratios) for ratios in row[cost]], ".-", color=colour, linewidth=1.6)
        style(grid[0][column], "layer", "variance ratio at t = 1/2", row["title"])
        style(grid[1][column], "t", "its mean over layers")
        for axes in (grid[0][column], grid[1][column]):
            axes.axhline(1, color=FAINT, linewidth=0.8)
            axes.set_ylim(bottom=0)
    legend(figure, grid[0][0], 2)
    return figure


class _Spread:
    """Sums over all rows of the units of a layer, in float64."""

    def __init__(self) -> None:
        self.rows = 0
        self.sums: Tensor | None = None

    def take(self, units: Tensor) -> None:
        """Rows (n, units)."""
        sums = torch.stack((units.sum(0), units.square().sum(0)))
        self.rows += len(units)
        self.sums = sums if self.sums is None else self.sums + sums

    def variance(self) -> float:
        """The sum over units of their variances."""
        assert self.sums is not None
        first, second = self.sums / self.rows
        return float((second - first.square()).sum())


@torch.no_grad()
def variances(q: Solution, model: nn.Module, inputs: Tensor, samples: int, batch_size: int) -> list[float]:
    """sum_u V(u) of each layer in the order of the pass; units are along dimension 1 of what enters an activation."""
    layers: list[_Spread] = []
    with evaluation_mode(model):
        for state in unstack(q.sample(samples, torch.Generator(inputs.device).manual_seed(0))):
            for batch in torch.split(inputs, batch_size):
                layer_units: list[Tensor] = []
                watch(model, state, (batch,), None, partial(_before, layer_units))
                layers = layers or [_Spread() for _ in layer_units]
                for layer, units in zip(layers, layer_units, strict=True):
                    layer.take(units)
    return [layer.variance() for layer in layers]


def _before(layer_units: list[Tensor], _: int, kind: SiteKind, x: Tensor) -> None:
    """Keep what enters an activation function, now, as it may be overwritten."""
    if kind == "pre":
        layer_units.append(x.movedim(1, -1).flatten(0, -2).double())


def _variance_ratios(
    settings: Settings, study: PosteriorStudy, measure: PathMeasurement, cost: str
) -> list[list[float]]:
    """The ratios at each of TIMES, layer by layer, of the first pair."""

    def compute() -> list[list[float]]:
        model, inputs = study.build().to(settings.device), some(study.parts(settings).test, measure.examples).inputs
        _, a, b = next(study.pairs(settings, cost))
        path = geodesic(a, b)
        settings.say(f"{study.title}: variances of units, {cost}")
        samples = min(measure.samples, MOST)
        variances_of_t = [variances(path(t), model, inputs, samples, measure.batch_size) for t in TIMES]
        return ratios(TIMES, variances_of_t)

    rows: list[list[float]] = settings.keep(
        "rossi2023-variances", compute, **study.key(), measure=asdict(measure), cost=cost
    )
    return rows


def ratios(times: tuple[float, ...], variances_of_t: list[list[float]]) -> list[list[float]]:
    """Of each layer at each t, with the ends of the path first and last in `variances_of_t`."""
    return [
        [
            v / ((1 - t) * first + t * last)
            for v, first, last in zip(row, variances_of_t[0], variances_of_t[-1], strict=True)
        ]
        for t, row in zip(times, variances_of_t, strict=True)
    ]


def _claims(scale: str, row: dict[str, Any]) -> tuple[Claim, ...]:
    middle = TIMES.index(0.5)
    naive, aligned = (row[cost][middle] for cost in (NOT_MOVED, BEST))
    judged = scale != "smoke" or row["title"].startswith("MLP")
    note = f"Collapse: the mean ratio over layers is below {COLLAPSED}. The paper gives a plot."
    words = [f"mean ratio {mean(one):.3f}, last layer {one[-1]:.3f}" for one in (naive, aligned)]
    return (
        Claim(
            f"{row['title']}: variance collapses on the naive path",
            None,
            words[0],
            mean(naive) < COLLAPSED if judged else None,
            note if judged else TOO_SMALL,
        ),
        Claim(
            f"{row['title']}: less so after alignment", None, words[1], mean(aligned) > mean(naive) if judged else None
        ),
    )


exhibit("rossi2023/fig10", "the variance of hidden units along the path", fig10, draw_fig10)
