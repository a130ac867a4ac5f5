"""Many solutions: cycles close, values rise, hidden permutations are found; populations agree with one by one."""

from __future__ import annotations

import pytest
import torch
from alignment_nets import SPECS, network, random_state

import coset
from coset import Element, ManyMatch, PopulationMatch, Symmetry
from coset.alignment.many import barycenter
from coset.alignment.rescaling import wide
from coset.core import state as states
from coset.core.errors import CosetError


def same(sym: Symmetry, g: Element, h: Element) -> bool:
    return all(torch.equal(g[group.name], h[group.name]) for group in sym.groups)


@pytest.mark.parametrize("reference", [None, 0, 2])
@pytest.mark.parametrize("name", ["mlp", "vit"])
def test_cycles_close(name: str, reference: int | None) -> None:
    model, sym = network(name)
    match = coset.align_many([random_state(model, k) for k in range(4)], sym, reference)
    assert isinstance(match, ManyMatch)
    around = match.between(3, 0) @ match.between(1, 3) @ match.between(0, 1)
    assert same(sym, around, sym.identity())
    assert match.objective >= match.identity_objective
    if reference is not None:
        assert same(sym, match.elements[reference], sym.identity())


def test_joint_values_rise_and_count_all_pairs() -> None:
    model, sym = network("mlp")
    members = [random_state(model, k) for k in range(5)]
    match = coset.align_many(members, sym, generator=torch.Generator().manual_seed(0))
    assert isinstance(match, ManyMatch)
    assert list(match.history) == sorted(match.history)
    images = [sym.act(g, s) for g, s in zip(match.elements, members, strict=True)]
    pairs = [(i, j) for i in range(5) for j in range(i)]
    assert match.objective == pytest.approx(sum(float(states.inner(images[i], images[j])) for i, j in pairs), rel=1e-4)
    assert match.identity_objective == pytest.approx(
        sum(float(states.inner(members[i], members[j])) for i, j in pairs), rel=1e-3, abs=1e-3
    )


def test_hidden_permutations_are_found_jointly() -> None:
    model, sym = network("mlp")
    a = random_state(model, 0)
    generator = torch.Generator().manual_seed(1)
    hidden = [sym.random(generator) for _ in range(4)]
    match = coset.align_many([sym.act(g, a) for g in hidden], sym)
    assert isinstance(match, ManyMatch)
    frames = [g @ h for g, h in zip(match.elements, hidden, strict=True)]
    assert all(same(sym, frame, frames[0]) for frame in frames)


@pytest.mark.parametrize("name", SPECS)
def test_a_population_is_aligned_like_its_members(name: str) -> None:
    model, sym = network(name)
    members = [random_state(model, k) for k in range(5)]
    match = coset.align_many(states.stack(members), sym, 1)
    assert isinstance(match, PopulationMatch)
    images = states.unstack(sym.act(match.element, states.stack(members)))
    for k, (member, image) in enumerate(zip(members, images, strict=True)):
        alone = coset.align(members[1], member, sym)
        element = Element(sym.sets, {n: p[k] for n, p in match.element.permutations.items()})
        assert states.allclose(image, sym.act(element, member))
        assert float(match.objective[k]) == pytest.approx(alone.objective, rel=0.05)
        assert float(match.objective[k]) >= float(match.identity_objective[k])
    assert states.allclose(images[1], members[1])


def test_a_population_object_is_its_states() -> None:
    model, sym = network("mlp")
    population = states.stack([random_state(model, k) for k in range(4)])
    as_object, as_state = (coset.align_many(x, sym) for x in (coset.Population(population), population))
    assert torch.equal(as_object.objective, as_state.objective)


def test_a_population_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    model, sym = network("mlp")
    population = states.stack([random_state(model, k) for k in range(7)])
    whole = coset.align_many(population, sym)
    monkeypatch.setattr("coset.alignment.population.ENTRIES", 2 * 64)
    parts = coset.align_many(population, sym)
    assert isinstance(whole, PopulationMatch) and isinstance(parts, PopulationMatch)
    assert torch.allclose(whole.objective, parts.objective)
    assert parts.element[sym.groups[0].name].shape == (7, 8)


def test_errors() -> None:
    model, sym = network("mlp")
    a = random_state(model, 0)
    with pytest.raises(CosetError, match="no solutions"):
        coset.align_many([], sym)
    with pytest.raises(CosetError, match="no solution 3 among 2"):
        coset.align_many([a, a], sym, 3)
    with pytest.raises(CosetError, match="give a reference"):
        coset.align_many([a, a], sym, method="activations")


def test_a_merged_regression_keeps_its_noise() -> None:
    """As a deviation it is averaged; networks with and without it do not mix."""
    state = {"weight": torch.ones(2, 2)}
    merged = barycenter([coset.Dirac(state, noise=0.1), coset.Dirac(state, noise=0.4)], [2.0, 1.0])
    assert merged.noise == pytest.approx(0.2)
    spread = coset.Gaussian(state, state, noise=0.3)
    assert barycenter([spread, spread]).noise == pytest.approx(0.3) and wide(spread).noise == 0.3
    with pytest.raises(CosetError, match="Some of these solutions have noise"):
        barycenter([coset.Dirac(state, noise=0.1), coset.Dirac(state)])
