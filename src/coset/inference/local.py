"""The local reparameterisation trick, for any module: draw what a layer computes instead of its weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

LINEAR = (F.linear, F.conv1d, F.conv2d, F.conv3d)
TINY = 1e-16  # keeps the gradient of the root finite where an input is zero


class Reparameterized(TorchFunctionMode):
    """While it is active, a call with the mean of a weight in it has a random one in its place.

    A linear layer or convolution with weights N(M, S^2) and biases N(b, c^2) computes, for each example,
    N(M x + b, S^2 x^2 + c^2), which is drawn without the weights: examples of a batch then see independent weights,
    and the gradient's variance falls as 1/m with their number m (Kingma, Salimans & Welling 2015, Eq. 6). A weight
    that is used otherwise is drawn once for all examples.
    """

    def __init__(self, std: Mapping[int, Tensor]) -> None:
        """`std` has the standard deviation of a mean by the `id` of its tensor."""
        super().__init__()
        self._std = std
        self._drawn: dict[int, Tensor] = {}

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in LINEAR and len(args) > 1 and id(args[1]) in self._std:
            return self._linear(func, *args, **kwargs)
        return func(*tree_map(self._draw, args), **tree_map(self._draw, kwargs))

    def _linear(
        self, func: Callable[..., Tensor], x: Tensor, weight: Tensor, bias: Tensor | None = None, *rest: Any, **key: Any
    ) -> Tensor:
        variance = None if bias is None else self._std.get(id(bias), torch.zeros_like(bias)).square()
        mean = func(x, weight, bias, *rest, **key)
        spread = func(x.square(), self._std[id(weight)].square(), variance, *rest, **key).add(TINY).sqrt()
        return mean + spread * torch.randn_like(mean)

    def _draw(self, x: Any) -> Any:
        if not isinstance(x, Tensor) or id(x) not in self._std:
            return x
        if id(x) not in self._drawn:
            self._drawn[id(x)] = x + self._std[id(x)] * torch.randn_like(x)
        return self._drawn[id(x)]
