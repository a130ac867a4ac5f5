"""The best matrices: the rotation that brings units nearest (Procrustes), and the turn of each rotary pair."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product

import torch
from torch import Tensor

from coset.alignment.objective import gram
from coset.symmetries.group import Block, Element, MatrixGroup, MatrixKind
from coset.symmetries.matrix_action import complement_of_ones, pairs, rotations

# A matrix this near to a permutation is one, up to the rounding of float32 products.
PERMUTED = 1e-4


def best_matrices(kind: MatrixKind, scores: Tensor) -> tuple[Tensor, Tensor]:
    """The matrices M of largest <scores, M>, and these values.

    Of orthogonal ones the polar factor U V^T of U S V^T (Schoenemann 1966), with the sum of S. Where M 1 = 1, that of
    the part of the scores that is orthogonal to ones. Of pairs the turn by the argument of a complex number.

    Args:
        kind: "linear" stands for the orthogonal ones, too, as <scores, M> has no largest M among all.
        scores: [..., n, n], or [..., n, 2, 2] of pairs, a's units in rows.

    Returns:
        values [...], summed over the pairs, and matrices of the shape of the scores, both in float64.
    """
    scores = scores.double()
    if kind == "phase":
        turned = torch.complex(scores[..., 0, 0] + scores[..., 1, 1], scores[..., 1, 0] - scores[..., 0, 1])
        return turned.abs().sum(-1), rotations(turned.angle())
    if kind == "centred":
        n = scores.shape[-1]
        basis = complement_of_ones(n, scores)
        values, inner = best_matrices("orthogonal", basis.mT @ scores @ basis)
        return values + scores.sum((-2, -1)) / n, basis @ inner @ basis.mT + 1 / n
    u, s, vh = torch.linalg.svd(scores)
    return s.sum(-1), u @ vh


def with_permutations(element: Element) -> Element:
    """The same element, in which matrices that reorder units are permutations, and those that do nothing are absent."""
    permutations, matrices = dict(element.permutations), dict(element.matrices)
    for name, m in element.matrices.items():
        n, movable = m.shape[-1], element.sets[name].movable
        order = m.argmax(-1)
        exact = torch.nn.functional.one_hot(order, n).to(m)
        once = bool((exact.sum(-2) == 1).all())
        if once and float((m - exact).abs().max()) < PERMUTED and (movable or bool((exact == _eye(m)).all())):
            del matrices[name]
            if movable:
                p = element[name]
                permutations[name] = p.gather(-1, order.to(p.device))
    return replace(element, permutations=permutations, matrices=matrices)


def _eye(m: Tensor) -> Tensor:
    return torch.eye(m.shape[-1], dtype=m.dtype, device=m.device)


def trace(scores: Tensor, kind: MatrixKind) -> Tensor:
    """<scores, 1> of each matrix; of pairs the sum over them."""
    total = scores.diagonal(dim1=-2, dim2=-1).double().sum(-1)
    return total.sum(-1) if kind == "phase" else total


def cross(
    group: MatrixGroup, tensor: str, a: Sequence[Block], b: Sequence[Block], batch: Sequence[str]
) -> Iterator[Tensor]:
    """Products of the pairs of A and of B: [copies..., n, 2, 2], a term for each place where they stand.

    Args:
        group: Pairs that turn.
        tensor: A tensor that has them.
        a: Its blocks in A.
        b: Those of the moved B.
        batch: The groups whose units are compared with themselves alone; of others in `group.over` all with all, in two
            dimensions before those of the pairs.
    """
    for member in (m for m in group.members if m.tensor == tensor):
        ours, theirs = (pairs(parts, group.name, member, 0) for parts in (a, b))
        for (real, imaginary, d), (*others, _) in zip(ours, theirs, strict=True):
            own = [real.base(d, base) for base in batch]
            against = [real.base(d, base) for base in group.over if base not in batch]
            entries = [gram(x.values, y.values, [*own, d], against) for x, y in product((real, imaginary), others)]
            sizes = [real.values.shape[e] for e in (*own, d)]
            grid = torch.stack(entries, -1).reshape(*sizes, *entries[0].shape[1:], 2, 2)
            yield grid.movedim(len(own), -3)
