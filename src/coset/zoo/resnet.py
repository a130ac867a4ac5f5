"""Residual networks for CIFAR (He et al. 2016, section 4.2; rossi2023 Table 3)."""

import torch
from torch import Tensor, nn

from coset.zoo.argument_checks import require_choice, require_positive
from coset.zoo.layers import NORMS, make_activation, make_norm, scale_channels


class ResidualBlock(nn.Module):
    """`act(norm(conv(act(norm(conv(x))))) + shortcut(x))`, 3x3 convolutions, `[N, C, H, W]`.

    The shortcut is the identity, or a normed 1x1 convolution where the shape changes.
    """

    def __init__(self, inputs: int, outputs: int, stride: int, norm: str) -> None:
        super().__init__()
        # Every norm has its own shift; only without a norm does the convolution need one.
        bias = norm == "none"
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=bias)
        self.norm1 = make_norm(norm, outputs)
        self.act1 = make_activation(norm, outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=bias)
        self.norm2 = make_norm(norm, outputs)
        self.act2 = make_activation(norm, outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=bias), make_norm(norm, outputs))

    def forward(self, x: Tensor) -> Tensor:
        y = self.act1(self.norm1(self.conv1(x)))
        y = self.norm2(self.conv2(y))
        out: Tensor = self.act2(y + self.shortcut(x))
        return out


class ResNet(nn.Module):
    """Residual network of `6 blocks + 2` layers for small images (He et al. 2016, Section 4.2).

    3x3 stem, three stages with 16, 32 and 64 channels times `width`, mean, linear. Images `[N, in_channels, H, W]`,
    logits `[N, classes]`. Torch's default initialisation.

    Args:
        blocks: residual blocks in a stage.
        width: multiplies every number of channels.
        norm: "bn", "frn" with its thresholded unit, "ln", "gn" or "none".
        in_channels: of the images.
        classes: how many.

    Raises:
        ModelError: a number is not positive, or there is no such norm.

    Example:
        >>> coset.zoo.ResNet(1, width=0.5)(torch.zeros(2, 3, 8, 8)).shape
        torch.Size([2, 10])
    """

    def __init__(
        self, blocks: int, width: float = 1, norm: str = "bn", in_channels: int = 3, classes: int = 10
    ) -> None:
        super().__init__()
        require_positive("ResNet", blocks=blocks, width=width, in_channels=in_channels, classes=classes)
        require_choice("ResNet", "norm", norm, NORMS)
        self.in_channels = in_channels
        channels = [scale_channels(base, width) for base in (16, 32, 64)]
        self.stem = nn.Conv2d(in_channels, channels[0], 3, 1, 1, bias=norm == "none")
        self.stem_norm = make_norm(norm, channels[0])
        self.stem_act = make_activation(norm, channels[0])
        stages = []
        inputs = channels[0]
        for index, outputs in enumerate(channels):
            first = ResidualBlock(inputs, outputs, 1 if index == 0 else 2, norm)
            rest = [ResidualBlock(outputs, outputs, 1, norm) for _ in range(blocks - 1)]
            stages.append(nn.Sequential(first, *rest))
            inputs = outputs
        self.stages = nn.Sequential(*stages)
        self.head = nn.Linear(inputs, classes)

    def forward(self, x: Tensor) -> Tensor:
        """The logits `[N, classes]`.

        Args:
            x: images `[N, in_channels, H, W]`.
        """
        x = self.stem_act(self.stem_norm(self.stem(x)))
        x = self.stages(x)
        logits: Tensor = self.head(x.mean((2, 3)))
        return logits

    def example_inputs(self, batch: int = 2, generator: torch.Generator | None = None) -> tuple[Tensor, ...]:
        """Standard normal images `[batch, in_channels, 32, 32]` on the CPU.

        Args:
            batch: how many.
            generator: what they come from; None is torch's own.
        """
        return (torch.randn(batch, self.in_channels, 32, 32, generator=generator),)


def resnet20(width: float = 1, norm: str = "bn", in_channels: int = 3, classes: int = 10) -> ResNet:
    """ResNet20: three blocks a stage, 0.27 M parameters at width 1.

    Args:
        width: multiplies every number of channels.
        norm: "bn", "frn" with its thresholded unit, "ln", "gn" or "none".
        in_channels: of the images.
        classes: how many.

    Example:
        >>> coset.zoo.resnet20(width=0.25)(torch.zeros(2, 3, 8, 8)).shape
        torch.Size([2, 10])
    """
    return ResNet(3, width, norm, in_channels, classes)


def resnet32(width: float = 1, norm: str = "bn", in_channels: int = 3, classes: int = 10) -> ResNet:
    """ResNet32: five blocks a stage, 0.47 M parameters at width 1.

    Args:
        width: multiplies every number of channels.
        norm: "bn", "frn" with its thresholded unit, "ln", "gn" or "none".
        in_channels: of the images.
        classes: how many.

    Example:
        >>> coset.zoo.resnet32(width=0.25)(torch.zeros(2, 3, 8, 8)).shape
        torch.Size([2, 10])
    """
    return ResNet(5, width, norm, in_channels, classes)
