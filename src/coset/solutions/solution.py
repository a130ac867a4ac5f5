"""What every solution can do: it is a distribution over states."""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from coset.core.checkpoint import save_state
from coset.core.errors import StateError, SymmetryError
from coset.core.state import State, distinct, is_coordinate, owners, tie
from coset.symmetries.group import Element
from coset.symmetries.symmetry import Symmetry

METADATA = "coset.solution"  # under this name a file says which solution it holds


class Solution(ABC):
    """A distribution over the states of one layout.

    mean: the mean state. Integer and bool tensors, which are no coordinates, are the same in every sample and
    play no part in densities. Tensors given to a solution are not copied.

    noise: standard deviation of the observations of a regression network, y = f(x; w) + noise * e with e ~ N(0, 1);
    None for a classifier. It says nothing about states: densities and distances leave it out.

    Coordinates may be fixed, as all of a Dirac are. Densities are with respect to Lebesgue measure over the
    random coordinates and counting measure over the fixed ones, so that entropy = -E[log_prob] always.
    """

    kind: ClassVar[str]
    mean: dict[str, Tensor]
    noise: float | None

    @property
    @abstractmethod
    def is_random(self) -> bool:
        """Whether two samples can differ."""

    @abstractmethod
    def sample(self, n: int, generator: torch.Generator | None = None) -> dict[str, Tensor]:
        """A population of n independent states: each tensor (n, *shape)."""

    @abstractmethod
    def log_prob(self, state: State) -> Tensor:
        """log q(state), a float64 scalar; -inf where a fixed coordinate differs."""

    @abstractmethod
    def entropy(self) -> Tensor:
        """-E[log q] in nats, a float64 scalar."""

    @abstractmethod
    def _image(self, sym: Symmetry, g: Element) -> Solution:
        """`sym.act(g, self)`: the distribution of `sym.act(g, state)` for a state of this one."""

    @abstractmethod
    def to(self, device: str | torch.device) -> Solution:
        """The same distribution on `device`."""

    @abstractmethod
    def pack(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """A JSON description with its `kind`, and named tensors, from which `unpack` makes the solution again."""

    @classmethod
    @abstractmethod
    def unpack(cls, description: dict[str, Any], tensors: dict[str, Tensor]) -> Solution:
        """The inverse of `pack`."""

    def components(self) -> list[tuple[float, Solution]]:
        """This distribution as a sum of weights times simpler ones."""
        return [(1.0, self)]

    def save(self, path: str | Path) -> None:
        """Write a `.safetensors` file, atomically; `coset.load` reads it. A Dirac's is a plain checkpoint."""
        description, tensors = self.pack()
        # safetensors keeps neither the order of names nor which of them hold one tensor.
        save_state(tensors, path, {METADATA: json.dumps({**description, "owners": owners(tensors)})})

    def __repr__(self) -> str:
        coordinates = sum(self.mean[n].numel() for n in distinct(self.mean) if is_coordinate(self.mean[n]))
        noise = "" if self.noise is None else f", noise {self.noise:.4g}"
        return f"{type(self).__name__}({len(self.mean)} tensors, {coordinates:,} coordinates{noise})"


def state_image(sym: Symmetry, g: Element, state: State) -> dict[str, Tensor]:
    """`sym.act(g, state)` for one element, with the names tied that are tied in `state`."""
    if g.batch:
        raise SymmetryError(
            f"{g.batch[0]} elements would make a population of one network: act on an Ensemble or a Population, or on "
            "the mean state."
        )
    return tie(sym.act(g, state), owners(state))


def as_noise(noise: float | None) -> float | None:
    """The noise as a float, refused unless it is positive and finite; None as it is."""
    if noise is None:
        return None
    found = float(noise)
    if not 0 < found < math.inf:
        raise StateError(f"The observation noise must be positive and finite, not {found}: give None for a classifier.")
    return found


def require_count(n: int) -> None:
    """Refuse a population of fewer than one."""
    if n < 1:
        raise StateError(f"Cannot draw {n} states: ask for one or more.")
