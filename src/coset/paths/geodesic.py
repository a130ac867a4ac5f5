"""The shortest path between two solutions in Wasserstein space."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from coset.core import state as states
from coset.core.errors import CosetError
from coset.core.show import Shown, Table
from coset.core.state import StateLike, check, owners, tie
from coset.solutions.as_solution import as_solution
from coset.solutions.dirac import Dirac
from coset.solutions.ensemble import Ensemble
from coset.solutions.full_gaussian import FullGaussian
from coset.solutions.gaussian import Gaussian
from coset.solutions.gaussian_forms import as_gaussian, common_roots, full_gaussians, no_closed_form
from coset.solutions.solution import Solution
from coset.solutions.wasserstein import coupled, match

PURPOSE = "A geodesic"


@dataclass(frozen=True, eq=False, repr=False)
class Geodesic(Shown):
    """t -> the solution at t: all mass moves straight and at constant speed, by the optimal coupling of the ends.

    `coset.geodesic` makes it. Both ends are of one kind; member k of one ensemble goes to member k of the other. The
    optimal coupling of two FullGaussians with roots R0 and R1 is x = R0 z, y = R1 z, so that at t the covariance is
    S_t = R_t R_t^T with R_t = (1-t) R0 + t R1. Where S0 is regular that is rossi2023 Eq. 7, with its indices set
    right: S_t = S0^{-1/2} ((1-t) S0 + t (S0^{1/2} S1 S0^{1/2})^{1/2})^2 S0^{-1/2}. For diagonal covariances standard
    deviations interpolate linearly. Two Diracs give the straight line between their states, also beyond its ends.
    The noise interpolates linearly too.

    Args:
        a: The solution at t = 0.
        b: The solution at t = 1.
        names: Tensors that the covariances of two FullGaussians are over.
        roots: Of these covariances, coupled.

    Example:
        >>> path = coset.geodesic(a, b)
        >>> path(0.5)
        Dirac(4 tensors, 1,210 coordinates)
    """

    a: Solution
    b: Solution
    names: tuple[str, ...] = ()
    roots: tuple[Tensor, Tensor] | None = None

    def __call__(self, t: float) -> Solution:
        """The solution at a time.

        Args:
            t: From 0 to 1; between Diracs any number.

        Raises:
            CosetError: If there is no solution at t.
        """
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

    def _shown(self) -> Table:
        return Table("Geodesic", [("t = 0", repr(self.a)), ("t = 1", repr(self.b))])


def geodesic(a: StateLike, b: StateLike) -> Geodesic:
    """The Wasserstein geodesic from `a` at t = 0 to `b` at t = 1.

    Between Diracs and Gaussians of any kind, with whole covariances unless both are diagonal, and between ensembles of
    one size, or an ensemble and a Dirac.

    Args:
        a: A solution, a state or a module.
        b: Another of the same layout.

    Returns:
        What is called with t and gives a solution.

    Raises:
        CosetError: If there is no closed form between such solutions, or only one has noise.
        StateError: If their names or shapes differ.

    Example:
        >>> path = coset.geodesic(a, b)
        >>> coset.barrier(path, model, digits.test, points=3).height > 0
        True
    """
    first, second = as_solution(a, "the first solution"), as_solution(b, "the second solution")
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
