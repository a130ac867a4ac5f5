"""Importance weights against an exact evidence, and priors of canonical networks against integrals."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import HealthCheck, given, settings, strategies as st
from scipy.special import kve
from torch import Tensor, nn

import coset
from coset import Manifold, log_volume, zoo
from coset.core import state as states
from coset.flow.importance import importance, log_likelihood, log_posterior, quotient_log_prior

law = settings(deadline=None, derandomize=True, max_examples=25, suppress_health_check=list(HealthCheck))
PRIOR, NOISE = 0.8, 0.5


def log_normal(x: Tensor) -> Tensor:
    """[n] log N(x; 0, PRIOR^2) in float64."""
    return torch.distributions.Normal(torch.zeros(()).double(), PRIOR).log_prob(x).flatten(1).sum(1)


@law
@given(st.lists(st.floats(-5, 5), min_size=2, max_size=8), st.floats(-1e4, 1e4))
def test_weights(logs: list[float], shift: float) -> None:
    """Against plain arithmetic, far from where exp overflows."""
    target = torch.tensor(logs, dtype=torch.float64) + shift
    q = torch.linspace(-1, 1, len(logs), dtype=torch.float64)
    w = [math.exp(a - float(b)) for a, b in zip(logs, q, strict=True)]
    result = importance(target, q)
    assert torch.allclose(result.log_weights.exp(), torch.tensor(w, dtype=torch.float64) / sum(w), rtol=1e-6)
    assert result.ess == pytest.approx(sum(w) ** 2 / sum(x * x for x in w), rel=1e-6)
    mean = sum(w) / len(w)
    assert result.log_evidence == pytest.approx(math.log(mean) + shift, abs=1e-6)
    variance = sum((x - mean) ** 2 for x in w) / (len(w) - 1)
    assert result.log_evidence_error == pytest.approx(math.sqrt(variance / len(w)) / mean, abs=1e-5)


def test_equal_and_vanishing_weights() -> None:
    same = importance(torch.full((5,), -800.0), torch.full((5,), -900.0))
    assert same.ess == pytest.approx(5) and same.log_evidence == pytest.approx(100)
    assert same.log_evidence_error == pytest.approx(0, abs=1e-6)
    one = importance(torch.tensor([0.0, -math.inf]), torch.zeros(2))
    assert one.ess == pytest.approx(1) and one.log_evidence == pytest.approx(-math.log(2))
    assert importance(torch.zeros(1), torch.zeros(1)).log_evidence_error == math.inf


def test_resampling() -> None:
    result = importance(torch.tensor([0.5, 0.25, 0.2, 0.05]).log(), torch.zeros(4))
    places = result.resample(200, torch.Generator().manual_seed(0))
    assert torch.bincount(places, minlength=4).tolist() == [100, 50, 40, 10]
    generator = torch.Generator().manual_seed(1)
    few = torch.cat([result.resample(3, generator) for _ in range(3000)])
    shares = torch.bincount(few, minlength=4) / len(few)
    assert torch.allclose(shares, torch.tensor([0.5, 0.25, 0.2, 0.05]), atol=0.02)
    assert bool((importance(torch.tensor([-math.inf, 0.0]), torch.zeros(2)).resample(50) == 1).all())


class Linear:
    """y = w x + b + noise with weights N(0, PRIOR^2): the evidence and the posterior are normal."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(3)
        inputs = torch.randn(20, 2, generator=generator, dtype=torch.float64)
        targets = inputs @ torch.tensor([[1.0], [-0.5]]).double() + 0.3
        self.data = inputs, targets + NOISE * torch.randn(20, 1, generator=generator, dtype=torch.float64)
        self.model = nn.Linear(2, 1).double()
        design = torch.cat([inputs, torch.ones(20, 1)], 1)
        covariance = PRIOR**2 * design @ design.T + NOISE**2 * torch.eye(20)
        marginal = torch.distributions.MultivariateNormal(torch.zeros(20).double(), covariance)
        self.log_evidence = float(marginal.log_prob(self.data[1][:, 0]))
        precision = design.T @ design / NOISE**2 + torch.eye(3) / PRIOR**2
        mean = torch.linalg.solve(precision, design.T @ self.data[1][:, 0] / NOISE**2)
        self.posterior = torch.distributions.MultivariateNormal(mean, precision_matrix=precision)
        self.wide = torch.distributions.MultivariateNormal(mean, precision_matrix=precision / 1.5)

    def states(self, w: Tensor) -> dict[str, Tensor]:
        return {"weight": w[:, None, :2], "bias": w[:, 2:]}


def test_the_evidence_of_a_linear_model() -> None:
    problem = Linear()
    torch.manual_seed(0)
    exact = problem.posterior.sample((50,))
    target = log_posterior(problem.states(exact), problem.model, problem.data, PRIOR, NOISE)
    # With draws of the posterior itself, every weight is the evidence.
    result = importance(target, problem.posterior.log_prob(exact))
    assert result.ess == pytest.approx(50)
    assert result.log_evidence == pytest.approx(problem.log_evidence, abs=1e-9)

    samples = problem.wide.sample((100, 200))
    flat = samples.flatten(0, 1)
    target = log_posterior(problem.states(flat), problem.model, problem.data, PRIOR, NOISE).view(100, 200)
    each = [importance(p, problem.wide.log_prob(w)) for p, w in zip(target, samples, strict=True)]
    evidences = torch.tensor([one.log_evidence for one in each])
    errors = torch.tensor([one.log_evidence_error for one in each])
    assert abs(float(evidences.mean()) - problem.log_evidence) < 4 * float(evidences.std()) / 10
    assert float(errors.mean()) == pytest.approx(float(evidences.std()), rel=0.25)
    resampled = flat[importance(target.flatten(), problem.wide.log_prob(flat)).resample(5000)]
    assert torch.allclose(resampled.mean(0), problem.posterior.mean, atol=0.01)
    assert torch.allclose(resampled.T.cov(), problem.posterior.covariance_matrix, atol=0.002)


def test_the_posterior_of_a_classifier() -> None:
    """Frozen parameters have no prior, and batches make no difference."""
    model = zoo.MLP([2, 3, 4]).double()
    model.layers[0].bias.requires_grad_(False)  # type: ignore[union-attr]
    generator = torch.Generator().manual_seed(0)
    like = states.of(model)
    population = {k: torch.randn(5, *v.shape, generator=generator, dtype=v.dtype) for k, v in like.items()}
    inputs = torch.randn(9, 2, generator=generator, dtype=torch.float64)
    targets = torch.arange(9) % 4
    result = log_posterior(population, model, (inputs, targets), PRIOR)
    for k, one in enumerate(states.unstack(population)):
        hidden = (inputs @ one["layers.0.weight"].T + one["layers.0.bias"]).relu()
        logits = hidden @ one["layers.1.weight"].T + one["layers.1.bias"]
        expected = -nn.functional.cross_entropy(logits, targets, reduction="sum")
        assert float(log_likelihood(population, model, (inputs, targets))[k]) == pytest.approx(float(expected))
        for name in ("layers.0.weight", "layers.1.weight", "layers.1.bias"):
            expected = expected + log_normal(one[name][None])[0]
        assert float(result[k]) == pytest.approx(float(expected))


class Tied(nn.Module):
    """One weight under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.second(self.first(x).tanh())
        return out


def test_tied_weights_count_once() -> None:
    model = Tied()
    weight = torch.randn(3, 2, 2, generator=torch.Generator().manual_seed(0))
    data = torch.randn(4, 2), torch.tensor([0, 1, 1, 0])
    prior = log_normal(weight.double())
    for names in (["first.weight", "second.weight"], ["second.weight"]):
        population = dict.fromkeys(names, weight)
        result = log_posterior(population, model, data, PRIOR) - log_likelihood(population, model, data)
        assert torch.allclose(result, prior)


class Squared(nn.Module):
    """A unit's factor leaves it squared: the powers are 1 and -2."""

    def forward(self, x: Tensor) -> Tensor:
        return x.relu() ** 2


NETS: dict[str, Callable[[], nn.Module]] = {
    "relu": lambda: zoo.MLP([3, 2, 2]),
    "one input": lambda: zoo.MLP([1, 2, 1]),
    "squared": lambda: nn.Sequential(nn.Linear(2, 2), Squared(), nn.Linear(2, 2)),
    "flattened": lambda: nn.Sequential(nn.Conv2d(1, 2, 2), nn.ReLU(), nn.Flatten(), nn.Linear(8, 2)),
}


@functools.cache
def network(name: str) -> tuple[coset.Symmetry, dict[str, Tensor]]:
    model = NETS[name]().double()
    shape = (1, 1, 3, 3) if name == "flattened" else (1, 1 if name == "one input" else 3 if name == "relu" else 2)
    sym = coset.symmetry(model, (torch.zeros(shape, dtype=torch.float64),), verify=False)
    return sym, states.of(model)


def canonical(name: str, polar: bool) -> tuple[coset.Symmetry, Manifold, dict[str, Tensor], Tensor]:
    """Two canonical networks."""
    sym, like = network(name)
    generator = torch.Generator().manual_seed(0)
    samples = {k: 0.7 * torch.randn(2, *v.shape, generator=generator, dtype=v.dtype) for k, v in like.items()}
    result = coset.canonicalize(samples, sym)
    m = coset.manifold(sym, samples, polar=polar)
    return sym, m, result.state, m.coordinates(result.state)


@pytest.mark.parametrize("polar", [False, True])
@pytest.mark.parametrize("name", NETS)
def test_the_prior_of_canonical_networks_by_brute_force(name: str, polar: bool) -> None:
    """The integral over the factors of both units at once, on a grid, of the prior times the volume."""
    sym, m, population, x = canonical(name, polar)
    (scaling,) = m.exponents
    step = 0.125
    line = torch.arange(-8, 4, step, dtype=torch.float64)
    logs = torch.cartesian_prod(line, line)
    for k in range(len(x)):
        one = {key: v[k] for key, v in population.items()}
        image = sym.act(sym.element(scales={scaling: logs.exp()}), one)
        prior = torch.stack([log_normal(v) for v in image.values()]).sum(0)
        expected = float((prior + log_volume(m, x[k].expand(len(logs), -1), {scaling: logs})).logsumexp(0))
        expected += 2 * math.log(step)
        result = float(quotient_log_prior(x[k : k + 1], m, sym, one, PRIOR))
        assert result == pytest.approx(expected, abs=1e-6)
    together = quotient_log_prior(x, m, sym, population, PRIOR)
    assert float(together[-1]) == pytest.approx(expected, abs=1e-6)
    assert torch.allclose(quotient_log_prior(x.float(), m, sym, population, PRIOR), together, atol=1e-4)


def one_unit(width: int, bias: float, outgoing: float) -> tuple[coset.Symmetry, Manifold, dict[str, Tensor]]:
    """A unit with two inputs and as many outputs as `width`, of which one has a weight."""
    members = [["w", 0, 1.0], ["b", 0, 1.0], ["v", 1, -1.0]]
    spec = {
        "groups": {"h": 1},
        "tensors": {"w": ["h", 2], "b": ["h"], "v": [width, "h"], "c": [width]},
        "scalings": {"s": {"units": "h", "members": members}},
    }
    sym = coset.Symmetry.from_json(json.dumps(spec))
    shapes = {"w": (1, 2), "b": (1,), "v": (width, 1), "c": (width,)}
    network = {name: torch.zeros(shape, dtype=torch.float64) for name, shape in shapes.items()}
    network["w"][0, 0], network["b"][0], network["v"][0, 0] = 1.0, bias, outgoing
    return sym, coset.manifold(sym), network


@pytest.mark.parametrize("width", [1, 3, 40, 900])
@pytest.mark.parametrize("outgoing", [1e-12, 1e-3, 1.0, 30.0])
def test_the_prior_against_bessel_functions(width: int, outgoing: float) -> None:
    """int exp(E l - a e^2l - b e^-2l) dl = (b / a)^{E/4} K_{E/2}(2 sqrt(a b)), for narrow and for broad integrands."""
    sym, m, network = one_unit(width, 0.5, outgoing)
    a, b, exponent = 1.25 / (2 * PRIOR**2), outgoing**2 / (2 * PRIOR**2), 3 - width
    order, argument = abs(exponent) / 2, 2 * math.sqrt(a * b)
    scaled = float(kve(order, argument))
    if math.isinf(scaled):  # K_v(z) -> Gamma(v) (2 / z)^v / 2
        log_bessel = math.lgamma(order) + order * math.log(2 / argument) - math.log(2)
    else:
        log_bessel = math.log(scaled) - argument
    constant = -(2 + 1 + 2 * width) * math.log(PRIOR * math.sqrt(2 * math.pi))
    expected = constant + exponent / 4 * math.log(b / a) + log_bessel
    result = float(quotient_log_prior(m.coordinates(network)[None], m, sym, network, PRIOR))
    # The limit is one of small z^2 / v.
    assert result == pytest.approx(expected, rel=1e-9, abs=1e-7 + argument**2 / (order + 1) * math.isinf(scaled))


def test_dead_units() -> None:
    """Without weights out of it a unit has a density if its exponent is positive, and else an infinite one."""
    for width, finite in ((2, True), (3, False), (4, False)):
        sym, m, network = one_unit(width, 0.0, 0.0)
        result = float(quotient_log_prior(m.coordinates(network)[None], m, sym, network, 1.0))
        assert math.isfinite(result) == finite
        if finite:  # int exp(l - e^2l / 2) dl = sqrt(pi / 2)
            expected = -7 / 2 * math.log(2 * math.pi) + math.log(math.pi / 2) / 2
            assert result == pytest.approx(expected, abs=1e-9)


def test_factors_that_meet_are_refused() -> None:
    model = zoo.MLP([2, 3, 4, 2]).double()
    sym = coset.symmetry(model, (torch.zeros(1, 2, dtype=torch.float64),), verify=False)
    m = coset.manifold(sym, states.of(model))
    with pytest.raises(
        coset.CosetError, match=r"'layers\.0\.scaling\.0' and 'layers\.1.*' meet in 'layers\.1\.weight'"
    ):
        quotient_log_prior(m.random(1, dtype=torch.float64), m, sym, states.of(model), 1.0)


def test_refusals() -> None:
    sym, m, population, x = canonical("relu", False)
    plain = coset.Symmetry(axes=sym.axes, sets=sym.sets)
    with pytest.raises(coset.CosetError, match="keeps the factors"):
        quotient_log_prior(x, coset.manifold(plain, population), sym, population, 1.0)
    with pytest.raises(coset.CosetError, match="positive"):
        quotient_log_prior(x, m, sym, population, 0.0)
    norm = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.ReLU(), nn.Linear(3, 2)).eval()
    with_norm = coset.symmetry(norm, (torch.zeros(2, 2),), verify=False)
    n = coset.manifold(with_norm, states.of(norm))
    with pytest.raises(coset.CosetError, match="running_mean' has no prior"):
        quotient_log_prior(n.random(1), n, with_norm, states.of(norm), 1.0)
    with pytest.raises(coset.CosetError, match=r"not \(2,\) and \(3,\)"):
        importance(torch.zeros(2), torch.zeros(3))
    for bad in (math.nan, math.inf):
        with pytest.raises(coset.CosetError, match="NaN, infinite or all zero"):
            importance(torch.tensor([0.0, bad]), torch.zeros(2))
    with pytest.raises(coset.CosetError, match="all zero"):
        importance(torch.tensor([-math.inf]), torch.zeros(1))
    with pytest.raises(coset.CosetError, match="no noise"):
        log_likelihood(Linear().states(torch.zeros(1, 3).double()), nn.Linear(2, 1).double(), Linear().data)
