"""Averages over weighted states of what they say about n examples, taken in float64 as outputs come in."""

from __future__ import annotations

import math

import torch
from torch import Tensor


class AverageProbs:
    """log sum_s v_s p_s from log p_s (states, examples, ..., classes); weights v: (draws,)."""

    def __init__(self, weights: Tensor, n: int) -> None:
        self.weights, self.n = weights, n
        self.total: Tensor | None = None

    def add(self, rows: slice, examples: slice, logs: Tensor) -> None:
        """Take in the states `rows` on the examples."""
        if self.total is None:
            self.total = _filled(logs, self.n, -math.inf)
        shares = self.weights[rows].log().to(logs).reshape(-1, *[1] * (logs.ndim - 1))
        part = (logs + shares).logsumexp(0).double()
        self.total[examples] = torch.logaddexp(self.total[examples], part)


class AverageValues:
    """sum_s v_s f_s and sum_s v_s (f_s - mean)^2 from f_s (states, examples, k); weights v: (draws,).

    Sums are of the differences to the first state, so that a small variance is not lost beside a large mean.
    """

    def __init__(self, weights: Tensor, n: int) -> None:
        self.weights, self.n = weights, n
        self.first: Tensor | None = None

    def add(self, rows: slice, examples: slice, values: Tensor) -> None:
        """Take in the states `rows` on the examples."""
        if self.first is None:
            self.first, self.shift, self.square = (_filled(values, self.n, 0.0) for _ in range(3))
        if rows.start == 0:
            self.first[examples] = values[0].double()
        moved = values.double() - self.first[examples]
        v = self.weights[rows].to(moved)
        self.shift[examples] += torch.einsum("s,s...->...", v, moved)
        self.square[examples] += torch.einsum("s,s...->...", v, moved.square())

    @property
    def mean(self) -> Tensor:
        """(n, k) float64."""
        assert self.first is not None  # there is at least one state
        return self.first + self.shift

    @property
    def variance(self) -> Tensor:
        """(n, k) float64."""
        return (self.square - self.shift.square()).clamp_min(0)


def _filled(part: Tensor, n: int, value: float) -> Tensor:
    """(n, ...) for parts (states, examples, ...)."""
    return part.new_full((n, *part.shape[2:]), value, dtype=torch.float64)
