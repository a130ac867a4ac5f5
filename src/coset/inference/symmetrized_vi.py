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


@dataclass(frozen=True)
class SymmetrizedVI(VI):
    """Maximise the evidence lower bound of the mixture q_G of all images of q = N(m, s^2) under permutations:

        ELBO(q_G) = ELBO(q) + I,    I = H(q_G) - H(q) = E_q[log q(w) - log q_G(w)]    (gelberg2024 Theorem 4.1)

    The solution is q: a network drawn from q_G is one drawn from q, but for the order of its units. At a temperature T
    the entropy, and so I, has the weight T.

    entropy: how I is estimated (see `overlap_estimators`). infonce: from `elements` - 1 uniform permutations
    (gelberg2024 Theorem 4.3); importance: from as many that are drawn where q is large; bethe: by Bethe permanents;
    exact: by exact ones, for sets of up to twelve units. The other settings are those of `VI`.
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
        """I at drawn weights, means and deviations, each (rows, p); traced on the CPU, where the group is the same."""
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

    def surplus(self, problem: TrainingProblem, weights: Tensor, mean: Tensor, std: Tensor) -> Tensor:
        """-T I, (rows,)."""
        # Permutations come from torch's global generator, so that the noise of the weights is that of plain VI.
        with torch.autocast(weights.device.type, enabled=False):
            information: Tensor = problem.context(weights, mean, std)
        return -self.temperature * information.to(weights.dtype)
