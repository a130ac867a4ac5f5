"""The loss between networks of a population, before and after their units are aligned."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from coset.alignment.align import align_many
from coset.alignment.population import PopulationMatch, align_population
from coset.core import state as states
from coset.core.device import resolve
from coset.core.errors import CosetError
from coset.core.state import State, members
from coset.data import Data, as_split
from coset.populations.population import PopulationLike, states_of
from coset.populations.scores import Spread, scores, spread
from coset.symmetries.group import Element
from coset.symmetries.symmetry import Symmetry


def draw_pairs(n: int, count: int, seed: int = 0) -> Tensor:
    """[p, 2] pairs i != j of 0..n-1: all n (n - 1) / 2 of them if that is at most `count`, else `count` at random.

    Random pairs are independent of each other, so that a mean over them has the usual standard error.
    """
    if n < 2 or count < 1:
        raise CosetError(f"Cannot take {count} pairs of {n} networks: give two networks or more, and one pair or more.")
    if n * (n - 1) // 2 <= count:
        return torch.combinations(torch.arange(n), 2)
    generator = torch.Generator().manual_seed(seed)
    first = torch.randint(n, (count,), generator=generator)
    return torch.stack([first, (first + torch.randint(1, n, (count,), generator=generator)) % n], 1)


def align_pairs(a: State, b: State, sym: Symmetry) -> Element:
    """A batch of permutations g_k that make <a_k, g_k b_k> large, for every pair of members k of two populations.

    On the device of b. With one group, or groups that share no tensor, that is the maximum.
    """
    return align_population(b, a, sym).element.to(next(iter(b.values())).device)


PAIRS = 1024
COORDINATES = 2**24  # of the networks between pairs, in memory at once


@dataclass(frozen=True, eq=False)
class PairBarriers:
    """The largest excess of the loss over the chord between its ends, in nats, for pairs [p, 2] of networks.

    It is negative if the loss is below the chord at all points in between, where the height of a `coset.Barrier`,
    which counts the ends, is zero.

    before: [p] float64, as they are; common: [p], all aligned to one reference; paired: [p], the second of each pair
    aligned to the first.
    """

    pairs: Tensor
    before: Tensor
    common: Tensor
    paired: Tensor

    @property
    def spreads(self) -> dict[str, Spread]:
        return {name: spread(getattr(self, name)) for name in ("before", "common", "paired")}

    def to_json(self) -> str:
        """How the three are spread, as one JSON object."""
        return json.dumps({name: one.record() for name, one in self.spreads.items()}, allow_nan=False)


def pair_barriers(
    population: PopulationLike,
    sym: Symmetry,
    model: nn.Module,
    data: Data,
    noise: float | None = None,
    *,
    pairs: int = PAIRS,
    points: int = 1,
    reference: State | int = 0,
    seed: int = 0,
    device: str | torch.device | None = None,
) -> PairBarriers:
    """Barriers of straight lines between random pairs of networks, or all of them if there are not more than `pairs`.

    The loss is measured at both ends and at `points` equally spaced points between them: one is the middle.
    Alignment is by weights; `reference` is a state, or the number of a network.
    """
    population = states_of(population)
    if points < 1:
        raise CosetError(f"A barrier needs a point between its ends, so {points} are too few.")
    where = resolve(device, population)
    given, split = states.to(population, where), as_split(data).to(where)
    chosen = draw_pairs(states.size(given), pairs, seed)
    match = align_many(given, sym, reference, device=where)
    assert isinstance(match, PopulationMatch)
    framed = sym.act(match.element.to(where), given)
    ends = scores(given, model, split, noise).loss[chosen]

    def heights(moved: State, by_pairs: bool) -> Tensor:
        best = torch.full((len(chosen),), -torch.inf, dtype=torch.float64)
        for rows, a, b in _ends(moved, chosen):
            b = sym.act(align_pairs(a, b, sym), b) if by_pairs else b
            for k in range(1, points + 1):
                t = k / (points + 1)
                chord = (1 - t) * ends[rows, 0] + t * ends[rows, 1]
                excess = scores(states.lerp(a, b, t), model, split, noise).loss - chord
                best[rows] = torch.maximum(best[rows], excess)
        return best

    return PairBarriers(chosen, heights(given, False), heights(framed, False), heights(given, True))


def _ends(population: State, pairs: Tensor) -> Iterator[tuple[slice, State, State]]:
    """(some pairs, their first networks, their second)."""
    step = max(COORDINATES // sum(x[0].numel() for x in population.values()), 1)
    for k in range(0, len(pairs), step):
        rows = slice(k, min(k + step, len(pairs)))
        first, second = pairs[rows].unbind(1)
        yield rows, members(population, first), members(population, second)
