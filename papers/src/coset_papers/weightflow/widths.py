"""Networks of another width than the flow has seen."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import torch
from matplotlib.figure import Figure

from coset import Flow, on_epoch
from coset.core import state as states
from coset.plot.palette import HUES
from coset_papers.catalogue import exhibit
from coset_papers.ledger import seconds_of
from coset_papers.outcome import Outcome, Record, without_repeated_notes
from coset_papers.plotting import legend, panels, style
from coset_papers.settings import Settings
from coset_papers.weightflow.criteria import claim
from coset_papers.weightflow.measurements import fresh
from coset_papers.weightflow.networks import SIZES, TITLES, FlowSizes, absent, hidden, title
from coset_papers.weightflow.plotting import TRAINED_COLOUR
from coset_papers.weightflow.published import WIDER
from coset_papers.weightflow.study import Subject, measure_networks

SEVERAL = "Several"


def width(settings: Settings) -> Outcome:
    """Accuracy of samples by the number of hidden units that they are drawn for."""
    sizes = SIZES[settings.scale]
    subjects = sizes.widths.sampled
    trained = {str(hidden(each)): fresh(settings, each)["accuracy"]["mean"] for each in subjects}
    flows = {
        name: {str(hidden(each)): _sample(settings, sizes, name, each)["accuracy"]["mean"] for each in subjects}
        for name in (*sizes.ours, SEVERAL)
    }
    widest = str(hidden(subjects[-1]))
    widths = [hidden(each) for each in sizes.widths.several]
    stand_in = absent(sizes.subject)
    note = f"Trained networks with {widest} hidden units: {trained[widest]:.3f}. {stand_in}".strip()
    claims = [
        claim(
            settings.scale,
            f"{title(sizes.subject)}: the {name} flow of {hidden(sizes.subject)} hidden units, sampled for {widest}",
            value,
            f"{flows[name][widest]:.3f}",
            None if stand_in else flows[name][widest] >= value,
            note,
        )
        for name, value in WIDER.items()
    ]
    claims.append(
        claim(
            settings.scale,
            f"a flow learned on {', '.join(map(str, sorted(widths)))} hidden units does better on {widest}",
            None,
            f"{flows[SEVERAL][widest]:.3f}, "
            + ", ".join(f"{name} of one width {flows[name][widest]:.3f}" for name in sizes.ours),
            flows[SEVERAL][widest] > max(flows[name][widest] for name in sizes.ours),
            "It is learned more briefly, and without errors of outputs. By the sign alone.",
        )
    )
    data = {"title": TITLES[sizes.subject.data], "known": widths, "trained": trained, "flows": flows}
    return Outcome(data | {"published": {} if stand_in else WIDER, "widest": widest}, without_repeated_notes(claims))


def draw_width(data: Any) -> Figure:
    """One line for each flow."""
    figure, ((axes,),) = panels(1, 1, f"Samples for other widths: {data['title']}", 3.3)
    figure.set_figwidth(5.4)
    widths = [int(each) for each in data["trained"]]
    axes.plot(
        widths,
        [100 * value for value in data["trained"].values()],
        "o-",
        color=TRAINED_COLOUR,
        label="trained networks",
    )
    for (name, accuracies), colour in zip(data["flows"].items(), HUES[1:], strict=False):
        widths_seen = data["known"] if name == SEVERAL else data["known"][:1]
        label = f"{name}, learned on {', '.join(map(str, sorted(widths_seen)))}"
        axes.plot(widths, [100 * value for value in accuracies.values()], "o-", color=colour, label=label)
        if name in data["published"]:
            axes.plot(int(data["widest"]), 100 * data["published"][name], "x", color=colour, label=f"{name}, published")
    axes.set_xscale("log", base=2)
    axes.set_xticks(widths, [str(each) for each in widths])
    style(axes, "hidden units", "test accuracy (%)")
    legend(figure, axes, 2)
    return figure


def several(settings: Settings, sizes: FlowSizes) -> Flow:
    """The flow that is learned on networks of several widths; one that was learned before is read."""
    options = sizes.widths
    first, *others = options.several
    key = {"subjects": [asdict(each) for each in options.several], "recipe": options.flow.key()}
    folder = settings.folder("weightflow-widths", **key)
    file = folder / "flow.safetensors"
    if file.exists():
        for each in options.several:
            each.count(settings)
        return Flow.load(file, settings.device)

    say = settings.listener(
        lambda epoch: f"flow of several widths, epoch {epoch.epoch} of {epoch.epochs}, loss {epoch.loss:.4f}"
    )
    flow = Flow.of(first.sym, options.flow.plan)
    population = first.population(settings)[: options.flow.networks]
    more = [(each.sym, each.population(settings)) for each in others]
    spent = settings.working(folder)
    flow.fit(
        population,
        options.flow.matching,
        more=more,
        seed=settings.seed,
        device=settings.device,
        out=folder,
        progress=on_epoch(say),
    )
    spent(seconds_of(folder))
    flow.save(file)
    return flow


def _sample(settings: Settings, sizes: FlowSizes, name: str, subject: Subject) -> Record:
    """What is measured of samples of a flow for the networks of a subject."""
    one = sizes.widths.flow if name == SEVERAL else sizes.ours[name]

    def compute() -> Record:
        flow = several(settings, sizes) if name == SEVERAL else one.flow(settings, sizes.subject)
        resized = flow.on(subject.sym, states.of(subject.build()))
        generator = torch.Generator(settings.device).manual_seed(settings.seed)
        samples = resized.sample(sizes.near, sizes.steps, generator=generator).states
        return measure_networks(settings, subject, samples, average=False)

    key = {"subject": asdict(sizes.subject), "several": [asdict(each) for each in sizes.widths.several]}
    sized = {"flow": name, "recipe": one.key(), "model": subject.model, "count": sizes.near, "steps": sizes.steps}
    record: Record = settings.keep("weightflow-width", compute, **key, **sized)
    return record


exhibit("weightflow/width", "networks of other widths than the flow has seen", width, draw_width)
