"""Steer a flow towards networks that do well on data, by the gradient of their loss."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from coset import state as states
from coset.checks import State
from coset.data import Data, Split, as_split
from coset.errors import CosetError
from coset.flow.solvers import Field
from coset.solutions.likelihood import Likelihood, likelihood_of
from coset.solutions.predictive import evaluating
from coset.weightspace.manifold import Manifold

Place = Literal["state", "endpoint"]


@dataclass(frozen=True, eq=False)
class Guidance:
    """What networks should do well on, and how much that counts.

    strength
        the factor of the force, which lowers the loss if it is positive
    batch_size
        so many examples, drawn anew at each call, are measured; all of them without it
    at
        "state": the gradient is that of the network at x; "endpoint": of the network that x leads to if it goes on as
        it does, since early in a flow x itself is noise
    noise
        the standard deviation of the targets of a regression
    """

    model: nn.Module
    data: Data
    strength: float
    batch_size: int | None = None
    at: Place = "state"
    noise: float | None = None

    def __post_init__(self) -> None:
        if self.at not in get_args(Place):
            raise CosetError(f"Guidance is measured at {' or '.join(get_args(Place))}, not at {self.at!r}.")
        if not math.isfinite(self.strength):
            raise CosetError(f"The strength of guidance must be a finite number, not {self.strength}.")


def guided(
    field: Field,
    guidance: Guidance,
    decode: Callable[[Tensor], State],
    manifold: Manifold,
    generator: torch.Generator | None = None,
) -> Field:
    """The field v(x, t) - strength grad L, where L is the mean loss -log p(y | x) over the data of each network.

    The gradient is tangent, and each network has its own. Of an end point y = exp_x((1 - t) v) it is taken at y and
    carried back to x in parallel, without a derivative of the field (`weightflow`: guidance by the task gradient).
    Where x needs a gradient, as for a divergence, the guided field has one too.

    decode
        x [n, D] -> a population, differentiable
    generator
        draws the minibatches
    """
    split = as_split(guidance.data)
    likelihood = likelihood_of(split.targets)
    likelihood.check_noise(guidance.noise)
    _require_outputs(guidance.model, likelihood, split)

    def batch() -> Split:
        if guidance.batch_size is None:
            return split
        return split.subset(guidance.batch_size, torch.default_generator if generator is None else generator)

    def gradient(x: Tensor) -> Tensor:
        """Of the loss of each network, tangent at x."""
        inputs, targets = batch().to(x.device)
        with evaluating(guidance.model, x.device) as model, torch.enable_grad():
            at = x if x.requires_grad else x.detach().requires_grad_()
            population = states.untie(model, decode(at))
            outputs = torch.vmap(lambda state: states.call(model, state, (inputs,)))(population)
            losses = -likelihood.log_prob(outputs, targets, guidance.noise).flatten(1).mean(1)
            # A sum over networks, so that none of them sees how many there are.
            found = torch.autograd.grad(losses.sum(), at, create_graph=x.requires_grad)[0]
        return manifold.tangent(x, found)

    def velocity(x: Tensor, t: Tensor) -> Tensor:
        v = field(x, t)
        if guidance.at == "state":
            return v - guidance.strength * gradient(x)
        end = manifold.exp(x, (1 - t).unsqueeze(-1) * v)
        return v - guidance.strength * manifold.transport(end, x, gradient(end))

    return velocity


def _require_outputs(model: nn.Module, likelihood: Likelihood, split: Split) -> None:
    """Refuse a model whose outputs the targets cannot belong to."""
    device = next(iter(states.of(model).values())).device
    with evaluating(model, device) as ready:
        found = states.call(ready, states.of(ready), (split.inputs[:2].to(device),))
        outputs = likelihood.read(found, model, len(split.inputs[:2]))
        likelihood.check(outputs, split.targets.to(device))
