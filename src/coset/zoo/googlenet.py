"""GoogLeNet for 32x32 images (Szegedy et al. 2015, in the usual CIFAR form with batch norm).

The CIFAR form has a 3x3 stem, writes each 5x5 convolution as two 3x3 and has no auxiliary heads:
6.2 M parameters. tatro2020 Table 1 reports 10.24 M without details; true 5x5 convolutions and the two
auxiliary heads of the original, which only training uses, would make 10.22 M.
"""

import torch
from torch import Tensor, nn

from coset.zoo.argument_checks import require_positive
from coset.zoo.layers import conv_bn_relu, scale_channels

# 1x1 | 3x3 reduce, 3x3 | 5x5 reduce, 5x5 | pool projection: Table 1 of Szegedy et al. 2015, by stage.
STAGES = (
    ((64, 96, 128, 16, 32, 32), (128, 128, 192, 32, 96, 64)),
    (
        (192, 96, 208, 16, 48, 64),
        (160, 112, 224, 24, 64, 64),
        (128, 128, 256, 24, 64, 64),
        (112, 144, 288, 32, 64, 64),
        (256, 160, 320, 32, 128, 128),
    ),
    ((256, 160, 320, 32, 128, 128), (384, 192, 384, 48, 128, 128)),
)


class Inception(nn.Module):
    """Four branches side by side, concatenated over channels: `[N, C, H, W] -> [N, outputs, H, W]`."""

    def __init__(self, inputs: int, n1: int, reduce3: int, n3: int, reduce5: int, n5: int, pool: int) -> None:
        super().__init__()
        self.outputs = n1 + n3 + n5 + pool
        self.branch1 = conv_bn_relu(inputs, n1, 1)
        self.branch3 = nn.Sequential(conv_bn_relu(inputs, reduce3, 1), conv_bn_relu(reduce3, n3, 3, padding=1))
        self.branch5 = nn.Sequential(
            conv_bn_relu(inputs, reduce5, 1),
            conv_bn_relu(reduce5, n5, 3, padding=1),
            conv_bn_relu(n5, n5, 3, padding=1),
        )
        self.branch_pool = nn.Sequential(nn.MaxPool2d(3, 1, 1), conv_bn_relu(inputs, pool, 1))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.branch1(x), self.branch3(x), self.branch5(x), self.branch_pool(x)], 1)


class GoogLeNet(nn.Module):
    """GoogLeNet for 32x32 images: 3x3 stem, nine inception blocks, mean, linear; 6.2 M parameters.

    A halving max pool follows the 2nd and the 7th block. Images `[N, in_channels, H, W]`, logits `[N, classes]`.
    Torch's default initialisation.

    Args:
        width: multiplies every number of channels.
        in_channels: of the images.
        classes: how many.

    Raises:
        ModelError: a number is not positive.

    Example:
        >>> coset.zoo.GoogLeNet(width=0.0625)(torch.zeros(2, 3, 8, 8)).shape
        torch.Size([2, 10])
    """

    def __init__(self, width: float = 1, in_channels: int = 3, classes: int = 10) -> None:
        super().__init__()
        require_positive("GoogLeNet", width=width, in_channels=in_channels, classes=classes)
        self.in_channels = in_channels
        channels = scale_channels(192, width)
        self.stem = conv_bn_relu(in_channels, channels, 3, padding=1)
        blocks: list[nn.Module] = []
        for index, stage in enumerate(STAGES):
            if index > 0:
                blocks.append(nn.MaxPool2d(3, 2, 1))
            for row in stage:
                block = Inception(channels, *(scale_channels(n, width) for n in row))
                channels = block.outputs
                blocks.append(block)
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(channels, classes)

    def forward(self, x: Tensor) -> Tensor:
        """The logits `[N, classes]`.

        Args:
            x: images `[N, in_channels, H, W]`.
        """
        logits: Tensor = self.head(self.blocks(self.stem(x)).mean((2, 3)))
        return logits

    def example_inputs(self, batch: int = 2, generator: torch.Generator | None = None) -> tuple[Tensor, ...]:
        """Standard normal images `[batch, in_channels, 32, 32]` on the CPU.

        Args:
            batch: how many.
            generator: what they come from; None is torch's own.
        """
        return (torch.randn(batch, self.in_channels, 32, 32, generator=generator),)
