"""The convolutional network of this paper's exhibits."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class TwoConvNet(nn.Module):
    """Two 3x3 convolutions of stride 2 with ReLU, means over four quarters, logits: images (n, 1, h, w) to (n, 10).

    1,898 weights, without norms, so that thousands of them can be trained at once.
    """

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 8, 3, stride=2, padding=1)
        self.second = nn.Conv2d(8, 16, 3, stride=2, padding=1)
        self.head = nn.Linear(4 * 16, 10)

    def forward(self, x: Tensor) -> Tensor:
        features = F.relu(self.second(F.relu(self.first(x))))
        logits: Tensor = self.head(F.adaptive_avg_pool2d(features, 2).flatten(1))
        return logits

    def example_inputs(self, batch: int = 2, generator: torch.Generator | None = None) -> tuple[Tensor, ...]:
        """Standard normal images on the CPU."""
        return (torch.randn(batch, 1, 28, 28, generator=generator),)
