"""The nearest equivalent network, and bounds on how far it is (gelberg2024 Theorem 3.1).

One hidden layer: let u_i be all weights of hidden unit i, incoming, bias and outgoing. A permutation p moves w by
||w - g w||^2 = sum_i ||u_i - u_p(i)||^2. Every p but the identity moves two units or more, each by at least the least
distance of two units, so

    min over g != e of ||w - g w|| = sqrt(2) min over i < j of ||u_i - u_j||,

reached by swapping the closest pair. The least of n (n - 1) / 2 squared distances is at most their mean, and
sum over i < j of ||u_i - u_j||^2 = n sum_i ||u_i||^2 - ||sum_i u_i||^2, hence `pairs_bound`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from coset.core.state import State, norm


@dataclass(frozen=True)
class NearestMode:
    """The least ||w - g w|| / ||w||; the distance of the closest two units, and the larger norm of the two.

    Both of these are over the root mean square of all units' norms. Of units that training has killed they are small.
    """

    ratio: float
    distance: float
    size: float


def units(state: State) -> Tensor:
    """All weights of each hidden unit of an MLP with one hidden layer, [units, inputs + 1 + outputs] in float64."""
    first, bias, second = state["layers.0.weight"], state["layers.0.bias"], state["layers.1.weight"]
    return torch.cat((first, bias[:, None], second.mT), dim=1).double()


def nearest(state: State) -> NearestMode:
    """How near the nearest equivalent network is, exactly."""
    each = units(state)
    least, pair = torch.pdist(each).min(0)
    i, j = torch.triu_indices(len(each), len(each), 1, device=each.device)[:, pair]
    norms = each.norm(dim=1)
    typical = norms.square().mean().sqrt()
    larger = torch.maximum(norms[i], norms[j])
    return NearestMode(float(math.sqrt(2) * least / norm(state)), float(least / typical), float(larger / typical))


def printed_bound(inputs: int, hidden: int, outputs: int) -> float:
    """gelberg2024 Eq. 11 as printed.

    Its derivation gives twice as much: log n! >= n/2 log(n/2), so 2 D / log n! <= 4 (D / n) / log(n / 2), where
    D / n = d_i + d_o + 1 + d_o / n. `proof_bound` is what the proof has before that step.
    """
    return 2 * (inputs + outputs + 1 + 1 / hidden) / math.log(hidden / 2)


def proof_bound(inputs: int, hidden: int, outputs: int) -> float:
    """2 D / log |G| for the D = d_i n + n + n d_o + d_o weights, the radius 2 R of the proof over ||w||."""
    return 2 * (hidden * (inputs + 1 + outputs) + outputs) / math.lgamma(hidden + 1)


def pairs_bound(hidden: int) -> float:
    """2 / sqrt(n - 1), in any dimension; reached where the u_i are a regular simplex about 0 and the last bias is 0."""
    return 2 / math.sqrt(hidden - 1)


def log10_useful_width(inputs: int, outputs: int) -> float:
    """log10 of the width from which `printed_bound` is below 2, as ||w - g w|| <= 2 ||w|| is for every g."""
    return (math.log(2) + inputs + outputs + 1) / math.log(10)  # 1 / n no longer counts
