"""Prices by an auction in torch, on any device: a start for the exact solver, which runs on the host.

Forward auction with epsilon scaling (Bertsekas 1988), Jacobi: all free rows bid at once. The last few free rows bid
against each other for long, so each phase stops before them; the exact solver places them.
"""

from __future__ import annotations

import torch
from torch import Tensor

LARGE = 8192  # rows from which it is worth its while: below, the host is as fast alone (measured on an H200)
TAIL = 0.02  # of the rows may stay free
PHASES = (1.0, 0.2, 0.04, 0.008, 0.0016)  # epsilon in standard deviations of the cost
ROUNDS = 1000  # in a phase, at most


def worthwhile(cost: Tensor) -> bool:
    """Whether `prices` would speed up the exact solve of `cost`."""
    return cost.is_cuda and cost.dim() == 2 and cost.shape[0] == cost.shape[1] >= LARGE and cost.is_floating_point()


def prices(cost: Tensor, maximize: bool) -> Tensor:
    """Nearly optimal column potentials `[n]`, as in `Duals`, for the square `cost` `[n, n]`; in float64 on the CPU."""
    benefit = cost.detach().float() if maximize else -cost.detach().float()
    scale = benefit.std()
    price = torch.zeros(len(benefit), device=benefit.device)
    if bool(scale > 0) and bool(scale.isfinite()):  # else there is nothing to choose, or the exact solver refuses it
        for part in PHASES:
            price = _phase(benefit, price, part * scale)
    return price.double().cpu() * (1 if maximize else -1)


def _phase(benefit: Tensor, price: Tensor, epsilon: Tensor) -> Tensor:
    """Prices after bids of at least `epsilon` until few rows are free."""
    n = len(price)
    column = torch.full((n,), -1, device=price.device)  # of each row
    row = torch.full((n,), -1, device=price.device)  # of each column
    for _ in range(ROUNDS):
        free = (column < 0).nonzero()[:, 0]
        if len(free) <= TAIL * n:
            break
        (best, second), (target, _) = (top.T for top in (benefit[free] - price).topk(2, dim=1))
        bid = best - second + epsilon
        highest = torch.zeros_like(price).scatter_reduce(0, target, bid, "amax")
        won = bid >= highest[target]
        # Of equal bids any one wins: the same column is written, by whichever comes last.
        winner = torch.full_like(row, -1).scatter_(0, target[won], free[won])
        sold = (winner >= 0).nonzero()[:, 0]
        former = row[sold]
        column[former[former >= 0]] = -1
        row[sold] = winner[sold]
        column[winner[sold]] = sold
        price = price + highest
    return price
