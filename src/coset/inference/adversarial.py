"""Adversarial training: ordinary training on inputs that an attack has moved."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from torch import Tensor

from coset.inference.map import MAP
from coset.solutions.pgd import PGD, perturb
from coset.training.loop import Minibatch
from coset.training.network import Tensors, TrainingProblem


@dataclass(frozen=True)
class Adversarial(MAP):
    """Minimise mean_i max_z -log p(y_i | z, w) + weight_decay / 2 ||w||^2, with z in the ball of the attack around x_i
    (Madry et al. 2018, Eq. 2.1), where the maximum is what `attack` finds at the weights of each step.

    The attack sees the model as training does, with the statistics of the batch, and does not count in its running
    ones. Loss and accuracy of an epoch are those under attack. The other settings are those of `MAP`.
    """

    attack: PGD = field(default_factory=PGD)

    def context(self, problem: TrainingProblem) -> None:
        self.attack.check(*problem.split)

    def objective(
        self, problem: TrainingProblem, parameters: Tensors, batch: Minibatch
    ) -> tuple[Tensor, Tensor, Tensor]:
        weights = parameters["weights"].detach()

        def loss(inputs: Tensor) -> Tensor:
            return batch.loss(problem.network.aside(weights, inputs))

        attacked = perturb(self.attack, loss, batch.inputs, problem.randomness.generators)
        return super().objective(problem, parameters, replace(batch, inputs=attacked))
