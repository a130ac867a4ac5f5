"""Stochastic gradient Langevin dynamics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from coset.inference.sampling import Sampler
from coset.training.network import TrainingProblem
from coset.training.optimizers import Optimizer


@dataclass(frozen=True, repr=False)
class SGLD(Sampler):
    """Stochastic gradient Langevin dynamics: w <- w - rate grad U(w) / n + sqrt(2 rate T / n) N(0, 1).

    U(w) = -sum_i log p(y_i | x_i, w) - log N(w; 0, v) is estimated from a batch of m of the n examples (Welling & Teh
    2011, Eq. 4, at T = 1; their step size is 2 rate / n). No step is rejected, so a draw is from the posterior only as
    the rate goes to zero: on a quadratic U with the Hessian A its variance is T / (A (1 - rate A / 2n)), and more for
    small batches. The model runs as in evaluation: without dropout, and with the statistics of its norms fixed. The
    solution is an `Ensemble`.

    Args:
        chains: How many, each from its own start.
        rate: Constant, or the largest of a cycle.
        epochs: Passes over the data, of all chains at once.
        burn_in: Epochs at the beginning whose draws are dropped.
        thin: Of the later epochs, one in so many leaves a draw.
        batch_size: Examples of a step; an epoch leaves out those that do not fill a batch, other ones each time.
        schedule: Of the rate: "constant", or "cyclical", which lets it fall along a cosine in each of `cycles` equal
            parts of the run; then burn_in is of each cycle and without noise, so that it finds another mode (Zhang et
            al. 2020, Algorithm 1).
        cycles: Equal parts of the run, if it is cyclical.
        temperature: T.
        prior_variance: v.
        noise: Standard deviation of the targets, which a regression needs.
        precision: "bfloat16" runs the model, not the parameters, in 16 bits; "tf32" rounds factors on CUDA.

    Raises:
        CosetError: If a setting is out of range.

    Example:
        >>> (chains,) = coset.fit(model, digits.train, coset.SGLD(chains=2, epochs=4, burn_in=2))
        >>> len(chains)
        4
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
