"""Matrices on the axes of tensors: how they act, and random ones."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from coset.symmetries.group import Block, MatrixAxis, MatrixGroup

# Singular values of random matrices lie between 2^-1 and 2: far enough from one to be seen, near enough to be undone.
OCTAVES = 1.0


def turn(parts: Sequence[Block], group: MatrixGroup, member: MatrixAxis, m: Tensor, lead: int) -> None:
    """Multiply one axis of a tensor by matrices, in place.

    Args:
        parts: The blocks of the tensor, views of it with `lead` dimensions before their labels.
        group: Whose matrices these are.
        member: The axis.
        m: [*batch, copies, n, n], or [*batch, copies, n, 2, 2] for pairs.
        lead: How many dimensions come before the axes.
    """
    if group.kind != "phase":
        for block, d in places(parts, group.name, member):
            x, back = _rows(block, d, group.over, lead)
            block.values.copy_((x @ m.mT).reshape(back[0]).permute(back[1]))
        return
    m = m.unsqueeze(-4)  # one for all rows
    for real, imaginary, d in pairs(parts, group.name, member, lead):
        x, back = _rows(real, d, group.over, lead)
        y, _ = _rows(imaginary, d, group.over, lead)
        u = m[..., 0, 0] * x + m[..., 0, 1] * y
        v = m[..., 1, 0] * x + m[..., 1, 1] * y
        real.values.copy_(u.reshape(back[0]).permute(back[1]))
        imaginary.values.copy_(v.reshape(back[0]).permute(back[1]))


def places(parts: Sequence[Block], units: str, member: MatrixAxis) -> list[tuple[Block, int]]:
    """The blocks that an occurrence of units indexes, with its label."""
    at = (units, member.axis, member.occurrence)
    return [
        (block, d)
        for block in parts
        for d, label in enumerate(block.labels)
        if (label.units, label.axis, label.occurrence) == at
    ]


def pairs(parts: Sequence[Block], units: str, member: MatrixAxis, lead: int) -> list[tuple[Block, Block, int]]:
    """Blocks of the first and of the second number of each pair, with the label of the units in both."""
    out: list[tuple[Block, Block, int]] = []
    for block, d in places(parts, units, member):
        if member.partner is not None:
            out.append((block, partner(parts, block, d, member.partner), d))
            continue
        # Each unit has a pair of positions beside it, on the same axis.
        e = pair_beside(block, d)
        rest = block.labels[:e] + block.labels[e + 1 :]
        real, imaginary = (Block(block.values.select(lead + e, k), rest) for k in (0, 1))
        out.append((real, imaginary, d - (e < d)))
    return out


def pair_beside(block: Block, d: int) -> int:
    """The label of the pair of positions that each unit at label d has."""
    return next(e for e in (d + 1, d - 1) if _is_pair(block, d, e))


def partner(parts: Sequence[Block], block: Block, d: int, occurrence: int) -> Block:
    """The block with the second numbers of the pairs whose first ones are at label d."""
    return next(other for other in parts if _stands_for(other, block, d, occurrence))


def _is_pair(block: Block, d: int, e: int) -> bool:
    labels = block.labels
    return 0 <= e < len(labels) and labels[e].axis == labels[d].axis and labels[e].size == 2 and not labels[e].units


def _stands_for(other: Block, block: Block, d: int, occurrence: int) -> bool:
    """Whether a block is like another, but for the occurrence of the units at one label."""
    if len(other.labels) != len(block.labels):
        return False
    for e, (a, b) in enumerate(zip(other.labels, block.labels, strict=True)):
        same = (a.units, a.axis) == (b.units, b.axis)
        if not same or a.occurrence != (occurrence if e == d else b.occurrence):
            return False
    return True


def _rows(block: Block, d: int, over: Sequence[str], lead: int) -> tuple[Tensor, tuple[list[int], list[int]]]:
    """[*lead, copies, rows, n] with the units at label d last; and the shape and order that undo it."""
    bases = [block.base(d, base) for base in over]
    rest = [e for e in range(len(block.labels)) if e not in bases and e != d]
    order = [*range(lead), *[lead + e for e in (*bases, *rest, d)]]
    x = block.values.permute(order)
    shape = list(x.shape)
    copies = math.prod(shape[lead : lead + len(bases)])
    x = x.reshape(*shape[:lead], copies, -1, shape[-1])
    inverse = [order.index(k) for k in range(len(order))]
    return x, (shape, inverse)


def rows(block: Block, d: int, over: Sequence[str]) -> Tensor:
    """[copies, rows, n] the entries of a block with the units at label d last."""
    return _rows(block, d, over, 0)[0]


def random_matrices(
    group: MatrixGroup, lead: Sequence[int], generator: torch.Generator | None, device: torch.device
) -> Tensor:
    """[*lead, (copies,) n, n] matrices of a group in float64, or [..., n, 2, 2] for pairs.

    Orthogonal ones are uniform: the Q of a QR decomposition of Gaussian numbers, with the signs of the diagonal of R
    (Mezzadri 2007). Others are U diag(s) V with s between 1/2 and 2.
    """
    shape = (*lead, *([group.copies] if group.over else []))

    def normal(*sizes: int) -> Tensor:
        return torch.randn(*shape, *sizes, generator=generator, device=device, dtype=torch.float64)

    n = group.size
    if group.kind == "phase":
        angle = normal(n) * math.pi
        return rotations(angle)
    if group.kind == "orthogonal":
        return haar(normal(n, n))
    if group.kind == "centred":
        inner = haar(normal(n - 1, n - 1))
        basis = complement_of_ones(n, inner)
        return basis @ inner @ basis.mT + 1 / n
    spread = torch.rand(*shape, n, generator=generator, device=device, dtype=torch.float64) * 2 - 1
    return haar(normal(n, n)) * torch.exp2(OCTAVES * spread).unsqueeze(-2) @ haar(normal(n, n))


def rotations(angle: Tensor) -> Tensor:
    """[..., 2, 2] by these angles."""
    rows = [torch.stack([angle.cos(), -angle.sin()], -1), torch.stack([angle.sin(), angle.cos()], -1)]
    return torch.stack(rows, -2)


def haar(noise: Tensor) -> Tensor:
    """[..., n, n] uniform orthogonal matrices from Gaussian numbers."""
    q, r = torch.linalg.qr(noise)
    signed: Tensor = q * r.diagonal(dim1=-2, dim2=-1).sgn().unsqueeze(-2)
    return signed


def complement_of_ones(n: int, like: Tensor) -> Tensor:
    """[n, n-1] an orthonormal basis of the vectors whose entries add up to zero: a Householder reflection's columns."""
    ones = torch.full((n,), n**-0.5, dtype=like.dtype, device=like.device)
    ones[0] -= 1
    reflection = torch.eye(n, dtype=like.dtype, device=like.device) - 2 * torch.outer(ones, ones) / ones.dot(ones)
    return reflection[:, 1:]
