"""Gradient steps on whole vectors, with a rate that lies on the device, so that a step can be captured and replayed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8


class Optimizer(ABC):
    """Moves parameters against their gradients; `state` is what it remembers."""

    state: list[Tensor]

    @abstractmethod
    def step(self, gradients: Sequence[Tensor], rate: Tensor) -> None:
        """One step of size `rate`, in place."""


class SGD(Optimizer):
    """v <- momentum v + g; w <- w - rate v."""

    def __init__(self, parameters: Sequence[Tensor], momentum: float) -> None:
        self._parameters, self._momentum = parameters, momentum
        self.state = [torch.zeros_like(p) for p in parameters]

    @torch.no_grad()
    def step(self, gradients: Sequence[Tensor], rate: Tensor) -> None:
        for p, v, g in zip(self._parameters, self.state, gradients, strict=True):
            v.mul_(self._momentum).add_(g)
            p.addcmul_(v, rate, value=-1)


class Adam(Optimizer):
    """w <- w - rate m' / (sqrt(v') + epsilon), with the moments m and v corrected for their start at zero.

    Kingma & Ba 2015, Algorithm 1.
    """

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self._parameters = parameters
        self._count = torch.zeros((), dtype=torch.float64, device=parameters[0].device)
        self._moments = [(torch.zeros_like(p), torch.zeros_like(p)) for p in parameters]
        self.state = [self._count, *(x for pair in self._moments for x in pair)]

    @torch.no_grad()
    def step(self, gradients: Sequence[Tensor], rate: Tensor) -> None:
        self._count += 1
        size = (rate / (1 - BETA1**self._count)).to(rate.dtype)
        root = (1 - BETA2**self._count).sqrt().to(rate.dtype)
        for p, (m, v), g in zip(self._parameters, self._moments, gradients, strict=True):
            m.lerp_(g, 1 - BETA1)
            v.mul_(BETA2).addcmul_(g, g, value=1 - BETA2)
            p.addcdiv_(m * size, v.sqrt().div_(root).add_(EPSILON), value=-1)
