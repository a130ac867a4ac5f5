"""Sinkhorn re-basin: learned matching of permutations alone, from the weights' (Peña et al. 2023)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from coset.alignment.coordinate_ascent import Match
from coset.alignment.learned import Learned, RelaxedLoss
from coset.alignment.method import AlignmentTask, AlignMethod
from coset.alignment.objective import InnerProduct, Objective
from coset.symmetries.group import Element
from coset.symmetries.symmetry import Symmetry


@dataclass(frozen=True, repr=False)
class Sinkhorn(Learned):
    """`Learned` for permutations alone, at one temperature, from the exact weight matching.

    X is the gradient of <a, P(g b)> at P = 1 at first, so that pairs which weights cannot tell apart are open. On six
    pairs of digits MLPs this ended lower than X = 1 from the unmoved b on all, and lower than X = 1 from g on five.

    The match's objective is the <a, g b> of weight matching, for comparison. The objectives are those of weightflow
    Eq. 4.4 ("l2"), 4.5 ("midpoint") and 4.6 ("random"), and a temperature is its tau of Eq. 4.3.

    Args:
        objective: As of `Learned`.
        start: As of `Learned`.
        both: As of `Learned`.
        steps: How many steps of Adam.
        rate: Adam's; the scores have a deviation of one at first.
        turn_rate: Of no use, as there are no matrices.
        temperature: The lower, the nearer P is to a permutation.
        last_temperature: At the end; `temperature` when None.
        batch_size: Examples drawn for the loss at each step.
        repair: As of `Learned`.
        precision: As of `Learned`.
        compile: As of `Learned`.
        out: As of `Learned`.
        checkpoint_seconds: As of `Learned`.

    Example:
        >>> match = coset.align(a, b, sym, coset.Sinkhorn(steps=20), model, digits.train)
        >>> match.sweeps, len(match.history)
        (20, 20)
    """

    name: ClassVar[str] = "sinkhorn"
    margin: ClassVar[float] = 0.0
    falls: ClassVar[bool] = False

    objective: RelaxedLoss = "midpoint"
    start: str | AlignMethod | Element | Match | None = "weights"
    steps: int = 200
    rate: float = 0.1
    last_temperature: float | None = None
    batch_size: int = 256

    def symmetry(self, task: AlignmentTask) -> Symmetry:
        """Permutations alone.

        Args:
            task: The two solutions, their symmetry, and what else was given to `coset.align`.
        """
        return task.sym.without_matrices()

    def _values(self, task: AlignmentTask, element: Element, judged: tuple[float, float]) -> tuple[float, float]:
        weights = Objective(task.sym, [InnerProduct(*task.means)], device=task.device)
        return weights.value(element), weights.value(task.sym.identity())
