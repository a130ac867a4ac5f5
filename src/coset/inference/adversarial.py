"""Adversarial training: ordinary training on inputs that an attack has moved."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from torch import Tensor

from coset.inference.map import MAP
from coset.solutions.pgd import PGD, perturb
from coset.training.loop import Minibatch
from coset.training.network import Tensors, TrainingProblem


@dataclass(frozen=True, repr=False)
class Adversarial(MAP):
    """Adversarial training: ordinary training on inputs that an attack has moved.

    Minimise mean_i max_z -log p(y_i | z, w) + weight_decay / 2 ||w||^2, with z in the ball of the attack around x_i
    (Madry et al. 2018, Eq. 2.1), where the maximum is what `attack` finds at the weights of each step. The attack sees
    the model as training does, with the statistics of the batch, and does not count in its running ones. Loss and
    accuracy of an epoch are those under attack. The solution is a `Dirac`.

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
        attack: Which inputs count as near, and how the worst of them are looked for.

    Raises:
        CosetError: If a setting is out of range.

    Example:
        >>> attack = coset.PGD(epsilon=0.1, steps=2, low=None, high=None)
        >>> (robust,) = coset.fit(model, digits.train, coset.Adversarial(epochs=1, attack=attack))
        >>> type(robust).__name__
        'Dirac'
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
