"""TinyTen, the narrow convolutional network of tatro2020 ("Tiny-10" in Kornblith et al. 2019)."""

import torch
from torch import Tensor, nn

from coset.zoo.argument_checks import require_positive
from coset.zoo.layers import conv_bn_relu


class TinyTen(nn.Module):
    """Eight convolutions with batch norm and ReLU, global average pool, linear; 86 k parameters.

    Images `[N, in_channels, H, W]`, logits `[N, classes]`. Torch's default initialisation.

    Args:
        in_channels: of the images.
        classes: how many.

    Raises:
        ModelError: a number is not positive.

    Example:
        >>> coset.zoo.TinyTen()(torch.zeros(2, 3, 16, 16)).shape
        torch.Size([2, 10])
    """

    def __init__(self, in_channels: int = 3, classes: int = 10) -> None:
        super().__init__()
        require_positive("TinyTen", in_channels=in_channels, classes=classes)
        self.in_channels = in_channels
        convolutions = (
            conv_bn_relu(in_channels, 16, 3, padding=1),
            conv_bn_relu(16, 16, 3, padding=1),
            conv_bn_relu(16, 32, 3, stride=2, padding=1),
            conv_bn_relu(32, 32, 3, padding=1),
            conv_bn_relu(32, 32, 3, padding=1),
            conv_bn_relu(32, 64, 3, stride=2, padding=1),
            conv_bn_relu(64, 64, 3),
            conv_bn_relu(64, 64, 1),
        )
        self.features = nn.Sequential(*convolutions)
        self.head = nn.Linear(64, classes)

    def forward(self, x: Tensor) -> Tensor:
        """The logits `[N, classes]`.

        Args:
            x: images `[N, in_channels, H, W]`.
        """
        logits: Tensor = self.head(self.features(x).mean((2, 3)))
        return logits

    def example_inputs(self, batch: int = 2, generator: torch.Generator | None = None) -> tuple[Tensor, ...]:
        """Standard normal images `[batch, in_channels, 32, 32]` on the CPU.

        Args:
            batch: how many.
            generator: what they come from; None is torch's own.
        """
        return (torch.randn(batch, self.in_channels, 32, 32, generator=generator),)
