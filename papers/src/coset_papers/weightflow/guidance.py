"""A flow of networks for one task, steered towards another by the gradient of its loss; beside gradient descent."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, get_args

from matplotlib.figure import Figure

from coset.data import DataSet, Split
from coset.flow.guidance import GuidanceScale
from coset.plot.palette import HUES
from coset_papers.catalogue import exhibit
from coset_papers.outcome import Claim, Outcome, Record, without_repeated_notes
from coset_papers.plotting import FAINT, panels, style
from coset_papers.settings import Settings
from coset_papers.weightflow.criteria import claim
from coset_papers.weightflow.gradient_descent import FROM_SAMPLES, STARTS, UNTRAINED, best_of, seen_at
from coset_papers.weightflow.guided_flow import PLACES, GuidedFlow, best_guided
from coset_papers.weightflow.networks import SIZES, TITLES, FlowSizes, absent, title
from coset_papers.weightflow.plotting import SAMPLES_COLOUR, TRAINED_COLOUR
from coset_papers.weightflow.published import GUIDED, UNGUIDED

CHANCE = 0.2  # below this an accuracy in ten classes is that of a guess, or little more


def guidance(settings: Settings) -> Outcome:
    """Accuracy on the other images of guided samples, by strength, and of as many steps of gradient descent."""
    sizes = SIZES[settings.scale]
    flow = next(iter(sizes.ours.values()))
    images = partial(_images, sizes)
    steered = GuidedFlow(sizes.subject, flow, sizes.other, images, sizes.steering, sizes.near, sizes.steps)
    guided, descents = steered.guided(settings), steered.descents(settings)
    data = {
        "title": f"{title(sizes.subject)}, guided on {_other(sizes)}",
        "guided": guided,
        "descents": descents,
        "published": None if absent(sizes.subject) else GUIDED,
    }
    return Outcome(data, without_repeated_notes(_claims(settings.scale, sizes, guided, descents)))


def turned(images: DataSet) -> DataSet:
    """The images by a quarter: another task for the same networks where there are no other images of their size."""
    train, test = (Split(split.inputs.rot90(1, (-2, -1)), split.targets) for split in (images.train, images.test))
    return replace(images, train=train, test=test)


def _claims(scale: str, sizes: FlowSizes, guided: list[Record], descents: list[Record]) -> list[Claim]:
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


def _by_count(texts: dict[int, str]) -> str:
    return "; ".join(f"with {count} {text}" for count, text in texts.items())


def _images(sizes: FlowSizes, settings: Settings) -> DataSet:
    subject = sizes.subject
    if sizes.other == subject.data:
        return turned(subject.images(settings))
    return replace(subject, data=sizes.other).images(settings)


def _other(sizes: FlowSizes) -> str:
    return f"{TITLES[sizes.other]} turned by a quarter" if sizes.other == sizes.subject.data else TITLES[sizes.other]


def draw_guidance(data: Any) -> Figure:
    """Guided samples by strength, and gradient descent by its steps."""
    figure, ((left, right),) = panels(1, 2, data["title"], 4.2)
    if data["published"] is not None:
        low, high = data["published"]
        for axes in (left, right):
            axes.axhspan(100 * low, 100 * high, color=FAINT, alpha=0.3, linewidth=0, label="guided, published")
    unguided = next(row["accuracy"] for row in data["guided"] if row["strength"] == 0.0)
    left.axhline(100 * unguided, color=FAINT, linestyle=(0, (4, 3)), label="not guided")
    best = best_guided(data["guided"])
    for at, dashes in zip(PLACES, ("solid", (0, (3, 2))), strict=True):
        for count, colour in zip(best, HUES, strict=False):
            label = f"at the {'end point' if at == 'endpoint' else at}, {count} gradients"
            line = _by_strength(data, "velocity", count, at)
            left.plot(*line, "o", linestyle=dashes, color=colour, markersize=4, label=label)
    for count, marker in zip(best, ("x", "+"), strict=False):
        label = f"so many times the plain gradient, {count} of them"
        left.plot(*_by_strength(data, "gradient", count, "state"), f"{marker}:", color=FAINT, markersize=5, label=label)
    strengths = sorted({row["strength"] for row in data["guided"]} - {0.0})
    left.set_xscale("log")
    left.set_xticks(strengths, [f"{strength:g}" for strength in strengths])
    left.minorticks_off()
    style(left, "strength of guidance", "test accuracy (%)")
    for kind, colour in ((UNTRAINED, TRAINED_COLOUR), (FROM_SAMPLES, SAMPLES_COLOUR)):
        one = best_of(data["descents"], kind, -1)
        right.plot(
            [row["step"] for row in one["trace"]],
            [100 * row["accuracy"] for row in one["trace"]],
            color=colour,
            label=f"descent from {STARTS[kind]}, rate {one['rate']:g}",
        )
    stars = [100 * row["accuracy"] for row in best.values()]
    right.plot(list(best), stars, "*", color=HUES[3], markersize=11, label="best guided")
    style(right, "gradients", "test accuracy (%)")
    for axes in (left, right):
        axes.set_ylim(0, 100)
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.18), frameon=False, fontsize=7)
    return figure


def _by_strength(data: Any, scale: str, count: int, at: str) -> tuple[list[float], list[float]]:
    """Strengths, and accuracies in percent, where guidance led to numbers."""
    rows = [
        row
        for row in data["guided"]
        if (row["scale"], row["gradients"], row["at"]) == (scale, count, at)
        and row["strength"]
        and row["accuracy"] is not None
    ]
    return [row["strength"] for row in rows], [100 * row["accuracy"] for row in rows]


exhibit("weightflow/guidance", "a flow steered to other images, beside gradient descent", guidance, draw_guidance)
