"""The density of what a flow generates, exact but for steps in time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from coset.core.errors import CosetError
from coset.flow.solvers import Rate, Solver, VelocityFunction, integrate
from coset.weightspace.manifold import Manifold

ProbeNoise = Literal["rademacher", "gaussian"]
DivergenceName = Literal["exact", "hutchinson"]
ROWS = 1024  # points that are differentiated at once, or as many as are asked for


def exact(field: VelocityFunction, manifold: Manifold) -> Rate:
    """(x, t) -> (v [n, D], sum_i e_i^T J e_i [n] float64): the work of D gradients of the field."""

    def rate(x: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        axes = torch.arange(x.shape[-1], device=x.device)
        chunks = torch.split(axes, max(ROWS // len(x), 1))
        vectors = (torch.nn.functional.one_hot(chunk, len(axes)).to(x.dtype) for chunk in chunks)
        return _traced(field, manifold, x, t, (e.unsqueeze(1).expand(-1, len(x), -1) for e in vectors))

    return rate


def hutchinson(field: VelocityFunction, manifold: Manifold, noise: Tensor) -> Rate:
    """(x, t) -> (v [n, D], mean_k e_k^T J e_k [n] float64), unbiased if the vectors have covariance one.

    noise: [probes, n, D] the vectors e_k, the same at every time, as an integral needs (FFJORD, Section 3.1).
    """

    def rate(x: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        v, total = _traced(field, manifold, x, t, iter(torch.split(noise, max(ROWS // len(x), 1))))
        return v, total / len(noise)

    return rate


def _traced(
    field: VelocityFunction, manifold: Manifold, x: Tensor, t: Tensor, vectors: Iterator[Tensor]
) -> tuple[Tensor, Tensor]:
    """v, and sum_k e_k^T J e_k over chunks [k, n, D] of vectors: one gradient of k copies of the points for each."""
    first: Tensor | None = None
    total = x.new_zeros(len(x), dtype=torch.float64)
    for chunk in vectors:
        k = len(chunk)
        with torch.enable_grad():
            points = x.detach().repeat(k, 1).requires_grad_()
            v = field(manifold.project(points), t.repeat(k))
        along = _pulled(v, points, chunk.reshape(v.shape))
        total = total + (along * chunk.reshape(v.shape)).sum(-1, dtype=torch.float64).view(k, -1).sum(0)
        first = v.detach()[: len(x)] if first is None else first
    assert first is not None  # there is at least one vector
    return first, total


def _pulled(v: Tensor, points: Tensor, vectors: Tensor) -> Tensor:
    """J^T e. A field computed without gradients would seem to have no divergence, so it is refused."""
    gradient = torch.autograd.grad(v, points, vectors, allow_unused=True)[0] if v.requires_grad else None
    if gradient is None:
        raise CosetError("The field has no gradient in x, so its divergence is not known: call it without no_grad.")
    return gradient


@dataclass(frozen=True)
class Divergence:
    """How the divergence of a field is computed.

    name: "exact" takes D gradients of the field at every stage, "hutchinson" as many as `probes`, with vectors of
    `noise` drawn once: then log q is unbiased, but for the steps, and q itself is not.
    """

    name: DivergenceName = "exact"
    probes: int = 1
    noise: ProbeNoise = "rademacher"

    def __post_init__(self) -> None:
        if self.name not in get_args(DivergenceName):
            raise CosetError(f"The divergence is exact or hutchinson, not {self.name!r}.")
        if self.noise not in get_args(ProbeNoise):
            kinds = " or ".join(get_args(ProbeNoise))
            raise CosetError(f"The noise of an estimated divergence is {kinds}, not {self.noise!r}.")
        if self.probes < 1:
            raise CosetError(f"A divergence cannot be estimated by {self.probes} probes: give one or more.")

    def draw(self, x: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """[probes, n, D] vectors with covariance one for points x [n, D]."""
        device = x.device if generator is None else generator.device
        shape = (self.probes, *x.shape)
        if self.noise == "gaussian":
            return torch.randn(shape, generator=generator, device=device, dtype=x.dtype).to(x.device)
        return (2 * torch.randint(2, shape, generator=generator, device=device) - 1).to(x)

    def rate(self, field: VelocityFunction, x: Tensor, manifold: Manifold, generator: torch.Generator | None) -> Rate:
        """Velocity and divergence, for paths through points x [n, D]."""
        if self.name == "exact":
            return exact(field, manifold)
        return hutchinson(field, manifold, self.draw(x, generator))


LogProb = Callable[[Tensor], Tensor]
"""Of the base: x0 [n, D] -> [n]."""


def log_prob(
    field: VelocityFunction,
    x1: Tensor,
    base_log_prob: LogProb,
    manifold: Manifold,
    solver: Solver,
    divergence: Divergence,
) -> Tensor:
    """log q(x1) = log p(x0) - int_0^1 div v(x_t, t) dt, [n] float64, by area and volume of the manifold.

    x_t leads back from x1 at time 1 to x0 at time 0, in one solve together with the integral (Chen et al. 2018; on
    manifolds Mathieu and Nickel 2020).
    """
    rate = divergence.rate(field, x1, manifold, solver.generator)
    x0, growth = integrate(rate, x1, manifold, solver, 1.0, 0.0)
    return base_log_prob(x0).double() + growth


def sample_with_log_prob(
    field: VelocityFunction,
    x0: Tensor,
    base_log_prob: LogProb,
    manifold: Manifold,
    solver: Solver,
    divergence: Divergence,
) -> tuple[Tensor, Tensor]:
    """(x1 [n, D], log q(x1) [n] float64) for draws x0 of the base, in one pass forwards; see `log_prob`."""
    rate = divergence.rate(field, x0, manifold, solver.generator)
    x1, growth = integrate(rate, x0, manifold, solver, 0.0, 1.0)
    return x1, base_log_prob(x0).double() - growth
