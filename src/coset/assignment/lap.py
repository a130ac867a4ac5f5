"""Linear assignment: `max_p sum_i cost[i, p(i)]` over matchings p, exactly, and with a proof."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coset.assignment import auction, fallback, native
from coset.assignment.problem import Assignment, Assignments, Batch, Cost, Duals, allowed, form, permutations, prepare
from coset.core.errors import AssignmentError

Matrix = Tensor | NDArray[Any] | Sequence[Sequence[float]]


def solve(cost: Matrix, maximize: bool = True, warm: Duals | None = None) -> Assignment:
    """The matching of rows and columns with the largest (or smallest) sum of `cost` `[rows, columns]`.

    Every row gets a column of its own, or every column a row if there are more rows. `-inf` forbids a pair when
    maximizing, `inf` when minimizing. `warm` are the duals of an earlier solve of the same shape: the more alike the
    costs, the faster; the answer is exact in any case. Costs in float32 or float64 are read where they lie, others
    are converted. No gradient flows through. A large square cost on a GPU gets its first prices there.
    """
    if warm is None and isinstance(cost, Tensor) and auction.worthwhile(cost):
        warm = start_from(auction.prices(cost, maximize))
    return _solve_list([cost], maximize, [warm], threads=1)[0]


def start_from(prices: Tensor) -> Duals:
    """A warm start from column potentials `[n]` of a square cost alone."""
    return Duals(torch.zeros_like(prices), prices, torch.full(prices.shape, -1))


@overload
def solve_many(
    costs: Tensor | NDArray[Any], maximize: bool = True, warm: Duals | None = None, threads: int | None = None
) -> Assignments: ...


@overload
def solve_many(
    costs: Sequence[Matrix],
    maximize: bool = True,
    warm: Sequence[Duals | None] | None = None,
    threads: int | None = None,
) -> list[Assignment]: ...


def solve_many(
    costs: Tensor | NDArray[Any] | Sequence[Matrix],
    maximize: bool = True,
    warm: Duals | Sequence[Duals | None] | None = None,
    threads: int | None = None,
) -> Assignments | list[Assignment]:
    """Solve many problems in one call of the kernel, over `threads` threads: by default all cores.

    A tensor `[batch, rows, columns]` gives one `Assignments` of tensors, and takes its duals back as `warm`: with
    thousands of small problems, making an object for each would take longer than solving them. A sequence of
    matrices of any shapes gives a list of `Assignment`, and takes a sequence of duals.
    """
    threads = _cores() if threads is None else threads
    if threads < 1:
        raise AssignmentError(f"There are {threads} threads to solve with; give at least 1.")
    if isinstance(costs, Tensor | np.ndarray):
        if not (warm is None or isinstance(warm, Duals)):
            raise AssignmentError("A batch of costs starts from the Duals of a batch, not from a sequence of them.")
        found = _solve([prepare(costs, 3, "The batch of costs")], maximize, [warm], threads)[0]
        return found._replace(permutation=found.permutation.to(_device(costs)))
    starts = [None] * len(costs) if warm is None else warm
    if isinstance(starts, Duals) or len(starts) != len(costs):
        raise AssignmentError(f"There are {len(costs)} costs; give as many Duals to start from, None for a cold start.")
    return _solve_list(costs, maximize, starts, threads)


def _solve_list(
    costs: Sequence[Matrix], maximize: bool, warm: Sequence[Duals | None], threads: int
) -> list[Assignment]:
    names = ["The cost"] if len(costs) == 1 else [f"Cost {k}" for k in range(len(costs))]
    prepared = [prepare(cost, 2, name) for cost, name in zip(costs, names, strict=True)]
    starts = [start and Duals(start.rows[None], start.columns[None], start.permutation[None]) for start in warm]
    return [
        Assignment(
            found.permutation[0].to(_device(cost)),
            Duals(found.duals.rows[0], found.duals.columns[0], found.duals.permutation[0]),
            float(found.gap[0]),
            float(found.value[0]),
        )
        for cost, found in zip(costs, _solve(prepared, maximize, starts, threads), strict=True)
    ]


def _solve(costs: list[Cost], maximize: bool, warm: Sequence[Duals | None], threads: int) -> list[Assignments]:
    """One result for each cost, on the CPU, its fields with a leading batch dimension."""
    batches = [form(cost, maximize, start) for cost, start in zip(costs, warm, strict=True)]
    _run(batches, maximize, threads)
    for k, cost in enumerate(costs):
        if batches[k].refused.any():
            batches[k] = form(Cost(allowed(cost, maximize), cost.swapped, cost.name), maximize, warm[k])
            _run([batches[k]], maximize, threads)
            _refuse_forbidden(cost, batches[k])
    return [_result(cost, batch, maximize) for cost, batch in zip(costs, batches, strict=True)]


def _run(batches: list[Batch], maximize: bool, threads: int) -> None:
    kernel = native.kernel()
    if kernel == native.SCIPY:
        fallback.solve(batches, maximize)
    else:
        native.solve(batches, maximize, threads, kernel)


def _refuse_forbidden(cost: Cost, batch: Batch) -> None:
    taken = np.take_along_axis(cost.array, batch.match[:, :, None], axis=2)
    if np.isinf(taken).any():
        raise AssignmentError(f"{cost.name} forbids so many pairs, by an infinity, that no complete matching is left.")


def _result(cost: Cost, batch: Batch, maximize: bool) -> Assignments:
    sign = -1 if maximize else 1
    rows, columns = sign * batch.row_duals, sign * batch.column_duals
    permutation = permutations(batch.match, batch.cost.shape[2]) if cost.swapped else batch.match
    if cost.swapped:
        rows, columns = columns, rows
    duals = Duals(torch.from_numpy(rows), torch.from_numpy(columns), torch.from_numpy(permutation))
    return Assignments(duals.permutation, duals, torch.from_numpy(batch.gap), torch.from_numpy(batch.value))


def _device(cost: object) -> torch.device:
    return cost.device if isinstance(cost, Tensor) else torch.device("cpu")


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
