"""What measures of populations and samples say while they work."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import coset
from coset import zoo

MODEL = zoo.build("mlp:4-6-3")
SYM = coset.symmetry(MODEL, zoo.example_input(MODEL))
SPLIT = coset.Split(torch.randn(30, 4), torch.arange(30) % 3)
POPULATION = coset.Population(coset.normal_starts(MODEL, SYM).states(6, torch.Generator().manual_seed(0)))
SMALL = coset.Architecture(width=16, depth=1, heads=2)


def flow() -> coset.Flow:
    return coset.Flow(SYM, "euclidean", "independent", architecture=SMALL).fit(POPULATION, coset.Matching(epochs=1))


WORK: dict[str, tuple[Callable[[coset.Progress], object], str, int]] = {
    "scores": (lambda tell: coset.scores(POPULATION, MODEL, SPLIT, progress=tell), "example", 30),
    "diversity": (lambda tell: coset.diversity(POPULATION, MODEL, SPLIT, progress=tell), "example", 30),
    "averages": (lambda tell: coset.model_averages(POPULATION, MODEL, SPLIT, progress=tell), "example", 30),
    "barriers": (lambda tell: coset.pair_barriers(POPULATION, SYM, MODEL, SPLIT, progress=tell), "pair", 45),
    "novelty": (lambda tell: coset.novelty(POPULATION, POPULATION, SYM, MODEL, SPLIT, progress=tell), "network", 6),
    "sliced": (lambda tell: coset.sliced_wasserstein(POPULATION, POPULATION, SYM, progress=tell), "stage", 3),
    "sample": (lambda tell: flow().sample(5, 4, batch_size=2, progress=tell), "step", 12),
    "densities": (lambda tell: flow().sample_with_log_prob(5, 4, batch_size=2, progress=tell), "step", 12),
    "log_prob": (lambda tell: flow().log_prob(POPULATION, 4, batch_size=4, progress=tell), "step", 8),
}


@pytest.mark.parametrize("name", WORK)
def test_work_says_how_far_it_is(name: str) -> None:
    work, unit, total = WORK[name]
    events: list[coset.Event] = []
    work(events.append)
    assert {(event.unit, event.total) for event in events} == {(unit, total)}
    counts = [event.done for event in events]
    assert counts[-1] == total and min(counts) > 0 and (name == "novelty" or counts == sorted(set(counts)))
