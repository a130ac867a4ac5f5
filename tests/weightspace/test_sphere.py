"""The unit sphere: geodesics and their inverses, digits in float32, and densities that integrate to one."""

from __future__ import annotations

import math

import mpmath
import pytest
import torch
from hypothesis import HealthCheck, given, settings, strategies as st
from torch import Tensor

from coset.weightspace import sphere

law = settings(deadline=None, derandomize=True, max_examples=40, suppress_health_check=list(HealthCheck))
sizes, seeds, angles = st.integers(2, 12), st.integers(0, 1000), st.floats(1e-6, math.pi - 1e-5)
EDGES = [1e-7, 1e-6, 1e-4, 1e-2, 0.5, math.pi / 2, 2.5, math.pi - 1e-3, math.pi - 1e-6]


def unit(*shape: int, seed: int = 0) -> Tensor:
    noise = torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return noise / noise.norm(dim=-1, keepdim=True)


def pair(d: int, angle: float, seed: int, n: int = 1) -> tuple[Tensor, Tensor]:
    """Points at this angle, [n, d]."""
    x, e = unit(n, d, seed=seed), unit(n, d, seed=seed + 1)
    e = e - (e * x).sum(-1, keepdim=True) * x
    return x, math.cos(angle) * x + math.sin(angle) * e / e.norm(dim=-1, keepdim=True)


def tangents(x: Tensor, seed: int) -> Tensor:
    v = torch.randn(x.shape, generator=torch.Generator().manual_seed(seed), dtype=x.dtype)
    return v - (v * x).sum(-1, keepdim=True) * x


@law
@given(sizes, angles, seeds)
def test_exp_and_log_are_inverse(d: int, angle: float, seed: int) -> None:
    x, y = pair(d, angle, seed)
    v = sphere.log(x, y)
    assert abs(float((v * x).sum())) < 1e-12
    assert float(v.norm()) == pytest.approx(angle, rel=1e-9)
    assert torch.allclose(sphere.exp(x, v), y, atol=1e-12)
    w = tangents(x, seed + 2)
    w = w * (angle / w.norm())
    assert torch.allclose(sphere.log(x, sphere.exp(x, w)), w, atol=1e-8)


@law
@given(sizes, angles, seeds)
def test_transport_is_isometric_and_keeps_the_geodesic(d: int, angle: float, seed: int) -> None:
    x, y = pair(d, angle, seed)
    u, v = tangents(x, seed + 2), tangents(x, seed + 3)
    image = sphere.transport(x, y, u), sphere.transport(x, y, v)
    assert float((image[0] * image[1]).sum()) == pytest.approx(float((u * v).sum()), abs=1e-10)
    assert abs(float((image[0] * y).sum())) < 1e-10
    assert torch.allclose(sphere.transport(x, y, sphere.log(x, y)), -sphere.log(y, x), atol=1e-8)
    # The derivative of the transport along the geodesic has no part in the tangent space: it is parallel.
    step = 1e-5
    t = torch.tensor([0.4 - step, 0.4, 0.4 + step], dtype=torch.float64)
    before, here, after = sphere.geodesic(x, y, t)
    rate = (sphere.transport(x, after, u) - sphere.transport(x, before, u)) / (2 * step)
    assert float(sphere.tangent(here, rate).norm()) < 1e-5 * float(u.norm())


@law
@given(sizes, angles, seeds, st.floats(0, 1))
def test_geodesics_have_constant_speed(d: int, angle: float, seed: int, t: float) -> None:
    x, y = pair(d, angle, seed)
    at = torch.tensor([t], dtype=torch.float64)
    here = sphere.geodesic(x, y, at)
    assert float(sphere.angle(x, here)) == pytest.approx(t * angle, abs=1e-12)
    assert float(sphere.angle(here, y)) == pytest.approx((1 - t) * angle, abs=1e-9)
    speed = (sphere.geodesic(x, y, at + 1e-5) - sphere.geodesic(x, y, at - 1e-5)) / 2e-5
    assert torch.allclose(sphere.velocity(x, y, at), speed, atol=1e-8)


@law
@given(sizes, seeds)
def test_the_angle_is_a_metric(d: int, seed: int) -> None:
    x, y, z = unit(3, d, seed=seed)
    assert float(sphere.angle(x, x)) == 0
    assert float(sphere.angle(x, y)) == pytest.approx(float(sphere.angle(y, x)), rel=1e-12)
    assert float(sphere.angle(x, z)) <= float(sphere.angle(x, y) + sphere.angle(y, z)) + 1e-12
    assert float(sphere.angle(x, y)) == pytest.approx(math.acos(float((x * y).sum())), rel=1e-9)


def exact(x: Tensor, y: Tensor) -> tuple[list[mpmath.mpf], mpmath.mpf]:
    """(log, angle) of the directions of two vectors, with 50 digits."""
    with mpmath.workdps(50):
        a, b = ([mpmath.mpf(float(value)) for value in vector] for vector in (x, y))
        length_a, length_b = (mpmath.sqrt(mpmath.fsum(value**2 for value in vector)) for vector in (a, b))
        a, b = [value / length_a for value in a], [value / length_b for value in b]
        cosine = mpmath.fsum(p * q for p, q in zip(a, b, strict=True))
        across = [q - cosine * p for p, q in zip(a, b, strict=True)]
        sine = mpmath.sqrt(mpmath.fsum(value**2 for value in across))
        angle = mpmath.atan2(sine, cosine)
        return [angle / sine * value for value in across], angle


@pytest.mark.parametrize("angle", EDGES)
@pytest.mark.parametrize("d", [2, 3, 50])
def test_float32_keeps_its_digits(d: int, angle: float) -> None:
    x, y = (z.float() for z in pair(d, angle, 7, n=6))
    result, lengths = sphere.log(x, y), sphere.angle(x, y)
    for k in range(len(x)):
        log, true = exact(x[k], y[k])
        assert abs(float(mpmath.mpf(float(lengths[k])) / true - 1)) < 1e-6
        error = mpmath.sqrt(mpmath.fsum((mpmath.mpf(float(p)) - q) ** 2 for p, q in zip(result[k], log, strict=True)))
        assert float(error / true) < 1e-6


@pytest.mark.parametrize("angle", [0.0, *EDGES, math.pi])
@pytest.mark.parametrize("function", ["angle", "log", "geodesic", "velocity", "transport"])
def test_gradients_are_finite(function: str, angle: float) -> None:
    x, y = (z.float().requires_grad_() for z in pair(4, angle, 3, n=5))
    if angle in (0.0, math.pi):
        y = ((1 if angle == 0 else -1) * x.detach()).requires_grad_()
    t = torch.full((5,), 0.3)
    more = {"geodesic": (t,), "velocity": (t,), "transport": (tangents(x.detach(), 1),)}.get(function, ())
    out = getattr(sphere, function)(x, y, *more)
    assert out.isfinite().all()
    for gradient in torch.autograd.grad((out * torch.arange(1.0, out.numel() + 1).reshape(out.shape)).sum(), (x, y)):
        assert gradient.isfinite().all()


def test_gradient_of_log_at_itself_is_the_projection() -> None:
    x = unit(4)
    jacobian = torch.func.jacrev(lambda y: sphere.log(x, y))(x)
    assert torch.allclose(jacobian, torch.eye(4, dtype=x.dtype) - torch.outer(x, x), atol=1e-12)
    jacobian = torch.func.jacrev(lambda v: sphere.exp(x, v))(torch.zeros_like(x))
    assert torch.allclose(jacobian, torch.eye(4, dtype=x.dtype) - torch.outer(x, x), atol=1e-12)


def test_antipodes_are_reached() -> None:
    x = unit(6, 5)
    assert torch.allclose(sphere.exp(x, sphere.log(x, -x)), -x, atol=1e-12)
    assert torch.allclose(sphere.angle(x, -x), torch.full((6,), math.pi, dtype=x.dtype))
    half = sphere.geodesic(x, -x, torch.full((6,), 0.5, dtype=x.dtype))
    assert torch.allclose(sphere.angle(x, half), torch.full((6,), math.pi / 2, dtype=x.dtype))


def test_project() -> None:
    x = torch.tensor([[3.0, 4.0], [0.0, 0.0]])
    assert torch.allclose(sphere.project(x), torch.tensor([[0.6, 0.8], [1.0, 0.0]]))


@pytest.mark.parametrize(("d", "area"), [(1, 2), (2, 2 * math.pi), (3, 4 * math.pi), (4, 2 * math.pi**2)])
def test_areas(d: int, area: float) -> None:
    assert sphere.log_area(d) == pytest.approx(math.log(area))


def around(d: int, angle: Tensor) -> tuple[Tensor, Tensor]:
    """The pole, and a point at each angle from it."""
    pole, rest = torch.zeros(2, d, dtype=torch.float64)
    pole[0], rest[1] = 1.0, 1.0
    return pole, angle.cos()[:, None] * pole + angle.sin()[:, None] * rest


@pytest.mark.parametrize("sigma", [0.05, 0.4, 1.0, 3.0])
@pytest.mark.parametrize("d", [2, 3, 5])
def test_wrapped_gaussians_integrate_to_one(d: int, sigma: float) -> None:
    """Area of a band at angle a: area(S^{d-2}) sin^{d-2} a da; the poles of the density are integrable."""
    step = math.pi / 40000
    a = (torch.arange(40000, dtype=torch.float64) + 0.5) * step
    mean, x = around(d, a)
    density = sphere.wrapped_log_prob(x, mean, sigma).exp()
    bands = math.exp(sphere.log_area(d - 1)) * a.sin() ** (d - 2)
    assert float((density * bands).sum() * step) == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize("sigma", [0.3, 1.2])
def test_wrapped_gaussians_against_draws(sigma: float) -> None:
    """How many of 40000 draws are within a quarter of pi of the mean."""
    n, d = 40000, 4
    mean, _ = around(d, torch.zeros(1, dtype=torch.float64))
    noise = torch.randn(n, d, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    samples = sphere.exp(mean, sigma * sphere.tangent(mean, noise))
    share = float((sphere.angle(mean, samples) < math.pi / 4).double().mean())
    step = math.pi / 4 / 4000
    a = (torch.arange(4000, dtype=torch.float64) + 0.5) * step
    density = sphere.wrapped_log_prob(around(d, a)[1], mean, sigma).exp()
    expected = float((density * math.exp(sphere.log_area(d - 1)) * a.sin() ** (d - 2)).sum() * step)
    assert abs(share - expected) < 4 * math.sqrt(expected * (1 - expected) / n)


def test_a_narrow_gaussian_is_finite_at_its_mean() -> None:
    x = unit(3, 20).float()
    result = sphere.wrapped_log_prob(x, x, 1e-2)
    assert torch.allclose(result, torch.full((3,), -19 * math.log(1e-2 * math.sqrt(2 * math.pi))), rtol=1e-5)


@pytest.mark.parametrize(("d", "sigma"), [(784, 0.086), (784, 0.088), (784, 0.3), (3, 0.2), (3, 4.0), (2, 0.5)])
@pytest.mark.parametrize("angle", [1e-3, 0.05, 0.3, 2.4, 3.1])
def test_all_windings_that_count_at_a_point_are_summed(d: int, sigma: float, angle: float) -> None:
    """Near the mean in many dimensions longer ways have almost no mass in all, and yet most of the density."""
    mean, x = around(d, torch.tensor([angle], dtype=torch.float64))
    with mpmath.workdps(50):
        a, s = mpmath.mpf(angle), mpmath.mpf(sigma)
        lengths = [a, *(2 * mpmath.pi * k + sign * a for k in range(1, 9) for sign in (-1, 1))]
        terms = [mpmath.exp(-(r**2) / (2 * s**2)) * (r / mpmath.sin(a)) ** (d - 2) for r in lengths]
        expected = float(mpmath.log(mpmath.fsum(terms)) - (d - 1) * mpmath.log(s * mpmath.sqrt(2 * mpmath.pi)))
    assert float(sphere.wrapped_log_prob(x, mean, sigma)) == pytest.approx(expected, rel=1e-9, abs=1e-9)


def test_densities_and_their_gradients_are_finite_at_the_poles() -> None:
    x = unit(3, 784)
    for y in (x, -x):
        y = y.clone().requires_grad_()
        density = sphere.wrapped_log_prob(y, x, 0.088)
        assert density.isfinite().all()
        assert torch.autograd.grad(density.sum(), y)[0].isfinite().all()
