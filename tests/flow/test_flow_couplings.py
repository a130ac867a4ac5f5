"""Couplings: what belongs together, by brute force on small groups."""

import itertools

import pytest
import torch
from torch import Tensor

import coset
from coset import zoo
from coset.core import state as states
from coset.core.errors import CosetError
from coset.flow.coordinates import BaseDistribution, Geometry, Independent, OwnStarts, Space, space
from coset.flow.transport import Transport, UnitDistances, refuse_many_conditions, squared_distances


def room(spec: str, geometry: Geometry) -> Space:
    model = zoo.build(spec)
    return space(coset.symmetry(model, zoo.example_input(model)), states.of(model), geometry)


def base_of(own: Space) -> BaseDistribution:
    return BaseDistribution(own, {}, dict.fromkeys(own.ends.chart.shapes, 1.0))


def reordered(own: Space, x: Tensor, orders: list[tuple[int, ...]]) -> Tensor:
    """The same network with its hidden units in each of the orders, by hand."""
    networks = own.manifold.chart.state(x, own.template)
    images = []
    for p in orders:
        order = list(p)
        images.append(
            {
                "layers.0.weight": networks["layers.0.weight"][order],
                "layers.0.bias": networks["layers.0.bias"][order],
                "layers.1.weight": networks["layers.1.weight"][:, order],
                "layers.1.bias": networks["layers.1.bias"],
            }
        )
    return own.manifold.chart.coordinates(states.stack(images)).float()


@pytest.mark.parametrize("geometry", ["euclidean", "geometric"])
def test_distances_of_all_pairs_are_those_of_the_manifold(geometry: Geometry) -> None:
    own = room("mlp:4-3-2", geometry)
    x, y = base_of(own).draw(4), base_of(own).draw(5)
    expected = own.manifold.dist(x[:, None], y[None]).square()
    assert torch.allclose(squared_distances(own, x[None], y[None])[0], expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("geometry", ["euclidean", "geometric"])
def test_the_matching_is_the_best_of_all_pairings_and_orders(geometry: Geometry) -> None:
    torch.manual_seed(2)
    own = room("mlp:4-3-2", geometry)
    starts, ends = base_of(own).draw(3), base_of(own).draw(3)
    orders = list(itertools.permutations(range(3)))
    best = torch.empty(3, 3)
    for i, j in itertools.product(range(3), range(3)):
        best[i, j] = own.manifold.dist(ends[i], reordered(own, starts[j], orders)).square().min()
    expected = min(sum(float(best[i, p[i]]) for i in range(3)) for p in orders)
    result = UnitDistances(own).matched(starts[None], ends[None])[0]
    assert float(own.manifold.dist(ends, result).square().sum()) == pytest.approx(expected, rel=1e-4)


def test_every_start_is_used_once_up_to_the_order_of_its_units() -> None:
    own = room("mlp:4-3-2", "euclidean")
    base = base_of(own)
    ends = base.draw(23, torch.Generator().manual_seed(5))
    coupling = Transport(ends, None, base, group=8)
    coupling.refresh(torch.Generator().manual_seed(1))
    fresh = base.draw(23, torch.Generator().manual_seed(1))
    result = coupling.starts(torch.arange(23), torch.Generator())
    bias = own.manifold.chart.state(result, own.template)["layers.1.bias"]  # which no order changes
    expected_bias = own.manifold.chart.state(fresh, own.template)["layers.1.bias"]
    assert {tuple(row) for row in bias.tolist()} == {tuple(row) for row in expected_bias.tolist()}


def test_pairs_are_closer_than_independent_ones_and_the_same_generator_gives_the_same() -> None:
    own = room("mlp:4-3-2", "geometric")
    base = base_of(own)
    ends = base.draw(64, torch.Generator().manual_seed(5))
    at = torch.arange(64)
    lengths = []
    for group in (1, 64):
        coupling = Transport(ends, None, base, group)
        coupling.refresh(torch.Generator().manual_seed(3))
        first = coupling.starts(at, torch.Generator()).clone()
        coupling.refresh(torch.Generator().manual_seed(3))
        assert torch.equal(first, coupling.starts(at, torch.Generator()))
        lengths.append(float(own.manifold.dist(first, ends).square().mean()))
    independent = Independent(ends, None, base).starts(at, torch.Generator().manual_seed(3))
    lengths.insert(0, float(own.manifold.dist(independent, ends).square().mean()))
    assert lengths[0] > 1.1 * lengths[1] > 1.1 * lengths[2]


def test_networks_are_matched_within_their_condition() -> None:
    own = room("mlp:4-3-2", "euclidean")
    base = base_of(own)
    # Networks of two conditions that lie apart: matched together, the start would tell the condition.
    shift = torch.tensor([-3.0, 3.0]).repeat_interleave(64)[:, None]
    ends = base.draw(128, torch.Generator().manual_seed(5)) + shift
    coupling = Transport(ends, shift, base, group=128)
    coupling.refresh(torch.Generator().manual_seed(3))
    starts = coupling.starts(torch.arange(128), torch.Generator())
    means = starts.view(2, 64, -1).mean((1, 2))
    assert float((means[0] - means[1]).abs()) < 0.1
    joint = Transport(ends, None, base, group=128)
    joint.refresh(torch.Generator().manual_seed(3))
    means = joint.starts(torch.arange(128), torch.Generator()).view(2, 64, -1).mean((1, 2))
    assert float((means[0] - means[1]).abs()) > 0.2  # what conditions avoid


def test_conditions_that_all_differ_are_refused() -> None:
    with pytest.raises(CosetError, match="round conditions to a few levels"):
        refuse_many_conditions(torch.rand(16, 1))


def test_deep_networks_are_matched_as_they_are() -> None:
    own = room("mlp:4-3-3-2", "geometric")
    base = base_of(own)
    ends = base.draw(6)
    coupling = Transport(ends, None, base, group=6)
    coupling.refresh(torch.Generator().manual_seed(1))
    fresh = base.draw(6, torch.Generator().manual_seed(1))
    costs = squared_distances(own, ends[None], fresh[None])[0]
    best = min(sum(float(costs[i, p[i]]) for i in range(6)) for p in itertools.permutations(range(6)))
    result = coupling.starts(torch.arange(6), torch.Generator())
    assert float(own.manifold.dist(ends, result).square().sum()) == pytest.approx(best, rel=1e-3)


def test_training_gives_each_network_its_own_start() -> None:
    ends, starts = torch.rand(5, 3), torch.rand(5, 3)
    at = torch.tensor([3, 0])
    x0, x1, condition = OwnStarts(ends, torch.arange(5.0)[:, None], starts).pairs(at, torch.Generator())
    assert torch.equal(x0, starts[at]) and torch.equal(x1, ends[at])
    assert condition is not None and condition.flatten().tolist() == [3.0, 0.0]
