"""How fast a field makes volumes grow: its divergence, exact or estimated.

A field on spheres and flat space, extended to the ambient space by V(project(x)), is constant along radii. So the
normal directions add nothing to the trace of its Jacobian J there, which is the divergence on the manifold.

Fields are called with several copies of the points, x.repeat(k, 1), for k vectors at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, get_args

import torch
from torch import Tensor

from coset.errors import CosetError
from coset.flow.solvers import Field, Rate
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
