"""Three costs of alignment: rossi2023 Figure A13.

Appendix B says that KL between permuted Gaussians depends on the permutation by the means alone. That cost, "weights"
here, is not the KL divergence: the trace term sum_i (g s1)_i^2 / s0_i^2 depends on it too, and the distance of the
means is weighted by 1 / s0_i^2. The exact divergence is a linear assignment as well, and stands beside the other two.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Ellipse
from torch import Tensor

from coset import Gaussian, Solution, Symmetry, align, wasserstein
from coset.core.state import State
from coset.plot.palette import HUES
from coset_papers.catalogue import exhibit
from coset_papers.outcome import Claim, Outcome
from coset_papers.plotting import FAINT, INK, legend, panels, style
from coset_papers.rossi2023.barriers import NAIVE as NOT_MOVED, barriers
from coset_papers.rossi2023.criteria import ERRORS
from coset_papers.rossi2023.networks import PUBLISHED, measure_of, mlp
from coset_papers.rossi2023.plotting import NAIVE, curve
from coset_papers.rossi2023.study import PosteriorStudy
from coset_papers.settings import Settings

DASHES: tuple[Any, ...] = ("solid", (0, (5, 5)), (5, (5, 5)))  # coinciding curves alternate
COSTS = {"weights": "means only", "kl": "exact KL", "wasserstein": "Wasserstein"}
# Two Gaussians on the plane, each the mirror image of the other at y = x, with one mean.
MEAN, STD = (1.0, 1.0), (0.9, 0.3)
SWAP = '{"groups": {"axis": 2}, "tensors": {"w": ["axis"]}}'


def fig_a13(settings: Settings) -> Outcome:
    """Figure A13: the example on the plane, and the same three costs on trained networks."""
    toy, study = _toy(), mlp(settings.scale, "mnist")
    measure = measure_of(settings.scale, study)
    curves = {cost: barriers(study, settings, measure, cost)[0] for cost in (NOT_MOVED, *COSTS)}
    distances = settings.keep("rossi2023-costs", lambda: _distances_by_cost(study, settings), **study.key())
    data = {"toy": toy, "title": study.title, "study": study.key(), "measure": asdict(measure)}
    data |= {"curves": curves, "reached": distances}
    moves = ", ".join(f"{name} {'swaps' if toy[cost] == [1, 0] else 'stays'}" for cost, name in COSTS.items())
    heights = {cost: curves[cost]["test"]["height"] for cost in COSTS}
    others = [height for cost, height in heights.items() if cost != "wasserstein"]
    gain = min(others) - heights["wasserstein"]
    error = curves["wasserstein"]["test"]["height_error"]
    return Outcome(
        data,
        (
            Claim(
                "of two Gaussians that mirror each other, KL leaves the second as it is and Wasserstein aligns it",
                "KL stays, Wasserstein swaps",
                moves,
                toy["weights"] == [0, 1] and toy["wasserstein"] == [1, 0],
                "What the paper calls KL is the distance of the means; the exact divergence has a trace term that "
                "depends on the permutation, and swaps too.",
            ),
            Claim(
                "so Wasserstein is the better cost",
                None,
                "test barrier: " + ", ".join(f"{name} {heights[cost]:.4f}" for cost, name in COSTS.items()),
                gain > ERRORS * error,
                f"On trained networks it gains {gain:.4f} nats on the better of the others, with a standard error of "
                f"{error:.4f}; {distances['weights']['same']:.0%} of the units go where the means alone put them. "
                f"{PUBLISHED}",
            ),
        ),
    )


def draw_fig_a13(data: Any) -> Figure:
    """Left the example, right the loss between trained networks by cost."""
    figure, (row,) = panels(1, 3, "Alignment by three costs")
    _plane(row[0], data["toy"])
    colours = dict(zip(COSTS, HUES, strict=False))
    for axes, split in zip(row[1:], ("test", "train"), strict=True):
        curve(axes, data["curves"][NOT_MOVED][split], NAIVE, "naive")
        for (cost, name), dashes in zip(COSTS.items(), DASHES, strict=True):
            curve(axes, data["curves"][cost][split], colours[cost], name, dashes)
        style(axes, "t", f"{split} loss (nats)", data["title"])
    legend(figure, row[1], 4)
    return figure


def divergence(q: Gaussian, p: Gaussian) -> float:
    """KL(q || p) = sum_i log(s_p / s_q) + (s_q^2 + (m_p - m_q)^2) / (2 s_p^2) - 1/2."""
    total = 0.0
    for name, s in q.std.items():
        own, other = s.double(), p.std[name].double()
        apart = p.mean[name].double() - q.mean[name].double()
        terms = (other / own).log() + (own.square() + apart.square()) / (2 * other.square()) - 0.5
        total += float(terms.sum())
    return total


def _toy() -> dict[str, list[int]]:
    """Where each cost moves the axes of the second Gaussian."""
    sym = Symmetry.from_json(SWAP)
    q0, q1 = (_gaussian(torch.tensor(std)) for std in (STD, STD[::-1]))
    orders: dict[str, list[int]] = {cost: align(q0, q1, sym, cost).element["axis"].tolist() for cost in COSTS}
    return orders


def _gaussian(std: Tensor) -> Gaussian:
    return Gaussian({"w": torch.tensor(MEAN)}, {"w": std})


def _distances_by_cost(study: PosteriorStudy, settings: Settings) -> dict[str, dict[str, float]]:
    """What each cost is after each alignment, and the share of units that go where Wasserstein puts them."""
    a, b, *_ = study.solutions(settings)
    sym = study.symmetry(settings)
    elements = {cost: align(a, b, sym, cost).element for cost in COSTS}
    total = sum(group.size for group in sym.groups)
    rows = {}
    for cost, element in elements.items():
        image = sym.act(element, b)
        best = elements["wasserstein"]
        same = sum(int((element[group.name] == best[group.name]).sum()) for group in sym.groups)
        rows[cost] = _distances(a, image) | {"same": same / total}
    return rows


def _distances(a: Solution, b: Solution) -> dict[str, float]:
    assert isinstance(a, Gaussian) and isinstance(b, Gaussian)
    means = _square(a.mean, b.mean)
    return {"means": means, "kl": divergence(b, a), "wasserstein": float(wasserstein(a, b)) ** 2}


def _square(a: State, b: State) -> float:
    return sum(float((x.double() - b[name].double()).square().sum()) for name, x in a.items())


def _plane(axes: Axes, toy: Any) -> None:
    """The example: one and two standard deviations of q0, and of q1 as each cost leaves it."""
    axes.axline((0, 0), slope=1, color=FAINT, linewidth=0.8)
    looks: list[tuple[str, Sequence[float], str, Any]] = [("q0", STD, INK, "solid")]
    for (cost, name), colour, dashes in zip(COSTS.items(), HUES, DASHES, strict=False):
        std = tuple(STD[::-1][k] for k in toy[cost])
        looks.append((f"q1, {name}", std, colour, dashes))
    for name, (width, height), colour, dashes in looks:
        for times in (2, 4):
            axes.add_patch(
                Ellipse(
                    MEAN,
                    times * width,
                    times * height,
                    fill=False,
                    color=colour,
                    linestyle=dashes,
                    linewidth=4.0 if name == "q0" else 1.5,
                    alpha=0.35 if name == "q0" else 1.0,
                )
            )
        axes.plot([], [], color=colour, linestyle=dashes, label=name)
    axes.set_xlim(-1.2, 3.2)
    axes.set_ylim(-1.2, 3.2)
    axes.set_aspect("equal")
    axes.legend(frameon=False, fontsize=7, loc="upper left")
    style(axes, "w1", "w2", "one mean, mirrored deviations")


exhibit("rossi2023/figA13", "alignment by means, KL and Wasserstein", fig_a13, draw_fig_a13)
