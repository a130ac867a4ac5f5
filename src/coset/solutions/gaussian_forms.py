"""Solutions in a Gaussian form: with independent coordinates, or with the whole covariance."""

from collections.abc import Sequence

from torch import Tensor

from coset.core.errors import CosetError
from coset.core.state import distinct
from coset.solutions.coordinates import count, flatten, slices
from coset.solutions.covariance import require_small
from coset.solutions.dirac import Dirac
from coset.solutions.full_gaussian import FullGaussian
from coset.solutions.gaussian import Gaussian
from coset.solutions.kronecker_gaussian import KroneckerGaussian
from coset.solutions.solution import Solution


def as_gaussian(q: Dirac | Gaussian) -> Gaussian:
    """A Gaussian as it is, a Dirac as one with std 0."""
    return q if isinstance(q, Gaussian) else Gaussian(q.mean, {}, q.noise)


def full_gaussians(a: Solution, b: Solution, purpose: str) -> tuple[FullGaussian, FullGaussian]:
    """Gaussians and Diracs with their whole covariances; the others are refused for `purpose`."""
    for q, other in ((a, b), (b, a)):
        if not isinstance(q, Dirac | Gaussian | FullGaussian | KroneckerGaussian):
            raise no_closed_form(q, other, purpose)
    return _as_full(a), _as_full(b)


def no_closed_form(q: Solution, other: Solution, purpose: str) -> CosetError:
    """What to raise for `q` beside `other`."""
    kind, beside = (f"{'an' if type(x).__name__[0] in 'AEIO' else 'a'} {type(x).__name__}" for x in (q, other))
    return CosetError(
        f"{purpose} has no closed form for {kind} beside {beside}: give two Diracs or Gaussians, or two ensembles of "
        "one size."
    )


def _as_full(q: Solution) -> FullGaussian:
    if isinstance(q, FullGaussian):
        return q
    if isinstance(q, KroneckerGaussian):
        return q.full()
    std = q.std if isinstance(q, Gaussian) else {}
    names = [name for name in distinct(std) if bool((std[name] > 0).any())]
    require_small(count(q.mean, names))
    return FullGaussian(q.mean, flatten(std, names).square().diag(), names, q.noise)


def common_roots(a: FullGaussian, b: FullGaussian) -> tuple[list[str], Tensor, Tensor]:
    """The tensors that either has random, and roots [P, P] of both covariances over them."""
    names = [name for name in distinct(a.mean) if name in a.names or name in b.names]
    require_small(count(a.mean, names))
    return names, _root(a, names), _root(b, names).to(a.root.device)


def _root(q: FullGaussian, names: Sequence[str]) -> Tensor:
    """The root of `q` with its rows in the order of `names`, zero where `q` is fixed."""
    size, places = count(q.mean, names), slices(q.mean, names)
    root = q.root.new_zeros((size, size))
    for name, part in slices(q.mean, q.names).items():
        root[places[name], : len(q.root)] = q.root[part]
    return root
