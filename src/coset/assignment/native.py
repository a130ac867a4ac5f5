"""The compiled kernel, called through ctypes on plain arrays; which one is chosen, and what to do without it."""

from __future__ import annotations

import ctypes
import functools
import logging
import os
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coset.core.errors import AssignmentError

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


def solve(batches: list[Batch], maximize: bool, threads: int, variant: str) -> None:
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
