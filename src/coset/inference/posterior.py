"""The posterior of the weights of a network, which Markov chains sample."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from coset.core.errors import CosetError
from coset.solutions.likelihood import Classification, Likelihood
from coset.training.loop import Method
from coset.training.network import TrainingProblem


def log_prior(weights: Tensor, variance: float) -> Tensor:
    """log N(w; 0, v I) of weights (rows, p), (rows,)."""
    return -(weights.square() / variance + math.log(2 * math.pi * variance)).sum(1) / 2


def require_noise(method: Method, likelihood: Likelihood, noise: float | None) -> float:
    """The noise of a regression, which a chain does not learn; 1, which plays no part, for a classification."""
    if isinstance(likelihood, Classification):
        return 1.0
    if noise is None:
        name = type(method).__name__
        raise CosetError(f"{name} does not learn the noise of the targets of a regression: give {name}(noise=0.1).")
    return noise


@dataclass(frozen=True, eq=False)
class ChainState:
    """Where each of some chains is.

    weights and gradient: (rows, p); log_density: (rows,) float64, log p(y | x, w) + log N(w; 0, v), of which the
    gradient is; log_likelihood: its first term; right: (rows,) float64, how many targets a classifier gives.
    """

    weights: Tensor
    log_density: Tensor
    log_likelihood: Tensor
    right: Tensor
    gradient: Tensor

    @property
    def tensors(self) -> list[Tensor]:
        """All of it."""
        return [self.weights, self.log_density, self.log_likelihood, self.right, self.gradient]

    def clone(self) -> ChainState:
        """The same in other memory."""
        return ChainState(*(x.clone() for x in self.tensors))

    def copy_(self, other: ChainState) -> None:
        """Go where the chains of `other` are."""
        for x, y in zip(self.tensors, other.tensors, strict=True):
            x.copy_(y)

    def move_(self, other: ChainState, accepted: Tensor) -> None:
        """Let the chains with `accepted` (rows,) go where those of `other` are."""
        for x, y in zip(self.tensors, other.tensors, strict=True):
            x.copy_(torch.where(accepted.view(-1, *[1] * (x.ndim - 1)), y, x))


@dataclass(frozen=True, eq=False)
class LogPosterior:
    """log p(w | data) up to a constant: sum_i log p(y_i | x_i, w) + log N(w; 0, v), over all examples.

    variance: v. noise: of the targets of a regression, on the device, as a captured step cannot bring it there.
    chunk: examples that are run at once, for each network.
    """

    problem: TrainingProblem
    variance: float
    noise: Tensor
    chunk: int

    def __call__(self, weights: Tensor) -> ChainState:
        """The density and its gradient at weights (rows, p)."""
        problem, w = self.problem, weights.detach().requires_grad_()
        gradient = -weights.detach() / self.variance  # that of the prior
        likelihood, right = (torch.zeros(len(w), dtype=torch.float64, device=w.device) for _ in range(2))
        for inputs, targets in zip(*(torch.split(x, self.chunk) for x in problem.split), strict=True):
            outputs = problem.network(w, inputs.expand(len(w), *inputs.shape))
            logs = problem.likelihood.log_prob(outputs, targets, self.noise).flatten(1)
            gradient = gradient + torch.autograd.grad(logs.sum(), w)[0]
            likelihood += logs.detach().sum(1, dtype=torch.float64)
            if isinstance(problem.likelihood, Classification):
                right += (outputs.argmax(-1) == targets).flatten(1).sum(1)
        density = likelihood + log_prior(w.detach(), self.variance)
        return ChainState(w.detach(), density, likelihood, right, gradient)
