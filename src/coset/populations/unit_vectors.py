"""Networks as sets of vectors, one a unit: their distances bound the distance of the networks modulo permutations."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from coset import state as states
from coset.checks import State
from coset.symmetries import Symmetry
from coset.symmetries.views import Block, blocks


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
    found: dict[str, str] = {}
    for name, x in state.items():
        if x.is_floating_point() and name not in sym.buffers:
            found.setdefault(sym.tied.get(name, name), name)
    return list(found.values())


def _sorted(block: Block, kept: list[int], moving: list[int]) -> Tensor:
    """[n, *kept, d] with the dimensions `moving` sorted together."""
    still = [d for d in range(len(block.labels)) if d not in (*kept, *moving)]
    x = block.values.permute(0, *(1 + d for d in (*kept, *still, *moving)))
    lead = 1 + len(kept)
    if moving:
        x = x.flatten(lead + len(still)).sort(-1).values
    return x.unsqueeze(-1).flatten(lead)
