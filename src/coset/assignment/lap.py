"""Linear assignment: `max_p sum_i cost[i, p(i)]` over matchings p, exactly and with a proof, by a compiled kernel."""

from __future__ import annotations

import ctypes
import functools
import logging
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coset.assignment import auction
from coset.core.errors import AssignmentError
from coset.core.show import Shown, Table

Matrix = Tensor | NDArray[Any] | Sequence[Sequence[float]]
SHOWN = 10  # columns of a permutation that a repr lists

VARIANTS = {"baseline": 0, "avx2": 1, "avx512": 2}
SCIPY = "scipy"
HOW = "run `python -m coset.assignment.build`, which needs a C++ compiler"

# struct Problem of kernel/problem.h
PROBLEM = np.dtype(
    [
        ("cost", np.int64),
        ("stride", np.int64),
        ("match", np.int64),
        ("row_duals", np.int64),
        ("column_duals", np.int64),
        ("value", np.float64),
        ("gap", np.float64),
        ("rows", np.int32),
        ("columns", np.int32),
        ("is_double", np.int32),
        ("maximize", np.int32),
        ("warm", np.int32),
        ("status", np.int32),
    ]
)
OUT_OF_MEMORY = 2
LARGEST = 1e290  # of float64 entries: sums of them must not overflow


@dataclass(frozen=True, repr=False)
class Duals(Shown):
    """Potentials that prove a matching optimal, to start the next solve from; all on the CPU.

    When maximizing, `u_i + v_j >= cost_ij` everywhere, so `u.sum() + v.sum()` bounds the value of any matching from
    above; when minimizing, all is reversed.

    Args:
        rows: u `[rows]` in float64; of a batch each field has a leading dimension.
        columns: v `[columns]` in float64.
        permutation: int64 `[rows]`, the matching they belong to.

    Example:
        >>> duals = coset.assignment.solve(torch.eye(3)).duals
        >>> float(duals.rows.sum() + duals.columns.sum())
        3.0
    """

    rows: Tensor
    columns: Tensor
    permutation: Tensor

    def _shown(self) -> Table:
        shapes = " x ".join(str(n) for n in (*self.rows.shape[:-1], self.rows.shape[-1], self.columns.shape[-1]))
        return Table(f"Duals of {shapes}", [("bound", float(self.rows.sum() + self.columns.sum()))])


@dataclass(frozen=True, repr=False)
class Assignment(Shown):
    """An optimal matching, as `coset.assignment.solve` returns it; unpacks as its fields.

    Args:
        permutation: int64 `[rows]`, the column of each row, -1 for a row that has none; on the device of the cost.
        duals: Give them as `warm` to the next solve.
        gap: How far the value can be from the optimum at most, certified by the duals; zero up to rounding.
        value: The sum of `cost[i, permutation[i]]` in float64.

    Example:
        >>> coset.assignment.solve([[4.0, 1.0], [2.0, 0.0]]).value
        4.0
    """

    permutation: Tensor
    duals: Duals
    gap: float
    value: float

    def __iter__(self) -> Iterator[Any]:
        return iter((self.permutation, self.duals, self.gap, self.value))

    def _shown(self) -> Table:
        first = self.permutation[:SHOWN].tolist()
        more = f", ... and {len(self.permutation) - SHOWN} more" if len(self.permutation) > SHOWN else ""
        rows = [("value", self.value), ("gap", self.gap), ("columns of the rows", ", ".join(map(str, first)) + more)]
        return Table(f"Assignment of {self.duals.rows.shape[-1]} x {self.duals.columns.shape[-1]}", rows)


@dataclass(frozen=True, repr=False)
class Assignments(Shown):
    """The matchings of a batch, as `coset.assignment.solve_many` returns them: `Assignment` with a leading dimension.

    Args:
        permutation: int64 `[batch, rows]`, on the device of the costs.
        duals: Give them as `warm` to the next solve of such a batch.
        gap: `[batch]` in float64.
        value: `[batch]` in float64.

    Example:
        >>> coset.assignment.solve_many(torch.eye(3).expand(5, 3, 3)).value.sum()
        tensor(15., dtype=torch.float64)
    """

    permutation: Tensor
    duals: Duals
    gap: Tensor
    value: Tensor

    def __iter__(self) -> Iterator[Any]:
        return iter((self.permutation, self.duals, self.gap, self.value))

    def _shown(self) -> Table:
        sizes = f"{self.duals.rows.shape[-1]} x {self.duals.columns.shape[-1]}"
        count = len(self.value)
        values = f"{float(self.value.min()):.6g} to {float(self.value.max()):.6g}" if count else "none"
        gap = float(self.gap.max()) if count else 0.0
        return Table(f"{count:,} assignments of {sizes}", [("values", values), ("largest gap", gap)])


def solve(cost: Matrix, maximize: bool = True, warm: Duals | None = None) -> Assignment:
    """The matching of rows and columns with the largest (or smallest) sum of `cost[i, p(i)]`, exactly.

    Every row gets a column of its own, or every column a row if there are more rows. Costs in float32 or float64 are
    read where they lie, others are converted. No gradient flows through. A large square cost on a GPU gets its first
    prices there.

    Args:
        cost: `[rows, columns]`. `-inf` forbids a pair when maximizing, `inf` when minimizing.
        maximize: Whether the largest sum is looked for.
        warm: The duals of an earlier solve of the same shape: the more alike the costs, the faster. The answer is
            exact in any case.

    Returns:
        The matching, its value, the certified gap, and the duals for the next solve.

    Raises:
        AssignmentError: If the cost is not a real matrix, has NaN, or forbids every matching.

    Example:
        >>> cost = torch.tensor([[4.0, 1.0, 3.0], [2.0, 0.0, 5.0], [3.0, 2.0, 2.0]])
        >>> coset.assignment.solve(cost).permutation
        tensor([0, 2, 1])
    """
    if warm is None and isinstance(cost, Tensor) and cost.is_cuda and auction.worthwhile(cost):
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
    """Solve many problems in one call of the kernel.

    Args:
        costs: A tensor `[batch, rows, columns]`, or a sequence of matrices of any shapes.
        maximize: Whether the largest sums are looked for.
        warm: The duals of an earlier call: those of its `Assignments`, or of a sequence one each, None for a cold
            start.
        threads: How many to use; by default all cores.

    Returns:
        For a tensor one `Assignments` of tensors: with thousands of small problems, an object for each would take
        longer than solving them. For a sequence a list of `Assignment`.

    Raises:
        AssignmentError: As `solve` does, with the number of the cost.

    Example:
        >>> coset.assignment.solve_many(torch.rand(100, 5, 5)).permutation.shape
        torch.Size([100, 5])
    """
    threads = _cores() if threads is None else threads
    if threads < 1:
        raise AssignmentError(f"There are {threads} threads to solve with; give at least 1.")
    if isinstance(costs, Tensor | np.ndarray):
        if not (warm is None or isinstance(warm, Duals)):
            raise AssignmentError("A batch of costs starts from the Duals of a batch, not from a sequence of them.")
        batch = _solve([prepare(costs, 3, "The batch of costs")], maximize, [warm], threads)[0]
        return replace(batch, permutation=batch.permutation.to(_device(costs)))
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
            one.permutation[0].to(_device(cost)),
            Duals(one.duals.rows[0], one.duals.columns[0], one.duals.permutation[0]),
            float(one.gap[0]),
            float(one.value[0]),
        )
        for cost, one in zip(costs, _solve(prepared, maximize, starts, threads), strict=True)
    ]


def _solve(costs: list[CostMatrix], maximize: bool, warm: Sequence[Duals | None], threads: int) -> list[Assignments]:
    """One result for each cost, on the CPU, its fields with a leading batch dimension."""
    batches = [form(cost, maximize, start) for cost, start in zip(costs, warm, strict=True)]
    _run(batches, maximize, threads)
    for k, cost in enumerate(costs):
        if batches[k].refused.any():
            batches[k] = form(CostMatrix(allowed(cost, maximize), cost.swapped, cost.name), maximize, warm[k])
            _run([batches[k]], maximize, threads)
            _refuse_forbidden(cost, batches[k])
    return [_result(cost, batch, maximize) for cost, batch in zip(costs, batches, strict=True)]


def _run(batches: list[Batch], maximize: bool, threads: int) -> None:
    variant = kernel()
    if variant == SCIPY:
        _run_scipy(batches, maximize)
    else:
        _run_compiled(batches, maximize, threads, variant)


def _refuse_forbidden(cost: CostMatrix, batch: Batch) -> None:
    entries = np.take_along_axis(cost.array, batch.match[:, :, None], axis=2)
    if np.isinf(entries).any():
        raise AssignmentError(f"{cost.name} forbids so many pairs, by an infinity, that no complete matching is left.")


def _result(cost: CostMatrix, batch: Batch, maximize: bool) -> Assignments:
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


@dataclass(frozen=True)
class CostMatrix:
    """`array` is a view `[batch, rows, columns]` of the caller's numbers where possible, else a copy.

    swapped: rows and columns have changed places, because there were more rows or they were not contiguous.
    name: what messages call it.
    """

    array: NDArray[Any]
    swapped: bool
    name: str

    @property
    def shape(self) -> tuple[int, int, int]:
        """Problems, rows and columns before the swap."""
        count, rows, columns = self.array.shape
        return (count, columns, rows) if self.swapped else (count, rows, columns)


def prepare(cost: object, dims: int, name: str) -> CostMatrix:
    """Refuse what is not a real matrix (`dims` 2) or batch of them (`dims` 3), and bring it into the kernel's form."""
    array = _on_host(cost, name)
    if array.ndim != dims:
        expected = "a matrix [rows, columns]" if dims == 2 else "[batch, rows, columns]"
        raise AssignmentError(f"{name} has shape {array.shape}, but must be {expected}.")
    array = array[None] if dims == 2 else array
    rows, columns = array.shape[1:]
    item = array.itemsize
    swapped = rows > columns or (rows == columns and array.strides[1] == item != array.strides[2])
    if swapped:
        array = array.transpose(0, 2, 1)
    if array.strides[2] != item or array.strides[1] % item or not array.flags.aligned:
        array = np.ascontiguousarray(array)
    return CostMatrix(array, swapped, name)


def _on_host(cost: object, name: str) -> NDArray[Any]:
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


def _tensor_on_host(cost: Tensor, name: str) -> NDArray[Any]:
    cost = cost.detach()
    if cost.is_complex() or cost.layout != torch.strided or cost.is_quantized:
        raise AssignmentError(f"{name} is a tensor of {cost.dtype} and {cost.layout}; give a dense real one.")
    if not cost.is_floating_point():
        return _of_integers(cost.cpu().numpy(), name)
    if cost.dtype not in (torch.float32, torch.float64):
        cost = cost.float()
    return cost.cpu().resolve_neg().numpy()


def _of_integers(array: NDArray[Any], name: str) -> NDArray[Any]:
    exact = array.astype(np.float64)
    if array.dtype.itemsize == 8 and array.size and np.abs(exact).max() > 2**53:
        raise AssignmentError(f"{name} has integers beyond 2^53, which float64 does not hold; divide it first.")
    return exact


def allowed(cost: CostMatrix, maximize: bool) -> NDArray[Any]:
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


def form(cost: CostMatrix, maximize: bool, warm: Duals | None) -> Batch:
    """The problems of `cost`, to be solved from the duals `warm` or from nothing."""
    count, rows, columns = cost.array.shape
    match, column_duals = np.full((count, rows), -1), np.zeros((count, columns))
    if warm is not None:
        _refuse_shapes(cost, warm)
        start = warm.permutation.cpu().numpy()
        match[:] = permutations(start, rows) if cost.swapped else start
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


def _refuse_shapes(cost: CostMatrix, warm: Duals) -> None:
    count, rows, columns = cost.shape
    for name, tensor, expected in (
        ("rows", warm.rows, (count, rows)),
        ("columns", warm.columns, (count, columns)),
        ("permutation", warm.permutation, (count, rows)),
    ):
        if tuple(tensor.shape) != expected:
            raise AssignmentError(
                f"{cost.name} is {rows} x {columns}, but the {name} of the duals to start from are"
                f" {' x '.join(map(str, tensor.shape))}; start from a solve of the same shape."
            )


@dataclass(frozen=True)
class Batch:
    """`cost` `[batch, rows, columns]` with rows <= columns; duals are those of a minimisation, of -cost if need be.

    warm: whether `match` and `column_duals` hold an earlier solution to start from.
    refused: problems with an entry that is not finite, which are not solved.
    """

    cost: NDArray[Any]
    match: NDArray[np.int64]
    row_duals: NDArray[np.float64]
    column_duals: NDArray[np.float64]
    value: NDArray[np.float64]
    gap: NDArray[np.float64]
    refused: NDArray[np.bool_]
    warm: bool


def kernel() -> str:
    """The kernel in use: `avx512`, `avx2`, `baseline` or `scipy`; the environment's COSET_KERNEL, else the best."""
    name = os.environ.get("COSET_KERNEL", "")
    if name == SCIPY:
        return SCIPY
    if name and name not in VARIANTS:
        raise AssignmentError(f"COSET_KERNEL is {name!r}, but must be one of {', '.join([*VARIANTS, SCIPY])}.")
    library = _library()
    if library is None:
        if name:
            raise AssignmentError(f"COSET_KERNEL is {name!r}, but no kernel is built: {HOW}.")
        return SCIPY
    supported = [variant for variant, number in VARIANTS.items() if library.coset_supports(number)]
    if name and name not in supported:
        raise AssignmentError(f"COSET_KERNEL is {name!r}, but this processor only runs {', '.join(supported)}.")
    return name or supported[-1]


@functools.cache
def _library() -> ctypes.CDLL | None:
    """The library, or None, said once, if it is not built or not for this machine."""
    from coset.assignment import build  # not above: `python -m coset.assignment.build` would import it twice

    try:
        library = ctypes.CDLL(str(build.HERE / build.LIBRARY))
    except OSError as error:
        logging.getLogger("coset").warning("Assignments use scipy, which is slower: %s (%s).", HOW, error)
        return None
    library.coset_supports.argtypes = [ctypes.c_int32]
    library.coset_supports.restype = ctypes.c_int32
    library.coset_solve.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32, ctypes.c_int32]
    library.coset_solve.restype = None
    return library


def _run_compiled(batches: list[Batch], maximize: bool, threads: int, variant: str) -> None:
    """Solve all problems of all batches in one call, without the interpreter's lock; fills in the batches."""
    library = _library()
    assert library is not None
    table = np.concatenate([np.zeros(0, PROBLEM), *(_table(batch, maximize) for batch in batches)])
    library.coset_solve(table.ctypes.data, len(table), threads, VARIANTS[variant])
    if (table["status"] == OUT_OF_MEMORY).any():
        raise MemoryError("The assignment kernel got no memory.")
    start = 0
    for batch in batches:
        part = table[start : start + len(batch.cost)]
        batch.value[:], batch.gap[:], batch.refused[:] = part["value"], part["gap"], part["status"] != 0
        start += len(part)


def _table(batch: Batch, maximize: bool) -> NDArray[np.void]:
    count, rows, columns = batch.cost.shape
    table = np.zeros(count, PROBLEM)
    for field in ("cost", "match", "row_duals", "column_duals"):
        array = getattr(batch, field)
        table[field] = array.ctypes.data + np.arange(count) * array.strides[0]
    table["stride"] = batch.cost.strides[1] // batch.cost.itemsize
    table["rows"], table["columns"] = rows, columns
    table["is_double"] = batch.cost.dtype == np.float64
    table["maximize"], table["warm"] = maximize, batch.warm
    return table


def _run_scipy(batches: list[Batch], maximize: bool) -> None:
    """The same answers without a compiled kernel: scipy's matching, and duals from it; a warm start is not used."""
    from scipy.optimize import linear_sum_assignment

    for batch in batches:
        for k, cost in enumerate(batch.cost):
            lengths = cost.astype(np.float64)
            if not (np.abs(lengths) < LARGEST).all():
                batch.refused[k] = True
                continue
            _, match = linear_sum_assignment(cost, maximize=maximize)
            lengths = -lengths if maximize else lengths
            v = potentials(lengths, match)
            reduced = lengths - v
            u = reduced.min(axis=1)
            rows = np.arange(len(match))
            batch.match[k], batch.row_duals[k], batch.column_duals[k] = match, u, v
            batch.value[k] = cost[rows, match].sum(dtype=np.float64)
            batch.gap[k] = (reduced[rows, match] - u).sum() - np.delete(v, match).sum()


def potentials(cost: NDArray[Any], match: NDArray[np.int64]) -> NDArray[np.float64]:
    """Column potentials `v` that prove `match` `[rows]` optimal for `cost` `[rows, columns]`.

    A matched pair must be tight: `c_ij - v_j >= c_i,match[i] - v_match[i]`. So v are the distances of Bellman and Ford
    from all columns at once over edges match[i] -> j of length `c_ij - c_i,match[i]`, among which no cycle is negative
    since the matching is optimal. v <= 0, and v_j = 0 on columns that are left over.
    """
    v = np.zeros(cost.shape[1])
    edges = cost - np.take_along_axis(cost, match[:, None], axis=1)
    rounding = 1e-14 * max(np.abs(cost).max(initial=0.0), np.finfo(np.float64).tiny)
    for _ in range(cost.shape[1]):
        shorter = np.minimum(v, (v[match][:, None] + edges).min(axis=0, initial=0.0))
        if (v - shorter <= rounding).all():
            break
        v = shorter
    return v
