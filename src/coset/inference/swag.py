"""Stochastic weight averaging Gaussian: the moments of the weights that SGD visits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch

from coset.core.errors import CosetError
from coset.inference.map import MAP
from coset.solutions.covariance import require_small
from coset.solutions.full_gaussian import FullGaussian
from coset.solutions.gaussian import Gaussian
from coset.solutions.solution import Solution
from coset.training.network import Tensors, TrainingProblem


@dataclass(frozen=True, repr=False)
class SWAG(MAP):
    """Train as `MAP` does, and fit a Gaussian to the weights w_1 ... w_T after each epoch but the first `burn_in`.

    With the mean m, the variances s^2 = mean(w^2) - m^2, and the deviations d_t = w_t - mean(w_1 ... w_t) of the last
    `rank` epochs as columns of D, q = N(m, s^2 / 2 + D D^T / (2 (rank - 1))), a `FullGaussian`; without columns
    q = N(m, s^2), a `Gaussian` (Maddox et al. 2019, Eq. 1 and Algorithm 1). The rate stays as large as it can, so that
    the weights travel. Statistics of norms are those of the last epoch.

    Args:
        optimizer: "sgd" or "adam".
        rate: The learning rate; 0.05 for sgd and 1e-3 for adam when None.
        momentum: Of sgd.
        epochs: Passes over the data.
        batch_size: Examples of a step; an epoch leaves out those that do not fill a batch, other ones each time.
        schedule: Of the rate: "constant", to zero ("cosine"), or after a warm-up ("onecycle").
        augment: Shift and mirror images.
        precision: "bfloat16" runs the model, not the parameters, in 16 bits; "tf32" rounds factors on CUDA.
        noise: Standard deviation of the targets of a regression, learned when None.
        compile: Let torch compile the model, which pays in long runs of convolutional networks.
        weight_decay: Of all parameters.
        burn_in: Epochs whose weights do not count.
        rank: Columns of D, for networks of up to 20,000 weights; 0 for independent weights and networks of any size.

    Raises:
        CosetError: If a setting is out of range.

    Example:
        >>> (q,) = coset.fit(model, digits.train, coset.SWAG(epochs=6, burn_in=2, rank=3))
        >>> type(q).__name__, q.is_random
        ('FullGaussian', True)
    """

    RATES: ClassVar[Mapping[str, float]] = {"sgd": 0.05, "adam": 1e-3}

    optimizer: Literal["adam", "sgd"] = "sgd"
    epochs: int = 80
    schedule: Literal["cosine", "constant", "onecycle"] = "constant"
    burn_in: int = 50
    rank: int = 20

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.burn_in <= self.epochs - 2:
            raise CosetError(
                f"SWAG: burn_in must leave two of {self.epochs} epochs or more, but it is {self.burn_in!r}."
            )
        if self.rank != 0 and not 2 <= self.rank <= self.epochs - self.burn_in:
            raise CosetError(
                f"SWAG: rank must be 0, or from 2 to {self.epochs - self.burn_in}, the epochs after burn_in, not "
                f"{self.rank!r}."
            )

    def memory(self, problem: TrainingProblem) -> dict[str, Any]:
        # How many weights count so far, their mean and that of their squares (rows, p), and deviations of some.
        if self.rank:
            require_small(problem.network.size)
        zeros = torch.zeros_like(problem.start, dtype=torch.float64)
        return {"count": 0, "mean": zeros, "squares": zeros.clone(), "deviations": []}

    def after_epoch(self, problem: TrainingProblem, parameters: Tensors, epoch: int) -> None:
        if epoch < self.burn_in:
            return
        memory, weights = problem.memory, parameters["weights"].detach().double()
        memory["count"] += 1
        memory["mean"].lerp_(weights, 1 / memory["count"])
        memory["squares"].lerp_(weights.square(), 1 / memory["count"])
        if self.rank:
            memory["deviations"] = [*memory["deviations"][1 - self.rank :], weights - memory["mean"]]

    def solution(self, problem: TrainingProblem, parameters: Tensors, row: int) -> Solution:
        network, memory, noise = problem.network, problem.memory, problem.noise(row)
        mean = memory["mean"][row]
        variance = (memory["squares"][row] - mean.square()).clamp(min=0)
        state = network.state(mean)
        if not self.rank:
            return Gaussian(state, network.unflatten(variance.sqrt()), noise=noise)
        columns = torch.stack([deviation[row] for deviation in memory["deviations"]], 1)
        covariance = variance.diag() / 2 + columns @ columns.T / (2 * (self.rank - 1))
        return FullGaussian(state, covariance, network.names, noise)
