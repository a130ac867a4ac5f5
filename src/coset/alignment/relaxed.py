"""The action of relaxed elements: doubly stochastic matrices in place of permutations (Peña et al. 2023)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from coset.assignment import solve, solve_many
from coset.core.state import State, is_coordinate
from coset.symmetries.group import Block, Element, MatrixAxis, MatrixGroup, blocks
from coset.symmetries.matrix_action import pair_beside, partner, places
from coset.symmetries.symmetry import Symmetry


class MatrixPair(NamedTuple):
    """Matrices M of a group, [copies, n, n] or [copies, n, 2, 2] of pairs, and M^-T for dual members."""

    matrix: Tensor
    dual: Tensor


def act(
    sym: Symmetry, matrices: Mapping[str, Tensor], state: State, turns: Mapping[str, MatrixPair] | None = None
) -> dict[str, Tensor]:
    """The state whose unit i is sum_j P[i, j] unit j of `state`; differentiable in the matrices and in the state.

    matrices
        index set -> P [n, n], or [copies, n, n] for sets over others, one for each copy of the result. Absent means
        identity.
    turns
        matrix group -> what units are multiplied by after that.

    A unit i in copy x takes P_base[x, y] P[x][i, j] of the unit j in copy y. So permutation matrices act as the
    element of which they are the `matrix_of`. The result has the dtypes of `state`; integers and bools, of which there
    are no mixtures, are carried along.
    """
    turned: dict[str, list[tuple[MatrixGroup, MatrixAxis]]] = {}
    for group in sym.matrices:
        for member in group.members if turns is not None and group.name in turns else ():
            turned.setdefault(member.tensor, []).append((group, member))
    return {
        name: _image(sym, matrices, name, x, turned.get(name, ()), turns or {})
        if name in sym.axes and is_coordinate(x)
        else x
        for name, x in state.items()
    }


def matrix_of(element: Element, name: str) -> Tensor:
    """The permutation matrices of a set, [n, n] or [copies, n, n], with a one at (i, p[i])."""
    return torch.nn.functional.one_hot(element[name], element.sets[name].size).float()


def rounded(sym: Symmetry, matrices: Mapping[str, Tensor]) -> Element:
    """The permutations with the largest entries, in sum: of doubly stochastic matrices the nearest ones."""
    permutations = {
        name: (solve_many(x.detach()) if x.dim() == 3 else solve(x.detach())).permutation.cpu()
        for name, x in matrices.items()
    }
    return sym.element(permutations)


def _image(
    sym: Symmetry,
    matrices: Mapping[str, Tensor],
    name: str,
    tensor: Tensor,
    turned: Sequence[tuple[MatrixGroup, MatrixAxis]],
    turns: Mapping[str, MatrixPair],
) -> Tensor:
    parts = [_mixed(sym, matrices, block) for block in blocks(tensor, sym.axes[name])]
    for group, member in turned:
        turn = turns[group.name]
        _turn(parts, group, member, (turn.dual if member.dual else turn.matrix).to(tensor))
    if len(parts) == 1:
        return parts[0].values.reshape(tensor.shape)
    image = torch.empty_like(tensor)
    for k, part in enumerate(parts):
        # The image's blocks are views of it, made anew each time: autograd refuses those from before the last write.
        blocks(image, sym.axes[name])[k].values.copy_(part.values)
    return image


def _mixed(sym: Symmetry, matrices: Mapping[str, Tensor], block: Block) -> Block:
    """The block with the units of every label mixed.

    Bases come first: then a position along a base is that of the result, and so is the copy.
    """
    values = block.values
    mixed = {d: sym.sets[label.units] for d, label in enumerate(block.labels) if label.units in matrices}
    for d in sorted(mixed, key=lambda d: len(mixed[d].over)):
        values = _multiplied(values, matrices[mixed[d].name].to(values), block.bases(d, mixed[d]), [d])
    return Block(values, block.labels)


def _multiplied(values: Tensor, matrix: Tensor, bases: Sequence[int], at: Sequence[int]) -> Tensor:
    """`values` with the last dimension of `at` multiplied by matrices, one for each position along all others."""
    dims, new = list(range(values.dim())), values.dim()
    *lead, d = [*bases, *at]
    n = values.shape[d]
    matrix = matrix.reshape(*[values.shape[e] for e in lead], n, n)
    return torch.einsum(matrix, [*lead, new, d], values, dims, [new if e == d else e for e in dims])


def _turn(parts: list[Block], group: MatrixGroup, member: MatrixAxis, matrix: Tensor) -> None:
    """Multiply one axis of a tensor, whose blocks are `parts`, by matrices."""
    for part, d in places(parts, group.name, member):
        k = _at(parts, part)
        bases = [part.base(d, base) for base in group.over]
        if group.kind != "phase":
            parts[k] = Block(_multiplied(part.values, matrix, bases, [d]), part.labels)
        elif member.partner is None:
            parts[k] = Block(_multiplied(part.values, matrix, bases, [d, pair_beside(part, d)]), part.labels)
        else:
            j = _at(parts, partner(parts, part, d, member.partner))
            pair = torch.stack([part.values, parts[j].values], -1)
            first, second = _multiplied(pair, matrix, bases, [d, pair.dim() - 1]).unbind(-1)
            parts[k], parts[j] = Block(first, part.labels), Block(second, parts[j].labels)


def _at(parts: Sequence[Block], part: Block) -> int:
    return next(k for k, one in enumerate(parts) if one is part)
