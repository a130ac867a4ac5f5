"""What classification asks of a model and of data: logits over classes, and class numbers."""

from typing import Any

import torch
from torch import Tensor, nn

from coset.errors import DataError, ModelError


def as_logits(outputs: Any, model: nn.Module, examples: int) -> Tensor:
    """`outputs` as logits (examples, ..., classes), refused if they cannot be that."""
    name = type(model).__name__
    if not isinstance(outputs, Tensor):
        raise ModelError(f"{name} returns a {type(outputs).__name__} where a tensor of logits is expected.")
    if outputs.ndim < 2 or outputs.shape[0] != examples or not outputs.is_floating_point():
        raise ModelError(
            f"{name} returns {outputs.dtype} of shape {tuple(outputs.shape)} for {examples} examples, where logits of "
            f"shape ({examples}, ..., classes) are expected."
        )
    return outputs


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
