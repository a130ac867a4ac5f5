"""Inner products of slices of two blocks: one matrix product, in pieces where the blocks are large."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

# Elements of one operand that are converted and multiplied at once.
PIECE = 2**24
# Products that are added up in float32.
SUMMED = 2**16


def gram(a: Tensor, b: Tensor, batch: Sequence[int], units: Sequence[int]) -> Tensor:
    """G[c, i, j] = sum over the other dimensions of a[c, i, ...] b[c, j, ...].

    batch, units: dimensions of a and b, which have the same shape; those of `units` are flattened to one.
    Returns [batch, n, n] with the batch flattened, in float32, or float64 for float64 operands.
    """
    rest = [d for d in range(a.dim()) if d not in batch and d not in units]
    copies, n = math.prod(a.shape[d] for d in batch), math.prod(a.shape[d] for d in units)
    dtype = torch.float64 if a.dtype == torch.float64 else torch.float32
    total: Tensor | None = None
    for x, y in _pieces(a, b, rest):
        order = [*batch, *units, *rest]
        left = x.permute(order).reshape(copies, n, -1).to(dtype)
        right = y.permute(order).reshape(copies, n, -1).to(dtype)
        if total is None:
            total = torch.bmm(left, right.mT)
        else:
            total.baddbmm_(left, right.mT)
    return total if total is not None else torch.zeros(copies, n, n, dtype=dtype, device=a.device)


def inner(a: Tensor, b: Tensor) -> float:
    """<a, b>, the sums of pieces added up in float64."""
    dtype = torch.float64 if a.dtype == torch.float64 else torch.float32
    pairs = zip(torch.split(a.flatten(), SUMMED), torch.split(b.flatten(), SUMMED), strict=True)
    return sum(float(torch.dot(x.to(dtype), y.to(dtype))) for x, y in pairs)


def _pieces(a: Tensor, b: Tensor, rest: Sequence[int]) -> Iterator[tuple[Tensor, Tensor]]:
    if a.numel() <= PIECE or not rest:
        yield a, b
        return
    longest = max(rest, key=lambda d: a.shape[d])
    count = min(a.shape[longest], -(-a.numel() // PIECE))
    yield from zip(a.tensor_split(count, longest), b.tensor_split(count, longest), strict=True)
