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

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import nn

from coset import data, zoo
from coset.data import Split
from coset.plot.figure import canvas
from coset.plot.palette import HUES
from coset.solutions.overlap import SEPARATE
from coset_papers.catalogue import exhibit
from coset_papers.gelberg2024 import tractable_net
from coset_papers.gelberg2024.comparison import MEAN_FIELD, WAYS, VIComparison, VISettings, compare, difference
from coset_papers.gelberg2024.paired_tests import LEVEL, holm
from coset_papers.outcome import Claim, Outcome
from coset_papers.plotting import FAINT, INK, style
from coset_papers.settings import Settings

INFONCE, IMPORTANCE, BETHE = "InfoNCE, K = 20", "importance, K = 20", "Bethe"
ALPHA = 0.2  # of the tractable network
TEACHER, NOISE, EXAMPLES, TESTED = 10, 0.1, 200, 1000  # units and noise of the network to be learned, its data
IMAGE_RUNS = 5  # these networks are large
BROAD = 0.2  # initial deviation, ten times that of the weights themselves
COLOURS = dict(zip(WAYS, HUES, strict=False))


@dataclass(frozen=True)
class SymmetrizationSizes:
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
    "smoke": SymmetrizationSizes(
        images=(("digits", 64, 10),),
        snelson=(),
        uci=(),
        dimensions=(1, 5),
        widths=(5,),
        variances=(1.0,),
        steps=60,
        replicas=3,
        samples=50,
        slow=2,
    ),
    "short": SymmetrizationSizes(
        images=(("digits", 64, 30),),
        snelson=(10, 50),
        uci=("energy", "yacht"),
        dimensions=(1, 5, 30),
        widths=(5, 50),
        variances=(0.1, 1.0, 10.0),
        steps=400,
        replicas=5,
        samples=200,
        slow=10,
    ),
    "paper": SymmetrizationSizes(
        images=(("mnist", 784, 30), ("mnist", 784, 300)),
        snelson=(10, 50, 200),
        uci=UCI,
        dimensions=(1, 2, 5, 30),
        widths=(5, 50, 200),
        variances=(0.1, 1.0, 10.0),
        steps=1500,
        replicas=10,
        samples=100,
        slow=50,
    ),
}


def symmetrization(settings: Settings) -> Outcome:
    """Gains of symmetrization over mean-field VI, and the overlap of equivalent modes."""
    sizes = SIZES[settings.scale]
    sets = [_row(settings, comparison, width) for comparison, width in _problems(sizes)]
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


def _row(settings: Settings, comparison: VIComparison, width: int) -> dict[str, Any]:
    """One problem: what was measured, and gains, mean-field VI less the method, in test NLL."""
    results = compare(settings, comparison)
    field = results[MEAN_FIELD]
    gains: dict[str, Any] = {}
    for name in results:
        if name != MEAN_FIELD:
            one = difference(results, name, "nll")
            gains[name] = {"gain": 0.0 - one.difference, "error": one.error, "t": one.t, "wilcoxon": one.wilcoxon}
    return {
        "name": comparison.name,
        "width": width,
        "index": statistics.mean(field["index"]),
        "short": max(field["short"]),
        "log_order": field["log_order"],
        "methods": results,
        "gain": gains,
    }


def _problems(sizes: SymmetrizationSizes) -> list[tuple[VIComparison, int]]:
    """The data sets, with the width of the hidden layer."""
    size = (sizes.replicas, sizes.samples)
    problems = []
    for source, inputs, width in sizes.images:
        training = VISettings(sizes.steps, 100, 1e-3, "constant")
        load = partial(_images, source, inputs, width)
        few = min(sizes.replicas, IMAGE_RUNS)
        ways = _ways(sizes, width)
        problems.append((VIComparison(f"{source}, {width} units", load, training, ways, few, sizes.samples), width))
    source, inputs, width = sizes.images[0]
    # At the start equivalent modes then overlap, whatever becomes of them.
    training = VISettings(sizes.steps, 100, 1e-3, "constant", initial_std=BROAD)
    load, few = partial(_images, source, inputs, width), min(sizes.replicas, IMAGE_RUNS)
    name = f"{source}, {width} units, broad start"
    problems.append((VIComparison(name, load, training, (MEAN_FIELD, INFONCE, BETHE), few, sizes.samples), width))
    noise, variance = tractable_net.NOISE, tractable_net.VARIANCE
    training = VISettings(sizes.steps, 10, 5e-3, "cosine", variance, math.sqrt(variance), noise)
    problems.append((VIComparison("two weights", _tractable, training, _ways(sizes, 2), *size), 2))
    for width in sizes.snelson:
        load = partial(_snelson, width)
        training = VISettings(sizes.steps, 40)
        problems.append((VIComparison(f"snelson, {width} units", load, training, _ways(sizes, width), *size), width))
    for source in sizes.uci:
        load = partial(_uci, source)
        problems.append(
            (VIComparison(f"{source}, 50 units", load, VISettings(sizes.steps, 64), _ways(sizes, 50), *size), 50)
        )
    return problems


def _ways(sizes: SymmetrizationSizes, width: int) -> tuple[str, ...]:
    """Importance sampling draws unit after unit, which no graph of kernels can replay: it is slow."""
    return (MEAN_FIELD, INFONCE, BETHE, IMPORTANCE) if width <= sizes.slow else (MEAN_FIELD, INFONCE, BETHE)


def _teacher(sizes: SymmetrizationSizes, dimension: int, width: int, variance: float) -> VIComparison:
    training = VISettings(sizes.steps, 50, prior_variance=variance)
    name = f"random network, {dimension} inputs, {width} units, prior {variance:g}"
    load = partial(random_teacher, dimension, width)
    return VIComparison(name, load, training, (MEAN_FIELD, BETHE), sizes.replicas, sizes.samples)


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
    is_test = torch.arange(len(split)) % 5 == 4
    train, test = (Split(split.inputs[rows], split.targets[rows]) for rows in (~is_test, is_test))
    return zoo.build(f"mlp:1-{width}-1"), train, test


def _uci(source: str) -> tuple[nn.Module, Split, Split]:
    sets = data.load(f"uci/{source}")
    return zoo.build(f"mlp:{sets.train.inputs.shape[1]}-50-1"), sets.train, sets.test


def random_teacher(dimension: int, width: int) -> tuple[nn.Module, Split, Split]:
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


def draw_symmetrization(data: Any) -> Figure:
    """Left the gains on data sets; then the map: overlap index above, gain below, a column for each prior variance."""
    variances = data["sizes"]["variances"]
    figure = canvas(5.2 + 2.6 * len(variances), 5.6)
    figure.set_layout_engine("constrained")
    figure.suptitle("Symmetrized VI less mean-field VI", fontsize=11, color=INK)
    grid = figure.add_gridspec(2, 1 + len(variances), width_ratios=[2.0, *[1.0] * len(variances)])
    _gains(figure.add_subplot(grid[:, 0]), data["sets"])
    largest = max(abs(gain["gain"]) for cell in data["map"] for gain in cell["gain"].values()) or 1.0
    for column, variance in enumerate(variances, 1):
        cells = [cell for cell in data["map"] if cell["variance"] == variance]
        upper, lower = (figure.add_subplot(grid[row, column]) for row in (0, 1))
        _heat(upper, data["sizes"], cells, f"overlap index, prior {variance:g}", "Blues", (0.0, 1.0))
        _heat(lower, data["sizes"], cells, "gain in NLL (*: p < 0.05)", "RdBu", (-largest, largest))
    return figure


def _gains(axes: Axes, rows: Any) -> None:
    style(axes, "gain in test NLL, nats; bars: standard error", "")
    labels = []
    for place, row in enumerate(reversed(rows)):
        labels.append(f"{row['name']}\nindex {row['index']:.2g}")
        for k, (name, gain) in enumerate(row["gain"].items()):
            axes.errorbar(
                gain["gain"],
                place + 0.2 * (1 - k),
                xerr=gain["error"],
                fmt="o",
                markersize=4,
                color=COLOURS[name],
                markerfacecolor=COLOURS[name] if gain["corrected"] < LEVEL else "white",
                label=name,
            )
    axes.set_yticks(range(len(labels)), labels, fontsize=7)
    axes.axvline(0, color=FAINT, linewidth=1)
    axes.set_xscale("symlog", linthresh=1e-3)
    handles = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    axes.legend(handles.values(), handles.keys(), fontsize=7, frameon=False, title="filled: p < 0.05", title_fontsize=7)


def _heat(axes: Axes, sizes: Any, cells: Any, title: str, colours: str, limits: tuple[float, float]) -> None:
    dimensions, widths = sizes["dimensions"], sizes["widths"]
    values = np.zeros((len(widths), len(dimensions)))
    axes.set_title(title, fontsize=8, color=INK)
    for cell in cells:
        i, j = widths.index(cell["width"]), dimensions.index(cell["dimension"])
        (gain,) = cell["gain"].values()
        is_index = title.startswith("overlap")
        values[i, j] = cell["index"] if is_index else gain["gain"]
        text = f"{values[i, j]:.2g}" + ("*" if not is_index and gain["corrected"] < LEVEL else "")
        axes.text(j, i, text, ha="center", va="center", fontsize=7, color=INK)
    axes.imshow(values, cmap=colours, vmin=limits[0], vmax=limits[1], aspect="auto", origin="lower", alpha=0.7)
    axes.set_xticks(range(len(dimensions)), [str(d) for d in dimensions], fontsize=7)
    axes.set_yticks(range(len(widths)), [str(w) for w in widths], fontsize=7)
    axes.set_xlabel("inputs", fontsize=8, color=INK)
    axes.set_ylabel("units", fontsize=8, color=INK)


exhibit(
    "gelberg2024/symmetrization", "where symmetrization helps, and where it cannot", symmetrization, draw_symmetrization
)
