"""Problems of one shape and what is found for them: plain arrays, which the kernel fills in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coset.core.errors import AssignmentError


@dataclass(frozen=True)
class Duals:
    """Potentials u `[rows]` and v `[columns]` in float64, and the matching they were found with; all on the CPU.

    When maximizing, `u_i + v_j >= cost_ij` everywhere, so `u.sum() + v.sum()` bounds the value of any matching from
    above; when minimizing, all is reversed. In a batch each has a leading dimension.
    """

    rows: Tensor
    columns: Tensor
    permutation: Tensor


class Assignment(NamedTuple):
    """An optimal matching.

    permutation: int64 `[rows]`, the column of each row, -1 for a row left out; on the device of the cost.
    duals: give them as `warm` to the next solve.
    gap: how far the value can be from the optimum at most, certified by the duals; zero up to rounding.
    value: the sum of `cost[i, permutation[i]]` in float64.
    """

    permutation: Tensor
    duals: Duals
    gap: float
    value: float


class Assignments(NamedTuple):
    """The matchings of a batch: the fields of `Assignment` with a leading dimension."""

    permutation: Tensor
    duals: Duals
    gap: Tensor
    value: Tensor


Array = NDArray[Any]
LARGEST = 1e290  # of float64 entries: sums of them must not overflow


@dataclass(frozen=True)
class Cost:
    """`array` is a view `[batch, rows, columns]` of what was given where possible, else a copy.

    swapped: rows and columns have changed places, because there were more rows or they were not contiguous.
    name: what messages call it.
    """

    array: Array
    swapped: bool
    name: str

    @property
    def given_shape(self) -> tuple[int, int, int]:
        """Problems, rows and columns before the swap."""
        count, rows, columns = self.array.shape
        return (count, columns, rows) if self.swapped else (count, rows, columns)


def prepare(cost: object, dims: int, name: str) -> Cost:
    """Refuse what is not a real matrix (`dims` 2) or batch of them (`dims` 3), and bring it into the kernel's form."""
    array = _on_host(cost, name)
    if array.ndim != dims:
        wanted = "a matrix [rows, columns]" if dims == 2 else "[batch, rows, columns]"
        raise AssignmentError(f"{name} has shape {array.shape}, but must be {wanted}.")
    array = array[None] if dims == 2 else array
    rows, columns = array.shape[1:]
    item = array.itemsize
    swapped = rows > columns or (rows == columns and array.strides[1] == item != array.strides[2])
    if swapped:
        array = array.transpose(0, 2, 1)
    if array.strides[2] != item or array.strides[1] % item or not array.flags.aligned:
        array = np.ascontiguousarray(array)
    return Cost(array, swapped, name)


def _on_host(cost: object, name: str) -> Array:
    if isinstance(cost, Tensor):
        return _tensor_on_host(cost, name)
    array = np.asarray(cost)
    if array.dtype.kind in "iub":
        return _of_integers(array, name)
    if array.dtype == np.float16:
        return array.astype(np.float32)
    if array.dtype.kind != "f" or array.dtype.itemsize > 8:
        raise AssignmentError(f"{name} is of type {array.dtype}; give real numbers, at most float64.")
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def _tensor_on_host(cost: Tensor, name: str) -> Array:
    cost = cost.detach()
    if cost.is_complex() or cost.layout != torch.strided or cost.is_quantized:
        raise AssignmentError(f"{name} is a tensor of {cost.dtype} and {cost.layout}; give a dense real one.")
    if not cost.is_floating_point():
        return _of_integers(cost.cpu().numpy(), name)
    if cost.dtype not in (torch.float32, torch.float64):
        cost = cost.float()
    return cost.cpu().resolve_neg().numpy()


def _of_integers(array: Array, name: str) -> Array:
    exact = array.astype(np.float64)
    if array.dtype.itemsize == 8 and array.size and np.abs(exact).max() > 2**53:
        raise AssignmentError(f"{name} has integers beyond 2^53, which float64 does not hold; divide it first.")
    return exact


def allowed(cost: Cost, maximize: bool) -> Array:
    """The array with forbidden entries, infinitely bad, made finite but worse than any matching without them.

    NaN and the other infinity are refused, and so are finite entries too large to be added up.
    """
    worst = -np.inf if maximize else np.inf
    array = cost.array.astype(np.float64)
    forbidden = array == worst
    refused = ~(np.abs(array) < LARGEST) & ~forbidden
    if refused.any():
        problem, *place = np.argwhere(refused)[0]
        row, column = reversed(place) if cost.swapped else place
        where = f"problem {problem}, " if len(array) > 1 else ""
        raise AssignmentError(
            f"{cost.name} is {array[refused][0]} at {where}row {row}, column {column}; entries must be finite, below"
            f" {LARGEST:.0e} in size, or {worst} to forbid a pair."
        )
    array[forbidden] = 0
    penalty = 2.0 * (array.shape[1] + 1) * (np.abs(array).max() or 1.0)
    array[forbidden] = -penalty if maximize else penalty
    return array


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
