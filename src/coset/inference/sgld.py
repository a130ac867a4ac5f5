"""Stochastic gradient Langevin dynamics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from coset.inference.sampling import Sampler
from coset.training.network import TrainingProblem
from coset.training.optimizers import Optimizer


@dataclass(frozen=True)
class SGLD(Sampler):
    """Steps w <- w - rate grad U(w) / n + sqrt(2 rate T / n) N(0, 1) (Welling & Teh 2011, Eq. 4, at T = 1).

    Their step size is 2 rate / n. No step is rejected, so a draw is from the posterior only as the rate goes to zero:
    on a quadratic U with the Hessian A its variance is T / (A (1 - rate A / 2n)), and more for small batches. The
    settings are those of `Sampler`.
    """

    def make_optimizer(self, problem: TrainingProblem, parameters: list[Tensor]) -> Optimizer:
        return _Langevin(problem, parameters)


class _Langevin(Optimizer):
    def __init__(self, problem: TrainingProblem, parameters: list[Tensor]) -> None:
        (self._weights,) = parameters
        self._problem, self._heat = problem, problem.memory["heat"]
        self.state = []

    @torch.no_grad()
    def step(self, gradients: Sequence[Tensor], rate: Tensor) -> None:
        (gradient,) = gradients
        self._weights.addcmul_(gradient, rate, value=-1)
        self._weights.addcmul_(self._problem.normal(), (2 * rate * self._heat).sqrt())
