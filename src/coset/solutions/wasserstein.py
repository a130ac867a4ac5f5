"""The Wasserstein distance of two solutions."""

import torch
from torch import Tensor

from coset.assignment import solve
from coset.core.errors import CosetError
from coset.core.state import State, StateLike, check, distinct, is_coordinate
from coset.solutions.as_solution import as_solution
from coset.solutions.coordinates import rows
from coset.solutions.dirac import Dirac
from coset.solutions.ensemble import Ensemble
from coset.solutions.gaussian import Gaussian
from coset.solutions.gaussian_forms import as_gaussian, common_roots, full_gaussians
from coset.solutions.kronecker_gaussian import KroneckerGaussian
from coset.solutions.mixture import Mixture
from coset.solutions.solution import Solution
from coset.solutions.symmetrized import Symmetrized


def coupled(first: Tensor, second: Tensor) -> Tensor:
    """R1 U [n, k] for roots R0 and R1 [n, k]: x = R0 z and y = R1 U z are coupled at the least cost."""
    left, _, right = torch.linalg.svd(second.T @ first)
    turned: Tensor = second @ (left @ right)
    return turned


def kronecker_cost(first: tuple[Tensor, Tensor], second: tuple[Tensor, Tensor]) -> Tensor:
    """|R0 - R1 U|^2 for R0 = X x Y and R1 = X' x Y': the orthogonal factor is a Kronecker product too.

    X x Y - X' x Y' = ((X - X') x (Y + Y') + (X + X') x (Y - Y')) / 2, and the two are orthogonal where |Y| = |Y'|.
    """
    (x0, y0), (x1, y1) = _normalized(*first), _normalized(*second)
    if not (bool(y0.any()) and bool(y1.any())):
        return x0.square().sum() + x1.square().sum()
    x1, y1 = coupled(x0, x1), coupled(y0, y1)
    parts = (x0 - x1).square().sum() * (y0 + y1).square().sum(), (x0 + x1).square().sum() * (y0 - y1).square().sum()
    return (parts[0] + parts[1]) / 4


def _normalized(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """(|y| x, y / |y|); (0, 0) where y is zero."""
    size = torch.linalg.matrix_norm(y)
    return x * size, y / size.where(size > 0, 1.0)


def match(a: Ensemble, b: Ensemble, purpose: str) -> tuple[Tensor, Tensor]:
    """(p, cost): member i of `a` goes to member p[i] of `b`, and the mean squared distance, a float64 scalar.

    Transport between equal numbers of equal weights has an optimum that splits none of them (Birkhoff).
    """
    if len(a) != len(b):
        raise CosetError(f"{purpose} needs ensembles of one size, not of {len(a)} and {len(b)} members.")
    total = torch.zeros((len(a), len(a)), dtype=torch.float64)
    for name in distinct(a.mean):
        if is_coordinate(a.mean[name]):
            x, y = (rows(q.population[name]) for q in (a, b))
            # Without the product of matrices, which loses the digits of a small distance.
            apart = torch.cdist(x, y.to(x.device), compute_mode="donot_use_mm_for_euclid_dist")
            total = total.to(x.device) + apart.square()
    permutation = solve(total, maximize=False).permutation
    return permutation, total.gather(1, permutation[:, None]).mean()


PURPOSE = "The Wasserstein distance"


def wasserstein(q0: StateLike, q1: StateLike) -> Tensor:
    """The Wasserstein distance W2(q0, q1), the root of the least mean |w0 - w1|^2 of a coupling.

    Diracs and Gaussians: sqrt(|m0 - m1|^2 + tr C0 + tr C1 - 2 tr (C0^1/2 C1 C0^1/2)^1/2), rossi2023 Eq. 16. For
    diagonal Gaussians the traces are |s0 - s1|^2 (Eq. 17; the second line of Eq. 16 should be the distance of square
    roots of covariances). Ensembles of one size: by an optimal matching. A Dirac with anything: there is one coupling.

    Args:
        q0: a solution, a state or a module.
        q1: another, with the same names and shapes.

    Returns:
        A float64 scalar.

    Raises:
        CosetError: the distance of two such solutions is not known in closed form.
        StateError: names or shapes differ.

    Example:
        >>> float(coset.wasserstein(a, sym.act(sym.identity(), a)))
        0.0
    """
    a, b = as_solution(q0, "the first solution"), as_solution(q1, "the second solution")
    check(b.mean, like=a.mean, where="the second solution")
    return _squared(a, b).sqrt()


def _squared(a: Solution, b: Solution) -> Tensor:
    if isinstance(a, Ensemble) and isinstance(b, Ensemble):
        return match(a, b, PURPOSE)[1]
    if isinstance(a, Dirac) and isinstance(b, Ensemble | Mixture):
        return torch.stack([w * _squared(a, component) for w, component in b.components()]).sum()
    if isinstance(b, Dirac) and isinstance(a, Ensemble | Mixture):
        return _squared(b, a)
    if isinstance(a, Dirac) and isinstance(b, Symmetrized):
        # The mean is fixed by the group, so that all images of q are as far from it.
        away = _squared(Dirac(b.mean), b.q)
        return _apart(a.mean, b.mean).to(away.device) + away
    if isinstance(b, Dirac) and isinstance(a, Symmetrized):
        return _squared(b, a)
    spread = _spread(a, b)
    return _apart(a.mean, b.mean).to(spread.device) + spread


def _spread(a: Solution, b: Solution) -> Tensor:
    """The squared distance of two Gaussians whose means are one."""
    if isinstance(a, Dirac | Gaussian) and isinstance(b, Dirac | Gaussian):
        return _apart(as_gaussian(a).std, as_gaussian(b).std)
    if isinstance(a, Dirac | KroneckerGaussian) and isinstance(b, Dirac | KroneckerGaussian):
        return _kroneckers(a, b)
    _, first, second = common_roots(*full_gaussians(a, b, PURPOSE))
    return (first - coupled(first, second)).square().sum()


def _kroneckers(a: Dirac | KroneckerGaussian, b: Dirac | KroneckerGaussian) -> Tensor:
    """Tensor by tensor, as those are independent; one that is fixed has roots of zero."""
    first, second = ({} if isinstance(q, Dirac) else q.roots for q in (a, b))
    total = torch.zeros((), dtype=torch.float64)
    for name in first | second:
        x = first.get(name) or _zeros(second[name])
        y = second.get(name) or _zeros(first[name])
        cost = kronecker_cost(x, (y[0].to(x[0].device), y[1].to(x[1].device)))
        total = total.to(cost.device) + cost
    return total


def _zeros(roots: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    return torch.zeros_like(roots[0]), torch.zeros_like(roots[1])


def _apart(a: State, b: State) -> Tensor:
    """|a - b|^2 over coordinates, tied ones once."""
    total = torch.zeros((), dtype=torch.float64)
    for name in distinct(a):
        if is_coordinate(a[name]):
            x = a[name].to(torch.promote_types(a[name].dtype, torch.float64))
            total = total.to(x.device) + (x - b[name].to(x)).abs().square().sum()
    return total
