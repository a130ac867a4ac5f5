"""The density of what a flow generates, exact but for steps in time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from coset.errors import CosetError
from coset.flow.divergence import Noise, draw, exact, hutchinson
from coset.flow.solvers import Field, Rate, integrate
from coset.progress import Counted
from coset.weightspace.manifold import Manifold

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
