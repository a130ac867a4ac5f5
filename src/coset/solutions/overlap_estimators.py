"""log sum_g q(g w) / q(w) over the permutations of a Gaussian: exact, by Bethe permanents, or by sampling."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from itertools import permutations
from typing import Literal, get_args

import torch
from torch import Tensor

from coset.assignment import solve_many
from coset.assignment.bethe import bethe_beliefs, bethe_value
from coset.assignment.permanent import log_permanent
from coset.assignment.permutation_sampling import log_proposal, sample_permutations
from coset.core.errors import CosetError
from coset.solutions.orbit_map import OrbitMap, Permutations


def log_densities(w: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """(...) sum_x log N(w_x; m_x, s_x^2) over the last dimension, in float64."""
    z = (w.double() - mean.double()) / std.double()
    return -(z.square() / 2 + std.double().log() + math.log(2 * math.pi) / 2).sum(-1)


def pairs(w: Tensor, mean: Tensor, std: Tensor, units: Tensor) -> Tensor:
    """A[..., c, i, j] = log q_i(w_j) - log q_i(w_i): unit j of w in the place of unit i, relative to staying.

    w, mean, std: (..., p); units: (c, n, d) as `OrbitMap.units` gives them. The diagonal is zero. A sum of squares
    over the d coordinates of a unit is a product of matrices, -(w_j - m_i)^2 / 2 s_i^2 summed; in float64, since
    where std is small the squares are millions whose difference counts.
    """
    x, m, s = (t[..., units].double() for t in (w, mean, std))
    precision = s.square().reciprocal()
    cross = (m * precision) @ x.mT - precision @ x.square().mT / 2
    return cross - cross.diagonal(dim1=-2, dim2=-1).unsqueeze(-1)


SWEEPS = 50


def nearest(orbit: OrbitMap, w: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """g w with log q(g w) as large as could be found, for q = N(mean, std^2); w, mean, std: (1, p).

    Each set of units in turn takes the order that is best while the others stay, until none moves. At first a set is
    judged by the weights that it shares with no set whose turn is yet to come, and those with most weights of their
    own begin. Sets with weights from themselves to themselves stay.
    """
    own = {name: orbit.units(name, apart_from={*orbit.sets} - {name}) for name in orbit.sets}
    sizes = {name: units.shape[-1] for name, units in own.items() if units is not None}
    names = sorted(sizes, key=lambda name: -sizes[name])
    best = w
    for sweep in range(SWEEPS):
        image = best
        for k, name in enumerate(names):
            units = orbit.units(name, apart_from=names[k + 1 :] if sweep == 0 else ())
            assert units is not None
            order = solve_many(pairs(image, mean, std, units).squeeze(0)).permutation
            image = torch.gather(image, 1, orbit.index({name: order.unsqueeze(0)}))
        if sweep and not bool(log_densities(image, mean, std) > log_densities(best, mean, std)):
            break
        best = image
    return best if bool(log_densities(best, mean, std) > log_densities(w, mean, std)) else w


EXACT = 12  # units of a set whose permanent is computed exactly
ENUMERATED = 50_000  # elements of a group that are visited one by one


class Estimator(ABC):
    """log sum_g q(g w) / q(w), estimated."""

    def __init__(self, orbit: OrbitMap) -> None:
        self.orbit = orbit
        self.units = {name: orbit.units(name) for name in orbit.sets}
        self.independent = orbit.independent()
        self.is_product = len(self.independent) == len(orbit.sets)

    @abstractmethod
    def __call__(self, w: Tensor, mean: Tensor, std: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """(rows,) float64."""

    def pairs_of(self, name: str, w: Tensor, mean: Tensor, std: Tensor) -> Tensor:
        """(..., copies, n, n) for a set none of whose coordinates belong to two units."""
        units = self.units[name]
        assert units is not None
        return pairs(w, mean, std, units)

    def log_ratios(self, elements: Permutations, w: Tensor, mean: Tensor, std: Tensor) -> Tensor:
        """log q(g w) / q(w) of elements (rows, k) -> (rows, k)."""
        if self.is_product:
            # The sum over a unit's coordinates is done once for all elements.
            parts = [_along(self.pairs_of(name, w, mean, std), p) for name, p in elements.items()]
            return torch.stack(parts).sum(0)
        images = torch.gather(w.unsqueeze(1).expand(-1, _count(elements), -1), 2, self.orbit.index(elements))
        now = log_densities(images, mean.unsqueeze(1), std.unsqueeze(1))
        return now - log_densities(w, mean, std).unsqueeze(1)


def _count(elements: Permutations) -> int:
    return next(iter(elements.values())).shape[1]


class InfoNCE(Estimator):
    """log |G|/K (1 + sum_{k<K} q(g_k w) / q(w)) with uniform g_k (gelberg2024 Theorem 4.3).

    Its expectation is no less than the true one, so the entropy is no more. It is never less than log |G|/K: the
    mutual information cannot come out above log K (van den Oord et al. 2018).
    """

    def __init__(self, orbit: OrbitMap, elements: int) -> None:
        super().__init__(orbit)
        self._elements = elements

    def __call__(self, w: Tensor, mean: Tensor, std: Tensor, generator: torch.Generator | None = None) -> Tensor:
        ratios = self.log_ratios(self.orbit.uniform((len(w), self._elements - 1), generator), w, mean, std)
        with_identity = torch.cat([torch.zeros_like(ratios[:, :1]), ratios], 1)
        return with_identity.logsumexp(1) + self.orbit.log_order - math.log(self._elements)


class ImportanceSampling(Estimator):
    """log 1/K sum_k q(g_k w) / (q(w) f(g_k)) with g_1 the identity and the others drawn from f, set after set.

    f draws the units of a set in sequence by how well they fit (`coset.assignment.sample_permutations`), judged by
    the weights they share with no set whose turn is yet to come, so that it knows w and nothing of the element that w
    was drawn with. That element is a draw from the true distribution of g given w, so with it among the g_k the
    expectation is no less than the true one, whatever f is (Sobolev & Vetrov 2019; InfoNCE is the case of a uniform
    f); without it, no more: `sandwich`. f takes no part in the gradient.

    proposal: by how well the units of w fit, or as gelberg2024 proposes (Section 6) by how near the means of two units
    are (`mode`). The latter prefers elements near the one that w was drawn with, so only the lower half of `sandwich`
    is a bound then.
    """

    def __init__(self, orbit: OrbitMap, elements: int, proposal: Literal["weights", "mode"] = "weights") -> None:
        super().__init__(orbit)
        self._elements, self._proposal = elements, proposal
        # Units that lie over others are told apart once those have their places.
        order = sorted(orbit.sets, key=lambda name: len(orbit.sets[name].over))
        self._units = {name: orbit.units(name, apart_from=order[k + 1 :]) for k, name in enumerate(order)}

    def __call__(self, w: Tensor, mean: Tensor, std: Tensor, generator: torch.Generator | None = None) -> Tensor:
        return self.sandwich(w, mean, std, generator)[1]

    def sandwich(
        self, w: Tensor, mean: Tensor, std: Tensor, generator: torch.Generator | None = None
    ) -> tuple[Tensor, Tensor]:
        """Estimates whose expectations are no more and no less than the true one."""
        judged = mean if self._proposal == "mode" else w
        elements, log_f, staying = self._draw(judged.detach(), mean.detach(), std.detach(), generator)
        terms = self.log_ratios(elements, w, mean, std) - log_f
        with_identity = torch.cat([-staying.unsqueeze(1), terms], 1)
        k = terms.shape[1]
        return terms.logsumexp(1) - math.log(k), with_identity.logsumexp(1) - math.log(k + 1)

    def _draw(
        self, w: Tensor, mean: Tensor, std: Tensor, generator: torch.Generator | None
    ) -> tuple[Permutations, Tensor, Tensor]:
        """Elements (rows, k), their log f, and that of the identity, (rows,)."""
        rows, k = len(w), self._elements - 1
        elements: Permutations = {}
        log_f = torch.zeros(rows, k, dtype=torch.float64, device=w.device)
        staying = torch.zeros(rows, dtype=torch.float64, device=w.device)
        for name, units in self._units.items():
            if units is None:
                elements[name] = self.orbit.uniform_of(name, (rows, k), generator)
                log_f, staying = (x - self.orbit.log_orders[name] for x in (log_f, staying))
                continue
            here = pairs(w, mean, std, units)
            n = here.shape[-1]
            stay = torch.arange(n, device=w.device).expand(*here.shape[:-2], 1, n)
            staying = staying + log_proposal(here, stay).sum((-2, -1))
            if elements and not self.is_product:
                images = torch.gather(w.unsqueeze(1).expand(-1, k, -1), 2, self.orbit.index(elements))
                there = pairs(images, mean.unsqueeze(1), std.unsqueeze(1), units)
                p, f = sample_permutations(there, 1, generator)
                elements[name], log_f = p.squeeze(-2), log_f + f.squeeze(-1).sum(-1)
            else:
                p, f = sample_permutations(here, k, generator)
                elements[name], log_f = p.transpose(1, 2), log_f + f.sum(1)
        return elements, log_f, staying


class Bethe(Estimator):
    """The sum over the elements of sets that do not interfere, as Bethe permanents.

    With one set of units, sum_g q(g w) is the permanent of the matrix of q_i(w_j), of which the Bethe permanent is a
    lower bound, too small by at most 2^(n/2) (`coset.assignment.log_bethe`). The sum over several sets is the product
    of their permanents if no coordinate belongs to two of them. Where some do, as in deep networks, the largest choice
    of sets that do not interfere is moved and the others stay: symmetrization over a subgroup, whose mutual
    information is a lower bound. The gradient is that of the beliefs (envelope theorem).
    """

    def __call__(self, w: Tensor, mean: Tensor, std: Tensor, generator: torch.Generator | None = None) -> Tensor:
        still = self.orbit.log_order - sum(self.orbit.log_orders[name] for name in self.independent)
        total = torch.full((len(w),), still, dtype=torch.float64, device=w.device)
        for name in self.independent:
            total = total + self.of_set(name, w, mean, std)
        return total

    def of_set(self, name: str, w: Tensor, mean: Tensor, std: Tensor) -> Tensor:
        """The sum over the permutations of one set, the others held, (rows,)."""
        a = self.pairs_of(name, w, mean, std)
        return bethe_value(a, bethe_beliefs(a.detach())).sum(-1)


class Exact(Estimator):
    """The sum itself: by exact permanents where sets do not interfere, or element by element in a small group."""

    def __init__(self, orbit: OrbitMap) -> None:
        super().__init__(orbit)
        largest = max((units.size for units in orbit.sets.values()), default=0)
        self._by_permanents = self.is_product and largest <= EXACT
        if not self._by_permanents and orbit.log_order > math.log(ENUMERATED):
            raise CosetError(
                f"The entropy cannot be exact for a group of 10^{orbit.log_order / math.log(10):.0f} permutations: use "
                f"importance or bethe, or sets of up to {EXACT} units that share no weights."
            )

    def __call__(self, w: Tensor, mean: Tensor, std: Tensor, generator: torch.Generator | None = None) -> Tensor:
        if self._by_permanents:
            total = torch.zeros(len(w), dtype=torch.float64, device=w.device)
            for name in self.orbit.sets:
                total = total + log_permanent(self.pairs_of(name, w, mean, std)).sum(-1)
            return total
        chunks = [self.log_ratios(part, w, mean, std).logsumexp(1) for part in self._elements(len(w))]
        return torch.stack(chunks).logsumexp(0)

    def _elements(self, rows: int, chunk: int = 1024) -> Iterator[Permutations]:
        """All elements, some at a time."""
        every = {
            name: torch.tensor([*permutations(range(units.size))], device=self.orbit.device)
            for name, units in self.orbit.sets.items()
        }
        slots = [name for name in every for _ in range(self.orbit.copies(name))]
        counts = [len(every[name]) for name in slots]
        for part in torch.split(torch.arange(math.prod(counts), device=self.orbit.device), chunk):
            digits = torch.unravel_index(part, counts)
            elements: dict[str, list[Tensor]] = {name: [] for name in every}
            for name, digit in zip(slots, digits, strict=True):
                elements[name].append(every[name][digit])
            yield {name: torch.stack(p, 1).expand(rows, *[-1] * 3) for name, p in elements.items()}


def _along(a: Tensor, p: Tensor) -> Tensor:
    """sum_i A[c, i, p[c, i]]: (rows, copies, n, n) at (rows, k, copies, n) -> (rows, k)."""
    wide = a.unsqueeze(1).expand(-1, p.shape[1], -1, -1, -1)
    return wide.gather(-1, p.unsqueeze(-1)).sum((-3, -2, -1))


Entropy = Literal["infonce", "importance", "bethe", "exact"]


def estimator(entropy: Entropy, orbit: OrbitMap, elements: int) -> Estimator:
    """The estimator called `entropy`; `elements` is how many permutations the sampling ones use."""
    if entropy in get_args(Entropy) and not orbit.sets:
        return Exact(orbit)  # a group of one element
    if entropy == "infonce":
        return InfoNCE(orbit, elements)
    if entropy == "importance":
        return ImportanceSampling(orbit, elements)
    if entropy == "bethe":
        return Bethe(orbit)
    if entropy == "exact":
        return Exact(orbit)
    raise CosetError(f"entropy must be {' or '.join(get_args(Entropy))}, not {entropy!r}.")
