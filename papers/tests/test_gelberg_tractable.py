"""gelberg2024 Figure 4, Tables 2 and 3: the exact posterior and bounds by other quadratures, the exhibits."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from scipy.integrate import dblquad
from torch import Tensor

import coset
from coset.data import Split
from coset_papers.gelberg2024.tractable_exact import ExactPosterior, Normal, information
from coset_papers.gelberg2024.tractable_net import EDGE, TwoUnits, points


def data_and_posterior(alpha: float, noise: float, variance: float, seed: int = 0) -> tuple[Split, ExactPosterior]:
    split = points(alpha, 20, torch.Generator().manual_seed(seed))
    return split, ExactPosterior.of(split, alpha, noise, variance)


def gaussian(m1: float, m2: float, s1: float, s2: float) -> Normal:
    return Normal(torch.tensor([m1, m2], dtype=torch.float64), torch.tensor([s1, s2], dtype=torch.float64))


def grid(q: Normal, reach: float = 9.0, count: int = 1401) -> tuple[Tensor, Tensor]:
    """Points [n, 2] around the mean, and the share of q at each: where modes hardly overlap, samples would miss it."""
    z = torch.linspace(-reach, reach, count, dtype=torch.float64)
    weights = torch.exp(-(z.square()) / 2)
    noise = torch.cartesian_prod(z, z)
    return q.mean + q.std * noise, torch.outer(weights, weights).flatten() / weights.sum() ** 2


def log_normal(x: Tensor, mean: Tensor, std: Tensor | float) -> Tensor:
    """Summed over the last dimension."""
    logs: Tensor = torch.distributions.Normal(mean, std).log_prob(x)  # type: ignore[no-untyped-call]
    return logs.sum(-1)


def log_q(q: Normal, w: Tensor) -> Tensor:
    return log_normal(w, q.mean, q.std)


WEIGHTS, DEVIATIONS = st.floats(-0.5, 0.5), st.floats(0.05, 0.5)


@given(WEIGHTS, WEIGHTS, st.floats(0.05, 0.3), st.floats(0.5, 5.0), st.floats(0.01, 2.0))
@settings(max_examples=30, deadline=None)
def test_the_joint_is_that_of_the_network(w1: float, w2: float, alpha: float, noise: float, variance: float) -> None:
    split, posterior = data_and_posterior(alpha, noise, variance)
    w, x = torch.tensor([w1, w2], dtype=torch.float64), split.inputs.double()
    outputs = torch.func.functional_call(TwoUnits(), {"weight": w[:, None]}, (x,))
    expected = log_normal(alpha * x.abs(), outputs, noise).sum() + log_normal(
        w, torch.zeros_like(w), math.sqrt(variance)
    )
    assert float(posterior.log_joint(w)) == pytest.approx(float(expected), rel=1e-9)


@pytest.mark.parametrize(("alpha", "noise", "variance"), [(0.2, 3.0, 0.005), (0.1, 1.0, 1.0)])
def test_the_evidence_is_that_of_adaptive_quadrature(alpha: float, noise: float, variance: float) -> None:
    _, posterior = data_and_posterior(alpha, noise, variance)
    top = float(posterior.log_joint(torch.tensor(posterior.mode, dtype=torch.float64)))

    def density(v: float, u: float) -> float:
        return math.exp(float(posterior.log_joint(torch.tensor([u, v], dtype=torch.float64))) - top)

    end = min(8 * math.sqrt(variance), alpha + 8 * noise / math.sqrt(min(posterior.right, posterior.left)))
    halves = ((-end, 0.0), (0.0, end))
    total = sum(dblquad(density, *first, *second, epsrel=1e-6)[0] for first in halves for second in halves)
    assert posterior.log_evidence() == pytest.approx(math.log(total) + top, abs=1e-4)


def test_the_mode_is_a_maximum() -> None:
    _, posterior = data_and_posterior(0.2, 3.0, 0.005)
    w = torch.tensor(posterior.mode, dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(posterior.log_joint(w), w)
    assert float(gradient.abs().max()) < 1e-9
    assert posterior.mode[0] > 0 > posterior.mode[1]


@given(WEIGHTS, WEIGHTS, DEVIATIONS, DEVIATIONS)
@settings(max_examples=10, deadline=None)
def test_bounds_are_those_of_a_grid(m1: float, m2: float, s1: float, s2: float) -> None:
    _, posterior = data_and_posterior(0.2, 3.0, 0.05)
    q = gaussian(m1, m2, s1, s2)
    w, weights = grid(q)
    own, swapped = log_q(q, w), log_q(q, w.flip(-1))
    mixture = torch.logaddexp(own, swapped) - math.log(2)
    joint = posterior.log_joint(w)
    for bound, values in (
        (posterior.elbo(q), joint - own),
        (posterior.symmetrized(q), joint - mixture),
        (information(q), own - mixture),
    ):
        assert float(bound) == pytest.approx(float(weights @ values), rel=1e-5, abs=1e-6)
    assert float(posterior.elbo(q)) <= posterior.log_evidence()
    assert -1e-6 <= float(information(q)) <= math.log(2) + 1e-6


@given(WEIGHTS, WEIGHTS, DEVIATIONS, DEVIATIONS)
@settings(max_examples=5, deadline=None)
def test_the_error_of_the_mean_prediction_is_that_of_a_grid(m1: float, m2: float, s1: float, s2: float) -> None:
    q = gaussian(m1, m2, s1, s2)
    nodes, weights = (torch.from_numpy(x) for x in np.polynomial.hermite_e.hermegauss(200))
    x = torch.linspace(-EDGE, EDGE, 2001, dtype=torch.float64)
    w = q.mean + q.std * nodes[:, None]
    mean = sum(torch.relu(w[:, k, None] * x).mT @ weights / weights.sum() for k in range(2))
    expected = torch.trapezoid((0.2 * x.abs() - mean).square(), x) / (2 * EDGE)
    assert float(data_and_posterior(0.2, 1.0, 1.0)[1].mean_error(q)) == pytest.approx(
        float(expected), rel=0.03, abs=1e-3
    )


@pytest.mark.parametrize("symmetrize", [False, True])
def test_nothing_near_the_optimum_is_better(symmetrize: bool) -> None:
    _, posterior = data_and_posterior(0.2, 3.0, 0.01)
    value = posterior.symmetrized if symmetrize else posterior.elbo
    best = posterior.best(symmetrize)
    generator = torch.Generator().manual_seed(0)
    for _ in range(50):
        dm, ds = (0.02 * torch.randn(2, generator=generator, dtype=torch.float64) for _ in range(2))
        assert float(value(Normal(best.mean + dm, best.std * ds.exp()))) <= float(value(best)) + 1e-9
    assert float(value(best)) <= posterior.log_evidence()


def test_bounds_are_those_of_the_library() -> None:
    split, posterior = data_and_posterior(0.2, 3.0, 0.05)
    q, model = gaussian(0.1, -0.05, 0.1, 0.12), TwoUnits()
    solution = coset.Gaussian({"weight": q.mean[:, None].float()}, {"weight": q.std[:, None].float()}, noise=3.0)
    sym = coset.symmetry(model, (split.inputs[:4],))
    result = coset.elbo(solution, model, split, 0.05, samples=4000, sym=sym, entropy="exact")
    assert result.symmetrized is not None and result.overlap is not None
    assert result.value == pytest.approx(float(posterior.elbo(q)), abs=5 * result.error)
    slack = 5 * (result.error + result.overlap.error)
    assert result.symmetrized == pytest.approx(float(posterior.symmetrized(q)), abs=slack)
