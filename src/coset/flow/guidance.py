"""Steer a flow towards networks that do well on data, by the gradient of their loss."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from coset.core import state as states
from coset.core.errors import CosetError
from coset.core.functional import evaluating
from coset.core.show import Shown, Table
from coset.core.state import State
from coset.data import Data, Split, as_split
from coset.flow.solvers import VelocityFunction
from coset.solutions.likelihood import Likelihood, likelihood_of
from coset.weightspace.manifold import Manifold

GuidancePlace = Literal["state", "endpoint"]
GuidanceScale = Literal["velocity", "gradient"]


@dataclass(frozen=True, eq=False, repr=False)
class Guidance(Shown):
    """What sampled networks should do well on, and how much that counts: see `Flow.sample`.

    Args:
        model: What the networks are states of.
        data: Examples whose loss the networks go down.
        strength: Of the force, which lowers the loss if it is positive: so many times as long as the velocity of the
            flow, with `scale` "velocity"; a factor of the gradient with "gradient".
        batch_size: How many examples, drawn anew at each call, are measured; None takes all of them.
        at: "state": the gradient is that of the network at x; "endpoint": of the network that x leads to if it goes on
            as it does, since early in a flow x itself is noise.
        scale: "velocity": down the loss as steeply as possible, with lengths in units of the spread of weights, and at
            a pace that is relative to that of the flow, so that one strength fits all losses and networks;
            "gradient": the gradient as it is (`weightflow`).
        noise: The standard deviation of the targets of a regression.

    Raises:
        CosetError: If the strength is not finite, or `at` or `scale` none of their choices.

    Example:
        >>> coset.Guidance(model, digits.train, strength=3.0, batch_size=128)
        Guidance on 1,442 examples for MLP
          strength  3
          measured  at the state, on 128 examples at a time
          scale     velocity
    """

    model: nn.Module
    data: Data
    strength: float
    batch_size: int | None = None
    at: GuidancePlace = "state"
    scale: GuidanceScale = "velocity"
    noise: float | None = None

    def __post_init__(self) -> None:
        if self.at not in get_args(GuidancePlace):
            raise CosetError(f"Guidance is measured at {' or '.join(get_args(GuidancePlace))}, not at {self.at!r}.")
        if self.scale not in get_args(GuidanceScale):
            raise CosetError(f"The scale of guidance is {' or '.join(get_args(GuidanceScale))}, not {self.scale!r}.")
        if not math.isfinite(self.strength):
            raise CosetError(f"The strength of guidance must be a finite number, not {self.strength}.")

    def _shown(self) -> Table:
        examples = "all examples" if self.batch_size is None else f"{self.batch_size:,} examples"
        title = f"Guidance on {len(as_split(self.data)):,} examples for {type(self.model).__name__}"
        rows: list[tuple[object, ...]] = [
            ("strength", self.strength),
            ("measured", f"at the {self.at}, on {examples} at a time"),
            ("scale", self.scale),
        ]
        return Table(title, rows if self.noise is None else [*rows, ("noise", self.noise)])

    @property
    def about(self) -> dict[str, Any]:
        """How it steers, as JSON can hold it."""
        return {name: getattr(self, name) for name in ("strength", "batch_size", "at", "scale", "noise")}


def guided(
    field: VelocityFunction,
    guidance: Guidance,
    decode: Callable[[Tensor], State],
    manifold: Manifold,
    units: Tensor,
    generator: torch.Generator | None = None,
) -> VelocityFunction:
    """The field v(x, t) - strength g, where L is the mean loss -log p(y | x) over the data of each network.

    With U = diag(units), g = |U^-1 v| f / |U^-1 f| for f = U^2 grad L, on spheres U P U grad L with the projection P to
    U^-1 of the tangent space, or g = grad L (`weightflow`: guidance by the task gradient). U^2 stands for the
    covariance of the base: where x_t joins x_0 ~ N(0, C) and x_1 in a straight line, p(x_1 | data) instead of p(x_1)
    adds (1 - t) / t C grad log p(data | x_t) to v (for diffusions: Dhariwal and Nichol 2021).

    All are tangent, and each network has its own. Of an end point y = exp_x((1 - t) v) the gradient is taken at y and
    carried back to x in parallel, without a derivative of the field. Where x needs a gradient, as for a divergence, the
    guided field has one too.

    decode
        x [n, D] -> a population, differentiable
    units
        [D] the spread of each coordinate
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
            slope = torch.autograd.grad(losses.sum(), at, create_graph=x.requires_grad)[0]
        return manifold.tangent(x, slope)

    def force(x: Tensor, v: Tensor) -> Tensor:
        if guidance.scale == "gradient":
            return gradient(x)
        steepest = manifold.tangent(units * x, units * gradient(x))
        length, pace = (torch.linalg.vector_norm(u, dim=-1, keepdim=True) for u in (steepest, v / units))
        scaled: Tensor = pace / torch.where(length > 0, length, 1.0) * units * steepest
        return scaled

    def velocity(x: Tensor, t: Tensor) -> Tensor:
        v = field(x, t)
        if guidance.at == "state":
            return v - guidance.strength * force(x, v)
        end = manifold.exp(x, (1 - t).unsqueeze(-1) * v)
        return v - guidance.strength * manifold.transport(end, x, force(end, v))

    return velocity


def _require_outputs(model: nn.Module, likelihood: Likelihood, split: Split) -> None:
    """Refuse a model whose outputs the targets cannot belong to."""
    device = next(iter(states.of(model).values())).device
    with evaluating(model, device) as ready:
        outputs = states.call(ready, states.of(ready), (split.inputs[:2].to(device),))
        likelihood.check(likelihood.read(outputs, model, len(split.inputs[:2])), split.targets.to(device))
