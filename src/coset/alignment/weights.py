"""Alignment by weights: the least |m_a - g m_b|, of the means; and the choice of a cost by the kind of solutions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from coset.alignment.balance import match_balanced
from coset.alignment.coordinate_ascent import Match
from coset.alignment.method import AlignmentTask, Cost
from coset.alignment.objective import InnerProduct
from coset.alignment.wasserstein import Wasserstein
from coset.solutions.gaussian import Gaussian
from coset.symmetries.symmetry import Symmetry


@dataclass(frozen=True)
class Weights(Cost):
    """<m_a, g m_b>; checkpoints on disk are read one tensor at a time."""

    name: ClassVar[str] = "weights"
    symmetric: ClassVar[bool] = True
    turns: ClassVar[bool] = True

    def match(self, task: AlignmentTask) -> Match:
        return match_balanced(self, task)

    def products(self, task: AlignmentTask) -> Sequence[InnerProduct]:
        return [InnerProduct(*task.means)]


@dataclass(frozen=True)
class Auto(Cost):
    """The W2 distance of two Gaussians, and of all others that of the means."""

    name: ClassVar[str] = "auto"
    symmetric: ClassVar[bool] = True

    def match(self, task: AlignmentTask) -> Match:
        return self._cost(task).match(task)

    def products(self, task: AlignmentTask) -> Sequence[InnerProduct]:
        return self._cost(task).products(task)

    def symmetry(self, task: AlignmentTask) -> Symmetry:
        return self._cost(task).symmetry(task)

    def _cost(self, task: AlignmentTask) -> Cost:
        both = isinstance(task.first, Gaussian) and isinstance(task.second, Gaussian)
        return Wasserstein() if both else Weights()
