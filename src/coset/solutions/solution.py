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
from coset.core.json_reader import JsonObject
from coset.core.show import Shown, Table
from coset.core.state import State, StateLike, distinct, is_coordinate, owners, tie
from coset.symmetries.group import Element
from coset.symmetries.symmetry import Symmetry

METADATA = "coset.solution"  # under this name a file says which solution it holds


class Solution(Shown, ABC):
    """A distribution over the states of one layout; what every kind of solution can do.

    Attributes:
        mean: the mean state. Integer and bool tensors, which are no coordinates, are the same in every sample and play
            no part in densities. Tensors given to a solution are not copied.
        noise: standard deviation of the observations of a regression network, y = f(x; w) + noise * e with e ~ N(0, 1);
            None for a classifier. It says nothing about states: densities and distances leave it out.

    Coordinates may be fixed, as all of a Dirac are. Densities are with respect to Lebesgue measure over the
    random coordinates and counting measure over the fixed ones, so that entropy = -E[log_prob] always.

    Example:
        >>> isinstance(a, coset.Solution), a.is_random
        (True, False)
    """

    kind: ClassVar[str]
    has_order: ClassVar[bool] = True
    """Whether units have an order; those of a symmetrized solution have all orders alike."""
    mean: dict[str, Tensor]
    noise: float | None

    @property
    @abstractmethod
    def is_random(self) -> bool:
        """Whether two samples can differ."""

    @abstractmethod
    def sample(self, n: int, generator: torch.Generator | None = None) -> dict[str, Tensor]:
        """Independent states.

        Args:
            n: how many.
            generator: what they come from; None is torch's own.

        Returns:
            A population: each tensor (n, *shape).
        """

    @abstractmethod
    def log_prob(self, state: StateLike) -> Tensor:
        """log q(state); -inf where a fixed coordinate differs.

        Args:
            state: a mapping of tensors by name, or a module.

        Returns:
            A float64 scalar.
        """

    @abstractmethod
    def entropy(self) -> Tensor:
        """-E[log q] in nats.

        Returns:
            A float64 scalar.
        """

    @abstractmethod
    def _image(self, sym: Symmetry, g: Element) -> Solution:
        """`sym.act(g, self)`: the distribution of `sym.act(g, state)` for a state of this one."""

    @abstractmethod
    def to(self, device: str | torch.device) -> Solution:
        """The same distribution on a device.

        Args:
            device: of all tensors of the result.
        """

    @abstractmethod
    def pack(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """What `save` writes: a description that JSON can hold, with its `kind`, and named tensors."""

    @classmethod
    @abstractmethod
    def unpack(cls, description: JsonObject, tensors: dict[str, Tensor]) -> Solution:
        """The inverse of `pack`.

        Args:
            description: as JSON gives it back.
            tensors: under the names of `pack`.
        """

    def components(self) -> list[tuple[float, Solution]]:
        """This distribution as a sum of weights times simpler ones."""
        return [(1.0, self)]

    def save(self, path: str | Path) -> None:
        """Write a `.safetensors` file, atomically; `coset.load` reads it. A Dirac's is a plain checkpoint.

        Args:
            path: the file.
        """
        description, tensors = self.pack()
        # safetensors keeps neither the order of names nor which of them hold one tensor.
        save_state(tensors, path, {METADATA: json.dumps({**description, "owners": owners(tensors)})})

    def _facts(self) -> list[tuple[object, ...]]:
        """What a notebook shows of this kind of solution, besides what all have."""
        return []

    def _shown(self) -> Table:
        tensors = [self.mean[name] for name in distinct(self.mean) if is_coordinate(self.mean[name])]
        dtypes = ", ".join(sorted({str(x.dtype).removeprefix("torch.") for x in tensors}))
        devices = ", ".join(sorted({str(x.device) for x in self.mean.values()}))
        return Table(repr(self), [*self._facts(), ("dtype", dtypes), ("device", devices)])

    def __repr__(self) -> str:
        """In one line; the table of `_shown` is for notebooks."""
        coordinates = sum(self.mean[n].numel() for n in distinct(self.mean) if is_coordinate(self.mean[n]))
        noise = "" if self.noise is None else f", noise {self.noise:.4g}"
        return f"{type(self).__name__}({len(self.mean)} tensors, {coordinates:,} coordinates{noise})"


def refuse_matrices(g: Element, kind: str) -> None:
    """Raise `SymmetryError` for an element that mixes weights: a distribution of this kind would not stay one."""
    if g.matrices:
        raise SymmetryError(
            f"A {kind} does not stay one when units are mixed, as by the matrices of {next(iter(g.matrices))!r}: take "
            "sym.without_matrices(), or act on its samples."
        )


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
    std = float(noise)
    if not 0 < std < math.inf:
        raise StateError(f"The observation noise must be positive and finite, not {std}: give None for a classifier.")
    return std


def require_count(n: int) -> None:
    """Refuse a population of fewer than one."""
    if n < 1:
        raise StateError(f"Cannot draw {n} states: ask for one or more.")
