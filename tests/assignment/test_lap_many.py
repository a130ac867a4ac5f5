"""`solve_many` gives what a loop of `solve` gives."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from lap_cases import check

from coset.assignment import Assignments, solve, solve_many
from coset.core.errors import AssignmentError


@pytest.mark.parametrize("shape", [(50, 10, 10), (6, 40, 60), (6, 60, 40), (0, 3, 3), (4, 0, 0), (1, 70, 70)])
@pytest.mark.parametrize("maximize", [True, False])
@pytest.mark.parametrize("threads", [None, 1, 3])
def test_batch_is_a_loop(shape: tuple[int, int, int], maximize: bool, threads: int | None) -> None:
    costs = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    cold = solve_many(costs, maximize, threads=threads)
    assert cold.permutation.shape == shape[:2] and cold.gap.shape == cold.value.shape == shape[:1]
    warm = solve_many(costs, maximize, warm=cold.duals, threads=threads)
    for k, cost in enumerate(costs):
        alone = solve(cost, maximize)
        for batch in (cold, warm):
            assert torch.equal(batch.permutation[k], alone.permutation)
            assert torch.isclose(batch.value[k], torch.tensor(alone.value, dtype=torch.float64), rtol=1e-12)
        assert torch.equal(cold.duals.columns[k], alone.duals.columns)
        assert torch.equal(cold.duals.rows[k], alone.duals.rows)


def test_views_of_batches() -> None:
    costs = torch.randn(8, 12, 5, 9)
    for view in (
        costs[:, 3],
        costs.permute(1, 0, 2, 3)[2],
        costs[:, 0].transpose(1, 2),
        costs[:, 1, ::2],
        costs[0, :1].expand(6, 5, 9),
    ):
        batch = solve_many(view)
        for k, cost in enumerate(view):
            assert torch.equal(batch.permutation[k], solve(cost).permutation)


def test_a_list_of_shapes_and_dtypes() -> None:
    rng = np.random.default_rng(0)
    costs = [
        rng.standard_normal((n, m)).astype(t) for n, m, t in ((3, 3, "f4"), (5, 2, "f8"), (40, 50, "f4"), (0, 2, "f4"))
    ]
    every = solve_many([torch.from_numpy(cost) for cost in costs], threads=2)
    for cost, one in zip(costs, every, strict=True):
        check(one, cost)
    warm = solve_many(costs, warm=[one.duals for one in every])
    partly = solve_many(costs, warm=[every[0].duals, None, None, None])
    for cost, one, two in zip(costs, warm, partly, strict=True):
        check(one, cost)
        check(two, cost)
    assert solve_many([]) == []


def test_thousands_of_small_problems() -> None:
    costs = np.random.default_rng(1).integers(0, 5, (3000, 10, 10))
    batch = solve_many(costs)
    assert isinstance(batch, Assignments) and float(batch.gap.max()) == 0
    assert (np.sort(batch.permutation.numpy()) == np.arange(10)).all()
    entries = np.take_along_axis(costs, batch.permutation.numpy()[:, :, None], axis=2)
    assert (entries.sum(axis=(1, 2)) == batch.value.numpy()).all()


def test_errors_name_the_problem() -> None:
    costs = torch.zeros(4, 3, 3)
    costs[2, 1, 0] = float("nan")
    with pytest.raises(AssignmentError, match="problem 2, row 1, column 0"):
        solve_many(costs)
    with pytest.raises(AssignmentError, match="Cost 2 is nan at row 1, column 0"):
        solve_many(list(costs))


def test_forbidden_pairs_in_some() -> None:
    costs = torch.randn(5, 8, 8)
    costs[3, :4, :4] = -float("inf")
    batch = solve_many(costs)
    for k, cost in enumerate(costs):
        assert torch.isclose(batch.value[k], torch.tensor(solve(cost).value, dtype=torch.float64))
    costs[3, :5, :4] = -float("inf")
    with pytest.raises(AssignmentError, match="no complete matching"):
        solve_many(costs)


def test_refused() -> None:
    cost = torch.randn(3, 4, 4)
    with pytest.raises(AssignmentError, match="threads"):
        solve_many(cost, threads=0)
    with pytest.raises(AssignmentError, match="shape"):
        solve_many(cost[0])
    with pytest.raises(AssignmentError, match="3 costs"):
        solve_many(list(cost), warm=[None])
    with pytest.raises(AssignmentError, match="batch"):
        solve_many(cost, warm=[None] * 3)  # type: ignore[call-overload]
