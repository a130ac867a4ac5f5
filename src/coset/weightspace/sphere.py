"""The unit sphere S^{d-1} in R^d: points, tangent vectors and geodesics as tensors [..., d].

Angles come from sines and cosines by atan2, and sines from y - x or y + x, whichever is short: differences of close
floats are exact, so that no digits are lost from angle 0 to pi, as by acos (weightflow errata). Points may be off the
sphere by rounding.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

NEGLIGIBLE = 33.0  # how far below the largest the logarithm of a term may be left out: exp(-33) = 5e-15


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
    N(r) (r / sin a)^{d-2}. Lengths whose share at x is below exp(-33) are left out. For d > 2 the density has a pole at
    the mean and one at its antipode; as points are known to rounding only, nearer to these than eps sin a is eps.
    """
    d = x.shape[-1]
    _, sine, a = _polar(mean, x)
    sine, a = sine.squeeze(-1), a.squeeze(-1)
    turns = [2 * math.pi * k for k in range(1, _windings(d, sigma) + 1)]
    lengths = [a, *(length for turn in turns for length in (turn - a, turn + a))]
    terms = [-(r / sigma).square() / 2 for r in lengths]
    if d > 2:
        close, away = _close(sine, a), sine.clamp(min=torch.finfo(sine.dtype).eps)
        # Up to the first pole a / sin a is smooth.
        stretch = torch.where(close, 1.0, a) / torch.where(close, 1.0, torch.where(a < 1, sine, away))
        wound = [term + (d - 2) * (r / away).log() for term, r in zip(terms[1:], lengths[1:], strict=True)]
        terms = [terms[0] + (d - 2) * stretch.log(), *wound]
    return torch.stack(terms).logsumexp(0) - (d - 1) * math.log(sigma * math.sqrt(2 * math.pi))


def _windings(d: int, sigma: float) -> int:
    """How many turns to sum over, so that at no point a longer way has a share above exp(-33).

    f(r) = (d - 2) log r - r^2 / 2 sigma^2 rises up to r* = sigma sqrt(d - 2) and then falls. The lengths that lead to a
    point are at most 2 pi apart, so one lies within pi of r*, or, if that is below pi, between pi and 2 pi.
    """

    def log_term(r: float) -> float:
        return max(d - 2, 0) * math.log(r) - (r / sigma) * (r / sigma) / 2

    top = sigma * math.sqrt(max(d - 2, 0))
    largest = log_term(2 * math.pi) if top <= math.pi else min(log_term(top - math.pi), log_term(top + math.pi))
    count = 1
    while (2 * count + 1) * math.pi < top or log_term((2 * count + 1) * math.pi) > largest - NEGLIGIBLE:
        count += 1
    return count


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
