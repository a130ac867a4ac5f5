"""The action of relaxed elements: doubly stochastic matrices in place of permutations (Peña et al. 2023)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from coset.assignment import solve, solve_many
from coset.core.state import State, is_coordinate
from coset.symmetries.group import Block, Element, blocks
from coset.symmetries.symmetry import Symmetry


def act(sym: Symmetry, matrices: Mapping[str, Tensor], state: State) -> dict[str, Tensor]:
    """The state whose unit i is sum_j P[i, j] unit j of `state`; differentiable in the matrices and in the state.

    matrices
        index set -> P [n, n], or [copies, n, n] for sets over others, one for each copy of the result. Absent means
        identity.

    A unit i in copy x takes P_base[x, y] P[x][i, j] of the unit j in copy y. So permutation matrices act as the
    element of which they are the `matrix_of`. The result has the dtypes of `state`; integers and bools, of which there
    are no mixtures, are carried along.
    """
    return {
        name: _image(sym, matrices, name, x) if name in sym.axes and is_coordinate(x) else x
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


def _image(sym: Symmetry, matrices: Mapping[str, Tensor], name: str, tensor: Tensor) -> Tensor:
    image = torch.empty_like(tensor)
    for k, block in enumerate(blocks(tensor, sym.axes[name])):
        # The image's blocks are views of it, made anew each time: autograd refuses those from before the last write.
        blocks(image, sym.axes[name])[k].values.copy_(_mixed(sym, matrices, block))
    return image


def _mixed(sym: Symmetry, matrices: Mapping[str, Tensor], block: Block) -> Tensor:
    """The block with the units of every label mixed.

    Bases come first: then a position along a base is that of the result, and so is the copy.
    """
    values = block.values
    mixed = {d: sym.sets[label.units] for d, label in enumerate(block.labels) if label.units in matrices}
    dims, new = list(range(values.dim())), values.dim()
    for d in sorted(mixed, key=lambda d: len(mixed[d].over)):
        bases = block.bases(d, mixed[d])
        n = mixed[d].size
        matrix = matrices[mixed[d].name].to(values).reshape(*[values.shape[base] for base in bases], n, n)
        values = torch.einsum(matrix, [*bases, new, d], values, dims, [new if e == d else e for e in dims])
    return values
