"""Variational inference: the Gaussian with independent coordinates that is closest to the posterior."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from coset.core.checks import check_positive
from coset.solutions.gaussian import Gaussian
from coset.solutions.solution import Solution
from coset.training.loop import Method, Problem, Run
from coset.training.minibatches import Descending, Descent


@dataclass(frozen=True)
class VI(Descent, Method):
    """Maximise the evidence lower bound of q = N(m, s^2) under the prior N(0, v), tempered:

        E_q[sum_i log p(y_i | x_i, w) + log N(w; 0, v)] + T H(q)

    With T = 1 this is the ELBO, E_q[log p(y | x, w)] - KL(q || p) (rossi2023 Eq. 3); otherwise that of the posterior
    to the power 1/T, times T. The sum over n examples is estimated from a batch of m, times n/m; the prior and the
    entropy are exact. What is minimised is minus this, over n, so the learning rate 1e-6 of rossi2023, for the sum
    over 60000 examples, is 0.06 here.

    prior_variance: v. temperature: T. initial_std: s at the start. samples: weights drawn a step.
    reparameterization: draw weights, or what each layer computes (`local`), which costs two products a layer and
    has less variance. The other settings are those of `Descent`.
    """

    RATES: ClassVar[dict[str, float]] = {"adam": 5e-3, "sgd": 0.05}

    prior_variance: float = 1.0
    temperature: float = 1.0
    initial_std: float = 0.01
    samples: int = 1
    reparameterization: Literal["weights", "local"] = "weights"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "prior_variance", "temperature", "initial_std", "samples")

    def start(self, problem: Problem) -> Run:
        return Variational(self, problem)


class Variational(Descending, Run):
    """The means m and r with s = log(1 + e^r), each (rows, p)."""

    def __init__(self, settings: VI, problem: Problem) -> None:
        self._vi = settings
        self.mean = problem.start.clone()
        s = settings.initial_std
        # log(e^s - 1), where e^s may be too large.
        self.rho = torch.full_like(self.mean, s + math.log(-math.expm1(-s)))
        super().__init__(settings, problem, [self.mean, self.rho])

    def std(self) -> Tensor:
        """s, (rows, p)."""
        return F.softplus(self.rho)

    def objective(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        std, samples = self.std(), self._vi.samples
        loss = torch.zeros(self.problem.rows, device=inputs.device)
        extra = torch.zeros_like(loss)
        for _ in range(samples):
            outputs, more = self._draw(std, inputs)
            loss = loss + self.loss(outputs, targets) / samples
            extra = extra + more / samples
        return loss + (self.divergence(std) + extra) / len(self.problem.split), loss, outputs

    def _draw(self, std: Tensor, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Outputs of networks drawn from q, and what `surplus` adds for them."""
        if self._vi.reparameterization == "local":
            return self.problem.network.local(self.mean, std, inputs), torch.zeros((), device=inputs.device)
        weights = self.mean + std * self.problem.normal()
        return self.problem.network(weights, inputs), self.surplus(weights, std)

    def surplus(self, weights: Tensor, std: Tensor) -> Tensor:
        """What a subclass adds to the divergence for drawn weights, (rows,)."""
        return torch.zeros((), device=weights.device)

    def divergence(self, std: Tensor) -> Tensor:
        """-E_q[log N(w; 0, v)] - T H(q), (rows,); for T = 1 it is KL(q || p).

        KL = sum_i ((s_i^2 + m_i^2) / v - 1 - log(s_i^2 / v)) / 2.
        """
        v, temperature = self._vi.prior_variance, self._vi.temperature
        energy = ((std.square() + self.mean.square()) / v + math.log(2 * math.pi * v)) / 2
        entropy = std.log() + (1 + math.log(2 * math.pi)) / 2
        return (energy - temperature * entropy).sum(1)

    def solutions(self) -> list[Solution]:
        network, std = self.problem.network, self.std().detach()
        found: list[Solution] = []
        for row, mean in enumerate(self.mean):
            found.append(Gaussian(network.state(mean), network.unflatten(std[row]), noise=self.found_noise(row)))
        return found
