"""The Birkhoff-von Neumann decomposition: a doubly stochastic matrix as a mixture of permutations, to draw from."""

import math
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.sparse.csgraph import maximum_bipartite_matching
from torch import Tensor

from coset.assignment.sinkhorn import in_double
from coset.core.errors import AssignmentError
from coset.core.show import Shown, Table


@dataclass(frozen=True, repr=False)
class Birkhoff(Shown):
    """matrix = sum_k weights[k] P_k + residual, where P_k has ones at [i, permutations[k, i]]; unpacks as the three.

    All on the device of the matrix, and weights and residual of its dtype.

    Args:
        weights: `[terms]`, positive and falling.
        permutations: int64 `[terms, n]`.
        residual: `[n, n]`, not negative up to the tolerance.

    Example:
        >>> coset.assignment.birkhoff(torch.full((2, 2), 0.5)).weights
        tensor([0.5000, 0.5000])
    """

    weights: Tensor
    permutations: Tensor
    residual: Tensor

    def __iter__(self) -> Iterator[Tensor]:
        return iter((self.weights, self.permutations, self.residual))

    def _shown(self) -> Table:
        terms, n = self.permutations.shape
        rows: list[tuple[object, ...]] = [("weight left over", float(self.residual.sum()) / max(n, 1))]
        rows += [(f"weight {k}", float(weight)) for k, weight in enumerate(self.weights)]
        return Table(f"Birkhoff decomposition of {n} x {n} in {terms} terms", rows)


def birkhoff(matrix: Tensor, terms: int | None = None, tolerance: float = 1e-5) -> Birkhoff:
    """Write a doubly stochastic matrix as a convex combination of permutation matrices.

    Greedy: each step takes the permutation whose smallest entry in what is left is largest, with that entry as its
    weight. The fewest terms are NP-hard to find, and this takes few in practice (Dufossé and Uçar 2016). A full
    decomposition has weights that sum to one, and a residual of zero, as exactly as the matrix is doubly stochastic.
    No gradient flows through.

    tatro2020 Eq. 54 takes the permutation of largest sum instead. Ten terms then hold less of the matrix: for 0.7 of a
    permutation and 0.3 of a random matrix 88 % instead of 92 % at n = 16 and 76 % instead of 84 % at n = 64; for a
    permutation with noise of 0.1 in each entry, projected, 83 % instead of 93 % at n = 64.

    Args:
        matrix: `[n, n]`, whose entries are at least -tolerance and whose rows and columns sum to one within it.
        terms: How many permutations at most; by default as many as it takes, which is at most (n - 1)^2 + 1.
        tolerance: How far from doubly stochastic the matrix may be.

    Returns:
        Weights, permutations, and what they do not cover.

    Raises:
        AssignmentError: If the matrix is not doubly stochastic within the tolerance.

    Example:
        >>> coset.assignment.birkhoff(torch.full((2, 2), 0.5)).permutations.sort(0).values
        tensor([[0, 0],
                [1, 1]])
    """
    rest = _checked(matrix, tolerance)
    n = len(rest)
    limit = max(n - 1, 0) ** 2 + 1
    if terms is not None:
        if terms < 0:
            raise AssignmentError(f"{terms} terms are asked for, give a number that is not negative.")
        limit = min(terms, limit)
    noise = torch.finfo(matrix.dtype).eps
    rows = np.arange(n)
    weights: list[float] = []
    permutations: list[NDArray[Any]] = []
    while len(weights) < limit:
        permutation = _bottleneck(rest, noise)
        if permutation is None:
            break
        weight = float(rest[rows, permutation].min(initial=1.0))
        rest[rows, permutation] -= weight
        weights.append(weight)
        permutations.append(permutation)
    return Birkhoff(
        torch.tensor(weights, dtype=matrix.dtype, device=matrix.device),
        torch.from_numpy(np.array(permutations, dtype=np.int64).reshape(len(weights), n)).to(matrix.device),
        torch.from_numpy(rest).to(matrix),
    )


def sample_birkhoff(matrix: Tensor, samples: int, terms: int = 10, generator: torch.Generator | None = None) -> Tensor:
    """Draw permutations from the first `terms` terms of the decomposition, with weights renormalized (tatro2020 E.4).

    The first term need not be the permutation nearest to the matrix, which `solve` finds. What
    `alternate_projections` returns is not doubly stochastic enough: end with `project_doubly_stochastic`.

    Args:
        matrix: Doubly stochastic, `[..., n, n]`; each one of the batch is decomposed and drawn from by itself.
        samples: How many permutations of each.
        terms: From how many terms they are drawn.
        generator: Where random numbers come from.

    Returns:
        int64 `[samples, ..., n]`, on the device of the matrix.

    Raises:
        AssignmentError: If a matrix is not doubly stochastic, or nothing is to be drawn.

    Example:
        >>> coset.assignment.sample_birkhoff(torch.eye(3), 2)
        tensor([[0, 1, 2],
                [0, 1, 2]])
    """
    if samples < 1 or terms < 1:
        raise AssignmentError(f"{samples} samples of {terms} terms are asked for, give at least 1 of each.")
    double = in_double(matrix.detach(), "The matrix").cpu()
    *batch, n, _ = double.shape
    permutations = torch.empty(samples, math.prod(batch), n, dtype=torch.int64)
    for k, copy in enumerate(double.reshape(math.prod(batch), n, n)):
        mixture = birkhoff(copy, terms)
        weights = mixture.weights if generator is None else mixture.weights.to(generator.device)
        numbers = torch.multinomial(weights, samples, replacement=True, generator=generator)
        permutations[:, k] = mixture.permutations[numbers.cpu()]
    return permutations.reshape(samples, *batch, n).to(matrix.device)


def _checked(matrix: Tensor, tolerance: float) -> NDArray[Any]:
    """A copy of the matrix in float64 on the host."""
    if matrix.dim() != 2:
        raise AssignmentError(f"The matrix has shape {tuple(matrix.shape)}, but must be one square matrix, [n, n].")
    array: NDArray[Any] = in_double(matrix.detach(), "The matrix").cpu().numpy().copy()
    sums = np.concatenate([array.sum(1), array.sum(0)])
    error = max(-array.min(initial=0.0), np.abs(sums - 1).max(initial=0.0))
    if error > tolerance:
        raise AssignmentError(
            f"The matrix is doubly stochastic only within {error:.1e}, not within the tolerance of {tolerance:.1e}: "
            "use project_doubly_stochastic."
        )
    return array


def _bottleneck(rest: NDArray[Any], noise: float) -> NDArray[Any] | None:
    """The permutation whose smallest entry is largest, or None if that entry is not above the noise."""
    if not rest.size:
        return np.empty(0, dtype=np.int64)
    values = np.unique(rest[rest > noise])
    feasible = bisect_left(values, True, key=lambda value: _matching(rest >= value) is None)
    return _matching(rest >= values[feasible - 1]) if feasible else None


def _matching(mask: NDArray[np.bool_]) -> NDArray[Any] | None:
    """A permutation p with mask[i, p[i]] for all rows i, or None if there is none."""
    columns: NDArray[Any] = maximum_bipartite_matching(csr_array(mask), perm_type="column")
    return None if (columns < 0).any() else columns
