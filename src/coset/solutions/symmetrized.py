"""A solution and all its images under the permutations of a symmetry, as one distribution."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from coset.core.errors import CosetError, SymmetryError
from coset.core.json_reader import JsonObject
from coset.core.state import State, StateLike, check, distinct, is_coordinate, owners, tie
from coset.solutions.as_solution import as_solution
from coset.solutions.gaussian import Gaussian
from coset.solutions.orbit_map import FlatGaussian, OrbitMap, flat_gaussian
from coset.solutions.overlap_estimators import Entropy, Exact, ImportanceSampling, estimator, log_densities, nearest
from coset.solutions.solution import Solution, require_count
from coset.symmetries.group import Element
from coset.symmetries.serialization import symmetry_of_file
from coset.symmetries.symmetry import Symmetry

ELEMENTS = 512  # permutations of a density that cannot be exact
SAMPLES = 256  # states of an entropy


class Symmetrized(Solution):
    """A solution and all its images, q_G(w) = 1/|G| sum_g q(g^-1 w) over permutations g (gelberg2024 Eq. 4).

    A network drawn from it computes what one drawn from q does, so predictions are those of q. Densities and entropies
    are known for a Gaussian with independent coordinates: exact for sets of up to twelve units that share no weights
    and for small groups, else by importance sampling with the same random numbers at each call.

    Args:
        q: a solution, a state or a module.
        sym: its permutations are summed over; rescalings play no part.

    Raises:
        CosetError: the symmetry moves tensors that `q` does not have.

    Example:
        >>> coset.Symmetrized(posterior, sym)
        Symmetrized(4 tensors, 1,210 coordinates)
    """

    kind: ClassVar[str] = "symmetrized"
    has_order: ClassVar[bool] = False

    def __init__(self, q: StateLike, sym: Symmetry) -> None:
        q = as_solution(q)
        missing = sym.missing(q.mean.keys())
        if missing:
            raise CosetError(f"The symmetry moves '{missing[0]}', which the solution does not have.")
        self.q, self.sym = q, sym
        self.noise = q.noise
        self.mean = tie(_orbit_means(q.mean, sym), owners(q.mean))

    @property
    def is_random(self) -> bool:
        return self.q.is_random or bool(self.sym.groups)

    def sample(self, n: int, generator: torch.Generator | None = None) -> dict[str, Tensor]:
        """States of q, each with its units in random order.

        Args:
            n: how many.
            generator: what they come from; None is torch's own.
        """
        require_count(n)
        samples = self.q.sample(n, generator)
        return tie(self.sym.act(self.sym.random(generator, batch=n), samples), owners(self.mean))

    def log_prob(self, state: StateLike) -> Tensor:
        point, v = check(state, like=self.mean), self._flat()
        w = torch.cat([point[name].flatten().to(v.mean) for name in v.names]).unsqueeze(0)
        mean, std = v.mean.unsqueeze(0), v.std.unsqueeze(0)
        generator = torch.Generator(w.device).manual_seed(0)
        exact = _exact(v.orbit)
        if exact is None:
            # Without the identity, which is no draw from the true distribution for a state that q did not draw.
            ratio = ImportanceSampling(v.orbit, ELEMENTS).sandwich(w, mean, std, generator)[0]
            total = log_densities(w, mean, std) + ratio
            # A sum is no less than any of its terms; drawn ones may all be far from the largest.
            total = torch.maximum(total, log_densities(nearest(v.orbit, w, mean, std), mean, std))
        else:
            total = log_densities(w, mean, std) + exact(w, mean, std)
        return total.squeeze(0) - v.orbit.log_order + self._elsewhere(point, v.names)

    def entropy(self) -> Tensor:
        """H(q) + I, with I the mutual information of a random element and the weights it moves."""
        from coset.solutions.overlap import overlap  # it takes solutions

        entropy: Entropy = "importance" if _exact(self._flat().orbit) is None else "exact"
        total: Tensor = self.q.entropy() + overlap(self.q, self.sym, entropy, SAMPLES).information
        return total

    def _image(self, sym: Symmetry, g: Element) -> Symmetrized:
        """A permutation leaves it as it is, though it moves q; factors do not commute with those and are refused."""
        if any(bool((factors != 1).any()) for factors in g.scales.values()):
            raise SymmetryError(
                "A symmetrized solution that is rescaled is not symmetric any more: act on the solution it is made of."
            )
        return Symmetrized(sym.act(g, self.q), self.sym)

    def to(self, device: str | torch.device) -> Symmetrized:
        return Symmetrized(self.q.to(device), self.sym)

    def _facts(self) -> list[tuple[object, ...]]:
        return [("of", self.q), ("permutations", f"10^{self.sym.log_order / math.log(10):,.1f}")]

    def pack(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        inner, tensors = self.q.pack()
        return {"kind": self.kind, "q": inner, "symmetry": self.sym.to_json()}, tensors

    @classmethod
    def unpack(cls, description: JsonObject, tensors: dict[str, Tensor]) -> Symmetrized:
        from coset.solutions.load import unpack  # which lists this kind

        return cls(unpack(description.object("q"), tensors), symmetry_of_file(description.text("symmetry")))

    def _elsewhere(self, state: State, names: Sequence[str]) -> Tensor:
        """log q of the coordinates outside of the named tensors: some may be fixed, none is moved."""
        assert isinstance(self.q, Gaussian)
        inside = {name for name, owner in owners(self.q.mean).items() if owner in names}
        rest = Gaussian(self.q.mean, {name: s for name, s in self.q.std.items() if name not in inside})
        return rest.log_prob({name: self.q.mean[name] if name in inside else x for name, x in state.items()})

    def _flat(self) -> FlatGaussian:
        if not isinstance(self.q, Gaussian):
            raise CosetError(
                f"The density of a symmetrized {type(self.q).__name__} is not known, only that of a Gaussian with "
                "independent coordinates."
            )
        return flat_gaussian(self.q, self.sym)


def _exact(orbit: OrbitMap) -> Exact | None:
    try:
        exact = estimator("exact", orbit, 0)
    except CosetError:
        return None
    assert isinstance(exact, Exact)
    return exact


def _orbit_means(state: State, sym: Symmetry) -> dict[str, Tensor]:
    """Each coordinate's mean over the places that permutations send it to, which lie in its own tensor."""
    names = [name for name in distinct(state) if is_coordinate(state[name])]
    orbit = OrbitMap(sym, {name: state[name].shape for name in names}, torch.device("cpu"))
    parts = torch.split(_orbits(orbit), [state[name].numel() for name in names])
    means = dict(state)
    for name, part in zip(names, parts, strict=True):
        x = state[name]
        own = torch.unique(part, return_inverse=True)[1].to(x.device)
        wide = x.flatten().to(torch.promote_types(x.dtype, torch.float64))
        sums = wide.new_zeros(x.numel()).index_add_(0, own, wide)
        counts = own.bincount(minlength=x.numel()).clamp(min=1)
        means[name] = (sums / counts)[own].view_as(x).to(x.dtype)
    return means


def _orbits(orbit: OrbitMap) -> Tensor:
    """(p,) the number of each coordinate's orbit: those that generators of the group join share one.

    A cycle and a swap generate the permutations of a set.
    """
    sources = []
    for name, units in orbit.sets.items():
        stay = torch.arange(units.size)
        for move in (stay.roll(1), torch.cat([stay[:2].flip(0), stay[2:]])):
            for copy in range(orbit.copies(name)):
                p = stay.repeat(1, orbit.copies(name), 1)
                p[0, copy] = move
                sources.append(orbit.index({name: p})[0])
    columns = torch.cat([torch.arange(orbit.size), *sources]).numpy()
    rows = torch.arange(orbit.size).repeat(len(sources) + 1).numpy()
    graph = coo_matrix((rows >= 0, (rows, columns)), shape=(orbit.size, orbit.size))
    return torch.from_numpy(connected_components(graph, directed=False)[1]).long()
