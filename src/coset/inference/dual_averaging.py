"""Step sizes that give a wanted rate of acceptance."""

from __future__ import annotations

import math

import torch
from torch import Tensor

GAMMA, DELAY, KAPPA = 0.05, 10, 0.75  # as in Hoffman & Gelman 2014 and in Stan
BOLDER = 10  # the steps that are tried are drawn to so many times the first, since short ones cost more


class DualAveraging:
    """log e, for some chains (rows,), such that their mean acceptance becomes `target` (Hoffman & Gelman 2014, Eq. 6).

    After m trajectories of acceptance a: h <- (1 - 1/(m + 10)) h + (target - a) / (m + 10),
    log e = mu - sqrt(m) / 0.05 h, and the average that is used in the end,
    log e' <- m^-0.75 log e + (1 - m^-0.75) log e'.
    """

    def __init__(self, step: Tensor, target: float) -> None:
        """step: (rows,) float64, where to begin."""
        self._target = target
        self._count = torch.zeros_like(step)
        self._mean = torch.zeros_like(step)
        self._centre = torch.zeros_like(step)
        self._log_step = torch.zeros_like(step)
        self._log_average = torch.zeros_like(step)
        self.state = [self._count, self._mean, self._centre, self._log_step, self._log_average]
        self.restart(step)

    def restart(self, step: Tensor) -> None:
        """Forget the past, and begin at `step`."""
        for x in (self._count, self._mean):
            x.zero_()
        self._log_step.copy_(step.log())
        self._log_average.copy_(step.log())
        self._centre.copy_(step.log() + math.log(BOLDER))

    def update(self, acceptance: Tensor) -> None:
        """Take in the acceptance (rows,) of a trajectory."""
        self._count += 1
        self._mean.lerp_(self._target - acceptance, 1 / (self._count + DELAY))
        self._log_step.copy_(self._centre - self._count.sqrt() / GAMMA * self._mean)
        self._log_average.lerp_(self._log_step, self._count**-KAPPA)

    @property
    def step(self) -> Tensor:
        """To try next, (rows,)."""
        return self._log_step.exp()

    @property
    def average(self) -> Tensor:
        """To use from now on, (rows,)."""
        return self._log_average.exp()
