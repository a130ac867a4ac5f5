import numpy as np
import pytest
import torch
from doubly_stochastic import mixture, randn
from hypothesis import given, settings, strategies as st
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from coset.assignment import alternate_projections, project_doubly_stochastic
from coset.assignment.projection import _onto_sums
from coset.core.errors import CosetError

laws = settings(max_examples=40, deadline=None)
seeds = st.integers(0, 2**31)
scales = st.sampled_from([0.01, 0.3, 1.0, 30.0])


def trajectory(matrix: Tensor, rounds: int) -> list[Tensor]:
    return [matrix, *(alternate_projections(matrix, k) for k in range(1, rounds + 1))]


@laws
@given(seeds, st.integers(1, 7), scales)
def test_the_closed_form_is_the_nearest_matrix_with_these_sums(seed: int, n: int, scale: float) -> None:
    matrix = scale * randn(n, n, seed=seed)
    sums = np.concatenate([np.kron(np.eye(n), np.ones((1, n))), np.kron(np.ones((1, n)), np.eye(n))])
    # The shortest step onto { x : sums x = 1 }, by a singular value decomposition.
    step = np.linalg.lstsq(sums, 1 - sums @ matrix.numpy().ravel(), rcond=1e-10)[0]
    assert torch.allclose(_onto_sums(matrix), matrix + torch.from_numpy(step.reshape(n, n)), atol=1e-11)


@laws
@given(seeds, st.integers(1, 12), scales)
def test_no_round_leads_away_from_a_doubly_stochastic_matrix(seed: int, n: int, scale: float) -> None:
    path = trajectory(scale * randn(n, n, seed=seed), 12)
    for target in (mixture(n, 1, seed), mixture(n, 5, seed), torch.full((n, n), 1 / n, dtype=torch.float64)):
        distances = torch.stack([(point - target).norm() for point in path])
        assert (distances.diff() <= 1e-12 * max(scale, 1)).all()


@laws
@given(seeds, st.integers(1, 10), scales)
def test_each_round_is_nearer_to_the_polytope_and_nearer_to_the_right_sums(seed: int, n: int, scale: float) -> None:
    path = trajectory(scale * randn(n, n, seed=seed), 8)[1:]
    assert all((point >= 0).all() for point in path)
    away = torch.stack([(point - project_doubly_stochastic(point, tolerance=1e-13)).norm() for point in path])
    wrong = torch.stack([(point - _onto_sums(point)).norm() for point in path])
    assert (away.diff() <= 1e-10).all()
    assert (wrong.diff() <= 1e-12 * max(scale, 1)).all()


@laws
@given(seeds, st.integers(1, 7), st.sampled_from([0.01, 0.3, 1.0]))
def test_many_rounds_end_in_the_polytope(seed: int, n: int, scale: float) -> None:
    plan = alternate_projections(scale * randn(n, n, seed=seed), 1000)
    assert (plan >= 0).all()
    assert (plan.sum(0) - 1).abs().max() < 1e-9
    assert (plan.sum(1) - 1).abs().max() < 1e-9


@laws
@given(seeds, st.integers(1, 12), st.integers(1, 5), st.integers(1, 30))
def test_doubly_stochastic_matrices_stay(seed: int, n: int, terms: int, rounds: int) -> None:
    plan = mixture(n, terms, seed)
    assert torch.allclose(alternate_projections(plan, rounds), plan, atol=1e-14)


def test_the_limit_is_not_the_nearest_point() -> None:
    matrix = randn(8, 8)
    plan, nearest = alternate_projections(matrix, 1000), project_doubly_stochastic(matrix)
    assert (plan - matrix).norm() > (nearest - matrix).norm() + 0.01


def test_a_batch_is_a_loop() -> None:
    matrices = randn(2, 3, 5, 5)
    plans = alternate_projections(matrices)
    for i in range(2):
        for j in range(3):
            assert torch.allclose(plans[i, j], alternate_projections(matrices[i, j]), atol=1e-14)


def test_what_is_given_stays_and_its_dtype_is_kept() -> None:
    matrix = randn(6, 6).float()
    before = matrix.clone()
    plan = alternate_projections(matrix)
    assert plan.dtype == torch.float32
    assert torch.equal(matrix, before)
    assert torch.allclose(plan.double(), alternate_projections(matrix.double()), atol=1e-6)


def test_no_value_is_looked_at() -> None:
    with FakeTensorMode():
        assert alternate_projections(torch.randn(3, 4, 4)).shape == (3, 4, 4)


def test_gradcheck() -> None:
    matrix = randn(2, 4, 4).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: alternate_projections(x, 5), matrix)


@pytest.mark.parametrize("shape", [(0, 0), (3, 0, 0), (0, 4, 4)])
def test_nothing_in_nothing_out(shape: tuple[int, ...]) -> None:
    assert alternate_projections(torch.empty(shape)).shape == shape


@pytest.mark.parametrize(
    ("matrix", "rounds", "message"),
    [
        (torch.zeros(2, 3), 20, r"matrix has shape \(2, 3\)"),
        (torch.zeros(2), 20, r"matrix has shape \(2,\)"),
        (torch.zeros(2, 2, dtype=torch.int64), 20, "matrix is of type torch.int64"),
        (torch.zeros(2, 2), 0, "0 rounds"),
    ],
)
def test_what_cannot_be_projected_is_refused(matrix: Tensor, rounds: int, message: str) -> None:
    with pytest.raises(CosetError, match=message):
        alternate_projections(matrix, rounds)
