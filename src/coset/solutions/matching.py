"""The optimal transport of two ensembles, which is a matching of their members."""

import torch
from torch import Tensor

from coset.assignment import solve
from coset.checks import is_coordinate
from coset.errors import CosetError
from coset.solutions.coordinates import rows
from coset.solutions.ensemble import Ensemble
from coset.solutions.ties import distinct


def match(a: Ensemble, b: Ensemble, purpose: str) -> tuple[Tensor, Tensor]:
    """(p, cost): member i of `a` goes to member p[i] of `b`, and the mean squared distance, a float64 scalar.

    Transport between equal numbers of equal weights has an optimum that splits none of them (Birkhoff).
    """
    if len(a) != len(b):
        raise CosetError(f"{purpose} needs ensembles of one size, not of {len(a)} and {len(b)} members.")
    total = torch.zeros((len(a), len(a)), dtype=torch.float64)
    for name in distinct(a.mean):
        if is_coordinate(a.mean[name]):
            x, y = (rows(q.population[name]) for q in (a, b))
            # Without the product of matrices, which loses the digits of a small distance.
            apart = torch.cdist(x, y.to(x.device), compute_mode="donot_use_mm_for_euclid_dist")
            total = total.to(x.device) + apart.square()
    found = solve(total, maximize=False).permutation
    return found, total.gather(1, found[:, None]).mean()
