import math
from itertools import permutations

import pytest
import torch
from doubly_stochastic import mixture, randn
from hypothesis import given, settings, strategies as st
from torch import Tensor

from coset.assignment.birkhoff import Birkhoff, birkhoff
from coset.assignment.projection import project_doubly_stochastic
from coset.assignment.sinkhorn import sinkhorn
from coset.core.errors import CosetError

laws = settings(max_examples=40, deadline=None)
seeds = st.integers(0, 2**31)


@st.composite
def plans(draw: st.DrawFn, most: int = 8) -> Tensor:
    n, seed = draw(st.integers(1, most)), draw(seeds)
    kind = draw(st.sampled_from(["dense", "sparse", "mixture"]))
    if kind == "dense":
        return sinkhorn(randn(n, n, seed=seed), 0.5, tolerance=1e-14)
    if kind == "sparse":
        return project_doubly_stochastic(randn(n, n, seed=seed), tolerance=1e-14)
    return mixture(n, draw(st.integers(1, 5)), seed)


def rebuilt(mixture: Birkhoff) -> Tensor:
    eye = torch.eye(mixture.permutations.shape[1], dtype=mixture.weights.dtype)
    return torch.einsum("k,kij->ij", mixture.weights, eye[mixture.permutations])


@laws
@given(plans())
def test_a_full_decomposition_rebuilds_the_matrix(matrix: Tensor) -> None:
    n = len(matrix)
    before = matrix.clone()
    mixture = birkhoff(matrix)
    assert torch.equal(matrix, before)
    assert torch.allclose(rebuilt(mixture), matrix, atol=1e-12)
    assert mixture.residual.abs().max() < 1e-12
    assert mixture.weights.sum().item() == pytest.approx(1, abs=1e-12)
    assert 1 <= len(mixture.weights) <= (n - 1) ** 2 + 1
    assert (mixture.weights > 0).all()
    assert mixture.permutations.dtype == torch.int64
    assert torch.equal(mixture.permutations.sort(-1).values, torch.arange(n).expand_as(mixture.permutations))


@laws
@given(plans(), st.integers(0, 70))
def test_a_truncated_decomposition_is_the_start_of_the_full_one(matrix: Tensor, terms: int) -> None:
    full, cut = birkhoff(matrix), birkhoff(matrix, terms)
    assert torch.equal(cut.weights, full.weights[:terms])
    assert torch.equal(cut.permutations, full.permutations[:terms])
    assert torch.allclose(rebuilt(cut) + cut.residual, matrix, atol=1e-14)


@laws
@given(plans())
def test_each_term_takes_less_and_leaves_less(matrix: Tensor) -> None:
    mixture = birkhoff(matrix)
    assert (mixture.weights.diff() <= 0).all()
    errors = torch.stack([birkhoff(matrix, k).residual.norm() for k in range(min(len(mixture.weights), 12))])
    assert (errors.diff() < 0).all()


@laws
@given(plans(5))
def test_the_first_weight_is_the_largest_of_all_permutations(matrix: Tensor) -> None:
    rows = torch.arange(len(matrix))
    best = max(float(matrix[rows, torch.tensor(p)].min()) for p in permutations(range(len(matrix))))
    assert birkhoff(matrix, 1).weights.item() == min(best, 1)


def test_a_permutation_matrix_is_its_own_decomposition() -> None:
    p = torch.tensor([2, 0, 1, 3])
    mixture = birkhoff(torch.eye(4)[p])
    assert mixture.weights.tolist() == [1.0]
    assert mixture.permutations.tolist() == [p.tolist()]


def test_the_uniform_matrix_takes_n_terms() -> None:
    mixture = birkhoff(torch.full((8, 8), 1 / 8))
    assert mixture.weights.tolist() == [1 / 8] * 8


@pytest.mark.parametrize("n", [1, 3, 30])
def test_float32_is_kept_and_decomposed_to_its_precision(n: int) -> None:
    matrix = sinkhorn(randn(n, n).float(), 0.3).requires_grad_()
    mixture = birkhoff(matrix)
    assert mixture.weights.dtype == mixture.residual.dtype == torch.float32
    assert not mixture.weights.requires_grad
    assert mixture.weights.sum().item() == pytest.approx(1, abs=2e-6)
    assert mixture.residual.abs().max() < 2e-6


def test_the_empty_matrix_is_one_empty_permutation() -> None:
    mixture = birkhoff(torch.empty(0, 0))
    assert mixture.weights.tolist() == [1.0]
    assert mixture.permutations.shape == (1, 0)
    assert mixture.residual.shape == (0, 0)


def test_no_terms_leave_all() -> None:
    mixture = birkhoff(torch.eye(3), 0)
    assert mixture.weights.shape == (0,)
    assert mixture.permutations.shape == (0, 3)
    assert torch.equal(mixture.residual, torch.eye(3))


@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        (torch.ones(2, 2), "doubly stochastic only within 1.0e"),
        (torch.tensor([[2.0, -1.0], [-1.0, 2.0]]), "doubly stochastic only within 1.0e"),
        (torch.tensor([[0.5, 0.5], [0.9, 0.1]]), "project_doubly_stochastic"),
        (torch.eye(3) + 1e-4, "doubly stochastic only within 3.0e-04"),
        (torch.zeros(2, 3), r"matrix has shape \(2, 3\)"),
        (torch.eye(2).expand(4, 2, 2), r"shape \(4, 2, 2\), but must be one"),
        (torch.eye(2, dtype=torch.int64), "matrix is of type torch.int64"),
        (torch.tensor([[math.nan, 0.0], [0.0, 1.0]]), "matrix has 1 NaN or infinite of 4 values"),
    ],
)
def test_bad_matrices_are_refused(matrix: Tensor, message: str) -> None:
    with pytest.raises(CosetError, match=message):
        birkhoff(matrix)


def test_a_negative_number_of_terms_is_refused() -> None:
    with pytest.raises(CosetError, match="-1 terms"):
        birkhoff(torch.eye(2), -1)


def test_the_tolerance_is_the_callers() -> None:
    matrix = torch.eye(3) + 1e-4
    mixture = birkhoff(matrix, tolerance=1e-3)
    assert mixture.weights.sum().item() == pytest.approx(1, abs=1e-3)
