"""Chains of straight pieces."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from coset.errors import CosetError
from coset.paths.curve import Curve
from coset.solutions import Solution


class Chain(Curve):
    """B_k(t) = max(1 - |n t - k|, 0): straight from each control point to the next, in equal times."""

    kind: ClassVar[str] = "chain"

    def __call__(self, t: float) -> Solution:
        if not 0 <= t <= 1:
            raise CosetError(f"A Chain goes from t = 0 to 1, not to {t}.")
        return super().__call__(t)

    @staticmethod
    def basis(t: Tensor, n: int) -> Tensor:
        return torch.stack([(1 - (n * t - k).abs()).clamp(min=0) for k in range(n + 1)], -1)
