"""The network with two weights whose posterior is known, and its data (gelberg2024 section 5)."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from coset.data import Split

EDGE = 10.0  # of the inputs, uniform in [-EDGE, EDGE]
# The paper says neither. Chosen so that mean-field VI interpolates at each of its alphas, as in its Figure 4.
NOISE, VARIANCE = 3.0, 0.005


class TwoUnits(nn.Module):
    """f(x) = relu(w_1 x) + relu(w_2 x) for inputs [n, 1]; the weight has shape [2, 1]."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(2, 1))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """From the prior; the paper does not say where training starts."""
        nn.init.normal_(self.weight, std=math.sqrt(VARIANCE))

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(F.linear(x, self.weight)).sum(-1, keepdim=True)


def points(alpha: float, count: int, generator: torch.Generator) -> Split:
    """x ~ U[-10, 10] and y = alpha |x| without noise, [count, 1] each."""
    x = (2 * torch.rand(count, 1, generator=generator, device=generator.device) - 1) * EDGE
    return Split(x, alpha * x.abs())
