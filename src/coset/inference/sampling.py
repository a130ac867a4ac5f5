"""What chains that follow stochastic gradients share: settings, cycles, and the draws that are kept."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from coset.core.checks import check_choices, check_positive
from coset.core.errors import CosetError
from coset.core.state import owners, tie
from coset.inference.posterior import log_prior, require_noise
from coset.solutions.ensemble import Ensemble
from coset.solutions.solution import Solution
from coset.training.loop import Method, Problem, Run
from coset.training.minibatches import Stepping, Stepwise
from coset.training.network import Network
from coset.training.optimizers import Optimizer, cosine


class Chains(Method):
    """A method whose solution is an `Ensemble` of the draws of `chains` chains: all of the first, then the second's."""

    chains: int

    @property
    def copies(self) -> int:
        return self.chains

    def combine(self, found: Sequence[Solution]) -> Solution:
        parts = [one.population for one in found if isinstance(one, Ensemble)]
        joined = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
        return Ensemble(tie(joined, owners(parts[0])), noise=found[0].noise)


def ensemble(network: Network, draws: Tensor, noise: float | None) -> Ensemble:
    """The draws (n, p) of a chain."""
    return Ensemble(network.state(draws), noise=noise)


class Thermal(Optimizer):
    """Steps that also draw noise; `heat` is T / n, zero where there shall be none."""

    def __init__(self, weights: Tensor, problem: Problem) -> None:
        self._weights, self._problem = weights, problem
        self.heat = weights.new_zeros(())
        self.state = []


@dataclass(frozen=True)
class Sampler(Chains, Stepwise):
    """Settings of a chain for p(w | data)^(1/T), where p(w) = N(0, v), that follows stochastic gradients.

    With U = -sum_i log p(y_i | x_i, w) - log N(w; 0, v), estimated from a batch of m examples times n/m, a step
    moves along the gradient of U / n: without noise it is one of SGD at this rate.

    chains: how many, each from its own start. rate: constant, or the largest of a cycle. burn_in: epochs at the
    beginning whose draws are dropped. thin: of the later epochs, one in so many leaves a draw. schedule: `cyclical`
    lets the rate fall along a cosine in each of `cycles` equal parts of the run, and then burn_in is of each cycle
    and without noise, so that it finds another mode (Zhang et al. 2020, Algorithm 1). temperature: T.
    prior_variance: v. noise: standard deviation of the targets, which a regression needs. The model runs as in
    evaluation: without dropout, and with the statistics of its norms fixed.
    """

    chains: int = 4
    rate: float = 0.01
    epochs: int = 200
    burn_in: int = 100
    thin: int = 1
    batch_size: int = 128
    schedule: Literal["constant", "cyclical"] = "constant"
    cycles: int = 4
    temperature: float = 1.0
    prior_variance: float = 1.0
    noise: float | None = None
    precision: Literal["float32", "tf32", "bfloat16"] = "float32"

    def __post_init__(self) -> None:
        name = type(self).__name__
        check_choices(self)
        check_positive(self, "chains", "rate", "epochs", "thin", "batch_size", "cycles", "temperature")
        check_positive(self, "prior_variance", "noise")
        if self.schedule == "cyclical" and self.epochs % self.cycles:
            raise CosetError(f"{name}: {self.epochs} epochs are not {self.cycles} equal cycles: give a multiple.")
        if self.burn_in < 0 or self.burn_in + self.thin > self.cycle:
            raise CosetError(
                f"{name}: no draw is left of {self.cycle} epochs with burn_in={self.burn_in} and thin={self.thin}: "
                "give fewer."
            )

    @property
    def cycle(self) -> int:
        """Epochs of a cycle; all, if the rate is constant."""
        return self.epochs // self.cycles if self.schedule == "cyclical" else self.epochs

    def draws_after(self, epochs: int) -> int:
        """How many draws a chain has left after so many epochs."""
        whole, rest = divmod(epochs, self.cycle)
        each = (self.cycle - self.burn_in) // self.thin
        return whole * each + max(rest - self.burn_in, 0) // self.thin

    def start(self, problem: Problem) -> Run:
        weights = problem.start.clone()
        return Sampling(self, problem, weights, self.optimizer(weights, problem))

    @abstractmethod
    def optimizer(self, weights: Tensor, problem: Problem) -> Thermal:
        """What moves the weights (rows, p)."""


class Sampling(Stepping, Run):
    """Chains under way. draws: (rows, draws, p), in the order in which they were made."""

    training = False

    def __init__(self, settings: Sampler, problem: Problem, weights: Tensor, optimizer: Thermal) -> None:
        self._sampler, self._weights, self._thermal = settings, weights, optimizer
        self._draws = weights.new_zeros(len(weights), settings.draws_after(settings.epochs), weights.shape[1])
        self._epochs = 0
        noise = require_noise(settings, problem.likelihood, settings.noise)
        log_noise = weights.new_full((len(weights),), math.log(noise))
        super().__init__(settings, problem, [weights], log_noise, optimizer)

    def objective(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        outputs = self.problem.network(self._weights, inputs)
        loss = self.loss(outputs, targets)
        prior = log_prior(self._weights, self._sampler.prior_variance)
        return loss - prior / len(self.problem.split), loss, outputs

    def rate(self, step: int, total: int) -> float:
        settings = self._sampler
        if settings.schedule == "constant":
            return settings.rate
        length = total // settings.cycles
        return settings.rate * cosine(step % length / length)

    def epoch(self) -> list[tuple[float, float | None]]:
        settings = self._sampler
        exploring = settings.schedule == "cyclical" and self._epochs % settings.cycle < settings.burn_in
        self._thermal.heat.fill_(0 if exploring else settings.temperature / len(self.problem.split))
        found = super().epoch()
        before, after = (settings.draws_after(epochs) for epochs in (self._epochs, self._epochs + 1))
        if after > before:
            self._draws[:, before] = self._weights.detach()
        self._epochs += 1
        return found

    def solutions(self) -> list[Solution]:
        network, kept = self.problem.network, self._sampler.draws_after(self._epochs)
        return [ensemble(network, draws[:kept], self.found_noise(row)) for row, draws in enumerate(self._draws)]

    def state_dict(self) -> dict[str, Any]:
        kept = self._draws[:, : self._sampler.draws_after(self._epochs)].clone()
        return {**super().state_dict(), "epochs": self._epochs, "draws": kept}

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._epochs = state["epochs"]
        self._draws[:, : state["draws"].shape[1]] = state["draws"]
