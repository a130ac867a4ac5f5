"""What `fit` asks of a method: to start a run of some networks, which it then drives epoch by epoch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from coset.data import Split
from coset.inference.network import Network
from coset.inference.randomness import Randomness
from coset.solutions import Solution
from coset.solutions.likelihood import Likelihood


@dataclass(frozen=True, eq=False)
class Problem:
    """Networks to be trained together on one device.

    start: (rows, p) where each starts; split: the data that all of them see; likelihood: what the data ask for.
    """

    network: Network
    start: Tensor
    split: Split
    likelihood: Likelihood
    randomness: Randomness

    @property
    def rows(self) -> int:
        """How many networks there are."""
        return len(self.start)

    @property
    def device(self) -> torch.device:
        return self.start.device

    def normal(self) -> Tensor:
        """Standard normal noise (rows, p), for each network from its own generator."""
        out = torch.empty_like(self.start)
        for row, generator in zip(out, self.randomness.generators, strict=True):
            row.normal_(generator=generator)
        return out

    def uniform(self) -> Tensor:
        """Uniform numbers (rows,) float64 in [0, 1), each from the network's own generator."""
        out = torch.empty(self.rows, dtype=torch.float64, device=self.device)
        for row, generator in zip(out, self.randomness.generators, strict=True):
            row.uniform_(generator=generator)
        return out

    def orders(self, count: int) -> Tensor:
        """The first `count` examples of a random order for each network, (rows, count)."""
        n = len(self.split)
        drawn = [torch.randperm(n, generator=g, device=self.device)[:count] for g in self.randomness.generators]
        return torch.stack(drawn)


class Course(ABC):
    """Something that is learned, epoch by epoch.

    after_step
        for whoever may want a `state_dict` within an epoch; a course whose epochs may take long calls it after each
        step, and then its state says where in the epoch it is
    """

    after_step: Callable[[], None] | None = None

    @abstractmethod
    def epoch(self) -> list[tuple[float, float | None]]:
        """Go through the data once; for each network the mean loss on the way, and the accuracy of a classifier."""

    def more(self) -> dict[str, list[float]]:
        """What else there is to say about the last epoch, by name, for each network."""
        return {}

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Everything the next epoch depends on but the random numbers: tensors in plain containers."""

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a `state_dict`."""


class Run(Course):
    """Some networks under way."""

    @abstractmethod
    def solutions(self) -> list[Solution]:
        """What has been found so far, for each network."""


class Method(ABC):
    """A way to find solutions. Subclasses are frozen dataclasses: their fields are the settings of a run."""

    epochs: int

    @property
    def copies(self) -> int:
        """How many networks a solution is made of."""
        return 1

    @abstractmethod
    def start(self, problem: Problem) -> Run:
        """A run of the networks of `problem`."""

    def combine(self, found: Sequence[Solution]) -> Solution:
        """One solution from those of its `copies` networks."""
        (only,) = found
        return only
