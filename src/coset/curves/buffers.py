"""Buffers that go along a curve without being learned, such as a mask of units or the statistics of a frozen norm."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from coset.checks import State
from coset.paths.repair import running_norms

Buffers = Mapping[str, tuple[Tensor, Tensor]]
"""By name, at the first end and at the last."""


def movable(model: nn.Module) -> list[str]:
    """The floating buffers but for running statistics, which learning takes from the batch."""
    norms = {f"{name}.".removeprefix(".") for name in running_norms(model)}
    own = {f"{prefix}{key}" for prefix in norms for key in ("running_mean", "running_var")}
    return [name for name, x in model.named_buffers() if x.is_floating_point() and name not in own]


def between(model: nn.Module, first: State, last: State) -> Buffers:
    """The movable buffers of two states of a model; what is not persistent is in neither."""
    return {name: (first[name], last[name]) for name in movable(model) if name in first}


@torch.no_grad()
def place(model: nn.Module, buffers: Buffers, t: Tensor) -> None:
    """Set the buffers of the model to (1-t) first + t last, as a curve has them; t: (1,)."""
    own = dict(model.named_buffers())
    for name, (first, last) in buffers.items():
        own[name].copy_(torch.lerp(first, last, t.to(first.dtype).view([1] * first.dim())))
