"""Weights that let all times of a path count alike in a loss."""

from __future__ import annotations

import torch
from torch import Tensor

INTERVALS = 32
MEMORY = 0.99  # of what is remembered, at each step
LEAST = 1e-12  # so that nothing is divided by zero


class TimeWeights:
    """Weights w(t) = 1 / E[error | t], so that all times count alike.

    Near its start a path hardly tells which network it leads to, so that errors of the best velocity are many times
    those of later: without weights, their noise is most of the gradient. A weight that depends on time alone leaves the
    velocity with the least error as it is. Karras et al. 2024 (Analyzing and improving the training dynamics of
    diffusion models, Section 2.2) learn such weights; these are of running means in equal intervals of time, in which a
    step has a share of its own of one in a hundred.
    """

    def __init__(self, device: torch.device) -> None:
        self._sums, self._counts = torch.zeros(2, INTERVALS, device=device).unbind()

    @property
    def state(self) -> list[Tensor]:
        """What it remembers."""
        return [self._sums, self._counts]

    def __call__(self, time: Tensor, errors: Tensor) -> Tensor:
        """[n] the weights of errors [n] at times [n], which it remembers."""
        at = (time * INTERVALS).long().clamp(max=INTERVALS - 1)
        places = torch.nn.functional.one_hot(at, INTERVALS).to(errors)
        for running, new in ((self._sums, errors @ places), (self._counts, places.sum(0))):
            running.mul_(MEMORY).add_(new)
        return self._counts[at] / self._sums[at].clamp(min=LEAST)
