"""Predicted values of a solution: mean and standard deviation."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from coset.checks import State
from coset.errors import CosetError
from coset.solutions.averages import AverageValues
from coset.solutions.device import resolve
from coset.solutions.draws import share
from coset.solutions.likelihood import Regression
from coset.solutions.load import as_solution
from coset.solutions.predictive import BATCH, evaluated, require_numbers
from coset.solutions.solution import Solution


@dataclass(frozen=True, eq=False)
class Moments:
    """Of the predictive distribution of y at n inputs, each (n, k) float64.

    mean: E[f(x; w)]; std: sqrt(epistemic^2 + E[noise^2]), of y; epistemic: the standard deviation of f(x; w) over
    states w, zero for a Dirac.
    """

    mean: Tensor
    std: Tensor
    epistemic: Tensor


def moments(
    q: State | Solution,
    model: nn.Module,
    x: Tensor,
    samples: int = 128,
    *,
    batch_size: int = BATCH,
    generator: torch.Generator | None = None,
    device: str | torch.device | None = None,
) -> Moments:
    """Mean and standard deviation of y = f(x; w) + noise * e with w ~ q and e ~ N(0, 1), from states drawn from `q`.

    The model returns values (n, k), and `q` has a noise. A Dirac needs one evaluation, whatever `samples`. Without a
    generator the draws are the same at each call. `device` is the solution's own unless given.
    """
    given = as_solution(q)
    draws = share(given, samples)
    noise = draws.noise
    if noise is None:
        raise CosetError(
            "This solution has no noise, so the deviation of values is not known: give it, as in coset.Dirac(state, "
            "noise=0.1), or use coset.predict for classes."
        )
    where = resolve(device, given.mean)
    average = AverageValues(draws.weights.to(where), len(x))
    with evaluated(draws, model, x, Regression(), batch_size, generator, where) as evaluations:
        for rows, examples, values in evaluations:
            average.add(rows, examples, values)
    require_numbers(average.mean, model)
    variance = average.variance
    return Moments(average.mean, (variance + draws.weights @ noise.square()).sqrt(), variance.sqrt())
