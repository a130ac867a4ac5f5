"""Networks 30-16-16-2 for breast cancer: nine flows of the thesis, and ours."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, NullFormatter
from torch import Tensor

from coset import Collect
from coset.flow.coordinates import Geometry
from coset.flow.matching import CouplingName, FlowPlan, Matching
from coset.flow.velocity_network import Architecture
from coset.plot.palette import HUES
from coset.populations.scores import scores
from coset_papers.catalogue import exhibit
from coset_papers.outcome import Claim, Outcome, Record, without_repeated_notes
from coset_papers.plotting import FAINT, INK, panels, style
from coset_papers.settings import Settings
from coset_papers.weightflow.criteria import ERRORS, claim
from coset_papers.weightflow.measurements import cost
from coset_papers.weightflow.plotting import names, reach
from coset_papers.weightflow.study import FlowRecipe, Subject, draw_samples, measure_networks, measure_novelty

CLOSE = 0.01  # of accuracies: a test example in 113, or 5 training examples
MEMORISED = 0.05
DEVIATION = math.sqrt(0.1)  # of N(0, 0.1 I); see `barriers`
GEOMETRIES: dict[Geometry, str] = {"euclidean": "Euclidean", "normalized": "Normalized", "geometric": "Geometric"}
UNALIGNED, ALIGNED, TRANSPORT, OURS = "unaligned", "aligned", "ot", "ours"
# Accuracy and loss of the thesis, whose flows are aligned. It does not say on which examples.
PUBLISHED = {"euclidean": (0.998, 0.070), "normalized": (0.989, 0.030), "geometric": (0.993, 0.018)}
TRAINED = (0.992, 0.048)
# What they are called, where they stand in a row, and their colour.
SPLITS = {"test": ("test", -0.14, HUES[1]), "train": ("training", 0.14, HUES[0])}
# What stands over a column, and how the number of a row is written.
COLUMNS: tuple[tuple[str, Callable[[Any], str]], ...] = (
    ("memorised", lambda row: f"{row['novelty']['memorised']:.1%}"),
    ("to nearest", lambda row: f"{distance(row, 'samples'):.2f}"),
    ("fresh runs", lambda row: f"{distance(row, 'fresh'):.2f}"),
    ("minutes", lambda row: f"{row['minutes']:.1f}"),
    ("weights", lambda row: f"{row['parameters']:,}"),
)


@dataclass(frozen=True)
class FlowKind:
    """Which start belongs to which network, whether networks are aligned to the first, and what stands in tables."""

    title: str
    coupling: CouplingName
    align: bool | None


KINDS = {
    UNALIGNED: FlowKind("unaligned", "independent", False),
    ALIGNED: FlowKind("aligned", "independent", True),
    TRANSPORT: FlowKind("aligned, OT", "ot", True),
    OURS: FlowKind("ours", "training", None),
}


@dataclass(frozen=True)
class CancerSizes:
    """Of one scale.

    subject: the networks of the thesis, iterations of few runs. many: about as many of which each is the end of a run
    of its own, for our flows: coupled with their own starts, iterations would have no more starts than there are runs.
    architecture, matching: of all flows; those of the thesis predict end points at times ~ Beta(1, 2) and have noise on
    their paths, ours are learned by Muon. samples: that are measured, drawn in `steps` of Heun's method. near: those
    whose nearest training network is looked for. networks: between which barriers are measured.
    """

    subject: Subject
    many: Subject
    architecture: Architecture
    matching: Matching
    samples: int
    steps: int
    near: int
    networks: int

    def recipe(self, geometry: Geometry, kind: str) -> FlowRecipe:
        """One of the flows."""
        how, ours = KINDS[kind], kind == OURS
        plan = FlowPlan(geometry, how.coupling, self.architecture, "velocity" if ours else "endpoint", align=how.align)
        options = {"optimizer": "muon", "rate": None} if ours else {"times": "beta", "noise": 1e-3}
        return FlowRecipe(plan, replace(self.matching, **options), outputs=ours)


RUNS = Collect("adam", 1e-3, weight_decay=0.0, epochs=50, batch_size=32, schedule="constant", every=4, skip=10)
SUBJECT = Subject("mlp:30-16-16-2", "breast-cancer", 100, RUNS, fresh=256, deviation=DEVIATION)
MANY = replace(SUBJECT, runs=14000, training=replace(RUNS, every=0, skip=0))
MATCHING = Matching(epochs=2, batch_size=32, optimizer="adam", rate=1e-3, warm_up=100, average=0.99)
SIZES = {
    "smoke": CancerSizes(
        replace(SUBJECT, runs=12, fresh=16, training=replace(RUNS, rate=1e-2, epochs=4, skip=2)),
        replace(MANY, runs=64, fresh=16, training=replace(MANY.training, rate=1e-2, epochs=4)),
        Architecture(width=16, depth=1, heads=2),
        replace(MATCHING, warm_up=2),
        samples=16,
        steps=2,
        near=8,
        networks=12,
    ),
    "short": CancerSizes(
        replace(SUBJECT, runs=25),
        replace(MANY, runs=3500),
        Architecture(width=32, depth=2, heads=4),
        MATCHING,
        128,
        8,
        near=16,
        networks=100,
    ),
    "paper": CancerSizes(
        SUBJECT,
        MANY,
        Architecture(width=64, depth=3, heads=4),
        replace(MATCHING, epochs=6),
        256,
        16,
        near=256,
        networks=250,
    ),
}


def table1(settings: Settings) -> Outcome:
    """Mean accuracy and loss of generated networks, of each geometry and kind of flow, beside trained ones."""
    sizes = SIZES[settings.scale]
    networks = _networks(settings, sizes)
    flows = {geometry: {kind: _flow(settings, sizes, geometry, kind) for kind in KINDS} for geometry in GEOMETRIES}
    data = {
        "title": "breast cancer, 30-16-16-2",
        "networks": networks,
        "flows": flows,
        "geometries": GEOMETRIES,
        "kinds": {kind: how.title for kind, how in KINDS.items()},
        "published": PUBLISHED,
        "published_trained": TRAINED,
        "subject": asdict(sizes.subject),
        "recipe": sizes.recipe("geometric", OURS).key(),
    }
    return Outcome(data, without_repeated_notes(list(flow_claims(settings.scale, networks, flows, _how(sizes)))))


def flow_claims(
    scale: str, networks: Mapping[str, Record], flows: Mapping[Geometry, Mapping[str, Record]], how: str
) -> Iterator[Claim]:
    """What the table says: of trained networks, of the flows of the thesis, and of ours."""
    trained = networks["kept"]
    yield claim(
        scale,
        "trained networks: accuracy / loss",
        _pair(TRAINED),
        f"{_both(trained)}; at the end of training {_both(networks['fresh'])}",
        abs(trained["train"]["accuracy"]["mean"] - TRAINED[0]) <= CLOSE,
        f"Within {CLOSE:g} of the published accuracy, on the training examples. The thesis does not say on which "
        "examples it measures, nor batch size and rate: 32 and 1e-3 here, chosen for their barriers.",
    )
    for geometry, words in GEOMETRIES.items():
        rows = flows[geometry]
        yield claim(
            scale,
            f"{words}, aligned: generated networks are about as accurate as trained ones",
            f"{_pair(PUBLISHED[geometry])}, trained {_pair(TRAINED)}",
            f"{_both(rows[ALIGNED])}; with OT {_both(rows[TRANSPORT])}",
            _test(rows[ALIGNED]) >= _test(trained) - CLOSE,
            f"As accurate: at most {CLOSE:g} below the trained ones on the test examples. {how}",
        )
    for one, other, words in (
        (ALIGNED, UNALIGNED, "alignment makes generated networks more accurate"),
        (TRANSPORT, ALIGNED, "and optimal transport on top of it"),
        (OURS, TRANSPORT, "our flow is more accurate than all three of the thesis"),
    ):
        others = [TRANSPORT, ALIGNED, UNALIGNED] if one == OURS else [other]
        yield claim(
            scale,
            f"{words}, in every geometry",
            None,
            "; ".join(f"{name} {_steps(flows[g], [one, *others])}" for g, name in GEOMETRIES.items()),
            all(above(flows[g][one], flows[g][each]) for g in GEOMETRIES for each in others),
            f"Test accuracy; more: by over {ERRORS:g} standard errors over the networks.",
        )
    yield claim(
        scale,
        "our flow: generated networks are about as accurate as trained ones, in every geometry",
        None,
        "; ".join(f"{name} {_both(flows[g][OURS])}" for g, name in GEOMETRIES.items())
        + f"; trained {_both(networks['fresh'])}",
        all(_test(flows[g][OURS]) >= _test(networks["fresh"]) - CLOSE for g in GEOMETRIES),
        f"As accurate: at most {CLOSE:g} below, on the test examples, networks at the end of their training, which is "
        "what our flow learns from: each of a run of its own and coupled with its start, errors of outputs count, and "
        "the optimizer is Muon.",
    )
    yield claim(
        scale,
        "samples are as new as fresh runs",
        None,
        "memorised: " + "; ".join(f"{name} {_memorised(flows[g])}" for g, name in GEOMETRIES.items()),
        all(row["novelty"]["memorised"] <= MEMORISED for rows in flows.values() for row in rows.values()),
        f"As new: at most {MEMORISED:.0%} of the samples are closer to a training network, modulo symmetry, than the "
        "closest 1% of fresh runs. Those are at the end of their training; the networks that flows of the thesis learn "
        "from are iterations of few runs, from the eleventh epoch on.",
    )
    yield claim(
        scale,
        "no sample is as close to a training network as a copy with a tenth of noise",
        None,
        "; ".join(f"{name} {_distances(flows[g][OURS])}" for g, name in GEOMETRIES.items()),
        all(
            distance(row, "samples", "least") > distance(row, "noisy", "largest")
            for rows in flows.values()
            for row in rows.values()
        ),
        "Of all flows; the distances are those of ours.",
    )


def above(one: Record, other: Record) -> bool:
    """Whether the mean test accuracy is more than `ERRORS` standard errors of the difference above the other's."""
    accuracies = [row["test"]["accuracy"] for row in (one, other)]
    error = math.sqrt(sum((each["std"] or 0.0) ** 2 / each["n"] for each in accuracies))
    return bool(accuracies[0]["mean"] - accuracies[1]["mean"] > ERRORS * error)


def _networks(settings: Settings, sizes: CancerSizes) -> dict[str, Record]:
    """The networks that flows learn from, and others at the end of their training."""
    subject = sizes.subject

    def compute() -> dict[str, Record]:
        population, fresh = subject.population(settings), subject.unseen(settings)
        return {
            "kept": _measure(settings, subject, population.states),
            "fresh": _measure(settings, subject, fresh.states),
        }

    record: dict[str, Record] = settings.keep("weightflow-cancer-networks", compute, subject=asdict(subject))
    return record


def _flow(settings: Settings, sizes: CancerSizes, geometry: Geometry, kind: str) -> Record:
    """What a flow costs, and what is measured of its samples."""
    subject, recipe = sizes.many if kind == OURS else sizes.subject, sizes.recipe(geometry, kind)
    costs = cost(settings, subject, recipe)

    def compute() -> Record:
        samples, rate = draw_samples(settings, recipe.flow(settings, subject), sizes.samples, sizes.steps)
        some = {name: x[: sizes.near] for name, x in samples.items()}
        return _measure(settings, subject, samples) | {
            "per_second": rate,
            "novelty": json.loads(measure_novelty(settings, subject, some).to_json()),
        }

    key = {"subject": asdict(subject), "recipe": recipe.key(), "samples": sizes.samples, "steps": sizes.steps}
    record: Record = settings.keep("weightflow-cancer-flow", compute, **key, near=sizes.near)
    return record | {"minutes": costs["minutes"], "parameters": costs["parameters"]}


def _measure(settings: Settings, subject: Subject, population: dict[str, Tensor]) -> Record:
    """Accuracies and losses on both splits."""
    model, train = subject.build().to(settings.device), subject.images(settings).train
    values = scores(population, model, train, device=settings.device)
    assert values.accuracies is not None
    return {
        "test": measure_networks(settings, subject, population, average=False),
        "train": {"accuracy": values.accuracies.record(), "loss": values.losses.record()},
    }


def _how(sizes: CancerSizes) -> str:
    """How flows were learned, where the thesis did otherwise."""
    network = sizes.architecture
    return (
        f"The velocity network is a transformer of one token a unit (width {network.width}, {network.depth} layers) in "
        "place of the relational one, which takes three times as long a step; all flows are learned for "
        f"{sizes.matching.epochs} passes over the networks; the thesis took hours on a GPU. "
        "Published losses of Normalized and Geometric flows are of networks whose last layer was normalised, too."
    )


def _test(row: Record) -> float:
    return float(row["test"]["accuracy"]["mean"])


def _pair(values: tuple[float, float]) -> str:
    return f"{values[0]:.3f} / {values[1]:.3f}"


def _both(row: Record) -> str:
    """Means on both splits."""
    each = ((row[split]["accuracy"]["mean"], row[split]["loss"]["mean"]) for split in ("test", "train"))
    test, train = map(_pair, each)
    return f"test {test}, training {train}"


def _steps(rows: Mapping[str, Record], kinds: list[str]) -> str:
    return ", ".join(f"{KINDS[kind].title} {_test(rows[kind]):.3f}" for kind in kinds)


def _distances(row: Record) -> str:
    least, mean = (distance(row, "samples", key) for key in ("least", "mean"))
    fresh, noisy = (distance(row, kind) for kind in ("fresh", "noisy"))
    return f"on average {mean:.2f}, the least {least:.2f}, fresh runs {fresh:.2f}, copies {noisy:.2f}"


def distance(row: Record, kind: str, key: str = "mean") -> float:
    """To the nearest training network."""
    return float(row["novelty"]["kinds"][kind]["distance"][key])


def _memorised(rows: Mapping[str, Record]) -> str:
    return ", ".join(f"{KINDS[kind].title} {row['novelty']['memorised']:.1%}" for kind, row in rows.items())


def draw_table1(data: Any) -> Figure:
    """Accuracy and loss of each flow on both splits, trained networks on top, and the other columns as numbers."""
    rows = [
        ("trained", data["networks"]["kept"], data["published_trained"]),
        ("at the end of training", data["networks"]["fresh"], None),
    ]
    for geometry, flows in data["flows"].items():
        for kind, row in flows.items():
            words = data["kinds"][kind].replace(", errors", ",\nerrors")
            published = data["published"][geometry] if kind == "aligned" else None
            rows.append((f"{data['geometries'][geometry]}, {words}", row, published))
    figure, ((left, middle, table),) = panels(1, 3, f"Generated and trained networks: {data['title']}", 6.0)
    figure.set_figwidth(12.5)
    for y, (_, row, published) in enumerate(rows):
        for split, (_, aside, colour) in SPLITS.items():
            reach(left, y + aside, row[split]["accuracy"], colour, 100)
            reach(middle, y + aside, row[split]["loss"], colour)
        if published is not None:
            left.plot(100 * published[0], y, "x", color=INK, markersize=7)
            middle.plot(published[1], y, "x", color=INK, markersize=7)
    names(left, [label for label, _, _ in rows])
    names(middle, [""] * len(rows))
    style(left, "accuracy (%)", "")
    style(middle, "loss (nats)", "")
    middle.set_xscale("log")
    middle.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    middle.xaxis.set_major_formatter("{x:g}")
    middle.xaxis.set_minor_formatter(NullFormatter())
    _table(table, [row for _, row, _ in rows])
    plain: dict[str, Any] = {"linestyle": "none"}
    handles = [
        Line2D([], [], marker="o", color=colour, label=f"{words} examples: mean, and nine tenths", **plain)
        for words, _, colour in SPLITS.values()
    ]
    handles.append(Line2D([], [], marker="x", color=INK, label="published", **plain))
    figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False, fontsize=8)
    return figure


def _table(axes: Axes, rows: list[Any]) -> None:
    axes.set_axis_off()
    axes.set_xlim(0, 1)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    for k, (words, form) in enumerate(COLUMNS):
        x = (k + 1) / len(COLUMNS)
        axes.text(x, 1, words, ha="right", va="center", fontsize=8, color=FAINT)
        for y, row in enumerate(rows):
            if "novelty" in row:
                axes.text(x, y, form(row), ha="right", va="center", fontsize=8, color=INK)


exhibit("weightflow/table1", "nine flows of networks for breast cancer, and ours", table1, draw_table1)
