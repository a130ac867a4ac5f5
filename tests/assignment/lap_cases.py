"""Cost matrices of many kinds, and what every solution must satisfy."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from coset.assignment import Assignment

Array = NDArray[np.floating]
Maker = Callable[[np.random.Generator, int, int], Array]


def low_rank(rng: np.random.Generator, n: int, m: int) -> Array:
    """A spectrum that falls like that of a trained layer."""
    spectrum = np.arange(1, min(n, m) + 1) ** -1.0
    return (rng.standard_normal((n, len(spectrum))) * spectrum) @ (rng.standard_normal((m, len(spectrum))) * spectrum).T


FAMILIES: dict[str, Maker] = {
    "uniform": lambda rng, n, m: rng.random((n, m)),
    "gauss": lambda rng, n, m: rng.standard_normal((n, m)),
    "low rank": low_rank,
    "rank one": lambda rng, n, m: rng.standard_normal((n, 1)) * rng.standard_normal((1, m)),
    "ties": lambda rng, n, m: rng.integers(0, 3, (n, m)).astype(float),
    "constant": lambda rng, n, m: np.full((n, m), -2.5),
    "zero": lambda rng, n, m: np.zeros((n, m)),
    "huge": lambda rng, n, m: rng.standard_normal((n, m)) * 1e30,
    "tiny": lambda rng, n, m: rng.standard_normal((n, m)) * 1e-30,
    "far from zero": lambda rng, n, m: rng.standard_normal((n, m)) + 1e4,
    "equal rows": lambda rng, n, m: np.repeat(rng.standard_normal((1, m)), n, axis=0),
    "few distinct rows": lambda rng, n, m: rng.standard_normal((3, m))[rng.integers(0, 3, n)],
    "rows of all scales": lambda rng, n, m: rng.standard_normal((n, m)) * np.exp(4 * rng.standard_normal((n, 1))),
    "columns of all scales": lambda rng, n, m: rng.standard_normal((n, m)) * np.exp(4 * rng.standard_normal((1, m))),
    "sparse": lambda rng, n, m: rng.random((n, m)) * (rng.random((n, m)) < 3 / m),
    "products": lambda rng, n, m: np.outer(np.arange(n), np.arange(m)) / m,
    "near the identity": lambda rng, n, m: np.eye(n, m) + 0.3 * rng.standard_normal((n, m)),
}


def scipy_value(cost: Array, maximize: bool = True) -> float:
    rows, columns = linear_sum_assignment(cost, maximize=maximize)
    return float(cost[rows, columns].sum(dtype=np.float64))


def scale(cost: Array) -> float:
    """The size of a sum of entries, to which rounding is relative."""
    return float(np.abs(cost).max(initial=0.0)) * max(min(cost.shape), 1)


def check(solution: Assignment, cost: Array, maximize: bool = True) -> None:
    """A matching that is optimal by scipy's account, and by its own duals, looked at from outside."""
    n, m = cost.shape
    permutation = solution.permutation.numpy()
    rounding = 1e-12 * scale(cost)
    assert solution.permutation.dtype == torch.int64 and permutation.shape == (n,)
    matched = permutation >= 0
    assert matched.sum() == min(n, m) and len(set(permutation[matched])) == min(n, m)
    assert permutation.max(initial=-1) < m and permutation.min(initial=0) >= -1
    entries = cost[matched, permutation[matched]].astype(np.float64)
    assert abs(solution.value - entries.sum()) <= rounding
    assert abs(solution.value - scipy_value(cost, maximize)) <= rounding
    assert 0 <= solution.gap <= rounding
    u, v = solution.duals.rows.numpy(), solution.duals.columns.numpy()
    slack = (u[:, None] + v[None] - cost.astype(np.float64)) * (1 if maximize else -1)
    assert slack.min(initial=0.0) >= -rounding, "the duals are not feasible"
    assert abs(u.sum() + v.sum() - solution.value) <= 100 * rounding, "the duals do not prove the value"
    # A row or column that is left over must not count: its potential may only loosen the bound.
    sign = 1 if maximize else -1
    if n < m:
        assert (v * sign).min(initial=0.0) >= -rounding
    if n > m:
        assert (u * sign).min(initial=0.0) >= -rounding
