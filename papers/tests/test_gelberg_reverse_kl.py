"""gelberg2024 Figures 2, 3 and 5: the estimate, the exact solution and its two thresholds, and the figures."""

import itertools
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from scipy.integrate import quad
from torch import Tensor
from torch.distributions import Categorical, MixtureSameFamily, MultivariateNormal
from typer.testing import Result

from coset_papers.gelberg2024 import mode_seeking as figures, reverse_kl_exact as exact
from coset_papers.gelberg2024.reverse_kl import KLDescent, direction, estimate, minimise

Reproduce = Callable[..., Result]
ALPHAS = st.floats(0.1, exact.LARGEST)
SHARES, DEVIATIONS = st.floats(0.0, 1.0), st.floats(0.5, 4.0)


def column(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def line(share: float, std: float, alpha: float) -> exact.Line:
    return exact.Line(column(share * alpha), column(std))


def mixture(alpha: float, sigma: float, dimension: int) -> MixtureSameFamily:
    """The target, by torch."""
    u = direction(dimension, "cpu").double()
    centres = torch.stack((0 * u, alpha * u))
    modes = MultivariateNormal(centres, (sigma**2 * torch.eye(dimension, dtype=torch.float64)).expand(2, -1, -1))
    return MixtureSameFamily(Categorical(torch.ones(2, dtype=torch.float64)), modes)


@given(st.integers(1, 4), ALPHAS, st.floats(0.2, 3.0), st.integers(0, 2**31))
@settings(max_examples=10, deadline=None)
def test_the_estimate_is_the_mean_of_the_log_ratio(d: int, alpha: float, sigma: float, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    mean, noise = (torch.randn(*shape, generator=generator).double() for shape in ((1, d), (1, 7, d)))
    factor = torch.randn(1, d, d, generator=generator).double().tril(-1) + torch.eye(d)
    x = mean + noise[0] @ factor[0].T
    expected = (
        MultivariateNormal(mean[0], scale_tril=factor[0]).log_prob(x) - mixture(alpha, sigma, d).log_prob(x)
    ).mean()
    assert torch.isclose(estimate(mean, factor, noise, column(alpha), column(sigma))[0], expected, rtol=1e-7)


@given(SHARES, DEVIATIONS, ALPHAS)
@settings(max_examples=15, deadline=None)
def test_kl_is_the_integral(share: float, std: float, alpha: float) -> None:
    def log_normal(x: float, mean: float, std: float) -> float:
        return -(((x - mean) / std) ** 2) / 2 - math.log(std * math.sqrt(2 * math.pi))

    def integrand(x: float) -> float:
        log_q = log_normal(x, share * alpha, std)
        log_p = np.logaddexp(log_normal(x, 0, 1), log_normal(x, alpha, 1)) - math.log(2)
        return float(math.exp(log_q) * (log_q - log_p))

    low, high = share * alpha - 10 * std, share * alpha + 10 * std
    expected, _ = quad(integrand, low, high, points=[alpha / 2] if low < alpha / 2 < high else None, limit=200)
    assert float(exact.kl(line(share, std, alpha), column(alpha))) == pytest.approx(expected, abs=1e-9)


@given(SHARES, DEVIATIONS, ALPHAS)
@settings(max_examples=10, deadline=None)
def test_derivatives_are_those_of_autograd(share: float, std: float, alpha: float) -> None:
    q, a = line(share, std, alpha), column(alpha)

    def value(point: Tensor) -> Tensor:
        return exact.kl(exact.Line(point[:1], point[1:]), a).sum()

    point = torch.cat(q)
    assert torch.allclose(torch.cat(exact.gradient(q, a)), torch.func.grad(value)(point), atol=1e-9)
    second = torch.func.hessian(value)(point)
    mm, ms, ss = exact.hessian(q, a)
    assert torch.allclose(torch.stack((torch.cat((mm, ms)), torch.cat((ms, ss)))), second, atol=1e-8)


@given(ALPHAS, st.floats(0.0, 0.49), st.floats(1.0, 4.0))
@settings(max_examples=10, deadline=None)
def test_descent_from_the_mode_is_monotone(alpha: float, share: float, std: float) -> None:
    a = column(alpha)
    _, mixed, _ = exact.hessian(line(share, std, alpha), a)
    assert float(mixed) < 1e-12
    steps = [exact.descend(a, 0.5, count) for count in (0, 1, 2, 5, 20, 100)]
    for before, after in itertools.pairwise(steps):
        assert float(after.m) >= float(before.m) - 1e-12 and float(after.s) >= float(before.s) - 1e-12
    assert float(steps[-1].m) <= alpha / 2 + 1e-12


def brute(alpha: float) -> tuple[float, float, float]:
    """The least KL over a grid of means and deviations, with its mean by alpha and its deviation."""
    m, s = torch.cartesian_prod(
        torch.linspace(0, alpha / 2, 41, dtype=torch.float64), torch.linspace(0.9, 3, 43, dtype=torch.float64)
    ).T
    least, k = exact.kl(exact.Line(m, s), torch.full_like(m, alpha)).min(0)
    return float(least), float(m[k]) / alpha, float(s[k])


@pytest.mark.parametrize("alpha", [2.0, 4.7, exact.crossing() - 0.05, exact.crossing() + 0.05, 7.0])
def test_the_optimum_is_that_of_a_grid(alpha: float) -> None:
    least, share, std = brute(alpha)
    optimum = exact.optimum(column(alpha))
    value = float(exact.kl(optimum, column(alpha)))
    assert value <= least + 1e-12 and value == pytest.approx(least, abs=2e-3)
    assert float(optimum.m) / alpha == pytest.approx(share, abs=0.025) and float(optimum.s) == pytest.approx(
        std, abs=0.05
    )


def test_the_two_thresholds() -> None:
    a = column(exact.fold() - 1e-3, exact.fold() + 1e-3)
    below, above = (exact.from_mode(a).m / a).tolist()
    assert below == pytest.approx(0.5, abs=1e-6) and 0.04 < above < 0.07
    a = column(exact.crossing() - 1e-6, exact.crossing() + 1e-6)
    below, above = (exact.optimum(a).m / a).tolist()
    assert below == pytest.approx(0.5) and above < 0.01
    # The second by scipy's fsolve on a grid twice as fine.
    assert exact.fold() == pytest.approx(4.82445944, abs=1e-8)
    assert exact.crossing() == pytest.approx(5.60016443517, abs=1e-11)


def test_every_length_scales_with_sigma() -> None:
    alpha, sigma = torch.tensor([2.0, 6.0]), 2.0
    runs = [
        minimise(
            scale * alpha,
            torch.full_like(alpha, scale),
            KLDescent(samples=50, steps=100, rate=1e-2 * scale**2),
            torch.Generator().manual_seed(0),
            lambda text: None,
        )
        for scale in (1.0, sigma)
    ]
    assert torch.allclose(runs[1].mean, sigma * runs[0].mean, atol=1e-4)
    assert torch.allclose(runs[1].factor, sigma * runs[0].factor, atol=1e-4)
    assert torch.allclose(runs[1].kl, runs[0].kl, atol=1e-4)


def test_samples_descend_as_the_integral_does() -> None:
    alpha, descent = torch.tensor([3.0, 6.0]), KLDescent(samples=2000, steps=150, rate=0.05, dimension=3)
    fits = minimise(alpha, torch.ones(2), descent, torch.Generator().manual_seed(0), lambda text: None)
    expected = exact.descend(alpha.double(), descent.rate, descent.steps)
    u = direction(3, "cpu").float()
    assert torch.allclose(fits.mean, expected.m.float()[:, None] * u, atol=0.05)
    covariance = torch.eye(3) + (expected.s.float().square() - 1)[:, None, None] * torch.outer(u, u)
    assert torch.allclose(fits.factor @ fits.factor.mT, covariance, atol=0.15)


def test_a_threshold_is_read_between_two_points() -> None:
    assert figures.threshold([1.0, 2.0, 3.0], [0.5, 0.5, 0.0]) == 2.5
    assert figures.threshold([1.0, 2.0], [0.5, 0.4]) is None


@pytest.mark.parametrize("name", ["fig2", "fig3", "fig5"])
def test_smoke(reproduce: Reproduce, tmp_path: Path, name: str) -> None:
    result = reproduce(f"gelberg2024/{name}", "--out", tmp_path, "--json")
    assert result.exit_code == 0, result.stderr
    claims: list[dict[str, Any]] = json.loads(result.stdout)["claims"]
    wrong = [claim["text"] for claim in claims if claim["holds"] is not True]
    assert wrong == (["that threshold is the one of the minimiser of KL"] if name == "fig3" else [])
    assert (tmp_path / f"gelberg2024-{name}-smoke.png").stat().st_size > 10_000
