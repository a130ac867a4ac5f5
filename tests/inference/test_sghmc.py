"""SGHMC: that its draws have the right distribution, also with long steps."""

import pytest
from linear_posterior import NOISE, VARIANCE, Linear, assert_moments, draws

import coset
from coset import data, zoo
from coset.core.errors import CosetError


@pytest.mark.parametrize(("momentum", "temperature"), [(0.0, 1.0), (0.7, 0.3)])
def test_long_steps_sample_a_quadratic_exactly(momentum: float, temperature: float) -> None:
    """BAOAB has no error in the positions; with a step of the Euler scheme the variance would be 1.5 times as large."""
    linear = Linear()
    method = coset.SGHMC(
        chains=48, rate=0.15, epochs=100, burn_in=40, batch_size=50, momentum=momentum,
        temperature=temperature, prior_variance=VARIANCE, noise=NOISE,
    )  # fmt: skip
    (q,) = coset.fit(linear.net, linear.split, method)
    assert_moments(draws(q, 48), linear.mean, temperature * linear.covariance, within=0.08)


@pytest.mark.slow
def test_cyclical_chains_classify_the_digits() -> None:
    digits, net = data.load("digits"), zoo.build("mlp:64-64-10")
    method = coset.SGHMC(rate=0.02, epochs=100, burn_in=20, thin=5, schedule="cyclical", cycles=4, prior_variance=0.1)
    (q,) = coset.fit(net, digits.train, method)
    found = coset.evaluate(q, net, digits.test)
    assert found.accuracy > 0.96 and found.nll < 0.15


def test_bad_momentum() -> None:
    with pytest.raises(CosetError, match=r"SGHMC: momentum must be in \[0, 1\), not 1\.0"):
        coset.SGHMC(momentum=1.0)
