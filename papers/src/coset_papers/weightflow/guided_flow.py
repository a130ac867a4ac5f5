"""A flow that gradients of a task's loss steer on the way, and descent by as many of them, before and after it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cache, partial
from typing import Any

from torch import Tensor

from coset import Flow, Guidance, StateError
from coset.data import DataSet
from coset.flow.guidance import GuidancePlace, GuidanceScale
from coset.populations.scores import scores
from coset_papers.outcome import Record
from coset_papers.settings import Settings
from coset_papers.weightflow.gradient_descent import FROM_SAMPLES, STARTS, descend
from coset_papers.weightflow.networks import Steering
from coset_papers.weightflow.study import FlowRecipe, Subject

PLACES: tuple[GuidancePlace, ...] = ("state", "endpoint")


@dataclass(frozen=True)
class GuidedFlow:
    """`count` networks of the flow of `recipe` for `subject`, on the images of a task, which has a name.

    steps: of Heun's method, for samples that descent begins from.
    """

    subject: Subject
    recipe: FlowRecipe
    task: str
    images: Callable[[Settings], DataSet]
    steering: Steering
    count: int
    steps: int

    def guided(self, settings: Settings) -> list[Record]:
        """One row for each number of gradients, place and strength, and by plain gradients; the first has no guidance.

        By Euler's method, so that all gradients are steps, as in descent.
        """
        steering, model = self.steering, self.subject.build().to(settings.device)
        flow, images = self._once(settings)

        def row(count: int, at: GuidancePlace, strength: float, scale: GuidanceScale = "velocity") -> Record:
            def compute() -> float | None:
                guidance = Guidance(model, images().train, strength, steering.examples, at, scale) if strength else None
                try:
                    samples = flow().sample(
                        self.count, count, "euler", guidance=guidance, generator=settings.generator()
                    )
                except StateError:  # guidance led to infinity
                    return None
                return self._accuracy(settings, samples.states, images())

            how = {"gradients": count, "batch": steering.examples, "at": at, "strength": strength, "scale": scale}
            return how | {"accuracy": settings.keep("weightflow-guided", compute, **self._key(), **how)}

        rows = [row(steering.gradients[0], "state", 0.0)]
        for count in steering.gradients:
            rows.extend(row(count, at, strength) for at in PLACES for strength in steering.strengths)
            rows.extend(row(count, "state", factor, "gradient") for factor in steering.factors)
        return rows

    def descents(self, settings: Settings) -> list[Record]:
        """Accuracy along gradient descent, for each start and rate."""
        flow, images = self._once(settings)

        @cache
        def begin(kind: str) -> dict[str, Tensor]:
            if kind == FROM_SAMPLES:
                return flow().sample(self.count, self.steps, generator=settings.generator()).states
            return flow().sampler.base.states(self.count, settings.generator())

        def trace(kind: str, rate: float) -> list[Record]:
            start = begin(kind)
            populations = [
                (0, start),
                *descend(self.subject, images().train, start, rate, self.steering, settings.device),
            ]
            return [{"step": step, "accuracy": self._accuracy(settings, each, images())} for step, each in populations]

        rows = []
        for kind in STARTS:
            for rate in self.steering.rates:
                key = {**self._key(), "kind": kind, "rate": rate, "steering": asdict(self.steering)}
                rows_of_trace = settings.keep("weightflow-descent", partial(trace, kind, rate), **key)
                rows.append({"kind": kind, "rate": rate, "trace": rows_of_trace})
        return rows

    def _once(self, settings: Settings) -> tuple[Callable[[], Flow], Callable[[], DataSet]]:
        """The flow and the images, when they are asked for first."""
        flow = cache(partial(self.recipe.flow, settings, self.subject))
        return flow, cache(partial(self.images, settings))

    def _accuracy(self, settings: Settings, population: dict[str, Tensor], images: DataSet) -> float | None:
        """The mean of the networks on the test images; None where guidance or descent led to infinity."""
        if not all(bool(x.isfinite().all()) for x in population.values()):
            return None
        model = self.subject.build().to(settings.device)
        accuracies = scores(population, model, images.test, device=settings.device).accuracies
        assert accuracies is not None
        return accuracies.mean

    def _key(self) -> dict[str, Any]:
        key = {"subject": asdict(self.subject), "recipe": self.recipe.key(), "other": self.task}
        return key | {"count": self.count, "steps": self.steps}


def best_guided(rows: list[Record], scale: GuidanceScale = "velocity") -> dict[int, Record]:
    """The guided row of the highest accuracy, by the number of gradients."""
    candidates = [row for row in rows if row["scale"] == scale and row["strength"] and row["accuracy"] is not None]
    counts = sorted({row["gradients"] for row in candidates})
    return {
        count: max((row for row in candidates if row["gradients"] == count), key=lambda row: row["accuracy"])
        for count in counts
    }
