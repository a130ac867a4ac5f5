"""Distances and geodesics of all kinds of solutions against linear programs, matchings of samples and SciPy's sqrtm."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from scipy.linalg import sqrtm
from scipy.optimize import linear_sum_assignment, linprog
from torch import Tensor

import coset
from coset import Solution
from coset.core import state as states
from coset.core.errors import CosetError

laws = settings(max_examples=40, deadline=None)
KINDS = ("dirac", "gaussian", "full", "singular", "kronecker", "ensemble")
PAIRS = [*itertools.product(KINDS[:-1], KINDS[:-1]), ("ensemble", "ensemble"), ("dirac", "ensemble")]
SHAPES = {"w": (2, 2), "b": (2,)}


def wishart(size: int, generator: torch.Generator, rank: int = 9) -> Tensor:
    x = torch.randn(size, rank, generator=generator, dtype=torch.float64)
    return x @ x.T


def make(kind: str, seed: int) -> Solution:
    generator = torch.Generator().manual_seed(seed)

    def point() -> dict[str, Tensor]:
        tensors = {name: torch.randn(shape, generator=generator, dtype=torch.float64) for name, shape in SHAPES.items()}
        return {**tensors, "n": torch.tensor(0)}

    mean = point()
    if kind == "dirac":
        return coset.Dirac(mean)
    if kind == "gaussian":
        return coset.Gaussian(mean, {"w": torch.rand(2, 2, generator=generator, dtype=torch.float64)})
    if kind == "full":
        return coset.FullGaussian(mean, wishart(6, generator), ["b", "w"])
    if kind == "singular":
        return coset.FullGaussian(mean, wishart(4, generator, 2), ["w"])
    if kind == "kronecker":
        return coset.KroneckerGaussian(mean, {"w": (wishart(2, generator), wishart(2, generator))})
    return coset.Ensemble([point() for _ in range(4)])


def moments(q: Solution) -> tuple[np.ndarray, np.ndarray]:
    """Mean (6,) and covariance (6, 6) of w and b, whatever the kind."""
    mean = torch.cat([q.mean[name].flatten() for name in SHAPES]).numpy()
    covariance = np.zeros((6, 6))
    if isinstance(q, coset.Gaussian):
        covariance = np.diag(torch.cat([q.std[name].flatten() for name in SHAPES]).square().numpy())
    if isinstance(q, coset.KroneckerGaussian):
        covariance[:4, :4] = np.kron(*(factor.numpy() for factor in q.factors["w"]))
    if isinstance(q, coset.FullGaussian):
        places = {"w": [0, 1, 2, 3], "b": [4, 5]}
        order = [k for name in q.names for k in places[name]]
        covariance[np.ix_(order, order)] = q.covariance.numpy()
    return mean, covariance


def root(matrix: np.ndarray) -> np.ndarray:
    """The symmetric root of a matrix that may be singular, for which sqrtm is not made."""
    values, vectors = np.linalg.eigh(matrix)
    return (vectors * np.sqrt(values.clip(0))) @ vectors.T


def cloud(matrix: list[list[float]]) -> coset.FullGaussian:
    return coset.FullGaussian({"w": torch.zeros(2, dtype=torch.float64)}, torch.tensor(matrix, dtype=torch.float64))


@laws
@given(st.sampled_from([pair for pair in PAIRS if "ensemble" not in pair]), st.integers(0, 1000))
def test_the_distance_of_gaussians_is_eq_16(kinds: tuple[str, str], seed: int) -> None:
    a, b = make(kinds[0], seed), make(kinds[1], seed + 1)
    (m0, c0), (m1, c1) = moments(a), moments(b)
    cross = root(root(c0) @ c1 @ root(c0))
    expected = ((m0 - m1) ** 2).sum() + np.trace(c0 + c1 - 2 * cross)
    assert coset.wasserstein(a, b).item() == pytest.approx(math.sqrt(expected), rel=1e-6)


@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_it_is_a_distance(first: str, second: str) -> None:
    a, b = make(first, 1), make(second, 2)
    there, back = coset.wasserstein(a, b), coset.wasserstein(b, a)
    assert there.dtype == torch.float64 and there.item() == pytest.approx(back.item(), rel=1e-9) and there > 0.1
    assert coset.wasserstein(a, make(first, 1)).item() < 1e-12


@laws
@given(st.lists(st.sampled_from(KINDS[:-1]), min_size=3, max_size=3), st.integers(0, 1000))
def test_the_triangle_inequality(kinds: list[str], seed: int) -> None:
    for names in (kinds, ["ensemble"] * 3):
        a, b, c = (make(kind, seed + k) for k, kind in enumerate(names))
        ab, bc, ac = (coset.wasserstein(*pair).item() for pair in ((a, b), (b, c), (a, c)))
        assert ac <= ab + bc + 1e-9


def test_small_distances_keep_their_digits() -> None:
    """Traces would lose them: tr C0 + tr C1 - 2 tr (...) is a difference of numbers near one."""
    base = torch.tensor([[2.0, 1.0], [1.0, 3.0]], dtype=torch.float64)
    eye = torch.eye(2, dtype=torch.float64)
    mean = {"w": torch.zeros(2, 2, dtype=torch.float64)}
    full = [coset.FullGaussian(mean, torch.kron(c * base, base)) for c in (1.0, (1 + 1e-10) ** 2)]
    kronecker = [coset.KroneckerGaussian(mean, {"w": (c * base, base / d)}) for c, d in ((1.0, 1.0), (4.0, 4.0))]
    assert coset.wasserstein(*full).item() == pytest.approx(1e-10 * 5, rel=1e-4)
    assert coset.wasserstein(*kronecker).item() < 1e-14
    spread = coset.KroneckerGaussian(mean, {"w": (eye, (1 + 1e-10) ** 2 * eye)})
    assert coset.wasserstein(spread, coset.KroneckerGaussian(mean, {"w": (eye, eye)})).item() == pytest.approx(
        2e-10, rel=1e-4
    )


def test_in_one_dimension_quantiles_are_matched() -> None:
    a, b = (
        coset.FullGaussian({"w": torch.tensor([m], dtype=torch.float64)}, torch.tensor([[s * s]], dtype=torch.float64))
        for m, s in ((1.0, 0.5), (-1.0, 2.0))
    )
    levels = (torch.arange(200_000, dtype=torch.float64) + 0.5) / 200_000
    quantiles = [q.mean["w"] + q.covariance[0].sqrt() * torch.special.ndtri(levels) for q in (a, b)]
    numerical = (quantiles[0] - quantiles[1]).square().mean().sqrt()
    assert coset.wasserstein(a, b).item() == pytest.approx(numerical.item(), rel=1e-4)


def test_in_two_dimensions_samples_are_matched(generator: torch.Generator) -> None:
    """An optimal matching of samples knows no formula: it gives the distance, and the covariances on the way."""
    a, b = cloud([[9.0, 0.0], [0.0, 0.01]]), cloud([[4.0, 3.96], [3.96, 4.0]])
    x, y = (q.sample(600, generator)["w"].numpy() for q in (a, b))
    # Exactly the covariances of both, so that only the matching is left to chance.
    x, y = (
        root(q.covariance.numpy()) @ np.linalg.solve(root(np.cov(z.T, bias=True)), (z - z.mean(0)).T)
        for q, z in ((a, x), (b, y))
    )
    cost = ((x.T[:, None] - y.T[None]) ** 2).sum(-1)
    rows, columns = linear_sum_assignment(cost)
    assert coset.wasserstein(a, b).item() == pytest.approx(math.sqrt(cost[rows, columns].mean()), rel=0.02)
    # The distance of the roots, which Eq. 16 would give if these commuted, is far off.
    assert np.linalg.norm(root(a.covariance.numpy()) - root(b.covariance.numpy())) > 1.2 * coset.wasserstein(a, b)
    for t in (0.3, 0.7):
        between = (1 - t) * x[:, rows] + t * y[:, columns]
        result = coset.geodesic(a, b)(t)
        assert isinstance(result, coset.FullGaussian)
        assert np.allclose(np.cov(between, bias=True), result.covariance, atol=0.15)


def discrete(x: np.ndarray, y: np.ndarray) -> float:
    """W2 of equal weights on the rows of x [n, d] and y [m, d], by the linear program of transport."""
    cost, (n, m) = ((x[:, None] - y[None]) ** 2).sum(-1), (len(x), len(y))
    marginals = np.concatenate([np.kron(np.eye(n), np.ones(m)), np.kron(np.ones(n), np.eye(m))])
    result = linprog(cost.ravel(), A_eq=marginals, b_eq=np.repeat([1 / n, 1 / m], [n, m]), method="highs")
    return math.sqrt(result.fun)


@laws
@given(st.integers(0, 1000))
def test_the_distance_of_ensembles_is_that_of_a_linear_program(seed: int) -> None:
    a, b = make("ensemble", seed), make("ensemble", seed + 1)
    assert isinstance(a, coset.Ensemble) and isinstance(b, coset.Ensemble)
    x, y = (torch.cat([q.population[name].flatten(1) for name in SHAPES], 1).numpy() for q in (a, b))
    assert coset.wasserstein(a, b).item() == pytest.approx(discrete(x, y), rel=1e-7)
    assert coset.wasserstein(a, b.members[0]).item() == pytest.approx(discrete(x, y[:1]), rel=1e-7)
    shuffled = coset.Ensemble([a.members[k] for k in (2, 0, 3, 1)])
    assert coset.wasserstein(a, shuffled) == 0


def test_a_point_and_a_mixture_have_one_coupling(generator: torch.Generator) -> None:
    mixture = coset.Mixture([make("full", 1), make("gaussian", 2), make("ensemble", 3)], [1, 2, 3])
    point = make("dirac", 4)
    tensors = mixture.sample(20_000, generator)
    squares = sum((tensors[name] - point.mean[name]).square().flatten(1).sum(1) for name in SHAPES)
    assert isinstance(squares, Tensor)
    assert coset.wasserstein(point, mixture).item() == pytest.approx(squares.mean().sqrt().item(), rel=0.02)
    assert coset.wasserstein(mixture, point) == coset.wasserstein(point, mixture)


def test_tied_tensors_and_fixed_ones_count_once() -> None:
    w = torch.zeros(2, dtype=torch.float64)
    eye = torch.eye(2, dtype=torch.float64)
    a = coset.FullGaussian({"a": w, "b": w, "c": w.clone()}, eye, ["a"])
    b = coset.FullGaussian({"a": w, "b": w, "c": w + 1}, 4 * eye, ["c"])
    assert coset.wasserstein(a, b).item() == pytest.approx(math.sqrt(2 + 2 + 8))
    point = coset.geodesic(a, b)(0.5)
    assert isinstance(point, coset.FullGaussian) and point.names == ("a", "c") and point.mean["a"] is point.mean["b"]


@laws
@given(st.sampled_from(PAIRS), st.integers(0, 1000), st.floats(0, 1), st.floats(0, 1))
def test_a_geodesic_has_constant_speed(kinds: tuple[str, str], seed: int, s: float, t: float) -> None:
    a, b = make(kinds[0], seed), make(kinds[1], seed + 1)
    path = coset.geodesic(a, b)
    whole = coset.wasserstein(a, b).item()
    assert coset.wasserstein(path(s), path(t)).item() == pytest.approx(abs(s - t) * whole, abs=1e-6)
    if kinds[0] == kinds[1] or "ensemble" not in kinds:
        assert coset.wasserstein(path(0), a).item() < 1e-6 and coset.wasserstein(path(1), b).item() < 1e-6


@laws
@given(st.integers(0, 1000), st.floats(0, 1))
def test_a_geodesic_is_eq_7(seed: int, t: float) -> None:
    a, b = make("full", seed), make("full", seed + 1)
    (m0, c0), (m1, c1) = moments(a), moments(b)
    half = np.real(sqrtm(c0))
    inverse = np.linalg.inv(half)
    middle = (1 - t) * c0 + t * np.real(sqrtm(half @ c1 @ half))
    mean, covariance = moments(coset.geodesic(a, b)(t))
    assert np.allclose(mean, (1 - t) * m0 + t * m1)
    assert np.allclose(covariance, inverse @ middle @ middle @ inverse, rtol=1e-6, atol=1e-6)


@laws
@given(st.integers(0, 1000), st.floats(0, 1))
def test_diagonal_covariances_go_the_diagonal_way(seed: int, t: float) -> None:
    a, b = make("gaussian", seed), make("gaussian", seed + 1)
    whole = [coset.FullGaussian(q.mean, torch.from_numpy(moments(q)[1]), ["w", "b"]) for q in (a, b)]
    for path in (coset.geodesic(*whole), coset.geodesic(a, whole[1]), coset.geodesic(whole[0], b)):
        result, expected = moments(path(t)), moments(coset.geodesic(a, b)(t))
        assert np.allclose(result[0], expected[0]) and np.allclose(result[1], expected[1])


def test_members_go_to_their_partners() -> None:
    a = coset.Ensemble({"w": torch.tensor([0.0, 10.0, 20.0])})
    b = coset.Ensemble({"w": torch.tensor([21.0, 1.0, 11.0])})
    half = coset.geodesic(a, b)(0.5)
    assert isinstance(half, coset.Ensemble) and half.population["w"].tolist() == [0.5, 10.5, 20.5]
    to_point = coset.geodesic(a, coset.Dirac({"w": torch.tensor(10.0)}))(0.5)
    assert isinstance(to_point, coset.Ensemble) and to_point.population["w"].tolist() == [5.0, 10.0, 15.0]


@pytest.mark.parametrize("first", KINDS)
def test_a_path_of_mixtures_takes_all_kinds(first: str, generator: torch.Generator) -> None:
    a, b = make(first, 1), make("gaussian", 2)
    half = coset.mixture(a, b)(0.5)
    assert states.size(half.sample(5, generator)) == 5
    assert states.allclose(half.mean, states.lerp(a.mean, b.mean, 0.5))


def test_refusals() -> None:
    a, b = make("ensemble", 1), make("gaussian", 2)
    for function, name in ((coset.wasserstein, "The Wasserstein distance"), (coset.geodesic, "A geodesic")):
        with pytest.raises(CosetError, match=f"{name} has no closed form for an? (Ensemble|Gaussian) beside an? "):
            function(a, b)
        with pytest.raises(CosetError, match=f"{name} has no closed form for a Mixture beside a FullGaussian"):
            function(make("full", 1), coset.Mixture([b]))
        with pytest.raises(CosetError, match=f"{name} needs ensembles of one size, not of 4 and 1 members"):
            function(a, coset.Ensemble([b.mean]))
    for kind in KINDS[1:]:
        with pytest.raises(CosetError, match=r"goes from t = 0 to 1, not to 1\.5"):
            coset.geodesic(make(kind, 1), make(kind, 2))(1.5)
    large = {"w": torch.zeros(21_000)}
    with pytest.raises(CosetError, match="covariance of 21,000 coordinates is too large"):
        coset.wasserstein(
            coset.Gaussian(large, {"w": torch.ones(21_000)}), coset.FullGaussian(large, torch.zeros(0, 0), [])
        )
