"""The shortest path between two solutions in Wasserstein space."""

from __future__ import annotations

from dataclasses import dataclass

from coset import state as states
from coset.checks import State, check
from coset.errors import CosetError
from coset.solutions import Dirac, Gaussian, Solution, as_solution
from coset.solutions.gaussian import as_gaussian
from coset.solutions.ties import owners, tie


@dataclass(frozen=True, eq=False)
class Geodesic:
    """t -> the solution at t: means and standard deviations both interpolate linearly.

    m_t = (1-t) m0 + t m1 and s_t = (1-t) s0 + t s1: rossi2023 Eq. 7 for diagonal covariances, with its indices
    set right: S_t = S0^{-1/2} ((1-t) S0 + t (S0^{1/2} S1 S0^{1/2})^{1/2})^2 S0^{-1/2}. Two Diracs give the
    straight line between their states, also beyond its ends.
    """

    a: Solution
    b: Solution

    def __call__(self, t: float) -> Solution:
        tied = owners(self.a.mean)
        mean = tie(states.lerp(self.a.mean, self.b.mean, t), tied)
        if isinstance(self.a, Dirac) and isinstance(self.b, Dirac):
            return Dirac(mean)
        if not 0 <= t <= 1:
            raise CosetError(f"A geodesic between Gaussians goes from t = 0 to 1, not to {t}.")
        first, second = (as_gaussian(q, "A geodesic") for q in (self.a, self.b))
        return Gaussian(mean, states.lerp(first.std, second.std, t))


def geodesic(a: State | Solution, b: State | Solution) -> Geodesic:
    """The Wasserstein geodesic from `a` at t = 0 to `b` at t = 1, for Diracs (or states) and Gaussians."""
    ends = as_solution(a), as_solution(b)
    for end in ends:
        as_gaussian(end, "A geodesic")
    check(ends[1].mean, like=ends[0].mean, where="the second solution")
    return Geodesic(*ends)
