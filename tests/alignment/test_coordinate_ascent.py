"""Coordinate ascent: proposals gain what they say, values rise, hidden permutations are found, optima are optima."""

from __future__ import annotations

import itertools

import pytest
import torch
from alignment_nets import SPECS, network, random_state
from torch import nn

import coset
from coset import Element, Symmetry, zoo
from coset.alignment.coordinate_ascent import FibredNode, JointNode, PlainNode, after, maximise, nodes_of
from coset.alignment.objective import InnerProduct, Objective


def same(sym: Symmetry, g: Element, h: Element) -> bool:
    return all(torch.equal(g[group.name], h[group.name]) for group in sym.groups)


@pytest.mark.parametrize("seed", range(3))
def test_a_proposal_gains_what_it_says(net: tuple[nn.Module, Symmetry], seed: int) -> None:
    model, sym = net
    objective = Objective(sym, [InnerProduct(random_state(model, seed), random_state(model, seed + 10))])
    element = sym.random(torch.Generator().manual_seed(seed))
    for node in nodes_of(objective):
        move = node.propose(element, None)
        candidate = after(move.delta, element)
        truth = objective.value(candidate) - objective.value(element)
        assert same(sym, candidate, move.delta @ element)
        if move.exact:
            assert move.gain == pytest.approx(truth, abs=1e-3)
            assert move.gain > -1e-4


def test_kinds_of_nodes() -> None:
    def kinds(name: str) -> set[type]:
        model, sym = network(name)
        return {
            type(node)
            for node in nodes_of(Objective(sym, [InnerProduct(random_state(model, 0), random_state(model, 1))]))
        }

    assert kinds("mlp") == {PlainNode}
    assert kinds("vit") == {PlainNode, FibredNode, JointNode}


@pytest.mark.parametrize("greedy", [True, False])
def test_values_rise(net: tuple[nn.Module, Symmetry], greedy: bool) -> None:
    model, sym = net
    objective = Objective(sym, [InnerProduct(random_state(model, 0), random_state(model, 1))])
    match = maximise(objective, greedy=greedy)
    assert list(match.history) == sorted(match.history)
    assert match.objective == pytest.approx(objective.value(match.element))
    assert match.objective >= match.identity_objective == pytest.approx(objective.value(sym.identity()))


def test_the_function_is_preserved(net: tuple[nn.Module, Symmetry]) -> None:
    model, sym = net
    a, b = random_state(model, 0), random_state(model, 1)
    image = sym.act(maximise(Objective(sym, [InnerProduct(a, b)]), greedy=True).element, b)
    args = zoo.example_input(model)
    with torch.no_grad():
        before, after = (coset.core.state.call(model, s, args) for s in (b, image))
    torch.testing.assert_close(after, before, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_a_hidden_permutation_is_found(name: str, noise: float) -> None:
    model, sym = network(name)
    a = random_state(model, 0)
    hidden = sym.random(torch.Generator().manual_seed(5))
    other = random_state(model, 9)
    b = sym.act(hidden, {n: x + noise * other[n] if x.is_floating_point() else x for n, x in a.items()})
    match = maximise(Objective(sym, [InnerProduct(a, b)]), greedy=True)
    assert same(sym, match.element @ hidden, sym.identity())


@pytest.mark.parametrize("seed", range(4))
def test_restarts_reach_the_optimum_of_a_tiny_net(seed: int) -> None:
    """Brute force over all 36 elements."""
    model = zoo.build("mlp:2-3-3-2")
    sym = coset.symmetry(model, zoo.example_input(model))
    objective = Objective(sym, [InnerProduct(random_state(model, seed), random_state(model, seed + 50))])
    orders = [torch.tensor(p) for p in itertools.permutations(range(3))]
    first, second = (group.name for group in sym.groups)
    best = max(objective.value(sym.element({first: p, second: q})) for p in orders for q in orders)
    match = maximise(objective, restarts=12)
    assert match.objective == pytest.approx(best, abs=1e-5)
    assert len(match.objectives) == 12
    assert match.objective == max(match.objectives)


def test_kept_scores_follow_their_neighbours() -> None:
    """Updated by the change of the neighbours only, they equal those made anew."""
    model, sym = network("mlp")
    objective = Objective(sym, [InnerProduct(random_state(model, 0), random_state(model, 1))])
    nodes = {node.name: node for node in nodes_of(objective) if isinstance(node, PlainNode)}
    generator = torch.Generator().manual_seed(0)
    element = sym.random(generator)
    for step in range(12):
        group = sym.groups[step % 2]
        swap = torch.arange(group.size)
        swap[[0, 3]] = swap[[3, 0]]
        element = after(sym.element({group.name: swap if step < 8 else torch.randperm(group.size)}), element)
        for fresh in nodes_of(objective):
            assert isinstance(fresh, PlainNode)
            fresh.propose(element, None)
            nodes[fresh.name].propose(element, None)
            assert fresh.scores is not None
            torch.testing.assert_close(nodes[fresh.name].scores, fresh.scores, rtol=1e-4, atol=1e-5)


def test_units_that_meet_themselves_rise_by_the_true_objective() -> None:
    """A recurrent layer: U[i, j] has the units on both axes, so that one assignment is not the whole truth."""
    core = nn.RNN(3, 6, batch_first=True)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.core, self.out = core, nn.Linear(6, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.out(self.core(x)[0])

    model = Net()
    sym = coset.symmetry(model, (torch.randn(2, 4, 3),))
    a, b = random_state(model, 0), random_state(model, 1)
    objective = Objective(sym, [InnerProduct(a, b)])
    match = maximise(objective, restarts=5)
    assert list(match.history) == sorted(match.history)
    orders = (torch.tensor(p) for p in itertools.permutations(range(6)))
    best = max(objective.value(sym.element({sym.groups[0].name: p})) for p in orders)
    assert match.identity_objective < match.objective <= best + 1e-5


def test_same_seed_same_result() -> None:
    model, sym = network("mlp")
    objective = Objective(sym, [InnerProduct(random_state(model, 0), random_state(model, 1))])
    runs = [maximise(objective, restarts=3, generator=torch.Generator().manual_seed(7)) for _ in range(2)]
    assert runs[0].objectives == runs[1].objectives
    assert same(sym, runs[0].element, runs[1].element)


def test_buffers_do_not_count() -> None:
    model, sym = network("resnet")
    a, b = random_state(model, 0), random_state(model, 1)
    changed = {name: x * 3 if name.endswith("running_var") else x for name, x in b.items()}
    values = [Objective(sym, [InnerProduct(a, other)]).value(sym.identity()) for other in (b, changed)]
    assert values[0] == values[1]
