"""A network that trains in a second, and stands for the others at scale smoke."""

from __future__ import annotations

from torch import Tensor, nn

from coset.zoo.layers import conv_bn_relu


class ThreeConvNet(nn.Module):
    """TinyTen with three convolutions only, each with batch norm and ReLU: images (n, in_channels, h, w) to logits."""

    def __init__(self, in_channels: int = 1, classes: int = 10) -> None:
        super().__init__()
        self.features = nn.Sequential(
            conv_bn_relu(in_channels, 8, 3, padding=1),
            conv_bn_relu(8, 16, 3, stride=2, padding=1),
            conv_bn_relu(16, 16, 3),
        )
        self.head = nn.Linear(16, classes)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.features(x).mean((2, 3)))
        return logits
