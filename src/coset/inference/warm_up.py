"""The warm-up of Hamiltonian Monte Carlo: step sizes, and the scale of each weight."""

from __future__ import annotations

import torch
from torch import Tensor

from coset.inference.dual_averaging import DualAveraging

FIRST_STEP = 0.01
SHRINKAGE, SMALL = 5, 1e-3  # a variance of n draws counts n, and 1e-3 counts 5


class WarmUp:
    """For each chain by itself, as Stan does (reference manual, "HMC algorithm parameters").

    step: (rows,) float64, by dual averaging. variance: (rows, p), the inverse of the diagonal mass: that of the
    chain's own draws in a window, shrunk, after which the steps are adapted anew.
    """

    def __init__(self, start: Tensor, target: float, windows: list[tuple[int, int]], trajectories: int) -> None:
        """start: (rows, p). target: the acceptance. trajectories: after so many the warm-up ends."""
        self._windows, self._trajectories = windows, trajectories
        self.step = torch.full((len(start),), FIRST_STEP, dtype=torch.float64, device=start.device)
        self.variance = torch.ones_like(start)
        self._averaging = DualAveraging(self.step, target)
        self._mean, self._squares = (torch.zeros_like(start, dtype=torch.float64) for _ in range(2))
        self.state = [self.step, self.variance, self._mean, self._squares, *self._averaging.state]

    def update(self, done: int, weights: Tensor, acceptance: Tensor) -> None:
        """Take in where trajectory number `done`, counted from 1, ended (rows, p), and its acceptance (rows,)."""
        if done > self._trajectories:
            return
        self._averaging.update(acceptance)
        for begin, end in self._windows:
            if begin < done <= end:
                self._take(weights, done - begin)
            if done == end:
                self._rescale(end - begin)
        self.step.copy_(self._averaging.average if done == self._trajectories else self._averaging.step)

    def _take(self, weights: Tensor, count: int) -> None:
        """Welford's sums."""
        if count == 1:
            self._mean.zero_()
            self._squares.zero_()
        moved = weights - self._mean
        self._mean += moved / count
        self._squares += moved * (weights - self._mean)

    def _rescale(self, count: int) -> None:
        found = self._squares / (count - 1)
        self.variance.copy_((count * found + SHRINKAGE * SMALL) / (count + SHRINKAGE))
        self._averaging.restart(self._averaging.average)


def windows(trajectories: int) -> list[tuple[int, int]]:
    """Stan's windows (begin, end] of a warm-up, each about twice as long as the one before.

    None in the first 75 trajectories, which travel, and in the last 50, which settle the step; in a warm-up of fewer
    than 150 trajectories it is one window from 15 to 90 percent, and none at all in fewer than 20.
    """
    if trajectories < 20:
        return []
    if trajectories < 150:
        return [(round(0.15 * trajectories), round(0.9 * trajectories))]
    found, begin, size, last = [], 75, 25, trajectories - 50
    while begin < last:
        end = last if begin + 3 * size > last else begin + size
        found.append((begin, end))
        begin, size = end, 2 * size
    return found
