"""Bezier curves."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor

from coset.paths.curve import Curve


class Bezier(Curve):
    """B_k(t) = C(n, k) t^k (1-t)^(n-k), the polynomials of Bernstein; with one control point tatro2020 Eq. 7.

    Every B_k lies in [0, 1] on [0, 1], so the curve stays in the convex hull of its control points.
    """

    kind: ClassVar[str] = "bezier"

    @staticmethod
    def basis(t: Tensor, n: int) -> Tensor:
        return torch.stack([math.comb(n, k) * t**k * (1 - t) ** (n - k) for k in range(n + 1)], -1)
