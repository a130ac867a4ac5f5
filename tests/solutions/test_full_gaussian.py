"""Gaussians with any covariance against torch.distributions and moved samples."""

import math
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor, nn

import coset
from coset import Symmetry
from coset.core import state as states
from coset.core.errors import CosetError, StateError
from coset.symmetries.group import ScaledAxis, Scaling

laws = settings(max_examples=25, deadline=None)


def wishart(size: int, seed: int, rank: int | None = None) -> Tensor:
    """A random covariance with coordinates of very different scales."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(size, size + 2 if rank is None else rank, generator=generator, dtype=torch.float64)
    x = x * torch.logspace(-3, 2, size, dtype=torch.float64)[:, None]
    return x @ x.T


def make(seed: int = 0, dtype: torch.dtype = torch.float64) -> coset.FullGaussian:
    generator = torch.Generator().manual_seed(seed)
    mean = {name: torch.randn(shape, generator=generator, dtype=dtype) for name, shape in (("w", (2, 3)), ("b", (2,)))}
    mean |= {"statistic": torch.ones(2, dtype=dtype), "n": torch.tensor(3)}
    return coset.FullGaussian(mean, wishart(8, seed), names=["b", "w"])


def vector(state: dict[str, Tensor], names: tuple[str, ...]) -> Tensor:
    return torch.cat([state[name].flatten() for name in names]).double()


@laws
@given(st.integers(0, 10_000))
def test_log_prob_and_entropy_are_those_of_torch(seed: int) -> None:
    q = make(seed)
    reference = torch.distributions.MultivariateNormal(vector(q.mean, q.names), wishart(8, seed))
    state = states.unstack(q.sample(1, torch.Generator().manual_seed(seed)))[0]
    assert q.log_prob(state).item() == pytest.approx(reference.log_prob(vector(state, q.names)).item(), rel=1e-7)
    assert q.entropy().item() == pytest.approx(reference.entropy().item(), rel=1e-9)
    assert q.log_prob({**state, "statistic": state["statistic"] + 1e-6}) == -math.inf


def test_samples_have_its_moments(generator: torch.Generator) -> None:
    q, n = make(), 40_000
    population = q.sample(n, generator)
    x = torch.cat([population[name].flatten(1) for name in q.names], 1)
    deviation = q.covariance.diagonal().sqrt()
    assert (((x.mean(0) - vector(q.mean, q.names)) / deviation).abs() < 5 / math.sqrt(n)).all()
    assert ((x.T.cov() - q.covariance).abs() / deviation.outer(deviation) < 8 / math.sqrt(n)).all()
    assert (population["statistic"] == 1).all() and (population["n"] == 3).all()


def test_names_are_by_default_the_floating_tensors() -> None:
    w = torch.zeros(2)
    q = coset.FullGaussian({"n": torch.tensor(1), "a": w, "c": torch.zeros(1), "b": w}, torch.eye(3))
    assert q.names == ("a", "c")
    population = q.sample(4)
    assert torch.equal(population["a"], population["b"])
    assert coset.FullGaussian(q.mean, torch.eye(2), names=["b"]).names == ("a",)


def test_it_agrees_with_the_diagonal_gaussian(gaussian: coset.Gaussian) -> None:
    """With coordinates that are fixed inside of random tensors too."""
    std = {name: torch.where(s < 0.2, 0.0, s) for name, s in gaussian.std.items()}
    diagonal = coset.Gaussian(gaussian.mean, std)
    names = tuple(std)
    q = coset.FullGaussian(gaussian.mean, vector(std, names).square().diag(), names)
    state = states.unstack(diagonal.sample(1))[0]
    assert q.log_prob(state).item() == pytest.approx(diagonal.log_prob(state).item())
    assert q.entropy().item() == pytest.approx(diagonal.entropy().item())
    image = {**state, "0.bias": state["0.bias"] + (std["0.bias"] == 0) * 1e-3}
    assert (std["0.bias"] == 0).any() and q.log_prob(image) == -math.inf == diagonal.log_prob(image)
    assert states.allclose(q.marginal().std, diagonal.std, rtol=1e-6)


@laws
@given(st.integers(0, 10_000), st.integers(1, 7), st.sampled_from([torch.float32, torch.float64]))
def test_a_singular_covariance_is_drawn_from(seed: int, rank: int, dtype: torch.dtype) -> None:
    covariance = wishart(8, seed, rank).to(dtype)
    q = coset.FullGaussian({"w": torch.zeros(8, dtype=torch.float64)}, covariance)
    deviation = covariance.diagonal().sqrt().double()
    assert ((q.root @ q.root.T - covariance).abs() <= 1e-4 * deviation.outer(deviation)).all()
    assert q.sample(2)["w"].isfinite().all()
    again = q.to("cpu")
    assert torch.allclose(again.covariance, q.covariance, rtol=1e-9)
    for one in (q, again):
        with pytest.raises(CosetError, match="no density over these coordinates, as their covariance is singular"):
            one.log_prob(q.mean)
        with pytest.raises(CosetError, match="singular"):
            one.entropy()


def odd() -> tuple[Symmetry, nn.Module]:
    """Three units with a free factor on tensors with and without an offset, and a sign."""
    net = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2)).double()
    base = coset.symmetry(net, (torch.randn(4, 2, dtype=torch.float64),))
    units = base.groups[0].name
    members = (ScaledAxis("0.weight", 0, 1.0, 1.0), ScaledAxis("0.bias", 0, 1.0), ScaledAxis("2.weight", 1, -1.0))
    flips = (ScaledAxis("0.weight", 0, 1.0), ScaledAxis("0.bias", 0, 1.0))
    scalings = (Scaling("c", units, 3, members), Scaling("sign", units, 3, flips, kind="sign"))
    return Symmetry(base.sets, base.axes, scalings), net


@pytest.mark.parametrize("seed", range(4))
def test_push_is_the_covariance_of_moved_states(seed: int) -> None:
    """Exactly: the image of m + d minus that of m, for the columns d of a root, has the pushed covariance."""
    sym, net = odd()
    mean = states.of(net)
    names = ("2.weight", "0.bias", "0.weight")
    q = coset.FullGaussian(mean, wishart(15, seed), names)
    g = sym.random(torch.Generator().manual_seed(seed), scalings=True)
    result = sym.act(g, q)
    assert states.allclose(result.mean, sym.act(g, mean)) and result.names == names
    columns = []
    for column in q.root.T:
        shift, start = {}, 0
        for name in names:
            size = mean[name].numel()
            shift[name] = mean[name] + column[start : start + size].reshape(mean[name].shape)
            start += size
        columns.append(vector(sym.act(g, {**mean, **shift}), names) - vector(result.mean, names))
    root = torch.stack(columns, 1)
    deviation = result.covariance.diagonal().sqrt()
    assert ((root @ root.T - result.covariance).abs() <= 1e-9 * deviation.outer(deviation)).all()


def test_push_preserves_density_under_permutations() -> None:
    net = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2)).double()
    sym = coset.symmetry(net, (torch.randn(4, 2, dtype=torch.float64),))
    q = coset.FullGaussian(states.of(net), wishart(17, 3))
    g = sym.random(torch.Generator().manual_seed(2))
    state = states.unstack(q.sample(1))[0]
    assert sym.act(g, q).log_prob(sym.act(g, state)).item() == pytest.approx(q.log_prob(state).item())
    assert sym.act(g, q).entropy().item() == pytest.approx(q.entropy().item())


def test_marginal_has_the_same_variances() -> None:
    q = make()
    assert torch.allclose(vector(q.marginal().std, q.names).square(), q.covariance.diagonal())
    assert (q.marginal().std["statistic"] == 0).all()


def test_files(tmp_path: Path) -> None:
    for q in (make(1, torch.float32), coset.FullGaussian({"w": torch.ones(3)}, wishart(3, 0, 1), noise=0.2)):
        q.save(tmp_path / "q.safetensors")
        result = coset.load(tmp_path / "q.safetensors")
        assert isinstance(result, coset.FullGaussian) and result.names == q.names and result.noise == q.noise
        assert torch.allclose(result.covariance, q.covariance, rtol=1e-12) and list(result.mean) == list(q.mean)
        samples = [x.sample(3, torch.Generator().manual_seed(0)) for x in (q, result)]
        assert {name: x.shape for name, x in samples[0].items()} == {name: x.shape for name, x in samples[1].items()}
    both = coset.Mixture([make(1), make(2)], [1, 3])
    both.save(tmp_path / "m.safetensors")
    state = states.unstack(both.sample(1))[0]
    assert coset.load(tmp_path / "m.safetensors").log_prob(state).item() == pytest.approx(both.log_prob(state).item())


def test_a_mixture_of_them_has_the_sum_of_densities() -> None:
    parts = [make(1), make(2)]
    parts[1] = coset.FullGaussian({**parts[0].mean, "w": parts[0].mean["w"] + 1}, parts[1].covariance, ["b", "w"])
    state = states.unstack(parts[0].sample(1))[0]
    densities = [
        torch.distributions.MultivariateNormal(vector(q.mean, q.names), q.covariance)
        .log_prob(vector(state, q.names))
        .exp()
        for q in parts
    ]
    result = coset.mixture(*parts)(0.25).log_prob(state)
    assert result.item() == pytest.approx((0.75 * densities[0] + 0.25 * densities[1]).log().item(), rel=1e-6)


@pytest.mark.parametrize(
    ("covariance", "message"),
    [
        (torch.eye(3), r"The covariance has shape \(3, 3\) where \(2, 2\) is expected"),
        (torch.eye(2).long(), "must be a tensor of floating point numbers"),
        (torch.tensor([[1.0, math.nan], [math.nan, 1.0]]), "The covariance has 2 NaN or infinite of 4"),
        (torch.tensor([[1.0, 0.5], [0.4, 1.0]]), "The covariance is not symmetric"),
        (torch.tensor([[1.0, 0.0], [0.0, -1.0]]), "The covariance has 1 negative of 2 variances"),
        (torch.tensor([[1.0, 2e-6], [2e-6, 1e-12]]), "eigenvalue of its correlations is -1"),
        (torch.tensor([[1.0, 0.1], [0.1, 0.0]]), "a coordinate without variance has covariances"),
    ],
)
def test_what_is_no_covariance_is_refused(covariance: Tensor, message: str) -> None:
    with pytest.raises(StateError, match=message):
        coset.FullGaussian({"w": torch.zeros(2)}, covariance)


def test_bad_names_and_sizes_are_refused() -> None:
    w = torch.zeros(2)
    mean = {"a": w, "b": w, "n": torch.tensor(1)}
    for names, message in (
        (["c"], "Unknown 'c' in the names of the covariance"),
        (["n"], "'n' in the names of the covariance is torch.int64"),
        (["a", "b"], "'b' is in the names of the covariance twice"),
    ):
        with pytest.raises(StateError, match=message):
            coset.FullGaussian(mean, torch.eye(2), names)
    with pytest.raises(CosetError, match="covariance of 20,001 coordinates is too large, the limit is 20,000"):
        coset.FullGaussian({"w": torch.zeros(20_001)}, torch.eye(2))
    assert not coset.FullGaussian(mean, torch.zeros(0, 0), []).is_random
    assert coset.FullGaussian(mean, torch.zeros(2, 2)).entropy() == 0
