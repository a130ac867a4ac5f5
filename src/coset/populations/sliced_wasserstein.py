"""How far two populations of networks are from each other, modulo symmetry."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from coset.core import state as states
from coset.core.errors import CosetError, StateError
from coset.core.functional import resolve
from coset.core.progress import Event, Progress
from coset.core.show import Shown, Table
from coset.core.state import State, StateLike, as_state, check, members
from coset.populations.nearest_networks import trained
from coset.populations.population import PopulationLike, states_of
from coset.symmetries.symmetry import Symmetry
from coset.weightspace.canonical import canonicalize

PROJECTIONS = 256


@dataclass(frozen=True, repr=False)
class SlicedDistance(Shown):
    """How far two populations are from each other, as `coset.sliced_wasserstein` measures it.

    Two samples of one distribution are not at distance zero, so compare it with that of two such samples.

    Args:
        distance: In units of weights.
        error: Its standard error, from drawing finitely many projections.
        projections: How many there were.

    Example:
        >>> coset.sliced_wasserstein(population[:4], population[4:], sym).projections
        256
    """

    distance: float
    error: float
    projections: int

    def _shown(self) -> Table:
        return Table(f"Sliced distance {self.distance:.6g} +- {self.error:.2g}, by {self.projections} projections")


def sliced_wasserstein(
    a: PopulationLike,
    b: PopulationLike,
    sym: Symmetry,
    reference: StateLike | None = None,
    projections: int = PROJECTIONS,
    *,
    seed: int = 0,
    device: str | torch.device | None = None,
    progress: Progress | None = None,
) -> SlicedDistance:
    """The sliced Wasserstein distance of two populations, modulo symmetry.

    SW(a, b)^2 = E_u W_2(<u, c(a)>, <u, c(b)>)^2 with u uniform on the sphere (Rabin et al. 2011).

    c is the canonical form with units in the order of `reference`, one state, by default the first network of `b`:
    equivalent networks have the same, so the distance does not change if any network is replaced by one of those. All
    trained weights count, as they are.

    Args:
        a: A `Population`, tensors [n, ...] by name, or a list of states, modules or solutions.
        b: Another, of any size.
        sym: The symmetry of the networks.
        reference: The network in whose order units are brought; by default the first of `b`.
        projections: How many directions u to draw.
        seed: Of the directions.
        device: Where to work; by default where `b` is.
        progress: Hears of both canonical forms and of the projections.

    Returns:
        The distance with its standard error.

    Raises:
        StateError: If a population is empty, or has other tensors than the other.

    Example:
        >>> far = coset.sliced_wasserstein(population[:4], population[4:], sym)
        >>> far.distance > 0
        True
    """
    a, b = states_of(a), states_of(b)
    if states.size(a) == 0 or states.size(b) == 0:
        raise StateError("Two populations can be compared if each has a network or more.")
    if projections < 1:
        raise CosetError(f"Populations cannot be compared by {projections} projections: give one or more.")
    check(members(a, slice(1)), like=members(b, slice(1)), where="the first population")
    where = resolve(device, b)
    first = {name: x[0] for name, x in b.items()} if reference is None else as_state(reference)
    tell = progress or (lambda event: None)
    x = _coordinates(a, sym, states.to(first, where), where)
    tell(Event(1, 3, "stage", "canonical form of the first population"))
    y = _coordinates(b, sym, states.to(first, where), where)
    tell(Event(2, 3, "stage", "canonical form of the second population"))
    generator = torch.Generator().manual_seed(seed)
    u = torch.randn(x.shape[1], projections, generator=generator, dtype=x.dtype)
    u = (u / torch.linalg.vector_norm(u, dim=0)).to(where)
    squares = squared_distances(x @ u, y @ u)
    mean = float(squares.mean())
    spread = float(squares.std()) / math.sqrt(projections) if projections > 1 else math.inf
    distance = math.sqrt(mean)
    tell(Event(3, 3, "stage", "projections"))
    return SlicedDistance(distance, spread / (2 * distance) if distance else 0.0, projections)


def squared_distances(x: Tensor, y: Tensor) -> Tensor:
    """W_2(x_k, y_k)^2 [k] of numbers x [n, k] and y [m, k], column by column.

    The integral over levels of the squared difference of quantiles, which are constant between i / n and j / m.
    """
    n, m = len(x), len(y)
    # In parts of 1 / (n m), so that levels are exact.
    levels = torch.unique(torch.cat([torch.arange(n + 1) * m, torch.arange(m + 1) * n]))
    widths = levels.diff().to(x) / (n * m)
    low = levels[:-1]
    at = x.sort(0).values[(low // m).to(x.device)] - y.sort(0).values[(low // n).to(x.device)]
    squares: Tensor = widths @ at.square()
    return squares


def _coordinates(population: State, sym: Symmetry, reference: State, device: torch.device) -> Tensor:
    """[n, D] float64 of canonical forms."""
    canonical = canonicalize(states.to(population, device), sym, reference).state
    return torch.cat([canonical[name].double().flatten(1) for name in trained(canonical, sym)], 1)
