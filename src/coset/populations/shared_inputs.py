"""Many networks on the same inputs: their first layers are one matrix product, and convolutions are products, too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from coset.checks import State
from coset.errors import ModelError
from coset.functional import functional_call
from coset.populations.patches import by_patches


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

    Of tied names the population has one (see `coset.state.untie`).
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
