"""A flow of networks for one task, steered towards another by the gradient of its loss; beside gradient descent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from functools import cache, partial
from typing import Any, get_args

from torch import Tensor

from coset.data import DataSet, Split
from coset.flow import Flow, Guidance
from coset.flow.guidance import Place, Scale
from coset.papers.outcome import Claim, Outcome, noted_once
from coset.papers.settings import Settings
from coset.papers.weightflow.descent import FROM_SAMPLES, STARTS, UNTRAINED, best_of, descend, seen_at
from coset.papers.weightflow.networks import SIZES, TITLES, Sizes, absent, title
from coset.papers.weightflow.published import GUIDED, UNGUIDED
from coset.papers.weightflow.study import Recipe
from coset.papers.weightflow.verdicts import claim
from coset.populations.scores import scores

Row = dict[str, Any]
PLACES: tuple[Place, ...] = ("state", "endpoint")
CHANCE = 0.2  # below this an accuracy in ten classes is that of a guess, or little more


def guidance(settings: Settings) -> Outcome:
    """Accuracy on the other images of guided samples, by strength, and of as many steps of gradient descent."""
    sizes = SIZES[settings.scale]
    guided, descents = _guided(settings, sizes), _descents(settings, sizes)
    data = {
        "title": f"{title(sizes.subject)}, guided on {_other(sizes)}",
        "guided": guided,
        "descents": descents,
        "published": None if absent(sizes.subject) else GUIDED,
    }
    return Outcome(data, noted_once(_claims(settings.scale, sizes, guided, descents)))


def best_guided(rows: list[Row], scale: Scale = "velocity") -> dict[int, Row]:
    """The guided row of the highest accuracy, by the number of gradients."""
    found = [row for row in rows if row["scale"] == scale and row["strength"] and row["accuracy"] is not None]
    counts = sorted({row["gradients"] for row in found})
    return {
        count: max((row for row in found if row["gradients"] == count), key=lambda row: row["accuracy"])
        for count in counts
    }


def turned(images: DataSet) -> DataSet:
    """The images by a quarter: another task for the same networks where there are no other images of their size."""
    train, test = (Split(split.inputs.rot90(1, (-2, -1)), split.targets) for split in (images.train, images.test))
    return replace(images, train=train, test=test)


def _guided(settings: Settings, sizes: Sizes) -> list[Row]:
    """One row for each number of gradients, place and strength, and by plain gradients; the first without guidance.

    By Euler's method, so that all gradients are steps, as in descent.
    """
    recipe, given = _recipe(sizes), sizes.steering
    flow, images = _once(settings, sizes)
    model = sizes.subject.build().to(settings.device)

    def row(count: int, at: Place, strength: float, scale: Scale = "velocity") -> Row:
        def compute() -> float | None:
            wanted = Guidance(model, images().train, strength, given.examples, at, scale) if strength else None
            made = flow().sample(sizes.near, count, "euler", guidance=wanted, generator=settings.generator())
            return _accuracy(settings, sizes, made, images())

        how = {"gradients": count, "batch": given.examples, "at": at, "strength": strength, "scale": scale}
        return how | {"accuracy": settings.keep("weightflow-guided", compute, **_known(sizes, recipe), **how)}

    rows = [row(given.gradients[0], "state", 0.0)]
    for count in given.gradients:
        rows.extend(row(count, at, strength) for at in PLACES for strength in given.strengths)
        rows.extend(row(count, "state", factor, "gradient") for factor in given.factors)
    return rows


def _descents(settings: Settings, sizes: Sizes) -> list[Row]:
    """Accuracy along gradient descent, for each start and rate."""
    recipe, given = _recipe(sizes), sizes.steering
    flow, images = _once(settings, sizes)

    def trace(kind: str, rate: float) -> list[Row]:
        begin = flow().fitted.base.states(sizes.near, settings.generator())
        if kind == FROM_SAMPLES:
            begin = flow().sample(sizes.near, sizes.steps, generator=settings.generator())
        found = [(0, begin), *descend(sizes.subject, images().train, begin, rate, given, settings.device)]
        return [{"step": step, "accuracy": _accuracy(settings, sizes, each, images())} for step, each in found]

    rows = []
    for kind in STARTS:
        for rate in given.rates:
            known = {**_known(sizes, recipe), "kind": kind, "rate": rate, "steering": asdict(given)}
            found = settings.keep("weightflow-descent", partial(trace, kind, rate), **known)
            rows.append({"kind": kind, "rate": rate, "trace": found})
    return rows


def _once(settings: Settings, sizes: Sizes) -> tuple[Callable[[], Flow], Callable[[], DataSet]]:
    """The flow and the other images, when they are asked for first."""
    flow = cache(partial(_recipe(sizes).learned, settings, sizes.subject))
    return flow, cache(partial(_images, settings, sizes))


def _claims(scale: str, sizes: Sizes, guided: list[Row], descents: list[Row]) -> list[Claim]:
    where = f"{title(sizes.subject)} flow on {_other(sizes)}"
    unguided = next(row["accuracy"] for row in guided if row["strength"] == 0.0)
    best, plain = (best_guided(guided, each) for each in get_args(Scale))
    top = max(best.values(), key=lambda row: row["accuracy"])
    steep = {count: seen_at(best_of(descents, UNTRAINED, count), count) for count in best}
    first = min(best)
    tuned = {kind: seen_at(best_of(descents, kind, first), first) for kind in STARTS}
    last = {kind: best_of(descents, kind, -1)["trace"][-1]["accuracy"] for kind in STARTS}
    stand_in = absent(sizes.subject)
    return [
        claim(
            scale,
            f"{where}: without guidance samples are no better than a guess",
            UNGUIDED,
            f"{unguided:.3f}",
            unguided < CHANCE,
            f"A guess: below {CHANCE}.",
        ),
        claim(
            scale,
            f"{where}: guided samples solve the other task",
            f"{GUIDED[0]} to {GUIDED[1]}",
            f"{top['accuracy']:.3f} by {top['gradients']} gradients with strength {top['strength']:g}, measured at the "
            f"{top['at']}",
            None if stand_in else top["accuracy"] >= GUIDED[0],
            f"Solve: {GUIDED[0]} or more; the best of all strengths, by test accuracy. {stand_in}".strip(),
        ),
        claim(
            scale,
            "a force relative to the velocity, in units of the spread of weights, is better than the plain gradient",
            None,
            _by_count({count: f"{best[count]['accuracy']:.3f} and {plain[count]['accuracy']:.3f}" for count in best}),
            all(best[count]["accuracy"] > plain[count]["accuracy"] for count in best),
            "The best of several strengths each; by the sign alone.",
        ),
        claim(
            scale,
            "guidance is better than gradient descent with the same number of gradients",
            None,
            "guided and descent from the same starts, "
            + _by_count({count: f"{best[count]['accuracy']:.3f} and {steep[count]:.3f}" for count in best}),
            all(best[count]["accuracy"] > steep[count] for count in best),
            "Descent without momentum, the best of several rates; by the sign alone.",
        ),
        claim(
            scale,
            "samples are better to fine-tune from than what they began as",
            None,
            f"after {first} steps {tuned[FROM_SAMPLES]:.3f} and {tuned[UNTRAINED]:.3f}; after {sizes.steering.steps} "
            f"{last[FROM_SAMPLES]:.3f} and {last[UNTRAINED]:.3f}",
            tuned[FROM_SAMPLES] > tuned[UNTRAINED],
        ),
    ]


def _by_count(found: dict[int, str]) -> str:
    return "; ".join(f"with {count} {text}" for count, text in found.items())


def _accuracy(settings: Settings, sizes: Sizes, made: dict[str, Tensor], images: DataSet) -> float | None:
    """The mean of the networks on the other images; None where guidance or descent led to infinity."""
    if not all(bool(x.isfinite().all()) for x in made.values()):
        return None
    model = sizes.subject.build().to(settings.device)
    found = scores(made, model, images.test, device=settings.device).accuracies
    assert found is not None
    return found.mean


def _images(settings: Settings, sizes: Sizes) -> DataSet:
    subject = sizes.subject
    if sizes.other == subject.data:
        return turned(subject.images(settings))
    return replace(subject, data=sizes.other).images(settings)


def _other(sizes: Sizes) -> str:
    return f"{TITLES[sizes.other]} turned by a quarter" if sizes.other == sizes.subject.data else TITLES[sizes.other]


def _recipe(sizes: Sizes) -> Recipe:
    return next(iter(sizes.ours.values()))


def _known(sizes: Sizes, recipe: Recipe) -> dict[str, Any]:
    known = {"subject": asdict(sizes.subject), "recipe": recipe.known(), "other": sizes.other}
    return known | {"count": sizes.near, "steps": sizes.steps}
