"""How far is the nearest equivalent mode? gelberg2024 Theorem 3.1, measured on random and on trained networks."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import torch
from matplotlib.figure import Figure

from coset import MAP, Dirac, data, evaluate, fit, zoo
from coset.core import state as states
from coset.plot.palette import HUES
from coset_papers.catalogue import exhibit
from coset_papers.gelberg2024.nearest_mode import (
    NearestMode,
    log10_useful_width,
    nearest,
    pairs_bound,
    printed_bound,
    proof_bound,
)
from coset_papers.outcome import Claim, Outcome
from coset_papers.plotting import FAINT, INK, legend, panels, style
from coset_papers.settings import Settings

DIGITS, MNIST = ("digits", 64, 10), ("mnist", 784, 10)


@dataclass(frozen=True)
class Theorem31Sizes:
    """The data with its numbers of inputs and classes, the widths, and how the networks are trained."""

    source: tuple[str, int, int]
    widths: tuple[int, ...]
    epochs: int
    replicas: int


DECAYS = (5e-4, 0.0)
WIDTHS = (4, 8, 16, 32, 64, 128, 256, 512, 1024)
SIZES = {
    "smoke": Theorem31Sizes(DIGITS, (4, 16, 64), 5, 1),
    "short": Theorem31Sizes(DIGITS, WIDTHS, 50, 3),
    "paper": Theorem31Sizes(MNIST, WIDTHS, 20, 3),
}


def theorem31(settings: Settings) -> Outcome:
    """Theorem 3.1: min over g of ||w - g w|| / ||w|| against width, for Gaussian weights and for trained ones."""
    sizes = SIZES[settings.scale]
    name, inputs, outputs = sizes.source
    generator = torch.Generator().manual_seed(settings.seed)
    series = {
        f"Gaussian weights, {inputs}-n-{outputs}": [
            _gaussian(inputs, width, outputs, sizes.replicas, generator) for width in sizes.widths
        ],
        "Gaussian weights, 1-n-1": [_gaussian(1, width, 1, sizes.replicas, generator) for width in sizes.widths],
        **{
            f"trained on {name}, weight decay {decay:g}": [
                _trained(settings, sizes, width, decay) for width in sizes.widths
            ]
            for decay in DECAYS
        },
    }
    record = {
        "sizes": asdict(sizes),
        "width": list(sizes.widths),
        "series": series,
        "bounds": {
            f"Theorem 3.1 (Eq. 11), {inputs}-n-{outputs}": [printed_bound(inputs, n, outputs) for n in sizes.widths],
            f"its proof, 2 D / log n!, {inputs}-n-{outputs}": [proof_bound(inputs, n, outputs) for n in sizes.widths],
            "trivial, 2": [2.0 for _ in sizes.widths],
            "2 / sqrt(n - 1)": [pairs_bound(n) for n in sizes.widths],
        },
    }
    return Outcome(record, _claims(sizes, series))


def draw_theorem31(data: Any) -> Figure:
    """Left the distance relative to the whole network, with bounds; right that of the closest units to their size."""
    figure, ((left, right),) = panels(1, 2, "The nearest equivalent network, by width n of the hidden layer", 3.4)
    style(left, "n", "min ||w - g w|| / ||w||")
    style(right, "n", "closest units: distance / size")
    looks = ((INK, "solid"), (INK, (0, (1, 2))), (FAINT, (0, (4, 3))), (HUES[4], (0, (4, 3))))
    for (name, bound), (colour, dashes) in zip(data["bounds"].items(), looks, strict=True):
        left.plot(data["width"], bound, color=colour, linewidth=1.2, linestyle=dashes, label=f"bound: {name}")
    for number, (name, rows) in enumerate(data["series"].items()):
        for axes, key in ((left, "ratio"), (right, "distance")):
            middle = [sum(row[key]) / len(row[key]) for row in rows]
            axes.plot(data["width"], middle, ".-", color=HUES[number], linewidth=1.4, label=name)
    for axes in (left, right):
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
    legend(figure, left, 2)
    return figure


def _gaussian(inputs: int, width: int, outputs: int, draws: int, generator: torch.Generator) -> dict[str, list[float]]:
    """Independent standard normal weights."""
    modes = []
    for _ in range(draws):
        like = states.of(zoo.build(f"mlp:{inputs}-{width}-{outputs}"))
        modes.append(nearest({name: torch.randn(x.shape, generator=generator) for name, x in like.items()}))
    return _rows(modes)


def _trained(settings: Settings, sizes: Theorem31Sizes, width: int, decay: float) -> dict[str, list[float]]:
    """Modes of the posterior, of the likelihood where nothing decays; and their accuracy on test data."""
    name, inputs, outputs = sizes.source

    def compute() -> dict[str, Any]:
        settings.say(f"training {sizes.replicas} networks {inputs}-{width}-{outputs} on {name}")
        sets = data.load(name, device=settings.device)
        model = zoo.build(f"mlp:{inputs}-{width}-{outputs}").to(settings.device)
        method = MAP(epochs=sizes.epochs, weight_decay=decay)
        folder = settings.folder(f"gelberg2024-{name}-mlp", width=width, decay=decay, epochs=sizes.epochs)
        solutions = fit(model, sets.train, method, sizes.replicas, settings.seed, settings.device, folder)
        accuracy = [evaluate(q, model, sets.test).accuracy for q in solutions]
        return _rows([nearest(q.mean) for q in solutions if isinstance(q, Dirac)]) | {"accuracy": accuracy}

    rows: dict[str, list[float]] = settings.keep(
        "gelberg2024-nearest", compute, width=width, decay=decay, **asdict(sizes)
    )
    return rows


def _rows(modes: list[NearestMode]) -> dict[str, list[float]]:
    return {key: [getattr(one, key) for one in modes] for key in NearestMode.__dataclass_fields__}


def _claims(sizes: Theorem31Sizes, series: dict[str, list[dict[str, list[float]]]]) -> tuple[Claim, ...]:
    name, inputs, outputs = sizes.source
    first, last = sizes.widths[0], sizes.widths[-1]
    random, small, decayed, free = series.values()
    ratios = [
        (n, ratio)
        for rows in (random, decayed, free)
        for n, row in zip(sizes.widths, rows, strict=True)
        for ratio in row["ratio"]
    ]
    slope = math.log(_mean(decayed[-1]["ratio"]) / _mean(decayed[0]["ratio"])) / math.log(last / first)
    worst = max(ratio / pairs_bound(n) for n, ratio in ratios)
    return (
        Claim(
            f"||w - g w|| is at most this times ||w||, for some g != e (n = {last}, {name})",
            printed_bound(inputs, last, outputs),
            _mean(decayed[-1]["ratio"]),
            all(ratio <= printed_bound(inputs, n, outputs) for n, ratio in ratios),
            f"||w - g w|| <= 2 ||w|| holds for every g; the bound of the theorem says more from "
            f"n = 10^{log10_useful_width(inputs, outputs):.0f} on. Eq. 11 as printed lacks a factor of 2 against its "
            "own derivation.",
        ),
        Claim(
            "relative to ||w||, the nearest equivalent mode comes closer with width",
            "O(1 / log n)",
            f"n^{slope:.2f}, trained",
            _mean(decayed[-1]["ratio"]) < _mean(decayed[0]["ratio"]),
            "The nearest is always the swap of the closest two units, so the ratio is at most 2 / sqrt(n - 1), in any "
            f"dimension: measured at up to {worst:.3f} of that.",
        ),
        Claim(
            "so equivalent modes of wide networks are near",
            None,
            f"closest units of n = {last}, by the size of a unit: trained {_mean(decayed[-1]['distance']):.3f}, "
            f"without weight decay {_mean(free[-1]['distance']):.3f}, random {_mean(random[-1]['distance']):.3f}, "
            f"random 1-n-1 {_mean(small[-1]['distance']):.3f}",
            None,
            "||w|| grows with n, so the ratio falls also where units stay as far apart as they are long. The closest "
            f"trained units have {_mean(decayed[-1]['size']):.3f} of the size of a unit, without weight decay "
            f"{_mean(free[-1]['size']):.3f}: units near zero have decayed, and do nothing. Whether a Gaussian "
            "interpolates depends on the distance by its deviation (fig3), not by ||w||.",
        ),
    )


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


exhibit("gelberg2024/theorem31", "the distance to the nearest equivalent mode by width", theorem31, draw_theorem31)
