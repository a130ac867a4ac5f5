"""The Wasserstein distance of two solutions."""

import torch
from torch import Tensor

from coset.checks import State, check, is_coordinate
from coset.solutions.gaussian import as_gaussian
from coset.solutions.load import as_solution
from coset.solutions.solution import Solution
from coset.solutions.ties import distinct


def wasserstein(q0: State | Solution, q1: State | Solution) -> Tensor:
    """W2(q0, q1) = sqrt(||m0 - m1||^2 + ||s0 - s1||^2), a float64 scalar; a Dirac has s = 0.

    rossi2023 Eq. 17; the second line of its Eq. 16 should be the distance of square roots of covariances.
    """
    a, b = (as_gaussian(as_solution(q), "The Wasserstein distance") for q in (q0, q1))
    check(b.mean, like=a.mean, where="the second solution")
    total = torch.zeros((), dtype=torch.float64)
    for name in distinct(a.mean):
        pairs = [(a.mean[name], b.mean[name])] if is_coordinate(a.mean[name]) else []
        pairs += [(a.std[name], b.std[name])] if name in a.std else []
        for x, y in pairs:
            wide = torch.promote_types(x.dtype, torch.float64)
            total = total.to(x.device) + (x.to(wide) - y.to(x.device, wide)).abs().square().sum()
    return total.sqrt()
