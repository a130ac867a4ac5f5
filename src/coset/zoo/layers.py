"""What several convolutional networks share: norms, the activation that goes with each, widths of layers."""

from math import gcd

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from coset.zoo.argument_checks import require_choice


def scale_channels(channels: int, width: float) -> int:
    """`channels` times the width factor, rounded, at least one."""
    return max(1, round(channels * width))


def conv_bn_relu(inputs: int, outputs: int, kernel: int, stride: int = 1, padding: int = 0) -> nn.Sequential:
    """Convolution, batch norm, ReLU; no convolution bias, since batch norm would cancel it."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel, stride, padding, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(),
    )


NORMS = ("bn", "frn", "ln", "gn", "none")


class FilterResponseNorm(nn.Module):
    """`gamma x / sqrt(nu^2 + eps) + beta`, `nu^2` the mean of `x^2` over H and W.

    Singh & Krishnan 2020, Eq. 1-3: each channel of each example on its own, no mean subtracted, so the
    likelihood factorises over examples (why rossi2023 uses it). `gamma` is `weight`, `beta` is `bias`.

    Args:
        channels: of the activations `[N, C, H, W]`.
        eps: keeps the root away from zero.

    Example:
        >>> round(coset.zoo.FilterResponseNorm(2)(torch.full((1, 2, 4, 4), 3.0)).mean().item(), 4)
        1.0
    """

    def __init__(self, channels: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor) -> Tensor:
        """Of the same shape.

        Args:
            x: `[N, C, H, W]`.
        """
        nu2 = x.square().mean((2, 3), keepdim=True)
        return self.weight[:, None, None] * (x * torch.rsqrt(nu2 + self.eps)) + self.bias[:, None, None]


class ThresholdedLinearUnit(nn.Module):
    """`max(y, tau)` with one learned `tau` a channel (Singh & Krishnan 2020, Eq. 4); ReLU at the start.

    FRN does not centre its output, so a fixed threshold at zero would be arbitrary.

    Args:
        channels: of the activations `[N, C, H, W]`.

    Example:
        >>> coset.zoo.ThresholdedLinearUnit(2)(-torch.ones(1, 2, 4, 4)).max().item()
        0.0
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.tau = nn.Parameter(torch.zeros(channels))

    def forward(self, y: Tensor) -> Tensor:
        """Of the same shape.

        Args:
            y: `[N, C, H, W]`.
        """
        return torch.maximum(y, self.tau[:, None, None])


class ChannelLayerNorm(nn.Module):
    """Layer norm over the channels at each position, as flax's `LayerNorm` on NHWC (used by rossi2023).

    Args:
        channels: of the activations `[N, C, H, W]`.
        eps: keeps the root away from zero.

    Example:
        >>> coset.zoo.ChannelLayerNorm(2)(torch.randn(1, 2, 4, 4)).mean(1).abs().max() < 1e-5
        tensor(True)
    """

    def __init__(self, channels: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor) -> Tensor:
        """Of the same shape.

        Args:
            x: `[N, C, H, W]`.
        """
        last = x.permute(0, 2, 3, 1)
        y = F.layer_norm(last, self.weight.shape, self.weight, self.bias, self.eps)
        # Contiguous, since the permuted view has the channels-last layout, in which the gradient of a
        # strided 1x1 convolution of fewer than 16 channels corrupts memory on the CPU (torch 2.13, oneDNN).
        return y.permute(0, 3, 1, 2).contiguous()


def make_norm(kind: str, channels: int) -> nn.Module:
    """A norm layer for activations `[N, C, H, W]`.

    Args:
        kind: "bn", "frn", "ln", "gn" (eight groups, fewer where eight do not divide) or "none".
        channels: of the activations.

    Raises:
        ModelError: there is no such norm.

    Example:
        >>> coset.zoo.make_norm("gn", 12).num_groups
        4
    """
    require_choice("make_norm", "kind", kind, NORMS)
    match kind:
        case "bn":
            return nn.BatchNorm2d(channels)
        case "frn":
            return FilterResponseNorm(channels)
        case "ln":
            return ChannelLayerNorm(channels)
        case "gn":
            return nn.GroupNorm(gcd(8, channels), channels)
        case _:
            return nn.Identity()


def make_activation(kind: str, channels: int) -> nn.Module:
    """The activation used with a norm of this kind: the thresholded unit for "frn", ReLU otherwise.

    Apart from `make_norm`, since a residual block adds its shortcut between the two.

    Args:
        kind: as for `make_norm`.
        channels: of the activations.

    Raises:
        ModelError: there is no such norm.

    Example:
        >>> coset.zoo.make_activation("bn", 16)
        ReLU()
    """
    require_choice("make_activation", "kind", kind, NORMS)
    return ThresholdedLinearUnit(channels) if kind == "frn" else nn.ReLU()
