"""Variational inference with a posterior that is symmetric: all images of a Gaussian under the model's permutations."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from coset.core.errors import CosetError
from coset.inference.vi import VI
from coset.solutions.orbit_map import OrbitMap
from coset.solutions.overlap_estimators import Entropy, estimator
from coset.symmetries.infer import symmetry
from coset.training.network import TrainingProblem


@dataclass(frozen=True, repr=False)
class SymmetrizedVI(VI):
    """Variational inference with the mixture q_G of all images of q = N(m, s^2) under the model's permutations.

        ELBO(q_G) = ELBO(q) + I,    I = H(q_G) - H(q) = E_q[log q(w) - log q_G(w)]    (gelberg2024 Theorem 4.1)

    The solution is q: a network drawn from q_G is one drawn from q, but for the order of its units. At a temperature T
    the entropy, and so I, has the weight T.

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
        prior_variance: v of the prior N(0, v).
        temperature: T.
        initial_std: s at the start.
        samples: Weights drawn a step.
        reparameterization: "weights", since the entropy needs those that were drawn.
        entropy: How I is estimated: from uniform permutations ("infonce", gelberg2024 Theorem 4.3), from those that are
            drawn where q is large ("importance"), by Bethe permanents ("bethe"), or by exact ones ("exact"), for sets
            of up to twelve units.
        elements: One more than there are permutations, of "infonce" and "importance".

    Raises:
        CosetError: If a setting is out of range.

    Example:
        >>> (posterior,) = coset.fit(model, digits.train, coset.SymmetrizedVI(epochs=1, batch_size=500))
        >>> type(posterior).__name__
        'Gaussian'
    """

    entropy: Entropy = "bethe"
    elements: int = 20

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.elements < 2:
            raise CosetError(f"SymmetrizedVI: elements must be 2 or more, not {self.elements!r}.")
        if self.reparameterization == "local":
            raise CosetError("SymmetrizedVI: the entropy needs the weights that were drawn, so they cannot be local.")

    def context(self, problem: TrainingProblem) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
        # I at drawn weights, means and deviations, each (rows, p); traced on the CPU, where the group is the same.
        model = copy.deepcopy(problem.network.model).cpu().eval()
        sym = symmetry(model, (problem.split.inputs[:2].cpu(),))
        permuted = [name for group in sym.groups if group.size > 1 for name, _ in group.members]
        for name in {name for name, p in model.named_parameters() if not p.requires_grad} & {*permuted}:
            raise CosetError(
                f"Parameter '{name}' is frozen, but equivalent modes have other values of it, so that they do not "
                "overlap at all: use coset.VI."
            )
        orbit = OrbitMap(sym, problem.network.shapes, problem.device)
        estimate = estimator(self.entropy, orbit, self.elements)
        return lambda weights, mean, std: orbit.log_order - estimate(weights, mean, std)

    def _surplus(self, problem: TrainingProblem, weights: Tensor, mean: Tensor, std: Tensor) -> Tensor:
        """-T I, (rows,)."""
        # Permutations come from torch's global generator, so that the noise of the weights is that of plain VI.
        with torch.autocast(weights.device.type, enabled=False):
            information: Tensor = problem.context(weights, mean, std)
        return -self.temperature * information.to(weights.dtype)
