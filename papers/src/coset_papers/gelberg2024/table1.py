"""Does symmetrization raise the accuracy on MNIST? gelberg2024 Table 1, with paired runs and tests.

The paper does not say the prior variance or the initial standard deviation; here they are 1 and 0.05, and at the
largest width also 0.5, which is as much as a unit's weights differ from another's at the start.
"""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from matplotlib.figure import Figure
from torch import nn

from coset import data, zoo
from coset.data import Split
from coset.plot.palette import HUES
from coset.solutions.overlap import SEPARATE
from coset_papers.catalogue import exhibit
from coset_papers.gelberg2024.comparison import MEAN_FIELD, WAYS, VIComparison, VISettings, compare, difference
from coset_papers.gelberg2024.paired_tests import LEVEL
from coset_papers.outcome import Claim, Outcome
from coset_papers.plotting import FAINT, legend, panels, style
from coset_papers.settings import Settings

WIDTHS = (5, 10, 20, 30)
ACCURACY = {  # Table 1, percent
    MEAN_FIELD: (88.379, 93.217, 94.836, 95.432),
    "InfoNCE, K = 5": (88.423, 93.221, 94.899, 95.534),
    "InfoNCE, K = 10": (88.405, 93.220, 94.896, 95.540),
    "InfoNCE, K = 20": (88.408, 93.221, 94.905, 95.552),
}
SPREAD = 0.023  # their typical standard deviation
BEST = "InfoNCE, K = 20"
IMPORTANCE = "importance, K = 20"
STD, BROAD = 0.05, 0.5  # initial deviations


@dataclass(frozen=True)
class Table1Sizes:
    """Data, widths, methods, and how long; `slow`: the widths at which importance sampling is trained too."""

    source: str
    inputs: int
    widths: tuple[int, ...]
    ways: tuple[str, ...]
    slow: tuple[int, ...]
    steps: int
    replicas: int
    samples: int


ALL = (MEAN_FIELD, "InfoNCE, K = 5", "InfoNCE, K = 10", BEST, "Bethe")
SIZES = {
    "smoke": Table1Sizes(
        source="digits",
        inputs=64,
        widths=(5, 10),
        ways=(MEAN_FIELD, BEST, "Bethe"),
        slow=(5,),
        steps=28,
        replicas=3,
        samples=50,
    ),
    "short": Table1Sizes(
        source="digits", inputs=64, widths=WIDTHS, ways=ALL, slow=(5,), steps=560, replicas=10, samples=200
    ),
    "paper": Table1Sizes(
        source="mnist", inputs=784, widths=WIDTHS, ways=ALL, slow=(), steps=6000, replicas=10, samples=1000
    ),
}


def table1(settings: Settings) -> Outcome:
    """Table 1: test accuracy by width and method."""
    sizes = SIZES[settings.scale]
    rows = [_row(settings, sizes, width, STD) for width in sizes.widths]
    broad = _row(settings, sizes, sizes.widths[-1], BROAD)
    data = {"sizes": asdict(sizes), "rows": rows, "broad": broad, "published": ACCURACY}
    return Outcome(data, _claims(sizes, rows, broad))


def _row(settings: Settings, sizes: Table1Sizes, width: int, std: float) -> dict[str, Any]:
    results = compare(settings, _problem(sizes, width, std))
    gains = {
        key: {name: asdict(difference(results, name, of)) for name in results if name != MEAN_FIELD}
        for key, of in (("gain", "score"), ("gain_nll", "nll"))
    }
    return {"width": width, "std": std, "methods": results, **gains}


def draw_table1(data: Any) -> Figure:
    """Accuracy by width; the gain of each method over mean-field VI with its standard error; and in NLL."""
    figure, ((left, middle, right),) = panels(1, 3, f"Symmetrized VI on {data['sizes']['source']}", 3.2)
    style(left, "hidden units", "test accuracy")
    style(middle, "hidden units", "gain in accuracy, percent")
    style(right, "hidden units", "gain in test NLL, nats")
    table = [*data["rows"], data["broad"]]
    for k, name in enumerate(WAYS):
        places = [place for place, row in enumerate(table) if name in row["methods"]]
        rows = [table[place] for place in places]
        x = [place + 0.1 * (k - 2.5) for place in places]
        scores = [row["methods"][name]["score"] for row in rows]
        left.errorbar(
            x,
            [statistics.mean(each) for each in scores],
            [statistics.stdev(each) for each in scores],
            fmt="o",
            markersize=3,
            color=HUES[k],
            label=name,
        )
        if name == MEAN_FIELD:
            continue
        for axes, key, unit in ((middle, "gain", 100), (right, "gain_nll", -1)):
            values, errors = ([row[key][name][part] for row in rows] for part in ("difference", "error"))
            axes.errorbar(
                x, [unit * v for v in values], [abs(unit) * e for e in errors], fmt="o", markersize=3, color=HUES[k]
            )
        published = data["published"].get(name)
        if published is not None and data["sizes"]["source"] == "mnist":
            gains = [a - b for a, b in zip(published, data["published"][MEAN_FIELD], strict=True)]
            middle.plot(x[: len(gains)], gains, "x", color=HUES[k], markersize=5)
    for axes in (left, middle, right):
        axes.set_xticks(range(len(table)), [f"{row['width']}{', broad' if row is table[-1] else ''}" for row in table])
    for axes in (middle, right):
        axes.axhline(0, color=FAINT, linewidth=1)
    middle.set_title("x: published; bars: standard error", fontsize=8)
    legend(figure, left, 6)
    return figure


def _problem(sizes: Table1Sizes, width: int, std: float) -> VIComparison:
    ways = (*sizes.ways, IMPORTANCE) if width in sizes.slow else sizes.ways
    if std == BROAD:
        ways = (MEAN_FIELD, BEST, "Bethe")
    training = VISettings(sizes.steps, 100, 1e-3, "constant", initial_std=std)
    load = partial(_load, sizes.source, sizes.inputs, width)
    return VIComparison(f"{sizes.source}, {width} units", load, training, ways, sizes.replicas, sizes.samples)


def _load(source: str, inputs: int, width: int) -> tuple[nn.Module, Split, Split]:
    sets = data.load(source)
    return zoo.build(f"mlp:{inputs}-{width}-10"), sets.train, sets.test


def _claims(sizes: Table1Sizes, rows: list[dict[str, Any]], broad: dict[str, Any]) -> tuple[Claim, ...]:
    same = sizes.source == "mnist"
    gains = [row["gain"][BEST] for row in rows]
    significant = [gain["t"] < LEVEL for gain in gains]
    published = [a - b for a, b in zip(ACCURACY[BEST], ACCURACY[MEAN_FIELD], strict=True)]
    runs, draws = (
        [100 * statistics.stdev(row["methods"][MEAN_FIELD][key]) for row in rows] for key in ("score", "again")
    )
    short = [max(row["methods"][MEAN_FIELD]["short"]) for row in rows]
    bethe = [row["gain"]["Bethe"] for row in rows]
    wide = rows[-1]["methods"]
    steps = ", ".join(f"{name} {1e3 * row['step']:.2g}" for name, row in wide.items())
    return (
        Claim(
            "symmetrization with K = 20 raises the accuracy at every width",
            _percents(published),
            ", ".join(_gain(gain) for gain in gains),
            all(flag and gain["difference"] > 0 for flag, gain in zip(significant, gains, strict=True)),
            f"Percent, at widths {', '.join(str(row['width']) for row in rows)}: mean +- standard error of "
            f"{sizes.replicas} paired runs, and p by a t-test and by Wilcoxon's signed ranks."
            + ("" if same else f" On {sizes.source}, not MNIST."),
        ),
        Claim(
            "the gain grows with width",
            f"{published[0]:.3f} to {published[-1]:.3f}",
            f"{100 * gains[0]['difference']:.3f} to {100 * gains[-1]['difference']:.3f}",
            gains[-1]["difference"] > gains[0]["difference"] + 2 * max(gains[0]["error"], gains[-1]["error"]),
            "Holds if by more than two standard errors.",
        ),
        Claim(
            "accuracies vary by this much between runs (standard deviation, percent)",
            SPREAD,
            f"runs {_percents(runs)}; draws from one posterior {_percents(draws)}",
            None,
            "Section 5 says that the mean prediction is evaluated with different seeds. If the published "
            "deviations are of draws from one posterior, a chance difference between two trainings looks significant.",
        ),
        Claim(
            "equivalent modes overlap, so that symmetrization can matter",
            None,
            f"log|G| - I: at most {max(short):.2g} nats of {rows[-1]['methods'][MEAN_FIELD]['log_order']:.1f}",
            max(short) >= SEPARATE,
            "At the solutions of mean-field VI. Where it is zero on the whole way, the symmetrized bound is the "
            "ordinary one plus a constant, no gradient changes, and paired runs are the same to the last bit.",
        ),
        Claim(
            f"a broad start (initial deviation {BROAD:g}, {broad['width']} units), where they do overlap, changes that",
            None,
            f"K = 20 {_gain(broad['gain'][BEST])}, Bethe {_gain(broad['gain']['Bethe'])}; accuracy "
            f"{100 * statistics.mean(broad['methods'][MEAN_FIELD]['score']):.2f}, and "
            f"{100 * statistics.mean(wide[MEAN_FIELD]['score']):.2f} from {STD:g}",
            any(gain["t"] < LEVEL and gain["difference"] > 0 for gain in broad["gain"].values()),
            f"There log|G| - I is at most {max(broad['methods'][MEAN_FIELD]['short']):.2g} nats at the end.",
        ),
        Claim(
            "a better estimate of the entropy gains more",
            None,
            f"Bethe: {', '.join(_gain(gain) for gain in bethe)}",
            any(gain["t"] < LEVEL and gain["difference"] > 0 for gain in bethe),
            f"Milliseconds a step for {sizes.replicas} networks of {rows[-1]['width']} units: {steps}.",
        ),
    )


def _gain(gain: dict[str, float]) -> str:
    mean, error = 100 * gain["difference"], 100 * gain["error"]
    return f"{mean:+.3f} +- {error:.3f} (p {gain['t']:.2g}, {gain['wilcoxon']:.2g})"


def _percents(values: list[float]) -> str:
    return ", ".join(f"{value:.3f}" for value in values)


exhibit("gelberg2024/table1", "test accuracy on MNIST with and without symmetrization, by width", table1, draw_table1)
