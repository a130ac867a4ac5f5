"""The path that fades one solution out and the other in."""

from __future__ import annotations

from dataclasses import dataclass

from coset.core.errors import CosetError
from coset.core.show import Shown, Table
from coset.core.state import StateLike, check
from coset.solutions.as_solution import as_solution
from coset.solutions.mixture import Mixture
from coset.solutions.solution import Solution


@dataclass(frozen=True, eq=False, repr=False)
class MixturePath(Shown):
    """t -> (1-t) q0 + t q1, the straight line between densities; rossi2023 Fig. 3 sets it beside the geodesic.

    Args:
        a: q0, the solution at t = 0.
        b: q1, the solution at t = 1.

    Example:
        >>> coset.mixture(a, b)(0.25).weights
        (0.75, 0.25)
    """

    a: Solution
    b: Solution

    def __call__(self, t: float) -> Mixture:
        """The mixture at a time.

        Args:
            t: From 0 to 1.

        Raises:
            CosetError: If t lies outside.
        """
        if not 0 <= t <= 1:
            raise CosetError(f"A path of mixtures goes from t = 0 to 1, not to {t}.")
        return Mixture([self.a, self.b], [1 - t, t])

    def _shown(self) -> Table:
        return Table("MixturePath", [("t = 0", repr(self.a)), ("t = 1", repr(self.b))])


def mixture(a: StateLike, b: StateLike) -> MixturePath:
    """The path of mixtures from `a` at t = 0 to `b` at t = 1, for any two solutions of one layout.

    Args:
        a: A solution, a state or a module.
        b: Another of the same layout.

    Returns:
        What is called with t and gives a `Mixture`.

    Raises:
        StateError: If their names or shapes differ.

    Example:
        >>> path = coset.mixture(a, b)
        >>> coset.barrier(path, model, digits.test, points=3).height < 1e-6  # as -log is convex
        True
    """
    first, second = as_solution(a, "the first solution"), as_solution(b, "the second solution")
    check(second.mean, like=first.mean, where="the second solution")
    return MixturePath(first, second)
