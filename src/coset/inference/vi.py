"""Variational inference: the Gaussian with independent coordinates that is closest to the posterior."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from coset.solutions.gaussian import Gaussian
from coset.solutions.solution import Solution
from coset.training.loop import GradientMethod, Minibatch
from coset.training.network import Tensors, TrainingProblem
from coset.training.optimizers import check_positive


@dataclass(frozen=True, repr=False)
class VI(GradientMethod):
    """Variational inference: maximise the evidence lower bound of q = N(m, s^2) under the prior N(0, v), tempered.

        E_q[sum_i log p(y_i | x_i, w) + log N(w; 0, v)] + T H(q)

    With T = 1 this is the ELBO, E_q[log p(y | x, w)] - KL(q || p) (rossi2023 Eq. 3); otherwise that of the posterior to
    the power 1/T, times T. The sum over n examples is estimated from a batch of m, times n/m; the prior and the entropy
    are exact. What is minimised is minus this, over n, so the learning rate 1e-6 of rossi2023, for the sum over 60000
    examples, is 0.06 here. The solution is a `Gaussian`.

    Args:
        optimizer: "adam" or "sgd".
        rate: The largest learning rate; 5e-3 for adam and 0.05 for sgd when None.
        momentum: Of sgd.
        epochs: Passes over the data.
        batch_size: Examples of a step; an epoch leaves out those that do not fill a batch, other ones each time.
        schedule: Of the rate: to zero ("cosine"), after a warm-up ("onecycle"), or "constant".
        augment: Shift and mirror images.
        precision: "bfloat16" runs the model, not the parameters, in 16 bits; "tf32" rounds factors on CUDA.
        noise: Standard deviation of the targets of a regression, learned when None.
        compile: Let torch compile the model, which pays in long runs of convolutional networks.
        prior_variance: v.
        temperature: T.
        initial_std: s at the start.
        samples: Weights drawn a step.
        reparameterization: Draw "weights", or what each layer computes ("local"), which costs two products a layer and
            has less variance.

    Raises:
        CosetError: If a setting is out of range.

    Example:
        >>> (posterior,) = coset.fit(model, digits.train, coset.VI(epochs=2))
        >>> posterior.is_random
        True
    """

    RATES: ClassVar[Mapping[str, float]] = {"adam": 5e-3, "sgd": 0.05}

    prior_variance: float = 1.0
    temperature: float = 1.0
    initial_std: float = 0.01
    samples: int = 1
    reparameterization: Literal["weights", "local"] = "weights"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "prior_variance", "temperature", "initial_std", "samples")

    def parameters(self, problem: TrainingProblem) -> Tensors:
        # The means m, and r with s = log(1 + e^r), each (rows, p).
        s = self.initial_std
        rho = torch.full_like(problem.start, s + math.log(-math.expm1(-s)))  # log(e^s - 1), where e^s may be large
        return {"mean": problem.start.clone(), "rho": rho}

    def objective(
        self, problem: TrainingProblem, parameters: Tensors, batch: Minibatch
    ) -> tuple[Tensor, Tensor, Tensor]:
        mean, std = parameters["mean"], F.softplus(parameters["rho"])
        loss = torch.zeros(problem.rows, device=batch.inputs.device)
        extra = torch.zeros_like(loss)
        for _ in range(self.samples):
            if self.reparameterization == "local":
                outputs = problem.network.local(mean, std, batch.inputs)
            else:
                weights = mean + std * problem.normal()
                outputs = problem.network(weights, batch.inputs)
                extra = extra + self._surplus(problem, weights, mean, std) / self.samples
            loss = loss + batch.loss(outputs) / self.samples
        return loss + (self._divergence(mean, std) + extra) / len(problem.split), loss, outputs

    def _surplus(self, problem: TrainingProblem, weights: Tensor, mean: Tensor, std: Tensor) -> Tensor:
        """What a subclass adds to the divergence for drawn weights, (rows,)."""
        return torch.zeros((), device=weights.device)

    def _divergence(self, mean: Tensor, std: Tensor) -> Tensor:
        """-E_q[log N(w; 0, v)] - T H(q), (rows,); for T = 1 it is KL(q || p).

        KL = sum_i ((s_i^2 + m_i^2) / v - 1 - log(s_i^2 / v)) / 2.
        """
        v = self.prior_variance
        energy = ((std.square() + mean.square()) / v + math.log(2 * math.pi * v)) / 2
        entropy = std.log() + (1 + math.log(2 * math.pi)) / 2
        return (energy - self.temperature * entropy).sum(1)

    def solution(self, problem: TrainingProblem, parameters: Tensors, row: int) -> Solution:
        network, mean, std = problem.network, parameters["mean"], F.softplus(parameters["rho"]).detach()
        noise = problem.noise(row)
        return Gaussian(network.state(mean[row]), network.unflatten(std[row]), noise=noise)
