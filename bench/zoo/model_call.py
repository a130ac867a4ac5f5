"""What a suite hands to the runner: a model that has been built and called, ready to be traced."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn


@dataclass
class ModelCall:
    """A model with inputs it accepts.

    ``label`` says which attempt this is (sizes, attention, inputs), ``context`` is entered around
    everything that traces or runs the model.
    """

    model: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    label: str = ""
    context: Callable[[], AbstractContextManager[Any]] = field(default=nullcontext)


class StageError(Exception):
    """A model that could not be built ("build") or called ("call"); the text is one line."""

    def __init__(self, stage: str, reason: str) -> None:
        super().__init__(reason)
        self.stage = stage
        self.reason = reason


def one_line(error: BaseException, width: int = 200) -> str:
    """The error's type and the first telling line of its text."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = lines[0] if lines else ""
    return f"{type(error).__name__}: {text}"[:width]


def randomize_norm_statistics(model: nn.Module, seed: int = 0) -> None:
    """Give every batch norm random running statistics, so that a forgotten buffer shows."""
    generator = torch.Generator().manual_seed(seed)
    for name, buffer in model.named_buffers():
        if name.endswith("running_mean"):
            buffer.copy_(0.1 * torch.randn(buffer.shape, generator=generator))
        elif name.endswith("running_var"):
            buffer.copy_(0.5 + torch.rand(buffer.shape, generator=generator))


def first_floating(output: Any) -> Tensor | None:
    """The first floating tensor with at least two axes in a (nested) output, in its own order."""
    if isinstance(output, Tensor):
        return output if output.is_floating_point() and output.ndim >= 2 and output.numel() > 0 else None
    values: Any = ()
    if isinstance(output, dict):
        values = output.values()
    elif isinstance(output, list | tuple):
        values = output
    for value in values:
        tensor = first_floating(value)
        if tensor is not None:
            return tensor
    return None
