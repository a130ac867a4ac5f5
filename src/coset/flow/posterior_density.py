"""The posterior of a network's weights up to a constant, for all networks of a population."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from coset import state as states
from coset.checks import State
from coset.data import Data, as_split
from coset.errors import CosetError
from coset.inference.posterior import log_prior
from coset.populations.scores import scores


def log_likelihood(population: State, model: nn.Module, data: Data, noise: float | None = None) -> Tensor:
    """sum_i log p(y_i | x_i, w) [n] float64 of each network; `noise` is that of the targets of a regression."""
    split = as_split(data)
    count = split.targets.numel() if not split.targets.is_floating_point() else len(split)
    return -count * scores(population, model, split, noise).loss.to(next(iter(population.values())).device)


def log_posterior(
    population: State,
    model: nn.Module,
    data: Data,
    prior_std: float,
    noise: float | None = None,
) -> Tensor:
    """sum_i log p(y_i | x_i, w) + log N(w; 0, prior_std^2) [n] float64, over all trainable parameters w.

    A density of weights up to a constant, the evidence. On the coordinates of canonical networks it is
    `log_likelihood` plus `coset.flow.quotient_prior.quotient_log_prior`.
    """
    require_positive(prior_std)
    parameters = dict(model.named_parameters(remove_duplicate=False))
    own = states.untie(model, population)
    trained = [x for name, x in own.items() if name in parameters and parameters[name].requires_grad]
    if not trained:
        raise CosetError(f"{type(model).__name__} has no trainable parameters, so there is no prior.")
    weights = torch.cat([x.double().flatten(1) for x in trained], 1)
    return log_likelihood(population, model, data, noise) + log_prior(weights, prior_std**2)


def require_positive(prior_std: float) -> None:
    if not 0 < prior_std < math.inf:
        raise CosetError(f"The standard deviation of a prior must be positive, not {prior_std}.")
