import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from scipy.optimize import linear_sum_assignment, minimize
from torch import Tensor

from coset.assignment.projection import _newton, _onto_simplex, project_doubly_stochastic
from coset.assignment.sinkhorn import sinkhorn
from coset.core.errors import CosetError

laws = settings(max_examples=40, deadline=None)
seeds = st.integers(0, 2**31)
scales = st.sampled_from([1e-3, 0.3, 1.0, 30.0, 1e6])


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def project(matrix: Tensor) -> Tensor:
    return project_doubly_stochastic(matrix, tolerance=1e-13)


def by_quadratic_program(matrix: Tensor) -> Tensor:
    target = matrix.numpy().ravel()
    n = len(matrix)
    sums = np.concatenate([np.kron(np.eye(n), np.ones((1, n))), np.kron(np.ones((1, n)), np.eye(n))])[:-1]
    solution = minimize(
        lambda x: ((x - target) ** 2).sum() / 2,
        np.full(n * n, 1 / n),
        jac=lambda x: x - target,
        bounds=[(0, None)] * (n * n),
        constraints={"type": "eq", "fun": lambda x: sums @ x - 1, "jac": lambda x: sums},
        method="SLSQP",
        options={"ftol": 1e-14, "maxiter": 1000},
    )
    return torch.from_numpy(solution.x.reshape(n, n))


def excess(matrix: Tensor, plan: Tensor) -> float:
    """max <M - P, Q - P> over doubly stochastic Q, which is not positive iff P is the projection of M."""
    normal = (matrix - plan).numpy()
    best = normal[linear_sum_assignment(normal, maximize=True)].sum()
    return float(best - (normal * plan.numpy()).sum())


@settings(max_examples=25, deadline=None)
@given(seeds, st.integers(1, 5), st.sampled_from([0.3, 1.0, 3.0]))
def test_it_agrees_with_a_quadratic_program(seed: int, n: int, scale: float) -> None:
    matrix = scale * randn(n, n, seed=seed)
    assert torch.allclose(project_doubly_stochastic(matrix), by_quadratic_program(matrix), atol=1e-5)


@laws
@given(seeds, st.integers(1, 30), scales, st.booleans())
def test_the_result_is_doubly_stochastic_and_nearest(seed: int, n: int, scale: float, ties: bool) -> None:
    matrix = scale * (randn(n, n, seed=seed).round() if ties else randn(n, n, seed=seed))
    plan = project_doubly_stochastic(matrix, tolerance=1e-12)
    assert (plan >= 0).all()
    assert (plan.sum(0) - 1).abs().max() < 2e-12
    assert (plan.sum(1) - 1).abs().max() < 2e-12
    assert excess(matrix, plan) <= 1e-10 * n * max(scale, 1)


@laws
@given(seeds, st.integers(1, 12))
def test_doubly_stochastic_matrices_stay(seed: int, n: int) -> None:
    plan = sinkhorn(randn(n, n, seed=seed), 0.3, tolerance=1e-13)
    assert torch.allclose(project(plan), plan, atol=1e-11)
    vertex = torch.eye(n, dtype=torch.float64)[torch.randperm(n, generator=torch.Generator().manual_seed(seed))]
    assert torch.allclose(project(vertex), vertex, atol=1e-11)
    once = project(randn(n, n, seed=seed))
    assert torch.allclose(project(once), once, atol=1e-11)


@laws
@given(seeds, st.integers(1, 8), st.sampled_from([0.3, 1.0, 10.0]))
def test_it_is_equivariant_and_blind_to_shifts(seed: int, n: int, scale: float) -> None:
    matrix = scale * randn(n, n, seed=seed)
    plan = project(matrix)
    p, q = (torch.randperm(n, generator=torch.Generator().manual_seed(seed + k)) for k in range(2))
    assert torch.allclose(project(matrix[p][:, q]), plan[p][:, q], atol=1e-8)
    assert torch.allclose(project(matrix.T), plan.T, atol=1e-8)
    shifted = matrix + 100 * randn(n, 1, seed=seed + 1) + 100 * randn(n, seed=seed + 2)
    assert torch.allclose(project(shifted), plan, atol=1e-8)


@pytest.mark.parametrize("scale", [1.0, 1e3, 1e9])
def test_few_rounds_suffice_for_skewed_matrices_of_any_size(scale: float) -> None:
    matrix = scale * (2 * randn(40, 40)).exp()
    plan = project_doubly_stochastic(matrix, tolerance=1e-12, rounds=40)
    assert excess(matrix, plan) <= 1e-10 * scale


@laws
@given(seeds, st.integers(1, 10), scales)
def test_a_newton_step_decreases_the_dual_from_anywhere(seed: int, n: int, scale: float) -> None:
    matrix = _onto_simplex(scale * randn(n, n, seed=seed), -2)
    shifted = _newton(matrix)
    change = (shifted.relu().square() - matrix.relu().square()).sum() / 2 - (shifted - matrix).sum() / n
    assert change <= 1e-8


def test_gradcheck() -> None:
    matrix = randn(2, 4, 4).requires_grad_()
    assert 8 < (project(matrix) == 0).sum() < 20
    assert torch.autograd.gradcheck(lambda x: project_doubly_stochastic(x, tolerance=1e-14), matrix)


def test_the_gradient_is_zero_at_a_vertex() -> None:
    matrix = (10 * torch.eye(4)).requires_grad_()
    gradient = torch.autograd.grad(project_doubly_stochastic(matrix), matrix, randn(4, 4).float())[0]
    assert torch.allclose(gradient, torch.zeros(4, 4), atol=1e-12)


def test_a_second_derivative_is_refused() -> None:
    x = randn(3, 3).requires_grad_()
    first = torch.autograd.grad(project_doubly_stochastic(x).square().sum(), x, create_graph=True)[0]
    with pytest.raises(RuntimeError, match="once_differentiable"):
        first.sum().backward()


@laws
@given(seeds, st.integers(1, 6))
def test_a_batch_is_a_loop(seed: int, n: int) -> None:
    scales = torch.tensor([0.1, 1.0, 50.0], dtype=torch.float64)[:, None, None]
    matrices = randn(2, 3, n, n, seed=seed) * scales
    plans = project(matrices)
    for i in range(2):
        for j in range(3):
            assert torch.allclose(plans[i, j], project(matrices[i, j]), atol=1e-8)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_other_dtypes_are_kept(dtype: torch.dtype) -> None:
    matrix = randn(8, 8).to(dtype)
    plan = project_doubly_stochastic(matrix)
    assert plan.dtype == dtype
    assert torch.allclose(plan.double(), project_doubly_stochastic(matrix.double()), atol=torch.finfo(dtype).eps)


@pytest.mark.parametrize("shape", [(0, 0), (3, 0, 0), (0, 4, 4)])
def test_nothing_in_nothing_out(shape: tuple[int, ...]) -> None:
    assert project_doubly_stochastic(torch.empty(shape)).shape == shape


def test_one_unit() -> None:
    assert project_doubly_stochastic(torch.tensor([[-7.0]])).item() == 1


@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        (torch.zeros(2, 3), r"matrix has shape \(2, 3\)"),
        (torch.zeros(2, 2, dtype=torch.int64), "matrix is of type torch.int64"),
        (torch.tensor([[math.nan, 0.0], [0.0, -math.inf]]), "matrix has 2 NaN or infinite of 4 values"),
    ],
)
def test_bad_matrices_are_refused(matrix: Tensor, message: str) -> None:
    with pytest.raises(CosetError, match=message):
        project_doubly_stochastic(matrix)
