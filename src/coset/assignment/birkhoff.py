"""The Birkhoff-von Neumann decomposition: a doubly stochastic matrix as a mixture of permutations, to draw from."""

import math
from bisect import bisect_left
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.sparse.csgraph import maximum_bipartite_matching
from torch import Tensor

from coset.assignment.sinkhorn import in_double
from coset.core.errors import AssignmentError

Array = NDArray[Any]


class Birkhoff(NamedTuple):
    """matrix = sum_k weights[k] P_k + residual, where P_k has ones at [i, permutations[k, i]].

    weights: `[terms]`, positive and falling. permutations: int64 `[terms, n]`. residual: `[n, n]`, not negative up to
    the tolerance. All on the device of the matrix, and weights and residual of its dtype.
    """

    weights: Tensor
    permutations: Tensor
    residual: Tensor


def birkhoff(matrix: Tensor, terms: int | None = None, tolerance: float = 1e-5) -> Birkhoff:
    """Write a doubly stochastic matrix as a convex combination of permutation matrices.

    matrix
        `[n, n]`, whose entries are at least -tolerance and whose rows and columns sum to one within it
    terms
        how many permutations to find at most; by default as many as it takes, which is at most (n - 1)^2 + 1

    Greedy: each step takes the permutation whose smallest entry in what is left is largest, with that entry as its
    weight. The fewest terms are NP-hard to find, and this takes few in practice (Dufossé and Uçar 2016). A full
    decomposition has weights that sum to one, and a residual of zero, as exactly as the matrix is doubly stochastic.
    No gradient flows through.

    tatro2020 Eq. 54 takes the permutation of largest sum instead. Ten terms then hold less of the matrix: for 0.7 of a
    permutation and 0.3 of a random matrix 88 % instead of 92 % at n = 16 and 76 % instead of 84 % at n = 64; for a
    permutation with noise of 0.1 in each entry, projected, 83 % instead of 93 % at n = 64.
    """
    left = _checked(matrix, tolerance)
    n = len(left)
    limit = max(n - 1, 0) ** 2 + 1
    if terms is not None:
        if terms < 0:
            raise AssignmentError(f"{terms} terms are asked for, give a number that is not negative.")
        limit = min(terms, limit)
    noise = torch.finfo(matrix.dtype).eps
    rows = np.arange(n)
    weights: list[float] = []
    permutations: list[Array] = []
    while len(weights) < limit:
        permutation = _bottleneck(left, noise)
        if permutation is None:
            break
        weight = float(left[rows, permutation].min(initial=1.0))
        left[rows, permutation] -= weight
        weights.append(weight)
        permutations.append(permutation)
    return Birkhoff(
        torch.tensor(weights, dtype=matrix.dtype, device=matrix.device),
        torch.from_numpy(np.array(permutations, dtype=np.int64).reshape(len(weights), n)).to(matrix.device),
        torch.from_numpy(left).to(matrix),
    )


def sample_birkhoff(matrix: Tensor, samples: int, terms: int = 10, generator: torch.Generator | None = None) -> Tensor:
    """Draw permutations from the first `terms` terms of the decomposition, with weights renormalized (tatro2020 E.4).

    matrix
        doubly stochastic, `[..., n, n]`; each one of the batch is decomposed and drawn from by itself

    Returns int64 `[samples, ..., n]`, on the device of the matrix. The first term need not be the permutation nearest
    to the matrix, which `solve` finds. What `alternate_projections` returns is not doubly stochastic enough: end with
    `project_doubly_stochastic`.
    """
    if samples < 1 or terms < 1:
        raise AssignmentError(f"{samples} samples of {terms} terms are asked for, give at least 1 of each.")
    given = in_double(matrix.detach(), "The matrix").cpu()
    *batch, n, _ = given.shape
    drawn = torch.empty(samples, math.prod(batch), n, dtype=torch.int64)
    for k, copy in enumerate(given.reshape(math.prod(batch), n, n)):
        found = birkhoff(copy, terms)
        weights = found.weights if generator is None else found.weights.to(generator.device)
        chosen = torch.multinomial(weights, samples, replacement=True, generator=generator)
        drawn[:, k] = found.permutations[chosen.cpu()]
    return drawn.reshape(samples, *batch, n).to(matrix.device)


def _checked(matrix: Tensor, tolerance: float) -> Array:
    """A copy of the matrix in float64 on the host."""
    if matrix.dim() != 2:
        raise AssignmentError(f"The matrix has shape {tuple(matrix.shape)}, but must be one square matrix, [n, n].")
    array: Array = in_double(matrix.detach(), "The matrix").cpu().numpy().copy()
    sums = np.concatenate([array.sum(1), array.sum(0)])
    error = max(-array.min(initial=0.0), np.abs(sums - 1).max(initial=0.0))
    if error > tolerance:
        raise AssignmentError(
            f"The matrix is doubly stochastic only within {error:.1e}, not within the tolerance of {tolerance:.1e}: "
            "use project_doubly_stochastic."
        )
    return array


def _bottleneck(left: Array, noise: float) -> Array | None:
    """The permutation whose smallest entry is largest, or None if that entry is not above the noise."""
    if not left.size:
        return np.empty(0, dtype=np.int64)
    values = np.unique(left[left > noise])
    feasible = bisect_left(values, True, key=lambda value: _matching(left >= value) is None)
    return _matching(left >= values[feasible - 1]) if feasible else None


def _matching(mask: NDArray[np.bool_]) -> Array | None:
    """A permutation p with mask[i, p[i]] for all rows i, or None if there is none."""
    columns: Array = maximum_bipartite_matching(csr_array(mask), perm_type="column")
    return None if (columns < 0).any() else columns
