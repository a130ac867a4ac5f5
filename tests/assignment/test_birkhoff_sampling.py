import math

import pytest
import torch
from hypothesis import given, settings, strategies as st
from scipy.stats import chisquare
from torch import Tensor

from coset.assignment import birkhoff, project_doubly_stochastic, sample_birkhoff
from coset.core.errors import CosetError

laws = settings(max_examples=40, deadline=None)
seeds = st.integers(0, 2**31)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def plan(*shape: int, seed: int = 0) -> Tensor:
    noise = torch.randn(shape, generator=generator(seed), dtype=torch.float64)
    return project_doubly_stochastic(noise, tolerance=1e-13)


def shifts(weights: Tensor) -> Tensor:
    """sum_k weights[k] P_k with P_k the shift by k, the only decomposition this matrix has."""
    n = len(weights)
    return weights[(torch.arange(n) - torch.arange(n)[:, None]) % n]


def counts(permutations: Tensor) -> list[int]:
    """How often each shift is among permutations [samples, n]."""
    n = permutations.shape[-1]
    by = permutations[:, 0]
    assert torch.equal(permutations, (torch.arange(n) + by[:, None]) % n)
    return by.bincount(minlength=n).tolist()


@laws
@given(seeds, st.integers(1, 10), st.integers(1, 12))
def test_draws_are_terms_of_the_decomposition(seed: int, n: int, terms: int) -> None:
    matrix = plan(n, n, seed=seed)
    permutations = sample_birkhoff(matrix, 20, terms, generator(seed))
    assert permutations.dtype == torch.int64
    assert permutations.shape == (20, n)
    assert torch.equal(permutations.sort(-1).values, torch.arange(n).expand(20, n))
    assert (matrix[torch.arange(n), permutations] > 0).all()
    terms_of_all = birkhoff(matrix, terms).permutations
    assert (permutations[:, None] == terms_of_all).all(-1).any(-1).all()


@laws
@given(seeds, st.integers(2, 10), st.integers(1, 10))
def test_the_terms_and_the_residual_make_up_the_matrix(seed: int, n: int, terms: int) -> None:
    matrix = plan(n, n, seed=seed)
    mixture = birkhoff(matrix, terms)
    rebuilt = mixture.residual.clone()
    for weight, permutation in zip(mixture.weights, mixture.permutations, strict=True):
        for i, j in enumerate(permutation):
            rebuilt[i, j] += weight
    assert torch.allclose(rebuilt, matrix, atol=1e-14)
    left = 1 - mixture.weights.sum()
    assert torch.allclose(mixture.residual.sum(0), left, atol=1e-11)
    assert torch.allclose(mixture.residual.sum(1), left, atol=1e-11)


def test_the_frequencies_are_the_weights() -> None:
    weights = torch.tensor([0.05, 0.4, 0.3, 0.2, 0.05], dtype=torch.float64)
    permutations = sample_birkhoff(shifts(weights), 4000, generator=generator())
    assert chisquare(counts(permutations), 4000 * weights.numpy()).pvalue > 0.01


def test_of_truncated_terms_the_largest_stay_and_are_renormalized() -> None:
    permutations = sample_birkhoff(shifts(torch.tensor([0.05, 0.4, 0.28, 0.22, 0.05])), 4000, 3, generator(1))
    first, *middle, last = counts(permutations)
    assert first == last == 0
    assert chisquare(middle, [4000 * weight / 0.9 for weight in (0.4, 0.28, 0.22)]).pvalue > 0.01


def test_the_matrices_of_a_batch_are_drawn_from_independently() -> None:
    weights = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    permutations = sample_birkhoff(shifts(weights).expand(2, 1, 3, 3), 4000, generator=generator())
    assert permutations.shape == (4000, 2, 1, 3)
    first, second = permutations[:, 0, 0, 0], permutations[:, 1, 0, 0]
    pairs = (3 * first + second).bincount(minlength=9)
    assert chisquare(pairs.numpy(), 4000 * torch.outer(weights, weights).flatten().numpy()).pvalue > 0.01


def test_each_matrix_of_a_batch_has_its_own_terms() -> None:
    matrices = torch.stack([torch.eye(4), torch.eye(4).flip(0), torch.full((4, 4), 0.25)])
    permutations = sample_birkhoff(matrices, 7, generator=generator())
    assert torch.equal(permutations[:, 0], torch.arange(4).expand(7, 4))
    assert torch.equal(permutations[:, 1], torch.arange(4).flip(0).expand(7, 4))


def test_the_generator_decides() -> None:
    matrix = plan(3, 9, 9)
    first = sample_birkhoff(matrix, 16, generator=generator(3))
    assert torch.equal(first, sample_birkhoff(matrix, 16, generator=generator(3)))
    assert not torch.equal(first, sample_birkhoff(matrix, 16, generator=generator(4)))
    torch.manual_seed(5)
    free = sample_birkhoff(matrix, 16)
    torch.manual_seed(5)
    assert torch.equal(free, sample_birkhoff(matrix, 16))


def test_low_precision_does_not_hide_small_entries() -> None:
    uniform = torch.full((256, 256), 1 / 256, dtype=torch.bfloat16, requires_grad=True)
    assert sample_birkhoff(uniform, 2).shape == (2, 256)


@pytest.mark.parametrize("shape", [(0, 0), (3, 0, 0), (0, 4, 4)])
def test_of_nothing_nothing_is_drawn(shape: tuple[int, ...]) -> None:
    assert sample_birkhoff(torch.empty(shape), 5).shape == (5, *shape[:-1])


@pytest.mark.parametrize(
    ("matrix", "samples", "terms", "message"),
    [
        (torch.eye(2), 0, 10, "0 samples of 10 terms"),
        (torch.eye(2), 4, 0, "4 samples of 0 terms"),
        (torch.ones(3, 2, 2), 4, 10, "doubly stochastic only within 1.0e.00, not within .*: use project_doubly"),
        (torch.zeros(2, 3), 4, 10, r"matrix has shape \(2, 3\)"),
        (torch.eye(2, dtype=torch.int64), 4, 10, "matrix is of type torch.int64"),
        (torch.full((2, 2), math.nan), 4, 10, "matrix has 4 NaN or infinite of 4 values"),
    ],
)
def test_what_cannot_be_drawn_from_is_refused(matrix: Tensor, samples: int, terms: int, message: str) -> None:
    with pytest.raises(CosetError, match=message):
        sample_birkhoff(matrix, samples, terms)
