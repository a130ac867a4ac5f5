"""Predicted values against closed forms: y = w x + noise has a Gaussian predictive distribution if w has."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor, nn

import coset
from coset.core import state as states
from coset.core.errors import CosetError, DataError, ModelError
from coset.solutions.likelihood import Classification, Regression, likelihood_of

Pair = tuple[Tensor, Tensor]
MEAN, STD, NOISE = torch.tensor([[0.7, -1.2], [0.3, 0.4]]), torch.tensor([[0.2, 0.5], [0.1, 0.3]]), 0.4


@pytest.fixture
def line() -> nn.Module:
    return nn.Linear(2, 2, bias=False)


@pytest.fixture
def pairs(generator: torch.Generator) -> Pair:
    x = torch.randn(50, 2, generator=generator)
    return x, x @ MEAN.T + 0.7 * torch.randn(50, 2, generator=generator)


def closed_form(x: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Mean and variance of f(x): (n, 2) each."""
    z = x.double().numpy()
    return z @ MEAN.double().numpy().T, z**2 @ STD.double().numpy().T ** 2


def density(y: np.ndarray, mean: np.ndarray, variance: np.ndarray | float) -> np.ndarray:
    return np.exp(-((y - mean) ** 2) / (2 * variance)) / np.sqrt(2 * np.pi * variance)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**31), st.lists(st.integers(1, 3), max_size=2), st.integers(1, 4), st.floats(0.1, 5.0))
def test_log_prob_is_that_of_torch_distributions(seed: int, leading: list[int], k: int, noise: float) -> None:
    g = torch.Generator().manual_seed(seed)
    f, y = torch.randn(*leading, 6, k, generator=g).double(), torch.randn(6, k, generator=g).double()
    expected = torch.distributions.Normal(f, noise).log_prob(y).sum(-1)
    assert torch.allclose(Regression().log_prob(f, y, noise), expected)
    each = noise * (1 + torch.rand(*leading, 1, 1, generator=g)).double()
    expected = torch.distributions.Normal(f, each.expand(f.shape)).log_prob(y).sum(-1)
    assert torch.allclose(Regression().log_prob(f, y, each), expected)
    classes = torch.randint(k, (6,), generator=g)
    expected = torch.distributions.Categorical(logits=f).log_prob(classes)
    assert torch.allclose(Classification().log_prob(f, classes), expected)


def test_the_noise_can_be_learned() -> None:
    """The best noise is the root mean square of the residuals."""
    residual = torch.tensor([[0.5], [-1.0], [2.0]])
    best = residual.square().mean().sqrt().requires_grad_()
    Regression().log_prob(torch.zeros(3, 1), residual, best).sum().backward()  # type: ignore[no-untyped-call]
    assert best.grad is not None and abs(float(best.grad)) < 1e-5


def test_targets_choose_the_likelihood() -> None:
    assert isinstance(likelihood_of(torch.zeros(3, 1)), Regression)
    assert isinstance(likelihood_of(torch.zeros(3, dtype=torch.int64)), Classification)
    sixteen = Regression().log_prob(torch.zeros(2, 1).bfloat16(), torch.full((2, 1), 0.3), 0.1)
    assert sixteen.dtype == torch.float32 and sixteen[0] == pytest.approx(-4.5 - math.log(0.1) - 0.9189385)


def test_moments_are_those_of_the_closed_form(line: nn.Module, pairs: Pair) -> None:
    q = coset.Gaussian({"weight": MEAN}, {"weight": STD}, noise=NOISE)
    result = coset.moments(q, line, pairs[0], samples=20_000)
    mean, variance = closed_form(pairs[0])
    assert result.mean.dtype == torch.float64 and result.mean.shape == (50, 2)
    assert np.abs(result.mean.numpy() - mean).max() < 5 * np.sqrt(variance.max() / 20_000)
    assert np.allclose(result.epistemic, np.sqrt(variance), rtol=0.03)
    assert torch.allclose(result.std.square(), result.epistemic.square() + NOISE**2)


def test_moments_of_mixtures_are_exact(line: nn.Module, pairs: Pair) -> None:
    """By the law of total variance, also where the mean is a million times the deviation."""
    parts = [coset.Dirac({"weight": MEAN + 1e-3 * k}, noise=0.1 * (k + 1)) for k in range(3)]
    x = pairs[0].abs() + 1
    line = line.double()
    far = [coset.Dirac({"weight": part.mean["weight"].double() + 1000}, part.noise) for part in parts]
    result = coset.moments(coset.Mixture(far, [1, 2, 5]), line, x.double())
    w = np.array([1, 2, 5]) / 8
    f = np.stack([(x.double() @ part.mean["weight"].T).numpy() for part in far])
    mean = np.einsum("s,snk->nk", w, f)
    variance = np.einsum("s,snk->nk", w, (f - mean) ** 2)
    assert np.allclose(result.mean, mean, rtol=1e-12) and np.allclose(result.epistemic, np.sqrt(variance), rtol=1e-6)
    noise = (w * np.array([0.1, 0.2, 0.3]) ** 2).sum()
    assert np.allclose(result.std.square(), variance + noise)
    alone = coset.moments(far[1], line, x.double())
    assert not alone.epistemic.any() and np.allclose(alone.std, 0.2) and np.allclose(alone.mean, f[1])


def test_the_loss_is_that_of_the_closed_form(line: nn.Module, pairs: Pair) -> None:
    """The two outputs have independent weights, so their densities multiply."""
    (x, y), q = pairs, coset.Gaussian({"weight": MEAN}, {"weight": STD}, noise=NOISE)
    result = coset.evaluate(q, line, pairs, samples=4000)
    mean, variance = closed_form(x)
    expected = -np.log(density(y.numpy(), mean, variance + NOISE**2)).sum(1).mean()
    assert result.nll_error is not None and 0 < result.nll_error < 0.05
    assert abs(result.nll - expected) < 4 * result.nll_error
    assert result.rmse == pytest.approx(np.sqrt(((y.numpy() - mean) ** 2).mean()), abs=0.01)
    assert result.accuracy is result.ece is result.brier is None


def test_mixtures_have_a_noise_each(line: nn.Module, pairs: Pair) -> None:
    x, y = pairs
    means = [MEAN, MEAN + 0.5]
    q = coset.Mixture([coset.Dirac({"weight": m}, noise=s) for m, s in zip(means, (0.3, 0.9), strict=True)], [1, 3])
    result = coset.evaluate(q, line, pairs)
    z, target = x.double().numpy(), y.double().numpy()
    outs = [z @ m.double().numpy().T for m in means]
    likelihoods = [density(target, f, s**2).prod(1) for f, s in zip(outs, (0.3, 0.9), strict=True)]
    assert result.nll == pytest.approx(-np.log(0.25 * likelihoods[0] + 0.75 * likelihoods[1]).mean(), abs=1e-5)
    losses = [-np.log(one).mean() for one in likelihoods]
    mean = 0.25 * losses[0] + 0.75 * losses[1]
    variance = 0.25 * (losses[0] - mean) ** 2 + 0.75 * (losses[1] - mean) ** 2
    assert result.spread == pytest.approx(math.sqrt(variance / (1 - 0.25**2 - 0.75**2)), rel=1e-4)
    assert result.rmse == pytest.approx(np.sqrt(((0.25 * outs[0] + 0.75 * outs[1] - target) ** 2).mean()), rel=1e-5)


def test_the_spread_is_that_of_the_states(net: nn.Module, gaussian: coset.Gaussian, batch: Pair) -> None:
    members = states.unstack(gaussian.sample(12, torch.Generator().manual_seed(3)))
    alone = [coset.evaluate(one, net, batch) for one in members]
    result = coset.evaluate(coset.Ensemble(members), net, batch)
    assert result.spread == pytest.approx(np.std([one.nll for one in alone], ddof=1), rel=1e-4)
    assert alone[0].spread is None and alone[0].rmse is None
    assert result.nll < np.mean([one.nll for one in alone])  # -log is convex


def test_refusals(line: nn.Module, net: nn.Module, pairs: Pair, batch: Pair) -> None:
    x, y = pairs
    q = coset.Dirac({"weight": MEAN}, noise=NOISE)
    with pytest.raises(DataError, match="2 NaN or infinite of 100 values"):
        coset.evaluate(q, line, (x, y.index_fill(0, torch.tensor([4]), math.nan)))
    with pytest.raises(DataError, match="this solution has no noise"):
        coset.evaluate({"weight": MEAN}, line, pairs)
    with pytest.raises(DataError, match=r"Targets of shape \(50, 1\) do not fit outputs of shape \(50, 2\)"):
        coset.evaluate(q, line, (x, y[:, :1]))
    with pytest.raises(DataError, match="has noise, as regression has, but the targets are classes"):
        coset.evaluate(coset.Dirac(states.of(net), noise=1.0), net, batch)
    with pytest.raises(CosetError, match="Some parts of this mixture have noise"):
        coset.evaluate(coset.Mixture([q, coset.Dirac(q.mean)]), line, pairs)
    with pytest.raises(CosetError, match=r"use coset\.moments"):
        coset.predict(q, line, x)
    with pytest.raises(CosetError, match=r"or use coset\.predict for classes"):
        coset.moments({"weight": MEAN}, line, x)
    with pytest.raises(ModelError, match=r"where values of shape \(50, k\)"):
        coset.moments(coset.Dirac({"0.weight": MEAN}, 0.1), nn.Sequential(line, nn.Unflatten(1, (2, 1))), x)
    with pytest.raises(ModelError, match="NaN"):
        coset.moments(q, line, x * math.nan)
