"""HMC: the integrator, the adaptation, and draws against posteriors that are known."""

import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from linear_posterior import NOISE, VARIANCE, Linear, assert_moments, draws
from torch import Tensor, nn

import coset
from coset import Epoch
from coset.core.errors import CosetError
from coset.data import Split
from coset.inference.hmc import Leapfrog
from coset.inference.posterior import ChainState, LogPosterior
from coset.solutions.likelihood import Classification, Regression
from coset.training.network import Network, Randomness, TrainingProblem


def quartic(w: Tensor) -> ChainState:
    """log p = -sum_i w_i^4 / 4 - w_0 w_1 / 2."""
    density = -w.double().pow(4).sum(1) / 4 - (w[:, 0] * w[:, 1]).double() / 2
    gradient = -w.pow(3)
    gradient[:, :2] -= w[:, :2].flip(1) / 2
    return ChainState(w, density, density, density, gradient)


def moving(step: float, seed: int = 0) -> Leapfrog:
    generator = torch.Generator().manual_seed(seed)
    found = Leapfrog(quartic, quartic(torch.randn(4, 3, dtype=torch.float64, generator=generator)))
    found.momentum.normal_(generator=generator)
    found.variance.uniform_(0.5, 2, generator=generator)
    found.step.fill_(step)
    return found


def test_the_way_back_is_the_way() -> None:
    chains = moving(0.1)
    start = chains.at.weights.clone(), chains.momentum.clone()
    chains.run(20)
    assert (chains.at.weights - start[0]).abs().min() > 1e-3
    chains.momentum.neg_()
    chains.run(20)
    assert torch.allclose(chains.at.weights, start[0], atol=1e-12)
    assert torch.allclose(chains.momentum, -start[1], atol=1e-12)


def test_the_error_of_the_energy_is_of_second_order() -> None:
    def error(steps: int) -> Tensor:
        chains = moving(1 / steps)
        before = chains.energy()
        chains.run(steps)
        return chains.energy() - before

    coarse, fine = error(40), error(80)
    assert torch.allclose(coarse / fine, torch.tensor(4.0).double(), rtol=0.05) and coarse.abs().max() < 0.01


def test_volume_is_kept() -> None:
    """The Jacobian of some steps has the determinant 1."""

    def flow(z: Tensor) -> Tensor:
        chains = Leapfrog(quartic, quartic(z[None, :3].clone()))
        chains.momentum.copy_(z[None, 3:])
        chains.step.fill_(0.3)
        chains.run(5)
        return torch.cat([chains.at.weights[0], chains.momentum[0]])

    z, h = torch.randn(6, dtype=torch.float64, generator=torch.Generator().manual_seed(0)), 1e-5
    columns = [(flow(z + h * e) - flow(z - h * e)) / (2 * h) for e in torch.eye(6).double()]
    assert torch.stack(columns, 1).det().item() == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("kind", ["classes", "values"])
def test_density_and_gradient(kind: str) -> None:
    """Against torch.distributions and finite differences, in chunks of any size."""
    generator = torch.Generator().manual_seed(0)
    net = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 2)).double()
    inputs = torch.randn(7, 2, generator=generator).double()
    targets = torch.randint(2, (7,), generator=generator) if kind == "classes" else inputs.flip(0)
    likelihood = Classification() if kind == "classes" else Regression()
    network = Network(net)
    start = torch.randn(3, network.size, dtype=torch.float64, generator=generator)
    rows = Randomness(0, [(0,), (1,), (2,)], torch.device("cpu"))
    problem = TrainingProblem(network, start, Split(inputs, targets), likelihood, rows)
    found = LogPosterior(problem, 0.7, torch.tensor(0.3).double(), 3)(start)
    whole = LogPosterior(problem, 0.7, torch.tensor(0.3).double(), 100)
    for row, w in enumerate(start):
        outputs = torch.func.functional_call(net, network.unflatten(w), (inputs,))
        if kind == "classes":
            logs = torch.distributions.Categorical(logits=outputs).log_prob(targets)
            assert found.right[row] == (outputs.argmax(1) == targets).sum()
        else:
            logs = torch.distributions.Normal(outputs, 0.3).log_prob(targets)
        prior = torch.distributions.Normal(0.0, 0.7**0.5).log_prob(w).sum()
        assert found.log_likelihood[row].item() == pytest.approx(logs.sum().item())
        assert found.log_density[row].item() == pytest.approx((logs.sum() + prior).item())
    for i in range(network.size):
        h = 1e-5 * torch.eye(network.size, dtype=torch.float64)[i]
        slope = (whole(start + h).log_density - whole(start - h).log_density) / 2e-5
        assert torch.allclose(slope, found.gradient[:, i], atol=1e-5)


@pytest.mark.parametrize(("mass", "precision", "temperature"), [("unit", "float32", 1.0), ("diagonal", "float64", 0.3)])
def test_the_posterior_of_a_linear_regression(mass: str, precision: str, temperature: float) -> None:
    linear = Linear()
    method = coset.HMC(
        chains=48, draws=60, warm_up=60, steps=7, jitter=0.3, mass=mass, precision=precision,  # type: ignore[arg-type]
        temperature=temperature, prior_variance=VARIANCE, noise=NOISE,
    )  # fmt: skip
    seen: list[Epoch] = []
    (q,) = coset.fit(linear.net, linear.split, method, progress=coset.on_epoch(seen.append))
    assert isinstance(q, coset.Ensemble) and len(q) == 48 * 60 and q.noise == NOISE
    assert q.population["weight"].dtype == torch.float32
    x = draws(q, 48)
    assert_moments(x, linear.mean, temperature * linear.covariance, within=0.06)
    assert coset.r_hat(x).max() < 1.05
    late = [epoch.more for epoch in seen if epoch.epoch > 60]
    assert 0.7 < sum(more["acceptance"] for more in late) / len(late) < 0.97
    assert all(more["divergences"] == 0 for more in late) and len({more["step"] for more in late}) == 48


def test_the_posterior_of_a_classifier_with_two_weights() -> None:
    """Against a sum over a grid."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(8, 1, generator=generator)
    targets = (inputs[:, 0] + torch.randn(8, generator=generator) > 0).long()
    net = nn.Linear(1, 2, bias=False)
    method = coset.HMC(chains=32, draws=80, warm_up=40, steps=5, prior_variance=3.0)
    (q,) = coset.fit(net, (inputs, targets), method)
    axis = torch.linspace(-9, 9, 361).double()
    grid = torch.cartesian_prod(axis, axis)
    logits = inputs[None].double() * grid[:, None]
    logs = torch.log_softmax(logits, -1)[:, torch.arange(8), targets].sum(1) - grid.square().sum(1) / 6
    share = torch.softmax(logs, 0)
    mean = share @ grid
    covariance = (share[:, None] * (grid - mean)).mT @ (grid - mean)
    assert_moments(q.population["weight"].double().view(32, 80, 2), mean, covariance, within=0.06)


@pytest.mark.parametrize("target", [0.6, 0.9])
def test_acceptance_is_what_was_asked_for(target: float) -> None:
    """Or a little more, as the mean step is what is averaged."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(100, 30, generator=generator)
    targets = inputs.sum(1, keepdim=True) + NOISE * torch.randn(100, 1, generator=generator)
    method = coset.HMC(chains=4, draws=160, warm_up=480, steps=6, acceptance=target, jitter=0.0, noise=NOISE)
    seen: list[Epoch] = []
    coset.fit(nn.Linear(30, 1), (inputs, targets), method, progress=coset.on_epoch(seen.append))
    found = [epoch.more["acceptance"] for epoch in seen if epoch.epoch > 480]
    assert target - 0.05 < sum(found) / len(found) < target + 0.1


def test_a_lost_trajectory_is_counted_and_stays() -> None:
    """Two trajectories warm up nothing: the steps are too long, and the weights stay finite."""
    linear = Linear()
    method = coset.HMC(chains=2, draws=5, warm_up=1, steps=50, prior_variance=1e-6, noise=1e-3)
    seen: list[Epoch] = []
    (q,) = coset.fit(linear.net, linear.split, method, progress=coset.on_epoch(seen.append))
    assert seen[-1].more["divergences"] == 5 and seen[-1].more["acceptance"] == 0
    assert all(math.isfinite(epoch.loss) for epoch in seen)
    assert all(torch.equal(x, x[:1].expand_as(x)) for part in q.population.values() for x in part.split(5))


def test_convolutions_run_one_chain_after_the_other() -> None:
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Dropout(), nn.Flatten(), nn.Linear(8, 3))
    split = Split(torch.randn(12, 1, 4, 4), torch.arange(12) % 3)
    method = coset.HMC(chains=2, draws=4, warm_up=2, steps=2)
    seen: list[Epoch] = []
    (q,) = coset.fit(net, split, method, progress=coset.on_epoch(seen.append))
    assert [(e.copy, e.epoch) for e in seen] == [(c, k) for c in (0, 1) for k in range(1, 7)]
    assert all(0 <= e.accuracy <= 1 for e in seen) and len(q) == 8
    assert (q.population["1.num_batches_tracked"] == 0).all()


def test_a_chain_does_not_depend_on_those_beside_it() -> None:
    linear = Linear()
    method = coset.HMC(chains=2, draws=5, warm_up=25, steps=3, mass="diagonal", precision="float64", noise=NOISE)
    alone, (first, _) = (coset.fit(linear.net, linear.split, method, replicas=r) for r in (1, 2))
    assert torch.allclose(draws(alone[0], 2), draws(first, 2), atol=1e-6)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"mass": "dense"}, "mass must be unit or diagonal"),
        ({"acceptance": 1.0}, "acceptance must be between 0 and 1"),
        ({"jitter": 1.0}, r"jitter must be in \[0, 1\)"),
        ({"steps": 0}, "steps must be positive"),
        ({"precision": "bfloat16"}, "precision must be float32 or float64"),
    ],
)
def test_bad_settings_of_hmc(settings: dict[str, object], message: str) -> None:
    with pytest.raises(CosetError, match=message):
        coset.HMC(**settings)  # type: ignore[arg-type]


LONG = """
import sys, torch, coset
from torch import nn

def run(out):
    x = torch.linspace(-1, 1, 20)[:, None]
    net = nn.Sequential(nn.Linear(1, 5), nn.Tanh(), nn.Linear(5, 1))
    return coset.fit(net, (x, x.sin()), coset.HMC(chains=2, draws=40, warm_up=40, steps=5, noise=0.1), out=out)[0]

if __name__ == "__main__":
    torch.set_num_threads(1)
    run(sys.argv[1])
"""


@pytest.mark.slow
def test_killed_and_resumed_is_the_same_bit_for_bit(tmp_path: Path) -> None:
    namespace: dict[str, Callable[[Path | None], coset.Ensemble]] = {}
    exec(LONG, namespace)
    run = namespace["run"]
    metrics = tmp_path / "replica-0/copy-0/metrics.jsonl"
    for lines in (10, 55):
        process = subprocess.Popen([sys.executable, "-c", LONG, str(tmp_path)])
        limit = time.monotonic() + 60
        while not (metrics.exists() and metrics.read_text().count("\n") >= lines) and time.monotonic() < limit:
            time.sleep(0.003)
        assert process.poll() is None, "it ended before it could be killed"
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    found, whole = run(tmp_path), run(None)
    assert all(torch.equal(found.population[name], x) for name, x in whole.population.items())
