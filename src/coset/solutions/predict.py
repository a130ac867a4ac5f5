"""Predicted classes of a solution."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from coset.checks import State
from coset.errors import CosetError
from coset.solutions.averages import AverageProbs
from coset.solutions.device import resolve
from coset.solutions.draws import share
from coset.solutions.likelihood import Classification, log_softmax
from coset.solutions.load import as_solution
from coset.solutions.predictive import BATCH, evaluated, require_numbers
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
    given = as_solution(q)
    draws = share(given, samples)
    if draws.noise is not None:
        raise CosetError("This solution has noise, so its outputs are values and no classes: use coset.moments.")
    where = resolve(device, given.mean)
    average = AverageProbs(draws.weights.to(where), len(x))
    with evaluated(draws, model, x, Classification(), batch_size, generator, where) as evaluations:
        for rows, examples, logits in evaluations:
            average.add(rows, examples, log_softmax(logits))
    assert average.total is not None  # there is at least one state
    require_numbers(average.total, model)
    return average.total
