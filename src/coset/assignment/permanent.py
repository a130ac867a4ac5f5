"""The permanent of a non-negative matrix, exactly: perm(A) = sum over permutations p of prod_i A[i, p(i)]."""

import math
from functools import lru_cache
from itertools import combinations

import torch
from torch import Tensor

from coset.assignment.lap import solve_many
from coset.core.errors import AssignmentError

LARGEST = 16


def log_permanent(log_a: Tensor) -> Tensor:
    """log perm(A), of shape [...], for matrices A >= 0 of shape [..., n, n] given by their logs; n is at most 16.

    An entry may be -inf, and so is the result if every permutation meets one. The permanent of a matrix without
    rows is one. All is in float64, and the result in the dtype of `log_a`. The gradient is the matrix of marginals,
    d log perm / d log a_ij = the share of permutations with p(i) = j; it is zero where the permanent is.

    Computed row by row over sets of columns, f(C) = sum_{j in C} f(C without j) A[|C| - 1, j], in O(2^n n). Unlike
    the formulas of Ryser and Glynn this only adds and multiplies numbers that are not negative, so nothing cancels
    and every digit is right, also of a permanent much smaller than the product of the row sums.

    Args:
        log_a: The logs of matrices A >= 0, [..., n, n].

    Returns:
        The logs of their permanents, [...].

    Raises:
        AssignmentError: If the matrices are not square, have NaN or inf, or are too large.

    Example:
        >>> coset.assignment.log_permanent(torch.zeros(4, 4)).exp()
        tensor(24.)
    """
    logs = checked(log_a)
    n = logs.shape[-1]
    if n > LARGEST:
        raise AssignmentError(f"The exact permanent takes 2^n n steps and n is {n}, use log_bethe above {LARGEST}.")
    scaled, factor, possible = scale(logs)
    ways = torch.ones(*logs.shape[:-2], 1, dtype=logs.dtype, device=logs.device)
    for row, a in enumerate(scaled.exp().unbind(-2)):
        columns, smaller = _subsets(n, row + 1, logs.device)
        ways = (ways[..., smaller] * a[..., columns]).sum(-1)
    # A permanent that is not zero is at least one after scaling; the others are kept away from the gradient of log.
    result = factor + torch.where(possible, ways.squeeze(-1), 1.0).log()
    return result.masked_fill(~possible, -math.inf).to(log_a.dtype)


@lru_cache(maxsize=64)
def _subsets(n: int, size: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """The subsets of n columns of a size, [count, size], and the place of each without each of its columns."""
    place = {subset: k for k, subset in enumerate(combinations(range(n), size - 1))}
    subsets = list(combinations(range(n), size))
    smaller = [[place[subset[:k] + subset[k + 1 :]] for k in range(size)] for subset in subsets]
    return torch.tensor(subsets, device=device), torch.tensor(smaller, device=device)


def square(log_a: Tensor) -> Tensor:
    """Refuse what is not floating or not of shape [..., n, n], without looking at the values."""
    if log_a.dim() < 2 or log_a.shape[-1] != log_a.shape[-2]:
        raise AssignmentError(f"log_a has shape {tuple(log_a.shape)}, but must be square, [..., n, n].")
    if not log_a.is_floating_point():
        raise AssignmentError(f"log_a is of type {log_a.dtype}, but must be floating.")
    return log_a


def checked(log_a: Tensor) -> Tensor:
    """The logs in float64; refuse what is not square, and NaN or inf."""
    bad = square(log_a).isnan() | (log_a == math.inf)
    if bad.any():
        at = bad.nonzero()[0].tolist()
        raise AssignmentError(f"log_a is {float(log_a[tuple(at)])} at {at}, but must be finite or -inf.")
    return log_a.double()


def scale(logs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Scale rows and columns so that no entry is above one, and those of the best permutation are one.

    Returns the logs of the scaled matrix, the log of the factor that its permanent has lost, [...], and whether
    that permanent is not zero, [...]. The factors are the duals of the assignment (Olschowka and Neumaier 1996) and
    take no part in the gradient. The permanent is now from 1 to n!, so sums of products neither overflow nor
    lose anything of weight by underflow, whatever the range of the logs was.
    """
    if not logs.numel():
        nothing = logs.sum((-2, -1))
        return logs, nothing, nothing == 0
    n = logs.shape[-1]
    flat = logs.detach().reshape(-1, n, n)
    # One forbidden pair costs more than any permutation without one can.
    finite = flat[flat.isfinite()]
    low, high = (float(finite.min()), float(finite.max())) if finite.numel() else (0.0, 0.0)
    best = solve_many(flat.clamp(min=low - n * (high - low) - 1), threads=1)
    possible = flat.gather(-1, best.permutation.unsqueeze(-1)).isfinite().all(-2).squeeze(-1)
    u = best.duals.rows.to(flat).view(*logs.shape[:-1], 1)
    v = best.duals.columns.to(flat).view(*logs.shape[:-2], 1, n)
    return logs - u - v, (u.sum(-2) + v.sum(-1)).squeeze(-1), possible.view(logs.shape[:-2])


def level(logs: Tensor) -> Tensor:
    """Divide each row by its largest entry, then each column: none is above one, and each row and column has a one.

    Rows and columns of nothing but zeros stay as they are.
    """
    if not logs.numel():
        return logs
    for dim in (-1, -2):
        logs = logs - logs.amax(dim, keepdim=True).clamp(min=torch.finfo(logs.dtype).min)
    return logs
