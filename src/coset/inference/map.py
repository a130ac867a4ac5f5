"""Maximum a posteriori: ordinary training, to a Dirac."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from coset.solutions.dirac import Dirac
from coset.solutions.solution import Solution
from coset.training.loop import Method, Problem, Run
from coset.training.minibatches import Descending, Descent, check_decay


@dataclass(frozen=True)
class MAP(Descent, Method):
    """Minimise mean_i -log p(y_i | x_i, w) + weight_decay / 2 ||w||^2.

    With n examples this is the mode of the posterior under the prior N(0, 1 / (n weight_decay)). The other settings
    are those of `Descent`; the rate is 2e-3 for adam and 0.1 for sgd when None.
    """

    RATES: ClassVar[dict[str, float]] = {"adam": 2e-3, "sgd": 0.1}

    weight_decay: float = 5e-4

    def __post_init__(self) -> None:
        super().__post_init__()
        check_decay(self, self.weight_decay)

    def start(self, problem: Problem) -> Run:
        return Training(self, problem)


class Training(Descending, Run):
    """The weights, (rows, p)."""

    def __init__(self, settings: MAP, problem: Problem) -> None:
        self.weights = problem.start.clone()
        self._decay = settings.weight_decay
        super().__init__(settings, problem, [self.weights])

    def objective(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        outputs = self.problem.network(self.weights, inputs)
        loss = self.loss(outputs, targets)
        return loss + self._decay / 2 * self.weights.square().sum(1), loss, outputs

    def solutions(self) -> list[Solution]:
        network = self.problem.network
        return [Dirac(network.state(row), noise=self.found_noise(r)) for r, row in enumerate(self.weights)]
