"""The log-posterior on planes through three networks: rossi2023 Figures 2, 6 and A16.

Through means: those of q0, q1 and P q1. Through samples: of q0, q1 and the solution halfway, and the same with P q1 for
q1. The samples are independent, as with the same noise the one halfway would lie on the line through the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.contour import QuadContourSet
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from scipy.interpolate import RegularGridInterpolator

from coset import VI, geodesic, plane
from coset.core.state import State, unstack
from coset_papers.catalogue import exhibit
from coset_papers.examples import some
from coset_papers.images import IMAGE_SETS
from coset_papers.outcome import Claim, Outcome
from coset_papers.plotting import INK, Array, panels, style
from coset_papers.rossi2023.barriers import ALIGNED, NAIVE
from coset_papers.rossi2023.criteria import TOO_SMALL
from coset_papers.rossi2023.networks import mlp, resnet
from coset_papers.rossi2023.study import PosteriorStudy
from coset_papers.settings import Settings

GRIDS = {"log_likelihood": "log-likelihood", "log_prior": "log-prior", "log_posterior": "log-posterior"}
POINTS = {"smoke": 9, "short": 15, "paper": 21}
EXAMPLES = {"smoke": 100, "short": 1000, "paper": 1000}  # of the training set, whose posterior it is
FINE = 51  # places along a line
SHADES = 12
MEANS, SAMPLES = "means", "samples"


def fig2(settings: Settings) -> Outcome:
    """Figure 2: an MLP, through means."""
    return _outcome(settings, mlp(settings.scale, "cifar10"), MEANS)


def fig6(settings: Settings) -> Outcome:
    """Figure 6: ResNet20, through samples."""
    return _outcome(settings, resnet(settings.scale, "cifar10"), SAMPLES)


def fig_a16(settings: Settings) -> Outcome:
    """Figure A16: ResNet20, through means."""
    return _outcome(settings, resnet(settings.scale, "cifar10"), MEANS)


def draw_planes(data: Any) -> Figure:
    """A row for each plane, with likelihood, prior and posterior."""
    title = f"Nats per example below the best of the plane: {data['title']}, through {data['through']}"
    tallest = max(
        (picture["y"][-1] - picture["y"][0]) / (picture["x"][-1] - picture["x"][0]) for picture in data["planes"]
    )
    figure, grid = panels(len(data["planes"]), len(GRIDS), title, min(2.8 * tallest + 0.8, 3.1))
    for row, picture in zip(grid, data["planes"], strict=True):
        for axes, (key, name) in zip(row, GRIDS.items(), strict=True):
            filled = _panel(axes, picture, _depth(picture[key], data["examples"]))
            style(axes, "distance of parameters", "", name)
            axes.grid(visible=False)
            beside = axes.inset_axes((1.03, 0.0, 0.05, 1.0))  # as high as the panel, whose aspect is that of the plane
            figure.colorbar(filled, cax=beside, format="%.3g")
            beside.tick_params(labelsize=7)
    return figure


def dip(surface: Any, first: int, second: int, examples: int) -> float:
    """How far, in nats per example, the log-posterior falls below the chord between two of a plane's points.

    Between places of the grid it is linear, so a value at a point is one of the grid's around it.
    """
    values = np.array(surface["log_posterior"], dtype=float)
    grid = RegularGridInterpolator((surface["y"], surface["x"]), values)
    (x0, y0), (x1, y1) = surface["points"][first], surface["points"][second]
    t = np.linspace(0, 1, FINE)
    along: Array = grid(np.stack((y0 + t * (y1 - y0), x0 + t * (x1 - x0)), axis=-1))
    chord: Array = (1 - t) * along[0] + t * along[-1]
    return float((chord - along).max()) / examples


def _outcome(settings: Settings, study: PosteriorStudy, through: str) -> Outcome:
    sizes = {"points": POINTS[settings.scale], "used": EXAMPLES[settings.scale]}
    total = study.examples or IMAGE_SETS[study.data].examples
    planes = settings.keep(
        f"rossi2023-plane-{through}", lambda: _planes(settings, study, through, **sizes), **study.key(), **sizes
    )
    dips = [dip(one, first, second, total) for one in planes for first, second in one["lines"]]
    judged = settings.scale != "smoke" or study.model.startswith("mlp")
    used = min(sizes["used"], total)
    claim = Claim(
        "q0 and P q1 are connected by regions of higher density than q0 and q1",
        None,
        f"log-posterior below the chord, nats per example: to q1 {dips[0]:.3f}, to P q1 {dips[1]:.3f}",
        dips[1] < dips[0] if judged else None,
        f"The likelihood is of {used} training examples, times {total / used:g}; the paper gives a picture."
        if judged
        else TOO_SMALL,
    )
    data = {"title": study.title, "through": through, "study": study.key(), **sizes, "examples": total}
    return Outcome(data | {"dips": dips, "planes": planes}, (claim,))


def _planes(settings: Settings, study: PosteriorStudy, through: str, points: int, used: int) -> list[dict[str, Any]]:
    (_, a, b), (_, _, aligned) = (next(study.pairs(settings, cost)) for cost in (NAIVE, ALIGNED))
    if through == MEANS:
        corners = {"q0": a.mean, "q1": b.mean, "P q1": aligned.mean}
        return [_plane(settings, study, corners, [(0, 1), (0, 2)], points, used)]
    planes = []
    for name, end in (("q1", b), ("P q1", aligned)):
        three = {"q0": a, name: end, "halfway": geodesic(a, end)(0.5)}
        generator = settings.generator()
        corners = {label: unstack(q.sample(1, generator))[0] for label, q in three.items()}
        planes.append(_plane(settings, study, corners, [(0, 1)], points, used))
    return planes


def _plane(
    settings: Settings,
    study: PosteriorStudy,
    corners: Mapping[str, State],
    lines: list[tuple[int, int]],
    points: int,
    used: int,
) -> dict[str, Any]:
    """The grid as `Plane.to_json` has it, with the log-likelihood of all examples as that of those used, scaled."""
    assert isinstance(study.method, VI)
    settings.say(f"{study.title}: the plane through {', '.join(corners)}")
    split, model = study.parts(settings).train, study.build().to(settings.device)
    examples = some(split, used)
    a, b, c = corners.values()
    surface = plane(a, b, c, model, examples, points, prior_variance=study.method.prior_variance)
    likelihood = np.array(surface.log_likelihood) * (len(split) / len(examples))
    grids = {"log_likelihood": likelihood, "log_prior": np.array(surface.log_prior)}
    grids["log_posterior"] = likelihood + grids["log_prior"]
    lists = {key: values.tolist() for key, values in grids.items()}
    return {"x": surface.x, "y": surface.y, "points": surface.points, "labels": list(corners), "lines": lines, **lists}


def _depth(values: list[list[float]], examples: int) -> Array:
    grid = np.array(values, dtype=float)
    depth: Array = (grid.max() - grid) / examples
    return depth


def _panel(axes: Axes, surface: Any, depth: Array) -> QuadContourSet:
    """Brighter is better; levels are evenly spaced in the square root, so that the best are told apart."""
    levels = np.linspace(0, 1, SHADES) ** 2 * max(float(depth.max()), 1e-9)
    filled = axes.contourf(surface["x"], surface["y"], depth, levels, cmap="viridis_r")
    outline = [withStroke(linewidth=2.5, foreground="white")]
    for (x, y), label in zip(surface["points"], surface["labels"], strict=True):
        axes.plot(x, y, "o", color=INK, markeredgecolor="white", markersize=5)
        axes.annotate(
            label, (x, y), (0, 6), textcoords="offset points", ha="center", fontsize=8, color=INK, path_effects=outline
        )
    axes.set_aspect("equal")
    return filled


exhibit("rossi2023/fig2", "the log-posterior of an MLP on the plane of three means", fig2, draw_planes)
exhibit("rossi2023/fig6", "the log-posterior of ResNet20 on planes of samples", fig6, draw_planes)
exhibit("rossi2023/figA16", "the log-posterior of ResNet20 on the plane of three means", fig_a16, draw_planes)
