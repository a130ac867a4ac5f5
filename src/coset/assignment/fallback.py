"""The same answers without a compiled kernel: scipy's matching, and duals from it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from coset.assignment.native import LARGEST, Batch


def solve(batches: list[Batch], maximize: bool) -> None:
    """Fill in the batches, one problem after the other; a warm start is not used."""
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
