"""Canonical factors and signs of units that move the same weights, so that none can be fixed alone.

Heads and the units that all of them share are such: an entry of head h and unit u takes c_h d_u, and c, d are only
known up to what leaves all products as they are. What weights tell depends on neither the order of units nor the
factors that they have already, so that all members of an orbit come out the same.
"""

from __future__ import annotations

import torch
from torch import Tensor

EQUAL = 1e-5  # sums that are relatively so near differ by rounding only


def least_logs(powers: Tensor, logs: Tensor) -> Tensor:
    """[k] log factors x that make the sum of squares of logs + powers x least, and are the least that do.

    powers: [n, k], logs: [n] log norms of the weights, -inf of those that are zero and are not looked at.
    """
    alive = logs.isfinite()
    if not bool(alive.any()):
        return powers.new_zeros(powers.shape[1])
    solution: Tensor = torch.linalg.lstsq(powers[alive], logs[alive].unsqueeze(1), driver="gelsd").solution
    return -solution.squeeze(1)


def independent_signs(powers: Tensor, sums: Tensor) -> Tensor:
    """[k] parities of signs that make the largest sums positive, as many as can be chosen on their own.

    powers: [n, k] parities with which each sum [n] takes the signs. Sums are met in the order of their size, by
    elimination over GF(2); one whose sign follows from larger ones is left, and zero says nothing. Factors can make
    sums equal to rounding; these are met in their own order.
    """
    solved: dict[int, tuple[int, int]] = {}  # pivot -> (a row, its parity), no row with the pivot of a later one
    columns = [[k for k, power in enumerate(row) if power] for row in (powers.round() % 2).tolist()]
    for number in _by_size(sums.abs()).tolist():
        if sums[number] == 0 or len(solved) == powers.shape[1]:
            break
        row, parity = sum(1 << k for k in columns[number]), int(sums[number] < 0)
        while row and (pivot := row.bit_length() - 1) in solved:
            other, its_parity = solved[pivot]
            row, parity = row ^ other, parity ^ its_parity
        if row:
            solved[row.bit_length() - 1] = row, parity
    signs = torch.zeros(powers.shape[1], dtype=torch.float64)
    for pivot in sorted(solved):
        row, parity = solved[pivot]
        lower = sum(int(signs[k]) for k in range(pivot) if row >> k & 1)
        signs[pivot] = (parity + lower) % 2
    return signs


def _by_size(sizes: Tensor) -> Tensor:
    """[n] numbers of the sizes, the largest first, with those that are equal to rounding in their own order."""
    order = sizes.argsort(descending=True)
    ordered = sizes[order]
    rank = torch.zeros_like(order)
    rank[1:] = (ordered[:-1] - ordered[1:] > EQUAL * ordered[:-1]).cumsum(0)
    return order[(rank * len(order) + order).argsort()]
