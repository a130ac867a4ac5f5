"""What `solve` takes: dtypes, layouts, infinities; and what it refuses, in one sentence."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from lap_cases import check, scipy_value

from coset import CosetError
from coset.assignment import Duals, solve
from coset.assignment.lap import prepare
from coset.core.errors import AssignmentError

COST = torch.randn(40, 40, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_floating_dtypes(dtype: torch.dtype) -> None:
    cost = COST.to(dtype)
    check(solve(cost), cost.double().numpy())


@pytest.mark.parametrize("dtype", [torch.int8, torch.int32, torch.int64, torch.uint8, torch.bool])
def test_integers_are_converted_exactly(dtype: torch.dtype) -> None:
    cost = (COST * 3).abs().to(dtype)
    check(solve(cost), cost.double().numpy())
    check(solve(cost.numpy()), cost.double().numpy())


def test_integers_that_float64_does_not_hold_are_refused() -> None:
    with pytest.raises(AssignmentError, match=r"2\^53"):
        solve(torch.tensor([[2**60 + 1, 2**60]]))


def test_other_containers() -> None:
    assert solve([[0.0, 1.0], [1.0, 0.0]]).permutation.tolist() == [1, 0]
    assert solve(np.array([[0.0, 1.0], [1.0, 0.0]], np.float16)).value == 2
    swapped = np.array([[0.0, 1.0], [1.0, 0.0]]).astype(">f8")
    assert solve(swapped).value == 2
    frozen = COST.numpy().copy()
    frozen.flags.writeable = False
    check(solve(frozen), frozen)


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x.T,
        lambda x: x[::2],
        lambda x: x[:, ::2],
        lambda x: x[5:25, 7:37],
        lambda x: x[5:35, 7:27],
        lambda x: x.T[3:, 5:],
        lambda x: x[:1].expand(40, 40),
        lambda x: x[:, :1].expand(40, 40),
        lambda x: x.flip(0),
        lambda x: x.reshape(40, 20, 2)[:, :, 1],
        lambda x: x[:, :0],
    ],
)
@pytest.mark.parametrize("maximize", [True, False])
def test_layouts(view: Any, maximize: bool) -> None:
    cost = view(COST)
    before = cost.clone()
    best = solve(cost, maximize)
    check(best, cost.numpy().copy(), maximize)
    check(solve(cost, maximize, warm=best.duals), cost.numpy().copy(), maximize)
    assert torch.equal(cost, before), "the cost was written to"
    check(solve(COST.numpy()[::-1]), COST.numpy()[::-1].copy())


def test_rows_are_read_in_place() -> None:
    for cost in (COST, COST.T, COST[5:25, 3:], COST.double()):
        assert np.shares_memory(prepare(cost, 2, "it").array, cost.numpy())


def test_gradients_do_not_flow() -> None:
    cost = COST.clone().requires_grad_()
    best = solve(cost)
    check(best, COST.numpy())
    assert not best.permutation.requires_grad and not best.duals.columns.requires_grad


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_the_bad_entry_is_named(bad: float, transpose: bool, dtype: torch.dtype) -> None:
    cost = COST.to(dtype)[:, :30].clone()
    cost[7, 21] = bad
    where = "row 21, column 7" if transpose else "row 7, column 21"
    with pytest.raises(AssignmentError, match=f"is {bad} at {where}") as raised:
        solve(cost.T if transpose else cost)
    assert isinstance(raised.value, CosetError) and "\n" not in str(raised.value)


def test_the_other_infinity_when_minimizing() -> None:
    cost = COST.clone()
    cost[0, 1] = -float("inf")
    with pytest.raises(AssignmentError, match="-inf at row 0, column 1"):
        solve(cost, maximize=False)


def test_float64_that_would_overflow_is_refused() -> None:
    with pytest.raises(AssignmentError, match="row 0, column 1"):
        solve(np.array([[0.0, 1e300], [0.0, 0.0]]))


@pytest.mark.parametrize("maximize", [True, False])
@pytest.mark.parametrize("shape", [(40, 40), (30, 40), (40, 30), (300, 300)])
def test_forbidden_pairs(maximize: bool, shape: tuple[int, int]) -> None:
    rng = np.random.default_rng(1)
    cost = rng.standard_normal(shape).astype(np.float32)
    cost[rng.random(shape) < 0.8] = -np.inf if maximize else np.inf
    best = solve(cost, maximize)
    matched = best.permutation.numpy() >= 0
    assert np.isfinite(cost[matched, best.permutation.numpy()[matched]]).all()
    assert abs(best.value - scipy_value(cost, maximize)) <= 1e-9 and 0 <= best.gap <= 1e-6


def test_only_one_matching_is_allowed() -> None:
    cost = np.full((50, 50), -np.inf)
    p = np.random.default_rng(2).permutation(50)
    cost[np.arange(50), p] = 0
    assert (solve(cost).permutation.numpy() == p).all()


@pytest.mark.parametrize("shape", [(3, 3), (2, 3), (3, 2)])
def test_too_many_forbidden(shape: tuple[int, int]) -> None:
    cost = np.zeros(shape)
    cost[:2, :2] = [[-np.inf, 0], [-np.inf, 0]]
    cost[:, 0] = cost[:, 0] if shape == (2, 3) else -np.inf
    cost[:2, 2:] = -np.inf
    with pytest.raises(AssignmentError, match="no complete matching"):
        solve(cost)


@pytest.mark.parametrize(
    ("cost", "words"),
    [
        (torch.zeros(3), r"shape \(3,\)"),
        (torch.zeros(2, 3, 3), r"shape \(2, 3, 3\)"),
        (torch.zeros(2, 2, dtype=torch.complex64), "complex64"),
        (torch.zeros(2, 2).to_sparse(), "sparse"),
        (np.zeros((2, 2), np.complex128), "complex128"),
        (np.array([["a", "b"]]), "type"),
    ],
)
def test_refused(cost: Any, words: str) -> None:
    with pytest.raises(AssignmentError, match=words):
        solve(cost)


def test_duals_of_another_shape_are_refused() -> None:
    duals = solve(COST).duals
    with pytest.raises(AssignmentError, match="40 x 30"):
        solve(COST[:, :30], warm=duals)
    with pytest.raises(AssignmentError, match="permutation"):
        solve(COST, warm=Duals(duals.rows, duals.columns, duals.permutation[:3]))
