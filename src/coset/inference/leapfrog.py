"""The leapfrog integrator of Hamiltonian dynamics, for many chains at once."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from coset.inference.capture import captured
from coset.inference.posterior import Point


class Leapfrog:
    """Moves weights w and momenta r, each (rows, p), under H(w, r) = -log p(w) + sum_i s_i r_i^2 / 2.

    density: weights to a `Point`. at: where the chains are, and momentum: r; both are changed in place.
    step: (rows, 1), the length e of a step. variance: (rows, p), the inverse s of the diagonal mass.
    """

    def __init__(self, density: Callable[[Tensor], Point], start: Point) -> None:
        self._density = density
        self.at = start.clone()
        self.momentum = torch.zeros_like(start.weights)
        self.step = torch.ones_like(start.weights[:, :1])
        self.variance = torch.ones_like(start.weights)
        self._advance: Callable[[], None] | None = None

    def run(self, steps: int) -> None:
        """Some steps; captured at the first call, after which all has to stay where it is."""
        if self._advance is None:
            self._advance = captured(self._step, [*self.at.tensors, self.momentum], [], self.momentum.device)
        for _ in range(steps):
            self._advance()

    def _step(self) -> None:
        """r <- r + e/2 grad log p(w), w <- w + e s r, r <- r + e/2 grad log p(w) (Neal 2011, Eqs. 2.28 to 2.30)."""
        self._kick()
        self.at.weights.addcmul_(self.step * self.variance, self.momentum)
        self.at.copy_(self._density(self.at.weights))
        self._kick()

    def _kick(self) -> None:
        self.momentum.addcmul_(self.step, self.at.gradient, value=0.5)

    def energy(self) -> Tensor:
        """H, (rows,) float64."""
        return (self.variance * self.momentum.square()).sum(1, dtype=torch.float64) / 2 - self.at.log_density
