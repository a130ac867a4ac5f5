"""Guidance against finite differences of the loss, and what it does to networks."""

from __future__ import annotations

import functools
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings, strategies as st
from torch import Tensor, nn

import coset
from coset import Manifold, zoo
from coset.core import state as states
from coset.data import Split
from coset.flow.guidance import Guidance, guided
from coset.flow.likelihood import exact
from coset.flow.solvers import Solver, VelocityFunction, solve

law = settings(deadline=None, derandomize=True, max_examples=3, suppress_health_check=list(HealthCheck))


def blobs(n: int = 60) -> Split:
    """Three classes around three points of the plane."""
    generator = torch.Generator().manual_seed(0)
    centres = torch.tensor([[2.0, 0.0], [-1.0, 2.0], [-1.0, -2.0]], dtype=torch.float64)
    targets = torch.arange(n) % 3
    return Split(centres[targets] + 0.5 * torch.randn(n, 2, generator=generator, dtype=torch.float64), targets)


@functools.cache
def symmetry() -> coset.Symmetry:
    model = zoo.MLP([2, 4, 3]).double()
    return coset.symmetry(model, (torch.zeros(1, 2, dtype=torch.float64),), verify=False)


class Problem:
    """A 2-4-3 network in float64 on a manifold with or without spheres, and its loss written out."""

    def __init__(self, curved: bool = True) -> None:
        self.model = zoo.MLP([2, 4, 3]).double()
        self.like = states.of(self.model)
        sym = symmetry()
        self.manifold = coset.manifold(sym if curved else replace(sym, scalings=()), self.like)
        assert bool(self.manifold.spheres) == curved

    def decode(self, x: Tensor) -> dict[str, Tensor]:
        return self.manifold.state(x, self.like)

    def points(self, n: int, seed: int = 0) -> Tensor:
        return self.manifold.random(n, torch.Generator().manual_seed(seed), dtype=torch.float64)

    def loss(self, x: Tensor, split: Split) -> float:
        """Of one network, x [D]: the mean cross-entropy."""
        w = self.decode(x)
        hidden = (split.inputs @ w["layers.0.weight"].T + w["layers.0.bias"]).relu()
        logits = hidden @ w["layers.1.weight"].T + w["layers.1.bias"]
        return float(nn.functional.cross_entropy(logits, split.targets))

    def slope(self, x: Tensor, direction: Tensor, split: Split) -> float:
        """Of the loss along a geodesic, by differences."""
        step = 1e-5
        ends = [self.loss(self.manifold.exp(x, s * step * direction), split) for s in (1, -1)]
        return (ends[0] - ends[1]) / (2 * step)

    @property
    def units(self) -> Tensor:
        return torch.linspace(0.5, 2.0, self.manifold.size, dtype=torch.float64)

    def guided(
        self, field: VelocityFunction, guidance: Guidance, generator: torch.Generator | None = None
    ) -> VelocityFunction:
        return guided(field, guidance, self.decode, self.manifold, self.units, generator)


def plain(problem: Problem, split: Split, strength: float, at: Any = "state", **more: Any) -> Guidance:
    return Guidance(problem.model, split, strength, at=at, scale="gradient", **more)


def still(x: Tensor, t: Tensor) -> Tensor:
    return torch.zeros_like(x)


def drift(m: Manifold) -> VelocityFunction:
    return lambda x, t: m.tangent(x, (1 + t[:, None]) * (2 * x).sin().flip(1))


@pytest.mark.parametrize("curved", [False, True])
@law
@given(st.integers(0, 1000))
def test_against_differences(curved: bool, seed: int) -> None:
    problem, split = Problem(curved), blobs()
    m = problem.manifold
    x, t = problem.points(3, seed), torch.full((3,), 0.4, dtype=torch.float64)
    field = drift(m)
    force = problem.guided(field, plain(problem, split, 2.5))(x, t) - field(x, t)
    assert torch.allclose(m.tangent(x, force), force, atol=1e-12)
    directions = m.tangent(x, torch.randn(3, m.size, generator=torch.Generator().manual_seed(seed)).double())
    for k in range(3):
        expected = -2.5 * problem.slope(x[k], directions[k], split)
        assert float(force[k] @ directions[k]) == pytest.approx(expected, rel=1e-4, abs=1e-7)


@pytest.mark.parametrize("curved", [False, True])
@law
@given(st.integers(0, 1000))
def test_end_points_against_differences(curved: bool, seed: int) -> None:
    """The slope at the end point along a direction that is carried there from x."""
    problem, split = Problem(curved), blobs()
    m, field = problem.manifold, drift(problem.manifold)
    x, t = problem.points(2, seed), torch.tensor([0.1, 0.8], dtype=torch.float64)
    force = problem.guided(field, plain(problem, split, 0.7, "endpoint"))(x, t) - field(x, t)
    end = m.exp(x, (1 - t)[:, None] * field(x, t))
    directions = m.tangent(x, torch.randn(2, m.size, generator=torch.Generator().manual_seed(seed)).double())
    there = m.transport(x, end, directions)
    for k in range(2):
        expected = -0.7 * problem.slope(end[k], there[k], split)
        assert float(force[k] @ directions[k]) == pytest.approx(expected, rel=1e-4, abs=1e-7)


@pytest.mark.parametrize("curved", [False, True])
@pytest.mark.parametrize("at", ["state", "endpoint"])
def test_relative_to_the_velocity(curved: bool, at: Any) -> None:
    """The force is as long as the velocity, times the strength, and nothing of that length lowers the loss faster."""
    problem, split = Problem(curved), blobs()
    m, field, u = problem.manifold, drift(problem.manifold), problem.units
    x, t = problem.points(3), torch.tensor([0.1, 0.5, 0.9], dtype=torch.float64)
    v = field(x, t)
    force = problem.guided(field, Guidance(problem.model, split, 1.5, at=at))(x, t) - v
    where = x if at == "state" else m.exp(x, (1 - t)[:, None] * v)
    there = m.transport(x, where, force)
    generator = torch.Generator().manual_seed(0)
    assert torch.allclose(m.tangent(x, force), force, atol=1e-12)
    for k in range(3):
        assert float((there[k] / u).norm()) == pytest.approx(1.5 * float((v[k] / u).norm()))
        best = problem.slope(where[k], there[k], split) / float((there[k] / u).norm())
        others = m.tangent(where[k : k + 1], there[k] + 0.1 * torch.randn(100, m.size, generator=generator).double())
        slopes = [problem.slope(where[k], each, split) / float((each / u).norm()) for each in others]
        assert best < 0 and min(slopes) > best


def test_relative_guidance_has_no_units() -> None:
    """A hundred times the loss is the same guidance."""
    model = zoo.MLP([2, 4, 1]).double()
    like = states.of(model)
    m = coset.manifold(coset.symmetry(model, (torch.zeros(1, 2, dtype=torch.float64),), verify=False), like)
    generator = torch.Generator().manual_seed(0)
    x, t = m.random(3, generator, dtype=torch.float64), torch.full((3,), 0.4, dtype=torch.float64)
    inputs = torch.randn(6, 2, generator=generator, dtype=torch.float64)
    field, units = drift(m), torch.ones(m.size, dtype=torch.float64)
    result = []
    for noise in (1.0, 0.1):
        guidance = Guidance(model, (inputs, inputs[:, :1]), 2.0, noise=noise)
        result.append(guided(field, guidance, lambda x: m.state(x, like), m, units)(x, t))
    assert torch.allclose(*result) and not torch.allclose(result[0], field(x, t))


@pytest.mark.parametrize("scale", ["velocity", "gradient"])
@pytest.mark.parametrize("at", ["state", "endpoint"])
def test_networks_do_not_see_each_other(at: Any, scale: Any) -> None:
    problem = Problem()
    field = problem.guided(drift(problem.manifold), Guidance(problem.model, blobs(), 1.0, at=at, scale=scale))
    x, t = problem.points(4), torch.rand(4, generator=torch.Generator().manual_seed(0)).double()
    alone = torch.cat([field(x[k : k + 1], t[k : k + 1]) for k in range(4)])
    assert torch.allclose(field(x, t), alone)


def test_minibatches_are_unbiased() -> None:
    problem, split = Problem(), blobs(12)
    x, t = problem.points(1), torch.zeros(1, dtype=torch.float64)
    whole = problem.guided(still, plain(problem, split, 1.0))(x, t)
    all_of_it = problem.guided(still, plain(problem, split, 1.0, batch_size=12))(x, t)
    assert torch.allclose(all_of_it, whole)
    field = problem.guided(still, plain(problem, split, 1.0, batch_size=3), torch.Generator().manual_seed(0))
    velocities = torch.cat([field(x, t) for _ in range(150)])
    error = velocities.std(0) / math.sqrt(150)
    assert float(velocities.std(0).max()) > 0.01
    assert bool(((velocities.mean(0) - whole[0]).abs() < 4.5 * error + 1e-12).all())


@pytest.mark.parametrize("scale", ["velocity", "gradient"])
@pytest.mark.parametrize("at", ["state", "endpoint"])
def test_the_divergence_of_a_guided_field(at: Any, scale: Any) -> None:
    """Second derivatives of the loss are part of it."""
    problem = Problem(curved=False)
    x, t = problem.points(2), torch.tensor([0.3, 0.6], dtype=torch.float64)
    guidance = Guidance(problem.model, blobs(), 5.0, at=at, scale=scale)
    field = problem.guided(drift(problem.manifold), guidance)
    v, result = exact(field, problem.manifold)(x, t)
    assert torch.allclose(v, field(x, t)) and not v.requires_grad
    step = 1e-5
    expected = torch.zeros(2, dtype=torch.float64)
    for i in range(x.shape[1]):
        e = torch.zeros_like(x)
        e[:, i] = step
        expected += (field(x + e, t) - field(x - e, t))[:, i] / (2 * step)
    assert torch.allclose(result, expected, rtol=1e-5, atol=1e-5)
    alone = exact(drift(problem.manifold), problem.manifold)(x, t)[1]
    assert bool(((result - alone).abs() > 0.1).all())


@pytest.mark.parametrize("at", ["state", "endpoint"])
def test_it_lowers_the_loss(at: Any) -> None:
    problem, split = Problem(), blobs()
    m = problem.manifold
    x = problem.points(16)
    before = torch.tensor([problem.loss(point, split) for point in x])
    losses = []
    for strength in (1.0, 10.0):
        guidance = plain(problem, split, strength, at, batch_size=20)
        field = problem.guided(still, guidance, torch.Generator().manual_seed(0))
        y = solve(field, x, m, Solver(16))
        assert torch.allclose(m.project(y), y)
        losses.append(torch.tensor([problem.loss(point, split) for point in y]))
    assert float(losses[0].mean()) < 0.7 * float(before.mean())
    assert float(losses[1].mean()) < 0.2 * float(before.mean())
    assert bool((losses[1] < before).all())


def test_regression_and_batch_norm() -> None:
    """-log N(y; f, noise^2), with the statistics of the state and no dropout."""
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Dropout(0.5), nn.Linear(3, 1)).double()
    like = states.of(model)
    names = ["0.weight", "3.weight"]
    m = coset.manifold(coset.Symmetry.from_json('{"groups": {}, "tensors": {"0.weight": [3, 2], "3.weight": [1, 3]}}'))
    inputs = torch.randn(7, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    targets = inputs.sum(1, keepdim=True)
    guidance = Guidance(model, (inputs, targets), 1.0, scale="gradient", noise=0.5)
    x = torch.randn(2, 9, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    result = guided(still, guidance, lambda x: m.state(x, like), m, torch.ones(9).double())(x, torch.zeros(2).double())
    assert model.training
    x.requires_grad_()
    weights = {name: m.state(x, like)[name] for name in names}
    eps = math.sqrt(1 + 1e-5)
    hidden = (torch.einsum("bi,nji->nbj", inputs, weights["0.weight"]) + like["0.bias"]) / eps
    values = torch.einsum("nbj,nkj->nbk", hidden, weights["3.weight"]) + like["3.bias"]
    loss = ((values - targets).square() / (2 * 0.25)).mean(1).sum()
    assert torch.allclose(result, -torch.autograd.grad(loss, x)[0])


def test_refusals() -> None:
    problem, split = Problem(), blobs()
    with pytest.raises(coset.CosetError, match="not at 'everywhere'"):
        Guidance(problem.model, split, 1.0, at="everywhere")  # type: ignore[arg-type]
    with pytest.raises(coset.CosetError, match="not 'none'"):
        Guidance(problem.model, split, 1.0, scale="none")  # type: ignore[arg-type]
    with pytest.raises(coset.CosetError, match="finite"):
        Guidance(problem.model, split, math.nan)
    with pytest.raises(coset.DataError, match="noise"):
        problem.guided(still, Guidance(problem.model, split, 1.0, noise=0.1))
    many = Split(split.inputs, split.targets + 1)
    with pytest.raises(coset.DataError, match="3"):
        problem.guided(still, Guidance(problem.model, many, 1.0))
