"""Other networks than those with one hidden layer: two hidden layers, and a convolutional one.

Where samples are not quite as good as trained networks, few gradients may make them so. How few is measured, too, and
what as many do for networks that no flow has led anywhere.
"""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure

from coset_papers.catalogue import exhibit
from coset_papers.outcome import Claim, Outcome, Record, without_repeated_notes
from coset_papers.plotting import legend, panels, style
from coset_papers.settings import Settings
from coset_papers.weightflow.criteria import CLOSE, as_good, claim
from coset_papers.weightflow.gradient_descent import FROM_SAMPLES, UNTRAINED, best_of, seen_at
from coset_papers.weightflow.guided_flow import GuidedFlow, best_guided
from coset_papers.weightflow.measurements import beside, closeness, collection_cost, cost, fresh, generated, whole
from coset_papers.weightflow.mnist import average_claim, learning_claim, novelty_claims
from coset_papers.weightflow.networks import SIZES, absent, title
from coset_papers.weightflow.plotting import PUBLISHED_COLOUR, SAMPLES_COLOUR, TRAINED_COLOUR, histograms, names, reach
from coset_papers.weightflow.published import DEEP
from coset_papers.weightflow.study import FlowRecipe, Subject

SCORES = ("accuracy", "loss", "averages", "diversity")


def deep(settings: Settings) -> Outcome:
    """Two hidden layers of 32 units, on MNIST."""
    subject, recipe = SIZES[settings.scale].deep
    return _outcome(settings, subject, recipe, None if absent(subject) else DEEP)


def cnn(settings: Settings) -> Outcome:
    """Two convolutions and a linear layer, on Fashion-MNIST."""
    return _outcome(settings, *SIZES[settings.scale].cnn, None)


def draw_other(data: Any) -> Figure:
    """Accuracies on the left, distances to training networks on the right."""
    figure, (row,) = panels(1, 2, f"Generated and trained networks: {data['title']}", 3.0)
    figure.set_figwidth(8.4)
    for y, (name, colour) in enumerate((("trained", TRAINED_COLOUR), ("samples", SAMPLES_COLOUR))):
        reach(row[0], y, data[name]["accuracy"], colour, 100)
        row[0].plot(
            100 * whole(data[name])["accuracy"], y, "D", color=colour, markerfacecolor="white", markersize=6, zorder=3
        )
        if data["published"] is not None:
            row[0].plot(100 * data["published"][name], y - 0.2, "x", color=PUBLISHED_COLOUR, markersize=6)
    names(row[0], ["trained", "samples"])
    crosses = ", cross: published" if data["published"] is not None else ""
    style(row[0], "test accuracy (%)", "", f"mean, nine tenths; diamond: averaged{crosses}")
    histograms(row[1], data["closeness"]["kinds"])
    style(row[1], "distance to the nearest training network", "share of networks")
    legend(figure, row[1], 3)
    return figure


def _outcome(settings: Settings, subject: Subject, recipe: FlowRecipe, published: dict[str, float] | None) -> Outcome:
    sizes = SIZES[settings.scale]
    networks, costs = collection_cost(settings, subject), cost(settings, subject, recipe)
    samples = generated(settings, subject, recipe, min(sizes.count, subject.fresh), sizes.steps)
    trained = fresh(settings, subject)
    near = closeness(settings, subject, recipe, sizes.near, sizes.steps)
    steered = GuidedFlow(subject, recipe, "their own", subject.images, sizes.finish, sizes.near, sizes.steps)
    guided, descents = steered.guided(settings), steered.descents(settings)
    data = {
        "title": title(subject),
        "networks": networks,
        "cost": costs,
        "samples": {key: samples[key] for key in SCORES},
        "trained": {key: trained[key] for key in SCORES},
        "per_second": samples["per_second"],
        "closeness": near,
        "guided": guided,
        "descents": descents,
        "published": published,
    }
    claims = [
        _accuracy(settings.scale, subject, samples, trained, published),
        average_claim(settings.scale, beside(samples, trained), whole(samples), whole(trained), None),
        learning_claim(settings.scale, costs, samples["per_second"], None),
        _finished(settings, subject, guided, descents, trained),
        *novelty_claims(settings.scale, near),
    ]
    return Outcome(data, without_repeated_notes(claims))


def _accuracy(scale: str, subject: Subject, samples: Any, trained: Any, published: dict[str, float] | None) -> Claim:
    ours, theirs = samples["accuracy"]["mean"], trained["accuracy"]["mean"]
    return claim(
        scale,
        f"{title(subject)}: generated networks are as accurate as trained ones",
        None if published is None else f"{published['samples']}, trained {published['trained']}, memorising",
        f"{ours:.4f}, trained {theirs:.4f}",
        as_good(ours, theirs),
        f"As accurate: less than {100 * CLOSE:g} points below. The flow learns from {subject.runs} networks.",
    )


def _finished(
    settings: Settings, subject: Subject, guided: list[Record], descents: list[Record], trained: Any
) -> Claim:
    ((count, best),) = best_guided(guided).items()
    after, alone = (seen_at(best_of(descents, kind, count), count) for kind in (FROM_SAMPLES, UNTRAINED))
    training, target = subject.training, trained["accuracy"]["mean"]
    whole_training = training.epochs * (len(subject.images(settings).train) // training.batch_size)
    return claim(
        settings.scale,
        f"with {count} gradients samples are as accurate as trained networks, which took {whole_training}",
        None,
        f"{after:.4f} by descent from samples, {best['accuracy']:.4f} by guidance; trained {target:.4f}; "
        f"{alone:.4f} by descent from the starts of the flow",
        as_good(max(after, best["accuracy"]), target),
        f"On {best['batch']} training images each; the best of several rates and strengths, by test accuracy.",
    )


exhibit("weightflow/deep", "networks with two hidden layers", deep, draw_other)
exhibit("weightflow/cnn", "convolutional networks", cnn, draw_other)
