"""The image of a vector of parameters that fits a Gaussian best."""

from __future__ import annotations

import torch
from torch import Tensor

from coset.assignment import solve_many
from coset.orbits.maps import OrbitMap
from coset.orbits.pairs import log_densities, pairs

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
        moved = best
        for k, name in enumerate(names):
            units = orbit.units(name, apart_from=names[k + 1 :] if sweep == 0 else ())
            assert units is not None
            order = solve_many(pairs(moved, mean, std, units).squeeze(0)).permutation
            moved = torch.gather(moved, 1, orbit.index({name: order.unsqueeze(0)}))
        if sweep and not bool(log_densities(moved, mean, std) > log_densities(best, mean, std)):
            break
        best = moved
    return best if bool(log_densities(best, mean, std) > log_densities(w, mean, std)) else w
