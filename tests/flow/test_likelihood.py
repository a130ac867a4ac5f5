"""Densities of flows against closed forms, quadrature and finite differences."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings, strategies as st
from manifolds import product
from torch import Tensor

import coset
from coset import Manifold
from coset.flow import likelihood as divergence
from coset.flow.likelihood import Divergence, LogProb, exact, hutchinson, log_prob as log_prob_by, sample_with_log_prob
from coset.flow.solvers import Solver, VelocityFunction, solve

law = settings(deadline=None, derandomize=True, max_examples=5, suppress_health_check=list(HealthCheck))
SHAPES = [((), 3), ((2,), 0), ((3,), 0), ((2,), 1), ((4, 2), 3)]


def log_prob(
    field: VelocityFunction, x: Tensor, base: LogProb, m: Manifold, steps: int = 32, method: str = "rk4",
    generator: torch.Generator | None = None, **how: Any,
) -> Tensor:  # fmt: skip
    return log_prob_by(field, x, base, m, Solver(steps, method, generator=generator), Divergence(**how))


def draw(x: Tensor, probes: int, noise: Any = "rademacher", generator: torch.Generator | None = None) -> Tensor:
    return Divergence("hutchinson", probes, noise).draw(x, generator)


def wavy(m: Manifold, seed: int = 0) -> VelocityFunction:
    """A smooth field that mixes all coordinates and changes with time."""
    generator = torch.Generator().manual_seed(seed)
    first, second = torch.randn(2, m.size, m.size, generator=generator, dtype=torch.float64)

    def field(x: Tensor, t: Tensor) -> Tensor:
        return m.tangent(x, 0.7 * (x @ first + 2 * t[:, None]).sin() @ second)

    return field


def frame(m: Manifold, x: Tensor) -> Tensor:
    """[dimension, D]: an orthonormal basis of the tangent space at x."""
    rows = torch.stack([m.tangent(x, e) for e in torch.eye(m.size, dtype=x.dtype)])
    u, s, _ = torch.linalg.svd(rows)
    return u[:, s > 0.5].T


@law
@given(st.integers(0, 1000), st.sampled_from(SHAPES))
def test_divergence_by_differences_along_geodesics(seed: int, shape: tuple[tuple[int, ...], int]) -> None:
    """div V = sum_i <e_i, dV/de_i> over an orthonormal basis of the tangent space."""
    m = product(*shape)
    field = wavy(m, seed)
    x = m.random(2, torch.Generator().manual_seed(seed), dtype=torch.float64)
    t = torch.tensor([0.2, 0.9], dtype=torch.float64)
    v, result = exact(field, m)(x, t)
    assert torch.allclose(v, field(x, t))
    assert not v.requires_grad and not result.requires_grad
    step = 1e-5
    for k in range(2):
        expected = 0.0
        for e in frame(m, x[k]):
            ends = [field(m.exp(x[k], s * step * e)[None], t[k : k + 1])[0] for s in (1, -1)]
            expected += float(e @ (ends[0] - ends[1])) / (2 * step)
        assert float(result[k]) == pytest.approx(expected, rel=1e-6, abs=1e-7)


@pytest.mark.parametrize("noise", ["rademacher", "gaussian"])
def test_hutchinson_is_unbiased(noise: divergence.ProbeNoise) -> None:
    m = product((4, 2), 3)
    field = wavy(m)
    x = m.random(3, torch.Generator().manual_seed(0), dtype=torch.float64)
    t = torch.full((3,), 0.3, dtype=torch.float64)
    v, expected = exact(field, m)(x, t)
    vectors = draw(x, 4000, noise, torch.Generator().manual_seed(1))
    each = torch.stack([hutchinson(field, m, e[None])(x, t)[1] for e in vectors[:200]])
    together = hutchinson(field, m, vectors)(x, t)
    assert torch.allclose(together[0], v)
    error = each.std(0) / math.sqrt(len(vectors))
    assert bool((error > 1e-4).all())
    assert bool(((together[1] - expected).abs() < 4 * error).all())
    assert torch.allclose(hutchinson(field, m, vectors[:200])(x, t)[1], each.mean(0))
    basis = math.sqrt(m.size) * torch.eye(m.size, dtype=torch.float64)[:, None].expand(-1, 3, -1)
    assert torch.allclose(hutchinson(field, m, basis)(x, t)[1], expected)


def test_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    m = product((4, 2), 3)
    x = m.random(3, torch.Generator().manual_seed(0), dtype=torch.float64)
    t = torch.full((3,), 0.3, dtype=torch.float64)
    vectors = draw(x, 5)
    whole = exact(wavy(m), m)(x, t)[1], hutchinson(wavy(m), m, vectors)(x, t)[1]
    for rows in (1, 6):
        monkeypatch.setattr(divergence, "ROWS", rows)
        assert torch.allclose(exact(wavy(m), m)(x, t)[1], whole[0])
        assert torch.allclose(hutchinson(wavy(m), m, vectors)(x, t)[1], whole[1])


def test_a_linear_flow_of_gaussians() -> None:
    """x' = A x + b leads N(0, I) to N(m, E E^T) with E = exp(A)."""
    m = product((), 3)
    generator = torch.Generator().manual_seed(0)
    matrix = torch.randn(3, 3, generator=generator, dtype=torch.float64) / 2
    shift = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    x0 = m.random(50, generator, dtype=torch.float64)
    x1, result = sample_with_log_prob(
        lambda x, t: x @ matrix.T + shift, x0, m.log_prob, m, Solver(method="rk4"), Divergence()
    )
    growth = torch.linalg.matrix_exp(matrix)
    mean = torch.linalg.solve(matrix, (growth - torch.eye(3).double()) @ shift)
    expected = torch.distributions.MultivariateNormal(mean, growth @ growth.T).log_prob(x1)
    assert torch.allclose(result, expected, atol=1e-6)
    adaptive = log_prob(lambda x, t: x @ matrix.T + shift, x1, m.log_prob, m, method="dopri5")
    assert torch.allclose(adaptive, expected, atol=1e-4)


def test_rotations_keep_the_density() -> None:
    m = product((3, 4), 0)
    generator = torch.Generator().manual_seed(0)
    turns = [torch.randn(d, d, generator=generator, dtype=torch.float64) for d in (3, 4)]
    skew = torch.block_diag(*(a - a.T for a in turns))
    pole = torch.tensor([0.0, 0.0, 2.0, 1.0, 0.0, 0.0, 0.0], dtype=torch.float64)
    x0 = m.random(20, generator, dtype=torch.float64)
    x1, result = sample_with_log_prob(
        lambda x, t: x @ skew.T, x0, lambda x: x @ pole, m, Solver(64, "rk4"), Divergence()
    )
    assert torch.allclose(x1, x0 @ torch.linalg.matrix_exp(skew).T, atol=1e-4)
    assert torch.allclose(result, x0 @ pole, atol=1e-10)


@pytest.mark.parametrize("method", ["rk4", "heun", "midpoint", "euler"])
def test_a_contracting_flow_on_the_circle(method: str) -> None:
    """a' = -2 sin a: tan(a / 2) shrinks by exp(-2), and the uniform density becomes d a_0 / d a_1 / 2 pi."""
    m = product((2,), 0)
    pole = torch.tensor([2.0, 0.0], dtype=torch.float64)
    angle = torch.linspace(-2.5, 2.5, 41, dtype=torch.float64)
    x1 = torch.stack([angle.cos(), angle.sin()], 1)
    steps = {"rk4": 32, "heun": 100, "midpoint": 100, "euler": 200}[method]
    result = log_prob(lambda x, t: m.tangent(x, pole.expand_as(x)), x1, m.log_prob, m, steps, method)
    half = (angle / 2).tan()
    slope = math.exp(2) * (1 + half.square()) / (1 + math.exp(4) * half.square())
    assert torch.allclose(result, (slope / (2 * math.pi)).log(), atol=5e-2 if method == "euler" else 1e-3)


def test_a_contracting_flow_on_the_sphere_times_a_line() -> None:
    """z = tanh(1 + atanh z_0) on S^2 makes areas d z_0 / d z_1; x' = -x on the line shrinks by exp(-1)."""
    m = product((3,), 1)
    pole = torch.tensor([0.0, 0.0, 1.0], dtype=torch.float64)

    def field(x: Tensor, t: Tensor) -> Tensor:
        # Tangent on the sphere, but not where |x| is not one.
        return torch.cat([pole - x[:, 2:3] * x[:, :3], -x[:, 3:]], 1)

    x1 = m.random(40, torch.Generator().manual_seed(0), dtype=torch.float64)
    z = torch.tanh(torch.atanh(x1[:, 2]) - 1)
    areas = (1 - z.square()) / (1 - x1[:, 2].square()) / (4 * math.pi)
    line = torch.distributions.Normal(0.0, math.exp(-1)).log_prob(x1[:, 3])
    result = log_prob(field, x1, m.log_prob, m, 32)
    assert torch.allclose(result, areas.log() + line, atol=1e-5)


def test_the_density_integrates_to_one_on_a_cylinder() -> None:
    """S^1 x R: the trapezoidal rule in the angle and on the line."""
    m = product((2,), 1)
    angle = torch.arange(48, dtype=torch.float64) * (2 * math.pi / 48)
    line = torch.linspace(-8, 8, 81, dtype=torch.float64)
    a, b = torch.meshgrid(angle, line, indexing="ij")
    x = torch.stack([a.cos(), a.sin(), b], -1).reshape(-1, 3)
    result = log_prob(wavy(m), x, m.log_prob, m, 16).exp()
    assert float(result.std() / result.mean()) > 1
    assert float(result.sum() * (2 * math.pi / 48) * (16 / 80)) == pytest.approx(1, abs=1e-3)


def test_the_density_integrates_to_one_on_the_sphere() -> None:
    """Gauss-Legendre in z, the trapezoidal rule around."""
    m = product((3,), 0)
    nodes, weights = (torch.from_numpy(v) for v in np.polynomial.legendre.leggauss(48))
    angle = torch.arange(64, dtype=torch.float64) * (2 * math.pi / 64)
    z, a = torch.meshgrid(nodes, angle, indexing="ij")
    radius = (1 - z.square()).sqrt()
    x = torch.stack([radius * a.cos(), radius * a.sin(), z], -1).reshape(-1, 3)
    result = log_prob(wavy(m), x, m.log_prob, m, 16).exp()
    assert float(result.std() / result.mean()) > 0.5
    total = (result.reshape(48, 64).sum(1) * weights).sum() * (2 * math.pi / 64)
    assert float(total) == pytest.approx(1, abs=1e-4)


@law
@given(st.integers(0, 1000), st.sampled_from(SHAPES))
def test_forwards_and_backwards_agree(seed: int, shape: tuple[tuple[int, ...], int]) -> None:
    m = product(*shape)
    field = wavy(m, seed)
    x0 = m.random(4, torch.Generator().manual_seed(seed), dtype=torch.float64)
    x1, result = sample_with_log_prob(field, x0, m.log_prob, m, Solver(24, "rk4"), Divergence())
    assert torch.allclose(x1, solve(field, x0, m, Solver(24, "rk4")))
    assert torch.allclose(log_prob(field, x1, m.log_prob, m, 24), result, atol=2e-2)


def test_hutchinson_log_prob() -> None:
    """The mean over many noises is log q; of a diagonal flow Rademacher vectors make no error at all."""
    m = product((3,), 2)
    field = wavy(m)
    x = m.random(2, torch.Generator().manual_seed(0), dtype=torch.float64)
    expected = log_prob(field, x, m.log_prob, m, 8)
    generator = torch.Generator().manual_seed(1)
    many = x.repeat(500, 1)
    each = log_prob(field, many, m.log_prob, m, 8, name="hutchinson", generator=generator).view(500, 2)
    error = each.std(0) / math.sqrt(500)
    assert bool((error > 0).all()) and bool(((each.mean(0) - expected).abs() < 4 * error).all())
    better = log_prob(field, many, m.log_prob, m, 8, name="hutchinson", probes=4, noise="gaussian")
    assert bool((better.view(500, 2).mean(0) - expected).abs().max() < 4 * each.std(0).max() / math.sqrt(500))
    flat = product((), 3)
    y = flat.random(3, dtype=torch.float64)
    diagonal = torch.tensor([1.0, -2.0, 0.3], dtype=torch.float64)
    one = log_prob(lambda x, t: diagonal * x, y, flat.log_prob, flat, name="hutchinson")
    assert torch.allclose(one, log_prob(lambda x, t: diagonal * x, y, flat.log_prob, flat))


def test_float32_sums_in_float64() -> None:
    m = product((3,), 2)
    x = m.random(4, torch.Generator().manual_seed(0), dtype=torch.float64)
    wide = wavy(m)
    narrow = log_prob(lambda x, t: wide(x.double(), t.double()).float(), x.float(), m.log_prob, m)
    assert narrow.dtype == torch.float64
    assert torch.allclose(narrow, log_prob(wide, x, m.log_prob, m), atol=1e-4)


def test_refusals() -> None:
    m = product((), 3)
    x = torch.zeros(2, 3)

    @torch.no_grad()
    def silent(x: Tensor, t: Tensor) -> Tensor:
        return -x

    with pytest.raises(coset.CosetError, match="has no gradient in x"):
        log_prob(silent, x, m.log_prob, m)
    with pytest.raises(coset.CosetError, match="not 'magic'"):
        log_prob(lambda x, t: -x, x, m.log_prob, m, name="magic")
    with pytest.raises(coset.CosetError, match="not 'uniform'"):
        draw(x, 1, "uniform")
    with pytest.raises(coset.CosetError, match="0 probes"):
        draw(x, 0)
