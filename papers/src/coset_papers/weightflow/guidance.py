"""A flow of networks for one task, steered towards another by the gradient of its loss; beside gradient descent."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import get_args

from coset.data import DataSet, Split
from coset.flow.guidance import GuidanceScale
from coset_papers.outcome import Claim, Outcome, noted_once
from coset_papers.settings import Settings
from coset_papers.weightflow.descent import FROM_SAMPLES, STARTS, UNTRAINED, best_of, seen_at
from coset_papers.weightflow.networks import SIZES, TITLES, Sizes, absent, title
from coset_papers.weightflow.published import GUIDED, UNGUIDED
from coset_papers.weightflow.steered import Row, Steered, best_guided
from coset_papers.weightflow.verdicts import claim

CHANCE = 0.2  # below this an accuracy in ten classes is that of a guess, or little more


def guidance(settings: Settings) -> Outcome:
    """Accuracy on the other images of guided samples, by strength, and of as many steps of gradient descent."""
    sizes = SIZES[settings.scale]
    flow = next(iter(sizes.ours.values()))
    images = partial(_images, sizes)
    steered = Steered(sizes.subject, flow, sizes.other, images, sizes.steering, sizes.near, sizes.steps)
    guided, descents = steered.guided(settings), steered.descents(settings)
    data = {
        "title": f"{title(sizes.subject)}, guided on {_other(sizes)}",
        "guided": guided,
        "descents": descents,
        "published": None if absent(sizes.subject) else GUIDED,
    }
    return Outcome(data, noted_once(_claims(settings.scale, sizes, guided, descents)))


def turned(images: DataSet) -> DataSet:
    """The images by a quarter: another task for the same networks where there are no other images of their size."""
    train, test = (Split(split.inputs.rot90(1, (-2, -1)), split.targets) for split in (images.train, images.test))
    return replace(images, train=train, test=test)


def _claims(scale: str, sizes: Sizes, guided: list[Row], descents: list[Row]) -> list[Claim]:
    where = f"{title(sizes.subject)} flow on {_other(sizes)}"
    unguided = next(row["accuracy"] for row in guided if row["strength"] == 0.0)
    best, plain = (best_guided(guided, each) for each in get_args(GuidanceScale))
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


def _images(sizes: Sizes, settings: Settings) -> DataSet:
    subject = sizes.subject
    if sizes.other == subject.data:
        return turned(subject.images(settings))
    return replace(subject, data=sizes.other).images(settings)


def _other(sizes: Sizes) -> str:
    return f"{TITLES[sizes.other]} turned by a quarter" if sizes.other == sizes.subject.data else TITLES[sizes.other]
