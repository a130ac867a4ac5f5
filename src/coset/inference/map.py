"""Maximum a posteriori: ordinary training, to a Dirac."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from coset.solutions.dirac import Dirac
from coset.solutions.solution import Solution
from coset.training.loop import GradientMethod, Minibatch
from coset.training.network import Tensors, TrainingProblem
from coset.training.optimizers import check_decay


@dataclass(frozen=True, repr=False)
class MAP(GradientMethod):
    """Minimise mean_i -log p(y_i | x_i, w) + weight_decay / 2 ||w||^2.

    With n examples this is the mode of the posterior under the prior N(0, 1 / (n weight_decay)). The solution is a
    `Dirac`.

    Args:
        optimizer: "adam" or "sgd".
        rate: The largest learning rate; 2e-3 for adam and 0.1 for sgd when None.
        momentum: Of sgd.
        epochs: Passes over the data.
        batch_size: Examples of a step; an epoch leaves out those that do not fill a batch, other ones each time.
        schedule: Of the rate: to zero ("cosine"), after a warm-up ("onecycle"), or "constant".
        augment: Shift and mirror images.
        precision: "bfloat16" runs the model, not the parameters, in 16 bits; "tf32" rounds factors on CUDA.
        noise: Standard deviation of the targets of a regression, learned when None.
        compile: Let torch compile the model, which pays in long runs of convolutional networks.
        weight_decay: Of all parameters.

    Raises:
        CosetError: If a setting is out of range.

    Example:
        >>> (solution,) = coset.fit(model, digits.train, coset.MAP(epochs=2))
        >>> solution
        Dirac(4 tensors, 1,210 coordinates)
    """

    RATES: ClassVar[Mapping[str, float]] = {"adam": 2e-3, "sgd": 0.1}

    weight_decay: float = 5e-4

    def __post_init__(self) -> None:
        super().__post_init__()
        check_decay(self, self.weight_decay)

    def parameters(self, problem: TrainingProblem) -> Tensors:
        return {"weights": problem.start.clone()}  # (rows, p)

    def objective(
        self, problem: TrainingProblem, parameters: Tensors, batch: Minibatch
    ) -> tuple[Tensor, Tensor, Tensor]:
        weights = parameters["weights"]
        outputs = problem.network(weights, batch.inputs)
        loss = batch.loss(outputs)
        return loss + self.weight_decay / 2 * weights.square().sum(1), loss, outputs

    def solution(self, problem: TrainingProblem, parameters: Tensors, row: int) -> Solution:
        return Dirac(problem.network.state(parameters["weights"][row]), noise=problem.noise(row))
