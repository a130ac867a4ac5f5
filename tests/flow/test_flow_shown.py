"""What flows, populations and what is measured of them show of themselves."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import coset
from coset import zoo

MODEL = zoo.build("mlp:4-6-3")
SYM = coset.symmetry(MODEL, zoo.example_input(MODEL))
SPLIT = coset.Split(torch.randn(30, 4), torch.arange(30) % 3)
SMALL = coset.Architecture(width=16, depth=1, heads=2)


def population(n: int = 6) -> coset.Population:
    starts = coset.normal_starts(MODEL, SYM).states(n, torch.Generator().manual_seed(0))
    labels = {"loss": torch.linspace(0.5, 1, n), "pair": torch.zeros(n, 2)}
    return coset.Population({name: 2 * x for name, x in starts.items()}, starts, labels)


def flow() -> coset.Flow:
    return coset.Flow(SYM, architecture=SMALL, conditions=["loss"]).fit(population(), coset.Matching(epochs=1))


THINGS: dict[str, tuple[Callable[[], object], list[str]]] = {
    "population": (population, ["6 networks of 51 weights", "starts", "known", "0.5 to 1", "2 numbers", "(6, 6, 4)"]),
    "empty": (lambda: population()[:0], ["0 networks"]),
    "plan": (lambda: coset.Flow(SYM, "euclidean", "ot"), ["euclidean flow, coupling ot", "units", "fitted", "no"]),
    "flow": (flow, ["geometric flow, coupling training", "loss", "yes", "networks", "6 of 51", "float32", "6 "]),
    "base": (lambda: flow().sampler.base, ["geometric", "layers.1.bias", "N("]),
    "guidance": (lambda: coset.Guidance(MODEL, SPLIT, 2.0), ["30 examples for MLP", "strength", "all examples"]),
    "matching": (lambda: coset.Matching(epochs=20, optimizer="adam"), ["Matching", "epochs=20", "adam"]),
    "architecture": (coset.Architecture, ["units", "width=256"]),
    "scores": (lambda: coset.scores(population(), MODEL, SPLIT), ["6 networks", "loss", "accuracy", "deviation"]),
    "diversity": (lambda: coset.diversity(population(), MODEL, SPLIT), ["15 pairs", "nats", "another class"]),
    "averages": (lambda: coset.model_averages(population(), MODEL, SPLIT), ["networks", "nll", "ece"]),
    "barriers": (lambda: coset.pair_barriers(population(), SYM, MODEL, SPLIT), ["15 pairs", "aligned to each other"]),
    "novelty": (lambda: coset.novelty(population(), population(), SYM), ["samples", "training networks with noise"]),
    "closeness": (
        lambda: coset.novelty(population(), population(), SYM, MODEL, SPLIT).kinds["samples"],
        ["6 networks", "overlap of mistakes"],
    ),
    "sliced": (lambda: coset.sliced_wasserstein(population(), population(), SYM), ["256 projections", "+-"]),
    "importance": (lambda: coset.importance(torch.zeros(5), torch.zeros(5)), ["5 draws", "worth 5.0", "evidence"]),
}


@pytest.mark.parametrize("name", THINGS)
def test_things_show_themselves(name: str) -> None:
    make, words = THINGS[name]
    thing = make()
    lines = repr(thing).splitlines()
    assert len(lines) <= 12 and max(map(len, lines)) <= 120
    assert all(word in repr(thing) for word in words), repr(thing)
    if not isinstance(thing, coset.Architecture):
        html = thing._repr_html_()  # type: ignore[attr-defined]
        assert html.startswith("<table") and all(word in html for word in words[:1])
