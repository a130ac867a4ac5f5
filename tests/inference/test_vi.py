"""MinibatchRun inference: its objective by hand, and the known optimum of a conjugate problem."""

import math

import pytest
import torch
from hypothesis import given, settings, strategies as st
from inference_problems import clusters, line, mlp, problem
from torch import nn
from torch.distributions import Normal, kl_divergence
from torch.func import functional_call
from torch.nn import functional as F

import coset
from coset.core.errors import CosetError
from coset.data import Split
from coset.training.loop import MinibatchRun


def started(method: coset.VI, split: Split, net: nn.Module | None = None) -> MinibatchRun:
    run = method.start(problem(net or mlp(), split, (0, 3)))
    assert isinstance(run, MinibatchRun)
    return run


@pytest.mark.parametrize("regression", [False, True])
@pytest.mark.parametrize(("temperature", "samples"), [(1.0, 1), (0.1, 3), (2.0, 2)])
def test_the_objective_by_hand(temperature: float, samples: int, regression: bool) -> None:
    """A batch of M of N examples: minus the tempered bound is N/M sum_batch CE + KL(q || p) + (1 - T) H(q), over N."""
    split = clusters()
    if regression:
        split = Split(split.inputs, split.inputs[:, :3])
    v, noise = 0.3, 0.7 if regression else None
    settings = coset.VI(
        prior_variance=v, temperature=temperature, samples=samples, initial_std=0.2, batch_size=16, noise=noise
    )
    run = started(settings, split)
    at = torch.stack([torch.arange(16), torch.arange(30, 46)])
    inputs, targets = split.inputs[at], split.targets[at]
    before = run.problem.randomness.states
    objective, loss, _ = run.objective(inputs, targets)
    generators = [torch.Generator(), torch.Generator()]
    for generator, state in zip(generators, before[-2:], strict=True):
        generator.set_state(state)
    for row in range(2):
        mean, std = run.parameters["mean"][row].detach(), F.softplus(run.parameters["rho"])[row].detach()
        assert torch.allclose(std, torch.tensor(0.2))
        total = 0.0
        for _ in range(samples):
            drawn = mean + std * torch.randn(len(mean), generator=generators[row])
            out = functional_call(run.problem.network.model, run.problem.network.unflatten(drawn), (inputs[row],))
            if noise is None:
                total += float(F.cross_entropy(out, targets[row], reduction="sum")) / samples
            else:
                total -= float(Normal(out, noise).log_prob(targets[row]).sum()) / samples
        q, prior = Normal(mean, std), Normal(torch.zeros_like(mean), math.sqrt(v))
        divergence = float(kl_divergence(q, prior).sum() + (1 - temperature) * q.entropy().sum())
        bound = len(split) / 16 * total + divergence
        assert float(objective[row].detach()) == pytest.approx(bound / len(split), rel=1e-5)
        assert float(loss[row].detach()) == pytest.approx(total / 16, rel=1e-5)


@settings(deadline=None, max_examples=20)
@given(st.floats(0.05, 5), st.floats(0.05, 5), st.floats(0.01, 2))
def test_gradient_of_the_divergence(v: float, temperature: float, std: float) -> None:
    """By m it is m / v, and by s it is s / v - T / s."""
    method = coset.VI(prior_variance=v, temperature=temperature, initial_std=std)
    parameters = started(method, clusters()).parameters
    mean, s = parameters["mean"], F.softplus(parameters["rho"]).detach().double().requires_grad_()
    by_mean, by_std = torch.autograd.grad(method._divergence(mean, s).sum(), [mean, s])
    assert torch.allclose(by_mean, mean / v, rtol=1e-4)
    assert torch.allclose(by_std, s / v - temperature / s, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("way", "temperature"), [("weights", 1.0), ("local", 0.25)])
def test_optimum_of_a_conjugate_problem(way: str, temperature: float) -> None:
    """The posterior is N(m, P^-1) with P = X^T X / noise^2 + I / v; the best q has its mean and s_i^2 = T / P_ii."""
    split, v, noise = line(), 0.5, 0.5
    precision = split.inputs.T @ split.inputs / noise**2 + torch.eye(3) / v
    mean = torch.linalg.solve(precision, split.inputs.T @ split.targets / noise**2)
    method = coset.VI(
        rate=0.05,
        epochs=250,
        batch_size=64,
        noise=noise,
        prior_variance=v,
        samples=4,
        temperature=temperature,
        reparameterization=way,  # type: ignore[arg-type]
    )
    (q,) = coset.fit(nn.Linear(3, 1, bias=False).double(), split, method)
    assert isinstance(q, coset.Gaussian) and q.noise == pytest.approx(noise)
    expected = (temperature / precision.diagonal()).sqrt()
    assert torch.allclose(q.mean["weight"].squeeze(0), mean.squeeze(1), atol=0.02)
    assert torch.allclose(q.std["weight"].squeeze(0), expected, rtol=0.1)


def test_bare_defaults_give_a_calibrated_classifier() -> None:
    split, test = clusters(200), clusters(200)
    (q,) = coset.fit(mlp(), split, coset.VI(epochs=40, batch_size=50, rate=0.02))
    assert isinstance(q, coset.Gaussian) and set(q.std) == set(q.mean)
    assert coset.evaluate(q, mlp(), test).accuracy > 0.9


@pytest.mark.parametrize("name", ["prior_variance", "temperature", "initial_std", "samples"])
def test_bad_settings_of_vi(name: str) -> None:
    with pytest.raises(CosetError, match=f"VI: {name} must be positive and finite, not 0"):
        coset.VI(**{name: 0})  # type: ignore[arg-type]
    with pytest.raises(CosetError, match="reparameterization must be weights or local"):
        coset.VI(reparameterization="global")  # type: ignore[arg-type]
