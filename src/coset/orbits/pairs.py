"""How well each unit fits each other unit's place, under a Gaussian with independent coordinates."""

from __future__ import annotations

import math

from torch import Tensor


def log_densities(w: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """(...) sum_x log N(w_x; m_x, s_x^2) over the last dimension, in float64."""
    z = (w.double() - mean.double()) / std.double()
    return -(z.square() / 2 + std.double().log() + math.log(2 * math.pi) / 2).sum(-1)


def pairs(w: Tensor, mean: Tensor, std: Tensor, units: Tensor) -> Tensor:
    """A[..., c, i, j] = log q_i(w_j) - log q_i(w_i): unit j of w in the place of unit i, relative to staying.

    w, mean, std: (..., p); units: (c, n, d) as `OrbitMap.units` gives them. The diagonal is zero. A sum of squares
    over the d coordinates of a unit is a product of matrices, -(w_j - m_i)^2 / 2 s_i^2 summed; in float64, since
    where std is small the squares are millions whose difference counts.
    """
    x, m, s = (t[..., units].double() for t in (w, mean, std))
    precision = s.square().reciprocal()
    cross = (m * precision) @ x.mT - precision @ x.square().mT / 2
    return cross - cross.diagonal(dim1=-2, dim2=-1).unsqueeze(-1)
