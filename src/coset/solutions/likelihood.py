"""What targets say about outputs: p(y | f(x)), the same in training and in prediction."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor, nn

from coset.core.errors import DataError, ModelError


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


class Likelihood(ABC):
    """p(y | f(x), noise) of independent examples."""

    @abstractmethod
    def read(self, raw: Any, model: nn.Module, examples: int) -> Tensor:
        """What `model` returned for so many examples as outputs, refused if it cannot be that."""

    @abstractmethod
    def check(self, outputs: Tensor, targets: Tensor) -> None:
        """Refuse targets (n, ...) that the outputs of some examples cannot have."""

    @abstractmethod
    def check_noise(self, noise: float | Tensor | None) -> None:
        """Refuse a noise where there is none, and its absence where there must be one."""

    @abstractmethod
    def log_prob(self, outputs: Tensor, targets: Tensor, noise: float | Tensor | None = None) -> Tensor:
        """log p(target | output), differentiable. Outputs may have leading dimensions that targets lack."""


class Classification(Likelihood):
    """log p(y | f) = log softmax(f)_y: logits (..., classes), targets (...) int64. There is no noise."""

    def read(self, raw: Any, model: nn.Module, examples: int) -> Tensor:
        return as_logits(raw, model, examples)

    def check(self, outputs: Tensor, targets: Tensor) -> None:
        check_targets(targets, outputs)

    def check_noise(self, noise: float | Tensor | None) -> None:
        if noise is not None:
            raise DataError("This solution has noise, as regression has, but the targets are classes: give values.")

    def log_prob(self, outputs: Tensor, targets: Tensor, noise: float | Tensor | None = None) -> Tensor:
        return of_targets(log_softmax(outputs), targets)


class Regression(Likelihood):
    """log p(y | f) = sum_k log N(y_k; f_k, noise^2): outputs (..., k), targets (..., k) floating -> (...).

    The noise is a standard deviation; a tensor broadcasts against the outputs.
    """

    def read(self, raw: Any, model: nn.Module, examples: int) -> Tensor:
        return as_values(raw, model, examples)

    def check(self, outputs: Tensor, targets: Tensor) -> None:
        if targets.shape[1:] != outputs.shape[1:]:
            raise DataError(
                f"Targets of shape {tuple(targets.shape)} do not fit outputs of shape {tuple(outputs.shape)}: give a "
                "value for each output of each example."
            )
        if bad := int((~targets.isfinite()).sum()):
            raise DataError(
                f"The targets have {bad} NaN or infinite of {targets.numel()} values: give examples with known targets."
            )

    def check_noise(self, noise: float | Tensor | None) -> None:
        if noise is None:
            raise DataError(
                "The targets are values, but this solution has no noise: give its standard deviation, as in "
                "coset.Dirac(state, noise=0.1), or give int64 classes."
            )

    def log_prob(self, outputs: Tensor, targets: Tensor, noise: float | Tensor | None = None) -> Tensor:
        self.check_noise(noise)
        wide = _wide(outputs)
        std = torch.as_tensor(noise, dtype=wide.dtype, device=wide.device)
        z = (targets.to(wide.dtype) - wide) / std
        return -(z.square() / 2 + std.log() + math.log(2 * math.pi) / 2).sum(-1)


def likelihood_of(targets: Tensor) -> Likelihood:
    """Regression for floating targets, classification for int64 ones."""
    if targets.is_floating_point():
        return Regression()
    if targets.dtype == torch.int64:
        return Classification()
    raise DataError(f"The targets are {targets.dtype}: give int64 classes, or floating values for regression.")


def log_softmax(logits: Tensor) -> Tensor:
    """Logits (..., classes) to log-probabilities, in float32 or wider."""
    return torch.log_softmax(_wide(logits), -1)


def of_targets(log_probs: Tensor, targets: Tensor) -> Tensor:
    """The entries (...) of log-probabilities (..., classes) at the targets, whose leading dimensions may be fewer."""
    return log_probs.gather(-1, targets.expand(log_probs.shape[:-1]).unsqueeze(-1)).squeeze(-1)


def _wide(x: Tensor) -> Tensor:
    """At least float32, as sums of 16-bit numbers lose what they measure."""
    return x.float() if x.element_size() < 4 else x
