"""Many networks on the same inputs: their first layers are one matrix product, and convolutions are products, too."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from coset.core.errors import ModelError
from coset.core.functional import functional_call
from coset.core.state import State

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


class WeightsFirst(TorchFunctionMode):
    """While it is active, a linear layer computes (W x^T)^T + b where torch computes x W^T + b.

    Under `vmap` over W [n, h, d], with inputs x [m, d] that all networks share, torch folds W x^T into one product
    [n h, d] x [d, m], and its gradient into another. It does not fold x W^T, for which it reads x anew for each of n
    small products. Outputs come as views of [n, h, m]: examples last, along which short rows of units are fast, too.

    Compiled on CUDA, a convolution is W P with the patches P of its inputs, [n, h, c k^2] x [n, c k^2, m places]: what
    `vmap` makes of n of them is one with n groups, whose gradients are slow where channels are few.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is F.linear:
            func = _linear
        elif func is F.conv2d and torch.compiler.is_compiling():
            func = by_patches
        return func(*args, **(kwargs or {}))


def outputs_of_all(model: nn.Module, population: State, inputs: Tensor) -> Tensor:
    """Outputs (n, m, ...) of all networks of a population on the same inputs (m, ...), differentiable.

    Of tied names the population has one (see `coset.core.state.untie`).
    """

    def one(state: dict[str, Tensor]) -> Tensor:
        outputs = functional_call(model, state, (inputs,))
        if not isinstance(outputs, Tensor):
            raise ModelError(
                f"{type(model).__name__} returns a {type(outputs).__name__} in training, where one tensor is "
                "expected: wrap it in a module that returns the outputs alone."
            )
        return outputs

    with WeightsFirst():
        found: Tensor = torch.vmap(one)(dict(population))
    return found


def _linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    rows = input.reshape(-1, input.shape[-1])
    outputs = weight @ rows.mT
    if bias is not None:
        outputs = outputs + bias.unsqueeze(-1).to(outputs.dtype)
    return outputs.mT.reshape(*input.shape[:-1], len(weight))
