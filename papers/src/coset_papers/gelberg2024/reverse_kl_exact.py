"""The same reverse KL without samples: one integral, minimised to the last digits.

The target is a product: along u it is the mixture, and across it is N(0, sigma^2 I), which a Gaussian fits exactly. By
the chain rule of KL the problem is that of q = N(m, s^2) and p = (N(0, 1) + N(a, 1)) / 2 on a line, in units of sigma:
x -> x / sigma scales every length, so any threshold in alpha is exactly linear in sigma.

With r(x) = 1 / (1 + exp(a^2 / 2 - a x)), the share of the second mode, and x = m + s z, z ~ N(0, 1),

    KL    = E[x^2 / 2 - log(1 + exp(a x - a^2 / 2))] - log s - 1/2 + log 2
    dm KL = E[x - a r],              ds KL = E[(x - a r) z] - 1 / s
    dmdm KL = E[c],  dmds KL = E[c z],  dsds KL = E[c z^2] + 1 / s^2,   c = 1 - a^2 r (1 - r).

Where the descent from the mode (0, 1) ends. At the start both derivatives are negative. For m < a/2, dmds KL =
-a^2 E[z r (1 - r)] is negative, as r (1 - r) is symmetric about a/2 and falls from there. So a step of at most half the
gradient, with dmdm KL <= 1 and dsds KL <= 2 for s >= 1, is a monotone map: m and s rise together and stop at the least
critical point. That is the midpoint if no other lies before it, and a point near the mode from the fold on, the alpha
where one appears.
"""

from __future__ import annotations

import math
from functools import cache
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from scipy.optimize import brentq, fsolve
from torch import Tensor

# The trapezoid rule: its error falls as exp(-2 pi w / SPACING) for the half-width w = pi / (a s) of the strip in which
# the integrand is analytic, and is below 1e-12 up to a = 10; beyond REACH the weights are below 1e-21.
REACH, SPACING = 10.0, 1 / 64
LARGEST = 10.0
PATIENCE, STILL = 20_000, 1e-13
NEAR_FOLD = (0.27, 1.29, 4.82)  # where Newton's method starts


class Line(NamedTuple):
    """Gaussians N(m, s^2) on the line, in units of sigma, for n targets: [n] each."""

    m: Tensor
    s: Tensor


@cache
def _nodes() -> tuple[Tensor, Tensor]:
    z = torch.arange(-REACH, REACH + SPACING / 2, SPACING, dtype=torch.float64)
    weights = torch.exp(-z.square() / 2)
    return z, weights / weights.sum()


def kl(q: Line, a: Tensor) -> Tensor:
    """KL(N(m, s^2) || (N(0, 1) + N(a, 1)) / 2) for each of n targets, all [n] in float64, a up to LARGEST."""
    z, weights = _nodes()
    x = q.m[:, None] + q.s[:, None] * z
    second = F.softplus(a[:, None] * x - a.square()[:, None] / 2, threshold=40)  # 20, the default, costs 1e-9
    excess = x.square() / 2 - second
    return excess @ weights - q.s.log() - 0.5 + math.log(2)


def gradient(q: Line, a: Tensor) -> Line:
    """The derivatives of `kl` by m and s."""
    z, weights = _nodes()
    x = q.m[:, None] + q.s[:, None] * z
    slope = x - a[:, None] * torch.sigmoid(a[:, None] * x - a.square()[:, None] / 2)
    return Line(slope @ weights, slope @ (weights * z) - 1 / q.s)


def hessian(q: Line, a: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The second derivatives of `kl` by m and m, m and s, s and s."""
    z, weights = _nodes()
    x = q.m[:, None] + q.s[:, None] * z
    share = torch.sigmoid(a[:, None] * x - a.square()[:, None] / 2)
    curve = 1 - a.square()[:, None] * share * (1 - share)
    return curve @ weights, curve @ (weights * z), curve @ (weights * z.square()) + q.s.pow(-2)


def descend(a: Tensor, rate: float, steps: int) -> Line:
    """So many steps of gradient descent from the mode (0, 1); `rate` is that of the paper over sigma^2."""
    q = Line(torch.zeros_like(a), torch.ones_like(a))
    for _ in range(steps):
        g = gradient(q, a)
        q = Line(q.m - rate * g.m, q.s - rate * g.s)
        if max(float(g.m.abs().max()), float(g.s.abs().max())) < STILL:
            break
    return q


def from_mode(a: Tensor) -> Line:
    """Where gradient descent from the mode (0, 1) ends."""
    return descend(a, 0.5, PATIENCE)


def midpoint(a: Tensor) -> Line:
    """The critical point with m = a / 2: s solves ds KL = 0, and is the least along s."""
    deviations = [brentq(_slope_at_midpoint, 0.5, 1 + each, args=(each,), xtol=1e-15) for each in a.tolist()]
    return Line(a / 2, torch.tensor(deviations, dtype=torch.float64))


def optimum(a: Tensor) -> Line:
    """The Gaussian of least KL: the midpoint, or where the descent from the mode ends."""
    near, middle = from_mode(a), midpoint(a)
    better = kl(middle, a) <= kl(near, a) + STILL
    return Line(torch.where(better, middle.m, near.m), torch.where(better, middle.s, near.s))


@cache
def fold() -> float:
    """The least alpha / sigma at which descent from the mode stays there: a critical point with a singular Hessian."""
    point: NDArray[np.float64] = fsolve(_singular, NEAR_FOLD, xtol=1e-13)
    return float(point[2])


@cache
def crossing() -> float:
    """The alpha / sigma at which the optimum leaves the midpoint: both minima have the same KL."""

    def advantage(alpha: float) -> float:
        a = torch.tensor([alpha], dtype=torch.float64)
        return float(kl(midpoint(a), a) - kl(from_mode(a), a))

    return float(brentq(advantage, fold() + 0.1, 8.0, xtol=1e-13))


def _slope_at_midpoint(s: float, alpha: float) -> float:
    a = torch.tensor([alpha], dtype=torch.float64)
    return float(gradient(Line(a / 2, torch.tensor([s], dtype=torch.float64)), a).s)


def _singular(point: NDArray[np.float64]) -> NDArray[np.float64]:
    m, s, a = torch.from_numpy(point)[:, None]
    q = Line(m, s)
    g, (mm, ms, ss) = gradient(q, a), hessian(q, a)
    return torch.cat((g.m, g.s, mm * ss - ms.square())).numpy()
