"""The nearest of many networks, modulo permutations and positive factors."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from coset.assignment import solve_many
from coset.core import state as states
from coset.core.errors import StateError
from coset.core.functional import resolve
from coset.core.progress import Event, Progress
from coset.core.state import State, check, members
from coset.populations.pair_barriers import align_pairs
from coset.populations.population import PopulationLike, states_of
from coset.symmetries.group import Block, blocks
from coset.symmetries.symmetry import Symmetry
from coset.weightspace.canonical import canonicalize
from coset.weightspace.canonical_scales import exact_scalings


@dataclass(frozen=True, eq=False)
class UnitVectors:
    """groups: name -> [n, units, d]; rest: [n, r], what belongs to no unit.

    For networks w, v with vectors u_i, v_j and rests r, s, and any permutations g of the units,

        |w - g v|^2 >= |r - s|^2 + sum over groups of min_p sum_i |u_i - v_p(i)|^2,

    with equality for the best g if `exact`: no weight then lies between two units that can move.
    """

    groups: dict[str, Tensor]
    rest: Tensor
    exact: bool

    def rows(self, which: slice | Tensor) -> UnitVectors:
        """Those of some networks."""
        return UnitVectors({name: x[which] for name, x in self.groups.items()}, self.rest[which], self.exact)


def unit_vectors(population: State, sym: Symmetry) -> UnitVectors:
    """The vectors of n networks, from all floating tensors that are trained.

    A weight between units of two groups is in the vectors of both, divided by sqrt(2), and for each unit the weights
    to others that can move are sorted: |sort x - sort y| <= |x - P y| for every permutation P. The weights of units
    that lie over others, as inside attention heads, or that meet themselves, are sorted as a whole.
    """
    parts: dict[str, list[Tensor]] = {}
    rest: list[Tensor] = []
    exact = True
    n = states.size(population)
    for name in trained(population, sym):
        x = population[name]
        if name not in sym.axes:
            rest.append(x.reshape(n, -1))
            continue
        for block in blocks(x, sym.axes[name], lead=1):
            moving = [d for d, label in enumerate(block.labels) if label.units and sym.sets[label.units].movable]
            hosts = [d for d in moving if len(block.where(u := block.labels[d].units)) == 1 and not sym.sets[u].over]
            exact &= len(moving) == len(hosts) <= 1
            for d in hosts:
                vectors = _sorted(block, [d], [e for e in moving if e != d])
                parts.setdefault(block.labels[d].units, []).append(vectors / math.sqrt(len(hosts)))
            if not hosts:
                rest.append(_sorted(block, [], moving))
    groups = {units: torch.cat(vectors, 2) for units, vectors in parts.items()}
    if not rest:
        rest = [x[:, 0, :0] for x in groups.values()]
    return UnitVectors(groups, torch.cat(rest, 1), exact)


def trained(state: State, sym: Symmetry) -> list[str]:
    """The floating tensors that are no buffers, of tied names the first."""
    first: dict[str, str] = {}
    for name, x in state.items():
        if x.is_floating_point() and name not in sym.buffers:
            first.setdefault(sym.tied.get(name, name), name)
    return list(first.values())


def _sorted(block: Block, rows: list[int], moving: list[int]) -> Tensor:
    """[n, *rows, d] with the dimensions `moving` sorted together."""
    still = [d for d in range(len(block.labels)) if d not in (*rows, *moving)]
    x = block.values.permute(0, *(1 + d for d in (*rows, *still, *moving)))
    lead = 1 + len(rows)
    if moving:
        x = x.flatten(lead + len(still)).sort(-1).values
    return x.unsqueeze(-1).flatten(lead)


# Coordinates of networks, and distances of units, that are computed at once.
COORDINATES = 2**23
ENTRIES = 2**23
ROUND = 4  # networks with which a deep one is aligned before its bound is looked at again
CANDIDATES = 32


@dataclass(frozen=True, eq=False)
class NearestNetworks:
    """distance: [n] float64; index: [n], which network that is; exact: no element and no network gives less.

    Otherwise the distance is an upper bound, from alignment to the most promising networks.
    """

    distance: Tensor
    index: Tensor
    exact: bool


def nearest(
    queries: PopulationLike,
    training: PopulationLike,
    sym: Symmetry,
    *,
    apart: Tensor | None = None,
    candidates: int = CANDIDATES,
    device: str | torch.device | None = None,
    progress: Progress | None = None,
) -> NearestNetworks:
    """For each of n networks the least |c(w) - g c(v)| over networks v of `training` and permutations g of units.

    c is the canonical form: positive factors such that weights into a unit have norm one (`coset.canonicalize`), so
    that the distance does not change if any network is replaced by an equivalent one. It is the plain Euclidean one
    of all trained weights, not standardised: directions of units count alike, and the last layer by the size that
    the function gives it. Signs, as of tanh units, are canonical and not minimised over: then the distance is an upper
    bound. Nor are factors of units whose incoming weights are all zero, which nothing fixes.

    With one hidden layer, or several that no weight joins, this is an assignment for each pair of networks. By
    branch and bound only those are solved that can still win: reduced by the least cost of each row and then of each
    column, costs stay positive, so that what was taken off bounds the assignment from below. The result is exact up
    to the rounding of inner products. For deep networks `candidates` of those with the least such bound (see
    `UnitVectors`) are aligned, as long as the bound is below the least distance so far.

    apart: [n], the network of `training` that each is not compared with, -1 for none. progress hears how many networks
    of `training` were looked at.
    """
    queries, training = states_of(queries), states_of(training)
    total = states.size(training)
    if total < (1 if apart is None else 2) or states.size(queries) == 0:
        raise StateError("To find nearest networks takes some to start from and others to compare with.")
    check(members(queries, slice(1)), like=members(training, slice(1)), where="the samples")
    where = resolve(device, training)
    alike = {name: x.to(training[name].dtype) for name, x in queries.items()}
    # Canonical forms are sorted too, so that alignment takes the same way from equivalent networks.
    own = _concat([part for _, part in _canonical(alike, sym, where)])
    vectors = unit_vectors(own, sym)
    search = _Search(own, training, sym, where, progress)
    excluded = torch.full((len(vectors.rest),), -1) if apart is None else apart
    if vectors.exact:
        index = _least(vectors, search, excluded.to(where))
        distance = search.distances(torch.arange(len(index)), index.cpu()).cpu()
        return NearestNetworks(distance, index.cpu(), not exact_scalings(sym, "sign"))
    return _screened(vectors, search, excluded.to(where), min(candidates, total))


class _Search:
    """Canonical networks, and those of a training set that are made canonical as they are needed."""

    def __init__(
        self, own: State, training: State, sym: Symmetry, device: torch.device, progress: Progress | None
    ) -> None:
        self.own, self.training, self.sym, self.device, self._progress = own, training, sym, device, progress
        self.names = trained(own, sym)

    def parts(self, mine: UnitVectors) -> Iterator[tuple[int, _Costs]]:
        """(number of the first network, costs): some networks of the training set after the other."""
        per_pair = sum(x.shape[1] ** 2 for x in mine.groups.values()) + 1
        step = max(ENTRIES // (len(mine.rest) * per_pair), 1)
        for start, part in _canonical(self.training, self.sym, self.device):
            theirs = unit_vectors(part, self.sym)
            for k in range(0, len(theirs.rest), step):
                yield start + k, _Costs(mine, theirs.rows(slice(k, k + step)))
                if self._progress is not None:
                    looked_at = min(start + k + step, start + len(theirs.rest))
                    self._progress(Event(looked_at, states.size(self.training), "network"))

    def distances(self, i: Tensor, j: Tensor) -> Tensor:
        """|c(w_i) - g c(v_j)| for pairs of networks, with g by alignment; in float64."""
        step = max(COORDINATES // sum(self.own[name][0].numel() for name in self.names), 1)
        return torch.cat([self._distances(i[k : k + step], j[k : k + step]) for k in range(0, len(i), step)])

    def _distances(self, i: Tensor, j: Tensor) -> Tensor:
        a = members(self.own, i)
        b = _concat([part for _, part in _canonical(members(self.training, j), self.sym, self.device)])
        aligned = self.sym.act(align_pairs(a, b, self.sym), b)
        squares = [(a[name].double() - aligned[name].double()).flatten(1).square().sum(1) for name in self.names]
        return torch.stack(squares).sum(0).sqrt()


class _Costs:
    """Squared distances of the units of n networks and of t others.

    costs: for each group [n, units, units, t]; fixed: [n, t], of what belongs to no unit; bound: [n, t], below the
    least of the sums over all assignments.
    """

    def __init__(self, mine: UnitVectors, theirs: UnitVectors) -> None:
        self.costs = [_squared(x, theirs.groups[name]) for name, x in mine.groups.items()]
        self.fixed = torch.cdist(mine.rest, theirs.rest, compute_mode="donot_use_mm_for_euclid_dist").square()
        self.bound = self.fixed
        for costs in self.costs:
            rows = costs.amin(2)
            columns = (costs - rows.unsqueeze(2)).amin(1)
            self.bound = self.bound + rows.sum(1) + columns.sum(1)

    def solve(self, i: Tensor, j: Tensor) -> Tensor:
        """The least sums for pairs of networks."""
        total = self.fixed[i, j].double()
        for costs in self.costs:
            total += solve_many(costs[i, :, :, j], maximize=False).value.to(total.device)
        return total


def _squared(x: Tensor, y: Tensor) -> Tensor:
    """|x_ni - y_tj|^2 for x [n, units, d] and y [t, units, d]: [n, i, j, t], as sums over t are fastest."""
    left, right = x.flatten(0, 1), y.transpose(0, 1).flatten(0, 1)
    squares = left.square().sum(1).unsqueeze(1) + right.square().sum(1)
    return torch.addmm(squares, left, right.mT, alpha=-2).clamp_(min=0).reshape(*x.shape[:2], y.shape[1], len(y))


def _least(mine: UnitVectors, search: _Search, apart: Tensor) -> Tensor:
    """[n] the nearest networks, by branch and bound."""
    n, device = len(mine.rest), mine.rest.device
    best = torch.full((n,), torch.inf, dtype=torch.float64, device=device)
    index = torch.zeros(n, dtype=torch.long, device=device)
    for start, costs in search.parts(mine):
        bound = _without(costs.bound, apart, start)
        promising = torch.zeros_like(bound, dtype=torch.bool).scatter_(1, bound.argmin(1, keepdim=True), True)
        for tried in (promising, ~promising):
            i, j = (tried & (bound < best.unsqueeze(1))).nonzero(as_tuple=True)
            if len(i) == 0:
                continue
            sums = torch.full_like(bound, torch.inf, dtype=torch.float64)
            sums[i, j] = costs.solve(i, j)
            value, where = sums.min(1)
            index = torch.where(value < best, start + where, index)
            best = torch.minimum(value, best)
    return index


def _screened(mine: UnitVectors, search: _Search, apart: Tensor, candidates: int) -> NearestNetworks:
    """The nearest by alignment to the networks with the least bounds."""
    # In place: a small tensor that is kept after each part would lie between large ones, and let memory fall to pieces.
    bounds = mine.rest.new_empty(len(mine.rest), states.size(search.training))
    for start, costs in search.parts(mine):
        bounds[:, start : start + costs.bound.shape[1]] = _without(costs.bound, apart, start)
    bound, order = (x.cpu() for x in bounds.topk(candidates, largest=False))
    best = torch.full((len(bound),), torch.inf, dtype=torch.float64)
    index = torch.zeros(len(bound), dtype=torch.long)
    for k in range(0, candidates, ROUND):
        live, tried = torch.nonzero(bound[:, k : k + ROUND] < best.square().unsqueeze(1), as_tuple=True)
        if len(live) == 0:
            break
        distances = torch.full((len(bound), ROUND), torch.inf, dtype=torch.float64)
        distances[live, tried] = search.distances(live, order[live, k + tried]).cpu()
        value, where = distances.min(1)
        index = torch.where(value < best, order.gather(1, k + where.unsqueeze(1)).squeeze(1), index)
        best = torch.minimum(value, best)
    return NearestNetworks(best, index, False)


def _without(bound: Tensor, apart: Tensor, start: int) -> Tensor:
    """Bounds [n, t] that are infinite where network i is not to be compared with number apart[i]."""
    numbers = torch.arange(start, start + bound.shape[1], device=bound.device)
    return bound.masked_fill(apart.unsqueeze(1) == numbers, torch.inf)


def _canonical(population: State, sym: Symmetry, device: torch.device) -> Iterator[tuple[int, State]]:
    """(number of the first, canonical networks), some at a time."""
    step = max(COORDINATES // sum(x[0].numel() for x in population.values()), 1)
    for k in range(0, states.size(population), step):
        yield k, canonicalize(states.to(members(population, slice(k, k + step)), device), sym).state


def _concat(parts: list[State]) -> dict[str, Tensor]:
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
