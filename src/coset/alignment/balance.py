"""Balanced factors: a gauge for maps inside heads, in which networks that differ by such maps differ by rotations.

Where a vector is written by A and read by B, every invertible M changes A to M A and B to M^-T B. With P = A A^T and
R = B B^T the symmetric M with M P M = M^-1 R M^-1 makes both sides alike. It is the square root of the geometric mean

    S = P^-1/2 (P^1/2 R P^1/2)^1/2 P^-1/2,    M = S^1/2,

and unique, so that M' of another network of the orbit is Q M N^-1 with Q orthogonal.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from coset.alignment.coordinate_ascent import Match
from coset.alignment.matrix_blocks import with_permutations
from coset.alignment.method import AlignmentTask
from coset.core.checkpoint import LazyState
from coset.core.state import State
from coset.solutions.dirac import Dirac
from coset.symmetries.group import Element, MatrixGroup, blocks
from coset.symmetries.matrix_action import places, rows
from coset.symmetries.symmetry import Symmetry

# Directions that hardly any weight has count as this much of the largest.
SMALLEST = 1e-10


def balance(state: State, sym: Symmetry) -> Element:
    """The element that balances what writes and what reads units that any matrix may act on.

    Args:
        state: A network.
        sym: Its symmetry; units of `sym.matrices` of the kind "linear" are balanced.
    """
    matrices: dict[str, Tensor] = {}
    for group in sym.matrices:
        if group.kind == "linear" and len({member.dual for member in group.members}) == 2:
            m = _balancing(*(_second_moment(state, sym, group, dual) for dual in (False, True)))
            matrices[group.name] = m if group.over else m[0]
    return sym.element(matrices=matrices)


def _second_moment(state: State, sym: Symmetry, group: MatrixGroup, dual: bool) -> Tensor:
    """[copies, n, n] sum of x x^T over the tensors on one side."""
    total = torch.zeros(group.copies, group.size, group.size, dtype=torch.float64)
    at: set[tuple[str, int, int]] = set()
    for member in group.members:
        place = (sym.tied.get(member.tensor, member.tensor), member.axis, member.occurrence)
        if member.dual == dual and member.tensor in state and place not in at:
            at.add(place)
            tensor = state[member.tensor]
            for block, d in places(blocks(tensor, sym.axes[member.tensor]), group.name, member):
                x = rows(block, d, group.over).double()
                total = total.to(x.device) + x.mT @ x
    return total


def _balancing(writing: Tensor, reading: Tensor) -> Tensor:
    root, inverse = _powers(writing, 0.5), _powers(writing, -0.5)
    mean = inverse @ _powers(root @ reading @ root, 0.5) @ inverse
    return _powers(mean, 0.5)


def _powers(matrix: Tensor, power: float) -> Tensor:
    """A power of symmetric matrices that are not negative."""
    values, vectors = torch.linalg.eigh((matrix + matrix.mT) / 2)
    largest = values[..., -1:].clamp(min=torch.finfo(values.dtype).tiny)
    raised: Tensor = vectors * values.clamp(min=largest * SMALLEST).pow(power).unsqueeze(-2) @ vectors.mT
    return raised


def match_balanced(match: Callable[[AlignmentTask], Match], task: AlignmentTask, sym: Symmetry) -> Match:
    """Match two networks in balanced gauges, and say it of the networks as they are.

    The objective is that of the balanced networks, in which only rotations are left to match. Checkpoints on disk are
    matched as they are.

    Args:
        match: How.
        task: The two networks.
        sym: The part of their symmetry that is searched.
    """
    linear = any(group.kind == "linear" for group in sym.matrices)
    if not linear or isinstance(task.first, LazyState) or isinstance(task.second, LazyState):
        return match(task)
    a, b = task.means
    before, after = balance(a, sym), balance(b, sym)
    balanced = replace(task, first=Dirac(sym.act(before, a)), second=Dirac(sym.act(after, b)))
    result = match(balanced)
    return replace(result, element=with_permutations(before.inverse() @ result.element @ after))
