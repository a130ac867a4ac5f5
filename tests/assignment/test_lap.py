"""`solve` is exact: against scipy, brute force, and its own certificate."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from hypothesis.extra.numpy import arrays
from lap_cases import FAMILIES, check, scale, scipy_value

from coset.assignment import solve

SHAPES = [(1, 1), (1, 7), (7, 1), (2, 2), (5, 9), (33, 33), (31, 70), (70, 31), (64, 65), (130, 130), (200, 180)]


@pytest.mark.parametrize("maximize", [True, False])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("family", FAMILIES)
def test_families_and_shapes(family: str, dtype: type[np.floating], maximize: bool) -> None:
    rng = np.random.default_rng(0)
    for n, m in SHAPES:
        cost = FAMILIES[family](rng, n, m).astype(dtype)
        check(solve(cost, maximize), cost, maximize)


@pytest.mark.parametrize("family", FAMILIES)
def test_large_problems_are_sampled_and_auctioned(family: str) -> None:
    cost = FAMILIES[family](np.random.default_rng(1), 301, 301).astype(np.float32)
    check(solve(cost), cost)


small = st.integers(0, 6)
entries = st.one_of(
    st.integers(-3, 3).map(float),
    st.floats(-1e6, 1e6, width=32),
    st.sampled_from(np.float32([0.0, -0.0, 1e-38, 1e38, -1e38, 1e-45]).tolist()),
)


@settings(max_examples=300, deadline=None)
@given(st.data(), small, small, st.booleans())
def test_brute_force(data: st.DataObject, n: int, m: int, maximize: bool) -> None:
    cost = data.draw(arrays(np.float32, (n, m), elements=entries))
    solution = solve(cost, maximize)
    check(solution, cost, maximize)
    exact = cost.astype(np.float64) if n <= m else cost.T.astype(np.float64)
    sums = [
        sum(row[j] for row, j in zip(exact, p, strict=True))
        for p in itertools.permutations(range(max(n, m)), min(n, m))
    ]
    best = max(sums) if maximize else min(sums)
    assert abs(solution.value - best) <= 1e-12 * scale(cost)


@settings(max_examples=100, deadline=None)
@given(
    st.integers(1, 90), st.integers(1, 90), st.sampled_from(list(FAMILIES)), st.integers(0, 2**32 - 1), st.booleans()
)
def test_any_shape(n: int, m: int, family: str, seed: int, maximize: bool) -> None:
    cost = FAMILIES[family](np.random.default_rng(seed), n, m)
    check(solve(cost, maximize), cost, maximize)


def test_convention() -> None:
    # Row 0 is best with column 2, row 1 with column 0, row 2 with column 1.
    cost = torch.tensor([[0.0, 0.0, 5.0], [5.0, 0.0, 0.0], [0.0, 5.0, 0.0]])
    best = solve(cost)
    assert best.permutation.tolist() == [2, 0, 1] and best.value == 15 and best.gap == 0
    permutation, duals, gap, value = best
    assert duals.permutation.tolist() == permutation.tolist() and (gap, value) == (0, 15)


def test_a_unique_optimum_is_found_whatever_the_order() -> None:
    rng = np.random.default_rng(2)
    cost = rng.standard_normal((150, 150))
    p, q = rng.permutation(150), rng.permutation(150)
    straight, shuffled = solve(cost).permutation.numpy(), solve(cost[p][:, q]).permutation.numpy()
    assert (q[shuffled] == straight[p]).all()


def test_same_input_same_answer() -> None:
    cost = np.random.default_rng(3).integers(0, 3, (120, 120))
    first, second = solve(cost), solve(cost)
    assert torch.equal(first.permutation, second.permutation)
    assert torch.equal(first.duals.columns, second.duals.columns)


@pytest.mark.parametrize("shape", [(0, 0), (0, 4), (4, 0)])
@pytest.mark.parametrize("maximize", [True, False])
def test_empty(shape: tuple[int, int], maximize: bool) -> None:
    solution = solve(torch.zeros(shape), maximize)
    assert solution.permutation.tolist() == [-1] * shape[0] and solution.value == solution.gap == 0
    assert solution.duals.columns.shape == (shape[1],)
    again = solve(torch.zeros(shape), maximize, warm=solution.duals)
    assert again.value == 0


def test_more_rows_than_columns_leave_rows_out() -> None:
    cost = torch.tensor([[1.0], [3.0], [2.0]])
    assert solve(cost).permutation.tolist() == [-1, 0, -1]
    assert solve(cost, maximize=False).permutation.tolist() == [0, -1, -1]


def test_large_float64_entries() -> None:
    cost = np.random.default_rng(4).standard_normal((20, 20)) * 1e280
    assert abs(solve(cost).value - scipy_value(cost)) <= 1e-12 * scale(cost)


@pytest.mark.parametrize("maximize", [True, False])
def test_the_gap_is_that_of_the_duals(maximize: bool) -> None:
    """Rounding leaves gaps: they are reported, not hidden."""
    rng = np.random.default_rng(5)
    gaps = []
    for _ in range(10):
        cost = FAMILIES["low rank"](rng, 100, 100)
        solution = solve(cost, maximize)
        u, v, p = solution.duals.rows.numpy(), solution.duals.columns.numpy(), solution.permutation.numpy()
        entries = cost[np.arange(100), p]
        # The same operations as in the kernel, so that the same roundings are seen.
        slack = u - (entries - v[p])
        assert solution.gap == pytest.approx(np.abs(slack).sum(), rel=1e-9)
        gaps.append(solution.gap)
    assert max(gaps) > 0
