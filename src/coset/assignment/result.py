"""What a solve returns, and what the next one starts from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor


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
