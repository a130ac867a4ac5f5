"""Networks 784-10-10 for MNIST: the table of the thesis, averages of their predictions, and whether they are new."""

from __future__ import annotations

from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from coset.plot.palette import HUES
from coset.populations.novelty import MEMORISED as QUANTILE
from coset_papers.catalogue import exhibit
from coset_papers.outcome import Claim, Outcome, Record, without_repeated_notes
from coset_papers.plotting import FAINT, INK, legend, panels, style
from coset_papers.settings import Settings
from coset_papers.weightflow.criteria import CLOSE, ERRORS, MEMORISED, MINUTES, as_good, claim, equal
from coset_papers.weightflow.measurements import HEUN, beside, closeness, collection_cost, cost, fresh, generated, whole
from coset_papers.weightflow.networks import SIZES, FlowSizes, absent, title
from coset_papers.weightflow.plotting import PUBLISHED_COLOUR, SAMPLES_COLOUR, TRAINED_COLOUR, histograms, names, reach
from coset_papers.weightflow.published import AVERAGED, FLOWS, HOURS, TRAINED
from coset_papers.weightflow.study import FlowRecipe, Subject

# What stands over a column, the name of the number, and its form.
COLUMNS = (
    ("memorised", "memorised", ".1%"),
    ("diversity", "diversity", ".3f"),
    ("minutes", "minutes", ".1f"),
    ("samples/s", "per_second", ".0f"),
    ("GiB", "memory", ".1f"),
)


def table2(settings: Settings) -> Outcome:
    """Generated networks beside trained ones: ours, and the thesis's own way in minutes."""
    sizes = SIZES[settings.scale]
    networks = {"ours": collection_cost(settings, sizes.subject), "thesis": collection_cost(settings, sizes.thesis)}
    trained = fresh(settings, sizes.subject)
    counts, fewer = (sizes.count, sizes.near, sizes.steps), (sizes.near, sizes.near, sizes.fewer_steps)
    ours = {name: _flow_row(settings, counts, sizes.subject, each, trained) for name, each in sizes.ours.items()}
    theirs = {name: _flow_row(settings, fewer, sizes.thesis, each, trained) for name, each in sizes.theirs.items()}
    rows: list[Record] = [
        {"name": "trained networks", "published": TRAINED} | _row(trained),
        *({"name": f"{name}, ours"} | row for name, row in ours.items()),
        *({"name": f"{name}, as in the thesis", "published": FLOWS[name]} | row for name, row in theirs.items()),
    ]
    data = {
        "title": title(sizes.subject),
        "networks": networks,
        "rows": rows,
        "solvers": _solvers(settings, sizes, next(iter(ours.values()))),
        "hours": HOURS,
    }
    return Outcome(
        data, without_repeated_notes([*_claims(settings.scale, sizes, rows[0], ours), *_thesis(settings, theirs)])
    )


def averages(settings: Settings) -> Outcome:
    """Accuracy and loss of the averaged predictions of more and more samples."""
    sizes = SIZES[settings.scale]
    best = next(iter(sizes.ours.values()))
    samples = generated(settings, sizes.subject, best, sizes.count, sizes.steps)
    trained = fresh(settings, sizes.subject)
    ours, theirs = whole(samples), whole(trained)
    claims = (
        claim(
            settings.scale,
            f"{title(sizes.subject)}: averaged predictions of many samples are better than those of one",
            f"about {AVERAGED}, one {max(FLOWS.values())}",
            f"{ours['count']} samples {ours['accuracy']:.4f}, one {samples['averages'][0]['accuracy']:.4f}",
            ours["accuracy"] > samples["averages"][0]["accuracy"]
            and (ours["accuracy"] >= AVERAGED or bool(absent(sizes.subject))),
            absent(sizes.subject) or f"At least the published {AVERAGED}.",
        ),
        average_claim(settings.scale, beside(samples, trained), ours, theirs, f"about {AVERAGED}"),
    )
    data = {"title": title(sizes.subject), "samples": samples["averages"], "trained": trained["averages"]}
    return Outcome(data | {"published": AVERAGED}, without_repeated_notes(claims))


def novelty(settings: Settings) -> Outcome:
    """Distances to the nearest training network, of samples and of networks of which it is known what they are."""
    sizes = SIZES[settings.scale]
    distances = closeness(settings, sizes.subject, next(iter(sizes.ours.values())), sizes.near, sizes.steps)
    return Outcome(
        {"title": title(sizes.subject), **distances}, without_repeated_notes(novelty_claims(settings.scale, distances))
    )


def average_claim(
    scale: str, difference: dict[str, Any], ours: dict[str, Any], theirs: dict[str, Any], published: str | None
) -> Claim:
    """Whether the averages of all samples and of all trained networks, which differ by `difference`, are equal."""
    return claim(
        scale,
        "the average of samples predicts as well as the average of trained networks",
        published,
        f"{ours['accuracy']:.4f} of {ours['count']} samples, {theirs['accuracy']:.4f} of {theirs['count']} trained; "
        f"{difference['better']} examples that only the first has right, {difference['worse']} only the second; "
        f"loss {ours['nll']:.3f} and {theirs['nll']:.3f}",
        equal(difference["better"], difference["worse"]),
        f"As well: within {ERRORS:g} standard errors over the test examples.",
    )


def learning_claim(scale: str, costs: dict[str, Any], per_second: float, published: str | None) -> Claim:
    """Whether a flow is learned in time; costs: what that took, as `FlowRecipe.cost` has it."""
    return claim(
        scale,
        f"learning takes {MINUTES:g} minutes at most",
        published,
        f"{costs['minutes']:.1f} minutes and {costs['memory']:.1f} GiB; {per_second:.0f} samples a second",
        costs["minutes"] <= MINUTES,
    )


def novelty_claims(scale: str, distances: dict[str, Any]) -> list[Claim]:
    """Whether samples are as new as fresh runs, and no copies."""
    kinds = distances["kinds"]
    middle = {kind: _median(one["distance"]) for kind, one in kinds.items()}
    telling = min(kinds["fresh"]["distance"]) > max(kinds["noisy"]["distance"])
    return [
        claim(
            scale,
            "samples are as new as fresh training runs",
            None,
            f"{distances['memorised']:.1%} are closer to a training network than the closest {QUANTILE:.0%} of fresh "
            "runs",
            distances["memorised"] <= MEMORISED,
            f"As new: at most {MEMORISED:.0%}. Distances are modulo permutations and positive factors of units.",
        ),
        claim(
            scale,
            "no sample is as close to a training network as a copy with a tenth of noise",
            None,
            f"median distance {middle['samples']:.3g}, the least {min(kinds['samples']['distance']):.3g}; copies "
            f"{middle['noisy']:.3g}, fresh runs {middle['fresh']:.3g}, midpoints {middle['midpoints']:.3g}",
            min(kinds["samples"]["distance"]) > max(kinds["noisy"]["distance"]) if telling else None,
            "" if telling else "No verdict where fresh runs are as close themselves: nobody copied those.",
        ),
    ]


def _solvers(settings: Settings, sizes: FlowSizes, row: Record) -> list[dict[str, Any]]:
    """The first flow, of which one row is known, by method and steps."""
    recipe = next(iter(sizes.ours.values()))
    rows = [_solved(HEUN, sizes.steps, row)]
    for method, steps in sizes.solvers:
        rows.append(_solved(method, steps, generated(settings, sizes.subject, recipe, sizes.count, steps, method)))
    return rows


def _solved(method: str, steps: int, row: Record) -> dict[str, Any]:
    calls = steps * (2 if method == HEUN else 1)
    means = {key: row[key]["mean"] for key in ("accuracy", "loss")}
    return {"method": method, "steps": steps, "calls": calls, **means, "per_second": row["per_second"]}


def _flow_row(
    settings: Settings, counts: tuple[int, int, int], subject: Subject, recipe: FlowRecipe, trained: Record
) -> Record:
    """counts: samples that are measured, those whose nearest networks are looked for, and steps of Heun's method."""
    count, near, steps = counts
    costs = cost(settings, subject, recipe)
    samples = generated(settings, subject, recipe, count, steps)
    distances = closeness(settings, subject, recipe, near, steps)
    more = {"memorised": distances["memorised"], "per_second": samples["per_second"]}
    return _row(samples) | costs | beside(samples, trained) | more


def _row(record: dict[str, Any]) -> Record:
    return {**{key: record[key] for key in ("accuracy", "loss", "diversity")}, "average": whole(record)}


def _claims(scale: str, sizes: FlowSizes, trained: Record, ours: dict[str, Record]) -> list[Claim]:
    where, theirs = title(sizes.subject), trained["accuracy"]["mean"]
    best = next(iter(ours))
    row = ours[best]
    means = {name: each["accuracy"]["mean"] for name, each in ours.items()}
    return [
        claim(
            scale,
            f"{where}: generated networks are as accurate as trained ones",
            f"{max(FLOWS.values())}, trained {TRAINED}",
            f"{', '.join(f'{name} {mean:.4f}' for name, mean in means.items())}, trained {theirs:.4f}",
            as_good(means[best], theirs),
            f"As accurate: less than {100 * CLOSE:g} points below, for the first. {_networks(sizes)}",
        ),
        claim(
            scale,
            "their losses are those of trained ones, too",
            "about 1.4 where weights are normalised, the last layer's too",
            f"{row['loss']['mean']:.3f}, trained {trained['loss']['mean']:.3f}",
            None,
            "The last layer is not normalised here, as its norm is no symmetry: it is the temperature of the softmax.",
        ),
        average_claim(scale, row, row["average"], trained["average"], f"about {AVERAGED}"),
        learning_claim(scale, row, row["per_second"], HOURS),
        claim(
            scale,
            "samples are as new as fresh training runs",
            None,
            f"{row['memorised']:.1%} are closer to a training network than the closest {QUANTILE:.0%} of fresh runs",
            row["memorised"] <= MEMORISED,
            f"As new: at most {MEMORISED:.0%}.",
        ),
    ]


def _thesis(settings: Settings, theirs: dict[str, Record]) -> list[Claim]:
    return [
        claim(
            settings.scale,
            f"{name}, learned as in the thesis: accuracy of samples",
            FLOWS[name],
            f"{row['accuracy']['mean']:.3f} after {row['minutes']:.1f} minutes; memorised {row['memorised']:.1%}",
            None,
            f"The thesis took {HOURS}.",
        )
        for name, row in theirs.items()
    ]


def _networks(sizes: FlowSizes) -> str:
    return f"Flows learn from {sizes.subject.runs} networks."


def _median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]


def draw_table2(data: Any) -> Figure:
    """Accuracy and loss of each kind of network, the other columns as numbers, and solvers."""
    rows = data["rows"]
    figure, ((left, middle), (table, solvers)) = panels(2, 2, f"Generated and trained networks: {data['title']}", 3.2)
    figure.set_figwidth(9.6)
    for y, row in enumerate(rows):
        colour = TRAINED_COLOUR if y == 0 else SAMPLES_COLOUR if row["name"].endswith("ours") else HUES[4]
        reach(left, y, row["accuracy"], colour, 100)
        left.plot(100 * row["average"]["accuracy"], y, "D", color=colour, markerfacecolor="white", markersize=6)
        reach(middle, y, row["loss"], colour)
        middle.plot(row["average"]["nll"], y, "D", color=colour, markerfacecolor="white", markersize=6)
        if row.get("published") is not None:
            left.plot(100 * row["published"], y, "x", color=PUBLISHED_COLOUR, markersize=6)
    labels = [row["name"].replace(", as in the thesis", ",\nas in the thesis") for row in rows]
    names(left, labels)
    names(middle, [""] * len(rows))
    style(left, "test accuracy (%)", "")
    middle.set_xscale("log")
    style(middle, "test loss (nats)", "")
    _table(table, rows, labels)
    _draw_solvers(solvers, data["solvers"])
    plain: dict[str, Any] = {"color": INK, "linestyle": "none"}
    handles = [
        Line2D([], [], marker="o", label="mean, and nine tenths of the networks", **plain),
        Line2D([], [], marker="D", markerfacecolor="white", label="averaged predictions of all", **plain),
        Line2D([], [], marker="x", label="published", **plain),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False, fontsize=8)
    return figure


def draw_averages(data: Any) -> Figure:
    """Accuracy on the left, loss on the right."""
    figure, (row,) = panels(1, 2, f"Averaged predictions of many networks: {data['title']}")
    for axes, key, factor, words in zip(
        row, ("accuracy", "nll"), (100, 1), ("test accuracy (%)", "test loss (nats)"), strict=True
    ):
        for name, colour, label in (
            ("trained", TRAINED_COLOUR, "fresh networks"),
            ("samples", SAMPLES_COLOUR, "samples"),
        ):
            rows = data[name]
            counts = [each["count"] for each in rows]
            values = [factor * each[key] for each in rows]
            errors = [factor * (each[f"{key}_error"] or 0.0) for each in rows]
            axes.errorbar(counts, values, errors, fmt="o-", color=colour, markersize=4, capsize=2, label=label)
        axes.set_xscale("log", base=2)
        style(axes, "networks", words)
    row[0].axhline(100 * data["published"], color=FAINT, linestyle=(0, (4, 3)), label="published, many samples")
    legend(figure, row[0], 3)
    return figure


def draw_novelty(data: Any) -> Figure:
    """Histograms of distances."""
    figure, ((axes,),) = panels(1, 1, f"How new samples are: {data['title']}", 3.4)
    figure.set_figwidth(6.4)
    histograms(axes, data["kinds"])
    bound = "" if data["exact"] else ", at most"
    style(axes, f"distance to the nearest training network, modulo symmetry{bound}", "share of networks")
    legend(figure, axes, 3)
    return figure


def _table(axes: Axes, rows: list[Any], labels: list[str]) -> None:
    axes.set_axis_off()
    axes.set_xlim(0, 1)
    axes.set_ylim(len(rows) - 0.5, -1.2)
    places = [0.4 + 0.15 * k for k in range(len(COLUMNS))]
    for x, (words, _, _) in zip(places, COLUMNS, strict=True):
        axes.text(x, -0.8, words, ha="right", va="center", fontsize=7, color=FAINT)
    for y, (row, label) in enumerate(zip(rows, labels, strict=True)):
        axes.text(0, y, label, ha="left", va="center", fontsize=7, color=INK, linespacing=1.0)
        for x, (_, key, form) in zip(places, COLUMNS, strict=True):
            value = row["diversity"]["pairwise"] if key == "diversity" else row.get(key)
            axes.text(x, y, "-" if value is None else f"{value:{form}}", ha="right", va="center", fontsize=7, color=INK)


def _draw_solvers(axes: Axes, rows: list[Any]) -> None:
    for method, colour in (("heun", SAMPLES_COLOUR), ("euler", HUES[2])):
        line = sorted((row for row in rows if row["method"] == method), key=lambda row: row["calls"])
        axes.plot(
            [row["calls"] for row in line], [100 * row["accuracy"] for row in line], "o-", color=colour, label=method
        )
    calls = sorted({row["calls"] for row in rows})
    axes.set_xscale("log")
    axes.set_xticks(calls, [str(count) for count in calls])
    axes.minorticks_off()
    style(axes, "calls of the field for a sample", "test accuracy (%)", "by solver")
    axes.legend(frameon=False, fontsize=8)


exhibit("weightflow/table2", "generated networks beside trained ones, on MNIST", table2, draw_table2)
exhibit("weightflow/averages", "averaged predictions of more and more generated networks", averages, draw_averages)
exhibit("weightflow/novelty", "distances to the nearest training network", novelty, draw_novelty)
