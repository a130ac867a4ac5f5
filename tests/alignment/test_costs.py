"""Each cost against the distance it stands for, computed independently."""

from __future__ import annotations

import pytest
import torch
from alignment_nets import State, network, random_state
from torch.distributions import Normal, kl_divergence

import coset
from coset.alignment.align import as_method
from coset.alignment.method import AlignmentTask, Cost
from coset.core.errors import CosetError


def gaussian(model: torch.nn.Module, seed: int) -> coset.Gaussian:
    mean = random_state(model, seed)
    generator = torch.Generator().manual_seed(seed + 100)
    std = {n: 0.1 + torch.rand(x.shape, generator=generator) for n, x in mean.items() if x.is_floating_point()}
    return coset.Gaussian(mean, std)


def squared(a: State, b: State) -> float:
    return sum(float((a[n].double() - b[n].double()).square().sum()) for n in a if a[n].is_floating_point())


@pytest.mark.parametrize("name", ["mlp", "vit"])
def test_costs_are_distances_up_to_a_constant(name: str) -> None:
    model, sym = network(name)
    a, b = gaussian(model, 0), gaussian(model, 1)

    def divergence(q: coset.Gaussian) -> float:
        terms = (kl_divergence(Normal(q.mean[n], q.std[n]), Normal(a.mean[n], a.std[n])) for n in a.std)
        return sum(float(term.double().sum()) for term in terms)

    distances = {
        "weights": lambda q: 0.5 * squared(a.mean, q.mean),
        "wasserstein": lambda q: 0.5 * float(coset.wasserstein(a, q)) ** 2,
        "kl": divergence,
    }
    for cost, distance in distances.items():
        method = as_method(cost)
        assert isinstance(method, Cost)
        objective = method.objective(AlignmentTask(a, b, sym))
        for seed in range(3):
            g = sym.random(torch.Generator().manual_seed(seed))
            fall = distance(b) - distance(sym.act(g, b))
            assert objective.value(g) - objective.value(sym.identity()) == pytest.approx(fall, rel=1e-3, abs=1e-2)


def test_methods_align_gaussians() -> None:
    model, sym = network("mlp")
    a = gaussian(model, 0)
    hidden = sym.random(torch.Generator().manual_seed(3))
    b = sym.act(hidden, a)
    for method in ("auto", "wasserstein", "kl", "weights"):
        match = coset.align(a, b, sym, method)
        assert torch.equal((match.element @ hidden)[sym.groups[0].name], torch.arange(8)), method


def test_the_natural_cost() -> None:
    model, sym = network("mlp")
    a, b = gaussian(model, 0), gaussian(model, 1)
    auto, named = coset.align(a, b, sym), coset.align(a, b, sym, "wasserstein")
    assert auto.objective == named.objective
    points = coset.align(a.mean, b.mean, sym)
    assert points.objective == coset.align(coset.Dirac(a.mean), coset.Dirac(b.mean), sym, "weights").objective


def test_errors() -> None:
    model, sym = network("mlp")
    a, b = random_state(model, 0), random_state(model, 1)
    with pytest.raises(CosetError, match="compares Gaussians, not Dirac"):
        coset.align(a, b, sym, "kl")
    with pytest.raises(CosetError, match="no method 'best'; choose from auto, weights"):
        coset.align(a, b, sym, "best")
    with pytest.raises(CosetError, match="give model and data"):
        coset.align(a, b, sym, "activations")
    first = next(iter(a))
    with pytest.raises(CosetError, match=f"'{first}'.*NaN"):
        coset.align(a, {**b, first: b[first] * float("nan")}, sym)
    with pytest.raises(CosetError, match=f"'{first}'.*shape"):
        coset.align(a, {**b, first: b[first][:1]}, sym)
    with pytest.raises(CosetError, match=f"Missing '{first}'"):
        coset.align(a, {n: x for n, x in b.items() if n != first}, sym)
    stubborn = gaussian(model, 0)
    fixed = coset.Gaussian(stubborn.mean, {n: x for n, x in stubborn.std.items() if n != first})
    with pytest.raises(CosetError, match=f"infinite.*'{first}'"):
        coset.align(fixed, gaussian(model, 1), sym, "kl")
