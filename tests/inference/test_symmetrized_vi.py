"""Symmetrized VI: its objective against brute force, what it does where modes overlap, and where they do not."""

import math
from itertools import permutations

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Normal
from torch.nn import functional as F

import coset
from coset import data, symmetry, zoo
from coset.core.errors import CosetError
from coset.data import Split
from coset.solutions.likelihood import likelihood_of
from coset.training.loop import MinibatchRun
from coset.training.network import Network, Randomness, TrainingProblem

CPU = torch.device("cpu")
ENTROPIES = ["infonce", "importance", "bethe", "exact"]


@pytest.fixture
def split() -> Split:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(40, 2, generator=generator)
    return Split(x, (x[:, :1] - x[:, 1:]).abs())


def problem(net: nn.Module, split: Split, rows: int = 2) -> TrainingProblem:
    network = Network(net)
    start = torch.randn(rows, network.size, generator=torch.Generator().manual_seed(1))
    randomness = Randomness(0, [(r,) for r in range(rows)], CPU)
    return TrainingProblem(network, start, split, likelihood_of(split.targets), randomness)


def log_q(w: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    return Normal(mean.double(), std.double()).log_prob(w.double()).sum()


def test_the_surplus_is_minus_the_information(split: Split) -> None:
    """log q(w) - log q_G(w), with q_G summed over all orders of three hidden units by hand."""
    net = zoo.build("mlp:2-3-1")
    settings = coset.SymmetrizedVI(entropy="exact", initial_std=1.0, temperature=0.7)
    run = settings.start(problem(net, split))
    assert isinstance(run, MinibatchRun)
    mean, std = run.parameters["mean"].detach(), F.softplus(run.parameters["rho"]).detach()
    w = mean + std * torch.randn_like(mean)
    found = settings._surplus(run.problem, w, mean, std).detach()
    for r in range(2):
        tensors = run.problem.network.unflatten(w[r])
        images = []
        for order in permutations(range(3)):
            moved = {
                "layers.0.weight": tensors["layers.0.weight"][list(order)],
                "layers.0.bias": tensors["layers.0.bias"][list(order)],
                "layers.1.weight": tensors["layers.1.weight"][:, list(order)],
                "layers.1.bias": tensors["layers.1.bias"],
            }
            images.append(log_q(run.problem.network.flatten(moved), mean[r], std[r]))
        log_mixture = torch.stack(images).logsumexp(0) - math.log(6)
        information = log_q(w[r], mean[r], std[r]) - log_mixture
        assert float(found[r]) == pytest.approx(-0.7 * float(information), abs=1e-4)


@pytest.mark.parametrize("entropy", ENTROPIES)
def test_training_finds_a_higher_symmetrized_elbo_where_modes_overlap(split: Split, entropy: str) -> None:
    net = zoo.build("mlp:2-4-1")
    sym = symmetry(net, (split.inputs[:2],))
    shared = {"epochs": 60, "batch_size": 20, "rate": 0.02, "initial_std": 0.5, "noise": 1.0}
    plain = coset.fit(net, split, coset.VI(**shared), replicas=4)  # type: ignore[arg-type]
    method = coset.SymmetrizedVI(**shared, entropy=entropy, elements=10)  # type: ignore[arg-type]
    symmetric = coset.fit(net, split, method, replicas=4)

    def mean(found: list[coset.Gaussian]) -> float:
        bounds = [coset.elbo(q, net, split, samples=200, sym=sym, entropy="exact").symmetrized for q in found]
        return sum(bounds) / len(bounds)

    assert coset.overlap(plain[0], sym, "exact").index > 0.3
    assert mean(symmetric) > mean(plain) - 0.05


@pytest.mark.parametrize("entropy", ENTROPIES)
def test_where_modes_do_not_overlap_it_is_plain_vi(entropy: str) -> None:
    """Bit for bit: the noise is paired, and every gradient of the information vanishes."""
    digits = data.load("digits").train.subset(200, torch.Generator().manual_seed(0))
    net = zoo.build("mlp:64-8-10")
    (plain,) = coset.fit(net, digits, coset.VI(epochs=3))
    (symmetric,) = coset.fit(net, digits, coset.SymmetrizedVI(epochs=3, entropy=entropy))  # type: ignore[arg-type]
    assert all(torch.equal(plain.mean[n], symmetric.mean[n]) for n in plain.mean)
    assert all(torch.equal(plain.std[n], symmetric.std[n]) for n in plain.std)


def test_convolutions_and_several_layers() -> None:
    images = Split(torch.randn(20, 3, 8, 8), torch.randint(10, (20,)))
    parts = [nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 5, 3), nn.ReLU(), nn.Flatten(), nn.Linear(80, 10)]
    net = nn.Sequential(*parts)
    for entropy in ("infonce", "bethe"):
        method = coset.SymmetrizedVI(epochs=1, batch_size=10, entropy=entropy, elements=3, initial_std=0.3)  # type: ignore[arg-type]
        (q,) = coset.fit(net, images, method)
        assert isinstance(q, coset.Gaussian)


def test_bad_settings() -> None:
    with pytest.raises(CosetError, match="elements must be 2 or more, not 1"):
        coset.SymmetrizedVI(elements=1)
    with pytest.raises(CosetError, match="needs the weights that were drawn"):
        coset.SymmetrizedVI(reparameterization="local")
    with pytest.raises(CosetError, match="entropy must be infonce or importance or bethe or exact, not 'mine'"):
        coset.SymmetrizedVI(entropy="mine")  # type: ignore[arg-type]


class TestElbo:
    def test_against_a_loop(self, split: Split) -> None:
        net = zoo.build("mlp:2-3-1")
        mean = {n: torch.randn_like(x) for n, x in net.state_dict().items()}
        std = {n: torch.rand_like(x) + 0.1 for n, x in mean.items()}
        q = coset.Gaussian(mean, std, noise=0.5)
        found = coset.elbo(q, net, split, prior_variance=2.0, samples=4000)
        prior = Normal(0.0, math.sqrt(2.0))
        kl = sum(torch.distributions.kl_divergence(Normal(mean[n], std[n]), prior).sum() for n in mean)
        assert found.divergence == pytest.approx(float(kl), rel=1e-5)
        drawn = q.sample(4000, torch.Generator().manual_seed(7))
        outputs = torch.vmap(lambda s: torch.func.functional_call(net, s, (split.inputs,)))(drawn)
        logs = Normal(outputs, 0.5).log_prob(split.targets).sum((1, 2))
        spread = found.error + float(logs.std()) / math.sqrt(4000)
        assert found.log_likelihood == pytest.approx(float(logs.mean()), abs=4 * spread)
        assert found.value == found.log_likelihood - found.divergence and found.symmetrized is None
        assert found.examples == 40

    def test_it_is_below_the_evidence_which_is_known_for_a_linear_model(self, split: Split) -> None:
        """With q the exact posterior of a one-parameter linear model the bound is the log evidence."""
        net = nn.Linear(1, 1, bias=False)
        x, y = split.inputs[:, :1], split.targets
        noise, v = 0.7, 1.5
        precision = float((x * x).sum()) / noise**2 + 1 / v
        mean = float((x * y).sum()) / noise**2 / precision
        q = coset.Gaussian(
            {"weight": torch.tensor([[mean]])}, {"weight": torch.tensor([[precision**-0.5]])}, noise=noise
        )
        covariance = noise**2 * torch.eye(40, dtype=torch.float64) + v * (x @ x.mT).double()
        exact = torch.distributions.MultivariateNormal(torch.zeros(40, dtype=torch.float64), covariance)
        found = coset.elbo(q, net, (x, y), prior_variance=v, samples=20000)
        assert found.value == pytest.approx(float(exact.log_prob(y.squeeze(1).double())), abs=4 * found.error)

    def test_refusals(self, split: Split) -> None:
        net = zoo.build("mlp:2-3-1")
        with pytest.raises(CosetError, match="not a Dirac"):
            coset.elbo(coset.Dirac(net.state_dict(), noise=1.0), net, split)
