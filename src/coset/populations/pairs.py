"""Pairs of members of a population."""

from __future__ import annotations

import torch
from torch import Tensor

from coset.errors import CosetError


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
