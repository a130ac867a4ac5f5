"""Barriers of pairs against coset.barrier on each pair."""

from __future__ import annotations

import json

import pytest
import torch
from torch import Tensor

import coset
from coset import zoo
from coset.core import state as states
from coset.populations import pair_barriers as barriers
from coset.populations.pair_barriers import align_pairs, pair_barriers


def relatives(sizes: list[int], n: int) -> tuple[zoo.MLP, coset.Symmetry, dict[str, Tensor], tuple[Tensor, Tensor]]:
    """Networks near one, with their units in random order, and what that one says."""
    model, sym, population = networks(sizes, n)
    near = {name: 2 * x[:1] + 0.7 * x for name, x in population.items()}
    inputs = torch.randn(200, sizes[0], generator=torch.Generator().manual_seed(3))
    targets = states.call(model, {name: x[0] for name, x in population.items()}, inputs).argmax(-1)
    return model, sym, sym.act(sym.random(torch.Generator().manual_seed(2), batch=n), near), (inputs, targets)


def networks(sizes: list[int], n: int) -> tuple[zoo.MLP, coset.Symmetry, dict[str, Tensor]]:
    torch.manual_seed(0)
    model = zoo.MLP(sizes)
    sym = coset.symmetry(model, (torch.randn(4, sizes[0]),))
    generator = torch.Generator().manual_seed(1)
    return model, sym, {name: torch.randn(n, *x.shape, generator=generator) for name, x in states.of(model).items()}


@pytest.mark.parametrize("points", [1, 3])
def test_each_pair_by_coset(points: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(barriers, "COORDINATES", 400)  # a few pairs at a time
    model, sym, population, data = relatives([4, 6, 3], 5)
    result = pair_barriers(population, sym, model, data, points=points, reference=2)
    members = states.unstack(population)
    framed = [sym.act(coset.align(members[2], one, sym).element, one) for one in members]
    assert len(result.pairs) == 10

    def height(a: dict[str, Tensor], b: dict[str, Tensor]) -> float:
        return max(coset.barrier(coset.geodesic(a, b), model, data, points=points + 2).excess[1:-1])

    for k, (i, j) in enumerate(result.pairs.tolist()):
        assert result.before[k] == pytest.approx(height(members[i], members[j]), rel=1e-4, abs=1e-6)
        assert result.common[k] == pytest.approx(height(framed[i], framed[j]), rel=1e-4, abs=1e-6)
        own = sym.act(coset.align(members[i], members[j], sym).element, members[j])
        assert result.paired[k] == pytest.approx(height(members[i], own), rel=1e-4, abs=1e-6)
    assert json.loads(result.to_json())["before"]["mean"] == pytest.approx(float(result.before.mean()))


def test_permuted_copies_have_no_barrier_once_aligned() -> None:
    model, sym, population, data = relatives([4, 6, 3], 1)
    element = sym.random(torch.Generator().manual_seed(2), batch=8)
    copies = sym.act(element, {name: x[0] for name, x in population.items()})
    result = pair_barriers(copies, sym, model, data, pairs=20)
    assert len(result.pairs) == 20
    assert result.spreads["before"].mean > 0.05
    assert max(float(x.abs().max()) for x in (result.common, result.paired)) < 1e-5


def test_values_of_regression() -> None:
    model, sym, population = networks([4, 6, 2], 3)
    data = torch.randn(40, 4), torch.randn(40, 2)
    result = pair_barriers(population, sym, model, data, noise=0.9)
    a, b = (coset.Dirac(states.unstack(population)[int(k)], 0.9) for k in result.pairs[0])
    assert result.before[0] == pytest.approx(
        coset.barrier(coset.geodesic(a, b), model, data, points=3).excess[1], rel=1e-4
    )


@pytest.mark.parametrize("sizes", [[4, 6, 3], [4, 6, 5, 3]])
def test_pairs_are_aligned_as_one_by_one(sizes: list[int]) -> None:
    """The same objective as coset.align, to which it is equal where that is the maximum."""
    _, sym, a = networks(sizes, 12)
    b = {name: x.flip(0) for name, x in a.items()}
    aligned = sym.act(align_pairs(a, b, sym), b)
    gains = []
    for one, other, there in zip(*map(states.unstack, (a, b, aligned)), strict=True):
        match = coset.align(one, other, sym)
        assert float(states.inner(one, there)) > float(states.inner(one, other)) - 1e-6
        gains.append(float(states.inner(one, there)) - float(states.inner(one, sym.act(match.element, other))))
    if len(sizes) == 3:
        assert max(map(abs, gains)) < 1e-4
    assert sum(gains) > -2  # two climbs may end apart, but neither is better on the whole


def test_units_inside_heads_are_aligned_too() -> None:
    torch.manual_seed(0)
    model = zoo.ViT(dim=8, depth=1, heads=2, patch=4, image_size=8, classes=3)
    sym = coset.symmetry(model, (torch.randn(2, 3, 8, 8),))
    a = states.stack([states.of(model)] * 2)
    b = sym.act(sym.random(torch.Generator().manual_seed(0), batch=2), a)
    assert states.allclose(sym.act(align_pairs(a, b, sym), b), a)


def test_refusals() -> None:
    model, sym, population = networks([4, 6, 3], 3)
    with pytest.raises(coset.CosetError, match="too few"):
        pair_barriers(population, sym, model, (torch.randn(3, 4), torch.zeros(3, dtype=torch.long)), points=0)
