"""TinyTen, the narrow convolutional network of tatro2020 ("Tiny-10" in Kornblith et al. 2019)."""

import torch
from torch import Tensor, nn

from coset.zoo.checks import require_positive
from coset.zoo.norms import conv_bn_relu


class TinyTen(nn.Module):
    """Eight convolutions with batch norm and ReLU, global average pool, linear; 86 k parameters.

    Images `[N, in_channels, H, W]`, logits `[N, classes]`. Torch's default initialisation.
    """

    def __init__(self, in_channels: int = 3, classes: int = 10) -> None:
        super().__init__()
        require_positive("TinyTen", in_channels=in_channels, classes=classes)
        self.in_channels = in_channels
        self.features = nn.Sequential(
            conv_bn_relu(in_channels, 16, 3, padding=1),
            conv_bn_relu(16, 16, 3, padding=1),
            conv_bn_relu(16, 32, 3, stride=2, padding=1),
            conv_bn_relu(32, 32, 3, padding=1),
            conv_bn_relu(32, 32, 3, padding=1),
            conv_bn_relu(32, 64, 3, stride=2, padding=1),
            conv_bn_relu(64, 64, 3),
            conv_bn_relu(64, 64, 1),
        )
        self.head = nn.Linear(64, classes)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.features(x).mean((2, 3)))
        return logits

    def example_inputs(self, batch: int = 2, generator: torch.Generator | None = None) -> tuple[Tensor, ...]:
        """Standard normal images `[batch, in_channels, 32, 32]` on the CPU."""
        return (torch.randn(batch, self.in_channels, 32, 32, generator=generator),)
