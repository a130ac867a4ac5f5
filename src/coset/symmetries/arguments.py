"""What a model is called with, as people give it."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from coset.errors import CosetError

Args = Tensor | tuple[Any, ...]
"""The positional arguments of a model, or its only one."""


def positional(args: Args) -> tuple[Any, ...]:
    """The arguments as a tuple; a lone tensor is one of them, where a tuple of it would be its rows."""
    if isinstance(args, Tensor):
        return (args,)
    if not isinstance(args, tuple | list):
        raise CosetError(
            f"What the model is called with is a {type(args).__name__}: give a tuple of its arguments, or a tensor if "
            "there is one, and those that have names as kwargs."
        )
    return tuple(args)
