"""Stochastic gradient Hamiltonian Monte Carlo."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from coset.core.errors import CosetError
from coset.inference.sampling import Sampler
from coset.training.network import TrainingProblem
from coset.training.optimizers import Optimizer


@dataclass(frozen=True, repr=False)
class SGHMC(Sampler):
    """Stochastic gradient Hamiltonian Monte Carlo: Langevin dynamics with momentum and friction.

        v <- v - rate grad U(w) / n,  w <- w + v / 2,
        v <- momentum v + sqrt((1 - momentum^2) rate T / n) N(0, 1),  w <- w + v / 2

    with U as in `SGLD` (Chen, Fox & Guestrin 2014, Section 3.3, with zero for the estimate of the gradient's noise, in
    the BAOAB splitting of Leimkuhler & Matthews 2013). Here v is the velocity times the length sqrt(rate / n) of a step
    in time, and momentum = exp(-friction length). With full batches the draws of a quadratic U have the right variance
    at every rate that is stable. The solution is an `Ensemble`.

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
        momentum: What a step leaves of the velocity.

    Raises:
        CosetError: If a setting is out of range.

    Example:
        >>> (chains,) = coset.fit(model, digits.train, coset.SGHMC(chains=2, epochs=4, burn_in=2))
        >>> len(chains)
        4
    """

    momentum: float = 0.9

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.momentum < 1:
            raise CosetError(f"SGHMC: momentum must be in [0, 1), not {self.momentum!r}.")

    def make_optimizer(self, problem: TrainingProblem, parameters: list[Tensor]) -> Optimizer:
        return _Underdamped(problem, parameters, self.momentum)


class _Underdamped(Optimizer):
    def __init__(self, problem: TrainingProblem, parameters: list[Tensor], momentum: float) -> None:
        (self._weights,) = parameters
        self._problem, self._heat, self._momentum = problem, problem.memory["heat"], momentum
        self._velocity = torch.zeros_like(self._weights)
        self.state = [self._velocity]

    @torch.no_grad()
    def step(self, gradients: Sequence[Tensor], rate: Tensor) -> None:
        w, v, (gradient,) = self._weights, self._velocity, gradients
        v.addcmul_(gradient, rate, value=-1)
        w.add_(v, alpha=0.5)
        v.mul_(self._momentum).addcmul_(self._problem.normal(), ((1 - self._momentum**2) * rate * self._heat).sqrt())
        w.add_(v, alpha=0.5)
