"""What a model must return and what classes must be: logits over classes or values, and class numbers."""

from typing import Any

import torch
from torch import Tensor, nn

from coset.errors import DataError, ModelError


def as_logits(outputs: Any, model: nn.Module, examples: int) -> Tensor:
    """`outputs` as logits (examples, ..., classes), refused if they cannot be that."""
    return _floating(outputs, model, examples, "logits", "..., classes")


def as_values(outputs: Any, model: nn.Module, examples: int) -> Tensor:
    """`outputs` as the values (examples, k) of a regression, refused if they cannot be that."""
    return _floating(outputs, model, examples, "values", "k")


def check_targets(targets: Tensor, logits: Tensor) -> None:
    """Refuse targets that are not classes of logits (*examples, classes): these are (*examples) int64."""
    if targets.dtype != torch.int64:
        raise DataError(f"The targets are {targets.dtype}, but only classification is supported: give int64 classes.")
    if targets.shape[1:] != logits.shape[1:-1]:
        raise DataError(
            f"Targets of shape {tuple(targets.shape)} do not fit logits of shape {tuple(logits.shape)}: give a class "
            "number for each row of logits."
        )
    low, high, classes = int(targets.min()), int(targets.max()), logits.shape[-1]
    if low < 0 or high >= classes:
        raise DataError(f"The targets go from {low} to {high}, but the model has the classes 0 to {classes - 1}.")


def _floating(outputs: Any, model: nn.Module, examples: int, what: str, shape: str) -> Tensor:
    name = type(model).__name__
    if not isinstance(outputs, Tensor):
        raise ModelError(f"{name} returns a {type(outputs).__name__} where a tensor of {what} is expected.")
    fits = outputs.ndim == 2 or (outputs.ndim > 2 and "..." in shape)
    if not fits or outputs.shape[0] != examples or not outputs.is_floating_point():
        raise ModelError(
            f"{name} returns {outputs.dtype} of shape {tuple(outputs.shape)} for {examples} examples, where {what} of "
            f"shape ({examples}, {shape}) are expected."
        )
    return outputs
