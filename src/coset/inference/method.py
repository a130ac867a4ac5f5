"""What `fit` asks of a method: to start a run, which it then drives epoch by epoch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import nn

from coset.data import Split
from coset.solutions import Solution


class Run(ABC):
    """One replica under way."""

    @abstractmethod
    def epoch(self) -> tuple[float, float]:
        """Go through the data once; the mean training loss and accuracy on the way."""

    @abstractmethod
    def solution(self) -> Solution:
        """What has been found so far."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Everything the next epoch depends on but the random numbers: tensors in plain containers."""

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a `state_dict`."""


class Method(ABC):
    """A way to find solutions. Subclasses are frozen dataclasses: their fields are the settings of a run."""

    epochs: int

    @abstractmethod
    def start(self, model: nn.Module, split: Split, generator: torch.Generator) -> Run:
        """A run from `model` as it is, which it may change; all on one device, random numbers from `generator`."""
