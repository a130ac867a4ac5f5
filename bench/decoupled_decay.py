"""Adam with a weight decay that is apart from the gradient, as transformers are trained by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

import coset
from coset.training.loop import Minibatch
from coset.training.network import Tensors, TrainingProblem
from coset.training.optimizers import Adam, Optimizer


class DecayingAdam(Adam):
    """w <- (1 - rate d) w, then a step of Adam (Loshchilov & Hutter 2019, Algorithm 2); decays d: (p,)."""

    def __init__(self, parameters: Sequence[Tensor], decays: Tensor) -> None:
        super().__init__(parameters)
        self._decays = decays

    @torch.no_grad()
    def step(self, gradients: Sequence[Tensor], rate: Tensor) -> None:
        for p in self._parameters:
            p.addcmul_(p, rate * self._decays, value=-1)
        super().step(gradients, rate)


@dataclass(frozen=True, repr=False)
class AdamW(coset.MAP):
    """Ordinary training by `DecayingAdam`, whose decay spares vectors: biases and gains of norms."""

    weight_decay: float = 0.1

    def objective(
        self, problem: TrainingProblem, parameters: Tensors, batch: Minibatch
    ) -> tuple[Tensor, Tensor, Tensor]:
        outputs = problem.network(parameters["weights"], batch.inputs)
        loss = batch.loss(outputs)
        return loss, loss, outputs

    def make_optimizer(self, problem: TrainingProblem, parameters: list[Tensor]) -> Optimizer:
        decays = [
            torch.full((shape.numel(),), self.weight_decay if len(shape) > 1 else 0.0)
            for shape in problem.network.shapes.values()
        ]
        return DecayingAdam(parameters, torch.cat(decays).to(parameters[0]))
