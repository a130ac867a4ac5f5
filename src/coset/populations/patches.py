"""Convolutions as products of matrices."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

Pair = int | Sequence[int]


def by_patches(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Pair = 1,
    padding: Pair | str = 0,
    dilation: Pair = 1,
    groups: int = 1,
) -> Tensor:
    """`F.conv2d` on CUDA as W P, with the patches P [c k^2, m places] of inputs [m, c, height, width].

    Many small networks at once by `vmap` are as many products, where those of `F.conv2d` are one convolution with as
    many groups, whose gradients are slow. Patches are slices, which torch puts together in one kernel if it compiles
    them, and in many if not. What is no plain convolution, or not on CUDA, is left to torch.
    """
    if not input.is_cuda or input.ndim != 4 or groups != 1 or isinstance(padding, str):
        return F.conv2d(input, weight, bias, stride, padding, dilation, groups)
    return multiplied(input, weight, bias, _pair(stride), _pair(padding), _pair(dilation))


def multiplied(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: tuple[int, int],
    padding: tuple[int, int],
    dilation: tuple[int, int],
) -> Tensor:
    """W P + b, [m, channels, rows, columns]: a view of [channels, m, rows, columns]."""
    kernel = weight.shape[2:]
    padded = F.pad(input.transpose(0, 1), (padding[1], padding[1], padding[0], padding[0]))
    sizes = zip(padded.shape[2:], kernel, stride, dilation, strict=True)
    rows, columns = ((size - d * (k - 1) - 1) // step + 1 for size, k, step, d in sizes)

    def seen(first: int, count: int, step: int) -> slice:
        return slice(first, first + step * (count - 1) + 1, step)

    patches = torch.stack(
        [
            padded[:, :, seen(i * dilation[0], rows, stride[0]), seen(j * dilation[1], columns, stride[1])]
            for i in range(kernel[0])
            for j in range(kernel[1])
        ],
        1,
    )
    outputs = weight.flatten(1) @ patches.flatten(2).flatten(0, 1)
    if bias is not None:
        outputs = outputs + bias.unsqueeze(-1).to(outputs.dtype)
    return outputs.view(len(weight), len(input), rows, columns).transpose(0, 1)


def _pair(x: Pair) -> tuple[int, int]:
    return (x, x) if isinstance(x, int) else (x[0], x[-1])
