"""The posterior of the network with two weights: evidence, ELBO and its maximum, without samples.

For y = alpha |x| the likelihood of f(x) = relu(w_1 x) + relu(w_2 x) depends on the data by two sums,

    sum_i (y_i - f(x_i))^2 = A (alpha - u)^2 + B (alpha - v)^2,  u = relu(w_1) + relu(w_2), v = relu(-w_1) + relu(-w_2)

with A the sum of x_i^2 over x_i > 0, and B over x_i < 0. Under q = N(m, diag s^2) the moments of u and v have closed
forms, so the ELBO is exact but for the mutual information, a smooth integral over two dimensions. In each quadrant of w
the joint density is smooth, so Gauss-Legendre quadrature there gives the evidence to the last digits.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from coset.data import Split
from coset_papers.gelberg2024.tractable_net import EDGE

NODES = 200  # of Gauss-Legendre on a half-axis
# Of a normal on an axis: the information is right to 1e-6, also where deviations differ by a factor of ten.
# Gauss-Hermite quadrature is not, since it takes a kink for a polynomial.
PLACES = 321
REACH = 12.0  # standard deviations, beyond which nothing is left


class Normal(NamedTuple):
    """N(mean, diag std^2) over the two weights, [..., 2] in float64."""

    mean: Tensor
    std: Tensor


@dataclass(frozen=True)
class ExactPosterior:
    """Prior N(0, variance I), likelihood N(f(x), noise^2); right and left are A and B, for `count` examples."""

    alpha: float
    noise: float
    variance: float
    right: float
    left: float
    count: int

    @staticmethod
    def of(split: Split, alpha: float, noise: float, variance: float) -> ExactPosterior:
        """That of data from `tractable_net.points`."""
        x = split.inputs.double()
        right, left = (float(part.square().sum()) for part in (x.clamp(min=0), x.clamp(max=0)))
        return ExactPosterior(alpha, noise, variance, right, left, len(split))

    @property
    def constant(self) -> float:
        """What the likelihood has whatever the weights: -n log(noise sqrt(2 pi))."""
        return -self.count * math.log(self.noise * math.sqrt(2 * math.pi))

    @property
    def mode(self) -> tuple[float, float]:
        """The mode with w_1 > 0 > w_2, which the prior draws towards zero; the other has them swapped."""
        ridge = self.noise**2 / self.variance
        return self.alpha * self.right / (self.right + ridge), -self.alpha * self.left / (self.left + ridge)

    def log_joint(self, w: Tensor) -> Tensor:
        """log p(y | x, w) p(w), [...] for weights [..., 2]."""
        u, v = F.relu(w).sum(-1), F.relu(-w).sum(-1)
        squares = self.right * (self.alpha - u).square() + self.left * (self.alpha - v).square()
        prior = -w.square().sum(-1) / (2 * self.variance) - math.log(2 * math.pi * self.variance)
        return self.constant - squares / (2 * self.noise**2) + prior

    def log_evidence(self) -> float:
        """log p(y | x), by quadrature over the four quadrants."""
        spread = self.noise / math.sqrt(min(self.right, self.left))
        end = min(REACH * math.sqrt(self.variance), self.alpha + REACH * spread)
        nodes, weights = np.polynomial.legendre.leggauss(NODES)
        half, log_weights = torch.from_numpy((nodes + 1) / 2 * end), torch.from_numpy(np.log(weights / 2 * end))
        line, logs = torch.cat((-half, half)), log_weights.repeat(2)
        grid = torch.stack(torch.meshgrid(line, line, indexing="ij"), -1)
        return float((self.log_joint(grid) + logs + logs[:, None]).flatten().logsumexp(0))

    def elbo(self, q: Normal) -> Tensor:
        """E_q[log p(y | x, w)] - KL(q || p), [...]."""
        first, second = _moments(q)
        squares = torch.zeros_like(q.mean[..., 0])
        for total, m, s in zip((self.right, self.left), first, second, strict=True):
            # E u = sum_i E r_i and E u^2 = sum_i E r_i^2 + 2 E r_1 E r_2, for independent r_i = relu(w_i).
            square = s.sum(-1) + 2 * m.prod(-1)
            squares = squares + total * (self.alpha**2 - 2 * self.alpha * m.sum(-1) + square)
        ratio = q.std.square() / self.variance
        divergence = (ratio + q.mean.square() / self.variance - 1 - ratio.log()).sum(-1) / 2
        return self.constant - squares / (2 * self.noise**2) - divergence

    def symmetrized(self, q: Normal) -> Tensor:
        """The ELBO of q_G, that of q and the mutual information (gelberg2024 Theorem 4.1), [...]."""
        return self.elbo(q) + information(q)

    def mean_error(self, q: Normal) -> Tensor:
        """The squared error of the mean prediction, E_x (alpha |x| - E_q f(x))^2 over x ~ U[-10, 10], [...]."""
        first, _ = _moments(q)
        return sum(((self.alpha - m.sum(-1)).square() for m in first), torch.zeros(())) * EDGE**2 / 6

    def best(self, symmetrize: bool) -> Normal:
        """The maximum of `elbo` or of `symmetrized` over q, the best of those reached from between and at the modes."""
        spread = self.noise / math.sqrt(min(self.right, self.left))
        value = self.symmetrized if symmetrize else self.elbo
        starts = [(m, s * spread) for m in (0.1 * self.alpha, self.alpha) for s in (1.0, 2.0)]
        optima = [_ascend(value, start) for start in starts]
        return max(optima, key=lambda q: float(value(q)))


def information(q: Normal) -> Tensor:
    """I = log 2 - E_q[log(1 + q(w_2, w_1) / q(w_1, w_2))], [...], by the trapezoidal rule."""
    z, weights = _places()
    mean, std = q.mean[..., None, :], q.std[..., None, :]
    image = (mean + std * z).flip(-1)
    ratio = (z.square() - ((image - mean) / std).square()).sum(-1) / 2
    return math.log(2) - F.softplus(ratio, threshold=40) @ weights


def _ascend(value: Callable[[Normal], Tensor], start: tuple[float, float]) -> Normal:
    m, s = start
    point = torch.tensor([m, -m, math.log(s), math.log(s)], dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS(
        [point], max_iter=200, tolerance_grad=1e-9, tolerance_change=1e-14, line_search_fn="strong_wolfe"
    )

    def loss() -> Tensor:
        optimizer.zero_grad()
        minus = -value(Normal(point[:2], point[2:].exp()))
        minus.backward()  # type: ignore[no-untyped-call]
        return minus.detach()

    optimizer.step(loss)  # type: ignore[no-untyped-call]
    optimum = point.detach()
    return Normal(optimum[:2], optimum[2:].exp())


def _moments(q: Normal) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """E relu(w), E relu(-w), and the same of their squares, [..., 2] each.

    E relu(w) = m P + s d and E relu(w)^2 = (m^2 + s^2) P + m s d with P and d the standard normal distribution function
    and density at m / s.
    """
    z = q.mean / q.std
    density, below = torch.exp(-z.square() / 2) / math.sqrt(2 * math.pi), torch.special.ndtr(z)
    whole = q.mean.square() + q.std.square()
    first = q.mean * below + q.std * density
    second = whole * below + q.mean * q.std * density
    return (first, first - q.mean), (second, whole - second)


@cache
def _places() -> tuple[Tensor, Tensor]:
    """Places [n, 2] of a standard normal, and their shares."""
    line = torch.linspace(-REACH, REACH, PLACES, dtype=torch.float64)
    share = torch.exp(-line.square() / 2)
    return torch.cartesian_prod(line, line), torch.outer(share, share).flatten() / share.sum() ** 2
