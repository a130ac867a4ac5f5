"""The shortest path between two solutions in Wasserstein space."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from coset.core import state as states
from coset.core.errors import CosetError
from coset.core.state import State, check, owners, tie
from coset.solutions.as_solution import as_solution
from coset.solutions.dirac import Dirac
from coset.solutions.ensemble import Ensemble
from coset.solutions.full_gaussian import FullGaussian
from coset.solutions.gaussian import Gaussian
from coset.solutions.gaussian_forms import as_gaussian, common_roots, full_gaussians, no_closed_form
from coset.solutions.solution import Solution
from coset.solutions.wasserstein import coupled, match

PURPOSE = "A geodesic"


@dataclass(frozen=True, eq=False)
class Geodesic:
    """t -> the solution at t: all mass moves straight and at constant speed, by the optimal coupling of the ends.

    Both ends are of one kind; member k of one ensemble goes to member k of the other. `roots` are those of two
    FullGaussians, over `names`: their optimal coupling is x = R0 z, y = R1 z, so that at t the covariance is
    S_t = R_t R_t^T with R_t = (1-t) R0 + t R1. Where S0 is regular that is rossi2023 Eq. 7, with its indices set
    right: S_t = S0^{-1/2} ((1-t) S0 + t (S0^{1/2} S1 S0^{1/2})^{1/2})^2 S0^{-1/2}. For diagonal covariances standard
    deviations interpolate linearly. Two Diracs give the straight line between their states, also beyond its ends.
    The noise interpolates linearly too.
    """

    a: Solution
    b: Solution
    names: tuple[str, ...] = ()
    roots: tuple[Tensor, Tensor] | None = None

    def __call__(self, t: float) -> Solution:
        if not 0 <= t <= 1 and not isinstance(self.a, Dirac):
            raise CosetError(f"A geodesic between {type(self.a).__name__}s goes from t = 0 to 1, not to {t}.")
        ends = self.a.noise, self.b.noise
        noise = None if ends[0] is None or ends[1] is None else (1 - t) * ends[0] + t * ends[1]
        tied = owners(self.a.mean)
        if isinstance(self.a, Ensemble) and isinstance(self.b, Ensemble):
            return Ensemble(tie(states.lerp(self.a.population, self.b.population, t), tied), noise)
        mean = tie(states.lerp(self.a.mean, self.b.mean, t), tied)
        if isinstance(self.a, Gaussian) and isinstance(self.b, Gaussian):
            return Gaussian(mean, states.lerp(self.a.std, self.b.std, t), noise)
        if self.roots is not None:
            root = (1 - t) * self.roots[0] + t * self.roots[1]
            return FullGaussian(mean, root @ root.T, self.names, noise)
        return Dirac(mean, noise)


def geodesic(a: State | Solution, b: State | Solution) -> Geodesic:
    """The Wasserstein geodesic from `a` at t = 0 to `b` at t = 1.

    Between Diracs (or states) and Gaussians of any kind, with whole covariances unless both are diagonal, and between
    ensembles of one size, or an ensemble and a Dirac.
    """
    first, second = as_solution(a), as_solution(b)
    check(second.mean, like=first.mean, where="the second solution")
    if (first.noise is None) != (second.noise is None):
        raise CosetError("A geodesic needs the noise of both solutions or of neither, and only one has it.")
    if isinstance(first, Ensemble) or isinstance(second, Ensemble):
        return _between_ensembles(first, second)
    if isinstance(first, Dirac) and isinstance(second, Dirac):
        return Geodesic(first, second)
    if isinstance(first, Dirac | Gaussian) and isinstance(second, Dirac | Gaussian):
        return Geodesic(as_gaussian(first), as_gaussian(second))
    whole = full_gaussians(first, second, PURPOSE)
    names, *roots = common_roots(*whole)
    return Geodesic(*whole, tuple(names), (roots[0], coupled(roots[0], roots[1])))


def _between_ensembles(a: Solution, b: Solution) -> Geodesic:
    size = max(len(q) for q in (a, b) if isinstance(q, Ensemble))
    first, second = (Ensemble(q.sample(size), q.noise) if isinstance(q, Dirac) else q for q in (a, b))
    if not (isinstance(first, Ensemble) and isinstance(second, Ensemble)):
        raise no_closed_form(a, b, PURPOSE)
    order, _ = match(first, second, PURPOSE)
    matched = {name: x.index_select(0, order.to(x.device)) for name, x in second.population.items()}
    return Geodesic(first, Ensemble(tie(matched, owners(second.mean)), second.noise))
