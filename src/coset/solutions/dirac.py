"""A point mass: what ordinary training gives."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from torch import Tensor

from coset.core.json_reader import JsonObject
from coset.core.state import StateLike, check, is_coordinate, owners, tie
from coset.solutions.solution import Solution, as_noise, require_count, state_image
from coset.symmetries.group import Element
from coset.symmetries.symmetry import Symmetry


class Dirac(Solution):
    """All mass at one state: what ordinary training gives. Its log_prob is 0 there and -inf elsewhere, its entropy 0.

    Args:
        state: a mapping of tensors by name, or a module, whose tensors are copied. Names that hold one tensor object
            are tied.
        noise: standard deviation of the observations of a regression network; None for a classifier.

    Raises:
        StateError: some value is NaN or infinite.

    Example:
        >>> coset.Dirac(model)
        Dirac(4 tensors, 1,210 coordinates)
    """

    kind: ClassVar[str] = "dirac"

    def __init__(self, state: StateLike, noise: float | None = None) -> None:
        checked = check(state)
        self.mean = tie({name: x.detach() for name, x in checked.items()}, owners(checked))
        self.noise = as_noise(noise)

    @property
    def state(self) -> dict[str, Tensor]:
        """The state itself, which is also the mean."""
        return self.mean

    @property
    def is_random(self) -> bool:
        return False

    def sample(self, n: int, generator: torch.Generator | None = None) -> dict[str, Tensor]:
        require_count(n)
        copies = {name: x.expand(n, *x.shape).clone() for name, x in self.mean.items()}
        return tie(copies, owners(self.mean))

    def log_prob(self, state: StateLike) -> Tensor:
        point = check(state, like=self.mean)
        same = all(bool((x == point[name].to(x.device)).all()) for name, x in self.mean.items() if is_coordinate(x))
        return torch.tensor(0.0 if same else -math.inf, dtype=torch.float64)

    def entropy(self) -> Tensor:
        return torch.zeros((), dtype=torch.float64)

    def _image(self, sym: Symmetry, g: Element) -> Dirac:
        return Dirac(state_image(sym, g, self.mean), self.noise)

    def to(self, device: str | torch.device) -> Dirac:
        return Dirac(tie({name: x.to(device) for name, x in self.mean.items()}, owners(self.mean)), self.noise)

    def pack(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        return {"kind": self.kind, "noise": self.noise}, self.mean

    @classmethod
    def unpack(cls, description: JsonObject, tensors: dict[str, Tensor]) -> Dirac:
        return cls(tensors, description.optional_number("noise"))
