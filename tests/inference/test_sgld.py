"""SGLD: that its draws have the distribution its formula says, and what the settings mean."""

import pytest
import torch
from linear_posterior import NOISE, VARIANCE, Linear, assert_moments, draws
from torch import nn

import coset
from coset import Epoch
from coset.core.errors import CosetError
from coset.data import Split
from coset.solutions.likelihood import Regression
from coset.training.loop import MinibatchRun
from coset.training.network import Network, Randomness, TrainingProblem


@pytest.fixture(scope="module")
def linear() -> Linear:
    return Linear()


def sampling(settings: coset.SGLD, split: Split, net: nn.Module, rows: int = 2) -> MinibatchRun:
    network = Network(net)
    start = torch.randn(rows, network.size, generator=torch.Generator().manual_seed(1))
    randomness = Randomness(0, [(row,) for row in range(rows)], torch.device("cpu"))
    run = settings.start(TrainingProblem(network, start, split, Regression(), randomness))
    assert isinstance(run, MinibatchRun)
    return run


@pytest.mark.parametrize("temperature", [1.0, 0.3])
def test_stationary_distribution_of_a_quadratic(linear: Linear, temperature: float) -> None:
    """The Euler scheme has the covariance T A^-1 (I - rate A / 2n)^-1, here far from T A^-1."""
    rate, n = 0.15, len(linear.split)
    method = coset.SGLD(
        chains=48, rate=rate, epochs=90, burn_in=30, batch_size=n,
        temperature=temperature, prior_variance=VARIANCE, noise=NOISE,
    )  # fmt: skip
    (q,) = coset.fit(linear.net, linear.split, method)
    assert isinstance(q, coset.Ensemble) and q.noise == pytest.approx(NOISE)
    damped = torch.eye(3).double() - rate * linear.precision / (2 * n)
    expected = temperature * linear.covariance @ damped.inverse()
    assert (expected.diagonal() / linear.covariance.diagonal() / temperature).max() > 1.3
    assert_moments(draws(q, 48), linear.mean, expected, within=0.05)


@pytest.mark.slow
def test_small_steps_on_minibatches_sample_the_posterior(linear: Linear) -> None:
    """Up to some five percent of the variance, for the length of the steps and for the noise of the gradient."""
    method = coset.SGLD(
        chains=48, rate=0.01, epochs=600, burn_in=100, thin=5, batch_size=25, prior_variance=VARIANCE, noise=NOISE
    )
    (q,) = coset.fit(linear.net, linear.split, method)
    x = draws(q, 48)
    assert ((x.mean((0, 1)) - linear.mean).abs() < 0.1 * linear.covariance.diagonal().sqrt()).all()
    assert torch.allclose(x.flatten(0, 1).var(0), linear.covariance.diagonal(), rtol=0.15)


def test_the_gradient_of_minibatches_is_unbiased(linear: Linear) -> None:
    """Over the batches of an epoch, the objective averages to -log p(w, y | x) / n."""
    run = sampling(coset.SGLD(batch_size=10, prior_variance=VARIANCE, noise=NOISE), linear.split, linear.net)
    batches = [x.view(5, 10, -1) for x in linear.split]
    pairs = [(x.expand(2, -1, -1), y.expand(2, -1, -1)) for x, y in zip(*batches, strict=True)]
    found = torch.stack([run.objective(x, y)[0] for x, y in pairs]).mean(0)
    for row, w in enumerate(run.parameters["weights"].detach()):
        outputs = linear.split.inputs @ w[:2, None] + w[2]
        likelihood = torch.distributions.Normal(outputs, NOISE).log_prob(linear.split.targets).sum()
        prior = torch.distributions.Normal(0.0, VARIANCE**0.5).log_prob(w).sum()
        assert found[row].item() == pytest.approx(-(likelihood + prior).item() / 50, rel=1e-5)


def test_cycles(linear: Linear) -> None:
    method = coset.SGLD(
        chains=2, rate=0.1, epochs=12, burn_in=2, thin=2, batch_size=10, schedule="cyclical", cycles=2, noise=NOISE
    )
    assert [method.draws_after(epochs) for epochs in range(13)] == [0, 0, 0, 0, 1, 1, 2, 2, 2, 2, 3, 3, 4]
    rates = [method.rate_at(step, 60) for step in range(60)]
    assert rates[:30] == rates[30:] and rates[0] == 0.1 and rates[15] == pytest.approx(0.05) and rates[29] < 0.001
    (q,) = coset.fit(linear.net, linear.split, method)
    assert len(q) == 8


def test_exploring_is_without_noise(linear: Linear) -> None:
    def losses(temperature: float) -> list[float]:
        method = coset.SGLD(
            chains=1, rate=0.01, epochs=8, burn_in=2, batch_size=25, schedule="cyclical", cycles=2,
            temperature=temperature, noise=NOISE,
        )  # fmt: skip
        seen: list[Epoch] = []
        coset.fit(linear.net, linear.split, method, progress=coset.on_epoch(seen.append))
        return [epoch.loss for epoch in seen]

    cold, hot = losses(1e-6), losses(1.0)
    assert cold[:2] == hot[:2] and cold[2] != hot[2]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"schedule": "cosine"}, "schedule must be constant or cyclical"),
        ({"temperature": 0.0}, "temperature must be positive"),
        ({"chains": 0}, "chains must be positive"),
        ({"epochs": 10, "burn_in": 10}, "no draw is left of 10 epochs with burn_in=10 and thin=1"),
        ({"epochs": 10, "burn_in": 6, "thin": 5}, "no draw is left of 10 epochs"),
        ({"schedule": "cyclical"}, "no draw is left of 50 epochs with burn_in=100"),
        ({"schedule": "cyclical", "cycles": 3}, "200 epochs are not 3 equal cycles"),
        ({"noise": -1.0}, "noise must be positive"),
    ],
)
def test_bad_settings_of_chains(settings: dict[str, object], message: str) -> None:
    with pytest.raises(CosetError, match=message):
        coset.SGLD(**settings)  # type: ignore[arg-type]


def test_a_regression_needs_a_noise(linear: Linear) -> None:
    with pytest.raises(CosetError, match=r"does not learn the noise .* give SGLD\(noise=0\.1\)"):
        coset.fit(linear.net, linear.split, coset.SGLD())
