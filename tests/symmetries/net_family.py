"""What a net of a family is: example inputs, and the groups it has, worked out by hand.

Expected groups are written as in :func:`oracle.expect`: ``"8 4 2/4*2"`` is one group of 8 units, one of 4, and two
of 2 units with an independent copy for each of 4 others. The sizes are chosen so that they tell the groups apart.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from types import CodeType
from typing import Any

import torch
from torch import Tensor, nn

Sample = tuple[nn.Module, tuple[Any, ...]]


class Net(nn.Module):
    """A module from a function of itself and the inputs, with parts: modules, parameters, buffers."""

    def __init__(self, function: Callable[..., Any], **parts: nn.Module | Tensor) -> None:
        super().__init__()
        self.function = function
        for name, part in parts.items():
            if isinstance(part, nn.Module):
                self.add_module(name, part)
            elif isinstance(part, nn.Parameter):
                self.register_parameter(name, part)
            else:
                self.register_buffer(name, part)

    def forward(self, *args: Any) -> Any:
        return self.function(self, *args)


@dataclass(frozen=True)
class Family:
    """make: the net and its inputs. groups: what inference must find. log_order: where that alone is told.

    odd: made of ops that few nets have.
    """

    name: str
    make: Callable[[], Sample]
    groups: str | None
    log_order: float | None = None
    slow: bool = False
    odd: bool = False


FAMILIES: dict[str, Family] = {}


def family(groups: str | None, *, slow: bool = False) -> Callable[[Callable[[], Sample]], Callable[[], Sample]]:
    """Register a net under the name of the function that makes it."""

    def register(make: Callable[[], Sample]) -> Callable[[], Sample]:
        add(make.__name__, groups, make, slow=slow)
        return make

    return register


def add(
    name: str,
    groups: str | None,
    make: Callable[[], Sample],
    *,
    slow: bool = False,
    log_order: float | None = None,
    odd: bool = False,
) -> None:
    assert name not in FAMILIES, name
    FAMILIES[name] = Family(name, make, groups, log_order, slow, odd)


def simple(name: str, groups: str | None, function: Callable[..., Any], x: Tensor | None = None, **parts: Any) -> None:
    """A net of linear maps a (3 -> 4) and b (4 -> 2), as far as it uses them, and more, with a (3, 3) input."""
    log_order = parts.pop("log_order", None)

    def make() -> Sample:
        own = {
            k: part() if callable(part) and not isinstance(part, nn.Module | Tensor) else part
            for k, part in parts.items()
        }
        linear = {k: lin(*sizes) for k, sizes in (("a", (3, 4)), ("b", (4, 2))) if k in names(function.__code__)}
        return Net(function, **{**linear, **own}), (torch.randn(3, 3) if x is None else x,)

    add(name, groups, make, log_order=log_order, odd=True)


def names(code: CodeType) -> set[str]:
    """The attributes that a function uses, and functions inside it."""
    inner = [names(part) for part in code.co_consts if isinstance(part, CodeType)]
    return set(code.co_names).union(*inner)


def par(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(*shape) / math.sqrt(shape[-1]))


lin, conv, seq = nn.Linear, nn.Conv2d, nn.Sequential


def image(channels: int = 3, size: int = 6) -> Tensor:
    return torch.randn(2, channels, size, size)
