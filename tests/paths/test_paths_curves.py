"""Bezier curves and chains: their functions, their ends, their files."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor

from coset import Bezier, Chain, Curve, Dirac, Ensemble, Gaussian, load_curve
from coset.core.errors import CosetError, StateError
from coset.paths.curve import CURVES, is_curve

times = st.floats(0, 1)


def state(seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    w = torch.randn(4, 3, generator=generator)
    return {"w": w, "tied": w, "b": torch.randn(3, generator=generator), "n": torch.tensor(seed)}


def gaussian(seed: int) -> Gaussian:
    mean = state(seed)
    return Gaussian(mean, {"w": mean["w"].abs() + 0.1, "tied": mean["tied"].abs() + 0.1, "b": mean["b"].exp()})


def de_casteljau(points: list[np.ndarray], t: float) -> np.ndarray:
    while len(points) > 1:
        points = [(1 - t) * x + t * y for x, y in pairwise(points)]
    return points[0]


@settings(max_examples=30, deadline=None)
@given(times, st.integers(2, 6))
def test_a_bezier_curve_is_that_of_de_casteljau(t: float, count: int) -> None:
    points = [state(k) for k in range(count)]
    point = Bezier(*points)(t).mean["w"]
    expected = de_casteljau([x["w"].double().numpy() for x in points], t)
    assert np.allclose(point.numpy(), expected, atol=1e-6)


@settings(max_examples=30, deadline=None)
@given(times, st.integers(2, 6))
def test_a_chain_interpolates_between_neighbours(t: float, count: int) -> None:
    points = [state(k) for k in range(count)]
    point = Chain(*points)(t).mean["b"].double().numpy()
    knots = np.linspace(0, 1, count)
    for i in range(3):
        assert point[i] == pytest.approx(np.interp(t, knots, [float(x["b"][i]) for x in points]), abs=1e-6)


@pytest.mark.parametrize("kind", CURVES.values(), ids=CURVES)
@settings(max_examples=30, deadline=None)
@given(times, st.integers(1, 6))
def test_the_functions_sum_to_one_and_keep_lines(kind: type[Curve], t: float, n: int) -> None:
    weights = kind.basis(torch.tensor(t, dtype=torch.float64), n)
    assert float(weights.sum()) == pytest.approx(1)
    assert float(weights @ torch.arange(n + 1, dtype=torch.float64)) == pytest.approx(n * t)
    assert bool((weights >= 0).all())


@pytest.mark.parametrize("kind", CURVES.values(), ids=CURVES)
@pytest.mark.parametrize("make", [lambda k: Dirac(state(k)), gaussian], ids=["dirac", "gaussian"])
def test_the_ends_are_exact(kind: type[Curve], make: type) -> None:
    curve = kind(*(make(k) for k in range(4)))
    for t, end in ((0.0, curve.points[0]), (1.0, curve.points[-1])):
        point = curve(t)
        assert type(point) is type(end)
        assert all(torch.equal(point.mean[name], x) for name, x in end.mean.items() if name != "n")
        if isinstance(point, Gaussian) and isinstance(end, Gaussian):
            assert all(torch.allclose(point.std[name], x, rtol=1e-6) for name, x in end.std.items())


def test_deviations_mix_by_their_logarithms_and_zeros_stay() -> None:
    a, c, b = (gaussian(k) for k in range(3))
    point = Bezier(a, c, b)(0.3)
    assert isinstance(point, Gaussian)
    weights = 0.7**2, 2 * 0.3 * 0.7, 0.3**2
    expected = sum(w * q.std["b"].log() for w, q in zip(weights, (a, c, b), strict=True))
    assert torch.allclose(point.std["b"].log(), torch.as_tensor(expected), atol=1e-6)
    with_zero = Bezier(Dirac(state(0)), a, b)(0.5)
    assert isinstance(with_zero, Gaussian) and float(with_zero.std["b"].abs().max()) == 0


def test_integers_ties_and_noise_are_carried_along() -> None:
    curve = Bezier(Dirac(state(0), 0.2), Dirac(state(1), 0.4), Dirac(state(2), 1.0))
    point = curve(0.5)
    assert point.mean["n"] == 0 and point.mean["w"] is point.mean["tied"]
    assert point.noise == pytest.approx(0.25 * 0.2 + 0.5 * 0.4 + 0.25 * 1.0)


def test_a_curve_that_cannot_be_is_refused() -> None:
    with pytest.raises(CosetError, match="needs two ends, so 1 control points"):
        Bezier(state(0))
    with pytest.raises(StateError, match="control point 1"):
        Bezier(state(0), {"w": torch.zeros(2)})
    with pytest.raises(CosetError, match="not through a Ensemble"):
        Bezier(Ensemble([state(0), state(1)]), state(1))
    with pytest.raises(CosetError, match="noise of all control points or of none"):
        Chain(Dirac(state(0), 0.1), state(1))
    with pytest.raises(CosetError, match="from t = 0 to 1"):
        Chain(state(0), state(1))(1.5)


@pytest.mark.parametrize("kind", CURVES.values(), ids=CURVES)
@pytest.mark.parametrize("make", [lambda k: Dirac(state(k), 0.5), gaussian], ids=["dirac", "gaussian"])
def test_a_saved_curve_comes_back(kind: type[Curve], make: type, tmp_path: Path) -> None:
    curve = kind(*(make(k) for k in range(3)))
    curve.save(tmp_path / "c.safetensors")
    assert is_curve(tmp_path / "c.safetensors")
    again = load_curve(tmp_path / "c.safetensors")
    assert type(again) is kind and len(again.points) == 3
    for one, other in zip(again.points, curve.points, strict=True):
        assert type(one) is type(other) and one.noise == other.noise
        assert list(one.mean) == list(other.mean) and one.mean["w"] is one.mean["tied"]
        assert all(torch.equal(one.mean[name], x) for name, x in other.mean.items())


def test_files_that_hold_no_curve_are_refused(tmp_path: Path) -> None:
    plain, damaged = tmp_path / "plain.safetensors", tmp_path / "damaged.safetensors"
    Dirac(state(0)).save(plain)
    assert not is_curve(plain) and not is_curve(tmp_path / "gone.safetensors")
    with pytest.raises(StateError, match="holds no curve"):
        load_curve(plain)
    Bezier(state(0), state(1)).save(damaged)
    tensors = load_file(damaged)
    for text in ("{", '{"kind": "bezier"}', '{"kind": "spiral", "points": [], "owners": {}}'):
        save_file(tensors, damaged, {"coset.curve": text})
        with pytest.raises(CosetError, match="cannot be read"):
            load_curve(damaged)
