"""Problems of one shape and what is found for them: plain arrays, which the kernel fills in."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from coset.assignment.costs import Array, Cost
from coset.assignment.errors import AssignmentError
from coset.assignment.result import Duals


@dataclass(frozen=True)
class Batch:
    """`cost` `[batch, rows, columns]` with rows <= columns; duals are those of a minimisation, of -cost if need be.

    warm: whether `match` and `column_duals` hold an earlier solution to start from.
    refused: problems with an entry that is not finite, which are not solved.
    """

    cost: Array
    match: NDArray[np.int64]
    row_duals: NDArray[np.float64]
    column_duals: NDArray[np.float64]
    value: NDArray[np.float64]
    gap: NDArray[np.float64]
    refused: NDArray[np.bool_]
    warm: bool


def form(cost: Cost, maximize: bool, warm: Duals | None) -> Batch:
    """The problems of `cost`, to be solved from the duals `warm` or from nothing."""
    count, rows, columns = cost.array.shape
    match, column_duals = np.full((count, rows), -1), np.zeros((count, columns))
    if warm is not None:
        _refuse_shapes(cost, warm)
        given = warm.permutation.cpu().numpy()
        match[:] = permutations(given, rows) if cost.swapped else given
        column_duals[:] = (warm.rows if cost.swapped else warm.columns).cpu().numpy()
        if maximize:
            np.negative(column_duals, out=column_duals)
    return Batch(
        cost=cost.array,
        match=match,
        row_duals=np.zeros((count, rows)),
        column_duals=column_duals,
        value=np.zeros(count),
        gap=np.zeros(count),
        refused=np.zeros(count, np.bool_),
        warm=warm is not None,
    )


def permutations(match: NDArray[np.int64], columns: int) -> NDArray[np.int64]:
    """The row of each column `[batch, columns]` from the column of each row `[batch, rows]`; -1 where there is none."""
    rows_of = np.full((len(match), columns), -1)
    batch, row = np.nonzero((match >= 0) & (match < columns))
    rows_of[batch, match[batch, row]] = row
    return rows_of


def _refuse_shapes(cost: Cost, warm: Duals) -> None:
    count, rows, columns = cost.given_shape
    for name, tensor, wanted in (
        ("rows", warm.rows, (count, rows)),
        ("columns", warm.columns, (count, columns)),
        ("permutation", warm.permutation, (count, rows)),
    ):
        if tuple(tensor.shape) != wanted:
            raise AssignmentError(
                f"{cost.name} is {rows} x {columns}, but the {name} of the duals to start from are"
                f" {' x '.join(map(str, tensor.shape))}; start from a solve of the same shape."
            )
