"""Solvers against flows in closed form: their orders, their manifolds, their noise."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings, strategies as st
from manifolds import product
from torch import Tensor, nn

import coset
from coset import Manifold
from coset.flow.solvers import ADAPTIVE, METHODS, Solver, VelocityFunction, solve as solve_by

law = settings(deadline=None, derandomize=True, max_examples=5, suppress_health_check=list(HealthCheck))
ORDERS = {"euler": 1, "midpoint": 2, "heun": 2, "rk4": 4}


def solve(
    field: VelocityFunction, x: Tensor, m: Manifold, steps: int = 32, method: str = "heun",
    start: float = 0.0, stop: float = 1.0, **more: Any,
) -> Tensor:  # fmt: skip
    return solve_by(field, x, m, Solver(steps, method, **more), start, stop)


def to_the_pole(x: Tensor, t: Tensor) -> Tensor:
    """On S^2: towards the pole, and around it with the rate 3 cos(3 t)."""
    pole = torch.tensor([0.0, 0.0, 1.0], dtype=x.dtype)
    around = torch.stack([-x[:, 1], x[:, 0], torch.zeros_like(t)], 1)
    return pole - x[:, 2:] * x + 3 * (3 * t).cos()[:, None] * around


def at_the_pole(x: Tensor, t: float) -> Tensor:
    """Where `to_the_pole` leads from time 0: z' = 1 - z^2, so z = tanh(t + atanh z_0), and the angle is sin(3 t)."""
    z = torch.tanh(t + torch.atanh(x[:, 2]))
    angle = torch.atan2(x[:, 1], x[:, 0]) + math.sin(3 * t)
    radius = (1 - z.square()).sqrt()
    return torch.stack([radius * angle.cos(), radius * angle.sin(), z], 1)


MATRIX = torch.tensor([[-0.5, 2.0, 0.1], [-1.5, 0.3, 0.4], [0.2, 0.1, -0.8]], dtype=torch.float64)


def linear(x: Tensor, t: Tensor) -> Tensor:
    return x @ MATRIX.T


def pushed(x: Tensor, t: Tensor) -> Tensor:
    """x' = 2 t x + exp(t^2): x = exp(t^2) (x_0 + t)."""
    return 2 * t[:, None] * x + t.square().exp()[:, None]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("case", ["sphere", "linear", "pushed"])
def test_orders(method: str, case: str) -> None:
    """Half the step divides the error by 2^order."""
    m = product((3,), 0) if case == "sphere" else product((), 3)
    x = m.random(20, torch.Generator().manual_seed(0), dtype=torch.float64)
    field = {"sphere": to_the_pole, "linear": linear, "pushed": pushed}[case]
    expected = {
        "sphere": at_the_pole(x, 1.0),
        "linear": x @ torch.linalg.matrix_exp(MATRIX).T,
        "pushed": math.e * (x + 1),
    }[case]
    errors = [float((solve(field, x, m, steps, method) - expected).square().mean().sqrt()) for steps in (32, 64, 128)]
    ratios = [math.log2(a / b) for a, b in pairwise(errors)]
    assert ratios[-1] == pytest.approx(ORDERS[method], abs=0.15), (errors, ratios)
    assert errors[-1] < {1: 0.1, 2: 2e-3, 4: 1e-6}[ORDERS[method]]


@law
@given(st.integers(0, 1000), st.sampled_from(sorted(METHODS)))
def test_there_and_back_on_the_manifold(seed: int, method: str) -> None:
    m = product((3, 2, 4), 2)
    generator = torch.Generator().manual_seed(seed)
    x = m.random(3, generator, dtype=torch.float64)
    matrix = torch.randn(m.size, m.size, generator=generator, dtype=torch.float64) / 3

    def field(x: Tensor, t: Tensor) -> Tensor:
        assert torch.allclose(m.project(x), x, atol=1e-12)
        return m.tangent(x, (x @ matrix).tanh() + t[:, None])

    y = solve(field, x, m, 32, method)
    assert torch.allclose(m.project(y), y, atol=1e-12)
    back = solve(field, y, m, 32, method, start=1.0, stop=0.0)
    assert float(m.dist(back, x).max()) < {1: 0.3, 2: 2e-2, 4: 1e-4}[ORDERS[method]]
    half = solve(field, x, m, 16, method, stop=0.5)
    assert torch.allclose(solve(field, half, m, 16, method, start=0.5), y, atol=1e-12)


def test_one_euler_step_is_a_geodesic() -> None:
    m = product((3,), 0)
    x = m.random(4, torch.Generator().manual_seed(0), dtype=torch.float64)
    v = m.tangent(x, torch.ones_like(x))
    assert torch.allclose(solve(lambda x, t: v, x, m, 1, "euler"), m.exp(x, v))


def test_times() -> None:
    times: list[float] = []

    def field(x: Tensor, t: Tensor) -> Tensor:
        assert t.shape == (2,) and t.dtype == x.dtype
        times.append(float(t[0]))
        return torch.zeros_like(x)

    events: list[coset.Event] = []
    solve(field, torch.zeros(2, 3), product((), 3), 2, "heun", progress=events.append)
    assert times == [0.0, 0.5, 0.5, 1.0]
    assert [(event.done, event.total, event.unit) for event in events] == [(1, 2, "step"), (2, 2, "step")]
    times.clear()
    solve(field, torch.zeros(2, 3), product((), 3), 1, "rk4", start=1.0, stop=0.0)
    assert times == [1.0, 0.5, 0.5, 0.0]


def test_noise_before_each_step() -> None:
    """Without a field the variance after 9 steps is 9 noise^2; on a sphere it stays there."""
    m = product((3,), 4)
    x = m.random(1, torch.Generator().manual_seed(0), dtype=torch.float64).expand(4000, -1)

    def still(x: Tensor, t: Tensor) -> Tensor:
        return torch.zeros_like(x)

    y = solve(still, x, m, 9, "heun", noise=0.02, generator=torch.Generator().manual_seed(1))
    assert float((y - x)[:, 3:].std()) == pytest.approx(0.06, rel=0.02)
    assert torch.allclose(m.project(y), y, atol=1e-12)
    # Two tangent directions, and angles so small that the sphere is flat.
    assert float((y - x)[:, :3].square().sum(1).mean()) == pytest.approx(2 * 0.06**2, rel=0.05)
    again = solve(still, x, m, 9, "heun", noise=0.02, generator=torch.Generator().manual_seed(1))
    assert torch.equal(y, again)
    # What is added before the last step goes along the field for that step alone.
    late = solve(lambda x, t: x, torch.zeros(4000, 2).double(), product((), 2), 1, "euler", noise=0.1)
    assert float(late.std()) == pytest.approx(0.2, rel=0.05)


@pytest.mark.parametrize("method", ADAPTIVE)
def test_adaptive_solvers_say_how_far_they_are(method: str) -> None:
    progress: list[tuple[int, int]] = []
    for start, stop in ((0.0, 1.0), (1.0, 0.0)):
        progress.clear()
        x = torch.randn(2, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        solve(
            linear,
            x,
            product((), 3),
            method=method,
            start=start,
            stop=stop,
            progress=lambda event: progress.append((event.done, event.total or 0)),
        )
        assert progress[0] == (0, 100) and progress[-1] == (100, 100) and progress.count((100, 100)) == 1
        assert all(0 <= percent <= 100 for percent, _ in progress)


@pytest.mark.parametrize("method", ADAPTIVE)
def test_adaptive(method: str) -> None:
    m = product((), 3)
    x = m.random(5, torch.Generator().manual_seed(0), dtype=torch.float64)
    times: list[float] = []

    def field(x: Tensor, t: Tensor) -> Tensor:
        times.extend(t.tolist())
        return linear(x, t)

    tolerance = 1e-5
    y = solve(field, x, m, method=method, rtol=tolerance, atol=tolerance)
    assert torch.allclose(y, x @ torch.linalg.matrix_exp(MATRIX).T, atol=10 * tolerance)
    assert min(times) == 0.0 and 0.9 < max(times) <= 1.0
    back = solve(linear, y, m, method=method, start=1.0, stop=0.0, rtol=tolerance, atol=tolerance)
    assert torch.allclose(back, x, atol=20 * tolerance)
    narrow = solve(lambda x, t: -x, x.float(), m, method=method)
    assert narrow.dtype == torch.float32
    assert torch.allclose(narrow, x.float() * math.exp(-1), atol=1e-4)


def test_no_graph() -> None:
    network = nn.Linear(3, 3)
    y = solve(lambda x, t: network(x), torch.zeros(2, 3), product((), 3), 2)
    assert not y.requires_grad


def test_refusals() -> None:
    x = torch.zeros(1, 3)
    with pytest.raises(coset.CosetError, match="use 'rk4'"):
        solve(linear, x, product((3,), 0), method="dopri5")
    with pytest.raises(coset.CosetError, match="add noise"):
        solve(linear, x, product((), 3), method="dopri5", noise=0.1)
    with pytest.raises(coset.CosetError, match="no solver 'magic'"):
        solve(linear, x, product((), 3), method="magic")
    with pytest.raises(coset.CosetError, match="0 steps"):
        solve(linear, x, product((), 3), steps=0)
