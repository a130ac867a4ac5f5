"""Geodesics and mixtures."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from scipy.linalg import sqrtm
from torch import Tensor

import coset
from coset.core.errors import CosetError, StateError


def make(seed: int) -> coset.Gaussian:
    generator = torch.Generator().manual_seed(seed)
    mean = {"w": torch.randn(3, generator=generator), "v": torch.ones(2), "n": torch.tensor(seed)}
    return coset.Gaussian(mean, {"w": 0.1 + torch.rand(3, generator=generator)})


@settings(max_examples=30, deadline=None)
@given(st.floats(0, 1), st.integers(0, 100))
def test_a_geodesic_is_eq_7(t: float, seed: int) -> None:
    a, b = make(seed), make(seed + 1)
    q = coset.geodesic(a, b)(t)
    assert isinstance(q, coset.Gaussian)
    s0, s1 = (np.diag(x.std["w"].double().numpy() ** 2) for x in (a, b))
    root = sqrtm(s0)
    inverse = np.linalg.inv(root)
    middle = (1 - t) * s0 + t * sqrtm(root @ s1 @ root)
    assert np.allclose(np.diag(inverse @ middle @ middle @ inverse), q.std["w"].double() ** 2, rtol=1e-5)
    assert torch.allclose(q.mean["w"], (1 - t) * a.mean["w"] + t * b.mean["w"], atol=1e-6)
    assert (q.std["v"] == 0).all()


@settings(max_examples=20, deadline=None)
@given(st.floats(0, 1), st.floats(0, 1))
def test_a_geodesic_has_constant_speed(s: float, t: float) -> None:
    path = coset.geodesic(make(1), make(2))
    whole = coset.wasserstein(path(0), path(1)).item()
    assert coset.wasserstein(path(s), path(t)).item() == pytest.approx(abs(s - t) * whole, abs=1e-6)


def test_points_give_a_line_also_beyond_its_ends() -> None:
    path = coset.geodesic({"w": torch.tensor([0.0])}, {"w": torch.tensor([2.0])})
    for t in (0.0, 0.25, 1.0, 1.5, -1.0):
        q = path(t)
        assert isinstance(q, coset.Dirac) and q.mean["w"].item() == 2 * t


def test_a_point_is_a_gaussian_without_spread() -> None:
    b = make(1)
    q = coset.geodesic(coset.Dirac(b.mean), b)(0.5)
    assert isinstance(q, coset.Gaussian) and torch.allclose(q.std["w"], b.std["w"] / 2)


def test_ties_hold_along_the_path() -> None:
    w = torch.ones(2)
    a, b = (coset.Gaussian({"a": c * w, "b": x}, {}) for c, x in ((1, w), (2, w)))
    tied = [coset.Gaussian({"a": x, "b": x}, {"a": w}) for x in (a.mean["a"], b.mean["a"])]
    population = coset.geodesic(*tied)(0.3).sample(2)
    assert torch.equal(population["a"], population["b"])


def test_a_path_of_mixtures() -> None:
    a, b = make(1), make(2)
    path = coset.mixture(a, b)
    assert (
        path(0.25).weights == (0.75, 0.25) and path(0).components() == [(1.0, a)] and path(1).components() == [(1.0, b)]
    )
    state = {k: x[0] for k, x in a.sample(1).items()}
    half = path(0.5).log_prob(state).exp().item()
    assert half == pytest.approx((a.log_prob(state).exp() + b.log_prob(state).exp()).item() / 2, rel=1e-9)


def test_refusals() -> None:
    a, b = make(1), make(2)
    for path in (coset.geodesic(a, b), coset.mixture(a, b)):
        with pytest.raises(CosetError, match=r"from t = 0 to 1, not to 1\.5"):
            path(1.5)
    for kind in (coset.geodesic, coset.mixture):
        other: dict[str, Tensor] = {"w": torch.zeros(4), "v": torch.zeros(2), "n": torch.tensor(0)}
        with pytest.raises(StateError, match="'w' in the second solution has shape"):
            kind(a, other)
    with pytest.raises(CosetError, match="A geodesic has no closed form for a Mixture"):
        coset.geodesic(a, coset.Mixture([b]))
