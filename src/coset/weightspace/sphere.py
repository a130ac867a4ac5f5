"""The unit sphere S^{d-1} in R^d: points, tangent vectors and geodesics as tensors [..., d].

Angles come from sines and cosines by atan2, and sines from y - x or y + x, whichever is short: differences of close
floats are exact, so that no digits are lost from angle 0 to pi, as by acos (weightflow errata). Points may be off the
sphere by rounding.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def dot(x: Tensor, y: Tensor) -> Tensor:
    """[..., 1]."""
    return (x * y).sum(-1, keepdim=True)


def project(x: Tensor) -> Tensor:
    """x / |x|; the first axis for x = 0."""
    norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    first = torch.zeros_like(x)
    first[..., 0] = 1.0
    return torch.where(norm == 0, first, x / torch.where(norm == 0, 1.0, norm))


def tangent(x: Tensor, v: Tensor) -> Tensor:
    """v - <x, v> x: the part of v that is tangent at x."""
    return v - dot(x, v) / dot(x, x) * x


def exp(x: Tensor, v: Tensor) -> Tensor:
    """cos|v| x + sin|v| v / |v|: where the geodesic from x with velocity v is at time one."""
    r = torch.linalg.vector_norm(v, dim=-1, keepdim=True)
    zero = r == 0
    return project(r.cos() * x + torch.where(zero, 1.0, r.sin() / torch.where(zero, 1.0, r)) * v)


def log(x: Tensor, y: Tensor) -> Tensor:
    """The shortest v with exp(x, v) = y: tangent at x, |v| = angle(x, y). Of antipodes, one of all."""
    across, sine, a = _polar(x, y)
    return torch.where(_close(sine, a), across, a * _direction(across, sine, a, x))


def angle(x: Tensor, y: Tensor) -> Tensor:
    """[...] in [0, pi]: the distance on the sphere. Its gradient at x = y is zero."""
    return _polar(x, y)[2].squeeze(-1)


def transport(x: Tensor, y: Tensor, v: Tensor) -> Tensor:
    """v, tangent at x, carried in parallel along the geodesic to y: v + <e, v> ((cos a - 1) e - sin a x).

    e is the direction of the geodesic at x and a its length; cos a - 1 = -2 sin^2(a / 2).
    """
    across, sine, a = _polar(x, y)
    e = _direction(across, sine, a, x)
    return v - dot(e, v) * (2 * (a / 2).sin().square() * e + a.sin() * x)


def geodesic(x: Tensor, y: Tensor, t: Tensor) -> Tensor:
    """cos(t a) x + sin(t a) e at time t, [...]: x at 0 and y at 1, at constant speed."""
    across, sine, a = _polar(x, y)
    e = _direction(across, sine, a, x)
    a = t.unsqueeze(-1) * a
    return project(a.cos() * x + a.sin() * e)


def velocity(x: Tensor, y: Tensor, t: Tensor) -> Tensor:
    """The derivative of `geodesic` in t: a (cos(t a) e - sin(t a) x)."""
    across, sine, a = _polar(x, y)
    e = _direction(across, sine, a, x)
    return a * ((t.unsqueeze(-1) * a).cos() * e - (t.unsqueeze(-1) * a).sin() * x)


def log_area(d: int) -> float:
    """log of the area of S^{d-1}: 2 pi^{d/2} / Gamma(d/2)."""
    return math.log(2) + d / 2 * math.log(math.pi) - math.lgamma(d / 2)


def wrapped_log_prob(x: Tensor, mean: Tensor, sigma: float) -> Tensor:
    """[...] log density at x of exp(mean, v) with v ~ N(0, sigma^2) in the d - 1 tangent directions, by area.

    With a = angle(mean, x), all vectors that lead to x have the length a + 2 pi k in one direction or 2 pi k - a in the
    other, and exp shrinks areas at length r by |sin r / r|^{d-2}. So the density is the sum over these r of
    N(r) (r / sin a)^{d-2}. Lengths that have a share below 1e-14 are left out; from sigma (sqrt(d - 1) + 8) < pi on
    that is all but the first. Where others count, the density has a pole at the mean and its antipode, for d > 2.
    """
    d = x.shape[-1]
    _, sine, a = _polar(mean, x)
    sine, a = sine.squeeze(-1), a.squeeze(-1)
    lengths = [a]
    reach = sigma * (math.sqrt(d - 1) + 8)
    for k in range(1, math.floor((reach + math.pi) / (2 * math.pi)) + 1):
        lengths += [2 * math.pi * k - a, 2 * math.pi * k + a]
    terms = [-(r / sigma).square() / 2 for r in lengths]
    if d > 2:
        close = _close(sine, a)
        stretch = torch.where(close, 1.0, a) / torch.where(close, 1.0, sine)
        wound = [term + (d - 2) * (r / sine).log() for term, r in zip(terms[1:], lengths[1:], strict=True)]
        terms = [terms[0] + (d - 2) * stretch.log(), *wound]
    return torch.stack(terms).logsumexp(0) - (d - 1) * math.log(sigma * math.sqrt(2 * math.pi))


def _polar(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(the part of y tangent at x, [..., d]; its length sin(angle), [..., 1]; the angle, [..., 1])."""
    cosine = dot(x, y)
    across = tangent(x, torch.where(cosine >= 0, y - x, y + x))
    sine = torch.linalg.vector_norm(across, dim=-1, keepdim=True)
    return across, sine, torch.atan2(sine, cosine)


def _direction(across: Tensor, sine: Tensor, a: Tensor, x: Tensor) -> Tensor:
    """The unit tangent at x towards y: zero if x = y, and any where y = -x."""
    e = across / torch.where(sine > 0, sine, 1.0)
    return torch.where((sine == 0) & (a > 1), _any_tangent(x), e)


def _any_tangent(x: Tensor) -> Tensor:
    """A unit tangent at x: the axis that is farthest from it, without its part along x; zero for d = 1."""
    x = x.detach()
    axis = tangent(x, torch.zeros_like(x).scatter(-1, x.abs().argmin(-1, keepdim=True), 1.0))
    norm = torch.linalg.vector_norm(axis, dim=-1, keepdim=True)
    return axis / torch.where(norm > 0, norm, 1.0)


def _close(sine: Tensor, a: Tensor) -> Tensor:
    """So close that the angle is its sine."""
    return (sine < torch.finfo(sine.dtype).eps ** 2) & (a < 1)
