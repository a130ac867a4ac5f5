"""Reverse KL from a Gaussian to a mixture of two, minimised on samples as the paper does (gelberg2024 Appendix A)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

EVERY = 250  # steps between words about progress


@dataclass(frozen=True)
class KLDescent:
    """How to minimise: samples an estimate, steps, learning rate, optimizer, and the dimension of the space."""

    samples: int
    steps: int
    rate: float
    optimizer: Literal["sgd", "adam"] = "sgd"
    dimension: int = 2


@dataclass(frozen=True)
class GaussianFits:
    """Gaussians N(mean, factor factor^T), one for each target: [n, d], [n, d, d]; and the last estimates of KL, [n]."""

    mean: Tensor
    factor: Tensor
    kl: Tensor


def direction(dimension: int, device: torch.device | str) -> Tensor:
    """The unit vector u from one mode to the other, along no axis; in float64, as `estimate` takes its norm for one."""
    return torch.full((dimension,), dimension**-0.5, dtype=torch.float64, device=device)


def estimate(mean: Tensor, factor: Tensor, noise: Tensor, alpha: Tensor, sigma: Tensor) -> Tensor:
    """The mean of log q(x_i) / p(x_i) over x_i = mean + factor noise_i (gelberg2024 Eq. 8), for n targets at once.

    q = N(mean, factor factor^T), p = (N(0, sigma^2 I) + N(alpha u, sigma^2 I)) / 2. Shapes [n, d], [n, d, d],
    [n, samples, d], [n], [n]; the result is [n]. factor is lower triangular.
    """
    d = mean.shape[-1]
    x = mean[:, None] + noise @ factor.mT
    variance = sigma.square()[:, None]
    along = x @ direction(d, x.device).to(x.dtype)
    ratio = (alpha[:, None] * along - alpha.square()[:, None] / 2) / variance  # log of the second mode by the first
    log_p = F.softplus(ratio) - x.square().sum(-1) / (2 * variance) - math.log(2) - d * sigma.log()[:, None]
    log_q = -noise.square().sum(-1) / 2 - factor.diagonal(dim1=-2, dim2=-1).abs().log().sum(-1)[:, None]
    return (log_q - log_p).mean(-1)


def minimise(
    alpha: Tensor, sigma: Tensor, settings: KLDescent, generator: torch.Generator, say: Callable[[str], None]
) -> GaussianFits:
    """Descend on `estimate`, with fresh noise at each step, from a mode, q = N(0, sigma^2 I); n targets [n] at once.

    The paper does not say how the covariance is kept positive; here its Cholesky factor is what descends.
    """
    n, d = len(alpha), settings.dimension
    mean = torch.zeros(n, d, device=alpha.device)
    factor = sigma[:, None, None] * torch.eye(d, device=alpha.device)
    mean.requires_grad_(), factor.requires_grad_()
    make = torch.optim.SGD if settings.optimizer == "sgd" else torch.optim.Adam
    optimizer = make([mean, factor], settings.rate)
    for step in range(settings.steps):
        if step % EVERY == 0:
            say(f"{n} Gaussians, step {step} of {settings.steps}")
        noise = torch.randn(n, settings.samples, d, device=alpha.device, generator=generator)
        kl = estimate(mean, factor.tril(), noise, alpha, sigma)
        optimizer.zero_grad()
        torch.autograd.backward(kl.sum())
        optimizer.step()
    return GaussianFits(mean.detach(), factor.detach().tril(), kl.detach())
