"""Sinkhorn re-basin: hidden permutations are found, and losses between networks fall below weight matching's."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import coset
from coset import CosetError, Dirac, Element, Sinkhorn, Symmetry
from coset.alignment.coordinate_ascent import maximise
from coset.alignment.objective import InnerProduct, Objective
from coset.core import state as states
from coset.data import Split, load
from coset.zoo import build, example_input

State = dict[str, Tensor]


@functools.cache
def network(spec: str) -> tuple[nn.Module, Symmetry]:
    model = build(spec)
    return model, coset.symmetry(model, example_input(model), verify=False)


@functools.cache
def digits() -> Split:
    return load("digits", flatten=True).train


@functools.cache
def trained(seed: int) -> State:
    model = build("mlp:64-32-32-32-10")
    generator = torch.Generator().manual_seed(seed)
    for name, p in model.named_parameters():
        fan = p.shape[-1] if name.endswith("weight") else torch.inf
        p.data = torch.randn(p.shape, generator=generator) * (2 / fan) ** 0.5
    adam = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(20):
        for inputs, targets in digits().minibatches(64, generator):
            adam.zero_grad()
            nn.functional.cross_entropy(model(inputs), targets).backward()
            adam.step()
    return states.of(model)


def random_state(model: nn.Module, seed: int) -> State:
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(x.shape, generator=generator) for name, x in states.of(model).items()}


def hidden(sym: Symmetry, state: State, noise: float) -> tuple[State, Element]:
    """A noisy permuted copy, and the element that undoes it."""
    g = sym.random(torch.Generator().manual_seed(5))
    generator = torch.Generator().manual_seed(6)
    copy = {n: x + noise * torch.randn(x.shape, generator=generator) for n, x in sym.act(g, state).items()}
    return copy, g.inverse()


def same(sym: Symmetry, g: Element, h: Element) -> bool:
    return all(torch.equal(g[group.name], h[group.name]) for group in sym.groups)


def loss_at(a: State, b: State, t: float) -> float:
    model, _ = network("mlp:64-32-32-32-10")
    with torch.no_grad():
        logits = states.call(model, states.lerp(a, b, t), (digits().inputs,))
        return float(nn.functional.cross_entropy(logits, digits().targets))


@pytest.mark.parametrize("spec", ["mlp:6-12-12-4", "vit:dim=12,depth=1,heads=3,patch=16"])
def test_l2_finds_a_hidden_permutation_in_noise(spec: str) -> None:
    model, sym = network(spec)
    a = random_state(model, 0)
    b, answer = hidden(sym, a, 0.3)
    match = coset.align(a, b, sym, Sinkhorn("l2", steps=20))
    assert same(sym, match.element, answer)
    assert match.objective == pytest.approx(Objective(sym, [InnerProduct(a, b)]).value(answer))
    assert match.identity_objective == pytest.approx(float(states.inner(a, b)), abs=1e-3)


@pytest.mark.parametrize("spec", ["mlp:6-12-12-4", "gpt:dim=8,depth=1,heads=2,vocab=5,context=4"])
def test_a_function_is_minimised_wherever_weights_point(spec: str) -> None:
    """The target is known to the objective only, so that all depends on the descent."""
    model, sym = network(spec)
    target, unrelated = random_state(model, 0), random_state(model, 1)
    b, answer = hidden(sym, target, 0.1)

    def distance(state: states.State) -> Tensor:
        return torch.stack([(target[name] - x).square().sum() for name, x in state.items()]).sum()

    match = coset.align(unrelated, b, sym, Sinkhorn(distance, steps=150))
    assert same(sym, match.element, answer)
    assert len(match.history) == match.sweeps == 150
    assert match.history[-1] < 0.2 * match.history[0]


@pytest.mark.parametrize(("objective", "times"), [("midpoint", [0.5]), ("random", [0.25, 0.5, 0.75])])
def test_the_loss_between_trained_networks_falls_below_that_of_weight_matching(
    objective: Any, times: list[float]
) -> None:
    model, sym = network("mlp:64-32-32-32-10")
    a, b = trained(0), trained(1)
    weights = maximise(Objective(sym, [InnerProduct(a, b)]), greedy=True)
    match = coset.align(a, b, sym, Sinkhorn(objective, steps=100), model, digits())
    before, after = (
        sum(loss_at(a, sym.act(element, b), t) for t in times) for element in (weights.element, match.element)
    )
    assert after < 0.8 * before
    assert match.identity_objective < match.objective <= weights.objective
    assert loss_at(a, sym.act(match.element, b), 1.0) == pytest.approx(loss_at(a, b, 1.0), rel=1e-4)


def test_it_is_never_worse_than_weight_matching() -> None:
    model, sym = network("mlp:64-32-32-32-10")
    a, b = trained(0), trained(1)
    weights = maximise(Objective(sym, [InnerProduct(a, b)]), greedy=True)
    match = coset.align(a, b, sym, Sinkhorn("midpoint", steps=2, rate=100.0), model, digits())
    assert same(sym, match.element, weights.element)


@pytest.mark.parametrize("objective", ["midpoint", "random"])
def test_it_is_determined_by_the_generator(objective: Any) -> None:
    model, sym = network("mlp:64-32-32-32-10")

    def run(seed: int) -> coset.Match:
        generator = torch.Generator().manual_seed(seed)
        method = Sinkhorn(objective, steps=6, batch_size=32)
        return coset.align(trained(0), trained(1), sym, method, model, digits(), generator=generator)

    first, again, other = run(3), run(3), run(4)
    assert first.history == again.history
    assert same(sym, first.element, again.element)
    assert first.history != other.history


def test_gradients_go_through_batch_norm_and_the_model_stays_as_it_is() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 10)).train()
    sym = coset.symmetry(model, (digits().inputs[:4],))
    a = states.of(model)
    a["1.running_mean"], a["1.running_var"] = torch.randn(8), torch.rand(8) + 0.5
    b, _ = hidden(sym, {n: x for n, x in a.items() if x.is_floating_point()}, 0.0)
    b["1.num_batches_tracked"] = a["1.num_batches_tracked"]
    before = states.of(model)
    texts: list[str] = []
    match = coset.align(
        a,
        b,
        sym,
        Sinkhorn(steps=5),
        model=model,
        data=(digits().inputs, digits().targets),
        progress=lambda event: texts.append(event.text),
    )
    assert model.training and model[1].training
    assert states.allclose(states.of(model), before)
    assert all(p.grad is None for p in model.parameters())
    assert len(set(match.history)) == 5
    assert texts[-1].startswith("step 5 of 5")


def test_a_network_without_units_to_move_is_left_alone() -> None:
    model, sym = network("mlp:6-4")
    a = random_state(model, 0)
    match = coset.align(a, random_state(model, 1), sym, Sinkhorn("l2"))
    assert not match.element.permutations


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"objective": "middle"}, "no objective 'middle'"),
        ({"steps": 0}, "steps of Sinkhorn is 0"),
        ({"rate": float("nan")}, "rate of Sinkhorn is nan"),
        ({"temperature": -1.0}, "temperature of Sinkhorn is -1"),
        ({"batch_size": 0}, "batch_size of Sinkhorn is 0"),
    ],
)
def test_impossible_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(CosetError, match=message):
        Sinkhorn(**settings)


@pytest.mark.parametrize(
    ("objective", "message"),
    [
        ("midpoint", '"midpoint" is a loss on data: give model and data'),
        ("random", '"random" is a loss on data: give model and data'),
        (lambda state: 1.0, "a tensor that holds one number"),
        (lambda state: state["layers.0.bias"], "a tensor that holds one number"),
        (lambda state: torch.ones(()), "does not depend on the state"),
        (lambda state: state["layers.0.bias"].sum() * torch.inf, "at step 1"),
    ],
)
def test_an_objective_that_cannot_be_used_is_refused(objective: Any, message: str) -> None:
    model, sym = network("mlp:6-12-12-4")
    a, b = Dirac(random_state(model, 0)), Dirac(random_state(model, 1))
    with pytest.raises(CosetError, match=message):
        coset.align(a, b, sym, Sinkhorn(objective), model)


def test_targets_that_are_no_classes_are_refused() -> None:
    model, sym = network("mlp:6-12-12-4")
    a = Dirac(random_state(model, 0))
    with pytest.raises(CosetError, match="only classification"):
        coset.align(a, a, sym, "sinkhorn", model, (torch.randn(5, 6), torch.randn(5, 4)))
