"""Where does symmetrization help? The open problem of gelberg2024 section 5, its second part.

Mean-field VI beside its symmetrizations, with paired runs: on data sets, and on networks that learn a random network,
by input dimension, width and prior variance. The overlap index 1 - I / log|G| is that of the mean-field solution.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from coset import data, zoo
from coset.data import Split
from coset.solutions.overlap import SEPARATE
from coset_papers.gelberg2024 import tractable_net
from coset_papers.gelberg2024.comparison import MEAN_FIELD, Problem, Training, compare, difference
from coset_papers.gelberg2024.paired import LEVEL, holm
from coset_papers.outcome import Claim, Outcome
from coset_papers.settings import Settings

INFONCE, IMPORTANCE, BETHE = "InfoNCE, K = 20", "importance, K = 20", "Bethe"
ALPHA = 0.2  # of the tractable network
TEACHER, NOISE, EXAMPLES, TESTED = 10, 0.1, 200, 1000  # units and noise of the network to be learned, its data
IMAGE_RUNS = 5  # these networks are large
BROAD = 0.2  # initial deviation, ten times that of the weights themselves


@dataclass(frozen=True)
class Sizes:
    """What is compared, for how many steps and runs; `slow`: the largest width that importance sampling is trained at.

    images: (data, inputs, hidden units). dimensions, widths, variances: of the map.
    """

    images: tuple[tuple[str, int, int], ...]
    snelson: tuple[int, ...]
    uci: tuple[str, ...]
    dimensions: tuple[int, ...]
    widths: tuple[int, ...]
    variances: tuple[float, ...]
    steps: int
    replicas: int
    samples: int
    slow: int


UCI = ("boston", "concrete", "energy", "yacht")
SIZES = {
    "smoke": Sizes((("digits", 64, 10),), (), (), (1, 5), (5,), (1.0,), 60, 3, 50, 2),
    "short": Sizes(
        (("digits", 64, 30),), (10, 50), ("energy", "yacht"), (1, 5, 30), (5, 50), (0.1, 1.0, 10.0), 400, 5, 200, 10
    ),
    "paper": Sizes(
        (("mnist", 784, 30), ("mnist", 784, 300)),
        (10, 50, 200),
        UCI,
        (1, 2, 5, 30),
        (5, 50, 200),
        (0.1, 1.0, 10.0),
        1500,
        10,
        100,
        50,
    ),
}


def symmetrization(settings: Settings) -> Outcome:
    """Gains of symmetrization over mean-field VI, and the overlap of equivalent modes."""
    sizes = SIZES[settings.scale]
    sets = [_row(settings, problem, width) for problem, width in _problems(sizes)]
    cells = [
        _row(settings, _teacher(sizes, d, width, variance), width) | {"dimension": d, "variance": variance}
        for variance in sizes.variances
        for width in sizes.widths
        for d in sizes.dimensions
    ]
    tests = [gain for row in sets + cells for gain in row["gain"].values()]
    for gain, p in zip(tests, holm([gain["t"] for gain in tests]), strict=True):
        gain["corrected"] = p
    return Outcome({"sizes": asdict(sizes), "sets": sets, "map": cells}, _claims(sets, cells))


def _row(settings: Settings, problem: Problem, width: int) -> dict[str, Any]:
    """One problem: what was measured, and gains, mean-field VI less the method, in test NLL."""
    found = compare(settings, problem)
    field = found[MEAN_FIELD]
    gains: dict[str, Any] = {}
    for name in found:
        if name != MEAN_FIELD:
            one = difference(found, name, "nll")
            gains[name] = {"gain": 0.0 - one.difference, "error": one.error, "t": one.t, "wilcoxon": one.wilcoxon}
    return {
        "name": problem.name,
        "width": width,
        "index": statistics.mean(field["index"]),
        "short": max(field["short"]),
        "log_order": field["log_order"],
        "methods": found,
        "gain": gains,
    }


def _problems(sizes: Sizes) -> list[tuple[Problem, int]]:
    """The data sets, with the width of the hidden layer."""
    size = (sizes.replicas, sizes.samples)
    found = []
    for source, inputs, width in sizes.images:
        training = Training(sizes.steps, 100, 1e-3, "constant")
        load = partial(_images, source, inputs, width)
        few = min(sizes.replicas, IMAGE_RUNS)
        ways = _ways(sizes, width)
        found.append((Problem(f"{source}, {width} units", load, training, ways, few, sizes.samples), width))
    source, inputs, width = sizes.images[0]
    # At the start equivalent modes then overlap, whatever becomes of them.
    training = Training(sizes.steps, 100, 1e-3, "constant", initial_std=BROAD)
    load, few = partial(_images, source, inputs, width), min(sizes.replicas, IMAGE_RUNS)
    name = f"{source}, {width} units, broad start"
    found.append((Problem(name, load, training, (MEAN_FIELD, INFONCE, BETHE), few, sizes.samples), width))
    noise, variance = tractable_net.NOISE, tractable_net.VARIANCE
    training = Training(sizes.steps, 10, 5e-3, "cosine", variance, math.sqrt(variance), noise)
    found.append((Problem("two weights", _tractable, training, _ways(sizes, 2), *size), 2))
    for width in sizes.snelson:
        load = partial(_snelson, width)
        training = Training(sizes.steps, 40)
        found.append((Problem(f"snelson, {width} units", load, training, _ways(sizes, width), *size), width))
    for source in sizes.uci:
        load = partial(_uci, source)
        found.append((Problem(f"{source}, 50 units", load, Training(sizes.steps, 64), _ways(sizes, 50), *size), 50))
    return found


def _ways(sizes: Sizes, width: int) -> tuple[str, ...]:
    """Importance sampling draws unit after unit, which no graph of kernels can replay: it is slow."""
    return (MEAN_FIELD, INFONCE, BETHE, IMPORTANCE) if width <= sizes.slow else (MEAN_FIELD, INFONCE, BETHE)


def _teacher(sizes: Sizes, dimension: int, width: int, variance: float) -> Problem:
    training = Training(sizes.steps, 50, prior_variance=variance)
    name = f"random network, {dimension} inputs, {width} units, prior {variance:g}"
    load = partial(learned, dimension, width)
    return Problem(name, load, training, (MEAN_FIELD, BETHE), sizes.replicas, sizes.samples)


def _images(source: str, inputs: int, width: int) -> tuple[nn.Module, Split, Split]:
    sets = data.load(source)
    return zoo.build(f"mlp:{inputs}-{width}-10"), sets.train, sets.test


def _tractable() -> tuple[nn.Module, Split, Split]:
    generator = torch.Generator().manual_seed(0)
    train, test = (tractable_net.points(ALPHA, 100, generator) for _ in range(2))
    return tractable_net.TwoUnits(), train, test


def _snelson(width: int) -> tuple[nn.Module, Split, Split]:
    """Every fifth point is for testing, as the test inputs have no targets."""
    split = data.load("snelson").train
    held = torch.arange(len(split)) % 5 == 4
    train, test = (Split(split.inputs[rows], split.targets[rows]) for rows in (~held, held))
    return zoo.build(f"mlp:1-{width}-1"), train, test


def _uci(source: str) -> tuple[nn.Module, Split, Split]:
    sets = data.load(f"uci/{source}")
    return zoo.build(f"mlp:{sets.train.inputs.shape[1]}-50-1"), sets.train, sets.test


def learned(dimension: int, width: int) -> tuple[nn.Module, Split, Split]:
    """y = f(x) + noise with x ~ N(0, 1) and f a network of random weights, scaled to unit variance."""
    generator = torch.Generator().manual_seed(dimension)
    inner = torch.randn(dimension, TEACHER, generator=generator) / math.sqrt(dimension)
    bias, outer = torch.randn(TEACHER, generator=generator), torch.randn(TEACHER, 1, generator=generator)
    x = torch.randn(EXAMPLES + TESTED, dimension, generator=generator)
    f = torch.relu(x @ inner + bias) @ outer
    y = (f - f.mean()) / f.std() + NOISE * torch.randn(len(x), 1, generator=generator)
    train, test = (Split(x[rows], y[rows]) for rows in (slice(EXAMPLES), slice(EXAMPLES, None)))
    return zoo.build(f"mlp:{dimension}-{width}-1"), train, test


def _claims(sets: list[dict[str, Any]], cells: list[dict[str, Any]]) -> tuple[Claim, ...]:
    rows = sets + cells
    apart = [row for row in rows if row["short"] < SEPARATE]
    together = [row for row in rows if row["short"] >= SEPARATE]
    largest = [abs(gain["gain"]) for row in apart for gain in row["gain"].values()]
    better, worse = (
        [
            (row, name)
            for row in rows
            for name, g in row["gain"].items()
            if g["corrected"] < LEVEL and sign * g["gain"] > 0
        ]
        for sign in (1, -1)
    )
    bounds = [difference(row["methods"], name, "symmetrized") for row in together for name in row["gain"]]
    raised, lowered = (
        sum(p < LEVEL and sign * one.difference > 0 for one, p in zip(bounds, holm([b.t for b in bounds]), strict=True))
        for sign in (1, -1)
    )
    idle = [row for row in together if INFONCE in row["gain"]]
    unmoved = [row["name"] for row in idle if row["gain"][INFONCE]["gain"] == 0]
    fits = len([gain for row in rows for gain in row["gain"].values()])
    return (
        Claim(
            "symmetrization lowers the test NLL (paired t-tests, corrected by Holm's method)",
            None,
            f"in {len(better)} of {fits} comparisons: {_names(better)}",
            bool(better),
            f"It raises it in {len(worse)}: {_names(worse)}.",
        ),
        Claim(
            "where equivalent modes are separate it cannot matter",
            None,
            f"{len(apart)} of {len(rows)} posteriors are within {SEPARATE:g} nats of log|G|"
            + (f", and gain at most {max(largest):.2g} nats" if largest else ""),
            all(gain["corrected"] >= LEVEL for row in apart for gain in row["gain"].values()) if apart else None,
            f"{', '.join(row['name'] for row in apart) or 'none'}. At the end; on the way there they may overlap.",
        ),
        Claim(
            "where they overlap it raises the symmetrized bound",
            None,
            f"raised in {raised} and lowered in {lowered} of {len(bounds)} comparisons",
            raised > lowered if bounds else None,
            f"Of {len(together)} posteriors, with an index of "
            + (
                f"{min(r['index'] for r in together):.2g} to {max(r['index'] for r in together):.2g}"
                if together
                else "0"
            )
            + ".",
        ),
        Claim(
            "InfoNCE with K = 20 sees that they overlap",
            None,
            f"{len(unmoved)} of {len(idle)} end where mean-field VI ends: {', '.join(unmoved) or 'none'}",
            not unmoved if idle else None,
            "All but few permutations lead far away, and uniform ones do not find these few: then runs are the same "
            "to the last bit.",
        ),
        Claim(
            "modes overlap more in few dimensions, wide layers and under strong priors",
            None,
            "; ".join(f"{key} {_trend(cells, key)}" for key in ("dimension", "width", "variance")),
            None,
            "The mean overlap index of the map. The paper expects gains to grow with width (Theorem 3.1).",
        ),
        Claim(
            "milliseconds a step, all runs at once",
            None,
            "; ".join(
                f"{row['name']}: " + ", ".join(f"{name} {1e3 * m['step']:.2g}" for name, m in row["methods"].items())
                for row in sets
            ),
            None,
        ),
    )


def _names(pairs: list[tuple[dict[str, Any], str]]) -> str:
    return "; ".join(f"{row['name']}, {name} ({row['gain'][name]['gain']:+.3g})" for row, name in pairs) or "none"


def _trend(cells: list[dict[str, Any]], key: str) -> str:
    values = sorted({cell[key] for cell in cells})
    means = [statistics.mean(cell["index"] for cell in cells if cell[key] == value) for value in values]
    return ", ".join(f"{value:g}: {mean:.3f}" for value, mean in zip(values, means, strict=True))
