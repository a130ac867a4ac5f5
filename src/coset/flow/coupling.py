"""Which start belongs to which network."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from coset.flow.base import Base


class Coupling(ABC):
    """Pairs of a start and a network, [n, D] each, of which every epoch sees each network once.

    ends: [N, D] the networks. conditions: [N, k] what is known about each, or None.
    """

    def __init__(self, ends: Tensor, conditions: Tensor | None) -> None:
        self.ends, self.conditions = ends, conditions

    def __len__(self) -> int:
        return len(self.ends)

    def refresh(self, generator: torch.Generator) -> None:  # noqa: B027 (most have nothing to do)
        """What is done before each epoch."""

    @abstractmethod
    def starts(self, at: Tensor, generator: torch.Generator) -> Tensor:
        """[n, D] the starts of the networks `at`."""

    def pairs(self, at: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor | None]:
        """Starts, networks and conditions."""
        conditions = None if self.conditions is None else self.conditions[at]
        return self.starts(at, generator), self.ends[at], conditions


class Independent(Coupling):
    """Each time another draw from the base."""

    def __init__(self, ends: Tensor, conditions: Tensor | None, base: Base) -> None:
        super().__init__(ends, conditions)
        self.base = base

    def starts(self, at: Tensor, generator: torch.Generator) -> Tensor:
        return self.base.draw(len(at), generator)


class Training(Coupling):
    """Where the network's own training began: paths cross less, and units keep their places."""

    def __init__(self, ends: Tensor, conditions: Tensor | None, begun: Tensor) -> None:
        super().__init__(ends, conditions)
        self.begun = begun

    def starts(self, at: Tensor, generator: torch.Generator) -> Tensor:
        return self.begun[at]
