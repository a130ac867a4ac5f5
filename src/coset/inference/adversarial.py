"""Adversarial training: ordinary training on inputs that an attack has moved."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from coset.inference.map import MAP, Training
from coset.solutions.pgd import PGD, perturb
from coset.training.loop import Problem, Run


@dataclass(frozen=True)
class Adversarial(MAP):
    """Minimise mean_i max_z -log p(y_i | z, w) + weight_decay / 2 ||w||^2, with z in the ball of the attack around x_i
    (Madry et al. 2018, Eq. 2.1), where the maximum is what `attack` finds at the weights of each step.

    The attack sees the model as training does, with the statistics of the batch, and does not count in its running
    ones. Loss and accuracy of an epoch are those under attack. The other settings are those of `MAP`.
    """

    attack: PGD = field(default_factory=PGD)

    def start(self, problem: Problem) -> Run:
        self.attack.check(*problem.split)
        return _Attacked(self, problem)


class _Attacked(Training):
    def __init__(self, settings: Adversarial, problem: Problem) -> None:
        self._attack = settings.attack
        super().__init__(settings, problem)

    def objective(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        weights = self.weights.detach()

        def loss(x: Tensor) -> Tensor:
            return self.loss(self.problem.network.aside(weights, x), targets)

        moved = perturb(self._attack, loss, inputs, self.problem.randomness.generators)
        return super().objective(moved, targets)
