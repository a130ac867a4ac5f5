"""What is measured of flows and of fresh networks, each part kept: what the image exhibits have in common."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import torch
from torch import Tensor

from coset.core import state as states
from coset.populations.novelty import Novelty
from coset.populations.population_outputs import predictions
from coset.solutions.likelihood import likelihood_of
from coset_papers.outcome import Record
from coset_papers.settings import Settings
from coset_papers.weightflow.study import FlowRecipe, Subject, draw_samples, measure_networks, measure_novelty

HEUN = "heun"


def collection_cost(settings: Settings, subject: Subject) -> Record:
    """How many networks there are, and the minutes that training them took."""

    def compute() -> Record:
        return {"networks": len(subject.population(settings)), "minutes": subject.minutes(settings)}

    record: Record = settings.keep("weightflow-collected", compute, subject=asdict(subject))
    return record


def cost(settings: Settings, subject: Subject, recipe: FlowRecipe) -> Record:
    """What learning a flow costs: see `FlowRecipe.cost`."""

    def compute() -> Record:
        return recipe.cost(settings, subject)

    record: Record = settings.keep("weightflow-cost", compute, subject=asdict(subject), recipe=recipe.key())
    return record


def fresh(settings: Settings, subject: Subject) -> Record:
    """What is measured of networks that were trained."""

    def compute() -> Record:
        return _measure(settings, subject, subject.unseen(settings).states)

    record: Record = settings.keep("weightflow-fresh", compute, subject=_ends(subject))
    return record


def generated(
    settings: Settings, subject: Subject, recipe: FlowRecipe, count: int, steps: int, method: str = HEUN
) -> Record:
    """What is measured of samples, and how many there are a second."""

    def compute() -> Record:
        samples, rate = draw_samples(settings, recipe.flow(settings, subject), count, steps, method)
        return _measure(settings, subject, samples) | {"per_second": rate}

    key = {"subject": asdict(subject), "recipe": recipe.key()}
    record: Record = settings.keep("weightflow-samples", compute, **key, count=count, steps=steps, method=method)
    return record


def beside(ours: Record, theirs: Record) -> Record:
    """How many test examples only the averaged prediction of the first has right, and only that of the second."""
    a, b = set(ours["wrong"]), set(theirs["wrong"])
    return {"better": len(b - a), "worse": len(a - b)}


def closeness(settings: Settings, subject: Subject, recipe: FlowRecipe, near: int, steps: int) -> Record:
    """Distances and agreement of `near` samples, and of networks to compare with: see `coset.populations.novelty`."""

    def compute() -> Record:
        samples = draw_samples(settings, recipe.flow(settings, subject), near, steps)[0]
        fewer = replace(subject, fresh=min(near, subject.fresh))
        return _as_record(measure_novelty(settings, fewer, samples))

    key = {"subject": asdict(subject), "recipe": recipe.key()}
    record: Record = settings.keep("weightflow-closeness", compute, **key, near=near, steps=steps)
    return record


def wrong(settings: Settings, subject: Subject, population: dict[str, Tensor]) -> list[int]:
    """The test examples for which all networks together find another class most probable than the right one."""
    test = subject.images(settings).test
    model, likelihood = subject.build().to(settings.device), likelihood_of(test.targets)
    device = torch.device(settings.device)
    parts = [
        outputs.softmax(-1).mean(0).argmax(-1) != test.targets[examples]
        for examples, outputs in predictions(states.to(population, device), model, test.inputs, likelihood, device)
    ]
    mistakes: list[int] = torch.cat(parts).nonzero().flatten().tolist()
    return mistakes


def whole(record: Record) -> Record:
    """The average of all networks of a record."""
    average: Record = record["averages"][-1]
    return average


def _measure(settings: Settings, subject: Subject, population: dict[str, Tensor]) -> Record:
    return measure_networks(settings, subject, population) | {"wrong": wrong(settings, subject, population)}


def _ends(subject: Subject) -> dict[str, Any]:
    """What fresh networks depend on."""
    training = replace(subject.training, every=0, skip=0)
    return {name: value for name, value in asdict(replace(subject, training=training)).items() if name != "runs"}


def _as_record(result: Novelty) -> Record:
    kinds = {
        kind: {
            "distance": one.distance.tolist(),
            "agreement": None if one.agreements is None else one.agreements.mean,
        }
        for kind, one in result.kinds.items()
    }
    return {"memorised": result.memorised, "exact": result.exact, "summary": result.summary(), "kinds": kinds}
