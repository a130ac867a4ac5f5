"""The observation noise of regression solutions: kept by every operation, interpolated by a geodesic."""

import json
import math
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

import coset
from coset import Solution, Symmetry
from coset.core.checkpoint import save_state
from coset.core.errors import CosetError, StateError

W = {"w": torch.zeros(2)}


def kinds(noise: float | None) -> list[Solution]:
    """One solution of each kind."""
    return [
        coset.Dirac(W, noise=noise),
        coset.Gaussian(W, {"w": torch.ones(2)}, noise=noise),
        coset.FullGaussian(W, torch.eye(2), noise=noise),
        coset.KroneckerGaussian(W, {"w": (torch.eye(2), torch.eye(1))}, noise=noise),
        coset.Ensemble([W, W], noise=noise),
    ]


@pytest.mark.parametrize("k", range(5))
def test_every_operation_keeps_it(k: int, tmp_path: Path) -> None:
    sym = Symmetry({}, {})
    for noise in (None, 0.1):
        q = kinds(noise)[k]
        q.save(tmp_path / "q.safetensors")
        copies = [sym.act(sym.identity(), q), q.to("cpu"), coset.load(tmp_path / "q.safetensors")]
        copies += [component for _, component in q.components()]
        if isinstance(q, coset.FullGaussian | coset.KroneckerGaussian):
            copies.append(q.marginal())
        if isinstance(q, coset.KroneckerGaussian):
            copies.append(q.full())
        assert q.noise == noise and all(one.noise == noise for one in copies)
        assert repr(q).endswith("coordinates)" if noise is None else "coordinates, noise 0.1)")


@pytest.mark.parametrize("noise", [0.0, -1.0, math.nan, math.inf])
def test_it_is_positive_and_finite(noise: float) -> None:
    with pytest.raises(StateError, match="noise must be positive and finite, not"):
        kinds(noise)


def test_a_mixture_has_that_of_its_components() -> None:
    a, b, c = (coset.Dirac(W, noise) for noise in (0.1, 0.1, 0.2))
    assert coset.Mixture([a, b]).noise == 0.1 and coset.Mixture([a, c]).noise is None
    assert coset.Mixture([a, c], [1, 0]).noise == 0.1
    assert [part.noise for _, part in coset.Mixture([a, c]).components()] == [0.1, 0.2]


def test_files_without_it(tmp_path: Path) -> None:
    path = tmp_path / "q.safetensors"
    coset.Dirac(W, 0.3).save(path)
    with safe_open(path, "pt") as file:
        description = json.loads(file.metadata()["coset.solution"])
    assert description.pop("noise") == 0.3
    save_state(W, path, {"coset.solution": json.dumps(description)})
    assert coset.load(path).noise is None
    save_state(W, path, {"coset.solution": json.dumps({**description, "noise": -1})})
    with pytest.raises(StateError, match="noise must be positive"):
        coset.load(path)


@pytest.mark.parametrize("k", range(5))
def test_a_geodesic_interpolates_it(k: int) -> None:
    path = coset.geodesic(kinds(0.1)[k], kinds(0.5)[k])
    assert path(0.25).noise == pytest.approx(0.2) and path(1).noise == 0.5
    assert coset.geodesic(kinds(None)[k], kinds(None)[k])(0.5).noise is None
    with pytest.raises(CosetError, match="noise of both solutions or of neither"):
        coset.geodesic(kinds(0.1)[k], kinds(None)[k])
