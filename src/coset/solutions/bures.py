"""Optimal transport of centred Gaussians, by roots of their covariances.

With C0 = R0 R0^T and C1 = R1 R1^T, any orthogonal U couples x = R0 z and y = R1 U z. The cost |R0 - R1 U|^2 is least
where U is the orthogonal factor of R1^T R0, and is then tr C0 + tr C1 - 2 tr (C0^1/2 C1 C0^1/2)^1/2: rossi2023 Eq. 16.
Unlike the traces this loses no digits where C0 and C1 are near, and it takes singular covariances as they are.
"""

import torch
from torch import Tensor


def coupled(first: Tensor, second: Tensor) -> Tensor:
    """R1 U [n, k] for roots R0 and R1 [n, k]: x = R0 z and y = R1 U z are coupled at the least cost."""
    left, _, right = torch.linalg.svd(second.T @ first)
    turned: Tensor = second @ (left @ right)
    return turned


def kronecker_cost(first: tuple[Tensor, Tensor], second: tuple[Tensor, Tensor]) -> Tensor:
    """|R0 - R1 U|^2 for R0 = X x Y and R1 = X' x Y': the orthogonal factor is a Kronecker product too.

    X x Y - X' x Y' = ((X - X') x (Y + Y') + (X + X') x (Y - Y')) / 2, and the two are orthogonal where |Y| = |Y'|.
    """
    (x0, y0), (x1, y1) = _normalized(*first), _normalized(*second)
    if not (bool(y0.any()) and bool(y1.any())):
        return x0.square().sum() + x1.square().sum()
    x1, y1 = coupled(x0, x1), coupled(y0, y1)
    parts = (x0 - x1).square().sum() * (y0 + y1).square().sum(), (x0 + x1).square().sum() * (y0 - y1).square().sum()
    return (parts[0] + parts[1]) / 4


def _normalized(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """(|y| x, y / |y|); (0, 0) where y is zero."""
    size = torch.linalg.matrix_norm(y)
    return x * size, y / size.where(size > 0, 1.0)
