"""Curves as in Garipov et al. (2018): each layer holds its control points, and mixes them whenever it is called."""

from __future__ import annotations

import copy
import math
from abc import abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from coset.core.errors import ModelError


class CurveLayer(nn.Module):
    """A layer with the parameters w(t) = sum_k B_k(t) w_k, of which the first and the last are fixed.

    coefficients: the B_k(t), set before a call. squares: |w(t)|^2, left by it.
    """

    coefficients: Sequence[Tensor]
    squares: Tensor

    def __init__(self, layers: Sequence[nn.Module]) -> None:
        """`layers` are of one kind, one for each control point."""
        super().__init__()
        for k, layer in enumerate(layers):
            for name in ("weight", "bias"):
                p = getattr(layer, name)
                inner = 0 < k < len(layers) - 1
                copied = None if p is None else nn.Parameter(p.detach().clone(), requires_grad=inner)
                self.register_parameter(f"{name}_{k}", copied)

    def forward(self, inputs: Tensor) -> Tensor:
        weight, bias = self._mixed("weight"), self._mixed("bias")
        self.squares = torch.stack([x.square().sum() for x in (weight, bias) if x is not None]).sum()
        return self.call(inputs, weight, bias)

    @abstractmethod
    def call(self, inputs: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        """What the layer computes with these parameters."""

    def _mixed(self, name: str) -> Tensor | None:
        points: list[Tensor | None] = [getattr(self, f"{name}_{k}") for k in range(len(self.coefficients))]
        mixed: Tensor | None = None
        for b, p in zip(self.coefficients, points, strict=True):
            if p is not None:
                mixed = b * p if mixed is None else mixed + b * p
        return mixed


class CurveLinear(CurveLayer):
    """Of `nn.Linear`."""

    def call(self, inputs: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        assert weight is not None
        return F.linear(inputs, weight, bias)


class CurveConv2d(CurveLayer):
    """Of `nn.Conv2d` with zeros around the images."""

    def __init__(self, layers: Sequence[nn.Conv2d]) -> None:
        super().__init__(layers)
        self._like = layers[0].stride, layers[0].dilation, layers[0].groups
        self._padding = layers[0].padding

    def call(self, inputs: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        assert weight is not None
        stride, dilation, groups = self._like
        return F.conv2d(inputs, weight, bias, stride, self._padding, dilation, groups)


class CurveBatchNorm2d(CurveLayer):
    """Of `nn.BatchNorm2d` with running statistics, which are those of the first layer at the start."""

    running_mean: Tensor
    running_var: Tensor
    num_batches_tracked: Tensor

    def __init__(self, layers: Sequence[nn.BatchNorm2d]) -> None:
        super().__init__(layers)
        for name, x in layers[0].named_buffers():
            self.register_buffer(name, x.clone())
        self._momentum, self._eps = layers[0].momentum or 0.0, layers[0].eps

    def call(self, inputs: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        if self.training:
            self.num_batches_tracked.add_(1)
        statistics = self.running_mean, self.running_var
        return F.batch_norm(inputs, *statistics, weight, bias, self.training, self._momentum, self._eps)


class CurveNet(nn.Module):
    """(inputs, t) -> outputs at the point t of the Bezier curve with the control points `points`, networks of a kind.

    B_k(t) = C(n, k) t^k (1-t)^(n-k). Any module whose parameters all lie in Linear, Conv2d and BatchNorm2d layers.
    """

    powers: Tensor
    counts: Tensor

    def __init__(self, points: Sequence[nn.Module]) -> None:
        super().__init__()
        n = len(points) - 1
        self.register_buffer("powers", torch.arange(n + 1.0))
        self.register_buffer("counts", torch.tensor([float(math.comb(n, k)) for k in range(n + 1)]))
        self.net = copy.deepcopy(points[0])
        for name, module in points[0].named_modules():
            if next(module.parameters(recurse=False), None) is not None:
                self.net.set_submodule(name, _layer(name, [point.get_submodule(name) for point in points]))
        self._layers = [module for module in self.net.modules() if isinstance(module, CurveLayer)]

    def forward(self, inputs: Tensor, t: Tensor) -> Tensor:
        coefficients = (self.counts * t**self.powers * (1 - t) ** self.powers.flip(0)).unbind()
        for layer in self._layers:
            layer.coefficients = coefficients
        outputs: Tensor = self.net(inputs)
        return outputs

    def squares(self) -> Tensor:
        """|w(t)|^2 at the t of the last call."""
        return torch.stack([layer.squares for layer in self._layers]).sum()


def _layer(name: str, layers: Sequence[nn.Module]) -> CurveLayer:
    first = layers[0]
    if type(first) is nn.Linear:
        return CurveLinear(layers)
    if type(first) is nn.Conv2d and first.padding_mode == "zeros":
        return CurveConv2d([layer for layer in layers if isinstance(layer, nn.Conv2d)])
    if type(first) is nn.BatchNorm2d and first.track_running_stats and first.momentum is not None:
        return CurveBatchNorm2d([layer for layer in layers if isinstance(layer, nn.BatchNorm2d)])
    raise ModelError(
        f"There is no curve layer for '{name}', a {type(first).__name__}: give a model of linear layers, convolutions "
        "that pad with zeros, and batch norms with running statistics."
    )
