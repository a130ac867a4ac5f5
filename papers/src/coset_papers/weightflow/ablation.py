"""What makes flows over networks work: one thing changed at a time, at an equal budget; and how large they must be."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from coset.plot.palette import HUES
from coset_papers.catalogue import exhibit
from coset_papers.outcome import Claim, Outcome, Record, without_repeated_notes
from coset_papers.plotting import INK, legend, panels, style
from coset_papers.settings import Settings
from coset_papers.weightflow.criteria import claim
from coset_papers.weightflow.measurements import collection_cost, cost, fresh, generated, whole
from coset_papers.weightflow.networks import SIZES, FlowSizes, title
from coset_papers.weightflow.plotting import SAMPLES_COLOUR, TRAINED_COLOUR, names, reach
from coset_papers.weightflow.published import FLOWS
from coset_papers.weightflow.study import FlowRecipe, Subject

BASE_FLOW = "chosen"  # what all variations have in common but one
NORMALIZED = "normalized"
OPTIMIZER, MUON, RISE = "optimizer", "Muon", 3
DECAY = "weight decay of networks"


@dataclass(frozen=True)
class Variation:
    """factor: what differs; name: how."""

    factor: str
    name: str
    subject: Subject
    recipe: FlowRecipe


def ablation(settings: Settings) -> Outcome:
    """Accuracy, loss and average of the samples of each variation."""
    sizes = SIZES[settings.scale]
    every = list(variations(sizes))
    subjects = dict.fromkeys(each.subject for each in every)
    sizes_of = {one: collection_cost(settings, one)["networks"] for one in subjects}
    ends = {one: fresh(settings, one) for one in subjects}
    rows = [
        _row(settings, sizes, each, sizes_of[each.subject]) | {"trained": ends[each.subject]["accuracy"]["mean"]}
        for each in every
    ]
    trained = ends[sizes.subject]
    data = {
        "title": title(sizes.subject),
        "base": asdict(sizes.ablation.base),
        "rows": rows,
        "trained": {"accuracy": trained["accuracy"], "loss": trained["loss"], "average": whole(trained)},
    }
    return Outcome(data, without_repeated_notes(list(ablation_claims(settings.scale, rows))))


def scaling(settings: Settings) -> Outcome:
    """Accuracy and loss of samples by the width of the transformer."""
    sizes = SIZES[settings.scale]
    base = sizes.ablation.base
    networks = collection_cost(settings, sizes.subject)["networks"]
    rows = []
    for width in sizes.ablation.widths:
        wide = replace(base, plan=replace(base.plan, architecture=replace(base.plan.architecture, width=width)))
        if wide != base:  # which the ablation has, too
            wide = replace(wide, matching=replace(base.matching, compile=False))
        one = Variation("width", str(width), sizes.subject, wide)
        rows.append({"width": width} | _row(settings, sizes, one, networks))
    trained = fresh(settings, sizes.subject)
    accuracies = [row["accuracy"]["mean"] for row in rows]
    claims = (
        claim(
            settings.scale,
            f"{title(sizes.subject)}: the wider the transformer of the flow, the better its samples",
            None,
            ", ".join(f"width {row['width']} {row['accuracy']['mean']:.4f}" for row in rows),
            accuracies == sorted(accuracies),
            f"At {_steps(rows[-1])} steps for each; fresh networks {trained['accuracy']['mean']:.4f}.",
        ),
    )
    data = {"title": title(sizes.subject), "rows": rows, "trained": {key: trained[key] for key in ("accuracy", "loss")}}
    return Outcome(data, claims)


def variations(sizes: FlowSizes) -> Iterator[Variation]:
    """The chosen flow, and those that differ from it in one thing."""
    subject, others = sizes.subject, sizes.ablation
    base, plan = others.base, others.base.plan
    yield Variation(BASE_FLOW, "", subject, base)
    yield Variation("population", f"{sizes.thesis.runs} runs, many iterations", sizes.thesis, others.trajectories)
    for count in others.populations:
        yield Variation("population", f"{count} networks", subject, _fewer(base, subject.runs, count))
    yield Variation("network", "relational", subject, others.relational)
    independent = replace(plan, coupling="independent")
    yield Variation("coupling", "independent", subject, replace(base, plan=independent))
    yield Variation("coupling", "optimal transport", subject, others.transport)
    yield Variation("geometry", "euclidean", subject, replace(base, plan=replace(plan, geometry="euclidean")))
    normalized = replace(base, plan=replace(plan, geometry="normalized"))
    yield Variation("geometry", NORMALIZED, subject, normalized)
    yield Variation("errors of outputs", "not counted", subject, replace(base, outputs=False))
    yield Variation("prediction", "end point", subject, replace(base, plan=replace(plan, predict="endpoint")))
    yield Variation("times", "all alike", subject, _weigh_times_alike(base))
    yield Variation("times", f"all alike, {NORMALIZED}", subject, _weigh_times_alike(normalized))
    matching = base.matching
    rate = RISE * (matching.rate or matching.RATES[matching.optimizer])
    yield Variation(OPTIMIZER, f"Adam, {RISE} times the rate", subject, _learn_by(base, "adam", rate))
    yield Variation(OPTIMIZER, MUON, subject, _learn_by(base, "muon", None))
    decayed = replace(subject, training=replace(subject.training, weight_decay=others.decay))
    yield Variation(DECAY, f"{others.decay:g}", decayed, base)


def ablation_claims(scale: str, rows: list[Record]) -> Iterator[Claim]:
    """What each factor does."""
    base = rows[0]["accuracy"]["mean"]
    note = (
        "One training of each, by the sign alone. Each flow takes about as many steps, of about the same time; "
        "relational networks and transport take longer for a step, and so fewer of them."
    )
    words = {
        "population": ("more networks, of independent runs, make better samples", None),
        "network": ("one token a unit is better than the relational transformer, in equal time", None),
        "coupling": ("coupling networks with their own starts is better than independent or OT coupling", None),
        "geometry": ("the geometric flow is the best", ", ".join(f"{name} {value}" for name, value in FLOWS.items())),
        "errors of outputs": ("counting errors of outputs makes better samples", None),
        "prediction": ("predicting velocities is better than predicting end points", None),
    }
    for factor, (text, published) in words.items():
        varied = [row for row in rows if row["factor"] == factor]
        if not varied:
            continue
        means = [row["accuracy"]["mean"] for row in varied]
        others = ", ".join(f"{row['name']} {mean:.4f}" for row, mean in zip(varied, means, strict=True))
        rising = factor != "population" or means[1:] == sorted(means[1:])
        yield claim(scale, text, published, f"chosen {base:.4f}; {others}", max(means) < base and rising, note)
    yield _alike(scale, rows, note)
    yield _faster(scale, rows, note)
    yield _forgetful(scale, rows, note)


def _alike(scale: str, rows: list[Record], note: str) -> Claim:
    """What it does to let all times count alike, of the chosen flow and of the one whose errors differ most by time."""
    means = {(row["factor"], row["name"]): row["accuracy"]["mean"] for row in rows}
    plain, alike = means["geometry", NORMALIZED], means["times", f"all alike, {NORMALIZED}"]
    return claim(
        scale,
        "letting all times of paths count alike makes the normalized flow better",
        None,
        f"{NORMALIZED} {plain:.4f}, with all times alike {alike:.4f}; chosen {means[BASE_FLOW, '']:.4f}, with all "
        f"times alike {means['times', 'all alike']:.4f}",
        alike > plain,
        note,
    )


def _faster(scale: str, rows: list[Record], note: str) -> Claim:
    means = {row["name"]: row["accuracy"]["mean"] for row in rows if row["factor"] in (BASE_FLOW, OPTIMIZER)}
    words = {name or "chosen, by Adam": mean for name, mean in means.items()}
    return claim(
        scale,
        "Muon learns faster than Adam",
        None,
        ", ".join(f"{name} {mean:.4f}" for name, mean in words.items()),
        max(means, key=means.__getitem__) == MUON,
        note,
    )


def _forgetful(scale: str, rows: list[Record], note: str) -> Claim:
    """What it does to the samples that networks decay more as they are trained, and forget where they began."""
    pairs = {
        row["factor"]: (row["accuracy"]["mean"], row["trained"]) for row in rows if row["factor"] in (BASE_FLOW, DECAY)
    }
    behind = {factor: trained - samples for factor, (samples, trained) in pairs.items()}
    decay = next(row["name"] for row in rows if row["factor"] == DECAY)
    return claim(
        scale,
        "networks that decay more as they are trained, and so forget their starts, are easier to generate",
        None,
        "; ".join(
            f"{name} {samples:.4f} of {trained:.4f}"
            for name, (samples, trained) in zip(("chosen", f"weight decay {decay}"), pairs.values(), strict=True)
        ),
        behind[DECAY] < behind[BASE_FLOW],
        f"By how far samples are behind networks that were trained in the same way. {note}",
    )


def _learn_by(recipe: FlowRecipe, optimizer: Literal["adam", "muon"], rate: float | None) -> FlowRecipe:
    return replace(recipe, matching=replace(recipe.matching, optimizer=optimizer, rate=rate))


def _weigh_times_alike(recipe: FlowRecipe) -> FlowRecipe:
    return replace(recipe, matching=replace(recipe.matching, level=True))


def _row(settings: Settings, sizes: FlowSizes, one: Variation, population: int) -> dict[str, Any]:
    settings.say(f"weightflow: {one.factor} {one.name}")
    costs = cost(settings, one.subject, one.recipe)
    samples = generated(settings, one.subject, one.recipe, sizes.count, sizes.fewer_steps)
    networks = one.recipe.networks or population
    matching = one.recipe.matching
    return {
        "factor": one.factor,
        "name": one.name,
        "networks": networks,
        "steps": matching.epochs * (networks // min(matching.batch_size, networks)),
        "accuracy": samples["accuracy"],
        "loss": samples["loss"],
        "average": whole(samples),
        **costs,
    }


def _fewer(base: FlowRecipe, whole: int, count: int) -> FlowRecipe:
    """As many steps on fewer networks."""
    batch = base.matching.batch_size
    epochs = round(base.matching.epochs * (whole // batch) / max(count // batch, 1))
    return replace(base, networks=count, matching=replace(base.matching, epochs=epochs))


def _steps(row: dict[str, Any]) -> int:
    steps: int = row["steps"]
    return steps


def draw_ablation(data: Any) -> Figure:
    """Accuracy and loss of each variation, with lines at those of the chosen flow and of fresh networks."""
    rows = data["rows"]
    figure, (row,) = panels(1, 2, f"One thing changed at a time: {data['title']}", 4.2)
    factors = list(dict.fromkeys(each["factor"] for each in rows))
    for axes, key, average, factor, words in zip(
        row, ("accuracy", "loss"), ("accuracy", "nll"), (100, 1), ("test accuracy (%)", "test loss (nats)"), strict=True
    ):
        for at, colour in ((data["trained"], TRAINED_COLOUR), (rows[0], SAMPLES_COLOUR)):
            axes.axvline(factor * at[key]["mean"], color=colour, linewidth=1, linestyle=(0, (4, 3)))
        for y, each in enumerate(rows):
            colour = SAMPLES_COLOUR if y == 0 else HUES[2 + factors.index(each["factor"]) % 7]
            reach(axes, y, each[key], colour, factor)
            axes.plot(
                factor * each["average"][average], y, "D", color=colour, markerfacecolor="white", markersize=5, zorder=3
            )
        style(axes, words, "")
    names(row[0], [f"{each['factor']}: {each['name']}" if each["name"] else each["factor"] for each in rows])
    names(row[1], [""] * len(rows))
    plain: dict[str, Any] = {"color": INK, "linestyle": "none"}
    handles = [
        Line2D([], [], marker="o", label="mean, nine tenths", **plain),
        Line2D([], [], marker="D", markerfacecolor="white", label="averaged predictions", **plain),
        Line2D([], [], color=TRAINED_COLOUR, linestyle=(0, (4, 3)), label="fresh networks"),
        Line2D([], [], color=SAMPLES_COLOUR, linestyle=(0, (4, 3)), label="chosen"),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=4, frameon=False, fontsize=8)
    return figure


def draw_scaling(data: Any) -> Figure:
    """By width, with fresh networks as a line."""
    figure, (row,) = panels(1, 2, f"Samples by the width of the transformer: {data['title']}")
    widths = [each["width"] for each in data["rows"]]
    for axes, key, factor, words in zip(
        row, ("accuracy", "loss"), (100, 1), ("test accuracy (%)", "test loss (nats)"), strict=True
    ):
        axes.axhline(
            factor * data["trained"][key]["mean"], color=TRAINED_COLOUR, linestyle=(0, (4, 3)), label="fresh networks"
        )
        means = [factor * each[key]["mean"] for each in data["rows"]]
        axes.plot(widths, means, "o-", color=SAMPLES_COLOUR, label="samples, mean")
        low, high = ([factor * each[key]["quantiles"][level] for each in data["rows"]] for level in ("0.05", "0.95"))
        axes.fill_between(widths, low, high, color=SAMPLES_COLOUR, alpha=0.15, linewidth=0, label="nine tenths of them")
        axes.set_xscale("log", base=2)
        axes.set_xticks(widths, [str(width) for width in widths])
        style(axes, "width", words)
    legend(figure, row[0], 3)
    return figure


exhibit("weightflow/ablation", "what makes the flow work, one thing changed at a time", ablation, draw_ablation)
exhibit("weightflow/scaling", "accuracy of samples by the width of the transformer", scaling, draw_scaling)
