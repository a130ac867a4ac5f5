"""The density of what a flow generates, exact but for steps in time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal, get_args

import torch
from torch import Tensor

from coset.core.errors import CosetError
from coset.core.progress import Counted
from coset.flow.solvers import Field, Rate, integrate
from coset.weightspace.manifold import Manifold

Noise = Literal["rademacher", "gaussian"]
ROWS = 1024  # points that are differentiated at once, or as many as are asked for


def exact(field: Field, manifold: Manifold) -> Rate:
    """(x, t) -> (v [n, D], sum_i e_i^T J e_i [n] float64): the work of D gradients of the field."""

    def rate(x: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        axes = torch.arange(x.shape[-1], device=x.device)
        chunks = torch.split(axes, max(ROWS // len(x), 1))
        vectors = (torch.nn.functional.one_hot(chunk, len(axes)).to(x.dtype) for chunk in chunks)
        return _traced(field, manifold, x, t, (e.unsqueeze(1).expand(-1, len(x), -1) for e in vectors))

    return rate


def hutchinson(field: Field, manifold: Manifold, noise: Tensor) -> Rate:
    """(x, t) -> (v [n, D], mean_k e_k^T J e_k [n] float64), unbiased if the vectors have covariance one.

    noise: [probes, n, D] the vectors e_k, the same at every time, as an integral needs (FFJORD, Section 3.1).
    """

    def rate(x: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        v, total = _traced(field, manifold, x, t, iter(torch.split(noise, max(ROWS // len(x), 1))))
        return v, total / len(noise)

    return rate


def draw(x: Tensor, probes: int, noise: Noise = "rademacher", generator: torch.Generator | None = None) -> Tensor:
    """[probes, n, D] vectors with covariance one for points x [n, D]."""
    if noise not in get_args(Noise):
        raise CosetError(f"The noise of an estimated divergence is {' or '.join(get_args(Noise))}, not {noise!r}.")
    if probes < 1:
        raise CosetError(f"A divergence cannot be estimated by {probes} probes: give one or more.")
    device = x.device if generator is None else generator.device
    shape = (probes, *x.shape)
    if noise == "gaussian":
        return torch.randn(shape, generator=generator, device=device, dtype=x.dtype).to(x.device)
    return (2 * torch.randint(2, shape, generator=generator, device=device) - 1).to(x)


def _traced(field: Field, manifold: Manifold, x: Tensor, t: Tensor, vectors: Iterator[Tensor]) -> tuple[Tensor, Tensor]:
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
    found = torch.autograd.grad(v, points, vectors, allow_unused=True)[0] if v.requires_grad else None
    if found is None:
        raise CosetError("The field has no gradient in x, so its divergence is not known: call it without no_grad.")
    return found


Divergence = Literal["exact", "hutchinson"]
LogProb = Callable[[Tensor], Tensor]


def log_prob(
    field: Field,
    x1: Tensor,
    base_log_prob: LogProb,
    manifold: Manifold,
    steps: int = 32,
    method: str = "rk4",
    divergence: Divergence = "exact",
    probes: int = 1,
    noise: Noise = "rademacher",
    generator: torch.Generator | None = None,
    progress: Counted | None = None,
) -> Tensor:
    """log q(x1) = log p(x0) - int_0^1 div v(x_t, t) dt, [n] float64, by area and volume of the manifold.

    x_t leads back from x1 at time 1 to x0 at time 0, in one solve together with the integral (Chen et al. 2018; on
    manifolds Mathieu and Nickel 2020).

    base_log_prob
        x0 [n, D] -> [n]
    divergence
        "exact" takes D gradients of the field at every stage, "hutchinson" as many as `probes`, with vectors of `noise`
        drawn once: then log q is unbiased, but for the steps, and q itself is not
    """
    rate = _rate(field, x1, manifold, divergence, probes, noise, generator)
    x0, grown = integrate(rate, x1, manifold, steps, method, 1.0, 0.0, progress=progress)
    return base_log_prob(x0).double() + grown


def sample_with_log_prob(
    field: Field,
    x0: Tensor,
    base_log_prob: LogProb,
    manifold: Manifold,
    steps: int = 32,
    method: str = "rk4",
    divergence: Divergence = "exact",
    probes: int = 1,
    noise: Noise = "rademacher",
    generator: torch.Generator | None = None,
    progress: Counted | None = None,
) -> tuple[Tensor, Tensor]:
    """(x1 [n, D], log q(x1) [n] float64) for draws x0 of the base, in one pass forwards; see `log_prob`."""
    rate = _rate(field, x0, manifold, divergence, probes, noise, generator)
    x1, grown = integrate(rate, x0, manifold, steps, method, 0.0, 1.0, progress=progress)
    return x1, base_log_prob(x0).double() - grown


def _rate(
    field: Field,
    x: Tensor,
    manifold: Manifold,
    divergence: Divergence,
    probes: int,
    noise: Noise,
    generator: torch.Generator | None,
) -> Rate:
    if divergence == "exact":
        return exact(field, manifold)
    if divergence == "hutchinson":
        return hutchinson(field, manifold, draw(x, probes, noise, generator))
    raise CosetError(f"The divergence is exact or hutchinson, not {divergence!r}.")
