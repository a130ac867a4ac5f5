"""Deep ensembles: several networks trained alike, each from its own start."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from coset.core.errors import CosetError
from coset.inference.map import MAP
from coset.solutions.ensemble import Ensemble
from coset.solutions.mixture import Mixture
from coset.solutions.solution import Solution
from coset.training.loop import Method, SolutionRun
from coset.training.network import TrainingProblem


@dataclass(frozen=True, repr=False)
class DeepEnsemble(Method):
    """Several networks trained alike, each from its own start (Lakshminarayanan, Pritzel & Blundell 2017).

    The solution is an `Ensemble`; networks of a regression that learned different noises are a `Mixture` of Diracs.

    Args:
        members: How many networks.
        base: How they are trained.

    Raises:
        CosetError: If a setting is out of range.

    Example:
        >>> (ensemble,) = coset.fit(model, digits.train, coset.DeepEnsemble(3, coset.MAP(epochs=1)))
        >>> len(ensemble)
        3
    """

    members: int = 5
    base: MAP = field(default_factory=MAP)

    def __post_init__(self) -> None:
        if self.members < 1:
            raise CosetError(f"DeepEnsemble: members must be positive, not {self.members!r}.")

    @property
    def epochs(self) -> int:  # type: ignore[override]
        return self.base.epochs

    @property
    def copies(self) -> int:
        return self.members

    def start(self, problem: TrainingProblem) -> SolutionRun:
        return self.base.start(problem)

    def combine(self, solutions: Sequence[Solution]) -> Solution:
        if len({one.noise for one in solutions}) > 1:
            return Mixture(solutions)
        return Ensemble([one.mean for one in solutions], noise=solutions[0].noise)
