"""Regression on a line, halfway between two posteriors: rossi2023 Figure 1.

The paper shows one pair of networks, and says neither their width nor prior and noise. One pair can be a lucky one, so
here are all pairs of several networks, of several widths; the first pair of the first width is drawn.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import partial
from itertools import combinations
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor, nn

from coset import VI, Solution, align, data, evaluate, fit, geodesic, moments, symmetry, zoo
from coset.core import state as states
from coset.data import Split
from coset.plot.palette import HUES
from coset_papers.catalogue import exhibit
from coset_papers.outcome import Claim, Outcome
from coset_papers.plotting import INK, legend, panels, style
from coset_papers.rossi2023.criteria import TOO_SMALL
from coset_papers.rossi2023.plotting import ALIGNED, NAIVE, settings_axis
from coset_papers.settings import Settings

REACH, PLACES = 1.15, 121  # of the grid: its range times that of the data, and its size
NOISE = 0.3  # of standardized targets; where it is learned it explains everything, and the network nothing
LOST = 0.5  # nats per example that a fit must lose to count as lost
TITLES = {"q0": "solution 1", "q1": "solution 2", "naive": "halfway, naive", "aligned": "halfway, aligned"}


@dataclass(frozen=True)
class LineSizes:
    """The data, widths of three hidden layers, networks of each, their training, and networks drawn to predict."""

    source: str
    widths: tuple[int, ...]
    replicas: int
    method: VI
    samples: int


METHOD = VI(rate=0.005, epochs=2000, batch_size=200, prior_variance=0.02, noise=NOISE, reparameterization="local")
SIZES = {
    "smoke": LineSizes(
        "sine", (64,), 2, VI(rate=0.01, epochs=300, batch_size=100, prior_variance=0.05, noise=NOISE), 32
    ),
    "short": LineSizes("snelson", (128, 64), 3, METHOD, 128),
    "paper": LineSizes("snelson", (128, 64, 256), 4, METHOD, 128),
}


def fig1(settings: Settings) -> Outcome:
    """Figure 1: two solutions, and halfway between them with and without alignment."""
    sizes = SIZES[settings.scale]
    results = [
        settings.keep("rossi2023-fig1", partial(_compute, settings, sizes, n), width=n, **asdict(sizes))
        for n in sizes.widths
    ]
    pairs = {str(n): one.pop("pairs") for n, one in zip(sizes.widths, results, strict=True)}
    judged = settings.scale != "smoke"
    return Outcome(
        {"sizes": asdict(sizes), "pairs": pairs, **results[0]},
        (
            _lost("without alignment the data are no longer modelled halfway", pairs, "naive", True, judged),
            _lost("after alignment they are", pairs, "aligned", False, judged),
            Claim(
                "the aligned solution halfway is neither of the two",
                None,
                "its sample with the same noise is "
                + " and ".join(f"{apart:.3f}" for apart in results[0]["apart"].values())
                + " away from theirs (rms)",
                min(results[0]["apart"].values()) > 0,
            ),
        ),
    )


def draw_fig1(data: Any) -> Figure:
    """A panel for each solution of the first pair, and the losses of all pairs."""
    figure, (row,) = panels(1, len(TITLES) + 1, "Two posteriors, and halfway between them", 2.7)
    for axes, (name, words), colour in zip(row, TITLES.items(), (HUES[0], HUES[4], NAIVE, ALIGNED), strict=False):
        one = data["solutions"][name]
        axes.plot(data["x"], data["y"], ".", color=INK, markersize=2.5, alpha=0.5, label="data")
        axes.plot(data["grid"], one["mean"], color=colour, linewidth=1.6, label="mean")
        low = [mean - 2 * std for mean, std in zip(one["mean"], one["std"], strict=True)]
        high = [mean + 2 * std for mean, std in zip(one["mean"], one["std"], strict=True)]
        axes.fill_between(data["grid"], low, high, color=colour, alpha=0.2, linewidth=0, label="two deviations")
        axes.plot(data["grid"], one["sample"], color="black", linewidth=1.0, label="one sample, the same noise in each")
        style(axes, "x", "y" if name == "q0" else "", f"{words}: loss {one['loss']:.2f}")
        axes.set_ylim(-4, 4)
    _all_pairs(row[-1], data["pairs"])
    legend(figure, row[0], 4)
    return figure


def _all_pairs(axes: Axes, pairs: Any) -> None:
    widths = sorted(int(n) for n in pairs)
    looks = (("q0", HUES[0], "an end"), ("naive", NAIVE, "naive"), ("aligned", ALIGNED, "aligned"))
    for shift, (key, colour, words) in zip((0.92, 1.0, 1.08), looks, strict=True):
        x = [n * shift for n in widths for _ in pairs[str(n)]]
        y = [pair[key] for n in widths for pair in pairs[str(n)]]
        axes.plot(x, y, "o", color=colour, markersize=4, alpha=0.7, label=words)
    settings_axis(axes, [float(n) for n in widths])
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False, fontsize=7)
    style(axes, "width", "loss (nats)", "all pairs, halfway")


def _lost(text: str, pairs: dict[str, list[dict[str, float]]], key: str, expected: bool, judged: bool) -> Claim:
    """Whether most pairs lose the fit halfway, or keep it."""
    counts = {n: sum(_loses(pair, key) is expected for pair in row) for n, row in pairs.items()}
    total = sum(len(row) for row in pairs.values())
    each = ", ".join(f"{counts[n]} of {len(row)} at width {n}" for n, row in pairs.items())
    first = next(iter(pairs.values()))[0]
    note = (
        f"Lost: {LOST} nats per example above the worse end. It holds if it does for most pairs; the paper shows one."
    )
    return Claim(
        text,
        None,
        f"{each}; loss of the pair shown {first[key]:.3f}, ends {first['q0']:.3f} and {first['q1']:.3f}",
        2 * sum(counts.values()) > total if judged else None,
        (note if judged else TOO_SMALL) if expected else "",
    )


def _loses(pair: dict[str, float], key: str) -> bool:
    return pair[key] > max(pair["q0"], pair["q1"]) + LOST


def sine() -> Split:
    """A hundred points of sin(2 x) with a gap, standardized: a curve that needs no file."""
    generator = torch.Generator().manual_seed(0)
    x = torch.cat((torch.linspace(-1.7, -0.4, 50), torch.linspace(0.4, 1.7, 50)))[:, None]
    y = torch.sin(2 * x) + NOISE * torch.randn(x.shape, generator=generator)
    return Split(x, (y - y.mean()) / y.std())


def _compute(settings: Settings, sizes: LineSizes, n: int) -> dict[str, Any]:
    split = (sine() if sizes.source == "sine" else data.load(sizes.source).train).to(settings.device)
    model = zoo.build(f"mlp:1-{n}-{n}-{n}-1").to(settings.device)
    settings.say(f"training {sizes.replicas} networks 1-{n}-{n}-{n}-1 on {sizes.source}")
    folder = settings.folder("rossi2023-line", width=n, **asdict(sizes))
    solutions = fit(
        model,
        split,
        sizes.method,
        sizes.replicas,
        settings.seed,
        settings.device,
        folder,
    )
    sym = symmetry(model, (split.inputs[:2],))
    rows, every = [], []
    for i, j in combinations(range(len(solutions)), 2):
        a, b = solutions[i], solutions[j]
        aligned = sym.act(align(a, b, sym).element, b)
        four = {"q0": a, "q1": b, "naive": geodesic(a, b)(0.5), "aligned": geodesic(a, aligned)(0.5)}
        rows.append({name: evaluate(q, model, split, sizes.samples).nll for name, q in four.items()})
        every.append(four)
    reach = REACH * float(split.inputs.abs().max())
    grid = torch.linspace(-reach, reach, PLACES, device=settings.device)[:, None]
    curves = {name: _curve(settings, q, model, grid, sizes.samples) for name, q in every[0].items()}
    samples = {name: torch.tensor(one["sample"]) for name, one in curves.items()}
    apart = {name: float((samples["aligned"] - samples[name]).square().mean().sqrt()) for name in ("q0", "q1")}
    points = {"x": split.inputs[:, 0].tolist(), "y": split.targets[:, 0].tolist(), "grid": grid[:, 0].tolist()}
    pictures = {name: one | {"loss": rows[0][name]} for name, one in curves.items()}
    return points | {"pairs": rows, "solutions": pictures, "apart": apart}


def _curve(settings: Settings, q: Solution, model: nn.Module, grid: Tensor, samples: int) -> dict[str, Any]:
    """Mean, deviation and one sample of y on the grid."""
    prediction = moments(q, model, grid, samples)
    (state,) = states.unstack(q.sample(1, settings.generator()))
    with torch.no_grad():
        sample = states.call(model, state, (grid,))
    return {
        "mean": prediction.mean[:, 0].tolist(),
        "std": prediction.std[:, 0].tolist(),
        "sample": sample[:, 0].tolist(),
    }


exhibit("rossi2023/fig1", "regression on a line, halfway between two posteriors", fig1, draw_fig1)
