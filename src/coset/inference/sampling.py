"""What chains that follow stochastic gradients share: settings, cycles, and their draws."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from coset.core.errors import CosetError
from coset.core.state import owners, tie
from coset.inference.posterior import log_prior, require_noise
from coset.solutions.ensemble import Ensemble
from coset.solutions.solution import Solution
from coset.training.loop import Learner, Method, Minibatch, MinibatchRun, SolutionRun
from coset.training.network import Tensors, TrainingProblem
from coset.training.optimizers import MinibatchSettings, check_choices, check_positive, cosine


class Chains(Method):
    """A method whose solution is an `Ensemble` of the draws of `chains` chains: all of the first, then the second's."""

    chains: int

    @property
    def copies(self) -> int:
        return self.chains

    def combine(self, solutions: Sequence[Solution]) -> Solution:
        chains = [chain.population for chain in solutions if isinstance(chain, Ensemble)]
        draws = {name: torch.cat([chain[name] for chain in chains]) for name in chains[0]}
        return Ensemble(tie(draws, owners(chains[0])), noise=solutions[0].noise)


@dataclass(frozen=True, repr=False)
class Sampler(Chains, MinibatchSettings, Learner):
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

    training: ClassVar[bool] = False

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
        check_positive(self, "chains", "epochs", "thin", "batch_size", "cycles")
        check_positive(self, "rate", "temperature", "prior_variance", "noise")
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

    def start(self, problem: TrainingProblem) -> SolutionRun:
        return MinibatchRun(problem, self, self)

    def rate_at(self, step: int, total: int) -> float:
        if self.schedule == "constant":
            return self.rate
        length = total // self.cycles
        return self.rate * cosine(step % length / length)

    def initial_noise(self, problem: TrainingProblem) -> tuple[float, bool]:
        return require_noise(self, problem.likelihood, self.noise), False

    def parameters(self, problem: TrainingProblem) -> Tensors:
        return {"weights": problem.start.clone()}

    def memory(self, problem: TrainingProblem) -> dict[str, Any]:
        # The draws so far, (rows, p) each, and the heat T / n of a step, zero where there shall be no noise.
        return {"draws": [], "heat": problem.start.new_zeros(())}

    def objective(
        self, problem: TrainingProblem, parameters: Tensors, batch: Minibatch
    ) -> tuple[Tensor, Tensor, Tensor]:
        weights = parameters["weights"]
        outputs = problem.network(weights, batch.inputs)
        loss = batch.loss(outputs)
        return loss - log_prior(weights, self.prior_variance) / len(problem.split), loss, outputs

    def before_epoch(self, problem: TrainingProblem, parameters: Tensors, epoch: int) -> None:
        explores = self.schedule == "cyclical" and epoch % self.cycle < self.burn_in
        problem.memory["heat"].fill_(0 if explores else self.temperature / len(problem.split))

    def after_epoch(self, problem: TrainingProblem, parameters: Tensors, epoch: int) -> None:
        if self.draws_after(epoch + 1) > self.draws_after(epoch):
            problem.memory["draws"].append(parameters["weights"].detach().clone())

    def solution(self, problem: TrainingProblem, parameters: Tensors, row: int) -> Solution:
        draws = torch.stack([weights[row] for weights in problem.memory["draws"]])
        return Ensemble(problem.network.state(draws), noise=problem.noise(row))
