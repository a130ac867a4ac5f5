"""The loss between networks of a population, before and after their units are aligned."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from coset.alignment.align import align_many
from coset.alignment.population import align_population
from coset.core import state as states
from coset.core.errors import CosetError
from coset.core.functional import resolve
from coset.core.progress import Event, Progress
from coset.core.show import Shown, Table
from coset.core.state import State, StateLike, as_state, members
from coset.data import Data, as_split
from coset.populations.population import PopulationLike, states_of
from coset.populations.scores import SPREAD_HEADER, Spread, scores, spread, spread_row
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


@dataclass(frozen=True, eq=False, repr=False)
class PairBarriers(Shown):
    """The largest excess of the loss over the chord between two networks, in nats: see `coset.pair_barriers`.

    It is negative if the loss is below the chord at all points in between, where the height of a `coset.Barrier`,
    which counts the ends, is zero.

    Args:
        pairs: [p, 2] which networks.
        before: [p] float64, of the networks as they are.
        common: [p], after all were aligned to one reference.
        paired: [p], after the second of each pair was aligned to the first.

    Example:
        >>> barriers = coset.pair_barriers(population, sym, model, digits.test)
        >>> barriers.spreads["paired"].mean < barriers.spreads["before"].mean
        True
    """

    pairs: Tensor
    before: Tensor
    common: Tensor
    paired: Tensor

    @property
    def spreads(self) -> dict[str, Spread]:
        """How the barriers are spread, by name."""
        return {name: spread(getattr(self, name)) for name in ("before", "common", "paired")}

    def to_json(self) -> str:
        """How the three are spread, as one JSON object."""
        return json.dumps({name: one.record() for name, one in self.spreads.items()}, allow_nan=False)

    def _shown(self) -> Table:
        names = {"before": "as they are", "common": "aligned to one network", "paired": "aligned to each other"}
        rows = [spread_row(names[name], one) for name, one in self.spreads.items()]
        return Table(f"Barriers between {len(self.pairs):,} pairs of networks, nats", [SPREAD_HEADER, *rows])


def pair_barriers(
    population: PopulationLike,
    sym: Symmetry,
    model: nn.Module,
    data: Data,
    noise: float | None = None,
    *,
    pairs: int = PAIRS,
    points: int = 1,
    reference: StateLike | int = 0,
    seed: int = 0,
    device: str | torch.device | None = None,
    progress: Progress | None = None,
) -> PairBarriers:
    """Barriers of straight lines between pairs of networks, before and after their units are aligned by weights.

    Args:
        population: A `Population`, tensors [n, ...] by name, or a list of states, modules or solutions.
        sym: The symmetry of the networks.
        model: What the networks are states of; it is not changed.
        data: Classes, or values of a regression.
        noise: The standard deviation of the targets of a regression.
        pairs: How many random pairs to take; all there are if they are not more.
        points: At how many equally spaced points between the ends the loss is measured: one is the middle.
        reference: What all networks are aligned to for `common`: one network, or the number of one of these.
        seed: Of the pairs.
        device: Where to work; by default where the population is.
        progress: Hears of the pairs, three times each.

    Returns:
        The barrier of each pair as it is, after alignment to the reference, and after alignment to each other.

    Raises:
        CosetError: If there are fewer than two networks, or no points.

    Example:
        >>> barriers = coset.pair_barriers(population, sym, model, digits.test, pairs=10)
        >>> barriers.pairs.shape
        torch.Size([10, 2])
    """
    population = states_of(population)
    if points < 1:
        raise CosetError(f"A barrier needs a point between its ends, so {points} are too few.")
    where = resolve(device, population)
    networks, split = states.to(population, where), as_split(data).to(where)
    places = draw_pairs(states.size(networks), pairs, seed)
    target = reference if isinstance(reference, int) else as_state(reference, "the reference")
    match = align_many(networks, sym, target, device=where)
    framed = sym.act(match.element.to(where), networks)
    ends = scores(networks, model, split, noise).loss[places]

    def heights(networks: State, by_pairs: bool, before: int) -> Tensor:
        best = torch.full((len(places),), -torch.inf, dtype=torch.float64)
        for rows, a, b in _ends(networks, places):
            b = sym.act(align_pairs(a, b, sym), b) if by_pairs else b
            for k in range(1, points + 1):
                t = k / (points + 1)
                chord = (1 - t) * ends[rows, 0] + t * ends[rows, 1]
                excess = scores(states.lerp(a, b, t), model, split, noise).loss - chord
                best[rows] = torch.maximum(best[rows], excess)
            if progress is not None:
                progress(Event(before * len(places) + rows.stop, 3 * len(places), "pair"))
        return best

    return PairBarriers(places, heights(networks, False, 0), heights(framed, False, 1), heights(networks, True, 2))


def _ends(population: State, pairs: Tensor) -> Iterator[tuple[slice, State, State]]:
    """(some pairs, their first networks, their second)."""
    step = max(COORDINATES // sum(x[0].numel() for x in population.values()), 1)
    for k in range(0, len(pairs), step):
        rows = slice(k, min(k + step, len(pairs)))
        first, second = pairs[rows].unbind(1)
        yield rows, members(population, first), members(population, second)
