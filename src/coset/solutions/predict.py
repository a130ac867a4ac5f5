"""Predictions of a solution."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from coset.checks import State
from coset.solutions.load import as_solution
from coset.solutions.predictive import BATCH, predictive
from coset.solutions.solution import Solution


def predict(
    q: State | Solution,
    model: nn.Module,
    x: Tensor,
    samples: int = 128,
    *,
    batch_size: int = BATCH,
    generator: torch.Generator | None = None,
    device: str | torch.device | None = None,
) -> Tensor:
    """log p(class | x) = log mean_s softmax(model(x; w_s)) with w_s ~ q: (n, ..., classes) float64.

    The model returns logits (n, ..., classes). A Dirac needs one evaluation, whatever `samples`. Without a generator
    the noise is the same at each call. `device` is the solution's own unless given.
    """
    found = predictive(as_solution(q), model, x, samples, batch_size=batch_size, generator=generator, device=device)
    return found.log_probs
