"""The path that fades one solution out and the other in."""

from __future__ import annotations

from dataclasses import dataclass

from coset.core.errors import CosetError
from coset.core.state import State, check
from coset.solutions.as_solution import as_solution
from coset.solutions.mixture import Mixture
from coset.solutions.solution import Solution


@dataclass(frozen=True, eq=False)
class MixturePath:
    """t -> (1-t) q0 + t q1, the straight line between densities; rossi2023 Fig. 3 sets it beside the geodesic."""

    a: Solution
    b: Solution

    def __call__(self, t: float) -> Mixture:
        if not 0 <= t <= 1:
            raise CosetError(f"A path of mixtures goes from t = 0 to 1, not to {t}.")
        return Mixture([self.a, self.b], [1 - t, t])


def mixture(a: State | Solution, b: State | Solution) -> MixturePath:
    """The path of mixtures from `a` at t = 0 to `b` at t = 1, for any two solutions of one layout."""
    first, second = as_solution(a), as_solution(b)
    check(second.mean, like=first.mean, where="the second solution")
    return MixturePath(first, second)
