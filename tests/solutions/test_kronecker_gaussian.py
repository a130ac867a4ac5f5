"""Kronecker-factored Gaussians against the same distribution with its whole covariance."""

import math
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor, nn

import coset
from coset.core import state as states
from coset.core.errors import CosetError, StateError, SymmetryError

laws = settings(max_examples=20, deadline=None)
SHAPES = {"w": (2, 3), "conv": (2, 1, 2), "b": (3,), "s": ()}


def wishart(size: int, generator: torch.Generator) -> Tensor:
    x = torch.randn(size, size + 2, generator=generator, dtype=torch.float64)
    return x @ x.T


def make(seed: int = 0, fixed: bool = False) -> coset.KroneckerGaussian:
    """With `fixed`, a row of each first factor has no variance."""
    generator = torch.Generator().manual_seed(seed)
    mean = {name: torch.randn(shape, generator=generator, dtype=torch.float64) for name, shape in SHAPES.items()}
    factors = {}
    for name, shape in SHAPES.items():
        rows = shape[0] if shape else 1
        a, b = wishart(rows, generator), wishart(math.prod(shape) // rows, generator)
        if fixed:
            a[-1] = a[:, -1] = 0
        factors[name] = a, b
    return coset.KroneckerGaussian({**mean, "v": torch.ones(2), "n": torch.tensor(1)}, factors)


@laws
@given(st.integers(0, 10_000), st.booleans())
def test_densities_are_those_of_the_whole_covariance(seed: int, fixed: bool) -> None:
    q = make(seed, fixed)
    state = states.unstack(q.sample(1, torch.Generator().manual_seed(seed)))[0]
    assert q.log_prob(state).item() == pytest.approx(q.full().log_prob(state).item(), rel=1e-9, abs=1e-9)
    assert q.entropy().item() == pytest.approx(q.full().entropy().item(), rel=1e-9, abs=1e-9)
    assert states.allclose(q.marginal().std, q.full().marginal().std)
    for name in ("v", "w"):
        image = q.log_prob({**state, name: state[name] + 1})
        assert image == -math.inf if name == "v" or fixed else image.isfinite()


def test_the_covariance_of_entries_is_a_product() -> None:
    q = make()
    a, b = q.factors["w"]
    c = q.full().covariance[:6, :6].reshape(2, 3, 2, 3)
    for i, j, k, m in ((0, 1, 1, 2), (1, 1, 0, 0), (1, 2, 1, 2)):
        assert c[i, j, k, m].item() == pytest.approx((a[i, k] * b[j, m]).item())


def test_samples_have_its_moments(generator: torch.Generator) -> None:
    q, n = make(), 40_000
    full, population = q.full(), q.sample(n, generator)
    x = torch.cat([population[name].reshape(n, -1) for name in full.names], 1)
    deviation = full.covariance.diagonal().sqrt()
    mean = torch.cat([q.mean[name].flatten() for name in full.names])
    assert (((x.mean(0) - mean) / deviation).abs() < 5 / math.sqrt(n)).all()
    assert ((x.T.cov() - full.covariance).abs() / deviation.outer(deviation) < 8 / math.sqrt(n)).all()
    assert (population["v"] == 1).all()


@pytest.mark.parametrize("seed", range(3))
def test_push_is_that_of_the_whole_covariance(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    net = nn.Sequential(nn.Conv2d(1, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(12, 4), nn.ReLU(), nn.Linear(4, 2))
    net = net.double()
    sym = coset.symmetry(net, (torch.randn(2, 1, 3, 3, dtype=torch.float64),))
    mean = states.of(net)
    factors = {}
    for name in ("0.weight", "0.bias", "3.weight", "5.weight"):
        rows = len(mean[name])
        factors[name] = wishart(rows, generator), wishart(mean[name].numel() // rows, generator)
    q = coset.KroneckerGaussian(mean, factors)
    g = sym.random(generator, scalings=True)
    result = sym.act(g, q)
    assert torch.allclose(result.full().covariance, sym.act(g, q.full()).covariance)
    assert states.allclose(result.mean, sym.act(g, mean))


def test_an_element_that_mixes_rows_and_columns_is_refused() -> None:
    """Units of one axis that have an order of their own for each unit of the other."""
    text = """{"groups": {"heads": {"size": 2}, "units": {"size": 3, "over": ["heads"]}},
               "tensors": {"w": ["heads", "units"]}}"""
    sym = coset.Symmetry.from_json(text)
    q = coset.KroneckerGaussian({"w": torch.randn(2, 3)}, {"w": (torch.eye(2), torch.eye(3))})
    g = sym.element({"units": torch.tensor([[1, 0, 2], [0, 2, 1]])})
    with pytest.raises(SymmetryError, match=r"does not move 'w' by whole rows and columns.*full\(\)"):
        sym.act(g, q)
    assert states.allclose(sym.act(g, q.full()).mean, sym.act(g, q.mean))
    same = sym.element({"heads": torch.tensor([1, 0])})
    assert states.allclose(sym.act(same, q).mean, sym.act(same, q.mean))


def test_files(tmp_path: Path) -> None:
    q = make()
    q.save(tmp_path / "q.safetensors")
    result = coset.load(tmp_path / "q.safetensors")
    assert isinstance(result, coset.KroneckerGaussian) and list(result.factors) == list(q.factors)
    assert torch.equal(result.full().covariance, q.full().covariance) and list(result.mean) == list(q.mean)
    assert result.entropy() == q.entropy() and torch.equal(q.to("cpu").full().covariance, q.full().covariance)


def test_tied_tensors_and_empty_ones() -> None:
    w = torch.zeros(2, 2)
    mean = {"a": w, "b": w, "e": torch.zeros(0, 3)}
    eye = (torch.eye(2), torch.eye(2))
    q = coset.KroneckerGaussian(mean, {"b": eye, "e": (torch.zeros(0, 0), torch.eye(3))})
    population = q.sample(2)
    assert torch.equal(population["a"], population["b"]) and population["e"].shape == (2, 0, 3)
    assert q.entropy().item() == pytest.approx(2 * (1 + math.log(2 * math.pi)))
    nothing = coset.Symmetry({}, {})
    assert states.allclose(nothing.act(nothing.identity(), q).mean, q.mean)
    with pytest.raises(StateError, match="'b' is in the factors twice"):
        coset.KroneckerGaussian(mean, {"a": eye, "b": eye})


def test_refusals() -> None:
    mean = {"w": torch.zeros(2, 3)}
    with pytest.raises(StateError, match=r"The second factor of 'w' has shape \(2, 2\) where \(3, 3\)"):
        coset.KroneckerGaussian(mean, {"w": (torch.eye(2), torch.eye(2))})
    with pytest.raises(StateError, match="The first factor of 'w' is not positive semidefinite"):
        coset.KroneckerGaussian(mean, {"w": (torch.tensor([[1.0, 2.0], [2.0, 1.0]]), torch.eye(3))})
    with pytest.raises(StateError, match="Unknown 'x' in the factors"):
        coset.KroneckerGaussian(mean, {"x": (torch.eye(2), torch.eye(3))})
    singular = coset.KroneckerGaussian(mean, {"w": (torch.ones(2, 2), torch.eye(3))})
    samples = singular.sample(3)["w"]
    assert torch.allclose(samples[:, 0], samples[:, 1], atol=1e-6)
    with pytest.raises(CosetError, match="singular"):
        singular.log_prob(mean)
    large = coset.KroneckerGaussian({"w": torch.zeros(150, 150)}, {"w": (torch.eye(150), torch.eye(150))})
    with pytest.raises(CosetError, match="covariance of 22,500 coordinates is too large"):
        large.full()
